"""Ahead-of-time tracing: the function's body with symbolic arguments, on every path, up to graph breaks.

Branches on values of finitely many texts are recorded arm by arm (`explore`); a path ends where
ordinary Python has to take over, and compiling a program never has its effects.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from sglc.errors import Loc, RunError, SglcError
from sglc.frontend.language.function import Definition
from sglc.frontend.locate import here, of_exception
from sglc.frontend.program.instance import Instance, check_settled
from sglc.frontend.program.state import State
from sglc.frontend.recorder.recorder import OpRecorder
from sglc.frontend.tracing.arguments import argument
from sglc.frontend.tracing.call_frame import closure_of
from sglc.frontend.tracing.control_blocks import in_one_value
from sglc.frontend.tracing.interpreter.calls import entered
from sglc.frontend.tracing.interpreter.data import entries, listed, operand
from sglc.frontend.tracing.interpreter.statements import run_body
from sglc.frontend.tracing.outside import OutsideState
from sglc.frontend.tracing.paths import MOST_PATHS
from sglc.frontend.tracing.reads import Reads
from sglc.frontend.tracing.subprogram import CallResult, arguments_of, record_call, refuse_call
from sglc.frontend.tracing.tracer import Tracer, turned_to
from sglc.frontend.values.block_exit import Opaque, TracedBlock, Unsettled
from sglc.frontend.values.graph_breaks import NO_DATA, OTHER, RAISED, VARIADIC, ArmsDiffer, GraphBreak
from sglc.frontend.values.symbolic import Symbolic
from sglc.ir.core import Op, Program, Tree, Value, inputs, regions, values_in, with_fields, with_regions
from sglc.ir.ops import Eq, Format, Guard, In, Lower, Not, Strip
from sglc.ir.sampling import Sampling

# Ops of which nothing is left if nobody reads what they make: recording made them before it knew.
_DEAD = (Format, Strip, Lower, Eq, In, Not)


@dataclass(frozen=True, slots=True)
class Explored:
    """A recorded program, and every place where it is left to ordinary Python, in the order of the text."""

    program: Program
    graph_breaks: tuple[GraphBreak, ...]
    called_tool: str = ""  # one that it may call
    guards: tuple[Guard, ...] = ()  # of a called program: what it takes for granted of the caller's arguments
    no_data: frozenset[str] = frozenset()  # variables of a called program that it may store, and does not give


def explored(
    definition: Definition,
    defaults: Sampling,
    *,
    max_paths: int = MOST_PATHS,
    called_by: Sequence[Any] = (),
    behind: str = "",
    args: Mapping[str, Any] | None = None,
    guards: dict[str, Guard] | None = None,
    reads: Reads | None = None,
    counts: set[str] | None = None,
    broken: list[str] | None = None,
) -> Explored:
    """The program of `definition` with an `arg` for every parameter that is data, and its graph breaks.

    Args:
        max_paths: how many paths are recorded; where more would begin is a graph break.
        called_by: the programs that this one is called by, outermost first. A called program gives its
            variables too: its returns are `{"value": ..., "variables": {...}}`.
        behind: the last tool before it.
        args: examples of arguments, by name. Where Python needs one itself the program is for such as are the
            same in that: a `guard`.
        guards: is given what is taken for granted, by the fact, also where this raises.
        reads: is given what was read outside of the program, also where this raises.
        counts: numbers of arguments are facts as `max_tokens`, and this is given them; None: they are data.
        broken: as `Tracer.broken`, of the program that calls this one.

    Raises:
        SglcError: the body misuses the language, with its place; of a `fullgraph` program also each
            graph break (SGLC120 to SGLC146).
        RunError: the body raised (SGLC401).
    """
    broken = [] if broken is None else broken
    guards = {} if guards is None else guards
    reads = Reads() if reads is None else reads

    def tracer(*, joins: bool) -> Tracer:
        return Tracer(
            Instance(OpRecorder(definition.name, defaults, symbolic=True, ahead=definition.ahead), None),
            max_paths,
            file=definition.code.co_filename,
            calls=(*called_by, definition.call),
            at=definition.loc,
            called_tool=behind,
            guards=guards,
            counts=counts,
            outside=OutsideState(reads=reads),
            make_copy=entered,
            run_body=run_body,
            as_data=operand,
            joins=joins,
            broken=broken,
        )

    # What follows a branch is recorded once for all its arms, unless it turns out to know them apart.
    joining = tracer(joins=True)
    try:
        made = _on_all_paths(joining, definition, args)
    except ArmsDiffer:
        pass
    except SglcError:
        if not joining.joined:
            raise
    else:
        if not joining.joined or not (made.graph_breaks or joining.made_unevenly()):
            return made
    return _on_all_paths(tracer(joins=False), definition, args)


def _on_all_paths(tracer: Tracer, definition: Definition, args: Mapping[str, Any] | None) -> Explored:
    """What one tracer makes of a program."""
    recorder, called = tracer.recorder, len(tracer.calls) > 1
    arguments = {
        parameter.name: argument(recorder, parameter, args, definition.loc)
        for parameter in definition.parameters
    }
    state = State(tracer.instance, recorder.new_stream(definition.loc))
    first = list(recorder.ops)

    def run() -> Tree:
        function = definition.call
        assert isinstance(function, FunctionType)
        body = closure_of(tracer, function, definition.loc)
        positional, named = _split(tracer, definition, arguments)
        for value in (*positional, *named.values()):
            if not isinstance(value, Symbolic):
                tracer.outside.note(value)
        returned = body(state, *positional, **named)
        if inspect.iscoroutinefunction(function):
            returned = returned.awaited()
        if isinstance(returned, State):
            raise GraphBreak("a `State` is returned", tracer.at, NO_DATA)
        tracer.outside.unchanged(tracer, returned)
        tree = operand(tracer, returned, "returned")
        tracer.end_path(state)
        if called:
            check_settled(*state._variables.values())  # they are the caller's to read
            for name, stored in state._variables.items():
                state._variables[name] = in_one_value(tracer, stored)
        return tree

    try:
        with turned_to(tracer):
            block = tracer.block(run, definition.loc, states=called, first=True)
    except SglcError:
        raise
    except Exception as error:
        raise failed(definition, error, tracer.place_of(error)) from error
    tracer.instance.states.clear()  # each holds its instance: a circle, which would wait to be collected
    if called and block.exit is None and not tracer.graph_breaks:
        tracer.graph_breaks.append(GraphBreak("it raises on every path", definition.loc, RAISED))
    graph_breaks = _in_order(tracer.graph_breaks)
    if definition.fullgraph and graph_breaks:
        raise graph_breaks[0].as_error(definition.name)
    returns = _returns(block, called)
    known = tuple(tracer.guards.values())
    ops = _needed([*first, *block.ops], set(values_in(returns)), _sure(tracer))
    params = tuple(recorder.params) if called else (*recorder.params, *known)
    program = Program(definition.name, params, ops, returns)
    stored = () if block.exit is None else block.exit.variables.items()
    no_data = frozenset([
        name for (number, name), item in stored if number == 0 and isinstance(item.leaf, Opaque | Unsettled)
    ])  # fmt: skip
    return Explored(program, graph_breaks, tracer.called_tool, known, no_data)


def failed(definition: Definition, error: BaseException, place: Loc | None = None) -> RunError:
    """An exception of the user's code as an error with a place."""
    made = any(isinstance(part, Symbolic) for part in error.args)
    text = "what it says is known when it runs" if made else str(error) or "no message"
    loc = place or of_exception(error, definition.code.co_filename) or definition.loc
    return RunError("SGLC401", f"`{type(error).__name__}` in `{definition.name}`: {text}", loc)


def call(
    tracer: Tracer,
    definition: Definition,
    given: Mapping[str, Any],
    defaults: Sampling,
    options: Sequence[str] = (),
) -> CallResult:
    """Record that a program calls another one.

    Args:
        given: its arguments by name.
        options: names of what is said about the run itself, which a recorded call has no place for.

    Raises:
        GraphBreak: the called program is left to ordinary Python somewhere, or cannot be recorded.
        SglcError: it misuses the language.
    """
    loc = here()
    if options:
        raise GraphBreak(f"`{definition.name}` is given `{options[0]}`, which only a run has", loc, OTHER)
    refuse_call(tracer, definition, loc)
    own, args = arguments_of(tracer, definition, given, loc)
    made = explored(
        own,
        defaults,
        max_paths=tracer.most_paths,
        called_by=tracer.calls,
        behind=tracer.called_tool,
        reads=tracer.outside.reads,
        counts=tracer.counts,
        broken=tracer.broken,
    )
    tracer.called_tool = made.called_tool
    if made.called_tool:
        tracer.outside.called(made.called_tool, (), None)
    if made.graph_breaks:
        graph_break = made.graph_breaks[0].of_call(definition.name, loc)
        tracer.broken.append(graph_break.reason)
        raise graph_break
    for guard in made.guards:
        tracer.guards.setdefault(guard.fact, guard)
    return record_call(tracer, made.program, definition.name, args, made.no_data, loc)


def _split(
    tracer: Tracer, definition: Definition, arguments: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    positional: list[Any] = []
    named: dict[str, Any] = {}
    # The parameters of a called program are told by name, and stand here as they are written.
    written = inspect.signature(definition.call).parameters if len(tracer.calls) > 1 else {}
    for parameter in definition.parameters:
        value = arguments[parameter.name]
        match written.get(parameter.name, parameter).kind:
            case inspect.Parameter.VAR_POSITIONAL | inspect.Parameter.VAR_KEYWORD if value is None:
                raise GraphBreak(f"`{parameter}` has no fixed number of arguments", definition.loc, VARIADIC)
            case inspect.Parameter.KEYWORD_ONLY:
                named[parameter.name] = value
            case inspect.Parameter.VAR_POSITIONAL:
                positional += listed(tracer, value)
            case inspect.Parameter.VAR_KEYWORD:
                named |= entries(tracer, value)
            case _:
                positional.append(value)
    return positional, named


def _returns(block: TracedBlock, called: bool) -> Tree:
    if block.exit is None:
        return {"value": None, "variables": {}} if called else None
    if not called:
        return block.exit.tree
    variables = {
        name: variable.leaf
        for (number, name), variable in block.exit.variables.items()
        if number == 0 and not isinstance(variable.leaf, Opaque | Unsettled)
    }
    return {"value": block.exit.tree, "variables": variables}


def _in_order(graph_breaks: Sequence[GraphBreak]) -> tuple[GraphBreak, ...]:
    """Each place once: a place on several paths was met once on each."""
    places: dict[tuple[Loc, str], GraphBreak] = {}
    for graph_break in graph_breaks:
        places.setdefault((graph_break.loc, graph_break.reason), graph_break)
    return tuple(sorted(places.values(), key=lambda b: (b.loc.line, b.loc.column)))


def _sure(tracer: Tracer) -> frozenset[int]:
    """The ops, by id, that cannot fail: some guard holds only where they do not."""
    parts = {known.fact: known.parts for _, known in tracer.facts.values()}
    asked: set[str] = set()
    todo = [each for fact in tracer.guards for each in (fact, *_inside(fact))]
    while todo:
        fact = todo.pop()
        if fact in parts and fact not in asked:
            asked.add(fact)
            todo += parts[fact]
    return frozenset([number for number, (_, known) in tracer.facts.items() if known.fact in asked])


def _inside(fact: str) -> tuple[str, str]:
    """What a guard may ask something of: `len(x)` or `sglc.attribute(x, 'value')`."""
    inner = fact.partition("(")[2][:-1]
    return inner, inner.rpartition(", ")[0]


def _needed(ops: Sequence[Op], needed: set[Value], sure: frozenset[int]) -> tuple[Op, ...]:
    """The ops without those that only make what nobody reads; `needed` grows by what they read."""
    kept: list[Op] = []
    for op in reversed(ops):
        if needed.isdisjoint(op.results) and (isinstance(op, _DEAD) or id(op) in sure):
            continue
        if op.region_fields:
            needed.update(*(region.results for region in regions(op)))
            op = with_regions(op, lambda region: with_fields(region, ops=_needed(region.ops, needed, sure)))
        needed.update(inputs(op))
        kept.append(op)
    return tuple(reversed(kept))
