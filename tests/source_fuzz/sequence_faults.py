"""Faults that are planted on purpose in what finds a plan for a call, and in what goes on as Python."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

from sglc.api import plan_tree
from sglc.execution import session
from sglc.execution.outputs import PendingOutput, RunOutputs
from sglc.execution.plan import run
from sglc.execution.served import Served, ToolCall
from sglc.frontend.tracing import reads
from sglc.frontend.tracing.guards import Same
from sglc.frontend.tracing.reads import Read, in_cell, in_function, in_module, of_object
from sglc.ir.core import Site
from sglc.ir.sampling import Sampling

Fault = Callable[[], AbstractContextManager[Any]]

_ANSWER = plan_tree._answer
_NOW = Read.now
_KEPT = reads.kept
_HIT = plan_tree.PlanTree._hit
_CALLED = Served.called
_BEGIN_AGAIN = RunOutputs.begin_again


def _without(fact: Callable[[str], bool]) -> Fault:
    """Some facts about arguments are not asked."""

    def answer(name: str, arguments: Mapping[str, Any]) -> Hashable:
        return "" if fact(name) else _ANSWER(name, arguments)

    return lambda: patch.object(plan_tree, "_answer", answer)


def _unseen(unseen: Callable[[Read], bool]) -> Fault:
    """Some of what is read outside is taken to be as it was."""

    def now(read: Read) -> Hashable:
        return read.found if unseen(read) else _NOW(read)

    return lambda: patch.object(Read, "now", now)


def _by_identity(value: Any, depth: int = 0) -> Hashable:
    return Same(value) if isinstance(value, list | dict | set) else _KEPT(value, depth)


def _by_equality(value: Any, depth: int = 0) -> Hashable:
    return value if isinstance(value, int | float) else _KEPT(value, depth)


def _any_sampling(tree: Any, arguments: Any, sampling: Any, *more: Any) -> Any:
    return _HIT(tree, arguments, Sampling(), *more)


def _call(change: Callable[[ToolCall], ToolCall | None]) -> Fault:
    """What a tool gave before its program goes on as Python is something else."""

    def called(known: Served, *given: Any) -> ToolCall | None:
        made = _CALLED(known, *given)
        return made if made is None else change(made)

    return lambda: patch.object(Served, "called", called)


def _other_sites(outputs: RunOutputs) -> dict[Site, PendingOutput]:
    answers = _BEGIN_AGAIN(outputs)
    return dict(zip(answers, [*list(answers.values())[1:], *list(answers.values())[:1]], strict=True))


FAULTS: Mapping[str, Fault] = {
    "the types of arguments are not looked at": lambda: patch.object(plan_tree, "_kind", lambda value: ""),
    "a length or a truth that was asked for is not asked": _without(
        lambda fact: fact.startswith(("len(", "bool("))
    ),
    "a comparison that was asked for is not asked": _without(lambda fact: fact.startswith("operator.")),
    "no value that was asked for is asked": _without(lambda fact: not fact.startswith("sglc.type(")),
    "leaves are found whatever the sampling": partial(patch.object, plan_tree.PlanTree, "_hit", _any_sampling),
    "globals are not looked at": _unseen(lambda read: read.look is in_module),
    "closures are not looked at": _unseen(lambda read: read.look is in_cell),
    "attributes are not looked at": _unseen(lambda read: read.look is of_object),
    "the code and defaults of helpers are not looked at": _unseen(lambda read: read.look is in_function),
    "containers are known by identity": partial(patch.object, reads, "kept", _by_identity),
    "1 and True are the same": partial(patch.object, reads, "kept", _by_equality),
    "a tool is called again": _call(lambda made: None),
    "a tool gives what another call gave": _call(lambda made: replace(made, value="of another call")),
    "a tool that failed has given nothing": _call(lambda made: replace(made, error=None)),
    "an answer of another generation is served": partial(patch.object, RunOutputs, "begin_again", _other_sites),
    "what was told is told again": partial(
        patch.object, session, "behind", lambda parts, told, text: (parts, [])
    ),
    "no run goes on as Python": partial(patch.object, run.PlanPart, "_goes_on", lambda part: False),
}
