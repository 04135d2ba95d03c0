"""Head norm, rotation and the store of KV against torch in float64, and a token at a time against `rope`."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sglc.runtime.kernels.rope_store import rope_store, rotation_table
from sglc.runtime.model.config import RopeScaling
from sglc.runtime.model.rope import rope_table

pytestmark = pytest.mark.kernel

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PAGE, PAGES, LENGTH = 4, 6, 64
# Half a step of each type, but Triton's interpreter cuts bfloat16 off.
TOLERANCE = {torch.float32: 2e-7, torch.float16: 5e-4, torch.bfloat16: 8e-3 if DEVICE == "cpu" else 2e-3}
Norm = tuple[Tensor, float]


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def poisoned(kv_heads: int, d: int, dtype: torch.dtype) -> Tensor:
    return torch.full((PAGES, 2, kv_heads, PAGE, d), float("nan"), device=DEVICE).to(dtype)


def reference(qkv: Tensor, positions: Tensor, table: Tensor, kv_heads: int, norm: Norm | None) -> Tensor:
    """What queries, keys and values are in float64: [T, heads + 2 * kv_heads, D]."""
    x = qkv.double()
    turned = len(x[0]) - kv_heads
    if norm is not None:
        (q_weight, k_weight), eps = norm
        x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
        x[:, : turned - kv_heads] *= q_weight.double()
        x[:, turned - kv_heads : turned] *= k_weight.double()
        x[:, turned:] = qkv[:, turned:].double()
    rotations = torch.view_as_complex(table[positions.long()].double())[:, None]
    heads = torch.view_as_complex(x[:, :turned].reshape(len(x), turned, -1, 2).contiguous()) * rotations
    x[:, :turned] = torch.view_as_real(heads).flatten(-2)
    return x


def error(out: Tensor, wanted: Tensor) -> float:
    return float((out.double() - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize(("heads", "kv_heads", "d"), [(4, 2, 64), (9, 3, 64), (16, 8, 128)])
@pytest.mark.parametrize("normed", [False, True])
def test_equals_torch(dtype: torch.dtype, heads: int, kv_heads: int, d: int, normed: bool) -> None:
    qkv = random(5, heads + 2 * kv_heads, d, dtype=dtype)
    norm = (random(2, d, seed=1, dtype=dtype), 1e-6) if normed else None
    positions = ints(0, PAGE - 1, PAGE, PAGE + 1, LENGTH - 1)
    slots = ints(3, PAGE, 0, PAGES * PAGE - 1, 2 * PAGE + 1)
    table = rotation_table(d, 10_000.0, None, LENGTH).to(DEVICE)
    wanted = reference(qkv, positions, table, kv_heads, norm)
    pool = poisoned(kv_heads, d, dtype)
    before = qkv.clone()
    q = rope_store(qkv, positions, slots, table, pool, heads, norm=norm)

    assert q.data_ptr() == qkv.data_ptr()
    assert error(q, wanted[:, :heads]) < TOLERANCE[dtype]
    assert torch.equal(qkv[:, heads:], before[:, heads:])
    at = slots.long()
    stored = pool[at // PAGE, :, :, at % PAGE]
    assert error(stored[:, 0], wanted[:, heads : heads + kv_heads]) < TOLERANCE[dtype]
    assert torch.equal(stored[:, 1], before[:, heads + kv_heads :])
    others = torch.ones(PAGES * PAGE, dtype=torch.bool)
    others[at.cpu()] = False
    assert pool.transpose(2, 3).transpose(1, 2).flatten(0, 1)[others.to(DEVICE)].isnan().all()


def test_strided_input_and_output() -> None:
    wide = random(3, 4 + 2 * 2 + 1, 64 + 16)
    qkv = wide[:, 1:, :64]
    before = wide.clone()
    table = rotation_table(64, 10_000.0, None, LENGTH).to(DEVICE)
    positions, slots = ints(7, 1, 30), ints(0, 9, 4)
    out = torch.full((3, 5, 64), float("nan"), device=DEVICE)
    pool = torch.full((PAGES, 3, 2, PAGE, 64), float("nan"), device=DEVICE)
    made = rope_store(qkv, positions, slots, table, pool[:, 1:], 4, out=out[:, :4])
    wanted = reference(qkv, positions, table, 2, None)
    assert torch.equal(wide, before)
    assert made.data_ptr() == out.data_ptr()
    assert error(out[:, :4], wanted[:, :4]) < 2e-7
    assert out[:, 4].isnan().all()
    assert pool[:, 0].isnan().all()
    at = slots.long()
    assert error(pool[at // PAGE, 1:, :, at % PAGE].flatten(1, 2), wanted[:, 4:]) < 2e-7


def test_no_tokens() -> None:
    pool = poisoned(2, 64, torch.float32)
    table = rotation_table(64, 10_000.0, None, LENGTH).to(DEVICE)
    assert rope_store(random(0, 8, 64), ints(), ints(), table, pool, 4).shape == (0, 4, 64)
    assert pool.isnan().all()


def test_padding_shares_a_slot() -> None:
    """All padding tokens are equal, so whichever is stored last, the slot has the same."""
    qkv = random(1, 8, 64).repeat(9, 1, 1)
    pool = poisoned(2, 64, torch.float32)
    table = rotation_table(64, 10_000.0, None, LENGTH).to(DEVICE)
    rope_store(qkv, ints(*[0] * 9), ints(*[5] * 9), table, pool, 4)
    assert torch.equal(pool[1, 1, :, 1], qkv[0, 6:])
    assert int(pool.isnan().sum()) == pool.numel() - 2 * 2 * 64


@pytest.mark.parametrize("d", [64, 128])
def test_float8_pool_saturates(d: int) -> None:
    """Position 0 turns nothing, so what is stored is the input, rounded as torch rounds."""
    qkv = random(2, 4, d) * 100
    if DEVICE == "cpu":  # the interpreter loses a carry out of the digits, so nothing may need rounding
        qkv = qkv.to(torch.float8_e4m3fn).float()
    qkv[:, 2:, :4] = torch.tensor([1e4, -1e4, 448.0, 1e30])
    pool = torch.zeros(PAGES, 2, 1, PAGE, d, device=DEVICE).to(torch.float8_e4m3fn)
    table = rotation_table(d, 10_000.0, None, LENGTH).to(DEVICE)
    rope_store(qkv.clone(), ints(0, 0), ints(PAGE - 1, PAGE), table, pool, 2)
    stored = pool.float()[[0, 1], :, 0, [PAGE - 1, 0]]
    assert torch.equal(stored, qkv[:, 2:].clamp(-448, 448).to(torch.float8_e4m3fn).float())
    assert int(pool.float().count_nonzero()) == int(stored.count_nonzero())


@pytest.mark.parametrize(
    "scaling",
    [
        None,
        RopeScaling(kind="linear", factor=2.0, original_max_len=32),
        RopeScaling(kind="yarn", factor=4.0, original_max_len=16),
    ],
)
def test_table_is_the_rotation_of_rope(scaling: RopeScaling | None) -> None:
    table = rotation_table(64, 10_000.0, scaling, LENGTH)
    assert table.shape == (LENGTH, 32, 2)
    assert torch.equal(table, torch.view_as_real(rope_table(64, 10_000.0, scaling, LENGTH)))
