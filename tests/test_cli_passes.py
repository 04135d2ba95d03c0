"""`sglc run --passes` runs a plan, and prints what `sglc run` prints: for whole programs of the corpus."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from sglc.backends.scripted import Asked
from sglc.cli import main
from sglc.frontend.tracing import tools
from tests.corpus.case import Case, Script
from tests.corpus.ledger import cases, read
from tests.depth import some_of


def by_json(row: Any) -> bool:
    """Whether the command line can give these arguments."""
    try:
        return bool(json.loads(json.dumps(row)) == row)
    except TypeError:
        return False


# A keyword that a function gathers in `**options` is no argument of a plan by its own name, and what raises
# while it is compiled never begins.
_LEFT_OUT = {"idioms/reads_constants", "idioms/sets_a_tone"}
WHOLE = [
    case
    for case in cases()
    if read().get(case.name) == "whole" and by_json(case.rows[0]) and case.name not in _LEFT_OUT
]


class Heard(Script):
    """Notes its answers as the rules of a script."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.rules: list[dict[str, Any]] = []
        answer = self._answer

        def say(asked: Asked) -> str | None:
            text, site = answer(asked), asked.site
            self.rules.append(
                {
                    "text": text, "name": site.name, "function": site.function, "branch": list(site.fork),
                    "occurrence": site.occurrence, "sample": asked.sample,
                    "prompt": re.escape(asked.prompt) + r"\Z",
                }
            )  # fmt: skip
            return text

        self._answer = say


def without_times(printed: str) -> list[Any]:
    """The lines that were printed; of JSON objects all but their times."""
    lines: list[Any] = []
    for line in printed.splitlines():
        if line.startswith('{"index"'):
            shown = json.loads(line)
            del shown["timing"]
            line = json.dumps(shown)
        lines.append(line)
    return lines


@pytest.mark.slow
@pytest.mark.parametrize("case", some_of(WHOLE, 2, 25), ids=lambda case: case.name)
def test_a_plan_prints_the_same(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tools, "_DECLARED", {})  # the file is loaded once more
    heard = Heard(case)
    case.function.run(**case.rows[0], backend=heard).error()
    capsys.readouterr()
    (tmp_path / "script.json").write_text(json.dumps(heard.rules))
    file = case.function.definition.code.co_filename
    command = [
        "run", f"{file}:{case.function.__name__}", "--backend", f"scripted:{tmp_path / 'script.json'}",
        "--args", json.dumps(case.rows[0]), "--seed", "1",
    ]  # fmt: skip
    for options in ([], ["--json", "-o", str(tmp_path / "out.jsonl"), "--force"], ["--stream"]):
        ways = []
        for passes in ([], ["--passes", "+reorder"]):
            monkeypatch.setattr(tools, "_DECLARED", {})
            code = main([*command, *options, *passes])
            out, err = capsys.readouterr()
            if "--stream" in options:  # what a program prints may come before or behind another text
                out = "\n".join(sorted(out.splitlines()))
            kept = (tmp_path / "out.jsonl").read_text() if "-o" in options else ""
            errors = re.findall(r"^error\[.*", err, re.MULTILINE)
            ways.append((code, out, without_times(kept), errors))
        assert ways[0] == ways[1]
        assert "SGLC521" not in str(ways)
