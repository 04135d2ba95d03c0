"""The judge over 16 essays on the real model: order, JSON lines, and proof that prefixes are shared."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sglc.backends.local import LocalBackend
from sglc.cli.batch.rows import open_rows
from sglc.cli.program_file import open_function
from sglc.execution.result import CallRecord, Result
from sglc.ir.plan.events import Usage
from tests.depth import some_of

ROOT = Path(__file__).parent.parent


def trie_nodes(sequences: list[tuple[int, ...]]) -> int:
    """Nodes of the trie of `sequences`, the root not counted."""
    root: dict[int, dict] = {}  # type: ignore[type-arg]
    count = 0
    for sequence in sequences:
        node = root
        for token in sequence:
            if token not in node:
                node[token] = {}
                count += 1
            node = node[token]
    return count


def streams(call: CallRecord) -> list[tuple[int, ...]]:
    """The id sequences that a call passed through extend: its prompt, and for a choice each continuation."""
    if call.kind == "gen":
        return [tuple(call.prompt_ids)]
    return [(*call.prompt_ids, *ids[:-1]) for ids in call.choice_ids]


@pytest.fixture(scope="module")
def graded(local: LocalBackend) -> list[Result]:
    function = open_function(str(ROOT / "examples" / "judge.py"))
    rows = open_rows(str(ROOT / "examples" / "essays.jsonl"))
    return function.run_batch(rows, backend=local, seed=1)


def test_computed_tokens_are_the_nodes_of_the_trie(graded: list[Result]) -> None:
    calls = [call for result in graded for call in result.calls]
    used = sum((call.usage for call in calls), Usage())
    prompts = [stream for call in calls for stream in streams(call)]
    decoded = [(*call.prompt_ids, *sample.ids) for call in calls for sample in call.samples]
    # What decode produced is in the trie of whole streams, and was not passed through extend.
    nodes = trie_nodes(prompts + decoded)
    by_decode = nodes - trie_nodes(prompts)
    assert len(calls) == 64
    assert used.computed + used.scored <= 1.05 * (nodes - by_decode)
    assert used.computed + used.cached == used.prompt == sum(len(call.prompt_ids) for call in calls)
    # Without sharing it would be far more: the bound above is worth something.
    assert sum(len(prompt) for prompt in prompts) > 2 * (nodes - by_decode)


def test_every_row_is_one_submit_a_launch(graded: list[Result]) -> None:
    assert [result.row for result in graded] == list(range(16))
    assert all(result.error() is None for result in graded)
    assert all(len(result["score"]) == 3 for result in graded)


@pytest.mark.slow
def test_the_command_line_gives_one_json_line_a_row(tmp_path: Path) -> None:
    rows = open_rows(str(ROOT / "examples" / "essays.jsonl"))
    essays = some_of([row["essay"] for row in rows], 4, 6)
    few = tmp_path / "essays.jsonl"
    few.write_text("".join(json.dumps({"essay": essay}) + "\n" for essay in essays))
    done = subprocess.run(
        [sys.executable, "-m", "sglc.cli", "run", "examples/judge.py", "--batch", str(few),
         "--json", "--seed", "1"],
        cwd=ROOT, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["index"] for line in lines] == list(range(len(essays)))
    for essay, line in zip(essays, lines, strict=True):
        assert essay in line["text"]  # control-token text in an essay stays text
        assert line["error"] is None
        assert line["vars"]["verdict"] in ("weak", "fair", "strong")
        assert line["usage"]["computed"] + line["usage"]["cached"] == line["usage"]["prompt"]
