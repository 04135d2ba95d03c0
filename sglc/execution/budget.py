"""What a run may cost at most: generations begun, and tokens generated.

Calls are exact, in the order of the program: what is beyond the limit does not begin. Tokens are counted when
a generation ends; each of its samples may make one token more than its share of what was left when it began,
and that one shows that the limit is passed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sglc.errors import RunError, SglcError, UsageError
from sglc.frontend.locate import here
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
    if max_calls is None and max_tokens is None:
        return None
    return Budget(max_calls, max_tokens)


def afford(budget: Budget, spent: int, segment: Segment, asked: Sequence[GenNode | SelectNode]) -> Segment:
    """`segment` with the lengths that are left.

    Args:
        spent: tokens that the generations before which ended have made.

    Raises:
        RunError: SGLC408, naming the first generation that the budget does not hold.
    """
    if budget.tokens is None or not asked:
        return segment
    left = budget.tokens - spent
    if left <= 0:
        raise passed(asked[0], f"{budget.tokens} generated tokens")
    return Segment(tuple([_shortened(node, left) for node in segment.nodes]))


def beyond(budget: Budget, begun: int, asked: Sequence[GenNode | SelectNode]) -> Sequence[GenNode | SelectNode]:
    """Of the generations that are `asked` for, those that do not begin; `begun` have before."""
    return () if budget.calls is None else asked[max(budget.calls - begun, 0) :]


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


def passed(node: GenNode | SelectNode, limit: str) -> RunError:
    """The error of a run that needs more than its budget."""
    return RunError(
        _PASSED, f"`{node.site.name}` passes the run's budget of {limit}", node.loc,
        note="what was computed before is kept", hint="give the run a larger `max_calls` or `max_tokens`",
    )  # fmt: skip


def is_budget(error: BaseException | None) -> bool:
    """Whether a budget was passed, which no program can catch."""
    return isinstance(error, SglcError) and error.code == _PASSED
