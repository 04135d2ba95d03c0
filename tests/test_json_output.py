"""`sglc run --json`: stdout has one JSON object for each run and nothing else, also where none began."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from sglc.cli import main

_PRINTS = """
import sglc as sgl

print("imported")

@sgl.function
def f(s, question="x"):
    print("called", end="")
    s += question + sgl.gen("a")
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("f.py").write_text(_PRINTS)
    Path("script.json").write_text('[{"text": "said"}]')
    Path("rows.jsonl").write_text('{"question": "y"}\n' * 20)


@pytest.mark.parametrize("rows", [[], ["--batch", "rows.jsonl"]], ids=["run", "batch"])
@pytest.mark.parametrize("mode", ["auto", "python"])
def test_what_programs_print_goes_to_stderr(
    rows: list[str], mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    stdout = sys.stdout
    assert main(["run", "f.py", "--backend", "scripted:script.json", "--json", "--mode", mode, *rows]) == 0
    out, err = capsys.readouterr()
    found = [json.loads(line) for line in out.splitlines()]
    assert [one["vars"] for one in found] == [{"a": "said"}] * (20 if rows else 1)
    assert err.startswith("imported\ncalled")
    assert sys.stdout is stdout
    assert main(["run", "f.py", "--backend", "scripted:script.json", "--json", "-o", "out.jsonl", *rows]) == 0
    assert capsys.readouterr().out.startswith("imported\n")


@pytest.mark.parametrize(
    ("program", "backend", "code"),
    [
        ("import sglc as sgl\n(", "scripted:script.json", "SGLC111"),
        ("raise ValueError", "scripted:script.json", "SGLC401"),
        (_PRINTS, "http://127.0.0.1:9", "SGLC547"),
        (_PRINTS, "openai:x", "SGLC541"),
    ],
)
def test_a_run_that_does_not_begin_has_an_object_too(
    program: str, backend: str, code: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    Path("f.py").write_text(program)
    assert main(["run", "f.py", "--backend", backend, "--json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["error"]["code"] == code
    assert f"error[{code}]" in err
    assert main(["run", "f.py", "--backend", backend]) == 1
    assert "{" not in capsys.readouterr().out
