"""Random programs one after another: each runs every way, and what differs is counted, told and made small."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.source_fuzz.child import Child
from tests.source_fuzz.minimise import minimised
from tests.source_fuzz.module import FEATURES, Module
from tests.source_fuzz.ways import EVERYTHING, GROUPS, PLAN, Difference, Report, checked

_SHOWN = 1_200  # characters of a value in a report


@dataclass
class Summary:
    """What came of many programs."""

    programs: int = 0
    whole: int = 0
    failed: list[tuple[Module, str]] = field(default_factory=list)
    features: Counter[str] = field(default_factory=Counter)  # programs with the feature, ...
    whole_features: Counter[str] = field(default_factory=Counter)  # ... and those of them that trace whole
    kinds: Counter[str] = field(default_factory=Counter)  # programs that show the difference
    violations: dict[str, tuple[Module, Difference]] = field(default_factory=dict)  # the first of each kind
    not_whole: Counter[str] = field(default_factory=Counter)

    def as_json(self) -> dict[str, Any]:
        """As data for a file."""
        return {
            "programs": self.programs,
            "whole": self.whole,
            "not whole": dict(self.not_whole),
            "failed": [[module.name, why] for module, why in self.failed],
            "features": {name: [self.whole_features[name], self.features[name]] for name in FEATURES},
            "differences": dict(self.kinds.most_common()),
            "violations": {
                kind: {"program": module.name, "way": found.way, "source": module.source}
                for kind, (module, found) in self.violations.items()
            },
        }


Known = Callable[[str, Iterable[str]], bool]  # of a kind of difference and the features of a program


def nothing(kind: str, features: Iterable[str]) -> bool:
    """Nothing is known to be unequal."""
    return False


class Fuzzer:
    """Runs modules in a folder of its own. Differences that are `known` are only counted."""

    def __init__(self, folder: Path, child: Child | None, known: Known = nothing) -> None:
        self._folder = folder
        self._child = child
        self._known = known
        self._variants = 0
        self.summary = Summary()

    def report(self, module: Module, groups: Sequence[str] = GROUPS, turn: int | None = None) -> Report:
        """Run one module every way, or those of some groups; `turn` as in `checked`."""
        path = self._folder / f"{module.name}.py"
        path.write_text(module.source, encoding="utf-8")
        report = checked(module.name, path, groups, turn)
        if report.plan is not None and self._child is not None:
            found = self._child.run(module.name, path, report.plan, alone=module.alone)
            aspects = [aspect for aspect in EVERYTHING if not (module.alone and aspect == "state")]
            report.compare(PLAN, "file in another process", report.expected, found, aspects)
        return report

    def run(self, module: Module, turn: int | None = None) -> list[Difference]:
        """Run a module and count it; gives its violations. `turn` as in `checked`."""
        summary = self.summary
        report = self.report(module, turn=turn)
        summary.programs += 1
        if report.failed:
            summary.failed.append((module, report.failed))
            return []
        summary.whole += report.whole
        if report.why_not:
            summary.not_whole[report.why_not] += 1
        for feature in module.features:
            summary.features[feature] += 1
            summary.whole_features[feature] += report.whole
        summary.kinds.update({found.kind for found in report.differences})
        violations = [found for found in report.differences if not self._known(found.kind, module.features)]
        for found in violations:
            summary.violations.setdefault(found.kind, (module, found))
        return violations

    def smaller(self, module: Module, violation: Difference) -> Module:
        """A module of fewer statements that still shows the difference."""

        def still(source: str) -> bool:
            # A new name: the tools of a module are found by it.
            self._variants += 1
            name = f"{module.name}_{self._variants}"
            report = self.report(Module(name, source, module.features, module.alone))
            return not report.failed and any(
                (found.kind, found.way) == (violation.kind, violation.way) for found in report.differences
            )

        source = minimised(module.source, still)
        return Module(f"{module.name}_small", source, module.features, module.alone)


@contextmanager
def fuzzer(known: Known = nothing, *, files: bool = True) -> Iterator[Fuzzer]:
    """A fuzzer with its folder and, for plan files, its other process."""
    with tempfile.TemporaryDirectory(prefix="source-fuzz-") as folder, Child() as child:
        yield Fuzzer(Path(folder), child if files else None, known)


def shown(module: Module, violation: Difference) -> str:
    """A difference for people: what differs, and the source that shows it."""
    expected, found = narrowed(violation.expected, violation.found)
    return "\n".join([
        f"{module.name}, {violation.way}: {violation.kind}",
        f"  expected {json.dumps(expected, ensure_ascii=False)[:_SHOWN]}",
        f"  found    {json.dumps(found, ensure_ascii=False)[:_SHOWN]}",
        *("  | " + line for line in module.source.rstrip().split("\n")),
    ])  # fmt: skip


def narrowed(one: Any, other: Any) -> tuple[Any, Any]:
    """The parts of two values that differ, where just one part does."""
    while True:
        if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
            keys: list[Any] = [key for key in one if one[key] != other[key]]
        elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
            keys = [index for index in range(len(one)) if one[index] != other[index]]
        else:
            return one, other
        if len(keys) != 1:
            return one, other
        one, other = one[keys[0]], other[keys[0]]
