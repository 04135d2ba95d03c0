"""docs/language.md: every example runs and prints what stands below it. `pytest --bless` rewrites it.

README.md: what the compiler prints, and what it says can be installed.
"""

from __future__ import annotations

import contextlib
import io
import linecache
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sglc
from sglc.backends.local import LocalBackend
from sglc.cli import main

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "language.md"
README = ROOT / "README.md"
_PRINTED = re.compile(
    r"^`\.venv/bin/(sglc [^`]*)` prints [^\n]*:\n\n```\n(.*?)^```\n", re.MULTILINE | re.DOTALL
)
_EXAMPLE = re.compile(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```\n", re.MULTILINE | re.DOTALL)


@pytest.fixture
def on_local(local: LocalBackend) -> Iterator[None]:
    sglc.set_default_backend(local)
    yield
    sglc.set_default_backend(None)


@pytest.mark.model
def test_every_example_prints_what_stands_below_it(
    on_local: None, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # they write files
    page = PAGE.read_text()
    examples = _EXAMPLE.findall(page)
    assert len(examples) == page.count("```python")
    names: dict[str, Any] = {}
    for number, (code, expected) in enumerate(examples):
        name = f"<language.md {number}>"
        # `compile` and errors read the source of what was defined.
        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(code, name, "exec"), names)
        if request.config.getoption("--bless"):
            page = page.replace(f"{code}```\n\n```text\n{expected}", f"{code}```\n\n```text\n{out.getvalue()}")
        else:
            assert out.getvalue() == expected, code
    PAGE.write_text(page)


def test_the_readme_shows_what_commands_print(
    smollm2: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(ROOT)
    text = README.read_text()
    printed = _PRINTED.findall(text)
    assert len(printed) == 2
    for command, expected in printed:
        assert main([*shlex.split(command)[1:], "--target", f"local:{smollm2}"]) == 0
        found = capsys.readouterr().out
        if request.config.getoption("--bless"):
            text = text.replace(f"```\n{expected}```", f"```\n{found}```")
        else:
            assert found == expected, command
    README.write_text(text)


def test_the_ir_of_the_readme_runs_as_the_program_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("script.json").write_text('[{"text": "Paris."}]')
    (ir,) = [expected for command, expected in _PRINTED.findall(README.read_text()) if "--dump-ir" in command]
    Path("x.sglir").write_text(ir)
    for program in ("x.sglir", str(ROOT / "examples" / "quickstart.py")):
        assert main(["run", program, "--backend", "scripted:script.json", "--arg", "question=What?"]) == 0
        assert capsys.readouterr().out == "user: What?\nassistant: Paris.\n"
    Path("x.sglir").write_text(re.sub("    prompt.*\n", "", ir))  # variables are all that it leaves
    assert main(["run", "x.sglir", "--backend", "scripted:script.json", "--arg", "question=What?"]) == 0
    assert capsys.readouterr().out == 'answer = "Paris."\n'


def test_the_readme_names_every_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = re.findall(r"`'\.\[(\w+)\]'`", README.read_text())
    assert sorted(named) == sorted(extras.keys() - {"test", "fuzz", "dev"})
