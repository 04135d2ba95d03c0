"""What ops do beside giving values, as data: what leaves an op out, moves or orders it asks here."""

from __future__ import annotations

from enum import Flag, auto

from sglc.ir.core import OPS, Op, Program, walk
from sglc.ir.ops import (
    Call,
    Cond,
    Gen,
    HostCall,
    Join,
    Loop,
    Map,
    Prompt,
    PureCall,
    Select,
    Store,
    Switch,
    Tool,
)
from sglc.ir.pure import PAUSE, PURE, READ_PICTURE
from sglc.ir.rewrite import everywhere
from sglc.ir.values import OPERATIONS

LOG_LEVELS = ("debug", "info", "warning", "error", "critical")  # methods of a logger that a plan calls


class Effect(Flag):
    """One kind of thing that would be noticed if the op were left out, though nothing reads what it gives."""

    NOTHING = 0
    GENERATES = auto()  # a model is asked
    STORES = auto()  # a variable of the run, or its prompt
    ACTS = auto()  # a declared function is called that changes something, in the order of the program
    CALLS = auto()  # one that needs no order
    FAILS = auto()  # the run may end here
    DECIDES = auto()  # which ops run
    LEAVES = auto()  # the program may go on as ordinary Python, raises, or waits for a person


# Of `tool`, `pure_call` and `switch` their fields decide it.
_EFFECTS: dict[type[Op], Effect] = {
    **dict.fromkeys(set(OPS.values()) - {Tool, PureCall, Switch}, Effect.NOTHING),
    Gen: Effect.GENERATES | Effect.STORES,
    Select: Effect.GENERATES | Effect.STORES,
    Join: Effect.STORES,
    Store: Effect.STORES,
    Prompt: Effect.STORES,
    Map: Effect.FAILS | Effect.DECIDES,
    Cond: Effect.DECIDES,
    Loop: Effect.DECIDES,
    HostCall: Effect.LEAVES,
    **{OPS[mnemonic]: Effect.FAILS for mnemonic, known in OPERATIONS.items() if known.fails},
}
assert _EFFECTS.keys().isdisjoint((Tool, PureCall, Switch))


def effects_of(op: Op) -> Effect:
    """What the op itself does; what stands in its blocks and called programs does its own (`everywhere`)."""
    if (known := _EFFECTS.get(type(op))) is not None:
        return known
    match op:
        case Tool(name=name) if name == PAUSE:
            return Effect.ACTS | Effect.LEAVES
        case Tool(order=order):
            return Effect.ACTS if order == "program" else Effect.CALLS
        case PureCall(name=name):
            fails = name == READ_PICTURE or (name in PURE and PURE[name].fails)
            return Effect.FAILS if fails else Effect.NOTHING
        case Switch(default=default):
            return Effect.DECIDES | Effect.FAILS if default is None else Effect.DECIDES
        case _:
            return Effect.NOTHING


def any_effect(op: Op, wanted: Effect, *, calls: bool = True) -> bool:
    """Whether the op, or anything in it (`calls`: in called programs, too), has one of these effects."""
    bits = wanted._value_  # `&` of flags makes a flag
    if not (op.region_fields or (calls and isinstance(op, Call))):
        return bool(effects_of(op)._value_ & bits)
    inside = everywhere((op,)) if calls else walk((op,))
    return any(effects_of(inner)._value_ & bits for inner in inside)


def variable_of(op: Op) -> str | None:
    """The variable of the program that the op stores; what branches and called programs generate is none."""
    match op:
        case Gen() | Select() | Join() if not (op.site.fork or op.site.called):
            return op.site.name
        case Store():
            return op.name
        case _:
            return None


def variables_of(program: Program) -> list[str] | None:
    """The variables that a program may store, in order; None: it may go on as Python, which stores others."""
    found: dict[str, None] = {}
    for op in walk(program.ops):
        if isinstance(op, HostCall) and not op.error:
            return None
        if (name := variable_of(op)) is not None:
            found[name] = None
    return list(found)
