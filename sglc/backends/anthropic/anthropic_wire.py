"""Requests of Anthropic's messages protocol as plain data, and what their answers say. Nothing is sent here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sglc.backends.models.vendor_rules import ApiModel
from sglc.backends.remote.answers import (
    Reply,
    RequestBody,
    Unanswered,
    declared,
    form_of_request,
    in_batches,
    sampling_of,
    sent_stops,
    text_of,
    with_calls,
)
from sglc.backends.remote.prompts import (
    Message,
    kept_turns,
    messages,
    no_prefill,
    picture,
    see_turns,
    system_apart,
)
from sglc.backends.remote.segment_runner import ApiRequest
from sglc.backends.retry import Trouble
from sglc.errors import shown
from sglc.ir.grammar.answer_form import OVERHEAD_TOKENS
from sglc.ir.plan.events import Usage
from sglc.ir.plan.segment import ImagePart, SelectNode
from sglc.ir.sampling import Sampling
from sglc.ir.target import Takes


def bodies(request: ApiRequest, model: ApiModel, name: str) -> tuple[RequestBody, ...]:
    """The requests that answer one generation or choice, none of them streaming.

    Raises:
        SglcError: its prompt is nothing that the protocol can say.
    """
    node, takes = request.node, model.takes
    form = form_of_request(request, model)
    sampling = sampling_of(request, takes)
    held = form.schema if form is not None else sampling.json_schema
    tokens = sampling.max_tokens + (OVERHEAD_TOKENS if form else 0)
    if takes.reasons and isinstance(node, SelectNode):  # how long it thinks about a choice is not known
        tokens = model.longest
    fields: dict[str, Any] = {
        "model": name,
        "max_tokens": tokens,
        **_conversation(request, takes, held is not None),
    }
    if sent := sent_stops(sampling, takes, form):
        fields["stop_sequences"] = list(sent)
    if held is not None:
        fields["output_config"] = {"format": {"type": "json_schema", "schema": json.loads(held)}}
    if sampling.tools is not None:
        fields |= _tools(json.loads(sampling.tools))
    if steering := _steering(sampling):
        fields["extra_body"] = steering
    return tuple([RequestBody(fields, first) for first, _, _ in in_batches(request, takes, sampling)])


def _steering(sampling: Sampling) -> dict[str, Any]:
    """What older models take, and the SDK has no arguments for any more."""
    usual = Sampling()
    names = ("temperature", "top_p", "top_k")
    return {name: getattr(sampling, name) for name in names if getattr(sampling, name) != getattr(usual, name)}


def _tools(given: Mapping[str, Any]) -> dict[str, Any]:
    choice = given["choice"]
    modes = {"auto": {"type": "auto"}, "required": {"type": "any"}}
    return {
        "tools": declared(given["tools"], "input_schema"),
        "tool_choice": modes.get(choice, {"type": "tool", "name": choice}),
    }


def _conversation(request: ApiRequest, takes: Takes, held: bool) -> dict[str, Any]:
    loc = request.node.loc
    begin, turns = system_apart(messages(request.prompt, loc), takes, loc)
    see_turns((*begin, *turns), takes, request.node.site.name, loc)
    kept = kept_turns(request.node.cache_key) if takes.cache_key else 0
    said = [_content(turn, kept=number == kept) for number, turn in enumerate((*begin, *turns), 1)]
    of_turns = zip(turns, said[len(begin) :], strict=True)
    fields: dict[str, Any] = {
        "messages": [{"role": turn.role, "content": content} for turn, content in of_turns]
    }
    if len(begin) == 1:
        fields["system"] = said[0]
    elif begin:
        fields["system"] = [block for content in said[: len(begin)] for block in _blocks(content)]
    if turns and turns[-1].open:
        written = turns[-1].content[-1]
        bound = held or (isinstance(written, str) and written[-1:].isspace())
        if not takes.prefill or (bound and not takes.bound_prefill):
            raise no_prefill(request.node.site.name, loc, bound=takes.prefill)
    return fields


def _content(turn: Message, *, kept: bool) -> str | list[dict[str, Any]]:
    """What a turn says; the API keeps the prompt up to its end if it is to be `kept`."""
    if not kept:
        return _said(turn)
    *before, last = _blocks(_said(turn))
    return [*before, {**last, "cache_control": {"type": "ephemeral"}}]


def _blocks(content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _said(turn: Message) -> str | list[dict[str, Any]]:
    if all(isinstance(part, str) for part in turn.content):
        return "".join(map(str, turn.content))
    return [
        _picture(part) if isinstance(part, ImagePart) else {"type": "text", "text": part}
        for part in turn.content
    ]


def _picture(part: ImagePart) -> dict[str, Any]:
    kind, data = picture(part)
    if not kind:
        return {"type": "image", "source": {"type": "url", "url": data}}
    return {"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}}


# -- answers -------------------------------------------------------------------------------------------


def reply_of(made: Any) -> Reply:
    """The sample of a whole answer.

    Raises:
        Unanswered: the model refuses.
        Trouble: it is no message.
    """
    blocks = getattr(made, "content", None)
    if not isinstance(blocks, list):
        raise Trouble("the answer is malformed: it has no content")
    said = "".join(text_of(block.text) for block in blocks if getattr(block, "type", None) == "text")
    calls = [(block.name, block.input) for block in blocks if getattr(block, "type", None) == "tool_use"]
    return Reply(with_calls(said, calls), finish_of(made))


def finish_of(part: Any) -> str:
    """Why a message, or the end of a streamed one, ended.

    Raises:
        Unanswered: the model refuses.
        Trouble: it was broken off, or does not say why.
    """
    match getattr(part, "stop_reason", None):
        case "end_turn" | "stop_sequence" | "tool_use":
            return "stop"
        case "max_tokens" | "model_context_window_exceeded":
            return "length"
        case "refusal":
            details = getattr(part, "stop_details", None)
            why = getattr(details, "explanation", None) or getattr(details, "category", None)
            raise Unanswered("the model refuses" + (f": {why}" if why else ""))
        case None | "":
            raise Trouble("the answer is malformed: it has no reason why it ended")
        case said:  # `pause_turn`, where the API wants to be asked to go on, `abort` of other servers
            raise Trouble(f"the answer was broken off: {shown(str(said), 60)}")


def usage_of(*parts: Any) -> Usage:
    """Counts of one request. Those of a stream are said in `parts`, the later ones of all that came before.

    `input_tokens` are those that were neither read from the cache nor written into it.
    """

    def count(name: str) -> int:
        said = [getattr(part, name, None) for part in parts]
        return next((int(number) for number in reversed(said) if number is not None), 0)

    cached = count("cache_read_input_tokens")
    computed = count("input_tokens") + count("cache_creation_input_tokens")
    return Usage(cached + computed, cached, computed, 0, count("output_tokens"), 1)
