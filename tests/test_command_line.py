"""What the command line takes and says, beyond single errors (tests/errors/cli.md has these)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import sglc as sgl
from sglc.backends.registry import connect
from sglc.cli import main
from sglc.cli.options import say

_PROGRAM = """
import sglc as sgl

@sgl.function
def f(s, question="x"):
    s += question + sgl.gen("a")
    if question == "fail":
        raise ValueError("b\\x1b[31mad")
"""


@sgl.function
def asks(s: Any, question: str = "x") -> None:
    s += question + sgl.gen("a")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("f.py").write_text(_PROGRAM)
    Path("script.json").write_text('[{"text": "said"}]')


def test_what_did_not_run_is_not_said_to_have_run_as_python(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "f.py", "--backend", "local:nope"]) == 1
    assert "ran as Python" not in capsys.readouterr().err
    assert main(["run", "f.py", "--backend", "scripted:script.json", "--mode", "python"]) == 0
    assert "ran as Python" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", [["run", "f.py", "--backend"], ["compile", "f.py", "--target"]], ids=lambda c: c[0]
)
def test_a_bad_environment_variable_is_wrong_usage(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SGLC_DEBUG", "9")
    assert main([*command, "scripted:script.json"]) == 2
    assert capsys.readouterr().err.startswith("error[SGLC001]")


@pytest.mark.parametrize(
    "given", [["--arg", "question=a\udc80"], ["--args", '{"question": "a\udc80"}']], ids=str
)
def test_bytes_that_are_no_utf8_are_refused(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "f.py", "--backend", "scripted:script.json", *given]) == 2
    assert "is no UTF-8" in capsys.readouterr().err


def test_a_text_of_the_users_does_not_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "f.py", "--backend", "scripted:script.json", "--arg", "question=fail"]) == 1
    err = capsys.readouterr().err
    assert r"in `f`: b\x1b[31mad" in err
    say("a\tb\n\x9b1mé")
    assert capsys.readouterr().err == "a\tb\n\\x9b1mé\n"


def test_explain_takes_its_back_end_by_either_name(capsys: pytest.CaptureFixture[str]) -> None:
    backend = connect("scripted:script.json")
    assert asks.explain(backend=backend).text() == asks.explain(backend).text()
    for option in ("--backend", "--target"):
        assert main(["explain", "f.py", option, "scripted:script.json"]) == 0
    with pytest.raises(SystemExit):
        main(["explain", "--help"])
    assert "--backend" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["run", "explain"])
def test_help_lists_every_kind_of_back_end(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    from sglc.backends.registry import _VARIABLES

    with pytest.raises(SystemExit):
        main([command, "--help"])
    said = " ".join(capsys.readouterr().out.split()).replace("- ", "-")
    assert [
        kind for kind in (*_VARIABLES, "local", "scripted", "http[s]", "grpc[s]") if f" {kind}:" not in said
    ] == []
