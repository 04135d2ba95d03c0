"""Products of a few rows with a model's weights, with what lies between two products fused into them.

Every call is device code alone, without synchronisation, so calls can be captured in a CUDA graph. Where
`out` is given nothing is allocated, but where the config is torch's product. Calls on one device share a
workspace and must be on one stream at a time. More rows than the kernels are for go to torch's product.

An RMS norm has its weight folded into the product's (`fold_norm`); its scale is a factor of the result,
from sums of squares that whatever wrote x left in a `Squares`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import triton
from torch import Tensor
from torch.nn import functional

from sglc.runtime.kernels import gemm_kernels
from sglc.runtime.kernels.gemm_configs import GemmConfig, Op, best_config
from sglc.runtime.kernels.pointwise import Squares, rms_norm, row_squares, silu_mul
from sglc.runtime.kernels.rope_store import rope_store

Scale: TypeAlias = tuple[Squares, float]  # of x, and epsilon of the RMS norm

PARTIALS = 1 << 22  # float32 of a device's workspace: sums of the parts of split tiles
ARRIVALS = 1 << 13  # int32: tiles that may be split
_workspaces: dict[torch.device, tuple[Tensor, Tensor]] = {}


@dataclass(frozen=True, slots=True)
class HeadStore:
    """Where the heads of a qkv product go; fields as `rope_store` takes them.

    norm: weights [2, D] of the queries' and keys' norm and its epsilon.
    """

    heads: int
    positions: Tensor
    slots: Tensor
    rotations: Tensor
    pool: Tensor
    norm: tuple[Tensor, float] | None = None


@dataclass(frozen=True, slots=True)
class GemmCall:
    """A kernel and what it is launched with; tensors are as well described by their types."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    options: dict[str, Any]


def pack_gate_up(gate: Tensor, up: Tensor) -> Tensor:
    """gate [F, K] and up [F, K] -> [2 * F, K], the weight that `gated` takes."""
    return torch.cat((gate, up))


def fold_norm(weight: Tensor, norm_weight: Tensor) -> Tensor:
    """weight [N, K] for x / rms(x), from that for x / rms(x) * norm_weight [K]; rounded once."""
    return (weight.float() * norm_weight.float()).to(weight.dtype)


def linear(
    x: Tensor,
    weight: Tensor,
    *,
    out: Tensor | None = None,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    squares: Squares | None = None,
    pdl: bool = False,
    config: GemmConfig | None = None,
) -> Tensor:
    """y = x W^T + bias + residual, each part where it is given, rounded once at the end.

    Args:
        x: [M, K], rows at any stride. weight: [N, K], contiguous. Both bfloat16, float16 or float32.
        out: [M, N], rows at any stride; may be `residual`, may not overlap `x`. Made if not given.
        bias: [N]. residual: [M, N].
        squares: takes the sums of squares of `out`.
        pdl: launch before the kernel in front of this one is complete (programmatic dependent launch);
            `weight` and `bias` must not be what that kernel writes.
        config: the kernel to use; else the one that `best_config` names.
    """
    m = len(x)
    if out is None:
        out = x.new_empty(m, len(weight))
    if not m:
        return out
    config = config or _best("plain" if residual is None else "residual", x, len(weight))
    if config.kind != "library":
        launch(prepared(config, x, weight, out, bias=bias, residual=residual, squares_out=squares, pdl=pdl))
        return out
    if squares:
        squares.tiles = 0
    added = residual if bias is None else bias if residual is None else residual + bias
    if added is None:
        return torch.mm(x, weight.t(), out=out)
    return torch.addmm(added, x, weight.t(), out=out)


def gated(
    x: Tensor,
    gate_up_weight: Tensor,
    *,
    scale: Scale | None = None,
    out: Tensor | None = None,
    pdl: bool = False,
    config: GemmConfig | None = None,
) -> Tensor:
    """silu(h G^T) * (h U^T) with h = x, or with `scale` x / rms(x), rounded once at the end.

    Args:
        x: [M, K]. gate_up_weight: [2 * F, K] from `pack_gate_up`. out: [M, F]. Else as `linear`.
    """
    m, features = len(x), len(gate_up_weight) // 2
    if out is None:
        out = x.new_empty(m, features)
    if not m:
        return out
    config = config or _best("gated", x, features)
    if config.kind == "library":
        return silu_mul(functional.linear(_scaled(x, scale, pdl), gate_up_weight), out, pdl=pdl and x.is_cuda)
    launch(prepared(config, x, gate_up_weight, out, scale=scale, gated=True, pdl=pdl))
    return out


def qkv(
    x: Tensor,
    weight: Tensor,
    store: HeadStore,
    *,
    out: Tensor,
    scale: Scale | None = None,
    bias: Tensor | None = None,
    pdl: bool = False,
    config: GemmConfig | None = None,
) -> Tensor:
    """Queries of h W^T + bias, normed and turned, [M, heads, D] inside `out`; keys and values go to the pool.

    Args:
        x: [M, K]. weight: [N, K], rows of queries', keys' and values' heads, N = (heads + 2 * kv_heads) * D.
        out: [M, N], rows at any stride; what it holds besides the queries is undefined.
        Else as `gated` and `linear`.
    """
    d = store.pool.shape[-1]
    heads = out.view(len(x), len(weight) // d, d)
    if not len(x):
        return heads[:, : store.heads]
    config = config or _best("qkv", x, len(weight))
    if config.kind != "library":
        launch(prepared(config, x, weight, out, bias=bias, scale=scale, store=store, pdl=pdl))
        return heads[:, : store.heads]
    linear(_scaled(x, scale, pdl), weight, out=out, bias=bias, config=config)
    return rope_store(
        heads, store.positions, store.slots, store.rotations, store.pool, store.heads, norm=store.norm,
        pdl=pdl and x.is_cuda,
    )  # fmt: skip


def _best(op: Op, x: Tensor, n: int) -> GemmConfig:
    return best_config(op, len(x), n, x.shape[1], str(x.dtype)[6:])


def _scaled(x: Tensor, scale: Scale | None, pdl: bool) -> Tensor:
    """x / rms(x) in a tensor of its own: torch's products scale nothing, and float16 could overflow."""
    return x if scale is None else rms_norm(x, None, scale[1], pdl=pdl and x.is_cuda)


def prepare(device: torch.device) -> None:
    """Make the workspace of `device`, which cannot be made while a graph is captured."""
    _workspace(torch.empty(0, device=device).device)  # with its index, as operands have it


def _workspace(device: torch.device) -> tuple[Tensor, Tensor]:
    if device not in _workspaces:
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise RuntimeError("`prepare` must run before a graph is captured")
        with torch.inference_mode(False):  # others write it outside of that mode too
            _workspaces[device] = (
                torch.empty(PARTIALS, dtype=torch.float32, device=device),
                torch.zeros(ARRIVALS, dtype=torch.int32, device=device),
            )
    return _workspaces[device]


def launch(call: GemmCall) -> None:
    """Queue `call` on the current stream."""
    call.kernel[call.grid](*call.arguments, **call.options)


def prepared(
    config: GemmConfig,
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    *,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    scale: Scale | None = None,
    squares_out: Squares | None = None,
    store: HeadStore | None = None,
    gated: bool = False,
    pdl: bool = False,
) -> GemmCall:
    """The launch of a product with a `config` other than `library`, M >= 1; operands as above.

    Sums of squares that `scale` lacks are computed here, and `squares_out` counts as written.

    Raises:
        ValueError: an operand's last dimension is strided, or the config does not suit the product.
    """
    strided = [t for t in (x, weight, out, bias, residual) if t is not None and t.stride(-1) != 1]
    if strided or not weight.is_contiguous():
        raise ValueError("the last dimension of every operand, and the whole weight, must be contiguous")
    pdl = pdl and x.device.type != "cpu"  # nothing overlaps in the interpreter
    m, k = x.shape
    n = len(weight) // 2 if gated else len(weight)
    squares, eps = scale or (None, 0.0)
    if squares and not squares.tiles:
        row_squares(x, squares, pdl=pdl)
    tiles_m, tiles_n = triton.cdiv(m, config.block_m), triton.cdiv(n, config.block_n)
    if squares_out:
        squares_out.claim(tiles_n, m)
    columns = config.block_n * (2 if gated else 1)
    padded = tiles_m * config.block_m * tiles_n * columns
    if config.kind == "vector" and tiles_m > 1:
        raise ValueError(f"{m} rows are more than this config's {config.block_m}")
    met = config.split_k > 1 or store is not None  # programs may share a tile or a head
    if met and (tiles_m * tiles_n > ARRIVALS or padded * config.split_k > PARTIALS):
        raise ValueError(f"{tiles_m * tiles_n} tiles split by {config.split_k} do not fit the workspace")
    head_norm = store.norm if store else None
    arguments = (
        x, weight, out, bias, residual, squares.values if squares else None,
        squares_out.values if squares_out else None, *_workspace(x.device),
        *((store.positions, store.slots, store.rotations, store.pool) if store else (None,) * 4),
        head_norm[0] if head_norm else None, m, n, squares.tiles if squares else 0,
        x.stride(0), out.stride(0), residual.stride(0) if residual is not None else 0,
        store.pool.stride(0) if store else 0, eps, head_norm[1] if head_norm else 0.0,
    )  # fmt: skip
    _, kv_heads, page, d = store.pool.shape[1:] if store else (0, 0, 0, 0)
    options: dict[str, Any] = {
        "K": k, "SQUARES": triton.next_power_of_2(squares.tiles) if squares else 1,
        "HEADS": store.heads if store else 0, "KV_HEADS": kv_heads, "D": d, "PAGE": page,
        "BLOCK_M": config.block_m, "BLOCK_N": config.block_n, "BLOCK_K": config.block_k,
        "GATED": gated, "EARLY": config.early, "PDL": pdl, "num_warps": config.num_warps,
    }  # fmt: skip
    if pdl:  # only a launch with the attribute may pass the option: without it the kernel is the same
        options["launch_pdl"] = True
    if config.kind == "vector":
        return GemmCall(gemm_kernels.vector, (tiles_n,), arguments, options)
    options |= {"SPLIT_K": config.split_k, "STAGES": config.num_stages, "SWAP": config.kind == "swapped"}
    return GemmCall(gemm_kernels.tiled, (tiles_m * tiles_n, config.split_k), arguments, options)
