"""docs/language.md: every example runs and prints what stands below it. `pytest --bless` rewrites it."""

from __future__ import annotations

import contextlib
import io
import linecache
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sglc
from sglc.backends.local import LocalBackend

PAGE = Path(__file__).parent.parent / "docs" / "language.md"
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
