"""Products of decode steps, the configs worth a try for each, and compiling them without a device."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import triton

from sglc.runtime.kernels import gemm_kernels
from sglc.runtime.kernels.gemm_configs import PROCESSORS, GemmConfig, Kind, Op

EPS = 1e-6
STAGE_BUDGETS = (96 * 1024, 200 * 1024)  # shared memory: two programs of a multiprocessor, or one


@dataclass(frozen=True, slots=True)
class Product:
    """out [m, n] = x [m, k] times a weight [n, k], gated [2 * n, k]."""

    model: str
    name: str
    op: Op
    n: int
    k: int

    @property
    def weight_rows(self) -> int:
        return 2 * self.n if self.op == "gated" else self.n


def _model(name: str, qkv: int, attended: int, hidden: int, ffn: int, vocab: int) -> tuple[Product, ...]:
    return (
        Product(name, "qkv", "norm", qkv, hidden),
        Product(name, "o", "residual", hidden, attended),
        Product(name, "gate_up", "gated", ffn, hidden),
        Product(name, "down", "residual", hidden, ffn),
        Product(name, "head", "norm", vocab, hidden),
    )


MODELS = {
    "qwen3-0.6b": _model("qwen3-0.6b", 4096, 2048, 1024, 3072, 151936),
    "qwen3-14b": _model("qwen3-14b", 7168, 5120, 5120, 17408, 151936),
    "llama-3.2-1b": _model("llama-3.2-1b", 3072, 2048, 2048, 8192, 128256),
}


def candidates(product: Product, m: int) -> list[GemmConfig]:
    """Configs of the tiled kernel worth a try: every multiprocessor busy, enough bytes in flight."""
    found: list[GemmConfig] = []
    halves = 2 if product.op == "gated" else 1
    tiles: list[tuple[Kind, int, int, int, int]]  # kind, block_m, rows of the weight, block_k, warps
    if m <= 16:
        tiles = [("tiled", 16, 16, 256, 2), ("tiled", 16, 32, 128, 4), ("tiled", 16, 32, 256, 4)]
        tiles += [("tiled", 16, 64, 128, 4), ("tiled", 16, 64, 256, 8), ("tiled", 16, 128, 128, 8)]
        tiles += [("swapped", 16, 64, 128, 4), ("swapped", 16, 64, 256, 4), ("swapped", 16, 128, 128, 4)]
    elif m <= 32:
        tiles = [("tiled", 32, 32, 128, 4), ("tiled", 32, 32, 256, 4), ("tiled", 32, 64, 128, 4)]
        tiles += [("swapped", 32, 64, 128, 4), ("swapped", 32, 64, 256, 4), ("swapped", 32, 128, 128, 4)]
    elif m <= 64:
        tiles = [("tiled", 64, 32, 128, 4), ("tiled", 64, 64, 128, 4), ("tiled", 64, 128, 64, 4)]
        tiles += [("swapped", 64, 64, 128, 4), ("swapped", 32, 64, 128, 4), ("swapped", 64, 128, 64, 4)]
    else:
        tiles = [("tiled", 64, 64, 128, 4), ("tiled", 64, 128, 64, 4), ("tiled", 128, 64, 64, 4)]
        tiles += [("tiled", 128, 64, 128, 8), ("tiled", 128, 128, 64, 8), ("tiled", 64, 256, 64, 8)]
        tiles += [("tiled", 128, 256, 64, 8)]
        tiles += [("swapped", 64, 128, 64, 4), ("swapped", 128, 128, 64, 8)]
    for kind, block_m, weight_rows, block_k, warps in tiles:
        programs = triton.cdiv(product.weight_rows, weight_rows) * triton.cdiv(m, block_m)
        steps = triton.cdiv(product.k, block_k)
        for split in (1, 2, 3, 4, 8):
            cut = split > 1 and (programs * split > 2.2 * PROCESSORS or steps % split or steps // split < 2)
            cut |= split > 1 and block_m * weight_rows >= 128 * 32 * warps  # adding sums up would spill
            if cut or (programs * split < 0.45 * PROCESSORS and split < 8 and steps // split >= 4):
                continue
            stages = {
                _stages(budget, block_k * (weight_rows + block_m), steps // split) for budget in STAGE_BUDGETS
            }
            for count in sorted(stages):
                found.append(GemmConfig(kind, block_m, weight_rows // halves, block_k, split, warps, count))
    if m >= 64 and product.op in ("norm", "gated"):
        found += [replace(config, norm_apart=True) for config in found]
    return found


def _stages(budget: int, elements: int, steps: int) -> int:
    return max(2, min(budget // (2 * elements), steps + 1, 8))


def vectors(product: Product, m: int) -> list[GemmConfig]:
    """Configs of the vector kernel worth a try for `m` of 1 to 8."""
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
    return found


def every_config(product: Product, m: int, finalists: list[GemmConfig] | None = None) -> list[GemmConfig]:
    """What to try for `m` rows; up to 16 share their tiles, so `finalists` of 16 may stand for all of them."""
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


def compile_config(task: tuple[Product, GemmConfig, bool]) -> str:
    """Compile into Triton's cache on disk, in a process without the device; "" or what went wrong.

    The arguments are what `gemm.launch` passes, as far as they select the compiled kernel.
    """
    product, config, pdl = task
    triton.runtime.driver.set_active(_NoDevice())
    half, full = torch.bfloat16, torch.float32
    residual = half if product.op == "residual" else None
    norm = full if product.op in ("norm", "gated") and not config.norm_apart else None
    stride = product.n if residual else 0
    sizes = (1, product.n, product.k, product.n, stride, EPS if norm else 0.0)
    blocks = {"BLOCK_M": config.block_m, "BLOCK_N": config.block_n, "BLOCK_K": config.block_k}
    options: dict[str, Any] = {"num_warps": config.num_warps, "grid": (1,)} | (
        {"launch_pdl": True} if pdl else {}
    )
    flags = {"K": product.k, "GATED": product.op == "gated", "PDL": pdl}
    try:
        if config.kind == "vector":
            gemm_kernels.vector.warmup(
                half, half, half, None, residual, norm, *sizes, **blocks, **flags, **options
            )
        else:
            gemm_kernels.tiled.warmup(
                *(half, half, half, None, residual, norm, full, torch.int32, *sizes),
                **blocks, **flags, **options, SPLIT_K=config.split_k, STAGES=config.num_stages,
                SWAP=config.kind == "swapped",
            )  # fmt: skip
    except Exception as error:  # a tile that the compiler refuses is one candidate less
        return f"{type(error).__name__}: {str(error)[:200]}"
    return ""
