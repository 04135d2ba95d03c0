"""docs/debugging.md: its examples run and print what stands below them, and it names every code and option."""

from __future__ import annotations

import contextlib
import io
import json
import linecache
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sglc
from sglc.backends.local import LocalBackend

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "debugging.md"
_EXAMPLE = re.compile(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```\n", re.MULTILINE | re.DOTALL)


@pytest.fixture
def on_local(local: LocalBackend) -> Iterator[None]:
    sglc.set_default_backend(local)
    yield
    sglc.set_default_backend(None)


@pytest.mark.model
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_every_example_prints_what_stands_below_it(
    on_local: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)
    page = PAGE.read_text()
    examples = _EXAMPLE.findall(page)
    assert len(examples) == page.count("```python") == 6
    names: dict[str, Any] = {"__name__": "trip"}
    for number, (code, expected) in enumerate(examples):
        name = f"<debugging.md {number}>"
        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(code, name, "exec"), names)
        if request.config.getoption("--bless"):
            page = page.replace(f"{code}```\n\n```text\n{expected}", f"{code}```\n\n```text\n{out.getvalue()}")
        else:
            assert out.getvalue() == expected, code
    PAGE.write_text(page)


def test_every_code_is_named() -> None:
    page = PAGE.read_text()
    sources = "".join(path.read_text() for path in (ROOT / "sglc" / "observe").rglob("*.py"))
    codes = set(re.findall(r'"(SGLC(?:(?:05|08|42|43)\d|06[56]|413))"', sources))
    assert len(codes) == 24
    assert {code for code in codes if f"| `{code}` |" not in page} == set()


def test_figures_are_those_that_are_stored() -> None:
    (path,) = (ROOT / "benchmarks" / "results").glob("watching-*.json")
    found = json.loads(path.read_text())["median"]
    page = PAGE.read_text().split("## What it costs")[1]
    for mode in ("nothing", "record", "replay", "cache", "cached", "trace", "spans"):
        assert f"{found[mode]['cpu_us_per_gen']:.0f}" in page, mode
