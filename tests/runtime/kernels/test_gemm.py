"""Products with few rows against torch in float64: every kernel, operand, type and odd shape."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from sglc.runtime.kernels import gemm, gemm_configs
from sglc.runtime.kernels.gemm_configs import LIBRARY, M_BUCKETS, GemmConfig, best_config, rule_of_thumb

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TYPES = (torch.bfloat16, torch.float16, torch.float32)
# Relative norms of the error: a product that is rounded once, from operands rounded to the type.
# Triton's interpreter cuts bfloat16 off instead of rounding it.
TOLERANCE = {torch.bfloat16: 6e-3 if DEVICE == "cuda" else 1.2e-2, torch.float16: 8e-4, torch.float32: 2e-6}

VECTOR = GemmConfig("vector", 4, 8, 32)
TILED = GemmConfig("tiled", 16, 16, 32, 1, 4, 2)
SPLIT = GemmConfig("tiled", 16, 16, 32, 3, 4, 2)
SWAPPED = GemmConfig("swapped", 16, 64, 32, 1, 4, 2)
SWAPPED_SPLIT = GemmConfig("swapped", 16, 64, 32, 2, 4, 2)
CONFIGS = (VECTOR, TILED, SPLIT, SWAPPED, SWAPPED_SPLIT)


@pytest.fixture(autouse=True)
def _bfloat16_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter multiplies the bit patterns of bfloat16: widen them first, which is exact."""
    if DEVICE == "cpu":
        from triton.language import bfloat16, float32
        from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

        plain = InterpreterBuilder.create_dot

        def widened(handle: TensorHandle) -> TensorHandle:
            if handle.dtype != bfloat16:
                return handle
            return TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), float32)

        def create_dot(self, a, b, *rest):  # type: ignore[no-untyped-def]
            return plain(self, widened(a), widened(b), *rest)

        monkeypatch.setattr(InterpreterBuilder, "create_dot", create_dot)


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype).to(DEVICE)


def poisoned(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.full(shape, float("nan"), dtype=dtype, device=DEVICE)


def reference(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    norm: tuple[Tensor, float] | None = None,
    residual: Tensor | None = None,
    gated: bool = False,
) -> Tensor:
    """The product in float64, rounded nowhere."""
    y = x.double()
    if norm:
        y = y * torch.rsqrt(y.square().mean(1, keepdim=True) + norm[1]) * norm[0].double()
    y = y @ weight.double().T
    if gated:
        gate, up = y.chunk(2, dim=1)
        y = torch.nn.functional.silu(gate) * up
    if bias is not None:
        y = y + bias.double()
    return y if residual is None else y + residual.double()


def assert_close(got: Tensor, wanted: Tensor) -> None:
    assert torch.isfinite(got).all()
    error = (got.double() - wanted).norm() / wanted.norm()
    assert error <= TOLERANCE[got.dtype], error


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("op", ["plain", "bias", "norm", "residual", "gated"])
def test_every_kernel_computes_every_product(config: GemmConfig, dtype: torch.dtype, op: str) -> None:
    m, n, k = (3, 21, 72)  # no multiple of any block
    x = random(m, k, dtype=dtype)
    weight = random(2 * n if op == "gated" else n, k, dtype=dtype, seed=1) * 0.1
    fused = {
        "plain": {},
        "bias": {"bias": random(n, dtype=dtype, seed=2)},
        "norm": {"norm": (random(k, dtype=dtype, seed=3), 1e-6), "bias": random(n, dtype=dtype, seed=2)},
        "residual": {"residual": random(m, n, dtype=dtype, seed=4)},
        "gated": {"norm": (random(k, dtype=dtype, seed=3), 1e-6), "gated": True},
    }[op]
    out = poisoned(m, n, dtype=dtype)
    gemm.launch(config, x, weight, out, **fused)
    assert_close(out, reference(x, weight, **fused))


@pytest.mark.parametrize("m", [1, 2, 15, 16, 17, 33])
@pytest.mark.parametrize("config", CONFIGS[1:], ids=str)
def test_any_number_of_rows(config: GemmConfig, m: int) -> None:
    x, weight = random(m, 64, dtype=torch.float32), random(33, 64, dtype=torch.float32, seed=1)
    norm = (random(64, dtype=torch.float32, seed=2), 1e-5)
    out = poisoned(m, 33, dtype=torch.float32)
    gemm.launch(config, x, weight, out, norm=norm)
    assert_close(out, reference(x, weight, norm=norm))


@pytest.mark.parametrize("m", [1, 2, 3, 4])
@pytest.mark.parametrize("block_k", [16, 64, 128])
def test_vector_kernel_covers_k_in_any_number_of_steps(m: int, block_k: int) -> None:
    x, weight = random(m, 72, dtype=torch.float32), random(2 * 21, 72, dtype=torch.float32, seed=1)
    out = poisoned(m, 21, dtype=torch.float32)
    gemm.launch(GemmConfig("vector", 4, 2, block_k), x, weight, out, gated=True)
    assert_close(out, reference(x, weight, gated=True))


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_strided_rows_leave_what_lies_between_alone(config: GemmConfig) -> None:
    m, n, k = 3, 20, 40
    x = random(m, 2 * k + 3, dtype=torch.float32)[:, 3 : k + 3]
    residual = random(m, 3 * n, dtype=torch.float32, seed=2)[:, n : 2 * n]
    weight = random(n, k, dtype=torch.float32, seed=1)
    whole = poisoned(m + 1, n + 5, dtype=torch.float32)
    gemm.launch(config, x, weight, whole[:m, 2 : n + 2], residual=residual)
    assert_close(whole[:m, 2 : n + 2], reference(x, weight, residual=residual))
    whole[:m, 2 : n + 2] = float("nan")
    assert torch.isnan(whole).all()


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_adds_to_the_residual_in_place(config: GemmConfig) -> None:
    x, weight = random(4, 96, dtype=torch.float32), random(24, 96, dtype=torch.float32, seed=1)
    residual = random(4, 24, dtype=torch.float32, seed=2)
    wanted = reference(x, weight, residual=residual)
    gemm.launch(config, x, weight, residual, residual=residual)
    assert_close(residual, wanted)


@pytest.mark.parametrize("config", [SPLIT, SWAPPED_SPLIT], ids=str)
def test_split_sums_are_the_same_every_time_and_leave_no_arrivals(config: GemmConfig) -> None:
    x, weight = random(20, 128, dtype=torch.float16), random(40, 128, dtype=torch.float16, seed=1)
    norm = (random(128, dtype=torch.float16, seed=2), 1e-6)
    outs = []
    for _ in range(3):
        outs.append(poisoned(20, 40, dtype=torch.float16))
        partials, arrivals = gemm._workspace(x.device)
        partials.fill_(float("nan"))  # what an earlier product left must not matter
        gemm.launch(config, x, weight, outs[-1], norm=norm)
        assert not arrivals.any()
    assert torch.equal(outs[0], outs[1])
    assert torch.equal(outs[0], outs[2])
    assert_close(outs[0], reference(x, weight, norm=norm))


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_large_float16_rows_do_not_overflow_before_their_norm(config: GemmConfig) -> None:
    x = random(2, 64, dtype=torch.float16) * 8000
    norm = (random(64, dtype=torch.float16, seed=1).abs() + 20, 1e-6)
    weight = random(16, 64, dtype=torch.float16, seed=2) * 0.1
    out = poisoned(2, 16, dtype=torch.float16)
    gemm.launch(config, x, weight, out, norm=norm)
    assert_close(out, reference(x, weight, norm=norm))


@pytest.mark.parametrize("dtype", TYPES if DEVICE == "cuda" else TYPES[1:], ids=str)
def test_fused_norm_is_at_least_as_accurate_as_a_norm_of_its_own(dtype: torch.dtype) -> None:
    x, weight = random(8, 256, dtype=dtype) * 5, random(64, 256, dtype=dtype, seed=1)
    norm = (random(256, dtype=dtype, seed=2), 1e-6)
    wanted = reference(x, weight, norm=norm)
    apart = torch.nn.functional.linear(torch.nn.functional.rms_norm(x, (256,), *norm), weight)
    limit = 1.1 * (apart.double() - wanted).norm()
    for config in (GemmConfig("vector", 8, 8, 64), TILED, SWAPPED):
        out = poisoned(8, 64, dtype=dtype)
        gemm.launch(config, x, weight, out, norm=norm)
        assert (out.double() - wanted).norm() <= limit, config


def test_a_float32_norm_weight_goes_with_any_type() -> None:
    x, weight = random(3, 64, dtype=torch.bfloat16), random(16, 64, dtype=torch.bfloat16, seed=1)
    norm = (random(64, dtype=torch.float32, seed=2), 1e-6)
    for config in CONFIGS:
        out = poisoned(3, 16, dtype=torch.bfloat16)
        gemm.launch(config, x, weight, out, norm=norm)
        assert_close(out, reference(x, weight, norm=norm))


def test_refuses_what_it_would_compute_wrongly() -> None:
    x, weight, out = (random(*shape, dtype=torch.float32) for shape in ((4, 32), (16, 32), (4, 16)))
    with pytest.raises(ValueError, match="contiguous"):
        gemm.launch(TILED, random(32, 4, dtype=torch.float32).T, weight, out)
    with pytest.raises(ValueError, match="contiguous"):
        gemm.launch(TILED, x, random(16, 64, dtype=torch.float32)[:, ::2], out)
    with pytest.raises(ValueError, match="4 rows are more"):
        gemm.launch(GemmConfig("vector", 2, 8, 32), x, weight, out)
    with pytest.raises(ValueError, match="workspace"):
        gemm.launch(GemmConfig("tiled", 16, 16, 16, 1 << 14), x, weight, out)


@pytest.mark.parametrize("m", [0, 1, 3, 16, 40, 257])
def test_linear_and_gated_choose_by_rows(m: int) -> None:
    x, residual = random(m, 64, dtype=torch.float16), random(m, 48, dtype=torch.float16, seed=1)
    weight, bias = random(48, 64, dtype=torch.float16, seed=2), random(48, dtype=torch.float16, seed=3)
    norm = (random(64, dtype=torch.float16, seed=4), 1e-6)
    for fused in ({}, {"bias": bias}, {"residual": residual}, {"norm": norm}):
        out = poisoned(m, 48, dtype=torch.float16)
        assert gemm.linear(x, weight, out=out, **fused) is out
        made = gemm.linear(x, weight, **fused)
        assert torch.equal(made, out)
        if m:
            assert_close(out, reference(x, weight, **fused))
    packed = gemm.pack_gate_up(weight, random(48, 64, dtype=torch.float16, seed=5))
    out = poisoned(m, 48, dtype=torch.float16)
    assert gemm.gated(x, packed, out=out, norm=norm) is out
    if m:
        assert_close(out, reference(x, packed, norm=norm, gated=True))


def test_a_norm_apart_gives_the_same() -> None:
    x, weight = random(5, 64, dtype=torch.float32), random(16, 64, dtype=torch.float32, seed=1)
    norm = (random(64, dtype=torch.float32, seed=2), 1e-6)
    out = poisoned(5, 16, dtype=torch.float32)
    gemm.launch(GemmConfig("tiled", 16, 16, 32, 1, 4, 2, norm_apart=True), x, weight, out, norm=norm)
    assert_close(out, reference(x, weight, norm=norm))


SHAPES = [
    (4096, 1024),
    (1024, 2048),
    (1024, 3072),
    (151936, 1024),
    (2048, 8192),
    (17408, 5120),
    (5120, 17408),
    (7, 8),
]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_chosen_configs_fit_the_device(n: int, k: int, dtype: str) -> None:
    for op in ("plain", "norm", "residual", "gated"):
        for m in M_BUCKETS:
            for config in (rule_of_thumb(op, m, n, k, dtype), best_config(op, m, n, k, dtype)):
                if config.kind == "library":
                    continue
                halves, size = 1 + (op == "gated"), 4 if dtype == "float32" else 2
                stage = size * config.block_k * (config.block_m + halves * config.block_n)
                tiles = -(-m // config.block_m) * -(-n // config.block_n)
                assert config.kind == "vector" or stage * config.num_stages <= gemm_configs.SHARED_BYTES
                assert config.kind != "vector" or m <= config.block_m
                if config.split_k > 1:
                    tile = config.block_m * (halves * config.block_n + 1)
                    assert tiles <= gemm.ARRIVALS
                    assert tiles * config.split_k * tile <= gemm.PARTIALS


def test_many_rows_and_huge_weights_go_to_the_library() -> None:
    assert best_config("plain", 257, 4096, 1024, "bfloat16") == LIBRARY
    assert best_config("plain", 1, 1 << 20, 1 << 10, "bfloat16") == LIBRARY
    assert best_config("norm", 3, 4096, 1024, "bfloat16") == best_config("norm", 4, 4096, 1024, "bfloat16")


def test_the_table_is_read_as_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {"norm bfloat16 8x96x64": TILED, "plain bfloat16 8x96x64": LIBRARY}
    path = tmp_path / "table.json"
    path.write_text(gemm_configs.table_text(wanted), encoding="utf-8")
    monkeypatch.setattr(gemm_configs, "_TABLE", path)
    gemm_configs._table.cache_clear()
    best_config.cache_clear()
    try:
        assert best_config("norm", 5, 96, 64, "bfloat16") == TILED
        assert best_config("plain", 8, 96, 64, "bfloat16") == LIBRARY
        assert best_config("norm", 5, 96, 64, "float16") == rule_of_thumb("norm", 8, 96, 64, "float16")
    finally:
        gemm_configs._table.cache_clear()
        best_config.cache_clear()


# Compiles for sm_90 in a process that has neither a device nor the interpreter; prints PTX.
COMPILE = """
import sys, torch, triton
from triton.backends.compiler import GPUTarget
from sglc.runtime.kernels import gemm_kernels
class NoDevice:
    def get_current_device(self): return 0
    def get_current_stream(self, device): return 0
    def get_current_target(self): return GPUTarget("cuda", 90, 32)
triton.runtime.driver.set_active(NoDevice())
half, full = torch.bfloat16, torch.float32
sizes = (1, 4096, 1024, 4096, 4096, 1e-6)
options = dict(K=1024, GATED=False, PDL=True, launch_pdl=True, grid=(1,), num_warps=4)
tiles = dict(BLOCK_M=16, BLOCK_N=64, BLOCK_K=128, SPLIT_K=2, STAGES=4)
operands = (half, half, half, half, half, full)
for kernel in (
    gemm_kernels.vector.warmup(*operands, *sizes, BLOCK_M=1, BLOCK_N=8, BLOCK_K=1024, **options),
    gemm_kernels.tiled.warmup(*operands, full, torch.int32, *sizes, **tiles, SWAP=False, **options),
    gemm_kernels.tiled.warmup(*operands, full, torch.int32, *sizes, **tiles, SWAP=True, **options),
):
    print(kernel.asm["ptx"], end="\\0")
"""


def test_only_weights_are_read_before_the_kernel_in_front_is_complete() -> None:
    """In the PTX for sm_90, which the interpreter never sees."""
    done = subprocess.run(
        [sys.executable, "-c", COMPILE], capture_output=True, text=True, timeout=120, env=_plain_env()
    )
    assert done.returncode == 0, done.stderr
    vector, tiled, swapped = (ptx.split("griddepcontrol.wait") for ptx in done.stdout.split("\0")[:3])
    for parts in (vector, tiled, swapped):
        before, after = parts
        assert "griddepcontrol.launch_dependents" not in before
        assert "griddepcontrol.launch_dependents" in after
        assert "st.global" not in before
        assert "cp.async" not in before
    # 8 rows of 1024 bfloat16 over 128 threads: 8 loads of 16 bytes, all of the weight.
    assert vector[0].count("ld.global.v4.b32") == vector[0].count("ld.global") == 8
    for parts in (tiled, swapped):
        assert "ld.global" not in parts[0]
        assert "prefetch.global.L2" in parts[0]
        assert "cp.async.cg.shared.global [" in parts[1]
    assert "mma.sync" in tiled[1]
    assert "wgmma" in swapped[1]


def _plain_env() -> dict[str, str]:
    import os

    return {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
