"""What single decisions become, and at which Python may take over."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sglc.ir.core import Op, Program, Region, Value
from sglc.ir.effects import Effect, any_effect
from sglc.ir.ops import (
    Call,
    Cond,
    HostCall,
    Loop,
    Map,
    PureCall,
    Switch,
    Tool,
    arms_of,
)
from sglc.ir.plan.plan import (
    CallStep,
    CondStep,
    FunctionStep,
    HostStep,
    LoopStep,
    MapStep,
    Step,
    SwitchStep,
    ValueStep,
)
from sglc.ir.plan.segment import Held, Slot
from sglc.ir.values import OPERATIONS
from sglc.passes.lowering.segments import LoweringScope


def decision(
    op: Op,
    scope: LoweringScope,
    region: Callable[[LoweringScope, Region], int],
    called: Callable[[Program], int],
) -> Step:
    """The step of an op that is no part of a segment.

    Args:
        region: lowers a block of the same program; gives its number. `called` does so with another program.
    """
    tree, gives = scope.tree, tuple(scope.name(value) for value in op.results)
    match op:
        case Tool() | PureCall():
            named = {key: tree(item) for key, item in op.named.items()}
            effects, order = isinstance(op, Tool), op.order if isinstance(op, Tool) else "overlap"
            args = tuple(map(tree, op.args))
            return FunctionStep(_only(gives), op.name, args, named, op.gives, effects, order, op.loc)
        case Cond():
            then, orelse = region(scope, op.then), region(scope, op.orelse)
            return CondStep(tree(op.pred), then, orelse, gives, op.loc)
        case Switch():
            arms = tuple(region(scope, arm) for arm in arms_of(op))
            return SwitchStep(tree(op.value), op.cases, arms, gives, op.loc)
        case Loop():
            init = tuple(map(tree, op.init))
            return LoopStep(init, op.max_iters, region(scope, op.body), gives, op.loc)
        case Map():
            return MapStep(tree(op.items), region(scope, op.body), gives, op.loc)
        case Call():
            number = called(op.program)
            return CallStep(op.site, tuple(map(tree, op.args)), number, gives, op.loc)
        case HostCall():
            return HostStep(op.reason, op.loc, tuple(map(tree, op.reads)), op.error)
        case _:
            fields = [getattr(op, name) for name in op.own_fields]
            items = fields if OPERATIONS[op.mnemonic].operands else fields[0]
            return ValueStep(_only(gives), op.mnemonic, tuple(map(tree, items)), op.loc)


def put_together(value: Value, scope: LoweringScope, reader: Op) -> Step:
    """The step that makes one text of several parts, for `reader`, whose node takes only a whole one."""
    name = scope.name(value)
    assert isinstance(name, Slot)
    scope.whole[value] = name
    parts = tuple(scope.tree(part) if isinstance(part, Value) else part for part in scope.texts[value])
    return ValueStep(name.name, "format", parts, reader.loc)


def may_hand_over(op: Op) -> bool:
    """Whether ordinary Python may take over at the op."""
    return any_effect(op, Effect.LEAVES, calls=False)


def _only(gives: Sequence[Slot | Held]) -> str:
    (only,) = gives
    assert only.name is not None
    return only.name
