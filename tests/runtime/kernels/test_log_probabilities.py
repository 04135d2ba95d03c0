"""Log-probabilities of given ids against torch's."""

from __future__ import annotations

import pytest
import torch

from sglc.runtime.executor.sampler import log_probabilities
from sglc.runtime.kernels.log_probabilities import log_probabilities_of

pytestmark = pytest.mark.kernel

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab", [1, 300, 8192, 20_001])
def test_they_are_those_of_torch(vocab: int, dtype: torch.dtype) -> None:
    """Rows lie further apart than they are long; some logits are large, and some ids cannot be."""
    draw = torch.Generator().manual_seed(vocab)
    room = (torch.randn(4, vocab + 3, generator=draw) * 20).to(DEVICE, dtype)
    room[1, : vocab // 2] = float("-inf")
    room[2] += 300
    room[3, vocab // 3] = 300.0
    logits = room[:, :vocab]
    ids = torch.randint(0, vocab, (4,), generator=draw, dtype=torch.int32).to(DEVICE)
    out = torch.full((4,), float("nan"), device=DEVICE)
    log_probabilities_of(logits, ids, out)
    torch.testing.assert_close(out, log_probabilities(logits, ids.long()), rtol=1e-6, atol=1e-4)
