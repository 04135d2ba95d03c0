"""Choices by the log-probabilities of echoed text, which OpenAI's completions protocol gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sglc.backends.remote.answers import UNKNOWN_ID, RequestBody
from sglc.backends.remote.prompts import text
from sglc.backends.remote.segment_runner import ApiAnswer, ApiRequest
from sglc.errors import BackendError
from sglc.ir.choice_scoring import NEEDS_UNCONDITIONAL, decide
from sglc.ir.plan.events import SelectDone, Usage
from sglc.ir.plan.segment import Made, SelectNode

EchoedText = list[tuple[int, float | None]]  # of each token: where it begins, and its log-probability


def echo(request: ApiRequest, name: str) -> RequestBody:
    """One request that has every choice behind the prompt scored, and each alone if the method needs that."""
    assert isinstance(request.node, SelectNode)
    before = text(request.prompt)
    prompts = [before + choice for choice in request.choices]
    if request.node.method in NEEDS_UNCONDITIONAL:
        prompts += request.choices
    return RequestBody(
        {"model": name, "prompt": prompts, "max_tokens": 0, "temperature": 0.0, "echo": True, "logprobs": 0}
    )


def echoed(logprobs: Any) -> EchoedText:
    """What the `logprobs` of an answer's choice say of its text: nothing, if there are none."""
    if not logprobs or not logprobs.get("token_logprobs"):
        return []
    found = [None if one is None else float(one) for one in logprobs["token_logprobs"]]
    return list(zip(map(int, logprobs["text_offset"]), found, strict=True))


def scored(request: ApiRequest, replies: Sequence[EchoedText], usage: Usage) -> ApiAnswer:
    """The end of a choice from log-probabilities of echoed texts.

    Args:
        replies: of each prompt of `echo`, in order.

    Raises:
        BackendError: SGLC544, they are not those of the texts.
    """
    node = request.node
    assert isinstance(node, SelectNode)
    before, count = len(text(request.prompt)), len(request.choices)
    if not all(replies):
        raise _no_scores(request)
    # Where a choice merges with the text before it, all are scored from the beginning of that token on.
    begins = [_begin(reply, before) for reply in replies[:count]]
    begin = min(reply[at][0] for reply, at in zip(replies, begins, strict=False))
    logprobs = [_behind(reply, begin, request) for reply in replies[:count]]
    alone = [tuple(logprob for _, logprob in reply) for reply in replies[count:]]
    fitting = [(None, *own[1:])[: len(own)] for own in alone]
    decision = decide(node.method, logprobs, fitting)
    said = request.choices[decision.choice]
    event = SelectDone(
        request.index,
        (),
        decision.choice,
        said,
        decision.scores,
        tuple((UNKNOWN_ID,) * len(own) for own in logprobs),
        tuple(logprobs),
        usage,
        tuple(fitting),
        decision.matrix,
    )
    return ApiAnswer(event, Made(said))


def _begin(reply: EchoedText, before: int) -> int:
    """The first token that reaches behind the prompt's `before` characters."""
    offsets = [*(offset for offset, _ in reply), float("inf")]
    return max(0, next(i for i, end in enumerate(offsets[1:]) if end > before))


def _behind(reply: EchoedText, begin: int, request: ApiRequest) -> tuple[float, ...]:
    found: list[float] = []
    for number, (offset, logprob) in enumerate(reply):
        if offset < begin:
            continue
        if logprob is None and number:
            raise _no_scores(request)
        found.append(logprob or 0.0)  # the first token of all has nothing before it: it counts as certain
    if not found:
        raise _no_scores(request)
    return tuple(found)


def _no_scores(request: ApiRequest) -> BackendError:
    name = request.node.site.name
    return BackendError(
        "SGLC544", f"the API gave no log-probabilities for `{name}`",
        hint="it does not score given text: use its chat protocol, where a choice is written",
    )  # fmt: skip
