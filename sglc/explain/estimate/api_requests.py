"""What an API is asked for a generation: several requests, a part of another one's, an object round it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sglc.backends.models.picture_tokens import picture_tokens
from sglc.explain.estimate.forecast import Tally
from sglc.explain.estimate.intervals import ZERO, Interval, between
from sglc.explain.estimate.token_counts import TokenCounter
from sglc.ir.grammar.answer_form import OVERHEAD_TOKENS, form_for, form_of_choices
from sglc.ir.plan.segment import ExtendNode, GenNode, Node, SelectNode, origin
from sglc.ir.target import Target

_OBJECT = Interval(0, OVERHEAD_TOKENS, 5.0)  # tokens round a value
_OPENING = Interval(0, 64, 0.0)  # a system turn of a server's own template
_OF_A_FORM, _OF_TOOLS = 64, 600  # tokens at most of what a vendor's model is told besides
_TRIES = 3  # requests, where an object is asked for again


def of_picture(target: Target, data: str) -> Interval:
    """Tokens of a picture, as far as it is known (`data`) and the vendor says how it counts."""
    found = picture_tokens(target.name, data) if target.known else None
    return between(0, None) if found is None else Interval(found.low, found.high, float(found.likely))


def requests_of(
    tally: Tally, node: GenNode | SelectNode, nodes: Sequence[Node], target: Target, counter: TokenCounter
) -> Tally:
    """The counts of one call, as `target` is asked for it if it is an API."""
    if not target.guesses:
        return tally
    if target.protocol == "chat" and not target.known:
        tally = replace(tally, prompt=tally.prompt + _OPENING)
    if target.known:
        tally = replace(tally, prompt=tally.prompt + _told(node, target, counter))
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


def _told(node: GenNode | SelectNode, target: Target, counter: TokenCounter) -> Interval:
    """What a vendor's model is told of a form and of tools: about their JSON, as no vendor says how.

    Anthropic names some hundred tokens more for tools ("Tool use", pricing).
    """
    if isinstance(node, SelectNode):
        texts = [choice for choice in node.choices if isinstance(choice, str)]
        form = None if target.scores_tokens or not texts else form_of_choices(texts)
        tools = None
    else:
        form, tools = form_for(node.sampling, target.takes), node.sampling.tools
    told = [(form.schema, _OF_A_FORM)] if form is not None else []
    told += [(tools, _OF_TOOLS)] if tools is not None else []
    spans = [(counter.of_text(text), more) for text, more in told]
    return Interval(
        0, sum(2 * (span.high or 0) + more for span, more in spans), sum(s.likely for s, _ in spans)
    )


def _has_object(node: GenNode | SelectNode, target: Target) -> bool:
    if isinstance(node, SelectNode):
        return not target.scores_tokens
    form = form_for(node.sampling, target.takes)
    return node.fused or (form is not None and form.inside)


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
