"""docs/explain.md: its commands and examples, run. `pytest --bless` rewrites what they print."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest

import sglc
from sglc.backends.local import LocalBackend
from sglc.cli import main

PAGE = Path("docs/explain.md")
_COMMAND = re.compile(r"^```console\n\$ (.*)\n((?:(?!```).*\n)*)```\n", re.MULTILINE)
_EXAMPLE = re.compile(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```\n", re.MULTILINE | re.DOTALL)


def masked(text: str) -> str:
    """Without what a clock says: seconds, bars, and which of several branches was the slowest."""
    text = re.sub(r"\d+\.\d\d s", "0.00 s", text)
    text = re.sub(r"\|[ .#]+\|", "||", text)
    text = re.sub(r" +\n", "\n", text)
    return re.sub(r"(longest chain: \w+)\[\d\]", r"\1[.]", text)


@pytest.mark.model
def test_every_command_prints_what_stands_below_it(
    smollm2: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    page = PAGE.read_text(encoding="utf-8")
    commands = _COMMAND.findall(page)
    assert len(commands) == page.count("```console") == 3
    for command, expected in commands:
        assert main(shlex.split(command)[1:]) == 0
        out = capsys.readouterr().out
        if request.config.getoption("--bless"):
            page = page.replace(f"$ {command}\n{expected}```", f"$ {command}\n{out}```")
        else:
            assert masked(out) == masked(expected)
    if request.config.getoption("--bless"):
        PAGE.write_text(page, encoding="utf-8")


def test_every_example_prints_what_stands_below_it(local: LocalBackend, request: pytest.FixtureRequest) -> None:
    page = PAGE.read_text(encoding="utf-8")
    examples = _EXAMPLE.findall(page)
    assert len(examples) == page.count("```python") == 1
    sglc.set_default_backend(local)
    try:
        for code, expected in examples:
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(code, "<explain.md>", "exec"), {})
            if request.config.getoption("--bless"):
                new = f"{code}```\n\n```text\n{out.getvalue()}```"
                PAGE.write_text(page.replace(f"{code}```\n\n```text\n{expected}```", new), encoding="utf-8")
            else:
                assert out.getvalue() == expected
    finally:
        sglc.set_default_backend(None)
