"""Arms of a branch brought together: the tail that all of them share goes behind the op that holds them.

Ops are equal up to the values that they read: values made inside the tail must be each other's
counterparts, and where arms hand different values to the tail, the op gives that value as a result. A
text that is a literal in some arm stays in the arms, unless a generation stands before the place that
reads it: literals are worth more known than shared.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any

from sglc.errors import Loc, TraceError
from sglc.frontend.tracing.open_turns import StreamTurns
from sglc.frontend.values.block_exit import (
    BlockExit,
    Opaque,
    Stored,
    TracedBlock,
    Unsettled,
    VariableKey,
    is_there,
)
from sglc.ir.core import OPS, Op, Region, Tree, Type, Value, walk
from sglc.ir.effects import Effect, any_effect
from sglc.ir.made_often import replaced
from sglc.ir.ops import (
    Append,
    Call,
    Concat,
    Eq,
    Format,
    Gen,
    HostCall,
    In,
    Lower,
    Pack,
    PureCall,
    Select,
    Store,
    Strip,
    Tool,
)

# Ops whose literal texts may become values.
_TEXTS = (Append, Call, Concat, Eq, Format, In, Lower, Pack, PureCall, Store, Strip, Tool)
_HOLDING = (Value, tuple, Mapping)  # trees that hold values, or may
_BY_FIELD = ("Value | str", "tuple[Value | str, ...]", "Tree", "tuple[Tree, ...]", "Mapping[str, Tree]")


@dataclass(frozen=True, slots=True)
class Merged:
    """The arms as regions of one op, its results, and what follows it."""

    regions: tuple[Region, ...]
    results: tuple[Value, ...]
    tail: tuple[Op, ...]
    exit: BlockExit | None


def merge(
    arms: Sequence[TracedBlock], fresh: Callable[[Type], Value], streams: StreamTurns, loc: Loc, *, tails: bool,
    asked: tuple[Value, Sequence[str]] | None = None, guarding: bool = False,
) -> Merged:  # fmt: skip
    """One op's arms, with `tails` those ops behind it with which all arms end.

    Args:
        fresh: makes values with ids that nothing uses.
        streams: the chat turns of every stream that the arms read or make.
        loc: the branch, for errors.
        asked: the text that the branch asks, and what it is in each arm.
        guarding: the branch asks whether what an arm calls next fails.

    Raises:
        TraceError: SGLC148, a stream stands in different turns behind the arms.
    """
    back = [arm for arm in arms if arm.exit is not None]
    if not back and tails and _same_graph_break(arms):
        back = list(arms)
    if not back:
        return Merged(tuple(Region((), arm.ops) for arm in arms), (), (), None)
    start = _first_shared(back, guarding) if tails else 0
    none_back = all(arm.exit is None for arm in arms)
    known: dict[tuple[Any, ...], Value] = {}
    if asked is not None and len(back) > 1:
        pairs = zip(arms, asked[1], strict=True)
        known[tuple(case for arm, case in pairs if none_back or arm.exit is not None)] = asked[0]
    while True:
        joint = _Joint(back, fresh, streams, loc, known)
        try:
            ops, block_exit = joint.run(start)
        except _Differ as differ:
            start = differ.keep
            continue
        dynamic = _dynamic_head(ops, joint.literal)
        if not dynamic:
            break
        start -= dynamic
    shared = iter(joint.region(number, start) for number in range(len(back)))
    regions = tuple(next(shared) if none_back or arm.exit else Region((), _left(arm.ops)) for arm in arms)
    return Merged(regions, tuple(joint.holes.values()), ops, block_exit)


def _left(ops: tuple[Op, ...]) -> tuple[Op, ...]:
    """The ops of an arm that does not come back, ending so that the arm says it.

    Where that is a branch of which no arm comes back, its first graph break stands behind it once more. It only
    marks the end, so it reads nothing: what it read may be the arm's own.
    """
    last = ops[-1]
    if isinstance(last, HostCall):
        return ops
    first = next(op for op in walk((last,)) if isinstance(op, HostCall))
    return (*ops, replaced(first, reads=()))


class _Differ(Exception):
    """The arms cannot share this much: at most the last `keep` ops."""

    def __init__(self, keep: int = 0) -> None:
        super().__init__()
        self.keep = keep


@cache
def _parts(mnemonic: str) -> tuple[tuple[str, bool], ...]:
    """The fields of an op, and of each whether its literal texts may become values."""
    kind = OPS[mnemonic]
    texts = issubclass(kind, _TEXTS)
    kinds = {part.name: part.type for part in fields(kind)}
    return tuple((name, texts and kinds[name] in _BY_FIELD) for name in kind.own_fields)


def _same_graph_break(arms: Sequence[TracedBlock]) -> bool:
    last = [arm.ops[-1] for arm in arms if arm.ops]
    return len(last) == len(arms) and all(
        isinstance(op, HostCall)
        and (op.reason, op.error, op.loc) == (last[0].reason, last[0].error, last[0].loc)  # type: ignore[attr-defined]
        for op in last
    )


def _first_shared(arms: Sequence[TracedBlock], guarding: bool) -> int:
    """How many ops at the end look alike: no more than that can be shared."""
    if len(arms) == 1:
        ops = arms[0].ops
        failing = (number for number, op in enumerate(ops, 1) if any_effect(op, Effect.FAILS))
        return len(ops) - (next(failing, 0) if guarding else 0)
    count = 0
    for ops in zip(*(reversed(arm.ops) for arm in arms), strict=False):
        if len({_shape(op) for op in ops}) > 1:
            break
        count += 1
    return count


# What is told with its place when it is made, or when it fails: one op has one.
_PLACED = (Gen, Select, Tool, PureCall, Call)


def _shape(op: Op) -> tuple[Any, ...]:
    place = op.loc if isinstance(op, _PLACED) else None
    return (op.mnemonic, getattr(op, "site", None), tuple(value.type for value in op.results), place)


def _dynamic_head(ops: Sequence[Op], literal: Sequence[bool]) -> int:
    """How many ops to leave in the arms, so that no literal becomes a value before the first generation."""
    leave = 0
    for number, (op, dynamic) in enumerate(zip(ops, literal, strict=True)):
        if not op.pure:
            break
        if dynamic:
            leave = number + 1
    return leave


@dataclass(slots=True)
class _Joint:
    """One attempt. `holes` are the results: what each arm supplies, and the value that stands for it."""

    arms: Sequence[TracedBlock]
    fresh: Callable[[Type], Value]
    streams: StreamTurns
    loc: Loc
    known: Mapping[tuple[Any, ...], Value]  # what needs no result
    holes: dict[tuple[Any, ...], Value] = field(default_factory=dict)
    literal: list[bool] = field(default_factory=list)  # of the tail's ops, whether a literal became a value
    _packed: dict[Value, tuple[Tree, ...]] = field(default_factory=dict)
    _bound: list[dict[Value, Value]] = field(default_factory=list)  # per arm: its value -> the merged one
    _own: frozenset[Value] = frozenset()  # what a single arm makes outside the tail

    def run(self, count: int) -> tuple[tuple[Op, ...], BlockExit | None]:
        """The last `count` ops of all arms as one, and their common exit."""
        self._bound = [{} for _ in self.arms]
        if len(self.arms) == 1:
            ops = self.arms[0].ops
            self._own = frozenset(value for op in ops[: len(ops) - count] for value in op.results)
        tails = [arm.ops[len(arm.ops) - count :] for arm in self.arms]
        made: list[Op] = []
        for number, ops in enumerate(zip(*tails, strict=True)):
            self.literal.append(False)
            try:
                made.append(self.op(ops))
            except _Differ:
                raise _Differ(count - number - 1) from None
        try:
            return tuple(made), self.exit()
        except _Differ:
            assert count, "ends without a shared tail always merge"
            raise _Differ(0) from None

    # -- ops ---------------------------------------------------------------------------------------

    def op(self, ops: tuple[Op, ...]) -> Op:
        first = ops[0]
        if any(type(op) is not type(first) or len(op.results) != len(first.results) for op in ops):
            raise _Differ
        if isinstance(first, HostCall) and any(op.loc != first.loc for op in ops):
            raise _Differ
        changed: dict[str, Any] = {}
        for name, texts in _parts(first.mnemonic):
            changed[name] = self.item(tuple([getattr(op, name) for op in ops]), texts)
        results = self.define([op.results for op in ops])
        merged = replaced(first, **changed, results=results)
        self.streams.add(merged)
        return merged

    def define(self, results: Sequence[tuple[Value, ...]]) -> tuple[Value, ...]:
        made = []
        for values in zip(*results, strict=True):
            if any(value.type is not values[0].type for value in values):
                raise _Differ
            value = self.fresh(values[0].type)
            for bound, own in zip(self._bound, values, strict=True):
                bound[own] = value
            made.append(value)
        return tuple(made)

    def item(self, items: tuple[Any, ...], texts: bool) -> Any:
        first = items[0]
        if all(isinstance(item, Value) for item in items):
            return self.value(items)
        if texts and all(_is_text(item) for item in items):
            return first if _equal(items) else self.text(items)
        if any(type(item) is not type(first) for item in items):
            raise _Differ
        match first:
            case tuple():
                if any(len(item) != len(first) for item in items):
                    raise _Differ
                return tuple(self.item(parts, texts) for parts in zip(*items, strict=True))
            case Mapping():
                if any(list(item) != list(first) for item in items):
                    raise _Differ
                return {key: self.item(tuple(item[key] for item in items), texts) for key in first}
            case Region():
                return self.inner(items)
            case _ if _equal(items):
                return first
            case _:
                raise _Differ

    def inner(self, regions: tuple[Region, ...]) -> Region:
        if len({(len(region.params), len(region.ops), len(region.results)) for region in regions}) > 1:
            raise _Differ
        params = self.define([region.params for region in regions])
        ops = tuple(self.op(ops) for ops in zip(*(region.ops for region in regions), strict=True))
        results = tuple(self.value(values) for values in zip(*(r.results for r in regions), strict=True))
        return replaced(regions[0], params=params, ops=ops, results=results)

    # -- values ------------------------------------------------------------------------------------

    def value(self, values: tuple[Value, ...], *, go_on: bool = True) -> Value:
        """What stands for a value of each arm; of streams that `go_on` the turns must be the same."""
        inside = [bound.get(value) for bound, value in zip(self._bound, values, strict=True)]
        first = inside[0]
        if first is not None and all(value == first for value in inside):
            return first
        if any(value is not None for value in inside):
            raise _Differ
        if all(value == values[0] for value in values) and values[0] not in self._own:
            return values[0]
        if any(value.type is not values[0].type for value in values):
            raise _Differ
        if go_on and values[0].type is Type.STREAM and not self.streams.alike(values):
            raise _Differ
        return self.hole(values, values[0].type)

    def text(self, items: tuple[Value | str, ...]) -> Value:
        if any(
            isinstance(item, Value) and item in bound for item, bound in zip(items, self._bound, strict=True)
        ):
            raise _Differ
        if self.literal:
            self.literal[-1] = True
        if items in self.known:
            return self.known[items]
        return self.hole(items, Type.TEXT)

    def hole(self, items: tuple[Any, ...], kind: Type) -> Value:
        if items not in self.holes:
            self.holes[items] = self.fresh(kind)
            if kind is Type.STREAM:
                self.streams.same(self.holes[items], items[0])
        return self.holes[items]

    # -- exits -------------------------------------------------------------------------------------

    def exit(self) -> BlockExit | None:
        exits = [arm.exit for arm in self.arms if arm.exit is not None]
        if not exits:
            return None
        if any(block_exit.opens != exits[0].opens for block_exit in exits):
            raise TraceError(
                "SGLC148", "the arms of a branch end in different chat turns", self.loc,
                note=" and ".join(dict.fromkeys(_turns(block_exit.opens) for block_exit in exits)),
                hint="end the turns that an arm begins, or begin the same in each",
            )  # fmt: skip
        tree = self.tree(tuple(block_exit.tree for block_exit in exits))
        # The turns of a state behind the arms may differ, only the open one may not.
        rows = zip(*(block_exit.streams for block_exit in exits), strict=True)
        streams = tuple(self.value(values, go_on=False) for values in rows)
        known = [block_exit.variables for block_exit in exits]
        keys = dict.fromkeys(key for variables in known for key in variables)
        stored = {key: self.stored(key, [variables.get(key) for variables in known]) for key in keys}
        joined = tuple(map(any, zip(*(block_exit.joined for block_exit in exits), strict=True)))
        return BlockExit(tree, streams, exits[0].opens, stored, joined)

    def stored(self, key: VariableKey, variables: Sequence[Stored | None]) -> Stored:
        there = [variable for variable in variables if variable is not None]
        if len(there) < len(variables):
            reason = "some arms of a branch store it, and others do not"
            return Stored(Unsettled(key[1], reason, self.loc))
        first = there[0]
        leaves = [variable.leaf for variable in there]
        if all(v.kept and v.item is first.item for v in there) and not self.inside(first.leaf):
            return first  # it was there before the branch
        unsettled = next((leaf for leaf in leaves if isinstance(leaf, Unsettled)), None)
        if unsettled is not None:
            return Stored(replaced(unsettled, there=all(map(is_there, leaves))))
        if any(isinstance(leaf, Opaque) for leaf in leaves):
            return Stored(
                Unsettled(key[1], "the arms of a branch store different objects", self.loc, there=True)
            )
        trees: tuple[Any, ...] = tuple(leaves)
        return Stored(self.tree(trees))

    def inside(self, leaf: object) -> bool:
        """Whether a leaf of the first arm holds a value that is made in the arm."""
        held = leaf.values if isinstance(leaf, Opaque) else leaf
        return _reads(held, self._bound[0]) or _reads(held, self._own)

    def tree(self, trees: tuple[Tree, ...]) -> Tree:
        """Plain data with values in it; what differs in more than a text or value is packed as JSON."""
        if _equal(trees) and not isinstance(trees[0], _HOLDING):
            return trees[0]
        alike: Any = trees
        if all(isinstance(tree, Value) for tree in trees):
            if all(value.type is alike[0].type for value in alike):
                return self.value(alike)
        elif all(_is_text(tree) for tree in trees):
            return self.text(alike)
        elif all(isinstance(tree, tuple) and len(tree) == len(alike[0]) for tree in trees):
            return tuple(self.tree(parts) for parts in zip(*alike, strict=True))
        elif all(isinstance(tree, Mapping) and list(tree) == list(alike[0]) for tree in trees):
            return {key: self.tree(tuple(each[key] for each in alike)) for key in alike[0]}
        if any(_reads(tree, bound) for tree, bound in zip(trees, self._bound, strict=True)):
            raise _Differ
        made = self.fresh(Type.JSON)
        self._packed[made] = trees
        self.holes[made,] = made
        return made

    # -- regions -----------------------------------------------------------------------------------

    def region(self, number: int, count: int) -> Region:
        """An arm without its last `count` ops, and with what it supplies to the tail."""
        arm = self.arms[number]
        ops = list(arm.ops[: len(arm.ops) - count])
        results: list[Value] = []
        for items, hole in self.holes.items():
            supply: Any = self._packed[hole][number] if hole in self._packed else items[number]
            if hole in self._packed and not (isinstance(supply, Value) and supply.type is Type.JSON):
                made = self.fresh(Type.JSON)
                ops.append(Pack(supply, results=(made,), loc=self.loc))
            elif isinstance(supply, str):
                made = self.fresh(Type.TEXT)
                ops.append(Format((supply,), results=(made,), loc=self.loc))
            else:
                made = supply
            results.append(made)
        return Region((), tuple(ops), tuple(results))


def _turns(opens: tuple[str, ...]) -> str:
    role = next((role for role in opens if role), "")
    return f"a turn of `{role}` is open behind one" if role else "no turn is open behind one"


def _is_text(item: object) -> bool:
    return isinstance(item, str) or (isinstance(item, Value) and item.type is Type.TEXT)


def _equal(items: Sequence[object]) -> bool:
    """Whether they are the same to Python: 0.0 is not -0.0, and True not 1."""
    first = items[0]
    alike = all(type(item) is type(first) and item == first for item in items)
    return alike and (type(first) is not float or len(set(map(str, items))) == 1)


def _reads(tree: object, bound: Container[Value]) -> bool:
    match tree:
        case Value():
            return tree in bound
        case tuple():
            return any(_reads(part, bound) for part in tree)
        case Mapping():
            return any(_reads(part, bound) for part in tree.values())
        case _:
            return False
