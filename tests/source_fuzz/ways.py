"""The ways to run a program, and what each has to be equal to.

What Python does with the body (`mode="python"`) is the measure.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from types import CodeType, ModuleType
from typing import Any

import sglc as sgl
from sglc.errors import SglcError, UsageError
from sglc.execution.result import Result
from sglc.frontend.values.graph_breaks import GraphBreak
from tests.source_fuzz.answers import HashBackend
from tests.source_fuzz.canon import canon_alone, globals_of
from tests.source_fuzz.observe import (
    ASKED,
    OUTSIDE,
    RESULT,
    SEED,
    STREAMED,
    Outcome,
    differences,
    loaded,
    pieces,
    seen,
    state_of,
    told,
)

WITH_A_BREAK = "SGLC016"
EVERYTHING = (*RESULT, *ASKED, *OUTSIDE)
_BUT_USAGE = (*(aspect for aspect in RESULT if aspect not in ("meta data", "calls", "usage")), *OUTSIDE)

# What is only looked at, run through the function, and run as a plan.
NO_EFFECTS, FUNCTION, PLAN = "no effects", "function", "plan"
GROUPS = (NO_EFFECTS, FUNCTION, PLAN)


@dataclass(frozen=True, slots=True)
class Difference:
    """`group` is what kind of way it is: without effects, through the function, or as a plan."""

    group: str
    way: str
    aspect: str
    expected: Any
    found: Any

    @property
    def kind(self) -> str:
        """What is counted, and what can be listed as not yet equal."""
        return f"{self.group}: {self.aspect}"


@dataclass
class Report:
    """What was found out about one program. `failed`: Python itself cannot run it, so nothing is compared."""

    whole: bool = False
    why_not: str = ""
    failed: str = ""
    differences: list[Difference] = field(default_factory=list)
    plan: Path | None = None
    expected: Outcome = field(default_factory=dict)
    defaults_change: bool = False  # those of the program, in a batch

    def compare(
        self, group: str, way: str, expected: Outcome, found: Outcome, aspects: Sequence[str] = EVERYTHING
    ) -> None:
        """Note in which aspects a way differs."""
        for aspect, (one, other) in differences(expected, found, aspects).items():
            self.differences.append(Difference(group, way, aspect, one, other))


def checked(name: str, path: Path, groups: Sequence[str] = GROUPS, turn: int | None = None) -> Report:
    """Run the program of a module every way but in another process, which `report.plan` is for.

    With a `turn` it goes one of the `BESIDE` ways only.
    """
    report = Report()

    def rows(module: ModuleType, *numbers: int) -> list[dict[str, Any]]:
        made = module.rows()
        # Each its own objects, so that what one row changes no other sees.
        return [module.rows()[number] if number < len(made) else made[-1] for number in numbers]

    def fresh() -> ModuleType:
        return loaded(name, path)

    try:
        module = fresh()
    except Exception as error:
        report.failed = f"import: {error!r}"
        return report
    (row,) = rows(module, 0)
    expected = seen(lambda backend: [_python(module, row, backend)], module, row)
    report.expected = expected
    if expected["error"] is not None:
        report.failed = str(expected["error"])
        return report
    if NO_EFFECTS in groups:
        _without_effects(report, fresh, rows)
    if FUNCTION in groups:
        _through_the_function(report, expected, fresh, rows)
        if not any(found.aspect == "state" for found in report.differences):
            for beside in BESIDE if turn is None else (BESIDE[turn % len(BESIDE)],):
                beside(report, expected, fresh, rows)
    if FUNCTION in groups or PLAN in groups:
        _streamed_and_in_batches(report, expected, fresh, rows)
    if PLAN in groups:
        _as_a_plan(report, expected, fresh, rows, path.with_suffix(".plan.json"))
    return report


Rows = Callable[..., list[dict[str, Any]]]


def _python(module: ModuleType, row: Mapping[str, Any], backend: HashBackend) -> Result:
    result: Result = module.program.run(**row, backend=backend, seed=SEED, mode="python")
    return result


@contextmanager
def _unchanged(report: Report, way: str, module: ModuleType, row: Any) -> Iterator[None]:
    """What is done inside changes nothing of the user's, and fails only as sglc's errors do."""
    before = {"state": state_of(module, row)}
    error: Any = None
    try:
        yield
    except (Exception, GraphBreak) as problem:
        error = told(problem)
    after = {"state": state_of(module, row)}
    report.compare(NO_EFFECTS, way, before, after, ("state",))
    if error is not None:
        report.differences.append(Difference(NO_EFFECTS, way, "error", None, error))


def _without_effects(report: Report, fresh: Callable[[], ModuleType], rows: Rows) -> None:
    module = fresh()
    (row,) = rows(module, 0)
    program, backend = module.program, HashBackend()
    with _unchanged(report, "compile", module, row):
        program.compile(backend)
    with _unchanged(report, "compile again", module, row):
        program.compile(backend)
    with _unchanged(report, "explain", module, row):
        program.explain(backend).text()
    with _unchanged(report, "cache", module, row):
        program.cache(backend)
    with _unchanged(report, "bind and compile", module, row):
        program.bind(**row).compile(backend)
    with _unchanged(report, "refused run", module, row):
        for wrong in (
            lambda: program.run(**row, no_such_argument=1, backend=backend),
            lambda: program.run_batch("no"),
        ):
            try:
                wrong()
            except UsageError:
                continue
            raise AssertionError("a wrong call was not refused")
    if report.differences:
        return  # whatever differs behind an effect is its consequence
    # A program that was compiled and explained runs as one that was not.
    found = seen(lambda backend: [_python(module, row, backend)], module, row)
    report.compare(NO_EFFECTS, "run afterwards", report.expected, found)


def _through_the_function(
    report: Report, expected: Outcome, fresh: Callable[[], ModuleType], rows: Rows
) -> None:
    module = fresh()
    (row,) = rows(module, 0)
    program = module.program
    found = seen(lambda backend: [program.run(**row, backend=backend, seed=SEED)], module, row)
    report.compare(FUNCTION, "run", expected, found)


def _asked_for_less(report: Report, expected: Outcome, fresh: Callable[[], ModuleType], rows: Rows) -> None:
    """Some variables are asked for: they are what they were, and so are the value and what tools did."""
    names = sorted(expected["variables"])
    outputs = [name for number, name in enumerate(names) if (number + len(names)) % 3]
    # What needs no order is called for who reads it.
    outside = ("printed", "arguments") if "look_up" in vars(fresh()) else OUTSIDE
    kept = {**expected, "variables": {name: expected["variables"][name] for name in sorted(outputs)}}
    for way, mode in (("fewer outputs", "auto"), ("fewer outputs as Python", "python")):
        module = fresh()
        (row,) = rows(module, 0)
        run = partial(module.program.run, **row, seed=SEED, outputs=outputs, mode=mode)
        found = seen(lambda backend, run=run: [run(backend=backend)], module, row)  # type: ignore[misc]
        report.compare(FUNCTION, way, kept, found, ("error", "value", "variables", *outside))


def _with_a_cache(report: Report, expected: Outcome, fresh: Callable[[], ModuleType], rows: Rows) -> None:
    """A cache changes nothing that is asked while it is empty, and asks for nothing when it is full."""
    with TemporaryDirectory() as folder:
        for way in ("empty cache", "full cache"):
            module = fresh()
            (row,) = rows(module, 0)
            run = partial(module.program.run, **row, seed=SEED, cache=folder)
            found = seen(lambda backend, run=run: [run(backend=backend)], module, row)  # type: ignore[misc]
            if way == "empty cache":
                report.compare(FUNCTION, way, expected, found)
            else:
                report.compare(FUNCTION, way, {**expected, "sites": []}, found, (*_BUT_USAGE, "sites"))


def _compiled_in_between(
    report: Report, expected: Outcome, fresh: Callable[[], ModuleType], rows: Rows
) -> None:
    module = fresh()
    (row,) = rows(module, 0)
    try:
        compiled = module.program.compile(HashBackend())
    except SglcError:
        pass  # noted by `_without_effects`
    else:
        found = seen(lambda backend: [compiled.run(**row, backend=backend, seed=SEED)], module, row)
        report.compare(FUNCTION, "compiled run", expected, found)

    # The same arguments and others, again and again: what was recorded of one call does not leak into another.
    sequences = []
    for python in (True, False):
        module = fresh()
        calls = rows(module, 0, 1, 0, 1)
        program = module.program
        own = {"mode": "python"} if python else {}

        def one_by_one(
            backend: HashBackend,
            program: Any = program,
            calls: Any = calls,
            own: Any = own,
            plain: bool = python,
        ) -> list[Result]:
            made = []
            for number, call in enumerate(calls):
                made.append(program.run(**call, backend=backend, seed=SEED + number, **own).sync())
                if not plain and number == 1:
                    with contextlib.suppress(SglcError):  # noted by `_without_effects`
                        program.compile(HashBackend())
            return made

        sequences.append(seen(one_by_one, module, calls))
    _compare_rows(report, FUNCTION, "several runs", *sequences)


def _with_other_passes(report: Report, expected: Outcome, fresh: Callable[[], ModuleType], rows: Rows) -> None:
    """Each of some passes alone, and all in an order that nobody wrote down."""
    random = Random(fresh().__name__)
    for passes in ([random.choice(EXACT)], random.sample(EXACT, len(EXACT))):
        module = fresh()
        (row,) = rows(module, 0)
        run = partial(module.program.run, **row, seed=SEED, passes=[*passes, "lower_roles"])
        found = seen(lambda backend, run=run: [run(backend=backend)], module, row)  # type: ignore[misc]
        if found["error"] is not None and found["error"][0] == "not run":
            return
        report.compare(FUNCTION, f"passes {', '.join(passes)}", expected, found, _BUT_USAGE)


BESIDE = (_compiled_in_between, _with_a_cache, _asked_for_less, _with_other_passes)
EXACT = ("inline_calls", "prune", "overlap_tools", "fold_text", "share_prefixes", "hoist_prefix", "unify")


def _streamed_and_in_batches(
    report: Report, expected: Outcome, fresh: Callable[[], ModuleType], rows: Rows
) -> None:
    module = fresh()
    (row,) = rows(module, 0)
    found = seen(
        lambda backend: [module.program.run(**row, backend=backend, seed=SEED, stream=True)],
        module,
        row,
        pieces,
    )
    report.compare(FUNCTION, "stream", expected, found)
    said = {site: "".join(made) for site, made in found.get("stream", {}).items()}
    report.compare(FUNCTION, "stream", {"stream": _texts(expected)}, {"stream": said}, ("stream",))
    report.expected["streamed"] = {aspect: found.get(aspect) for aspect in STREAMED}

    batches = []
    for options in ({"hoist_prefix": False, "mode": "python"}, {"mode": "python"}, {}):
        module = fresh()
        calls = rows(module, 0, 0, 0)
        batch = partial(module.program.run_batch, calls, seed=SEED, num_threads=1, **options)
        batches.append(seen(lambda backend, batch=batch: batch(backend=backend), module, calls))  # type: ignore[misc]
        report.defaults_change |= _defaults(module) != _defaults(fresh())
    plain, hoisted, planned = batches
    _compare_rows(report, FUNCTION, "batch", plain, planned)
    if differences(plain, hoisted, ("state",)):
        # Whatever looked at the program before had an effect, and all else that differs is its consequence.
        report.compare(NO_EFFECTS, "batch with hoisted prefix", plain, hoisted, ("state",))
    else:
        _compare_rows(report, FUNCTION, "batch with hoisted prefix", plain, hoisted)
    if plain.get("rows"):
        report.compare(FUNCTION, "first row of a batch", expected, {**plain["rows"][0]}, RESULT)
    report.expected["batch"] = plain


def _texts(outcome: Outcome) -> dict[str, str]:
    """The texts of a result's own generations and choices, by site."""
    own = outcome["own texts"].items()
    texts = {site: outcome["samples"][site][0][1][0] if text is None else text for site, text in own}
    return {site: text for site, text in texts.items() if text}  # nothing comes of what is empty


def _as_a_plan(
    report: Report, expected: Outcome, fresh: Callable[[], ModuleType], rows: Rows, path: Path
) -> None:
    module = fresh()
    (row,) = rows(module, 0)
    try:
        module.program.compile(HashBackend(), args=row).save(path)
        # Tools are those of the module that was executed last.
        plan = sgl.load_plan(path)
    except SglcError as error:
        report.why_not = told(error)[1]
        return
    found = seen(lambda backend: [plan.run(row, backend=backend, seed=SEED)], module, row)
    if found["error"] is not None and found["error"][:3:2] == ["not run", WITH_A_BREAK]:
        report.why_not = "a break"
        module = fresh()
        (row,) = rows(module, 0)
        report.compare(NO_EFFECTS, "refused plan", seen(lambda backend: [], module, row), found, OUTSIDE)
        return
    report.whole, report.plan = True, path
    report.compare(PLAN, "loaded", expected, found)

    module = fresh()
    (row,) = rows(module, 0)
    plan = sgl.load_plan(path)
    found = seen(lambda backend: [plan.run(row, backend=backend, seed=SEED, stream=True)], module, row, pieces)
    report.compare(
        PLAN, "loaded, streaming", {**expected, **expected["streamed"]}, found, (*EVERYTHING, *STREAMED)
    )

    module = fresh()
    calls = rows(module, 0, 0, 0)
    plan = sgl.load_plan(path)
    found = seen(
        lambda backend: plan.run_batch(calls, backend=backend, seed=SEED, num_threads=1), module, calls
    )
    if report.defaults_change or _rows_differ_outside(module, fresh(), expected):
        # What a plan holds of the module is of its making: guards are of functions.
        report.compare(PLAN, "loaded, batch", _first_row(expected["batch"]), _first_row(found), RESULT)
    else:
        _compare_rows(report, PLAN, "loaded, batch", expected["batch"], found)


def _defaults(module: ModuleType) -> Any:
    call = module.program.definition.call
    return canon_alone([call.__defaults__, call.__kwdefaults__])


def _first_row(outcome: Outcome) -> Outcome:
    rows = outcome.get("rows")
    return rows[0] if rows else outcome


def _rows_differ_outside(module: ModuleType, before: ModuleType, expected: Outcome) -> bool:
    """Whether a row changes what the next one reads of the module."""
    one, other = dict(globals_of(before)[1]), dict(expected["state"][1])
    read = _names(module.program.definition.code)
    return any(one[name] != other.get(name) for name in one if name in read)


def _names(code: CodeType) -> set[str]:
    """The globals and attributes that code names, that of functions inside too."""
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*map(_names, inner))


def _compare_rows(report: Report, group: str, way: str, expected: Outcome, found: Outcome) -> None:
    """Outcomes of several results: row by row, and what was asked for and done by all of them."""
    one, other = expected.get("rows", []), found.get("rows", [])
    if len(one) != len(other):  # the call itself failed
        report.compare(group, way, expected, found, ("error",))
        return
    for left, right in zip(one, other, strict=True):
        report.compare(group, way, left, right, RESULT)
    if not any(row["error"] for row in (*one, *other)):
        report.compare(group, way, expected, found, (*ASKED, *OUTSIDE))
