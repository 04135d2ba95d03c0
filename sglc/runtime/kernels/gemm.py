"""Products of a few rows with a model's weights, with the norm before and the sum or gate after fused in.

Every call is device code alone, without synchronisation, so calls can be captured in a CUDA graph. Where
`out` is given nothing is allocated, but for a norm or gate that the config makes a kernel of its own.
Calls on one device share a workspace and must be on one stream at a time. More rows than the kernels are
for go to torch's product.
"""

from __future__ import annotations

from typing import TypeAlias

import torch
import triton
from torch import Tensor
from torch.nn import functional

from sglc.runtime.kernels import gemm_kernels
from sglc.runtime.kernels.gemm_configs import GemmConfig, Op, best_config

Norm: TypeAlias = tuple[Tensor, float]  # weight [K] and epsilon of an RMS norm

PARTIALS = 1 << 22  # float32 of a device's workspace: sums of the parts of split tiles
ARRIVALS = 1 << 13  # int32: tiles that may be split
_workspaces: dict[torch.device, tuple[Tensor, Tensor]] = {}


def pack_gate_up(gate: Tensor, up: Tensor) -> Tensor:
    """gate [F, K] and up [F, K] -> [2 * F, K], the weight that `gated` takes."""
    return torch.cat((gate, up))


def linear(
    x: Tensor,
    weight: Tensor,
    *,
    out: Tensor | None = None,
    bias: Tensor | None = None,
    norm: Norm | None = None,
    residual: Tensor | None = None,
    pdl: bool = False,
) -> Tensor:
    """y = rms_norm(x) W^T + bias + residual, each part where it is given, rounded once at the end.

    Args:
        x: [M, K], rows at any stride. weight: [N, K], contiguous. Both bfloat16, float16 or float32.
        out: [M, N], rows at any stride; may be `residual`, may not overlap `x`. Made if not given.
        bias: [N]. residual: [M, N].
        norm: weight [K] and epsilon. A float32 weight is the fastest: its loads are wide enough to be
            pipelined in every config.
        pdl: launch before the kernel in front of this one is complete (programmatic dependent launch);
            `weight`, `norm` and `bias` must not be what that kernel writes.
    """
    m, k = x.shape
    if out is None:
        out = x.new_empty(m, len(weight))
    op: Op = "norm" if norm else "residual" if residual is not None else "plain"
    config = best_config(op, m, len(weight), k, str(x.dtype)[6:]) if m else None
    if config is None:
        return out
    if config.kind == "library":
        return _library_linear(x, weight, out, bias, norm, residual, pdl)
    launch(config, x, weight, out, bias=bias, norm=norm, residual=residual, pdl=pdl)
    return out


def gated(
    x: Tensor, gate_up_weight: Tensor, *, out: Tensor | None = None, norm: Norm | None = None, pdl: bool = False
) -> Tensor:
    """silu(h G^T) * (h U^T) with h = x or rms_norm(x), rounded once at the end.

    Args:
        x: [M, K]. gate_up_weight: [2 * F, K] from `pack_gate_up`. out: [M, F]. Else as `linear`.
    """
    m, k = x.shape
    features = len(gate_up_weight) // 2
    if out is None:
        out = x.new_empty(m, features)
    config = best_config("gated", m, features, k, str(x.dtype)[6:]) if m else None
    if config is None:
        return out
    if config.kind == "library":
        from sglc.runtime.kernels.pointwise import silu_mul

        product = functional.linear(_normed(x, norm, pdl), gate_up_weight)
        return silu_mul(product, out=out, pdl=pdl and x.is_cuda)
    launch(config, x, gate_up_weight, out, norm=norm, gated=True, pdl=pdl)
    return out


def _library_linear(
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    bias: Tensor | None,
    norm: Norm | None,
    residual: Tensor | None,
    pdl: bool,
) -> Tensor:
    x = _normed(x, norm, pdl)
    added = residual if bias is None else bias if residual is None else residual + bias
    if added is None:
        return torch.mm(x, weight.t(), out=out)
    return torch.addmm(added, x, weight.t(), out=out)


def _normed(x: Tensor, norm: Norm | None, pdl: bool) -> Tensor:
    if norm is None:
        return x
    from sglc.runtime.kernels.pointwise import rms_norm

    return rms_norm(x, norm[0], norm[1], pdl=pdl and x.is_cuda)


def prepare(device: torch.device) -> None:
    """Make the workspace of `device`, which cannot be made while a graph is captured."""
    _workspace(torch.empty(0, device=device).device)  # with its index, as operands have it


def _workspace(device: torch.device) -> tuple[Tensor, Tensor]:
    if device not in _workspaces:
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise RuntimeError("`prepare` must run before a graph is captured")
        _workspaces[device] = (
            torch.empty(PARTIALS, dtype=torch.float32, device=device),
            torch.zeros(ARRIVALS, dtype=torch.int32, device=device),
        )
    return _workspaces[device]


def launch(
    config: GemmConfig,
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    *,
    bias: Tensor | None = None,
    norm: Norm | None = None,
    residual: Tensor | None = None,
    gated: bool = False,
    pdl: bool = False,
) -> None:
    """`linear` or `gated` with a `config` other than `library`; operands as there, M >= 1.

    Raises:
        ValueError: an operand's last dimension is strided, or the config splits more than the workspace
            holds.
    """
    strided = [t for t in (x, weight, out, bias, residual) if t is not None and t.stride(-1) != 1]
    if strided or not weight.is_contiguous():
        raise ValueError("the last dimension of every operand, and the whole weight, must be contiguous")
    pdl = pdl and x.is_cuda  # nothing overlaps in the interpreter
    m, k = x.shape
    n = out.shape[1]
    if config.norm_apart:
        x, norm = _normed(x, norm, pdl), None
    norm_weight, eps = norm or (None, 0.0)
    tiles = triton.cdiv(n, config.block_n)
    strides = (x.stride(0), out.stride(0), residual.stride(0) if residual is not None else 0)
    blocks = {"BLOCK_M": config.block_m, "BLOCK_N": config.block_n, "BLOCK_K": config.block_k}
    # Only a launch with the attribute may pass the option: without it the kernel is the same.
    options: dict[str, int | bool] = {"num_warps": config.num_warps} | ({"launch_pdl": True} if pdl else {})
    if config.kind == "vector":
        if m > config.block_m:
            raise ValueError(f"{m} rows are more than this config's {config.block_m}")
        gemm_kernels.vector[(tiles,)](
            *(x, weight, out, bias, residual, norm_weight, m, n, *strides, eps),
            K=k, **blocks, GATED=gated, PDL=pdl, **options,
        )  # fmt: skip
        return
    tiles *= triton.cdiv(m, config.block_m)
    partials, arrivals = _workspace(x.device)
    tile = config.block_m * (config.block_n * (2 if gated else 1) + 1)
    if config.split_k > 1 and (tiles > ARRIVALS or tiles * config.split_k * tile > PARTIALS):
        raise ValueError(f"{tiles} tiles split by {config.split_k} do not fit the workspace")
    gemm_kernels.tiled[(tiles, config.split_k)](
        *(x, weight, out, bias, residual, norm_weight, partials, arrivals, m, n, *strides, eps),
        K=k, **blocks, SPLIT_K=config.split_k, STAGES=config.num_stages, SWAP=config.kind == "swapped",
        GATED=gated, PDL=pdl, **options,
    )  # fmt: skip
