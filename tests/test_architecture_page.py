"""docs/architecture.md and CONTRIBUTING.md name what is there, and all of it."""

from __future__ import annotations

import re

import pytest

from tests.layout import LAYERS, ROOT

HERE = ROOT.parent
ARCHITECTURE = (HERE / "docs" / "architecture.md").read_text(encoding="utf-8")
PAGES = {"architecture": ARCHITECTURE, "contributing": (HERE / "CONTRIBUTING.md").read_text(encoding="utf-8")}
_PATH = re.compile(r"(?<![\w/])(?:sglc|tests|benchmarks|docs|examples)/[\w/.*-]*")


@pytest.mark.parametrize("page", PAGES)
def test_every_path_is_there(page: str) -> None:
    named = {path.rstrip(".") for path in _PATH.findall(PAGES[page])}
    assert len(named) > 10
    gone = [path for path in sorted(named) if not any(HERE.glob(path)) and not (HERE / path).exists()]
    assert gone == []


def test_the_layers_are_those_of_the_rule() -> None:
    floors = [f"{{{', '.join(names)}}}" if len(names) > 1 else names[0] for names in LAYERS[:-1]]
    assert " < ".join(floors) in ARCHITECTURE


def test_every_folder_has_a_row() -> None:
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert folders == {*re.findall(r"^\| `sglc/(\w+)/` \|", ARCHITECTURE, re.MULTILINE)}


def test_every_target_of_make_is_there() -> None:
    makefile = (HERE / "Makefile").read_text(encoding="utf-8")
    named = {*re.findall(r"^make (\w+)", PAGES["contributing"], re.MULTILINE)}
    assert named
    assert [target for target in sorted(named) if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []
