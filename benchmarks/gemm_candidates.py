"""Products of decode steps, the configs worth a try for each, and compiling them without a device."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
from torch import Tensor
from torch.nn import functional

from sglc.runtime.kernels import gemm
from sglc.runtime.kernels.gemm_configs import PROCESSORS, GemmConfig, Kind, Op
from sglc.runtime.kernels.pointwise import Squares
from sglc.runtime.kernels.rope_store import rotation_table

EPS = 1e-6
PAGE = 16
POSITIONS = 1024
STAGE_BUDGETS = (96 * 1024, 200 * 1024)  # shared memory: two programs of a multiprocessor, or one


@dataclass(frozen=True, slots=True)
class Product:
    """out [m, n] = x [m, k] times a weight [n, k], gated [2 * n, k]; of a qkv product also its heads."""

    model: str
    name: str
    op: Op
    n: int
    k: int
    heads: int = 0
    head_dim: int = 0
    head_norm: bool = False

    @property
    def weight_rows(self) -> int:
        return 2 * self.n if self.op == "gated" else self.n

    @property
    def kv_heads(self) -> int:
        return (self.n // self.head_dim - self.heads) // 2


def _model(
    name: str, heads: int, kv_heads: int, head_dim: int, head_norm: bool, hidden: int, ffn: int, vocab: int
) -> tuple[Product, ...]:
    total = (heads + 2 * kv_heads) * head_dim
    return (
        Product(name, "qkv", "qkv", total, hidden, heads, head_dim, head_norm),
        Product(name, "o", "residual", hidden, heads * head_dim),
        Product(name, "gate_up", "gated", ffn, hidden),
        Product(name, "down", "residual", hidden, ffn),
        Product(name, "head", "plain", vocab, hidden),
    )


MODELS = {
    "qwen3-0.6b": _model("qwen3-0.6b", 16, 8, 128, True, 1024, 3072, 151936),
    "qwen3-14b": _model("qwen3-14b", 40, 8, 128, True, 5120, 17408, 151936),
    "llama-3.2-1b": _model("llama-3.2-1b", 32, 8, 64, False, 2048, 8192, 128256),
}


def head_store(product: Product, m: int, device: str) -> gemm.HeadStore:
    """Room for `m` tokens' heads, each token in a page of its own."""
    d = product.head_dim
    tokens = torch.arange(m, dtype=torch.int32, device=device)
    pool = torch.zeros(m, 2, product.kv_heads, PAGE, d, dtype=torch.bfloat16, device=device)
    rotations = torch.empty(POSITIONS, d // 2, 2, device=device)
    if device != "meta":
        rotations = rotation_table(d, 1e6, None, POSITIONS).to(device)
    norm = (torch.rand(2, d, device=device).bfloat16() + 0.5, EPS) if product.head_norm else None
    return gemm.HeadStore(product.heads, tokens * 3, tokens * PAGE + tokens % PAGE, rotations, pool, norm)


class Operands:
    """What goes with one product's weights, on a device or, to compile, on `meta`."""

    def __init__(self, product: Product, m: int, device: str) -> None:
        kinds: dict[str, Any] = {"device": device, "dtype": torch.bfloat16}
        self.product = product
        self.x = torch.randn(m, product.k, **kinds)
        self.out = torch.empty(m, product.n, **kinds)
        self.residual = torch.randn(m, product.n, **kinds)
        tiles = triton.cdiv(product.k, 64)  # as after a product with tiles of 64 columns
        self.squares = Squares(torch.zeros(tiles * m, device=device), tiles)
        self.squares.values[:m] = self.x.float().square().sum(1)
        self.squares_out = Squares(torch.empty(m * triton.cdiv(product.n, 2), device=device))
        self.store = head_store(product, m, device) if product.op == "qkv" else None

    def run(self, config: GemmConfig, weight: Tensor, pdl: bool = False) -> None:
        scale, some = (self.squares, EPS), {"out": self.out, "pdl": pdl, "config": config}
        match self.product.op:
            case "qkv":
                assert self.store is not None
                gemm.qkv(self.x, weight, self.store, scale=scale, **some)
            case "gated":
                gemm.gated(self.x, weight, scale=scale, **some)
            case "residual":
                gemm.linear(self.x, weight, residual=self.residual, squares=self.squares_out, **some)
            case _:
                gemm.linear(self.x, weight, **some)

    def prepared(self, config: GemmConfig, weight: Tensor) -> gemm.GemmCall:
        op = self.product.op
        scale = (self.squares, EPS) if op in ("qkv", "gated") else None
        residual, squares = (self.residual, self.squares_out) if op == "residual" else (None, None)
        return gemm.prepared(
            config, self.x, weight, self.out, residual=residual, scale=scale, squares_out=squares,
            store=self.store, gated=op == "gated", pdl=True,
        )  # fmt: skip

    def result(self) -> Tensor:
        """What the product wrote, as `reference`: float32 [m, n]."""
        if self.store is None:
            return self.out.float()
        s, m = self.store, len(self.out)
        at = s.slots.long()
        kept = s.pool[at // PAGE, :, :, at % PAGE].reshape(m, -1)
        queries = s.heads * self.product.head_dim
        return torch.cat((self.out[:, :queries], kept), dim=1).float()

    def reference(self, weight: Tensor) -> Tensor:
        op, x = self.product.op, self.x.float()
        if op in ("qkv", "gated"):
            x = x * torch.rsqrt(x.square().mean(1, keepdim=True) + EPS)
        y = torch.cat([x @ rows.float().T for rows in weight.split(16384)], dim=1)
        if op == "gated":
            gate, up = y.chunk(2, dim=1)
            y = functional.silu(gate) * up
        if self.store is not None:
            y = self._stored(y, self.store)
        return y + self.residual.float() if op == "residual" else y

    def _stored(self, y: Tensor, store: gemm.HeadStore) -> Tensor:
        """Norm and rotation of queries and keys."""
        heads = y.unflatten(1, (-1, self.product.head_dim))
        q, k, v = heads.split((store.heads, self.product.kv_heads, self.product.kv_heads), dim=1)
        turns = torch.view_as_complex(store.rotations[store.positions.long()])[:, None]
        parts = []
        for index, part in enumerate((q, k)):
            if store.norm is not None:
                part = functional.rms_norm(part, part.shape[-1:], store.norm[0][index].float(), EPS)
            pairs = torch.view_as_complex(part.unflatten(-1, (-1, 2)).contiguous())
            parts.append(torch.view_as_real(pairs * turns).flatten(2))
        return torch.cat((*parts, v), dim=1).flatten(1)


def candidates(product: Product, m: int) -> list[GemmConfig]:
    """Configs of the tiled kernel worth a try: every multiprocessor busy, enough bytes in flight."""
    found: list[GemmConfig] = []
    halves = 2 if product.op == "gated" else 1
    tiles: list[tuple[Kind, int, int, int, int]]  # kind, block_m, rows of the weight, block_k, warps
    if m <= 16:
        tiles = [("tiled", 16, 16, 256, 2), ("tiled", 16, 32, 128, 4), ("tiled", 16, 32, 256, 4)]
        tiles += [("tiled", 16, 64, 128, 4), ("swapped", 16, 64, 128, 4), ("swapped", 16, 64, 256, 4)]
        tiles += [("swapped", 16, 128, 128, 4)]
    elif m <= 32:
        tiles = [("tiled", 32, 32, 128, 4), ("tiled", 32, 32, 256, 4)]
        tiles += [("swapped", 32, 64, 128, 4), ("swapped", 32, 64, 256, 4), ("swapped", 32, 128, 128, 4)]
    elif m <= 64:
        tiles = [("tiled", 64, 32, 128, 4), ("tiled", 64, 64, 128, 4), ("tiled", 64, 128, 64, 4)]
        tiles += [("swapped", 64, 64, 128, 4), ("swapped", 32, 64, 128, 4)]
    else:
        tiles = [("tiled", 64, 64, 64, 4), ("tiled", 64, 64, 128, 4), ("tiled", 64, 128, 64, 4)]
        tiles += [("tiled", 64, 128, 128, 8), ("tiled", 128, 64, 64, 4), ("tiled", 128, 64, 64, 8)]
        tiles += [("tiled", 128, 64, 128, 8), ("tiled", 128, 128, 64, 8), ("tiled", 128, 256, 64, 8)]
    for kind, block_m, weight_rows, block_k, warps in tiles:
        programs = triton.cdiv(product.weight_rows, weight_rows) * triton.cdiv(m, block_m)
        steps = triton.cdiv(product.k, block_k)
        for split in (1, 2, 3, 4):
            cut = split > 1 and (programs * split > 2.2 * PROCESSORS or steps % split or steps // split < 2)
            wide = max(weight_rows, product.head_dim)
            cut |= (split > 1 or wide > weight_rows) and block_m * wide >= 128 * 32 * warps  # would spill
            if cut or (programs * split < 0.45 * PROCESSORS and split < 4 and steps // split >= 4):
                continue
            stages = {
                _stages(budget, block_k * (weight_rows + block_m), steps // split) for budget in STAGE_BUDGETS
            }
            for count in sorted(stages):
                found.append(GemmConfig(kind, block_m, weight_rows // halves, block_k, split, warps, count))
    return found


def _stages(budget: int, elements: int, steps: int) -> int:
    return max(2, min(budget // (2 * elements), steps + 1, 8))


def vectors(product: Product, m: int) -> list[GemmConfig]:
    """Configs of the vector kernel worth a try for `m` of 1 to 8, in the order of their tiles."""
    halves = 2 if product.op == "gated" else 1
    found = []
    for weight_rows in (4, 8, 16, 32):
        if product.weight_rows // weight_rows < 0.9 * PROCESSORS or weight_rows * m > 64:
            continue  # too few programs, or sums that spill
        for warps in (4, 8):
            for registers in (32, 64):  # of a thread, that hold a tile of two-byte weights
                block_k = warps * 32 * registers * 2 // weight_rows
                spills = registers == 64 and block_k < product.k and m > 1
                if 256 <= block_k < 2 * product.k and not spills:
                    found.append(GemmConfig("vector", m, weight_rows // halves, block_k, 1, warps))
    return found + [replace(config, early=True) for config in found if m <= 2]


def every_config(product: Product, m: int, finalists: list[GemmConfig] | None = None) -> list[GemmConfig]:
    """What to try for `m` rows; up to 16 share their tiles, so `finalists` of 16 may stand for all of them."""
    if product.op == "plain":  # a head, where the library is fastest but for one row
        return vectors(product, m) if m <= 2 else []
    tiled = candidates(product, m) if finalists is None or m > 16 else finalists
    return (vectors(product, m) if m <= 8 else []) + tiled


class _NoDevice:
    """What Triton asks of a driver when it only compiles: one Hopper device."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _: int) -> int:
        return 0

    def get_current_target(self) -> object:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)


def compile_config(task: tuple[Product, GemmConfig]) -> str:
    """Compile into Triton's cache on disk, in a process without the device; "" or what went wrong."""
    product, config = task
    triton.runtime.driver.set_active(_NoDevice())
    weight = torch.empty(product.weight_rows, product.k, dtype=torch.bfloat16, device="meta")
    try:
        call = Operands(product, config.block_m, "meta").prepared(config, weight)
        types = [value.dtype if isinstance(value, Tensor) else value for value in call.arguments]
        call.kernel.warmup(*types, grid=(1,), **call.options)
    except Exception as error:  # a tile that the compiler refuses is one candidate less
        return f"{type(error).__name__}: {str(error)[:200]}"
    return ""
