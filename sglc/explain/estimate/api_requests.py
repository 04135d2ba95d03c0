"""What an API is asked for a generation: several requests, a part of another one's, an object round it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sglc.explain.estimate.forecast import Tally
from sglc.explain.estimate.intervals import ZERO, Interval, between
from sglc.ir.grammar.answer_form import OVERHEAD_TOKENS, form_for
from sglc.ir.plan.segment import ExtendNode, GenNode, Node, SelectNode, origin
from sglc.ir.target import Target

_OBJECT = Interval(0, OVERHEAD_TOKENS, 5.0)  # tokens round a value
_OPENING = Interval(0, 64, 0.0)  # a system turn of a server's own template
_TRIES = 3  # requests, where an object is asked for again


def requests_of(tally: Tally, node: GenNode | SelectNode, nodes: Sequence[Node], target: Target) -> Tally:
    """The counts of one call, as `target` is asked for it if it is an API."""
    if not target.guesses:
        return tally
    if target.protocol == "chat" and not target.known:
        tally = replace(tally, prompt=tally.prompt + _OPENING)
    if _has_object(node, target):
        tally = replace(tally, new=tally.new + _OBJECT)
    if node.fused:
        return _first(tally) if _before(node, nodes) is None else _behind(tally)
    if not isinstance(node, GenNode):
        return tally
    if node.ahead:
        return replace(tally, calls=between(0, 1))  # the request of an earlier one may answer it
    samples = target.takes.samples
    again = replace(tally, new=ZERO)  # the same prompt for more samples
    tally = sum([again] * (0 if samples is None else (node.sampling.n - 1) // samples), tally)
    return _behind(tally) if samples != 1 and _is_twin(node, nodes) else tally


def _has_object(node: GenNode | SelectNode, target: Target) -> bool:
    if isinstance(node, SelectNode):
        return not target.scores_tokens
    return node.fused or form_for(node.sampling, target.takes) is not None


def _first(tally: Tally) -> Tally:
    """Of an object; what is none is asked for again."""
    prompt = replace(tally.prompt, high=None if tally.prompt.high is None else _TRIES * tally.prompt.high)
    return replace(tally, calls=Interval(1, _TRIES, 1.0), prompt=prompt)


def _behind(tally: Tally) -> Tally:
    """Most likely a part of the request before."""
    return replace(tally.perhaps(0.0), new=tally.new)


def _before(node: GenNode | SelectNode, nodes: Sequence[Node]) -> Node | None:
    """The generation of the same object that stands before it."""
    made = nodes[node.stream]
    while isinstance(made, ExtendNode):
        made = nodes[made.stream]
    return made if isinstance(made, GenNode | SelectNode) and made.fused else None


def _is_twin(node: GenNode, nodes: Sequence[Node]) -> bool:
    """Whether one before it asks for another sample of the same: without a seed that is one request."""
    if node.sampling.temperature == 0 or node.sampling.seed is not None or node.sampling.n > 1:
        return False
    stream = origin(nodes, node.stream)
    for other in nodes:
        if other is node:
            return False
        if (
            isinstance(other, GenNode)
            and other.sampling == node.sampling
            and origin(nodes, other.stream) == stream
        ):
            return True
    return False
