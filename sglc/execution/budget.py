"""What a run may cost at most: generations begun, and tokens generated.

Calls are exact, in the order of the program: what is beyond the limit does not begin. Tokens are counted when
a generation ends; each of its samples may make one token more than its share of what was left when it began,
and that one shows that the limit is passed.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sglc.errors import RunError, SglcError, UsageError
from sglc.frontend.locate import here
from sglc.ir.core import Site
from sglc.ir.plan.segment import GenNode, Node, Segment, SelectNode

_PASSED = "SGLC408"


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of one run; None: no limit."""

    calls: int | None = None
    tokens: int | None = None


def budget_of(max_calls: Any, max_tokens: Any) -> Budget | None:
    """The budget that `run(max_calls=..., max_tokens=...)` gives; None without any.

    Raises:
        UsageError: SGLC026, something else than a number from 1.
    """
    for name, limit in (("max_calls", max_calls), ("max_tokens", max_tokens)):
        if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
            raise UsageError("SGLC026", f"`{name}` is `{limit!r}`: a budget is a number from 1", here())
    return None if max_calls is max_tokens is None else Budget(max_calls, max_tokens)


class BudgetTracker:
    """What a run with a budget has begun and made so far, the runs in it too: what these take is taken from
    `outer`, that of a run around, as well.
    """

    __slots__ = ("_begun", "_budget", "_lock", "_made", "_outer", "passed")

    def __init__(self, budget: Budget, outer: BudgetTracker | None = None) -> None:
        self._budget = budget
        self._outer = outer
        self._begun = 0  # generations
        self._made = 0  # tokens, of generations that have ended
        self._lock = threading.Lock()
        self.passed: RunError | None = None  # why it is used up

    def shortened(self, segment: Segment, asked: Sequence[GenNode | SelectNode]) -> Segment:
        """`segment` with the lengths that are left.

        Raises:
            RunError: SGLC408, naming the first generation that the budget does not hold.
        """
        limit = self._budget.tokens
        if limit is not None and asked:
            left = limit - self._made
            if left <= 0:
                raise self._end(asked[0], f"{limit} generated tokens")
            segment = Segment(tuple([_shortened(node, left) for node in segment.nodes]))
        return segment if self._outer is None else self._outer.shortened(segment, asked)

    @property
    def calls_left(self) -> int | None:
        """How many generations may still begin; None: as many as there are."""
        calls, around = self._budget.calls, None if self._outer is None else self._outer.calls_left
        own = None if calls is None else max(calls - self._begun, 0)
        return min((left for left in (own, around) if left is not None), default=None)

    def begin(self, asked: Sequence[GenNode | SelectNode]) -> Mapping[Site, RunError]:
        """These begin, but for those that are given back, with the reason."""
        with self._lock:  # runs in threads of their own are counted one after the other
            before = self._begun
            self._begun += len(asked)
        refused = {} if self._outer is None else dict(self._outer.begin(asked))
        calls = self._budget.calls
        for node in () if calls is None else asked[max(calls - before, 0) :]:
            refused[node.site] = self._end(node, f"{calls} calls")
        return refused

    def spend(self, node: GenNode | SelectNode, tokens: int) -> RunError | None:
        """A generation has ended that made so many; gives why the run ends with it, if it passes the budget."""
        with self._lock:
            self._made += tokens
        around = None if self._outer is None else self._outer.spend(node, tokens)
        limit = self._budget.tokens
        if limit is None or self._made <= limit:
            return around
        return self._end(node, f"{limit} generated tokens")

    def _end(self, node: GenNode | SelectNode, limit: str) -> RunError:
        error = RunError(
            _PASSED, f"`{node.site.name}` passes the run's budget of {limit}", node.loc,
            note="what was computed before is kept", hint="give the run a larger `max_calls` or `max_tokens`",
        )  # fmt: skip
        self.passed = self.passed or error
        return error


def _shortened(node: Node, left: int) -> Node:
    if not isinstance(node, GenNode):
        return node
    sampling = node.sampling
    most = left // sampling.n + 1
    if max(sampling.max_tokens, node.ahead) <= most:
        return node
    length = min(sampling.max_tokens, most)
    shorter = replace(sampling, max_tokens=length, min_tokens=min(sampling.min_tokens, length))
    return replace(node, sampling=shorter, ahead=min(node.ahead, most), unify=False)  # nobody else is cut there


def is_budget(error: BaseException | None) -> bool:
    """Whether a budget was passed, which no program can catch."""
    return isinstance(error, SglcError) and error.code == _PASSED
