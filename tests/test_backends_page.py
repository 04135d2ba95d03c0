"""docs/backends.md: its table says what the compiler does. `pytest --bless` rewrites it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import sglc
from tests.backend_matrix import table
from tests.sglang_features import feature_table

PAGE = Path(__file__).parent.parent / "docs" / "backends.md"
_TABLE = re.compile(r"(<!-- made by tests/backend_matrix.py -->\n)(.*?)(<!-- end -->\n)", re.DOTALL)
_FEATURES = re.compile(r"(<!-- made by tests/sglang_features.py -->\n)(.*?)(<!-- end -->\n)", re.DOTALL)
SOURCES = Path(sglc.__file__).parent


@pytest.mark.slow
@pytest.mark.parametrize(("place", "table"), [(_TABLE, table), (_FEATURES, feature_table)])
def test_the_tables_are_what_the_compiler_does(
    place: re.Pattern[str], table: Callable[[], str], request: pytest.FixtureRequest
) -> None:
    page = PAGE.read_text()
    made = f"\n{table()}\n"
    if request.config.getoption("--bless"):
        PAGE.write_text(place.sub(lambda found: found[1] + made + found[3], page))
        return
    (found,) = place.findall(page)
    assert found[1] == made


def test_every_code_of_the_page_is_one_that_is_raised() -> None:
    raised = {
        code
        for path in SOURCES.rglob("*.py")
        for code in re.findall(r'"(SGLC\d{3})"', path.read_text(encoding="utf-8"))
    }
    named = set(re.findall(r"SGLC\d{3}", PAGE.read_text()))
    assert named <= raised
    assert {code for code in raised if "SGLC540" <= code <= "SGLC549"} <= named
