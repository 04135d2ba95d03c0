"""Every example runs on the default model and does what its file says."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from sglc.backends.local import LocalBackend
from sglc.cli.program_file import open_function
from sglc.execution.result import Result
from tests.small_default import says

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(local: LocalBackend, name: str, **arguments: Any) -> Result:
    result = open_function(str(EXAMPLES / f"{name}.py")).run(backend=local, seed=0, **arguments)
    assert result.error() is None
    return result


def test_every_example_is_tested() -> None:
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    by_cluster = {"ray_serve"}  # where Ray is: `tests/test_cluster.py`
    assert names == {"quickstart", "judge", "few_shot", "react", "tree", "tools", "guess"} | by_cluster


def test_quickstart(local: LocalBackend) -> None:
    result = run(local, "quickstart", question="What is the capital of France?")
    assert says(result["answer"], "Paris")
    assert [turn["role"] for turn in result.messages()] == ["user", "assistant"]


def test_judge(local: LocalBackend) -> None:
    result = run(local, "judge", essay="Rain is good for the garden.")
    assert len(result["score"]) == 3
    assert result["verdict"] in ("weak", "fair", "strong")
    assert result.ret_value == {"score": result["score"]}


@pytest.mark.model
def test_few_shot(local: LocalBackend) -> None:
    assert run(local, "few_shot", review="The best evening of the year.")["label"] == " positive"
    assert run(local, "few_shot", review="I waited for two hours and left.")["label"] == " negative"


def test_tree(local: LocalBackend) -> None:
    result = run(local, "tree", goal="learn to swim")
    assert len(result["plan"]) == 2
    assert [len(remarks) for remarks in result["remark"]] == [2, 2]
    assert len(result.calls) == 6


@pytest.mark.model
def test_tools(local: LocalBackend) -> None:
    result = run(local, "tools", question="A box holds 12 eggs. How many eggs are in 7 boxes?")
    assert "\nResult: 84\n" in result.text()
    assert "84" in result["answer"]


@pytest.mark.model
def test_react(local: LocalBackend) -> None:
    result = run(local, "react", question="In which country was the creator of Linux born?")
    rounds = [name for name in result.variables if name.startswith("action_")]
    searches = [name for name in rounds if result[name] == "Search"]
    assert len([name for name in result.variables if name.startswith("query_")]) == len(searches)
    own = result.text().rpartition("Question: ")[2]
    assert own.count("Observation ") == len(searches) > 0
    assert result.ret_value == result["answer"]


@pytest.mark.slow
def test_guess(local: LocalBackend) -> None:
    result = run(local, "guess", lucky=7)
    number = random.Random(7).randint(1, 20)
    guesses = [int(call.samples[0].text) for call in result.calls]
    assert result.mode == "python"
    assert result.ret_value == (guesses.index(number) + 1 if number in guesses else None)
    assert all(
        f"{'higher' if one < number else 'lower'} than {one}." in result.text()
        for one in guesses
        if one != number
    )
