"""From the fields of a request to `Sampling`."""

from __future__ import annotations

import json
import random
import re
from typing import Any

from sglc.errors import LegalizeError
from sglc.ir.grammar.call_format import CallFormat, arguments_schema, calls_form
from sglc.ir.grammar.json_schema import enforced
from sglc.ir.grammar.structural_tag import begins_free
from sglc.ir.sampling import Sampling
from sglc.serve.bodies import ChatBody, CompletionBody, GenerateBody, RequestBody, Sampled, Steered
from sglc.serve.forms import ResponseFormat
from sglc.serve.limits import Limits
from sglc.serve.problems import Refusal, bad, refusal_of
from sglc.serve.tools import Named

_OBJECT = '{"type": "object"}'
_RANDOM = random.Random()
_Held = tuple[str, str, str]  # what a text is held to: the request's field, that of `Sampling`, the form
_GOLDEN = 0x9E3779B97F4A7C15  # by which the runtime's seeds of samples are apart


def check_forms(body: RequestBody, limits: Limits) -> None:
    """Raises Refusal: what a text is to be held to is longer than is taken."""
    match body:
        case GenerateBody():
            _all_held(body.sampling_params, None, limits)
        case Sampled():
            _all_held(body, body.response_format, limits)


def of_completion(body: CompletionBody, limits: Limits) -> Sampling:
    """Raises Refusal: fields that contradict each other, or a form that is too long."""
    if body.best_of is not None and body.best_of != body.n:
        raise bad("best_of", f"can only be `n`, which is {body.n}", "unsupported_value")
    return _sampling(
        body,
        body.response_format,
        limits=limits,
        seed=body.seed,
        max_tokens=body.max_tokens,
        min_tokens=body.min_tokens,
        logprobs_from=0 if body.echo and body.logprobs is not None else None,
        top_logprobs=body.logprobs or 0,
    )


def of_chat(body: ChatBody, most: int, limits: Limits, how: CallFormat | None = None) -> Sampling:
    """`most`: tokens of an answer that no limit is named for; at least one, whatever it is.

    `how`: the format of calls, if there may be any.

    Raises:
        Refusal: fields that contradict each other.
    """
    if body.top_logprobs and not body.logprobs:
        raise bad("top_logprobs", "comes with `logprobs`")
    given = {limit for limit in (body.max_tokens, body.max_completion_tokens) if limit is not None}
    if len(given) > 1:
        raise bad(
            "max_completion_tokens", f"is {body.max_completion_tokens}, and `max_tokens` {body.max_tokens}"
        )
    calls, form = _calls(body, how, limits) if how is not None else (None, body.response_format)
    return _sampling(
        body,
        form,
        calls,
        limits=limits,
        seed=body.seed,
        max_tokens=given.pop() if given else max(most, 1),
        min_tokens=body.min_tokens,
        logprobs_from=None,
        top_logprobs=body.top_logprobs,
    )


def names_of(body: Sampled) -> dict[str, str]:
    """Of `Sampling`'s fields for forms those that have another name in the request, with that."""
    return {field: name for name, field, _ in _held_by_clients(body, body.response_format)}


def held_at_once(sampling: Sampling) -> bool:
    """Whether a text is held to a form from its first token on; up to a trigger it is free."""
    tag = sampling.structural_tag
    return sampling.constrained and not (tag is not None and begins_free(tag))


def _calls(body: ChatBody, how: CallFormat, limits: Limits) -> tuple[str, ResponseFormat | None]:
    """The form of a text with calls in it, JSON of a schema included, and what is asked of it besides."""
    for number, tool in enumerate(body.tools):
        param = f"tools.{number}.function.parameters"
        schema = json.dumps(arguments_schema(tool.function.told))
        _check_length(param, schema, limits)
        try:
            enforced(schema)
        except LegalizeError as error:
            refusal = refusal_of(error)
            raise Refusal(400, f"`{param}`: {refusal.message}", param=param, code=refusal.code) from None
    choice, form = body.tool_choice, body.response_format
    answer = _schema_of(form) if form is not None else None
    named = isinstance(choice, Named)
    return calls_form(
        how,
        [one.told for one in body.offered if not named or one.name == choice.name],
        required=choice != "auto",
        parallel=body.parallel_tool_calls and not named,
        answer=answer,
    ), (form if answer is None else None)


def of_generate(body: GenerateBody, limits: Limits) -> Sampling:
    """Raises Refusal: fields that contradict each other, or a form that is too long."""
    given = body.sampling_params
    begin = body.logprob_start_len
    if begin is None:  # who asks for no text wants to know of the prompt
        begin = -1 if given.max_new_tokens else 0
    return _sampling(
        given,
        limits=limits,
        seed=given.sampling_seed,
        max_tokens=given.max_new_tokens,
        min_tokens=given.min_new_tokens,
        logprobs_from=begin if body.return_logprob and begin >= 0 else None,
        top_logprobs=body.top_logprobs_num if body.return_logprob else 0,
        least="sampling_params.min_new_tokens",
    )


def _sampling(
    body: Steered,
    form: ResponseFormat | None = None,
    calls: str | None = None,
    *,
    limits: Limits,
    seed: int | None,
    max_tokens: int,
    min_tokens: int,
    logprobs_from: int | None,
    top_logprobs: int,
    least: str = "min_tokens",
) -> Sampling:
    """`least`: what `min_tokens` is called in the request."""
    held = _all_held(body, form, limits)
    if calls is not None:
        held.append(("tools", "structural_tag", calls))
    if len(held) > 1:
        names = ", ".join(f"`{name}`" for name, _, _ in held)
        raise Refusal(400, f"a text is held to one of {names}", param=held[0][0], code="invalid_value")
    if min_tokens > max_tokens:
        raise bad(least, f"is {min_tokens}, and at most {max_tokens} tokens are made")
    said: dict[str, Any] = {field: text for _, field, text in held}
    return Sampling(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        n=body.n,
        stop=tuple(body.stop),
        stop_token_ids=tuple(body.stop_token_ids),
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        min_p=body.min_p,
        ignore_eos=body.ignore_eos,
        seed=_RANDOM.getrandbits(64) if seed is None else seed % 2**64,
        strict=body.strict,
        canonical=body.canonical,
        stop_regex=tuple(body.stop_regex),
        frequency_penalty=body.frequency_penalty,
        presence_penalty=body.presence_penalty,
        repetition_penalty=body.repetition_penalty,
        logit_bias=tuple(body.logit_bias.items()),
        logprobs_from=logprobs_from,
        top_logprobs=top_logprobs,
        **said,
    )


def _all_held(body: Steered, form: ResponseFormat | None, limits: Limits) -> list[_Held]:
    held = _held(body) + (_held_by_clients(body, form) if isinstance(body, Sampled) else [])
    for name, _, text in held:
        _check_length(name, text, limits)
    return held


def _check_length(name: str, text: str, limits: Limits) -> None:
    if len(text) > limits.form:
        raise bad(name, f"is longer than the {limits.form} characters of `--max-form`", "too_large")


def _held(body: Steered) -> list[_Held]:
    given = [(name, name, getattr(body, name)) for name in ("regex", "ebnf", "json_schema", "structural_tag")]
    return [each for each in given if each[2] is not None]


def _held_by_clients(body: Sampled, form: ResponseFormat | None) -> list[_Held]:
    """What stands in OpenAI's name for it (`form`), and in vLLM's newer and older ones."""
    given: list[tuple[str, str, str | None]] = [
        ("guided_json", "json_schema", body.guided_json),
        ("guided_regex", "regex", body.guided_regex),
        ("guided_choice", "regex", _one_of(body.guided_choice)),
        ("guided_grammar", "ebnf", body.guided_grammar),
    ]
    structured = body.structured_outputs
    if form is not None and form.type == "structural_tag":
        given.append(("response_format", "structural_tag", form.tag))
    elif form is not None and (schema := _schema_of(form)) is not None:
        given.append(("response_format", "json_schema", schema))
    if structured is not None:
        given += (
            (f"structured_outputs.{name}", field, value)
            for name, field, value in (
                ("json", "json_schema", structured.json_),
                ("json_object", "json_schema", _OBJECT if structured.json_object else None),
                ("regex", "regex", structured.regex),
                ("choice", "regex", _one_of(structured.choice)),
                ("grammar", "ebnf", structured.grammar),
                ("structural_tag", "structural_tag", structured.structural_tag),
            )
        )
    return [(name, field, value) for name, field, value in given if value is not None]


def _one_of(texts: list[str] | None) -> str | None:
    return None if texts is None else "|".join(map(re.escape, texts))


def _schema_of(form: ResponseFormat) -> str | None:
    if form.json_schema is not None:
        return str(form.json_schema.schema_)
    return _OBJECT if form.type == "json_object" else None


def seed_of(seed: int, sample: int) -> int:
    """The seed whose first sample is sample `sample` of `seed`, as the runtime counts them."""
    return (seed + sample * _GOLDEN) % 2**64
