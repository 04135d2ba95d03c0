"""Ways to watch a run take paths, and say so; what goes on is told each second, whether or not a row ends."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import sglc as sgl
from sglc.backends.scripted import ScriptedBackend
from sglc.errors import UsageError
from sglc.execution import progress
from sglc.ir.plan.events import Usage


@sgl.function
def asks(s: Any) -> None:
    s += "x" + sgl.gen("a")


@pytest.mark.parametrize("option", ["record", "replay", "trace", "cache"])
@pytest.mark.parametrize("path", [123, True, b"bytes", "", "a\0b", ["a"]], ids=repr)
def test_what_is_no_path_is_refused(
    option: str, path: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given: dict[str, Any] = {option: path}
    with pytest.raises(UsageError, match=f"`{option}` is the path of") as caught:
        asks.run(backend=ScriptedBackend(lambda _: "y"), **given)
    assert caught.value.code == "SGLC023"
    assert os.listdir(tmp_path) == []


def test_progress_in_lines_goes_on_while_no_row_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "_EACH_S", 0.01)
    told: list[str] = []

    def results() -> Iterator[Any]:
        for _ in range(1000):
            if len(told) >= 3:
                break
            told.extend(capsys.readouterr().err.splitlines())
            time.sleep(0.01)
        yield SimpleNamespace(failed=False, usage=Usage())

    assert len(list(progress.watched(results(), total=1, label="rows", style="json"))) == 1
    assert {json.loads(line)["rows"] for line in told} == {0}
    assert json.loads(capsys.readouterr().err.splitlines()[-1])["rows"] == 1
