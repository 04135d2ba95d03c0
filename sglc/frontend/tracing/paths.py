"""Multi-shot tracing: a body is run again for every decision it could have made, and the runs become one.

A decision is what a value of a finite domain is on one path. Each run is given the decisions that it
repeats, and makes new ones by the first case; what it did up to the last repeated one must be what the
run before did. The paths are a tree, whose inner nodes become `switch` and `cond`. What a path repeats is
recorded again: a loop without an end would take the square of its length, so that has a limit, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from sglc.errors import Loc, SglcError, TraceError
from sglc.frontend.tracing.merge_arms import Merged, merge
from sglc.frontend.tracing.open_turns import StreamTurns
from sglc.frontend.values.block_exit import BlockExit, Opaque, Stored, TracedBlock, Unsettled
from sglc.frontend.values.graph_breaks import PATHS, RAISED, GraphBreak
from sglc.frontend.values.symbolic import Symbolic, SymbolicText
from sglc.ir.core import NOWHERE, Op, Type, Value, definitions, regions, renamed, substitute, values_in
from sglc.ir.depth import MAX_DEPTH
from sglc.ir.made_often import replaced
from sglc.ir.ops import Call, Cond, HostCall, PureCall, Switch

MOST_PATHS = 64
MOST_REPEATED = 64  # ops behind the first decision that paths record again, in the mean of all there may be
_DEEPEST = MAX_DEPTH - 5  # decisions on one path, in case that none of their arms meet again


class PathEnded(BaseException):
    """All that is left of this path is in ops that do not come back. Not an `Exception`, like `GraphBreak`."""


@dataclass(frozen=True, slots=True)
class BranchDecision:
    """On this path `value` is number `chosen` of `cases`; of a truth value these are () for true and false."""

    at: int  # ops of the block before it
    value: Value
    cases: tuple[str, ...]
    chosen: int
    loc: Loc

    @property
    def count(self) -> int:
        return len(self.cases) or 2

    @property
    def outcome(self) -> str | bool:
        return self.cases[self.chosen] if self.cases else self.chosen == 0


class JoinPoint(Protocol):
    """Where the arms of a statement may meet: see `join_points`."""

    def deciding(self) -> None:
        """The statement is about to decide."""


@dataclass(slots=True)
class Frame:
    """A block while one run of it is recorded: the decisions to repeat, those made, and how many may be."""

    repeat: tuple[int, ...]
    room: int  # further paths that decisions may open
    work: int  # ops that these may record again
    depth: int  # decisions around the block
    ops: list[Op] = field(default_factory=list)
    decisions: list[BranchDecision] = field(default_factory=list)
    given: list[tuple[Value, Value]] = field(default_factory=list)  # streams that it gets: (own, outer)
    points: list[JoinPoint] = field(default_factory=list)  # of statements that run, innermost last
    made: dict[int, Op] = field(default_factory=dict)  # who made what, by its id, as far as it was asked for
    size: int = 0  # of the ops from the first decision to the `sized`th, with those that they hold
    sized: int = 0

    def decide(self, value: Value, cases: tuple[str, ...], loc: Loc) -> BranchDecision:
        """The next decision on this path.

        Raises:
            GraphBreak: it would open too many paths.
        """
        number, again = len(self.decisions), self._size()
        chosen = self.repeat[number] if number < len(self.repeat) else 0
        made = BranchDecision(len(self.ops), value, cases, chosen, loc)
        if number >= len(self.repeat):
            more = made.count - 1
            if self.room < more or self.work < again * more or self.depth + number >= _DEEPEST:
                raise GraphBreak("there are too many paths to record each of them", loc, PATHS)
            self.room -= more
            self.work -= again * more
        elif chosen >= made.count:
            raise differs(loc)
        self.decisions.append(made)
        return made

    def _size(self) -> int:
        """How many ops there are from the first decision on, those of called programs too."""
        if self.decisions:
            self.size += sum(map(_size_of, self.ops[self.sized :]))
        self.sized = len(self.ops)
        return self.size


def _size_of(op: Op) -> int:
    inner = op.program.ops if isinstance(op, Call) else [each for region in regions(op) for each in region.ops]
    return 1 + sum(map(_size_of, inner))


@dataclass(frozen=True, slots=True)
class Path:
    """One finished run."""

    frame: Frame
    exit: BlockExit | None

    @property
    def chosen(self) -> tuple[int, ...]:
        return tuple(decision.chosen for decision in self.frame.decisions)


def explore(
    run: Callable[[Frame], BlockExit | None], fresh: Callable[[Type], Value],
    streams: Callable[[], StreamTurns], loc: Loc, *, most_paths: int = MOST_PATHS, depth: int = 0,
) -> TracedBlock:  # fmt: skip
    """Run a block on every path, and bring the paths together.

    Args:
        run: records the block on one path, from the state before it; None where it does not come back.
        fresh: makes values with ids that no run uses; asked only when all runs are over.
        streams: the turns of the streams from before the block; asked for if there are several paths.
        depth: decisions around the block.

    Raises:
        TraceError: SGLC147, the body did something else when it was repeated.
    """
    paths: dict[tuple[int, ...], Path] = {}
    parents: list[tuple[tuple[int, ...], Path | None]] = [((), None)]
    open_paths, work = 1, most_paths * MOST_REPEATED
    while parents:
        repeat, parent = parents.pop()
        frame = Frame(repeat, most_paths - open_paths, work, depth)
        path = Path(frame, run(frame))
        open_paths, work = most_paths - frame.room, frame.work
        if parent is not None:
            _check_repeated(parent.frame, frame, loc)
        paths[repeat] = path
        for number in range(len(frame.decisions) - 1, len(repeat) - 1, -1):
            before = path.chosen[:number]
            for case in range(frame.decisions[number].count - 1, 0, -1):
                parents.append(((*before, case), path))
    first = paths[()]
    if not first.frame.decisions:
        return TracedBlock(tuple(first.frame.ops), first.exit)
    variables = any(path.exit is not None and path.exit.variables for path in paths.values())
    return _Tree(paths, fresh, streams(), variables).node((), first, {})


def differs(loc: Loc) -> TraceError:
    """A body that is not the same twice."""
    return TraceError(
        "SGLC147", "the program does something else when it is recorded again", loc,
        note="every arm of a branch is recorded by running the body once more, with equal arguments",
        hint="keep what changes between two runs (counters, the time, random numbers) out of the program",
    )  # fmt: skip


def _check_repeated(before: Frame, now: Frame, loc: Loc) -> None:
    last = len(now.repeat) - 1
    if len(now.decisions) <= last:
        raise differs(loc)
    old, new = before.decisions[: last + 1], now.decisions[: last + 1]
    for one, other in zip(old, new, strict=True):
        if (one.at, one.value, one.cases) != (other.at, other.value, other.cases):
            raise differs(other.loc)
    at = old[last].at
    for earlier, later in zip(before.ops[:at], now.ops[:at], strict=True):
        if earlier != later:
            raise differs(later.loc)


@dataclass(slots=True)
class _Tree:
    """The paths as blocks in blocks, innermost first; every value gets an id of its own.

    The first path keeps its ids: all others have used the same ones. `paths` are by the decisions that they
    repeated: further ones are the first case. `variables`: some end with some, which may hold values of theirs.
    """

    paths: Mapping[tuple[int, ...], Path]
    fresh: Callable[[Type], Value]
    streams: StreamTurns
    variables: bool

    def node(self, before: tuple[int, ...], path: Path, rename: Mapping[Value, Value]) -> TracedBlock:
        """What follows the decisions `before` on a path, with the values that were renamed so far."""
        decisions = path.frame.decisions
        start = decisions[len(before) - 1].at if before else 0
        stop = decisions[len(before)].at if len(decisions) > len(before) else len(path.frame.ops)
        made = path.frame.ops[start:stop]
        if path is self.paths[()]:
            ops = tuple(made)
            own = {**rename, **{value: value for value in definitions(made)}} if self.variables else rename
        else:
            own = {**rename, **{value: self.fresh(value.type) for value in definitions(made)}}
            ops = tuple([renamed(op, own) for op in made])
        for op in ops:
            self.streams.add(op)
        if len(decisions) == len(before):
            return TracedBlock(ops, _renamed_exit(path.exit, own))
        decision = decisions[len(before)]
        others = [(*before, case) for case in range(1, decision.count)]
        arms = [self.node((*before, 0), path, own), *[self.node(arm, self.paths[arm], own) for arm in others]]
        asked = own.get(decision.value, decision.value)
        merged = merge(
            arms, self.fresh, self.streams, decision.loc, tails=True,
            asked=(asked, decision.cases) if decision.cases else None,
            guarding=bool(made) and isinstance(made[-1], PureCall) and made[-1].name == "sglc.raises",
        )  # fmt: skip
        branch = _branch(decision, asked, merged)
        return TracedBlock((*ops, branch, *merged.tail), merged.exit)


def _branch(decision: BranchDecision, asked: Value, merged: Merged) -> Op:
    if not decision.cases:
        then, orelse = merged.regions
        return Cond(asked, then, orelse, results=merged.results, loc=decision.loc)
    return Switch(asked, decision.cases, merged.regions, results=merged.results, loc=decision.loc)


def _renamed_exit(block_exit: BlockExit | None, rename: Mapping[Value, Value]) -> BlockExit | None:
    if block_exit is None or not rename:
        return block_exit
    variables = {key: _renamed_variable(stored, rename) for key, stored in block_exit.variables.items()}
    tree, streams = substitute(block_exit.tree, rename), substitute(block_exit.streams, rename)
    return replaced(block_exit, tree=tree, streams=streams, variables=variables)


def _renamed_variable(stored: Stored, rename: Mapping[Value, Value]) -> Stored:
    leaf: Any = stored.leaf
    if rename.keys().isdisjoint(leaf.values if isinstance(leaf, Opaque) else values_in(leaf)):
        return stored
    # The object holds values of this path alone, so behind the branch it is not valid any more.
    if isinstance(leaf, Opaque):
        return Stored(Unsettled("", "it belongs to one arm of a branch", NOWHERE, there=True))
    return Stored(substitute(leaf, rename))


def raise_at(frame: Frame, error: Exception, loc: Loc, text_of: Callable[[SymbolicText], Value | str]) -> None:
    """An exception of the user's on a path of several: the run raises it, if it comes there.

    Raises:
        GraphBreak: its message is made of more than a text.
        SglcError: the program misuses the language.
    """
    if isinstance(error, SglcError):
        error.certain = False
        raise error
    if isinstance(error, Symbolic):
        raise GraphBreak("the class of an error that is raised shows when the program runs", loc, RAISED)
    name = type(error).__name__
    (message,) = error.args if len(error.args) == 1 else (None,)
    if isinstance(message, SymbolicText):
        made = text_of(message)
        if isinstance(made, Value):
            frame.ops.append(HostCall("", (made,), name, loc=loc))
            return
    elif any(isinstance(arg, Symbolic) for arg in error.args):
        raise GraphBreak(f"`{name}` is raised here with more than a text", loc, RAISED)
    frame.ops.append(HostCall(str(error), (), name, loc=loc))
