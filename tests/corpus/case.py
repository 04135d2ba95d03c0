"""A program of the corpus as data, how it runs on scripted answers, and how much of it traces.

Every answer depends on its site and prompt alone, so two runs of one row are equal in everything, whichever way
they run. A line of a body that ends in `# breaks` is one that no tracer may pass.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from hashlib import blake2b
from typing import Any

from sglc.api.function import Function
from sglc.api.plan import LoadedPlan
from sglc.backends.scripted import Asked, ScriptedBackend
from sglc.errors import UsageError
from sglc.execution.bind import bind
from sglc.execution.plan.arguments import bound
from sglc.execution.result import Result
from sglc.ir.facts import spell
from sglc.ir.plan.plan import HostStep, steps_of

MARK = "# breaks"

Answer = str | tuple[str, ...] | Callable[[Asked], str]
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """One program with its rows of arguments.

    Attributes:
        answers: by the generation's name: a text, one for each branch and occurrence in turn, or what makes it.
        breaks: the lines where ordinary Python has to take over; none for a program that one wants whole.
    """

    name: str
    function: Function
    rows: tuple[Row, ...]
    answers: Mapping[str, Answer] = field(default_factory=dict)
    breaks: tuple[int, ...] = ()


class Corpus:
    """The programs of one file: `@program(...)` above `@sgl.function` adds one, with its row or rows."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.cases: list[Case] = []

    def __call__(
        self, *rows: Row, answers: Mapping[str, Answer] | None = None, **row: Any
    ) -> Callable[[Function], Function]:
        def add(function: Function) -> Function:
            lines, first = inspect.getsourcelines(function.definition.call)
            marked = [number for number, line in enumerate(lines, first) if line.rstrip().endswith(MARK)]
            name = f"{self.kind}/{function.__name__}"
            self.cases.append(Case(name, function, rows or (row,), answers or {}, tuple(marked)))
            return function

        return add


# -- how it runs -------------------------------------------------------------------------------------


# What says most about a difference first.
_FIRST = ("asked", "variables", "value", "printed", "text", "messages", "meta", "pieces", "calls")


@dataclass(frozen=True, slots=True)
class Outcome:
    """All that a run shows: `asked` is what the back end saw, in the order of sites."""

    value: Any
    variables: Mapping[str, Any]
    asked: tuple[tuple[str, int, str, tuple[str, ...]], ...]
    printed: str
    text: str
    messages: tuple[Mapping[str, Any], ...]
    meta: Mapping[str, Any]  # by variable, without times
    pieces: Mapping[str, str]  # what was streamed, by site
    calls: tuple[tuple[str, int, int], ...]  # sites with the tokens in and out, in the order of sites

    def differs_from(self, other: Outcome) -> str:
        """The first thing that is not the same, or nothing."""
        for name in sorted((each.name for each in fields(self)), key=_FIRST.index):
            mine, its = getattr(self, name), getattr(other, name)
            if not same(mine, its):
                return f"{name}: {its!r} instead of {mine!r}"
        return ""


def same(one: Any, other: Any) -> bool:
    """Equality of values and of all their types."""
    if type(one) is not type(other):
        return False
    match one:
        case dict():
            return one.keys() == other.keys() and all(same(item, other[key]) for key, item in one.items())
        case list() | tuple():
            return len(one) == len(other) and all(map(same, one, other))
        case _:
            return bool(one == other)


def answer(case: Case, asked: Asked) -> str:
    """What the script says: what the case has for the name, else something made of the prompt."""
    given = case.answers.get(asked.site.name)
    digest = blake2b(f"{asked.site}|{asked.sample}|{asked.prompt}".encode(), digest_size=4)
    match given:
        case None if asked.choices:
            return asked.choices[digest.digest()[0] % len(asked.choices)]
        case None:
            return f"said {digest.hexdigest()}"
        case str():
            return given
        case tuple():
            return given[(sum(asked.site.fork) + asked.site.occurrence + asked.sample) % len(given)]
        case _:
            return given(asked)


class Script(ScriptedBackend):
    """The scripted back end of a case, which notes what it is asked."""

    def __init__(self, case: Case) -> None:
        self.asked: list[Asked] = []

        def noted(asked: Asked) -> str:
            self.asked.append(asked)
            return answer(case, asked)

        super().__init__(noted)


def _outcome(script: Script, start: Callable[[], Result]) -> Outcome:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        result = start()
        error = result.error()
    if error is not None:
        raise error
    asked = sorted((str(a.site), a.sample, a.prompt, a.choices) for a in script.asked)
    pieces: dict[str, str] = {}
    for site, piece in result.pieces():
        pieces[str(site)] = pieces.get(str(site), "") + piece
    calls = sorted((str(call.site), call.usage.prompt, call.usage.completion) for call in result.calls)
    meta = {name: _meta(result, name) for name in result.variables}
    variables, messages = dict(result.variables), tuple(result.messages())
    return Outcome(
        result.ret_value, variables, tuple(asked), printed.getvalue(), result.text(), messages, meta, pieces,
        tuple(calls),
    )  # fmt: skip


def _meta(result: Result, name: str) -> Any:
    info = result.get_meta_info(name)
    return info and {key: item for key, item in info.items() if not key.endswith("_s")}


def run_python(case: Case, row: Row) -> Outcome:
    """One row as ordinary Python; its arguments stay as they are.

    Raises:
        the run's error.
    """
    script, given = Script(case), copy.deepcopy(dict(row))
    return _outcome(script, lambda: case.function.run(**given, backend=script, seed=0, use_thread=False))


# -- how much of it traces ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Break:
    """A place where the trace of a row ends; line 0 where it has none."""

    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class Traced:
    """What compiling all rows of a case came to: `whole` if there is no break, and plans do what Python does.

    Attributes:
        breaks: of the first row that has any.
        difference: what a plan without breaks did differently, an error of its run included.
    """

    breaks: tuple[Break, ...] = ()
    difference: str = ""
    plans: int = field(default=0, compare=False)  # that all rows together took

    @property
    def whole(self) -> bool:
        return not self.breaks and not self.difference

    def breaks_at(self, lines: tuple[int, ...]) -> bool:
        """Whether it breaks, and nowhere else."""
        return bool(self.breaks) and {each.line for each in self.breaks} <= {*lines}


def traced(case: Case, expected: Callable[[Case, Row], Outcome] = run_python) -> Traced:
    """Compile and run the rows of a case, up to one that is not whole; a plan runs all that it fits."""
    plans: list[LoadedPlan] = []
    for number, row in enumerate(case.rows):
        plan = next((plan for plan in plans if fits(case, plan, row)), None)
        if plan is None:
            try:
                plan = plan_for(case, row)
            except Exception as error:  # a compiler that fails has not compiled it, whatever the reason
                reason = f"compiling raises `{type(error).__name__}`: {_said(error)}"
                return Traced((Break(_line(error), reason),))
            plans.append(plan)
        steps = [step for step in steps_of(plan.plan) if isinstance(step, HostStep) and not step.error]
        if steps:
            return Traced(tuple(dict.fromkeys(Break(step.loc.line, step.reason) for step in steps)))
        try:
            difference = expected(case, row).differs_from(run_plan(case, row, plan))
        except Exception as error:
            difference = f"running the plan raises `{type(error).__name__}`: {_said(error)}"
        if difference:
            return Traced(difference=f"row {number}, {difference}")
    return Traced(plans=len(plans))


def plan_for(case: Case, row: Row) -> LoadedPlan:
    """The plan that is recorded with a row: its arguments stay open as far as Python needs no value.

    Raises:
        whatever compiling raises.
    """
    return LoadedPlan(case.function.compile(Script(case), args=copy.deepcopy(dict(row))).plan)


def fits(case: Case, plan: LoadedPlan, row: Row) -> bool:
    """Whether a plan is for a row."""
    try:
        bound(plan.plan, _open(case, plan, row))
    except UsageError:
        return False
    return True


def run_plan(case: Case, row: Row, plan: LoadedPlan) -> Outcome:
    """One row as a plan, from which no break leads out.

    Raises:
        the run's error.
    """
    script, given = Script(case), copy.deepcopy(_open(case, plan, row))
    return _outcome(script, lambda: plan.run(given, backend=script, seed=0))


def _open(case: Case, plan: LoadedPlan, row: Row) -> dict[str, Any]:
    """What of a row is an argument of its plan: no functions and other objects that the plan holds."""
    given = bind(case.function.definition, (), dict(row))
    return {name: value for name, value in given.items() if name in plan.plan.names or spell(value) is not None}


def _line(error: Exception) -> int:
    loc = getattr(error, "loc", None)
    return loc.line if loc is not None else 0


def _said(error: Exception) -> str:
    return str(getattr(error, "message", error)).splitlines()[0] if str(error) else "no message"
