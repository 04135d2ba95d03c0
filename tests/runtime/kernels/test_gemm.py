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
from sglc.runtime.kernels.pointwise import Squares, embed, empty_squares
from sglc.runtime.kernels.rope_store import rope_store, rotation_table
from tests.depth import some_of

pytestmark = pytest.mark.kernel

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
EPS = 1e-6


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


def squares_of(x: Tensor, columns: int = 20) -> Squares:
    """As a product with tiles of `columns` columns leaves them, with something behind them."""
    made = torch.stack([part.float().square().sum(1) for part in x.split(columns, dim=1)])
    return Squares(torch.cat((made.flatten(), poisoned(3, dtype=torch.float32))), len(made))


def normed(x: Tensor) -> Tensor:
    return x.double() * torch.rsqrt(x.double().square().mean(1, keepdim=True) + EPS)


def reference(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    scale: tuple[Squares, float] | None = None,
    residual: Tensor | None = None,
    gated: bool = False,
) -> Tensor:
    """The product in float64, rounded nowhere."""
    y = (normed(x) if scale else x.double()) @ weight.double().T
    if gated:
        gate, up = y.chunk(2, dim=1)
        y = torch.nn.functional.silu(gate) * up
    if bias is not None:
        y = y + bias.double()
    return y if residual is None else y + residual.double()


def launch(config: GemmConfig, x: Tensor, weight: Tensor, out: Tensor, **fused: object) -> None:
    gemm.launch(gemm.prepared(config, x, weight, out, **fused))  # type: ignore[arg-type]


def assert_close(got: Tensor, wanted: Tensor) -> None:
    assert torch.isfinite(got).all()
    error = (got.double() - wanted).norm() / wanted.norm()
    assert error <= TOLERANCE[got.dtype], error


@pytest.mark.parametrize("dtype", some_of(TYPES, 1, 2), ids=str)
@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("op", ["plain", "bias", "scaled", "residual", "gated"])
def test_every_kernel_computes_every_product(config: GemmConfig, dtype: torch.dtype, op: str) -> None:
    m, n, k = (3, 21, 72)  # no multiple of any block
    x = random(m, k, dtype=dtype)
    weight = random(2 * n if op == "gated" else n, k, dtype=dtype, seed=1) * 0.1
    scale = (squares_of(x), EPS)
    fused = {
        "plain": {},
        "bias": {"bias": random(n, dtype=dtype, seed=2)},
        "scaled": {"scale": scale, "bias": random(n, dtype=dtype, seed=2)},
        "residual": {"residual": random(m, n, dtype=dtype, seed=4)},
        "gated": {"scale": scale, "gated": True},
    }[op]
    out = poisoned(m, n, dtype=dtype)
    launch(config, x, weight, out, **fused)
    assert_close(out, reference(x, weight, **fused))


@pytest.mark.parametrize("m", some_of([1, 2, 15, 16, 17, 33], 1, 3))
@pytest.mark.parametrize("config", CONFIGS[1:], ids=str)
def test_any_number_of_rows(config: GemmConfig, m: int) -> None:
    x, weight = random(m, 64, dtype=torch.float32), random(33, 64, dtype=torch.float32, seed=1)
    scale = (squares_of(x), EPS)
    out = poisoned(m, 33, dtype=torch.float32)
    launch(config, x, weight, out, scale=scale)
    assert_close(out, reference(x, weight, scale=scale))


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("columns", [1, 300])
def test_squares_of_any_number_of_tiles(config: GemmConfig, columns: int) -> None:
    """More than a program holds at once, and one."""
    x, weight = random(3, 300, dtype=torch.float32), random(17, 300, dtype=torch.float32, seed=1)
    scale = (squares_of(x, columns), EPS)
    assert scale[0].tiles == -(-300 // columns)
    out = poisoned(3, 17, dtype=torch.float32)
    launch(config, x, weight, out, scale=scale)
    assert_close(out, reference(x, weight, scale=scale))


@pytest.mark.parametrize("dtype", some_of(TYPES, 1, 2), ids=str)
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_products_leave_the_squares_of_what_they_store(config: GemmConfig, dtype: torch.dtype) -> None:
    m, n, k = 3, 21, 72
    x, weight = random(m, k, dtype=dtype), random(n, k, dtype=dtype, seed=1)
    squares = Squares(poisoned(40, dtype=torch.float32))
    out = poisoned(m, n, dtype=dtype)
    launch(config, x, weight, out, residual=random(m, n, dtype=dtype, seed=4), squares_out=squares)
    assert squares.tiles == -(-n // config.block_n)
    sums = squares.values[: squares.tiles * m].view(-1, m).sum(0)
    torch.testing.assert_close(sums, out.float().square().sum(1), rtol=1e-5, atol=0)
    assert squares.values[squares.tiles * m :].isnan().all()


@pytest.mark.parametrize("config", [LIBRARY, TILED], ids=str)
def test_squares_go_from_embedding_to_product_to_product(config: GemmConfig) -> None:
    """Whichever kernels make and take them; the library makes none."""
    table, ids = random(9, 1100, dtype=torch.float32), torch.tensor([4, 0, 8], device=DEVICE)
    up, down = (random(*shape, dtype=torch.float32, seed=1) * 0.05 for shape in ((2 * 24, 1100), (1100, 24)))
    x, squares = poisoned(3, 1100, dtype=torch.float32), empty_squares(3, 1100, DEVICE)
    embed(ids, table, x, squares=squares)
    assert squares.tiles == 2
    for taker in (LIBRARY, TILED, VECTOR):
        made = gemm.gated(x, up, scale=(squares, EPS), config=taker)
        assert_close(made, reference(x, up, scale=(squares, EPS), gated=True))
    gemm.linear(made, down, residual=x, squares=squares, out=x, config=config)
    assert squares.tiles == (0 if config == LIBRARY else 69)
    for taker in (LIBRARY, TILED, VECTOR):
        again = gemm.gated(x, up, scale=(squares, EPS), config=taker)
        assert_close(again, reference(x, up, scale=(squares, EPS), gated=True))


def test_a_folded_norm_is_the_norm() -> None:
    x, weight = random(3, 64, dtype=torch.float32), random(16, 64, dtype=torch.float32, seed=1)
    norm = random(64, dtype=torch.float32, seed=2)
    out = poisoned(3, 16, dtype=torch.float32)
    launch(TILED, x, gemm.fold_norm(weight, norm), out, scale=(squares_of(x), EPS))
    assert_close(out, normed(x) * norm.double() @ weight.double().T)
    assert gemm.fold_norm(weight.bfloat16(), norm).dtype == torch.bfloat16


HEADS, KV_HEADS, PAGE = 3, 2, 4
QKV_CONFIGS = {
    "vector, parts of heads": GemmConfig("vector", 4, 8, 64),
    "vector, one head": GemmConfig("vector", 4, 16, 64),
    "vector, more heads": GemmConfig("vector", 4, 32, 64),
    "parts of heads": GemmConfig("tiled", 16, 16, 32, 1, 4, 2),
    "split parts of heads": GemmConfig("tiled", 16, 16, 32, 2, 4, 2),
    "one head": GemmConfig("tiled", 16, 32, 32, 1, 4, 2),
    "more heads": GemmConfig("tiled", 16, 64, 32, 1, 4, 2),
    "split": GemmConfig("tiled", 16, 64, 32, 2, 4, 2),
    "swapped": GemmConfig("swapped", 16, 64, 32, 1, 4, 2),
    "swapped, split parts": GemmConfig("swapped", 16, 64, 32, 2, 4, 2),
    "library": LIBRARY,
}


def qkv_case(
    m: int, d: int, dtype: torch.dtype, normed_heads: bool, kv_dtype: torch.dtype
) -> tuple[gemm.HeadStore, Tensor]:
    positions = torch.tensor([5, 0, 17, 63], dtype=torch.int32).repeat(m)[:m]
    slots = torch.randperm(6 * m * PAGE, generator=torch.Generator().manual_seed(5))[:m].int()
    pool = torch.full((6 * m, 2, KV_HEADS, PAGE, d), float("nan"), device=DEVICE).to(kv_dtype)
    rotations = rotation_table(d, 1e4, None, 64).to(DEVICE)
    norm = (random(2, d, dtype=dtype, seed=6), 1e-5) if normed_heads else None
    store = gemm.HeadStore(HEADS, positions.to(DEVICE), slots.to(DEVICE), rotations, pool, norm)
    return store, poisoned(m, (HEADS + 2 * KV_HEADS) * d, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("name", some_of(list(QKV_CONFIGS), 2, 5))
@pytest.mark.parametrize(("normed_heads", "biased", "m", "d"), [(True, False, 3, 32), (False, True, 1, 16)])
def test_heads_are_normed_turned_and_stored(
    name: str, dtype: torch.dtype, normed_heads: bool, biased: bool, m: int, d: int
) -> None:
    config, k = QKV_CONFIGS[name], 72
    store, out = qkv_case(m, d, dtype, normed_heads, dtype)
    x, weight = random(m, k, dtype=dtype), random(out.shape[1], k, dtype=dtype, seed=1)
    bias = random(out.shape[1], dtype=dtype, seed=2) if biased else None
    scale = (squares_of(x), EPS)
    queries = gemm.qkv(x, weight, store, out=out, scale=scale, bias=bias, config=config)

    heads = reference(x, weight, bias, scale).float().unflatten(1, (-1, d))
    wanted_pool = torch.full_like(store.pool, float("nan"), dtype=torch.float32)
    at = (store.positions, store.slots, store.rotations, wanted_pool)
    wanted = rope_store(heads, *at, HEADS, norm=store.norm)
    assert queries.shape == (m, HEADS, d)
    assert queries.data_ptr() == out.data_ptr()
    assert_close(queries, wanted.double())
    written = wanted_pool.isfinite()
    assert torch.equal(store.pool.isfinite(), written)
    assert_close(store.pool[written], wanted_pool[written].double())


@pytest.mark.parametrize(
    "config", [QKV_CONFIGS["vector, parts of heads"], QKV_CONFIGS["split parts of heads"]], ids=str
)
def test_heads_in_parts_leave_no_arrivals_and_saturate(config: GemmConfig) -> None:
    store, out = qkv_case(3, 32, torch.float16, False, torch.float8_e4m3fn)
    x, weight = random(3, 72, dtype=torch.float16), random(out.shape[1], 72, dtype=torch.float16, seed=1) * 200
    _, arrivals = gemm._workspace(x.device)
    outs = []
    for _ in range(2):
        gemm.qkv(x, weight, store, out=out, config=config)
        outs.append((out.clone(), store.pool.clone().view(torch.uint8)))
        assert not arrivals.any()
    kept = store.pool.float()
    assert kept[kept.isfinite()].abs().max() == 448
    assert torch.equal(outs[0][0][:, : HEADS * 32], outs[1][0][:, : HEADS * 32])
    assert torch.equal(outs[0][1], outs[1][1])


@pytest.mark.parametrize("m", [17, 40])
def test_heads_of_many_rows(m: int) -> None:
    store, out = qkv_case(m, 32, torch.float32, True, torch.float32)
    x, weight = random(m, 64, dtype=torch.float32), random(out.shape[1], 64, dtype=torch.float32, seed=1)
    gemm.qkv(x, weight, store, out=out, config=LIBRARY)
    wanted, pool = out[:, : HEADS * 32].clone(), store.pool.clone()
    for name in ("parts of heads", "split", "swapped, split parts"):
        store.pool.fill_(float("nan"))
        queries = gemm.qkv(x, weight, store, out=out.fill_(float("nan")), config=QKV_CONFIGS[name])
        torch.testing.assert_close(queries.flatten(1), wanted, atol=1e-4, rtol=1e-5)
        torch.testing.assert_close(store.pool, pool, atol=1e-4, rtol=1e-5, equal_nan=True)


@pytest.mark.parametrize("m", some_of([1, 2, 3, 4], 1, 2))
@pytest.mark.parametrize("block_k", some_of([16, 64, 128], 1, 2))
def test_vector_kernel_covers_k_in_any_number_of_steps(m: int, block_k: int) -> None:
    x, weight = random(m, 72, dtype=torch.float32), random(2 * 21, 72, dtype=torch.float32, seed=1)
    out = poisoned(m, 21, dtype=torch.float32)
    launch(GemmConfig("vector", 4, 2, block_k), x, weight, out, gated=True)
    assert_close(out, reference(x, weight, gated=True))


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_strided_rows_leave_what_lies_between_alone(config: GemmConfig) -> None:
    m, n, k = 3, 20, 40
    x = random(m, 2 * k + 3, dtype=torch.float32)[:, 3 : k + 3]
    residual = random(m, 3 * n, dtype=torch.float32, seed=2)[:, n : 2 * n]
    weight = random(n, k, dtype=torch.float32, seed=1)
    whole = poisoned(m + 1, n + 5, dtype=torch.float32)
    launch(config, x, weight, whole[:m, 2 : n + 2], residual=residual)
    assert_close(whole[:m, 2 : n + 2], reference(x, weight, residual=residual))
    whole[:m, 2 : n + 2] = float("nan")
    assert torch.isnan(whole).all()


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_adds_to_the_residual_in_place(config: GemmConfig) -> None:
    x, weight = random(4, 96, dtype=torch.float32), random(24, 96, dtype=torch.float32, seed=1)
    residual = random(4, 24, dtype=torch.float32, seed=2)
    wanted = reference(x, weight, residual=residual)
    launch(config, x, weight, residual, residual=residual)
    assert_close(residual, wanted)


@pytest.mark.parametrize("config", [SPLIT, SWAPPED_SPLIT], ids=str)
def test_split_sums_are_the_same_every_time_and_leave_no_arrivals(config: GemmConfig) -> None:
    x, weight = random(20, 128, dtype=torch.float16), random(40, 128, dtype=torch.float16, seed=1)
    scale = (squares_of(x), EPS)
    outs = []
    for _ in range(3):
        outs.append(poisoned(20, 40, dtype=torch.float16))
        partials, arrivals = gemm._workspace(x.device)
        partials.fill_(float("nan"))  # what an earlier product left must not matter
        launch(config, x, weight, outs[-1], scale=scale)
        assert not arrivals.any()
    assert torch.equal(outs[0], outs[1])
    assert torch.equal(outs[0], outs[2])
    assert_close(outs[0], reference(x, weight, scale=scale))


@pytest.mark.parametrize("config", [*CONFIGS, LIBRARY], ids=str)
def test_large_float16_rows_do_not_overflow_before_their_norm(config: GemmConfig) -> None:
    x = random(2, 64, dtype=torch.float16) * 8000
    weight = random(2 * 16, 64, dtype=torch.float16, seed=2)
    scale = (squares_of(x), EPS)
    out = gemm.gated(x, weight, scale=scale, config=config)
    assert_close(out, reference(x, weight, scale=scale, gated=True))


@pytest.mark.parametrize("dtype", TYPES if DEVICE == "cuda" else TYPES[1:], ids=str)
def test_a_scaled_product_is_at_least_as_accurate_as_a_norm_of_its_own(dtype: torch.dtype) -> None:
    x, weight = random(8, 256, dtype=dtype) * 5, random(64, 256, dtype=dtype, seed=1)
    scale = (squares_of(x), EPS)
    wanted = reference(x, weight, scale=scale)
    apart = torch.nn.functional.linear(torch.nn.functional.rms_norm(x, (256,), eps=EPS), weight)
    limit = 1.1 * (apart.double() - wanted).norm()
    for config in (GemmConfig("vector", 8, 8, 64), TILED, SWAPPED):
        out = poisoned(8, 64, dtype=dtype)
        launch(config, x, weight, out, scale=scale)
        assert (out.double() - wanted).norm() <= limit, config


def test_refuses_what_it_would_compute_wrongly() -> None:
    x, weight, out = (random(*shape, dtype=torch.float32) for shape in ((4, 32), (16, 32), (4, 16)))
    with pytest.raises(ValueError, match="contiguous"):
        launch(TILED, random(32, 4, dtype=torch.float32).T, weight, out)
    with pytest.raises(ValueError, match="contiguous"):
        launch(TILED, x, random(16, 64, dtype=torch.float32)[:, ::2], out)
    with pytest.raises(ValueError, match="4 rows are more"):
        launch(GemmConfig("vector", 2, 8, 32), x, weight, out)
    with pytest.raises(ValueError, match="workspace"):
        launch(GemmConfig("tiled", 16, 16, 16, 1 << 15), x, weight, out)
    with pytest.raises(ValueError, match="do not fit"):
        launch(TILED, x, weight, out, residual=out, squares_out=Squares(poisoned(3, dtype=torch.float32)))


@pytest.mark.parametrize("m", [0, 1, 3, 16, 40, 257])
def test_linear_gated_and_qkv_choose_by_rows(m: int) -> None:
    x, residual = random(m, 64, dtype=torch.float16), random(m, 48, dtype=torch.float16, seed=1)
    weight, bias = random(48, 64, dtype=torch.float16, seed=2), random(48, dtype=torch.float16, seed=3)
    for fused in ({}, {"bias": bias}, {"residual": residual}):
        out = poisoned(m, 48, dtype=torch.float16)
        assert gemm.linear(x, weight, out=out, **fused) is out
        made = gemm.linear(x, weight, **fused)
        assert torch.equal(made, out)
        if m:
            assert_close(out, reference(x, weight, **fused))
    packed = gemm.pack_gate_up(weight, random(48, 64, dtype=torch.float16, seed=5))
    out, scale = poisoned(m, 48, dtype=torch.float16), (squares_of(x), EPS)
    assert gemm.gated(x, packed, out=out, scale=scale) is out
    store, heads = qkv_case(max(m, 1), 32, torch.float16, True, torch.float16)
    queries = gemm.qkv(x, random(heads.shape[1], 64, dtype=torch.float16), store, out=heads[:m], scale=scale)
    assert queries.shape == (m, HEADS, 32)
    assert queries.isfinite().all()
    if m:
        assert_close(out, reference(x, packed, scale=scale, gated=True))


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
    for op in ("plain", "residual", "gated", *(["qkv"] if n < 1 << 16 else [])):
        for m in M_BUCKETS:
            for config in (rule_of_thumb(op, m, n, k, dtype), best_config(op, m, n, k, dtype)):
                if config.kind == "library":
                    continue
                halves, size = 1 + (op == "gated"), 4 if dtype == "float32" else 2
                stage = size * config.block_k * (config.block_m + halves * config.block_n)
                tiles = -(-m // config.block_m) * -(-n // config.block_n)
                assert config.kind == "vector" or stage * config.num_stages <= gemm_configs.SHARED_BYTES
                assert config.kind != "vector" or m <= config.block_m
                if config.split_k > 1 or op == "qkv":
                    padded = tiles * config.block_m * config.block_n * halves
                    assert tiles <= gemm.ARRIVALS
                    assert padded * config.split_k <= gemm.PARTIALS


def test_many_rows_and_huge_weights_go_to_the_library() -> None:
    assert best_config("plain", 257, 4096, 1024, "bfloat16") == LIBRARY
    assert best_config("plain", 1, 1 << 20, 1 << 10, "bfloat16") == LIBRARY
    assert best_config("qkv", 3, 4096, 1024, "bfloat16") == best_config("qkv", 4, 4096, 1024, "bfloat16")


def test_the_table_is_read_as_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {"qkv bfloat16 8x96x64": TILED, "plain bfloat16 8x96x64": LIBRARY}
    path = tmp_path / "table.json"
    path.write_text(gemm_configs.table_text(wanted), encoding="utf-8")
    monkeypatch.setattr(gemm_configs, "_TABLE", path)
    gemm_configs._table.cache_clear()
    best_config.cache_clear()
    try:
        assert best_config("qkv", 5, 96, 64, "bfloat16") == TILED
        assert best_config("plain", 8, 96, 64, "bfloat16") == LIBRARY
        assert best_config("qkv", 5, 96, 64, "float16") == rule_of_thumb("qkv", 8, 96, 64, "float16")
    finally:
        gemm_configs._table.cache_clear()
        best_config.cache_clear()


# Compiles for sm_90 in a process that has neither a device nor the interpreter; prints PTX.
COMPILE = """
import sys, torch, triton
from triton.backends.compiler import GPUTarget
from sglc.runtime.kernels import gemm
from sglc.runtime.kernels.gemm_configs import GemmConfig
from sglc.runtime.kernels.pointwise import Squares
class NoDevice:
    def get_current_device(self): return 0
    def get_current_stream(self, device): return 0
    def get_current_target(self): return GPUTarget("cuda", 90, 32)
triton.runtime.driver.set_active(NoDevice())
def meta(*shape, dtype=torch.bfloat16):
    return torch.empty(*shape, dtype=dtype, device="meta")
x, weight, out = meta(1, 1024), meta(4096, 1024), meta(1, 4096)
full, ints = meta(4096, 64, 2, dtype=torch.float32), meta(1, dtype=torch.int32)
store = gemm.HeadStore(16, ints, ints, full, meta(9, 2, 8, 16, 128), (meta(2, 128), 1e-6))
for config in (
    GemmConfig("vector", 1, 8, 1024),
    GemmConfig("tiled", 16, 64, 128, 2, 4, 4),
    GemmConfig("swapped", 16, 64, 128, 2, 4, 4),
    GemmConfig("vector", 1, 8, 1024, early=True),
):
    call = gemm.prepared(config, x, weight, out, scale=(Squares(full, 16), 1e-6), store=store, pdl=True)
    types = [value.dtype if isinstance(value, torch.Tensor) else value for value in call.arguments]
    kernel = call.kernel.warmup(*types, grid=(1,), **call.options)
    print(kernel.asm["ptx"], end="\\0")
"""


def test_only_weights_are_read_before_the_kernel_in_front_is_complete() -> None:
    """In the PTX for sm_90, which the interpreter never sees."""
    done = subprocess.run(
        [sys.executable, "-c", COMPILE], capture_output=True, text=True, timeout=120, env=_plain_env()
    )
    assert done.returncode == 0, done.stderr
    vector, tiled, swapped, early = (ptx.split("griddepcontrol.wait") for ptx in done.stdout.split("\0")[:4])
    assert "griddepcontrol.launch_dependents" in early[0]
    assert early[0].count("ld.global") == 8
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
