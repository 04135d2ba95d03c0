"""Requests of OpenAI's two protocols as plain data, and what their answers say. Nothing is sent here."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from sglc.backends.models.vendor_rules import ApiModel
from sglc.backends.remote.answers import (
    NO_LOGPROBS,
    UNKNOWN_ID,
    Logprobs,
    Piece,
    Reply,
    RequestBody,
    Unanswered,
    asks_logprobs,
    form_of_request,
    in_batches,
    sampling_of,
    sent_stops,
    text_of,
)
from sglc.backends.remote.prompts import Message, messages, no_prefill, see_turns, text
from sglc.backends.remote.sdk_errors import told_trouble
from sglc.backends.remote.segment_runner import ApiRequest
from sglc.backends.retry import Trouble
from sglc.errors import shown
from sglc.ir.grammar.answer_form import OVERHEAD_TOKENS, AnswerForm, form_for
from sglc.ir.grammar.call_format import HERMES
from sglc.ir.plan.events import Usage
from sglc.ir.plan.segment import GenNode, ImagePart
from sglc.ir.sampling import Sampling

_USUAL = Sampling()
_SAMPLINGS = 256  # whose fields a back end remembers
# Why answers end that are whole: OpenAI's words, and those of TGI (`eos_token`, `stop_sequence`), of Together
# (`eos`) and of servers that hand on Anthropic's.
_WHOLE = {
    "stop", "tool_calls", "function_call", "eos", "eos_token", "stop_sequence", "end_turn", "tool_use",
}  # fmt: skip


# What a sampling says in every request that is made with it.
Steering = Callable[[Sampling], Mapping[str, Any]]


def bodies(request: ApiRequest, model: ApiModel, name: str, steering: Steering) -> tuple[RequestBody, ...]:
    """The requests that answer one generation or choice, none of them streaming.

    Args:
        steering: `steered` of the model, for generations.

    Raises:
        SglcError: its prompt is nothing that the protocol can say.
    """
    node, sampling = request.node, sampling_of(request, model.takes)
    shared: dict[str, Any] = {"model": name, **_prompt(request, model)}
    if isinstance(node, GenNode):
        steers = steering(sampling)
    else:
        steers = _sampling(sampling, model, form_of_request(request, model), choosing=True)
    more = shared.get("extra_body")
    shared.update(steers)
    if more and "extra_body" in steers:
        shared["extra_body"] = {**more, **steers["extra_body"]}
    if node.cache_key and model.takes.cache_key:
        shared["prompt_cache_key"] = node.cache_key
    made = []
    for first, count, seed in in_batches(request, model.takes, sampling):
        own = shared if sampling.n == 1 else shared.copy()
        if seed is not None:
            own["seed"] = seed
        if count > 1:
            own["n"] = count
        made.append(RequestBody(own, first, count))
    return tuple(made)


def steered(model: ApiModel) -> Steering:
    """What a sampling says in requests for generations of the model; found once for each."""

    known: dict[int, tuple[Sampling, Mapping[str, Any]]] = {}  # by identity: they are long to compare

    def steering(sampling: Sampling) -> Mapping[str, Any]:
        found = known.get(id(sampling))
        if found is None:
            if len(known) == _SAMPLINGS:
                known.clear()
            fields = _sampling(sampling, model, form_for(sampling, model.takes), choosing=False)
            found = known[id(sampling)] = sampling, fields
        return found[1]

    return steering


def _prompt(request: ApiRequest, model: ApiModel) -> dict[str, Any]:
    if model.protocol == "text":
        return {"prompt": text(request.prompt)}
    turns = messages(request.prompt, request.node.loc)
    see_turns(turns, model.takes, request.node.site.name, request.node.loc)
    fields: dict[str, Any] = {"messages": [_message(turn) for turn in turns]}
    if turns and turns[-1].open:
        if not model.takes.prefill:
            raise no_prefill(request.node.site.name, request.node.loc)
        fields["extra_body"] = {"continue_final_message": True, "add_generation_prompt": False}
    return fields


def _message(turn: Message) -> dict[str, Any]:
    if len(turn.content) == 1 and isinstance(turn.content[0], str):  # neighbouring texts are one
        return {"role": turn.role, "content": turn.content[0]}
    if not any(isinstance(part, ImagePart) for part in turn.content):
        return {"role": turn.role, "content": "".join(map(str, turn.content))}
    parts = [
        {"type": "image_url", "image_url": {"url": part.data}}
        if isinstance(part, ImagePart)
        else {"type": "text", "text": part}
        for part in turn.content
    ]
    return {"role": turn.role, "content": parts}


def _sampling(
    sampling: Sampling, model: ApiModel, form: AnswerForm | None, *, choosing: bool
) -> dict[str, Any]:
    """Fields of `sampling` that are not what the API does anyway."""
    takes = model.takes
    fields: dict[str, Any] = {model.length: sampling.max_tokens + (OVERHEAD_TOKENS if form else 0)}
    if takes.reasons and choosing:  # how long it thinks about a choice is not known
        del fields[model.length]
    said = model.own_defaults
    if sampling.temperature != 1 or (said and takes.temperature is not None):
        fields["temperature"] = sampling.temperature
    if sampling.top_p != 1 or (said and takes.top_p and takes.top_p_at_any_temperature):
        fields["top_p"] = sampling.top_p
    for key in ("frequency_penalty", "presence_penalty"):
        if getattr(sampling, key):
            fields[key] = getattr(sampling, key)
    if sampling.logit_bias:
        fields["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias}
    if sent := sent_stops(sampling, takes, form):
        fields["stop"] = list(sent)
    if asks_logprobs(sampling):
        chat = {"logprobs": True, **({"top_logprobs": sampling.top_logprobs} if sampling.top_logprobs else {})}
        fields.update(chat if model.protocol == "chat" else {"logprobs": sampling.top_logprobs})
    more = _extensions(sampling, form)
    held = form.schema if form is not None else sampling.json_schema
    if held is not None:
        schema = {"name": "answer", "schema": json.loads(held), "strict": True}
        own = fields if model.protocol == "chat" else more
        own["response_format"] = {"type": "json_schema", "json_schema": schema}
    if sampling.tools is not None:
        fields |= _tools(json.loads(sampling.tools))
    if sampling.structural_tag is not None:
        more["response_format"] = {"type": "structural_tag", **json.loads(sampling.structural_tag)}
    return {**fields, **({"extra_body": more} if more else {})}


def _tools(given: Mapping[str, Any]) -> dict[str, Any]:
    choice = given["choice"]
    named = {"type": "function", "function": {"name": choice}}
    return {
        "tools": [{"type": "function", "function": tool} for tool in given["tools"]],
        "tool_choice": choice if choice in ("auto", "required") else named,
    }


def _extensions(sampling: Sampling, form: AnswerForm | None) -> dict[str, Any]:
    """Fields that OpenAI's API does not have, by the names that vLLM, SGLang and sglc give them.

    Only what `Takes` allows comes here.
    """
    names = ["top_k", "min_p", "repetition_penalty", "min_tokens", "stop_token_ids", "ignore_eos"]
    names += ["regex", "ebnf"] if form is None else []
    given = (
        (name, getattr(sampling, name)) for name in names if getattr(sampling, name) != getattr(_USUAL, name)
    )
    return {name: list(value) if isinstance(value, tuple) else value for name, value in given}


# -- answers -------------------------------------------------------------------------------------------


def reply_of(choice: Mapping[str, Any], protocol: str) -> Reply:
    """A sample of a whole answer.

    Raises:
        Unanswered: the model refuses, the filter has stopped it, or a call is not whole.
        Trouble: the provider has broken it off, or does not say why it ended.
    """
    finish, logprobs = choice["finish_reason"], choice.get("logprobs")
    if protocol == "text":
        return Reply(text_of(choice["text"]), _finish(finish, choice), *_of_text(logprobs))
    message = choice["message"]
    if refusal := message.get("refusal"):
        raise Unanswered(f"the model refuses: {refusal}")
    text, why = _said(message), _finish(finish, choice)
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    if older := message.get("function_call"):
        calls.append(older)
    if calls:
        text = "\n".join(filter(None, [text, *(_called(call, why) for call in calls)]))
    return Reply(text, why, *_of_chat(logprobs))


def _said(message: Mapping[str, Any]) -> str:
    """The text of a message or of a part of one; Mistral's that think give pieces, thoughts among them."""
    content = message.get("content")
    if not isinstance(content, list):
        return text_of(content)
    return "".join(text_of(part["text"]) for part in content if part["type"] == "text")


def _called(function: Mapping[str, Any], finish: str) -> str:
    """A call as a part of the text."""
    arguments = function["arguments"] or {}  # some servers say none as ""
    if not isinstance(arguments, str):
        return HERMES.written(function["name"], arguments)
    if finish == "length":  # what is cut off is no text
        try:
            json.loads(arguments)
        except ValueError:
            raise Unanswered(f"its call of `{function['name']}` ended at `max_tokens`") from None
    return HERMES.begun(function["name"]) + arguments + HERMES.end


def piece_of(choice: Mapping[str, Any], protocol: str) -> Piece:
    """A part of a streamed sample.

    Raises:
        Unanswered, Trouble: as `reply_of`.
    """
    finish, logprobs = choice.get("finish_reason"), choice.get("logprobs")
    # Azure's filter tells apart from all text what it has found, in a choice that has no other field.
    said = _said(choice.get("delta") or {}) if protocol == "chat" else text_of(choice.get("text"))
    told = _of_chat(logprobs) if protocol == "chat" else _of_text(logprobs)
    return Piece(said, _finish(finish, choice) if finish else "", logprobs=told)


def usage_of(data: Any) -> Usage:
    """Counts of one request: `data` is the answer's `usage`, or None."""
    if not isinstance(data, dict):
        return Usage(calls=1)
    details = data.get("prompt_tokens_details")
    cached = int(details.get("cached_tokens") or 0) if isinstance(details, dict) else 0
    prompt = int(data.get("prompt_tokens") or 0)
    cached = min(cached, prompt)
    return Usage(prompt, cached, prompt - cached, 0, int(data.get("completion_tokens") or 0), 1)


def _finish(said: Any, choice: Mapping[str, Any]) -> str:
    match said:
        case "length" | "max_tokens" | "model_length":  # the last one is Mistral's word for a full context
            return "length"
        case "error":  # of OpenRouter and Mistral; what stands before it is a part of an answer
            raise told_trouble(choice.get("error") or "the provider broke the answer off")
        case "content_filter":
            raise Unanswered("the provider's filter stopped it")
        case str() if said in _WHOLE:
            return "stop"
        case None | "":
            raise Trouble("the answer is malformed: it has no reason why it ended")
        case _:  # `abort` of vLLM and SGLang, `insufficient_system_resource` of DeepSeek
            raise Trouble(f"the answer was broken off: {shown(str(said), 60)}")


def _of_chat(part: Any) -> Logprobs:
    tokens = None if part is None else part.get("content")
    if not tokens:
        return NO_LOGPROBS
    tops = [
        tuple((float(top["logprob"]), UNKNOWN_ID, top["token"]) for top in token["top_logprobs"] or ())
        for token in tokens
    ]
    return (
        tuple(float(token["logprob"]) for token in tokens),
        tuple(token["token"] for token in tokens),
        tuple(tops) if any(tops) else (),
    )


def _of_text(part: Any) -> Logprobs:
    if part is None or not part.get("tokens"):
        return NO_LOGPROBS
    places = [
        sorted((place or {}).items(), key=lambda pair: -pair[1]) for place in part.get("top_logprobs") or ()
    ]
    tops = [tuple((float(logprob), UNKNOWN_ID, token) for token, logprob in place) for place in places]
    logprobs = tuple(map(float, part["token_logprobs"]))
    return logprobs, tuple(part["tokens"]), tuple(tops) if any(tops) else ()
