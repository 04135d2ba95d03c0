"""Norm, gated activation and embedding against torch in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from sglc.runtime.kernels.pointwise import embed, rms_norm, silu_mul

pytestmark = pytest.mark.kernel

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Half a step of each type, but Triton's interpreter cuts bfloat16 off.
TOLERANCE = {torch.float32: 2e-7, torch.float16: 5e-4, torch.bfloat16: 8e-3 if DEVICE == "cpu" else 2e-3}
WIDTHS = (1, 96, 1024, 1025, 2500)


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def poisoned(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.full(shape, float("nan"), dtype=dtype, device=DEVICE)


def error(out: Tensor, wanted: Tensor) -> float:
    return float((out.double() - wanted).norm() / wanted.norm())


def normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    x = x.double()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight.double()


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("width", WIDTHS)
def test_rms_norm(dtype: torch.dtype, width: int) -> None:
    x, weight = random(5, width, dtype=dtype), random(width, seed=1, dtype=dtype)
    assert error(rms_norm(x, weight, 1e-5), normed(x, weight, 1e-5)) < TOLERANCE[dtype]


def test_rms_norm_of_strided_rows_and_in_place() -> None:
    wide = random(4, 200)
    x, weight = wide[:, 3:103], random(100, seed=1)
    wanted = normed(x, weight, 1e-6)
    out = poisoned(4, 130)
    assert rms_norm(x, weight, 1e-6, out[:, 5:105]).data_ptr() == out[:, 5:].data_ptr()
    assert error(out[:, 5:105], wanted) < 2e-7
    assert out[:, :5].isnan().all()
    assert out[:, 105:].isnan().all()
    before = wide.clone()
    rms_norm(x, weight, 1e-6, x)
    assert error(x, wanted) < 2e-7
    assert torch.equal(wide[:, :3], before[:, :3])
    assert torch.equal(wide[:, 103:], before[:, 103:])


def test_rms_norm_of_a_row_of_zeros_is_zero() -> None:
    assert not rms_norm(torch.zeros(1, 64, device=DEVICE), random(64), 1e-6).any()


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("width", WIDTHS)
def test_silu_mul(dtype: torch.dtype, width: int) -> None:
    gate_up = random(5, 2 * width, dtype=dtype) * 4
    gate, up = gate_up.double().chunk(2, -1)
    assert error(silu_mul(gate_up), functional.silu(gate) * up) < TOLERANCE[dtype]


def test_silu_mul_of_strided_rows() -> None:
    gate_up = random(4, 150)[:, 10:110]
    out = poisoned(4, 60)
    silu_mul(gate_up, out[:, :50])
    gate, up = gate_up.double().chunk(2, -1)
    assert error(out[:, :50], functional.silu(gate) * up) < 2e-7
    assert out[:, 50:].isnan().all()


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("width", [64, 1025])
def test_embed(dtype: torch.dtype, index: torch.dtype, width: int) -> None:
    table = random(30, width + 6, dtype=dtype)[:, 2:-4]
    ids = torch.tensor([0, 29, 7, 7, 1], dtype=index, device=DEVICE)
    out = poisoned(5, width + 3, dtype=dtype)
    assert embed(ids, table, out[:, :width]).shape == (5, width)
    assert torch.equal(out[:, :width], table[ids.long()])
    assert out[:, width:].isnan().all()


def test_no_rows() -> None:
    assert rms_norm(random(0, 64), random(64), 1e-6).shape == (0, 64)
    assert silu_mul(random(0, 64)).shape == (0, 32)
    assert embed(torch.empty(0, dtype=torch.int32, device=DEVICE), random(3, 8), random(0, 8)).shape == (0, 8)
