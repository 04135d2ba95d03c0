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
from sglc.passes.base import PASSES, Kind
from sglc.passes.pass_options import known_options

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


def table() -> str:
    """What the register says of every pass of sglc's own, and what it saves in the stored figures."""
    figures = json.loads((ROOT / "benchmarks" / "results" / "passes.json").read_text())["figures"]
    rows = []
    for name, made in sorted(PASSES.items(), key=lambda item: (list(Kind).index(item[1].kind), item[0])):
        options = ", ".join(str(option) for option in known_options(made.run).values())
        shown = f"`{name}`" + (f"<br>`{options}`" if options else "")
        exact = made.exactness.removesuffix("-exact")
        rows.append(f"| {shown} | {made.kind} | {exact} | {made.summary} | {saved(figures.get(name))} |\n")
    return "".join(
        ["| pass | kind | exactness | what it does | without it → with it |\n|---|---|---|---|---|\n", *rows]
    )


def saved(figure: dict[str, dict[str, int]] | None) -> str:
    """What differs between the two ways of a figure."""
    off, on = (figure["off"], figure["on"]) if figure else ({}, {})
    return ", ".join(
        f"{name.replace('_', ' ')} {off[name]:,} → {on[name]:,}" for name in off if off[name] != on[name]
    )


def test_the_table_is_that_of_the_register_and_of_the_benchmark(request: pytest.FixtureRequest) -> None:
    page = PAGE.read_text()
    begin = page.index("| pass |")
    end = page.index("\n\n", begin) + 1
    if request.config.getoption("--bless"):
        PAGE.write_text(page[:begin] + table() + page[end:])
        return
    assert page[begin:end] == table()


def test_every_optimizing_pass_has_a_figure_and_wins() -> None:
    figures = json.loads((ROOT / "benchmarks" / "results" / "passes.json").read_text())["figures"]
    for name, made in PASSES.items():
        if made.kind is Kind.OPTIMIZING and made.run.__module__.startswith("sglc."):
            off, on = figures[name]["off"], figures[name]["on"]
            assert any(on[count] < off[count] for count in off), name
            assert all(on[count] <= off[count] for count in off), name
