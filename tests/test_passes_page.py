"""docs/passes.md: the pass of a user's own works as the page says, in Python and on the command line, and the
table has every pass. `pytest --bless` rewrites what is printed."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from sglc.cli import main
from sglc.passes.base import PASSES

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "passes.md"
_EXAMPLE = re.compile(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
_CONSOLE = re.compile(r"^```console\n\$ (.*?)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
OTHER = """\
def ask(question):
    s0 = root()
    s1 = append(s0, question)
    s2, t0 = gen(s1, 'answer')
    return t0
"""


def test_the_example_prints_what_stands_below_it(
    smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    assert smollm2.exists()
    page = PAGE.read_text()
    ((code, expected),) = _EXAMPLE.findall(page)
    ((command, shown),) = _CONSOLE.findall(page)
    (tmp_path / "mine.py").write_text(code)
    (tmp_path / "other.sglir").write_text(OTHER)
    monkeypatch.chdir(tmp_path)
    ran = subprocess.run(
        [sys.executable, "mine.py"], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert main(shlex.split(command)[1:]) == 0
    found = capsys.readouterr().out
    if request.config.getoption("--bless"):
        page = page.replace(f"```text\n{expected}```", f"```text\n{ran.stdout}```")
        PAGE.write_text(page.replace(f"$ {command}\n{shown}```", f"$ {command}\n{found}```"))
        return
    assert ran.stdout == expected
    assert found == shown


def test_the_table_has_every_pass_with_what_it_promises() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (\w+) \|", PAGE.read_text(), re.MULTILINE))
    assert rows == {name: made.exactness.removesuffix("-exact") for name, made in PASSES.items()}


def test_the_figures_are_those_of_the_benchmark() -> None:
    figures = json.loads((ROOT / "benchmarks" / "results" / "passes.json").read_text())["figures"]
    page = PAGE.read_text().replace(",", "")
    for name, fields in (
        ("inline_calls", ("submits", "steps")),
        ("reorder", ("computed_tokens",)),
        ("dead_code", ("generations", "generated_tokens")),
    ):
        (row,) = [line for line in page.splitlines() if line.startswith(f"| `{name}`")]
        for field in fields:
            assert f"{figures[name]['off'][field]} → {figures[name]['on'][field]}" in row
    hoisted = figures["hoist_prefix inside a program (left out)"]
    assert hoisted["off"] == hoisted["on"]
