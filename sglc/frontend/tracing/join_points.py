"""Join points: the arms of a branch meet behind it, and what follows is recorded once for all of them.

Multi-shot tracing (`paths`) runs what follows a branch once for each arm: seven questions in a row would be
128 paths. A statement that decides is therefore tried as a block of its own. It becomes one if Python cannot
tell its arms apart behind it: they leave no local variable, container or chat turn different, and do not
return. What the arms still know of the prompt, such as the text that was decided on, what follows must not ask:
where it does, `ArmsDiffer` has the whole program traced path by path.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from functools import partial
from operator import is_
from typing import Any

from sglc.errors import SglcError
from sglc.frontend.tracing.call_frame import CallFrame
from sglc.frontend.tracing.evaluation import reachable
from sglc.frontend.tracing.tracer import Tracer
from sglc.frontend.values.block_exit import Unsettled, VariableKey, is_there
from sglc.frontend.values.graph_breaks import ArmsApart, ArmsDiffer
from sglc.frontend.values.recorded import Generated, Turns
from sglc.frontend.values.symbolic import SymbolicBool
from sglc.ir.core import Value

Rule = Callable[[CallFrame, Any], Any]
MOST_ARMS = 2_000  # that are recorded for one program: where paths part before many branches, each has its own


class _Point:
    """Where everything stood before a statement."""

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer
        self.snapshot = tracer.snapshot()
        self.locals = tuple((frame, dict(frame.values)) for frame in tracer.calling)
        self.marks = _marks(tracer)  # of the states, beside what a snapshot has
        self.ops, self.breaks = len(tracer.recorder.ops), len(tracer.graph_breaks)
        self.changes, self.decided = tracer.changes, frozenset(tracer.decided)
        self.answered = len(tracer.answered)
        self.called_tool, self.unchecked = tracer.called_tool, dict(tracer.unchecked)

    def deciding(self) -> None:
        """The statement is about to decide: it is left, if that can be undone.

        Raises:
            Deciding
        """
        if self.tracer.changes == self.changes:
            raise Deciding(self)

    def restore(self) -> None:
        tracer = self.tracer
        tracer.restore(self.snapshot)
        del tracer.recorder.ops[self.ops :], tracer.graph_breaks[self.breaks :]
        tracer.called_tool, tracer.unchecked = self.called_tool, dict(self.unchecked)
        self.restore_python()

    def restore_python(self) -> None:
        """What a block does not restore of itself."""
        for frame, values in self.locals:
            frame.values.clear()
            frame.values.update(values)
        for (state, *_), marks in zip(self.snapshot.states, self.marks, strict=True):
            state._scopes, state._joined = marks

    def same_to_python(self) -> bool:
        """Whether nothing but the recorded streams and generations has changed."""
        tracer = self.tracer
        return (
            all(_same(frame.values, values) for frame, values in self.locals)
            and _marks(tracer)[: len(self.marks)] == self.marks
            and all(
                (name in old and old[name] is item)
                or (type(item) is Generated and item.parser is None and not item.many)
                for state, *_, old, _ in self.snapshot.states
                for name, item in state._variables.items()
            )
        )

    def has_only_asked(self) -> bool:
        """Whether nothing has happened since but that ops were recorded: these stand before the statement."""
        tracer = self.tracer
        return (
            tracer.changes == self.changes
            and tracer.called_tool == self.called_tool
            and len(tracer.graph_breaks) == self.breaks
            and self.same_to_python()
        )

    def can_repeat(self) -> bool:
        """Whether the statement can be run more than once: an iterator would have moved on."""
        found: dict[int, Any] = {}
        for _, values in self.locals:
            reachable(values.values(), found)
        return not any(hasattr(type(item), "__next__") for item in found.values())


class Deciding(BaseException):
    """A statement is about to decide on what only a run knows."""

    def __init__(self, point: _Point) -> None:
        super().__init__()
        self.point = point


def meeting(ask: Rule, rule: Callable[[CallFrame, Any, Any], Any]) -> Rule:
    """The rule of a statement, so that its arms meet behind it if they can.

    Args:
        ask: evaluates what the statement begins with; `rule` is given that, and does the rest.
    """

    def whole(frame: CallFrame, node: ast.stmt) -> Any:
        return rule(frame, node, ask(frame, node))

    def run(frame: CallFrame, node: ast.stmt) -> Any:
        tracer = frame.tracer
        if not tracer.joins or node in tracer.apart:
            return whole(frame, node)
        point = _Point(tracer)
        points = tracer.frames[-1].points
        points.append(point)
        arm, opened = partial(whole, frame, node), None
        try:
            asked = ask(frame, node)
            if not (point.has_only_asked() and _is_open(tracer, asked)):
                return rule(frame, node, asked)
            arm, opened = partial(rule, frame, node, asked), asked.value
        except Deciding as deciding:
            if deciding.point is not point:
                raise
            point.restore()
        finally:
            points.pop()
        if point.can_repeat() and _as_block(frame, node, arm, point, opened):
            return None
        if node in tracer.joined:
            raise ArmsDiffer  # the runs of other paths have taken it for a block
        tracer.apart.add(node)
        point.restore()
        return whole(frame, node)

    return run


def _is_open(tracer: Tracer, asked: Any) -> bool:
    """Whether a statement that asks this first decides, before anything else."""
    return isinstance(asked, SymbolicBool) and asked.known is None and tracer.known(asked.value) is None


def _as_block(
    frame: CallFrame, node: ast.stmt, arm: Callable[[], Any], point: _Point, opened: Value | None
) -> bool:
    """Record a statement, of which `arm` runs one arm, as a block; whether its arms meet behind it.

    Args:
        opened: what each arm first decides, if that is known to be open.
    """
    tracer = frame.tracer
    frame.node = node
    loc = frame.loc()
    turns: set[tuple[Turns, ...]] = set()
    counts: list[Mapping[Any, int]] = []
    learned = set[Value]()
    questions: list[Any] = []
    read: set[Value] = set()
    stored: dict[VariableKey, int] = {}  # by how many arms

    def run() -> None:
        tracer.arms += 1
        if tracer.arms > MOST_ARMS:
            raise ArmsDiffer
        point.restore_python()
        tracer.opened = opened
        try:
            left = arm()
        except Exception:
            raise ArmsApart from None
        if left is not None or not point.same_to_python():
            raise ArmsApart
        for number, (state, *_, variables, _) in enumerate(point.snapshot.states):
            for name, item in state._variables.items():
                if name not in variables or item is not variables[name]:
                    stored[number, name] = stored.get((number, name), 0) + 1
        turns.add(tuple([entry[0]._stream.turns for entry in point.snapshot.states]))
        counts.append(tracer.recorder.mark().occurrences)
        decided = [value for value in tracer.decided if value not in point.decided]
        learned.update(decided)
        questions.extend([asked for asked, _ in tracer.answered[point.answered :]])
        # What was decided on was read by all that follows; anything else only by this arm.
        if new := tracer.unchecked.keys() - point.unchecked.keys():
            read.update(new - tracer.behind(decided))

    tracer.trying += 1
    try:
        block = tracer.block(run, loc, variables=False)
    except (ArmsApart, SglcError):
        return False
    finally:
        tracer.trying -= 1
    if len(turns) != 1 or block.exit is None:
        return False
    point.restore_python()
    tracer.joined.add(node)
    tracer.forgotten |= learned
    tracer.forgotten_questions += questions
    tracer.read_in_arms = tracer.read_in_arms or bool(read)
    for key in {key for count in counts for key in count}:
        made = [count.get(key, 0) for count in counts]
        if min(made) < max(made):
            tracer.uneven.setdefault(key, max(made))
    tracer.recorder.ops += block.ops
    tracer.unchecked = dict(point.unchecked)
    tracer.go_on(block.exit, variables=False)
    for (number, name), times in stored.items():
        variables = tracer.instance.states[number]._variables
        there = times == len(counts) or (name in variables and is_there(variables[name]))
        variables[name] = Unsettled(name, "arms of a branch store it", loc, there)
    return True


def _marks(tracer: Tracer) -> tuple[Any, ...]:
    return tuple([(state._scopes, state._joined) for state in tracer.instance.states])


def _same(values: dict[str, Any], before: dict[str, Any]) -> bool:
    return values.keys() == before.keys() and all(map(is_, values.values(), map(before.get, values)))
