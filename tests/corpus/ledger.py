"""What of the corpus traces today, as a checked-in list; `python -m tests.corpus.ledger` adds reasons.

`whole.txt` has a line for each program that needs no ordinary Python, or that needs it just where it must,
and for the known faults.
"""

from __future__ import annotations

import importlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from tests.corpus.case import Case, Outcome, Row, Traced, run_python, traced

FOLDER = Path(__file__).parent
LIST = FOLDER / "whole.txt"

WHOLE = "whole"  # it traces, and as a plan it does what Python does
BREAKS = "breaks"  # it must break, and does so at its own line
DIFFERS = "differs"  # a known fault: it traces, and its plan does something else
MISSES = "misses"  # a known fault: it must break, and does not
FAULTS = (DIFFERS, MISSES)

_HEAD = """\
# Programs of the corpus by what tracing makes of them. Those that are not here go on as Python needlessly.
# `pytest tests/corpus --bless` writes this file. It adds no fault (`differs`, `misses`): that is done by hand.
"""


@cache
def cases() -> tuple[Case, ...]:
    """Every program, in the order of the files."""
    found: list[Case] = []
    for kind in ("idioms", "tutorials", "benchmarks"):
        for path in sorted(FOLDER.glob(f"{kind}_*.py")):
            found += importlib.import_module(f"tests.corpus.{path.stem}").program.cases
    return tuple(found)


@cache
def _python(name: str, row: int) -> Outcome:
    case = next(case for case in cases() if case.name == name)
    return run_python(case, case.rows[row])


def python(case: Case, row: Row) -> Outcome:
    """`run_python`, once for each row."""
    return _python(case.name, next(number for number, each in enumerate(case.rows) if each is row))


@cache
def _traced(name: str) -> Traced:
    return traced(next(case for case in cases() if case.name == name), python)


def trace(case: Case) -> Traced:
    """What tracing the program comes to, found out once."""
    return _traced(case.name)


def word(case: Case, found: Traced) -> str:
    """How the list calls it; nothing for a program that is not on it."""
    if case.breaks:
        return BREAKS if found.breaks_at(case.breaks) else "" if found.breaks else MISSES
    if found.difference:
        return DIFFERS
    return WHOLE if found.whole else ""


def read() -> dict[str, str]:
    """The list: words by names."""
    lines = LIST.read_text(encoding="utf-8").splitlines() if LIST.exists() else []
    pairs = (line.split() for line in lines if line and not line.startswith("#"))
    return {name: said for said, name in pairs}


def write(words: Mapping[str, str]) -> None:
    """Make `words` the list."""
    lines = sorted(f"{said} {name}" for name, said in words.items() if said)
    LIST.write_text(_HEAD + "".join(f"{line}\n" for line in lines), encoding="utf-8")


def _kind(reason: str) -> str:
    """A reason without the names of texts, so that like ones are counted together."""
    return re.sub(r"(needs the text|in) `[^`]*`", r"\1 `_`", reason)


def report(found: Iterable[tuple[Case, Traced]]) -> str:
    """The figures, and why the other programs do not trace, most frequent reason first."""
    found = tuple(found)
    lines = []
    for kind in dict.fromkeys(case.name.split("/")[0] for case, _ in found):
        own = [(case, made) for case, made in found if case.name.split("/")[0] == kind]
        words = Counter(word(case, made) for case, made in own)
        lines.append(
            f"{kind}: {words[WHOLE]} whole, {words[BREAKS]} break where they must, of {len(own)};"
            f" known faults: {words[DIFFERS]} differ as plans, {words[MISSES]} do not break"
        )
        many = [(len(case.rows), made.plans) for case, made in own if made.plans and len(case.rows) > 1]
        if many:
            rows, plans = map(sum, zip(*many, strict=True))
            one = sum(made == 1 for _, made in many)
            lines.append(f"    {rows} rows of {len(many)} programs run {plans} plans; {one} programs run one")
    reasons: Counter[str] = Counter()
    for case, made in found:
        if word(case, made) not in (WHOLE, BREAKS, MISSES):
            reasons[_kind(made.breaks[0].reason) if made.breaks else "another result as a plan"] += 1
    lines += [f"{count:4} {reason}" for reason, count in reasons.most_common()]
    for case, made in found:
        if word(case, made) not in (WHOLE, BREAKS):
            why = made.difference or "; ".join(f"line {each.line}: {each.reason}" for each in made.breaks)
            lines.append(f"{case.name}: {why or 'does not break'}")
    return "\n".join(lines)


if __name__ == "__main__":
    print(report((case, trace(case)) for case in cases()))
