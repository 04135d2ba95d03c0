"""tests/errors/cli.md: every wrong command, what it prints and how it ends. `pytest --bless` rewrites it."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest

from sglc.cli import main
from sglc.frontend.tracing import tools
from tests.depth import few

SPEC = Path(__file__).parent / "errors" / "cli.md"
_BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Case:
    title: str
    files: tuple[tuple[str, str], ...]
    command: str
    expected: str
    body: str  # the console block as it stands in the file


def cases() -> list[Case]:
    found = []
    for section in re.split(r"^## ", SPEC.read_text(), flags=re.MULTILINE)[1:]:
        title, _, text = section.partition("\n")
        blocks = _BLOCK.findall(text)
        files = tuple((name, body) for _, name, body in blocks if name)
        (body,) = [body for kind, _, body in blocks if kind == "console"]
        command, _, expected = body.partition("\n")
        found.append(Case(title, files, command.removeprefix("$ "), expected, body))
    return found


@pytest.mark.parametrize("case", few(cases(), 15), ids=lambda case: case.title)
def test_error(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    for name, text in case.files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tools, "_DECLARED", {})  # other tests have files of the same names
    code = main(shlex.split(case.command)[1:])
    out, err = capsys.readouterr()
    # The summary of a run carries its seed and its seconds.
    err = re.sub(r"^sglc: .*\n", "", err, flags=re.MULTILINE)
    shown = f"{err.replace(str(tmp_path), '.')}exit {code}\n"
    assert code in (1, 2)
    assert re.search(r"^error\[SGLC\d{3}\]: ", err, re.MULTILINE)
    assert "Traceback" not in err
    assert out == ""
    if request.config.getoption("--bless"):
        text = SPEC.read_text()
        old = f"## {case.title}\n{text.split(f'## {case.title}{chr(10)}')[1].split(f'{chr(10)}## ')[0]}"
        new = old.replace(f"```console\n{case.body}```", f"```console\n$ {case.command}\n{shown}```")
        SPEC.write_text(text.replace(old, new))
        return
    assert shown == case.expected


def test_every_case_has_its_own_title() -> None:
    titles = [case.title for case in cases()]
    assert len(titles) == len(set(titles))
