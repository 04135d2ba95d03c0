"""The forward pass equals transformers' for every architecture and every kind of rope."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from sglc.runtime.executor.executor_state import ExecutorState
from sglc.runtime.executor.torch_model import Llama
from sglc.runtime.model.rope import pair_rows
from tests.runtime.handmade import Row, make_step
from tests.runtime.reference_models import tiny_model

LENGTH = 200
ROPES: dict[str, dict[str, object]] = {
    "plain": {"rope_type": "default", "rope_theta": 10000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 500.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn-mscale": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "mscale": 0.8,
        "mscale_all_dim": 0.5,
        "beta_fast": 20.0,
    },
}


def compare(folder: Path, kind: str, **fields: object) -> None:
    reference, config = tiny_model(folder, kind, **fields)
    tokens = torch.randint(0, 320, (LENGTH,), generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        expected = reference(tokens[None]).logits[0]
        model = Llama(config, reference.state_dict())
        pool = torch.zeros(model.pool_shape(16, 16))
        batch = ExecutorState(16).expand(make_step([Row(tokens=tokens.tolist(), pages=range(16))], 16))
        hidden = model.forward(batch, tokens, pool, 16, np.arange(LENGTH))
        got = model.logits(hidden)
    assert expected.std() > 0.5
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("rope", ROPES)
def test_rope(rope: str, tmp_path: Path) -> None:
    compare(tmp_path, "llama", rope_parameters=ROPES[rope])


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [False, True])
def test_architecture(kind: str, tied: bool, tmp_path: Path) -> None:
    compare(tmp_path, kind, tie_word_embeddings=tied)


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(4, 4, 8), (8, 1, 32)])
def test_head_shapes(heads: int, kv_heads: int, head_dim: int, tmp_path: Path) -> None:
    compare(tmp_path, "qwen3", num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=head_dim)


def test_pairs_lie_side_by_side() -> None:
    weight = torch.arange(16)[:, None].expand(16, 3)
    assert pair_rows(weight, 8)[:, 0].tolist() == [0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15]
    assert torch.equal(pair_rows(weight[:, 0].contiguous(), 8), pair_rows(weight, 8)[:, 0])
