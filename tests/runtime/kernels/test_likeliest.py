"""The likeliest ids of rows against torch's."""

from __future__ import annotations

import pytest
import torch

from sglc.runtime.executor.sampler import likeliest, log_probabilities
from sglc.runtime.kernels.likeliest import likeliest_of_sampled

pytestmark = pytest.mark.kernel

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("rows", "vocab", "count"), [(1, 8, 8), (3, 2048, 1), (2, 2049, 2), (2, 5000, 8), (1, 9000, 32)]
)
def test_they_are_those_of_torch(rows: int, vocab: int, count: int, dtype: torch.dtype) -> None:
    """Rows lie further apart than they are long; one id of each is known, or none was sampled (-1)."""
    draw = torch.Generator().manual_seed(vocab)
    # Distinct values of both signs, that each type holds: else the order of equal ones is torch's own affair.
    room = torch.stack([torch.randperm(vocab + 3, generator=draw) - vocab // 2 for _ in range(rows)]).float()
    room = (room / 64 if dtype == torch.float32 else room).to(DEVICE, dtype)
    logits = room[:, :vocab]
    ids = torch.randint(-1, vocab, (rows,), generator=draw, dtype=torch.int32).to(DEVICE)
    logprobs = log_probabilities(logits, ids.clamp(min=0).long())
    best_ids = torch.full((rows, count), -7, dtype=torch.int32, device=DEVICE)
    best_logprobs = torch.full((rows, count), float("nan"), device=DEVICE)
    likeliest_of_sampled(logits, ids, logprobs, best_ids, best_logprobs)
    wanted_ids, wanted = likeliest(logits, count)
    torch.testing.assert_close(best_logprobs, wanted, rtol=0, atol=2e-3)
    # Of equal logits the lowest id comes first.
    values = logits.float().gather(1, best_ids.long())
    assert torch.equal(values, logits.float().gather(1, wanted_ids))
    for row in range(rows):
        pairs = [*zip((-values[row]).tolist(), best_ids[row].tolist(), strict=True)]
        assert pairs == sorted(set(pairs))


def test_of_equal_logits_the_lowest_ids_are_first() -> None:
    logits = torch.zeros(2, 5000, device=DEVICE)
    logits[1, 4000:] = float("-inf")
    logits[1, 3000] = 1.0
    out = torch.zeros(2, 4, dtype=torch.int32, device=DEVICE), torch.zeros(2, 4, device=DEVICE)
    likeliest_of_sampled(
        logits, torch.zeros(2, dtype=torch.int32, device=DEVICE), torch.zeros(2, device=DEVICE), *out
    )
    assert out[0].tolist() == [[0, 1, 2, 3], [3000, 0, 1, 2]]
    assert out[1].tolist() == [[0, 0, 0, 0], [1, 0, 0, 0]]
