"""Random programs in Python run equally every way, and planted faults are found.

`make test` runs 150 programs, each the main ways and one of three others, and looks for some faults of each
kind; `make nightly` runs 3,000 every way and looks for every fault. `python -m tests.source_fuzz` (in
`make soak`) runs as many programs as it is told, counts features and differences, and shows small programs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.depth import DEPTH, at_depth, some_of
from tests.source_fuzz.child import Child
from tests.source_fuzz.faults import FAULTS, IN_EFFECTS, IN_FUNCTIONS, IN_PLANS, IN_TRACER
from tests.source_fuzz.module import FEATURES, random_module
from tests.source_fuzz.not_yet import is_known
from tests.source_fuzz.runner import Fuzzer, shown
from tests.source_fuzz.ways import PLAN

SEED = 0
PROGRAMS, PARTS = at_depth(20, 20, 3_000), at_depth(1, 1, 30)
PLANTED = (
    *some_of(list(IN_PLANS), 2, 7),
    *some_of(list(IN_FUNCTIONS), 2, 4),
    *some_of(list(IN_EFFECTS), 2, 2),
    *some_of(list(IN_TRACER), 2, 5),
)
# The program that found a fault the last time is looked at first: the others are made when it no longer does.
FOUND_BY = json.loads((Path(__file__).parent / "found_by.json").read_text())
_MOST = 300  # programs until a planted fault has to be found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all tests: the tools of a module are known by its place."""
    return tmp_path_factory.mktemp("programs")


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_programs_run_equally_every_way(part: int, folder: Path) -> None:
    with Child() as child:
        running = Fuzzer(folder, child, is_known)
        for number in range(part, PROGRAMS, PARTS):
            module = random_module(SEED, number)
            violations = running.run(module, number if DEPTH != "nightly" else None)
            if violations:
                pytest.fail(shown(running.smaller(module, violations[0]), violations[0]))
        summary = running.summary
    assert not summary.failed, summary.failed[0]
    assert summary.whole > PROGRAMS // PARTS // 2


@pytest.mark.slow
def test_random_programs_have_every_feature() -> None:
    made = {feature for number in range(600) for feature in random_module(SEED, number).features}
    assert made == set(FEATURES)


def test_random_programs_are_the_same_ones_again() -> None:
    assert random_module(3, 14).source == random_module(3, 14).source
    assert random_module(3, 14).source != random_module(4, 14).source


class Looked:
    """What programs show, with nothing planted and as things are now."""

    def __init__(self, folder: Path) -> None:
        self._running = Fuzzer(folder, None)
        self._usual: dict[tuple[int, Sequence[str]], tuple[bool, frozenset[str]]] = {}

    def usual(self, number: int, groups: Sequence[str]) -> tuple[bool, frozenset[str]]:
        """Whether a program traces whole, and how it differs with nothing planted."""
        if (number, groups) not in self._usual:
            self._usual[number, groups] = self.now(number, groups)
        return self._usual[number, groups]

    def now(self, number: int, groups: Sequence[str]) -> tuple[bool, frozenset[str]]:
        report = self._running.report(random_module(SEED, number), groups)
        assert not report.failed, report.failed
        return report.whole, frozenset(json.dumps((d.way, d.kind, d.found)) for d in report.differences)


@pytest.fixture(scope="module")
def looked(folder: Path) -> Looked:
    return Looked(folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found(name: str, looked: Looked) -> None:
    groups, planted = FAULTS[name]
    for number in (FOUND_BY["programs"].get(name, 0), *range(_MOST)):
        whole, usual = looked.usual(number, groups)
        if groups == (PLAN,) and not whole:
            continue
        with planted():
            _, found = looked.now(number, groups)
        if found != usual:
            return
    pytest.fail(f"not found in {_MOST} programs")
