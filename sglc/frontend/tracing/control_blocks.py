"""Structured ops while a program is recorded: each body becomes a block of its op.

What a body changes is the op's to give: the streams and variables of the states that were there
before, and the value that the body returns. Python's own variables are not; a body that assigns one
cannot be recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sglc.errors import Loc, TraceError
from sglc.frontend.program.instance import Gathered
from sglc.frontend.program.state import State
from sglc.frontend.recorder.form import Form
from sglc.frontend.tracing.merge_arms import Merged, merge
from sglc.frontend.tracing.paths import PathEnded
from sglc.frontend.tracing.pytree import unwrapped
from sglc.frontend.tracing.tracer import Tracer
from sglc.frontend.values.block_exit import (
    BlockExit,
    Opaque,
    Stored,
    TracedBlock,
    Unsettled,
    VariableKey,
    is_there,
)
from sglc.frontend.values.graph_breaks import CONDITION, JOINED, NO_DATA, OTHER, RAISED, GraphBreak
from sglc.frontend.values.symbolic import (
    ReturnedState,
    SymbolicBool,
    SymbolicJson,
    SymbolicList,
    SymbolicText,
    symbol,
)
from sglc.ir.core import Op, Region, Tree, Type, Value, walk
from sglc.ir.ops import (
    Call,
    Concat,
    Cond,
    Eq,
    Format,
    Gen,
    HostCall,
    Join,
    Loop,
    Map,
    Not,
    Pack,
    PureCall,
    Select,
    Switch,
    Tool,
)

BlockBody = Callable[..., Any]
Inside = Callable[[], AbstractContextManager[None]]  # of a form: what is recorded in it stands there

_ROUNDS = 8  # to find out what a loop carries; each can only add to it


def record_cond(
    tracer: Tracer, pred: Value, then: BlockBody, orelse: BlockBody | None, form: Form, loc: Loc
) -> Any:
    """`cond`: what the arm that runs returns."""

    def make(merged: Merged) -> Op:
        return Cond(pred, *merged.regions, results=merged.results, loc=loc)

    return _branch(tracer, (then, orelse), make, form, loc)


def record_switch(
    tracer: Tracer, value: Value, cases: Sequence[str], arms: Sequence[BlockBody | None], form: Form, loc: Loc
) -> Any:
    """`switch`: what the arm that runs returns. An arm more than cases is for every other text."""

    def make(merged: Merged) -> Op:
        own, others = merged.regions[: len(cases)], merged.regions[len(cases) :]
        return Switch(value, tuple(cases), own, *others, results=merged.results, loc=loc)

    return _branch(tracer, arms, make, form, loc)


def _branch(
    tracer: Tracer, arms: Sequence[BlockBody | None], make: Callable[[Merged], Op], form: Form, loc: Loc
) -> Any:
    returned: list[Any] = []
    inside = [partial(form.inside, arm=number) for number in range(len(arms))]
    for whole in (False, True):
        returned.clear()
        bodies = [
            partial(_run, tracer, *each, loc, returned, whole=whole) for each in zip(arms, inside, strict=True)
        ]
        blocks = [tracer.block(body, loc) for body in bodies]
        tuples = [len(made) for made in returned if type(made) is tuple]
        if not tuples or (len(tuples) == len(returned) and len(set(tuples)) == 1):
            break
    else:
        tuples = []
    merged = merge(blocks, tracer.recorder.new_value, tracer.streams(), loc, tails=False)
    tracer.recorder.ops.append(make(merged))
    if merged.exit is None:
        raise PathEnded
    tracer.go_on(merged.exit)
    if not any(map(_is_state, returned)):
        made = unwrapped(merged.exit.tree)
        return tuple(made) if tuples else made
    return returned[0] if all(item is returned[0] for item in returned) else ReturnedState()


def _run(
    tracer: Tracer, body: BlockBody | None, inside: Inside, loc: Loc, returned: list[Any], *, whole: bool = True
) -> Tree:
    """`whole`: a tuple is made there; else its items are handed on, as those of lists are."""
    made = _returned(tracer, body, inside, loc, returned)
    if type(made) is tuple and not whole:
        return tuple([tracer.as_data(tracer, item, "a block") for item in made])
    return None if _is_state(made) else tracer.as_data(tracer, made, "a block")


def _returned(
    tracer: Tracer, body: BlockBody | None, inside: Inside, loc: Loc, returned: list[Any], *args: Any
) -> Any:
    made = None
    states = [(state, dict(state._variables)) for state in tracer.instance.states]
    if body is not None:
        stored = [variable for _, variables in states for variable in variables.values()]
        with inside(), tracer.inside_block(body, stored):
            made = tracer.enter(body, loc)(*args)
    for number, (state, before) in enumerate(states):
        for name, item in state._variables.items():
            if item is not before.get(name) and type(item) in (list, tuple, dict):
                if not number:
                    tracer.store(name, item, loc)  # it may have changed since
                tracer.copy(item)
                state._variables[name] = in_one_value(tracer, item)
    tracer.copy(made)
    returned.append(made)
    return made


def in_one_value(tracer: Tracer, item: Any) -> Any:
    """What is stored, ready to be part of one value: a tuple is made there, for in trees all are lists."""
    return unwrapped(tracer.as_data(tracer, item, "stored")) if type(item) in (list, tuple, dict) else item


def _is_state(item: object) -> bool:
    return isinstance(item, State | ReturnedState)  # of `s.user(...)` and its like


# -- loop ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Carried:
    """What a loop hands from one iteration to the next: the streams of states, and variables by their type."""

    streams: list[int] = field(default_factory=list)
    variables: dict[VariableKey, Type] = field(default_factory=dict)
    params: list[Value] = field(default_factory=list)


def record_loop(tracer: Tracer, body: BlockBody, max_iters: int, form: Form, loc: Loc) -> None:
    """`loop`: the streams and variables that the body changes are carried."""
    before = tracer.exit_of(None, tracer.instance.states)
    carried = _Carried()
    for _ in range(_ROUNDS):
        called = tracer.called_tool
        iteration = partial(_iteration, tracer, body, max_iters, carried, before, form, loc)
        block = tracer.block(iteration, loc, python=False)
        block_exit = _comes_back(block, "loop", loc)
        more = _more(carried, before, block_exit)
        if max_iters > 1:
            _refuse_joined_again("loop", before, block_exit, loc)
            _refuse_joined(before, carried, block, loc)
        if not more and tracer.called_tool == called:
            break  # else what stands before a tool stands behind it in the next iteration
    else:
        raise TraceError("SGLC148", "what `loop` carries changes its kind in every iteration", loc)
    for number in carried.streams:
        if before.opens[number] != block_exit.opens[number]:
            raise TraceError(
                "SGLC148", "the body of `loop` leaves a state in another chat turn", loc,
                note=f"before it {_open(before.opens[number])}, behind it {_open(block_exit.opens[number])}",
                hint="end the turns that the body begins",
            )  # fmt: skip
    inside = list(block.ops)
    yields = [block_exit.streams[number] for number in carried.streams]
    yields += [
        _as(tracer, block_exit.variables[key].leaf, kind, inside, loc)
        for key, kind in carried.variables.items()
    ]
    assert isinstance(block_exit.tree, Value)
    ops = tracer.recorder.ops
    init = [before.streams[number] for number in carried.streams]
    for key, kind in carried.variables.items():
        stored = _found(before, key)
        leaf = _NOTHING[kind] if stored is None else stored.leaf
        if stored is not None and type(stored.item) in (list, tuple, dict):
            leaf = tracer.as_data(tracer, stored.item, "stored")
        init.append(_as(tracer, leaf, kind, ops, loc))
    results = tuple(tracer.recorder.new_value(value.type) for value in init)
    region = Region(tuple(carried.params), tuple(inside), (block_exit.tree, *yields), loc)
    ops.append(Loop(tuple(init), max_iters, region, results=results, loc=loc))
    tracer.go_on(_behind(before, carried, results, block_exit.joined))


def _comes_back(block: TracedBlock, what: str, loc: Loc) -> BlockExit:
    """What a body leaves that comes again.

    Raises:
        GraphBreak: it raises whatever it is given.
    """
    if block.exit is None:
        raise GraphBreak(f"the body of `{what}` raises on every path", loc, RAISED)
    return block.exit


# What a variable is before the first iteration stores it. Nothing reads that: the body runs at least once.
_NOTHING: dict[Type, Any] = {Type.TEXT: "", Type.LIST: (), Type.BOOL: False, Type.JSON: None}


def _iteration(
    tracer: Tracer, body: BlockBody, max_iters: int, carried: _Carried, before: BlockExit, form: Form, loc: Loc
) -> Tree:
    carried.params = []
    states = tracer.instance.states
    for number in carried.streams:
        param = tracer.recorder.new_value(Type.STREAM)
        tracer.frames[-1].given.append((param, before.streams[number]))
        states[number]._stream.value = param
        carried.params.append(param)
    for (number, name), kind in carried.variables.items():
        param = tracer.recorder.new_value(kind)
        carried.params.append(param)
        if _found(before, (number, name)) is not None:
            states[number]._variables[name] = unwrapped(param)
        elif max_iters > 1:
            reason = "the body of `loop` stores it, which its first iteration does not find"
            states[number]._variables[name] = Unsettled(name, reason, loc)
    returned: list[Any] = []
    tree = _run(tracer, body, form.inside, loc, returned)
    if isinstance(returned[0], ReturnedState):
        returned[0].observe(CONDITION)
    return truth(tracer, True if tree is None else tree, loc)


def truth(tracer: Tracer, tree: Any, loc: Loc) -> Value:
    """A recorded truth value: of a text, whether it is not empty."""
    match tree:
        case Value(type=Type.BOOL):
            return tree
        case Value(type=Type.TEXT):
            empty = tracer.recorder.emit(Type.BOOL, Eq, tree, "", loc=loc)
            return tracer.recorder.emit(Type.BOOL, Not, empty, loc=loc)
        case Value():
            raise GraphBreak(f"a block returns a {tree.type} as a truth value", loc, NO_DATA)
        case _:
            constant = tracer.recorder.emit(Type.BOOL, Eq, "", "", loc=loc)
            return constant if tree else tracer.recorder.emit(Type.BOOL, Not, constant, loc=loc)


def _more(carried: _Carried, before: BlockExit, after: BlockExit) -> bool:
    """Enter what else the body has changed; whether there was anything."""
    found = False
    for number, (old, new) in enumerate(zip(before.streams, after.streams, strict=True)):
        if number not in carried.streams and new != old:
            carried.streams.append(number)
            found = True
    for key, stored in after.variables.items():
        old_variable = before.variables.get(key)
        if key in carried.variables:
            kind = _kind(stored, _found(before, key))
            if carried.variables[key] is not Type.JSON and kind is not carried.variables[key]:
                carried.variables[key] = Type.JSON
                found = True
        elif old_variable is None or not (stored.kept and stored.item is old_variable.item):
            carried.variables[key] = _kind(stored, _found(before, key))
            found = True
    return found


def _found(before: BlockExit, key: VariableKey) -> Stored | None:
    """What the first iteration finds of a variable; None: perhaps nothing, so that it does not read it."""
    stored = before.variables.get(key)
    return stored if stored is not None and is_there(stored.leaf) else None


def _kind(after: Stored, before: Stored | None) -> Type:
    """The type that fits a variable behind an iteration and before the first."""
    kinds = {_leaf_kind(stored.leaf): None for stored in (after, before) if stored is not None}
    return next(iter(kinds)) if len(kinds) == 1 else Type.JSON


def _leaf_kind(leaf: object) -> Type:
    if isinstance(leaf, Value):
        return leaf.type
    return Type.TEXT if isinstance(leaf, str) else Type.JSON


def _as(tracer: Tracer, leaf: Any, kind: Type, ops: list[Op], loc: Loc) -> Value:
    """A leaf as a value of the type; what that needs goes into `ops`."""
    match leaf:
        case Value() if leaf.type is kind:
            return leaf
        case Opaque() | Unsettled():
            reason = f"a `{type(leaf.item).__name__}` is stored" if isinstance(leaf, Opaque) else leaf.reason
            raise GraphBreak(f"a variable that a loop changes is no data: {reason}", loc, NO_DATA)
    made = tracer.recorder.new_value(kind)
    match kind:
        case Type.TEXT:
            ops.append(Format((leaf,), results=(made,), loc=loc))
        case Type.LIST:
            ops.append(Concat(leaf, results=(made,), loc=loc))
        case Type.BOOL:
            ops.append(Eq("", "", results=(made,), loc=loc))
        case _:
            ops.append(Pack(leaf, results=(made,), loc=loc))
    return made


def _refuse_joined(before: BlockExit, carried: _Carried, block: TracedBlock, loc: Loc) -> None:
    """Raises GraphBreak: the first iteration stores a list by `join` that later ones would keep."""
    assert block.exit is not None
    joined = {op.site.name for op in walk(block.ops) if isinstance(op, Join)}
    for key in carried.variables:
        by_hand = isinstance(block.exit.variables[key].item, Gathered)
        if _found(before, key) is None and (by_hand or key[1] in joined):
            raise GraphBreak(f"a loop joins `{key[1]}` again", loc, JOINED)


def _refuse_joined_again(what: str, before: BlockExit, after: BlockExit, loc: Loc) -> None:
    """Raises GraphBreak: a body that comes again joins a branch from before it, which only the first can."""
    if before.joined != after.joined:
        raise GraphBreak(f"the body of `{what}` joins a branch that was forked outside of it", loc, JOINED)


def _open(role: str) -> str:
    return f"a turn of `{role}` is open" if role else "no turn is open"


def _behind(
    before: BlockExit, carried: _Carried, results: Sequence[Value], joined: tuple[bool, ...]
) -> BlockExit:
    """Where the states stand behind a loop."""
    streams = list(before.streams)
    for number, value in zip(carried.streams, results, strict=False):
        streams[number] = value
    variables = dict(before.variables)
    for key, value in zip(carried.variables, results[len(carried.streams) :], strict=True):
        variables[key] = Stored(value)
    return BlockExit(None, tuple(streams), before.opens, variables, joined)


# -- map -------------------------------------------------------------------------------------------


def record_map(tracer: Tracer, items: Any, body: BlockBody, loc: Loc, form: Form | None = None) -> Any:
    """`map`: the list of what the body returns for each text. `form`: None of a comprehension."""
    inside = nullcontext if form is None else form.inside
    before = tracer.exit_of(None, tracer.instance.states)
    params, returned = list[Value](), list[Any]()

    def run() -> Tree:
        params[:] = [tracer.recorder.new_value(Type.TEXT if source.type is Type.LIST else Type.JSON)]
        made = _returned(tracer, body, inside, loc, returned, symbol(params[0]))
        return None if _is_state(made) else tracer.as_data(tracer, made, "map")

    source = _items(tracer, items, loc)
    if form is not None and source.type is not Type.LIST:
        tracer.may_fail("`map(...)`")
    called = tracer.called_tool
    block = tracer.block(run, loc, python=False)
    if tracer.called_tool != called:  # what stands before a tool stands behind it for the next item
        block = tracer.block(run, loc, python=False)
    block_exit = _comes_back(block, "map", loc)
    known = len(items) if isinstance(items, list | tuple) else None
    if known != 1:
        _refuse_joined_again("map", before, block_exit, loc)
    kinds = {type(op) for op in walk(block.ops)}
    if form is None and HostCall in kinds and not kinds.isdisjoint((Gen, Select, Call)):
        # Its generations have other sites as Python, which would not come to what a plan raises of them.
        raise GraphBreak(
            "a comprehension that generates, over a list that only a run knows, may raise", loc, RAISED
        )
    if block_exit.streams != before.streams:
        raise TraceError(
            "SGLC148", "the body of `map` changes a state that was made outside of it", loc,
            note="its runs have no order, so none of them can continue what another has written",
            hint="fork the state in the body, and append to the branch",
        )  # fmt: skip
    old, reason = before.variables, "the body of `map` stores it, once for each item"
    changed = [
        key
        for key, stored in block_exit.variables.items()
        if key not in old or not (stored.kept and stored.item is old[key].item)
    ]
    if form is None and changed:  # Python lets each item see what the one before has stored
        hint = "use `sglc.map`, whose items see nothing of each other"
        raise GraphBreak(f"a comprehension stores `{changed[0][1]}` for each item", loc, OTHER, hint)
    ops = list(block.ops)
    states = any(map(_is_state, returned))
    nothing = states or (block_exit.tree is None and known is not None)
    results, region = _gathered(tracer, block, params, ops, loc, nothing=nothing)
    tracer.recorder.ops.append(Map(source, region, results=results, loc=loc))
    for number, name in changed:  # reading it is an error
        key = number, name
        there = (key in old and is_there(old[key].leaf)) or (known and is_there(block_exit.variables[key].leaf))
        tracer.instance.states[number]._variables[name] = Unsettled(name, reason, loc, bool(there))
    for state, joined in zip(tracer.instance.states, block_exit.joined, strict=True):
        state._joined = joined
    if states:
        return ReturnedState()
    return [None] * known if known is not None and nothing else symbol(results[0], kind=list)


def _items(tracer: Tracer, items: Any, loc: Loc) -> Value:
    match items:
        case SymbolicList():
            return items.value
        case SymbolicJson() if isinstance(tracer.made_by(items.value), Tool | PureCall):
            return items.value  # a list of Python's own, of anything
        case SymbolicJson():
            tracer.may_fail("`map(...)`")
            form = str(Type.JSON)
            return tracer.recorder.emit(Type.JSON, PureCall, "list", (items.value,), {}, form, loc=loc)
        case list() | tuple() if all(isinstance(item, str | SymbolicText) for item in items):
            return concatenated(tracer, items, loc).value
        case _:
            reason = f"`map` goes over a `{type(items).__name__}`, not over a list of texts"
            raise GraphBreak(reason, loc, NO_DATA)


def concatenated(tracer: Tracer, parts: Sequence[Any], loc: Loc) -> SymbolicList:
    """Texts, and lists of texts, as one list."""
    values = [part.value if isinstance(part, SymbolicList) else tracer.operand(part, loc) for part in parts]
    return SymbolicList(tracer.recorder.emit(Type.LIST, Concat, tuple(values), loc=loc))


def _gathered(
    tracer: Tracer, block: TracedBlock, params: Sequence[Value], inside: list[Op], loc: Loc, *, nothing: bool
) -> tuple[tuple[Value, ...], Region]:
    """The list of what the items give, and the block of one; `nothing`: nobody has to be told."""
    assert block.exit is not None
    tree = block.exit.tree
    if nothing:
        return (), Region(tuple(params), tuple(inside), (), loc)
    kind = _leaf_kind(tree)  # a list of lists is JSON: what goes through a list finds texts in it
    made = _as(tracer, tree, Type.JSON if kind is Type.LIST else kind, inside, loc)
    result = tracer.recorder.new_value(Type.LIST if kind is Type.TEXT else Type.JSON)
    return (result,), Region(tuple(params), tuple(inside), (made,), loc)


def predicate(tracer: Tracer, pred: Any, loc: Loc) -> Value | bool:
    """What a branch asks, as a recorded truth value; a plain one if it is known on this path."""
    match pred:
        case SymbolicBool(value=value):
            known = tracer.known(value)
            return value if known is None else bool(known)
        case SymbolicText():
            settled = pred.settled()
            if settled is not None:
                return bool(settled)
            operand = tracer.operand(pred, loc)
            return truth(tracer, operand, loc) if isinstance(operand, Value) else bool(operand)
        case _:
            return bool(pred)
