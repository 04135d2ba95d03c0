"""docs/batches.md: its commands print what stands below them. `pytest --bless` rewrites it."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from sglc.cli import main

PAGE = Path(__file__).parent.parent / "docs" / "batches.md"
_FILES = re.compile(r"^```(?:python\n# |json )(\S+)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
_CONSOLE = re.compile(r"^```console\n(.*?)^```\n", re.MULTILINE | re.DOTALL)


def test_every_command_prints_what_stands_below_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    page = PAGE.read_text()
    monkeypatch.chdir(tmp_path)
    for name, text in _FILES.findall(page):
        Path(name).write_text(text)
        assert not text.startswith("//"), f"`{name}` is refused as it stands there"
    (block,) = _CONSOLE.findall(page)
    shown = ""
    for command in re.findall(r"^\$ (.*)\n", block, re.MULTILINE):
        words = shlex.split(command)
        monkeypatch.setattr(sys, "argv", words)
        code = main(words[1:])
        out, err = capsys.readouterr()
        told = re.sub(r"\d+\.\d\d s;", "0.01 s;", err)
        shown += f"$ {command}\n{out}{told}exit {code}\n"
    if request.config.getoption("--bless"):
        PAGE.write_text(page.replace(block, shown))
    else:
        assert shown == block
