"""Faults that are planted on purpose: whoever judges others has to find each of them.

A fault is a context manager under a name. It is found if the programs then show a difference (program, way,
aspect) that they do not show without it, so what is known to be unequal today may be so in both.

Each is planted in one way to run only (as a plan, streaming, in a batch), since a fault of all ways alike is
none that a comparison of them can see.
"""

from __future__ import annotations

import ast
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import fields, is_dataclass, replace
from typing import Any
from unittest.mock import patch

from sglc.api import plan as plan_api
from sglc.api.function import Function
from sglc.errors import Loc
from sglc.execution import tool_calls
from sglc.execution.lifecycle import Run
from sglc.execution.plan import functions
from sglc.execution.plan.run import PlanPart
from sglc.execution.readers import PieceReader, Portion
from sglc.execution.result import Result, RunOutcome
from sglc.frontend.program.instance import Scoped
from sglc.frontend.recorder.form import Form
from sglc.frontend.recorder.recorder import OpRecorder
from sglc.frontend.tracing import tools
from sglc.frontend.tracing.call_frame import CallFrame
from sglc.frontend.tracing.interpreter import data, methods, operations, statements
from sglc.frontend.tracing.makers import maker_named
from sglc.frontend.tracing.outside import OutsideState
from sglc.frontend.tracing.stores import Stores
from sglc.frontend.tracing.tracer import Tracer
from sglc.frontend.values.graph_breaks import GraphBreak
from sglc.ir.core import Site
from sglc.ir.effects import Effect
from sglc.ir.plan import plan_file, plan_json
from sglc.ir.plan.events import Usage
from sglc.ir.plan.plan import CondStep, FunctionStep, Named, Plan, SwitchStep
from sglc.ir.plan.segment import ExtendNode, GenNode, SelectNode
from sglc.ir.pure import STORED, function_of
from sglc.passes import prune
from sglc.passes.compile import _CACHE as compile_cache
from tests.source_fuzz.ways import FUNCTION, NO_EFFECTS, PLAN

Fault = Callable[[], AbstractContextManager[Any]]
Change = Callable[[Any], Any]

# -- what a result is filled with ----------------------------------------------------------------------


def _outcomes(of: Callable[[Run], bool], change: Callable[[RunOutcome], RunOutcome]) -> Fault:
    """The outcome of some runs is another one."""

    @contextmanager
    def planted() -> Iterator[None]:
        fill = Run.fill

        def faulty(run: Run, outcome: RunOutcome) -> None:
            fill(run, change(outcome) if of(run) and outcome.error is None else outcome)

        with patch.object(Run, "fill", faulty):
            yield

    return planted


def _planned(run: Run) -> bool:
    return isinstance(run.part, PlanPart)


def _streaming(run: Run) -> bool:
    return run.result.outputs.live


def _later_row(run: Run) -> bool:
    return isinstance(run.part, PlanPart) and run.result.row > 1


def _value(change: Change) -> Callable[[RunOutcome], RunOutcome]:
    return lambda outcome: replace(outcome, value=_everywhere(outcome.value, change))


def _variables(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[RunOutcome], RunOutcome]:
    return lambda outcome: replace(outcome, variables=change(dict(outcome.variables)))


def _everywhere(value: Any, change: Change) -> Any:
    """`value` with its parts changed, the inner ones first."""
    if type(value) in (list, tuple):
        value = type(value)(_everywhere(item, change) for item in value)
    elif type(value) is dict:
        value = {key: _everywhere(item, change) for key, item in value.items()}
    return change(value)


def _scoped_lost(variables: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in variables.items() if not name.startswith("k")}


def _joined_lost(variables: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in variables.items() if type(value) is not list}


def _backwards(variables: dict[str, Any]) -> dict[str, Any]:
    lists = {name: value[::-1] for name, value in variables.items() if type(value) is list}
    return {**variables, **lists}


def _without_roles(outcome: RunOutcome) -> RunOutcome:
    said = outcome.messages
    return replace(outcome, messages=lambda: [{**turn, "role": "user"} for turn in said()])


# -- plans as files ----------------------------------------------------------------------------------


def _plans(change: Change) -> Fault:
    """A plan that is read from a file says something else in places."""

    @contextmanager
    def planted() -> Iterator[None]:
        read = plan_json.plan_from_json

        def faulty(data: Any) -> Plan:
            plan: Plan = _rewritten(read(data), change)
            return plan

        with patch.object(plan_file, "plan_from_json", faulty):
            yield

    return planted


def _rewritten(value: Any, change: Change) -> Any:
    if isinstance(value, tuple):
        return change(tuple(_rewritten(item, change) for item in value))
    if isinstance(value, Mapping):
        return {key: _rewritten(item, change) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        changed = {
            field.name: _rewritten(getattr(value, field.name), change) for field in fields(value) if field.init
        }
        return change(replace(value, **changed))
    return value


def _gen(**changes: Callable[[GenNode], Any]) -> Change:
    def change(node: Any) -> Any:
        if not isinstance(node, GenNode):
            return node
        return replace(node, **{name: made(node) for name, made in changes.items()})

    return change


def _arms_swapped(step: Any) -> Any:
    match step:
        case CondStep():
            return replace(step, then=step.orelse, orelse=step.then)
        case SwitchStep(arms=(first, second, *rest)):
            return replace(step, arms=(second, first, *rest))
        case _:
            return step


def _stripped(node: Any) -> Any:
    if not isinstance(node, ExtendNode):
        return node
    return replace(node, parts=tuple(part.rstrip() if isinstance(part, str) else part for part in node.parts))


def _choices_reversed(node: Any) -> Any:
    return replace(node, choices=node.choices[::-1]) if isinstance(node, SelectNode) else node


def _arguments_of_tools_lost(step: Any) -> Any:
    if not isinstance(step, FunctionStep):
        return step
    return replace(step, args=tuple("" if not isinstance(arg, Mapping) else arg for arg in step.args))


def _renamed(variable: Any) -> Any:
    return replace(variable, name=variable.name.lower() + "_") if isinstance(variable, Named) else variable


# -- tools, streams, counts, effects -------------------------------------------------------------------


@contextmanager
def _tools(times: int) -> Iterator[None]:
    """A tool of a plan is called so often."""
    call = tool_calls.call_function

    async def faulty(name: str, *rest: Any) -> Any:
        made: Any = ""
        for _ in range(times):
            made = await call(name, *rest)
        return made

    with patch.object(functions, "call_function", faulty):
        yield


@contextmanager
def _pieces_changed(change: Callable[[list[Any]], list[Any]]) -> Iterator[None]:
    take = PieceReader.take

    def faulty(reader: PieceReader) -> Portion | None:
        portion = take(reader)
        if portion is None or not portion.pieces:
            return portion
        return replace(portion, pieces=change(list(portion.pieces)))

    with patch.object(PieceReader, "take", faulty):
        yield


@contextmanager
def _usage(of: Callable[[Result], bool]) -> Iterator[None]:
    """Some results count one call too many."""
    usage = Result.__dict__["usage"]

    def faulty(result: Result) -> Usage:
        counted: Usage = usage.fget(result)
        return counted + Usage(calls=1) if of(result) else counted

    with patch.object(Result, "usage", property(faulty)):
        yield


@contextmanager
def _usage_of_plans() -> Iterator[None]:
    """The results of plans count one call too many: nothing of a result itself says where it is from."""
    of_plans: weakref.WeakSet[Result] = weakref.WeakSet()
    fill = Run.fill

    def noting(run: Run, outcome: RunOutcome) -> None:
        if _planned(run):
            of_plans.add(run.result)
        fill(run, outcome)

    with patch.object(Run, "fill", noting), _usage(lambda result: result in of_plans):
        yield


@contextmanager
def _meta(of: Callable[[Result], bool]) -> Iterator[None]:
    """Some results tell another reason for which a generation ended."""
    meta = Result.get_meta_info

    def faulty(result: Result, name: str) -> dict[str, Any] | None:
        told = meta(result, name)
        return told if told is None or not of(result) else {**told, "finish_reason": {"type": "length"}}

    with patch.object(Result, "get_meta_info", faulty):
        yield


@contextmanager
def _leaves_something(method: str) -> Iterator[None]:
    """Looking at a program leaves something behind in its module."""
    inner = getattr(Function, method)

    def faulty(function: Function, *args: Any, **named: Any) -> Any:
        names = function.definition.call.__globals__
        for name in [name for name, value in names.items() if type(value) is list]:
            names[name].append("traced")
        return inner(function, *args, **named)

    with patch.object(Function, method, faulty):
        yield


@contextmanager
def _moves_iterators() -> Iterator[None]:
    """Compiling a program takes an item of an iterator that was made outside."""
    inner = Function.compile

    def faulty(function: Function, *args: Any, **named: Any) -> Any:
        names = function.definition.call.__globals__
        for name in ("ITER", "COUNTER", "NUMBERS"):
            next(names.get(name, iter(())), None)
        return inner(function, *args, **named)

    with patch.object(Function, "compile", faulty):
        yield


@contextmanager
def _batch_rows(change: Callable[[dict[str, Any], Function], dict[str, Any]]) -> Iterator[None]:
    """Rows of a batch are given other arguments than their own."""
    inner = Function.stream_batch

    def faulty(function: Function, rows: Any, **named: Any) -> Any:
        if isinstance(rows, str):  # no rows at all: it is to be refused
            return inner(function, rows, **named)
        return inner(function, [change(dict(row), function) for row in rows], **named)

    with patch.object(Function, "stream_batch", faulty):
        yield


def _as_texts(row: dict[str, Any], _: Function) -> dict[str, Any]:
    return {name: str(value) for name, value in row.items()}


def _with_defaults(row: dict[str, Any], function: Function) -> dict[str, Any]:
    """Without the arguments that have a default."""
    defaults = {p.name for p in function.definition.parameters if p.default is not p.empty}
    return {name: value for name, value in row.items() if name not in defaults}


def _own_list_changed(row: dict[str, Any], _: Function) -> dict[str, Any]:
    for value in row.values():
        if type(value) is list:
            value.append("added")
    return row


# -- the tracer ----------------------------------------------------------------------------------------


@contextmanager
def _pruned(name: str, wrong: Any) -> Iterator[None]:
    """`prune` has something wrong, and no plan is there that was made before."""
    with patch.object(prune, name, wrong), patch.dict(compile_cache, clear=True):
        yield


def _nothing(*_: Any, **__: Any) -> None:
    """In the place of a check."""


def _seeing_breaks(frame: CallFrame, node: ast.Try) -> Any:
    try:
        return statements._try(frame, node)
    except GraphBreak:
        if not node.handlers:
            raise
        return statements.run_block(frame, node.handlers[0].body)


@contextmanager
def _nothing_fails() -> Iterator[None]:
    with patch.object(Tracer, "may_fail", _nothing), patch.object(data, "_decide_failure", _nothing):
        yield


_reserve = OpRecorder.reserve


def _other_site(recorder: OpRecorder, *args: Any) -> Site:
    site = _reserve(recorder, *args)
    return replace(site, occurrence=site.occurrence + 7) if site.occurrence and recorder.symbolic else site


_inside = Form.inside


def _without_arms(form: Form, **numbers: Any) -> AbstractContextManager[None]:
    return (
        _inside(form)
        if form._around is not None and form._around.recorder.symbolic
        else _inside(form, **numbers)
    )


def _without_iterations(form: Form, **numbers: Any) -> AbstractContextManager[None]:
    return _inside(form, arm=numbers.get("arm"))


_handed = tools._handed


def _handed_as_text(tracer: Tracer, arg: Any, *rest: Any) -> Any:
    return _handed(tracer, _everywhere(arg, lambda item: str(item) if type(item) is int else item), *rest)


_store = Tracer.store


def _scope_lost(tracer: Tracer, name: str, value: Any, loc: Loc) -> None:
    if not isinstance(value, Scoped):
        _store(tracer, name, value, loc)


_same_fact = Tracer._same_fact


def _other_answer(tracer: Tracer, value: Any) -> bool | None:
    known = _same_fact(tracer, value)
    return None if known is None else not known


def _operands_swapped(tracer: Any, name: str, *args: Any, **named: Any) -> Any:
    if name.startswith("operator.") and len(args) == 2:
        args = args[::-1]
    return data.pure_call(tracer, name, *args, **named)


def _last_argument_lost(tracer: Any, name: str, *args: Any, **named: Any) -> Any:
    return data.pure_call(tracer, name, *(args[:-1] if len(args) > 2 else args), **named)


@contextmanager
def _typed_values_lost() -> Iterator[None]:
    inner = maker_named
    with patch.object(plan_api, "maker_named", lambda name: str if name.endswith(STORED) else inner(name)):
        yield


def _fails_otherwise(name: str) -> Callable[..., Any]:
    function = function_of(name)
    return (lambda *args, **named: not function(*args, **named)) if name == "sglc.raises" else function


# What is planted where every version of the compiler has it, by the group of ways in which it is seen.
IN_PLANS: dict[str, Fault] = {
    "what fails and what does not are taken for each other": lambda: patch.object(
        functions, "function_of", _fails_otherwise
    ),
    "a plan loses joined variables": _outcomes(_planned, _variables(_joined_lost)),
    "the branches of a plan are gathered backwards": _outcomes(_planned, _variables(_backwards)),
    "a plan loses a variable of every result": _outcomes(
        _planned, _variables(lambda v: dict(list(v.items())[:-1]))
    ),
    "a later row has its variables backwards": _outcomes(
        _later_row, _variables(lambda v: dict(list(v.items())[::-1]))
    ),
    "a plan makes integers of truth values": _outcomes(
        _planned, _value(lambda v: int(v) if type(v) is bool else v)
    ),
    "a later row makes texts of numbers": _outcomes(
        _later_row, _value(lambda v: str(v) if type(v) in (int, float) else v)
    ),
    "a later row has another value": _outcomes(_later_row, lambda o: replace(o, value=[o.value])),
    "a plan file loses white space": _plans(_stripped),
    "a plan file has other sites": _plans(
        _gen(site=lambda node: replace(node.site, occurrence=node.site.occurrence + 1))
    ),
    "a plan file has the sites of another program": _plans(
        _gen(site=lambda node: replace(node.site, function="f"))
    ),
    "a plan file has a seed for every call": _plans(_gen(sampling=lambda node: replace(node.sampling, seed=5))),
    "a plan file forgets how long a text may be": _plans(
        _gen(sampling=lambda node: replace(node.sampling, max_tokens=128))
    ),
    "a plan file forgets what ends a text": _plans(_gen(sampling=lambda node: replace(node.sampling, stop=()))),
    "a plan file has its places wrong": _plans(
        _gen(loc=lambda node: replace(node.loc, line=node.loc.line + 1))
    ),
    "a plan file has its choices backwards": _plans(_choices_reversed),
    "a plan file swaps arms": _plans(_arms_swapped),
    "a plan file renames variables": _plans(_renamed),
    "a plan file loses what tools are given": _plans(_arguments_of_tools_lost),
    "a tool of a plan is not called": lambda: _tools(0),
    "a tool of a plan is called twice": lambda: _tools(2),
    "a plan counts a call too many": _usage_of_plans,
    "a plan loses scoped and assigned variables": _outcomes(_planned, _variables(_scoped_lost)),
    "a plan loses the end of its text": _outcomes(_planned, lambda o: replace(o, text=o.text[:-1])),
    "a plan loses the roles of its messages": _outcomes(_planned, _without_roles),
    "a plan makes lists of tuples": _outcomes(_planned, _value(lambda v: list(v) if type(v) is tuple else v)),
    "a plan leaves typed values texts": lambda: _typed_values_lost(),
}
IN_FUNCTIONS: dict[str, Fault] = {
    "a batch makes texts of its arguments": lambda: _batch_rows(_as_texts),
    "a batch loses arguments that have a default": lambda: _batch_rows(_with_defaults),
    "a batch changes the caller's list": lambda: _batch_rows(_own_list_changed),
    "a streaming run loses scoped and assigned variables": _outcomes(_streaming, _variables(_scoped_lost)),
    "a streaming run makes lists of tuples": _outcomes(
        _streaming, _value(lambda v: list(v) if type(v) is tuple else v)
    ),
    "a streaming run loses the end of its text": _outcomes(_streaming, lambda o: replace(o, text=o.text[:-1])),
    "a streaming run loses the roles of its messages": _outcomes(_streaming, _without_roles),
    "a stream loses a piece": lambda: _pieces_changed(lambda pieces: pieces[:-1]),
    "a stream says a piece twice": lambda: _pieces_changed(lambda pieces: [*pieces, pieces[-1]]),
    "a streaming run counts a call too many": lambda: _usage(lambda result: result.outputs.live),
    "a streaming run tells the wrong end": lambda: _meta(lambda result: result.outputs.live),
    "what is asked for is not generated": lambda: _pruned("variable_of", _nothing),
    "tools whose value is not asked for are not called": lambda: _pruned(
        "_ROOTS", Effect.DECIDES | Effect.LEAVES
    ),
    "decisions are left out whose value is not asked for": lambda: _pruned(
        "_ROOTS", Effect.ACTS | Effect.LEAVES
    ),
}
IN_EFFECTS: dict[str, Fault] = {
    "compiling leaves something behind": lambda: _leaves_something("compile"),
    "explaining leaves something behind": lambda: _leaves_something("explain"),
    "caching leaves something behind": lambda: _leaves_something("cache"),
    "compiling moves an iterator": lambda: _moves_iterators(),
}

# What is planted inside the tracer: it is found in plans, or in what tracing leaves behind.
IN_TRACER: dict[str, Fault] = {
    "what changes the outside is executed": lambda: patch.object(Tracer, "change", _nothing),
    "nothing is outside": lambda: patch.object(OutsideState, "is_outside", lambda *_: False),
    "an `except` of the program sees graph breaks": lambda: patch.dict(
        statements._RULES, {ast.Try: _seeing_breaks}
    ),
    "globals are read behind tools as they were before": lambda: patch.object(OutsideState, "_check", _nothing),
    "what tools were given is read behind them": lambda: patch.object(OutsideState, "give", _nothing),
    "no code stores any name": lambda: patch.object(Stores, "may_store", lambda *_: False),
    "what can fail is traced inside of a `try`": lambda: _nothing_fails(),
    "a later generation of one name has another site": lambda: patch.object(OpRecorder, "reserve", _other_site),
    "compiled arms have no sites of their own": lambda: patch.object(Form, "inside", _without_arms),
    "iterations as Python have no sites of their own": lambda: patch.object(
        Form, "inside", _without_iterations
    ),
    "tools are given texts of numbers": lambda: patch.object(tools, "_handed", _handed_as_text),
    "what a scope says is not stored": lambda: patch.object(Tracer, "store", _scope_lost),
    "a `not` is lost": lambda: patch.object(operations, "not_", lambda frame, value: value),
    "a question that is asked again gets the other answer": lambda: patch.object(
        Tracer, "_same_fact", _other_answer
    ),
    "operators have their operands the wrong way round": lambda: patch.object(
        operations, "pure_call", _operands_swapped
    ),
    "the last argument of Python's own functions is lost": lambda: patch.object(
        methods, "pure_call", _last_argument_lost
    ),
}

# A fault and the groups of ways that are run to find it.
FAULTS: dict[str, tuple[tuple[str, ...], Fault]] = {
    **{name: ((PLAN,), fault) for name, fault in IN_PLANS.items()},
    **{name: ((FUNCTION,), fault) for name, fault in IN_FUNCTIONS.items()},
    **{name: ((NO_EFFECTS,), fault) for name, fault in IN_EFFECTS.items()},
    **{name: ((NO_EFFECTS, PLAN), fault) for name, fault in IN_TRACER.items()},
}
