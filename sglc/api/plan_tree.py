"""The plans of a function that runs found worth making, and for which arguments each of them is.

A leaf is a whole trace with the facts that it took for granted: the types of the arguments, the answers that
Python got where it asked for more of them, and everything outside that the trace read. A call whose facts are
those of a leaf runs its plan. The first path of a function is traced at its first call, any other when it
comes the second time; where the last ones that were traced are hardly used, later: to trace one takes as long
as some twenty runs. How many tokens a generation makes is a fact like others until it is another one, and data
from then on. A path that cannot be a plan is a leaf too, which says why.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

from sglc.api.handing_over import why_not_again
from sglc.errors import SglcError
from sglc.execution.lifecycle import Part, Run, RunSetup
from sglc.execution.plan.prepare import Prepared, check_plan_runs
from sglc.execution.plan.raised import is_builtin
from sglc.execution.plan.run import GoOn, plan_run
from sglc.execution.python_effects import EFFECTS
from sglc.execution.served import Served
from sglc.execution.tool_calls import NO_TOOLS, Tools
from sglc.explain.explanation import LeafSeen
from sglc.frontend.language.function import Definition
from sglc.frontend.tracing.guards import Same
from sglc.frontend.tracing.reads import Reads
from sglc.frontend.tracing.tools import tools_of
from sglc.frontend.tracing.trace import Explored, explored
from sglc.ir.core import Program, Type, values_in
from sglc.ir.facts import holds, readable, spell
from sglc.ir.made_often import replaced
from sglc.ir.ops import Guard, HostCall
from sglc.ir.plan.backend import Backend
from sglc.ir.plan.plan import FunctionStep, HostStep, steps_of
from sglc.ir.sampling import Sampling
from sglc.ir.target import Target
from sglc.passes.compile import cached

Outputs = tuple[str, ...] | None  # that are asked for
_MOST_LEAVES = 64
_MOST_MISSES = 256  # whose paths are remembered
_TIMES = 2  # a path comes before it is traced, behind the first one
_NEWEST = 8  # leaves are to have served
_WORTH = 16  # calls together; if they have not, a path has to come as often
_FAILED = "\0failed"  # the answer of a fact that cannot be asked
_OF_PLANS = ("SGLC147", "SGLC148", "SGLC401")  # what only recording refuses, or runs raise as it is
_TYPE = "sglc.type("  # begins a fact that asks for a type


@dataclass(frozen=True, slots=True)
class Ready:
    """A plan that can run on a back end, with the functions that it calls, and what its trace read outside."""

    prepared: Prepared
    tools: Tools
    reads: Reads

    def run(self, setup: RunSetup, arguments: Mapping[str, Any], python: Callable[[Run, Served], Part]) -> Run:
        """A run of it; where it cannot say all, `python` goes on."""
        return plan_run(self.prepared, setup, arguments, self.tools, GoOn(python, self.unlike_before))

    def unlike_before(self) -> bool:
        """Whether Python, from the top, would not find what the plan found: its tools have changed that."""
        return bool(self.reads.handed or self.reads.changed())


@dataclass(eq=False, slots=True)
class Leaf:
    """A path of a function; `why` it is left to Python, if it is, and the error that says so, if one does."""

    sampling: Sampling
    kinds: Mapping[str, Hashable]
    facts: Mapping[str, Hashable]
    reads: Reads
    program: Program | None
    tools: Tools
    counts: frozenset[str]  # facts that are counts of tokens, and could be data
    why: str = ""
    error: SglcError | None = None
    hits: int = 0
    plans: dict[Hashable, Choice] = field(default_factory=dict)
    newest: tuple[Target, Outputs, Choice] | None = None  # the plan that ran last, and for what


@dataclass(frozen=True, slots=True)
class Choice:
    """How a call runs: as a plan, or as Python, and `why`; of what is wrong, the `error`."""

    ready: Ready | None
    why: str = ""
    error: SglcError | None = None


_NOT_AT_ONCE = Choice(None, "it is not there yet")


class PlanTree:
    """The leaves of one function."""

    def __init__(self, definition: Definition) -> None:
        self.leaves: list[Leaf] = []
        self.misses: dict[Hashable, int] = {}
        self.last_miss = ""
        self._newest: deque[Leaf] = deque(maxlen=_NEWEST)
        self._counts_vary = False  # so that they are data from then on, which costs a plan more than a fact
        self._definition = definition
        self._turn = threading.Lock()

    def choose(
        self, arguments: Mapping[str, Any], sampling: Sampling, backend: Backend, outputs: Outputs = None, *,
        now: bool, at_once: bool = False,
    ) -> Choice:  # fmt: skip
        """What a call with these arguments runs.

        Args:
            now: it is to be a plan, even if its path came the first time.
            at_once: only a plan that is there; nothing is traced, and nobody waited for.
        """
        for name, value in arguments.items():
            if type(value) is not str and spell(value) is None:
                return Choice(None, f"`{name}` is an object, and no data")
        if not self._turn.acquire(blocking=not at_once):
            return _NOT_AT_ONCE
        try:
            kinds = {name: "str" if type(value) is str else _kind(value) for name, value in arguments.items()}
            missed: list[tuple[str, Hashable]] = []
            leaf = self._hit(arguments, sampling, kinds, missed)
            if at_once:
                newest = None if leaf is None else _newest(leaf, backend.target, outputs)
                if leaf is None or newest is None:
                    return _NOT_AT_ONCE
                leaf.hits += 1
                return newest
            if leaf is None:
                leaf = self._new(arguments, sampling, kinds, missed, now=now)
            if leaf is None:
                rare = "seldom, as the last ones did," if self._wasted() else "once"
                return Choice(None, f"`{self.last_miss}` is new here, and what comes {rare} is not compiled")
            leaf.hits += 1
            if leaf.program is None:
                return Choice(None, leaf.why, leaf.error)
            return self._for(leaf, leaf.program, outputs, backend)
        finally:
            self._turn.release()

    def is_there(self, arguments: Mapping[str, Any], sampling: Sampling, target: Target) -> bool:
        """Whether `choose` gives a plan that has run on this target, without making anything."""
        if not self._turn.acquire(blocking=False):
            return False
        try:
            leaf = self._hit(arguments, sampling, {name: _kind(value) for name, value in arguments.items()}, [])
            newest = None if leaf is None else _newest(leaf, target, None)
            return newest is not None and newest.ready is not None
        finally:
            self._turn.release()

    def seen(self) -> tuple[LeafSeen, ...]:
        """The leaves for people, the last one that was used first."""
        with self._turn:
            return tuple(
                LeafSeen(
                    tuple([f"{name}: {kind}" for name, kind in leaf.kinds.items() if isinstance(kind, str)])
                    + tuple(
                        [f"{readable(fact)} is {_shown(expected)}" for fact, expected in leaf.facts.items()]
                    ),
                    leaf.hits,
                    leaf.why,
                )
                for leaf in self.leaves
            )

    def _hit(
        self, arguments: Mapping[str, Any], sampling: Sampling, kinds: Mapping[str, Hashable],
        missed: list[tuple[str, Hashable]],
    ) -> Leaf | None:  # fmt: skip
        """The leaf that is for these arguments; what others `missed`."""
        answers: dict[str, Hashable] = {}
        seen: dict[Any, Hashable] = {}
        for place, leaf in enumerate(self.leaves):
            miss = _missed(leaf, kinds, arguments, sampling, answers, seen)
            if not miss:
                if place:
                    self.leaves.insert(0, self.leaves.pop(place))
                return leaf
            missed.append((miss, answers.get(miss, kinds.get(miss))))
        return None

    def _new(
        self, arguments: Mapping[str, Any], sampling: Sampling, kinds: Mapping[str, Hashable],
        missed: Sequence[tuple[str, Hashable]], *, now: bool,
    ) -> Leaf | None:  # fmt: skip
        """A leaf for these arguments, if it is time for one."""
        varied = self._counts_vary
        # Whether a count of tokens is another one than in a leaf.
        self._counts_vary = varied or any(fact in leaf.counts for fact, _ in missed for leaf in self.leaves)
        if missed and not now and varied == self._counts_vary:
            key = frozenset(missed)
            self.last_miss = readable(str(missed[0][0]))
            times = self.misses.pop(key, 0) + 1
            if times < (_WORTH if self._wasted() else _TIMES):
                if len(self.misses) >= _MOST_MISSES:
                    del self.misses[next(iter(self.misses))]
                self.misses[key] = times
                return None
        leaf = _leaf(self._definition, arguments, sampling, kinds, counts_vary=self._counts_vary)
        self._newest.append(leaf)
        self.leaves.insert(0, leaf)
        del self.leaves[_MOST_LEAVES:]
        return leaf

    def _wasted(self) -> bool:
        """Whether the newest leaves were hardly worth it, as where a number is another one in each call."""
        return len(self._newest) == _NEWEST and sum(leaf.hits for leaf in self._newest) < _WORTH

    def _for(self, leaf: Leaf, program: Program, outputs: Outputs, backend: Backend) -> Choice:
        try:
            target = backend.target
        except SglcError as error:  # the run meets it, or does not need it
            return Choice(None, error.message)
        if (newest := _newest(leaf, target, outputs)) is not None:
            return newest
        key = outputs, target.told_by
        choice = leaf.plans.get(key)
        if choice is None:
            asked = program if outputs is None else replaced(program, outputs=outputs)
            choice = leaf.plans[key] = _ready(asked, leaf, backend)
        leaf.newest = target, outputs, choice
        return choice


def _newest(leaf: Leaf, target: Target, outputs: Outputs) -> Choice | None:
    """The plan that ran last, if it is for these."""
    if leaf.newest is None:
        return None
    on, asked, choice = leaf.newest
    return choice if on is target and asked == outputs else None


def _missed(
    leaf: Leaf, kinds: Mapping[str, Hashable], arguments: Mapping[str, Any], sampling: Sampling,
    answers: dict[str, Hashable], seen: dict[Any, Hashable],
) -> str:  # fmt: skip
    """The first fact of a leaf that is another one here; "" if none is. What was asked is in the last two."""
    if leaf.sampling is not sampling and leaf.sampling != sampling:
        return "the sampling defaults"
    if leaf.kinds != kinds:
        return next(name for name in kinds if leaf.kinds.get(name) != kinds[name])
    if other := leaf.reads.changed(seen, whole=leaf.program is not None):
        return other
    for fact, expected in leaf.facts.items():
        if fact not in answers:
            answers[fact] = _answer(fact, arguments)
        if answers[fact] != expected:
            return fact
    return ""


def _kind(value: Any) -> Hashable:
    """What is taken for granted of an argument: the type of data, which is a class and not only its name."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else Same(kind)


def _answer(fact: str, arguments: Mapping[str, Any]) -> Hashable:
    try:
        if fact.startswith(_TYPE):
            return _kind(holds(fact[len(_TYPE) : -1], arguments))
        return spell(holds(fact, arguments)) or _FAILED
    except Exception:
        return _FAILED


def _shown(expected: Hashable) -> object:
    """The answer of a fact for people; a class of the user's is held itself."""
    return getattr(expected.item, "__qualname__", "") if isinstance(expected, Same) else expected


def _leaf(
    definition: Definition, arguments: Mapping[str, Any], sampling: Sampling, kinds: Mapping[str, Hashable],
    *, counts_vary: bool,
) -> Leaf:  # fmt: skip
    guards: dict[str, Guard] = {}
    counts: set[str] = set()
    reads = Reads()
    program, tools, wrong = None, NO_TOOLS, None
    try:
        made = explored(
            replaced(definition, fullgraph=False), sampling, args=arguments, guards=guards, reads=reads,
            counts=None if counts_vary else counts,
        )  # fmt: skip
        why = _why_not(made) or why_not_again(made.program, reads)
        if not why:
            program, tools = made.program, tools_of(made.program)
    except SglcError as error:
        why, wrong = f"it cannot be traced: {_placed(error)}", _kept(error)
    except Exception as error:  # a bug of ours: Python runs what the tracer cannot follow
        why = f"it cannot be traced: `{type(error).__name__}`"
    facts = {fact: _answer(fact, arguments) for fact in guards}
    return Leaf(sampling, kinds, facts, reads, program, tools, frozenset(counts), why, wrong)


def _placed(error: SglcError) -> str:
    return error.message if error.loc is None else f"{error.message} ({error.loc})"


def _kept(error: SglcError, *, certain: bool = True) -> SglcError:
    """An error as it can be kept: without what it went through, which holds arguments."""
    kept = copy(error)
    kept.certain = error.certain and certain and error.code not in _OF_PLANS
    return kept


def _why_not(made: Explored) -> str:
    last = made.program.ops[-1] if made.program.ops else None
    if isinstance(last, HostCall):
        return f"{last.reason or last.error} ({last.loc})"
    if any(value.type is Type.STREAM for value in values_in(made.program.returns)):
        return "it returns a prompt state"
    return ""


def _ready(program: Program, leaf: Leaf, backend: Backend) -> Choice:
    try:
        plan = cached(program, backend.target).plan
    except SglcError as error:
        certain = any(op.loc == error.loc for op in program.ops)
        return Choice(None, _placed(error), _kept(error, certain=certain))
    try:
        prints = any(isinstance(step, FunctionStep) and step.function in EFFECTS for step in steps_of(plan))
        check_plan_runs(plan, backend, leaf.tools, breaks=not prints)
        ends = [step for step in steps_of(plan) if isinstance(step, HostStep)] if prints else []
        if raised := [step for step in ends if not is_builtin(step.error)]:
            return Choice(None, f"it prints, and raises a `{raised[0].error}` ({raised[0].loc})")
    except SglcError as error:
        return Choice(None, _placed(error), _kept(error, certain=False))
    return Choice(Ready(Prepared(plan), leaf.tools, leaf.reads))
