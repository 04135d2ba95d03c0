"""Copies inside the KV pool against indexing."""

from __future__ import annotations

import pytest
import torch

from sglc.runtime.kernels.pages import copy_tokens

pytestmark = pytest.mark.kernel

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LAYERS, PAGES, KV_HEADS = 3, 7, 2


def pool(page_size: int, d: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(page_size + d)
    shape = (LAYERS, PAGES, 2, KV_HEADS, page_size, d)
    return torch.randn(shape, generator=generator).to(dtype).to(DEVICE)


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
@pytest.mark.parametrize("d", [64, 128, 17])
def test_equals_indexing(page_size: int, dtype: torch.dtype, d: int) -> None:
    kv = pool(page_size, d, dtype)
    copies = [(0, 6, 1), (3, 2, max(page_size - 1, 1)), (5, 4, page_size), (3, 1, 0)]
    bits = kv.view(torch.uint8)
    wanted = bits.clone()
    for source, target, tokens in copies:
        wanted[:, target, :, :, :tokens] = bits[:, source, :, :, :tokens]
    copy_tokens(kv, torch.tensor(copies, dtype=torch.int32, device=DEVICE))
    assert torch.equal(bits, wanted)


def test_layers_and_pages_apart() -> None:
    """A pool that is a part of a larger one; what lies around it stays."""
    around = torch.zeros(LAYERS, PAGES + 2, 3, KV_HEADS, 4, 64, device=DEVICE)
    kv = around[:, 1:-1, 1:]
    kv.copy_(pool(4, 64, torch.float32))
    wanted = around.clone()
    wanted[:, 1 + 2, 1:, :, :3] = wanted[:, 1 + 5, 1:, :, :3]
    copy_tokens(kv, torch.tensor([(5, 2, 3)], dtype=torch.int32, device=DEVICE))
    assert torch.equal(around, wanted)


def test_no_copies() -> None:
    kv = pool(4, 64, torch.float32)
    before = kv.clone()
    copy_tokens(kv, torch.empty(0, 3, dtype=torch.int32, device=DEVICE))
    assert torch.equal(kv, before)
