"""Requests of Google's generate_content as plain data, and what their answers say. Nothing is sent here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sglc.backends.models.vendor_rules import ApiModel
from sglc.backends.remote.answers import (
    NO_LOGPROBS,
    PROMPT_BLOCKED,
    Logprobs,
    Piece,
    Reply,
    RequestBody,
    Unanswered,
    asks_logprobs,
    declared,
    form_of_request,
    in_batches,
    or_why_not,
    piece_or_why_not,
    sampling_of,
    sent_stops,
    text_of,
    whole_reply,
    with_calls,
)
from sglc.backends.remote.prompts import Message, messages, no_prefill, picture, see_turns, system_apart
from sglc.backends.remote.segment_runner import ApiRequest
from sglc.backends.retry import Trouble
from sglc.ir.grammar.answer_form import OVERHEAD_TOKENS, AnswerForm
from sglc.ir.plan.events import Usage
from sglc.ir.plan.segment import ImagePart, SelectNode
from sglc.ir.sampling import Sampling
from sglc.ir.target import Takes

_SEEDS = 2**31  # the field is a signed integer of 32 bits
_STEERING = ("temperature", "top_p", "top_k", "presence_penalty", "frequency_penalty")
# The SDK would ask again by itself where an answer is cut, and call functions.
_NOTHING_BY_ITSELF = {"automatic_continuation": False, "automatic_function_calling": {"disable": True}}


def bodies(request: ApiRequest, model: ApiModel, name: str) -> tuple[RequestBody, ...]:
    """The requests that answer one generation or choice, none of them streaming.

    Raises:
        SglcError: its prompt is nothing that the protocol can say.
    """
    takes, form = model.takes, form_of_request(request, model)
    sampling = sampling_of(request, takes)
    choosing = isinstance(request.node, SelectNode)
    contents, system = _conversation(request, takes)
    config = {**system, **_sampling(sampling, takes, form, choosing=choosing), **_NOTHING_BY_ITSELF}
    made = []
    for first, count, seed in in_batches(request, takes, sampling):
        own = {**config, **({} if seed is None else {"seed": seed % _SEEDS})}
        if count > 1:
            own["candidate_count"] = count
        made.append(RequestBody({"model": name, "contents": contents, "config": own}, first, count))
    return tuple(made)


def _conversation(request: ApiRequest, takes: Takes) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The turns, and the config's field of instructions."""
    loc = request.node.loc
    begin, turns = system_apart(messages(request.prompt, loc), takes, loc)
    see_turns((*begin, *turns), takes, request.node.site.name, loc)
    if turns and turns[-1].open and not takes.prefill:
        raise no_prefill(request.node.site.name, loc)
    contents = [
        {"role": "model" if turn.role == "assistant" else "user", "parts": _parts(turn)} for turn in turns
    ]
    parts = [part for turn in begin for part in _parts(turn)]
    return contents, {"system_instruction": {"parts": parts}} if parts else {}


def _parts(turn: Message) -> list[dict[str, Any]]:
    return [_picture(part) if isinstance(part, ImagePart) else {"text": part} for part in turn.content]


def _picture(part: ImagePart) -> dict[str, Any]:
    kind, data = picture(part)
    return {"inline_data": {"mime_type": kind, "data": data}}


def _sampling(sampling: Sampling, takes: Takes, form: AnswerForm | None, *, choosing: bool) -> dict[str, Any]:
    """Fields of `sampling` that may not be what the API does anyway."""
    fields: dict[str, Any] = {"max_output_tokens": sampling.max_tokens + (OVERHEAD_TOKENS if form else 0)}
    if takes.reasons and choosing:  # how long it thinks about a choice is not known
        del fields["max_output_tokens"]
    usual = Sampling()
    # The defaults of these two are each model's own (`topP` and `temperature` of its page of models).
    said = {"temperature": takes.temperature is not None, "top_p": takes.top_p}
    for name in _STEERING:
        if said.get(name) or getattr(sampling, name) != getattr(usual, name):
            fields[name] = getattr(sampling, name)
    if sent := sent_stops(sampling, takes, form):
        fields["stop_sequences"] = list(sent)
    if asks_logprobs(sampling):
        fields["response_logprobs"] = True
        if sampling.top_logprobs:
            fields["logprobs"] = sampling.top_logprobs
    held = form.schema if form is not None else sampling.json_schema
    if held is not None:
        fields["response_mime_type"] = "application/json"
        fields["response_json_schema"] = json.loads(held)
    if sampling.tools is not None:
        fields |= _tools(json.loads(sampling.tools))
    return fields


def _tools(given: Mapping[str, Any]) -> dict[str, Any]:
    choice = given["choice"]
    mode: dict[str, Any] = {"mode": "AUTO" if choice == "auto" else "ANY"}
    if choice not in ("auto", "required"):
        mode["allowed_function_names"] = [choice]
    return {
        "tools": [{"function_declarations": declared(given["tools"], "parameters_json_schema")}],
        "tool_config": {"function_calling_config": mode},
    }


# -- answers -------------------------------------------------------------------------------------------


def pieces_of(made: Any) -> list[Piece]:
    """What a part of a streamed answer has of each sample, in order."""
    if (why := _blocked(made)) is not None:
        return [Piece(why=why)]
    return [piece_or_why_not(_piece, candidate) for candidate in _candidates(made)]


def replies_of(made: Any, count: int) -> list[Reply | Unanswered]:
    """The samples of a whole answer to a request for so many.

    Raises:
        Trouble: one did not end.
    """
    if (why := _blocked(made)) is not None:
        return [why] * count
    return [or_why_not(_reply, candidate) for candidate in _candidates(made)]


def _reply(candidate: Any) -> Reply:
    reply = whole_reply([_piece(candidate)])
    if reply is None:
        raise Trouble("the answer is malformed: it has a candidate that did not end")
    return reply


def _blocked(made: Any) -> Unanswered | None:
    """Why there is no sample at all, if the prompt is to blame."""
    reason = getattr(getattr(made, "prompt_feedback", None), "block_reason", None)
    return None if reason is None else Unanswered(f"{PROMPT_BLOCKED}: {_word(reason)}")


def _candidates(made: Any) -> list[Any]:
    return sorted(made.candidates or [], key=lambda candidate: candidate.index or 0)


def _piece(candidate: Any) -> Piece:
    parts = (candidate.content.parts if candidate.content is not None else None) or []
    said = "".join(text_of(part.text) for part in parts if not part.thought)
    called = [part.function_call for part in parts if part.function_call is not None]
    said = with_calls(said, [(call.name, call.args or {}) for call in called])
    return Piece(said, _finish(candidate), logprobs=_logprobs(candidate.logprobs_result))


def _finish(candidate: Any) -> str:
    match _word(candidate.finish_reason):
        case "" | "FINISH_REASON_UNSPECIFIED":
            return ""
        case "STOP":
            return "stop"
        case "MAX_TOKENS" | "CONTINUATION":
            return "length"
        case reason:
            message = getattr(candidate, "finish_message", None)
            raise Unanswered(f"the provider stops it: {reason}" + (f", {message}" if message else ""))


def _word(reason: Any) -> str:
    return "" if reason is None else str(getattr(reason, "value", reason))


def _logprobs(result: Any) -> Logprobs:
    chosen = (result.chosen_candidates if result is not None else None) or []
    if not chosen:
        return NO_LOGPROBS
    tops = [
        tuple((top.log_probability, top.token_id or -1, top.token) for top in place.candidates or ())
        for place in result.top_candidates or ()
    ]
    return tuple(one.log_probability for one in chosen), tuple(one.token for one in chosen), tuple(tops)


def usage_of(data: Any) -> Usage:
    """Counts of one request; what it thinks is counted beside the answer, and paid for like it."""
    prompt = getattr(data, "prompt_token_count", None) or 0
    cached = getattr(data, "cached_content_token_count", None) or 0
    made = (getattr(data, "candidates_token_count", None) or 0) + (
        getattr(data, "thoughts_token_count", None) or 0
    )
    cached = min(cached, prompt)
    return Usage(prompt, cached, prompt - cached, 0, made, 1)
