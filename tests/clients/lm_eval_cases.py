"""lm-evaluation-harness: the same scores through the server as by its own transformers model.

The same weights, float32, 48 questions of four choices (benchmarks/lm_eval_tasks).
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

import lm_eval
import pytest
from lm_eval.tasks import TaskManager

TASKS = Path(__file__).parent.parent.parent / "benchmarks" / "lm_eval_tasks"
TOLERANCE = 1e-3  # of a log-likelihood


@cache
def evaluated(kind: str, **options: Any) -> tuple[Any, list[list[tuple[float, bool]]]]:
    """Accuracies, and of each question the (log-likelihood, greedy) of its choices."""
    tasks = TaskManager(include_path=str(TASKS), include_defaults=False)
    given = {"model_args": options, "tasks": ["general"], "task_manager": tasks, "log_samples": True}
    found = lm_eval.simple_evaluate(model=kind, **given)
    samples = sorted(found["samples"]["general"], key=lambda sample: sample["doc_id"])
    return found["results"]["general"], [sample["filtered_resps"] for sample in samples]


def ours(url: str, folder: str) -> Any:
    return evaluated(
        "local-completions", model="smollm2", base_url=f"{url}/v1/completions", tokenizer=folder,
        tokenizer_backend="huggingface", num_concurrent=4, max_retries=1,
    )  # fmt: skip


def theirs(folder: str) -> Any:
    return evaluated("hf", pretrained=folder, dtype="float32", device="cpu", batch_size=1)


@pytest.mark.parametrize("measure", ["acc,none", "acc_norm,none"])
def test_accuracies_are_equal(url: str, model_folder: str, measure: str) -> None:
    assert ours(url, model_folder)[0][measure] == theirs(model_folder)[0][measure]


def test_log_likelihoods_are_equal(url: str, model_folder: str) -> None:
    pairs = [
        (one, other)
        for choices, others in zip(ours(url, model_folder)[1], theirs(model_folder)[1], strict=True)
        for one, other in zip(choices, others, strict=True)
    ]
    assert len(pairs) == 4 * 48
    assert max(abs(one[0] - other[0]) for one, other in pairs) < TOLERANCE
    assert [one[1] for one, _ in pairs] == [other[1] for _, other in pairs]
