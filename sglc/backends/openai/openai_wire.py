"""Requests of OpenAI's two protocols as plain data, and what their answers mean. Nothing is sent here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sglc.backends.openai.models import ApiModel
from sglc.backends.remote.prompts import Message, messages, text
from sglc.backends.remote.segment_runner import ApiAnswer, ApiRequest
from sglc.errors import BackendError, LegalizeError
from sglc.ir.choice_scoring import NEEDS_UNCONDITIONAL, decide
from sglc.ir.grammar.answer_form import OVERHEAD_TOKENS, AnswerForm, form_for, form_of_choices
from sglc.ir.grammar.finite import accepted
from sglc.ir.grammar.stops import stop_pattern
from sglc.ir.plan.events import GenDone, Sample, SelectDone, TokenLogprob, Usage
from sglc.ir.plan.segment import ImagePart, Made, SelectNode
from sglc.ir.sampling import Sampling
from sglc.ir.target import Takes
from sglc.runtime.tokenizer.detokenize import StopStream

UNKNOWN_ID = -1  # of a token of which only the text is known


@dataclass(frozen=True, slots=True)
class RequestBody:
    """One request: `fields` as the SDK's method takes them. Its samples are those from `first` on."""

    fields: Mapping[str, Any]
    first: int = 0


@dataclass(frozen=True, slots=True)
class Reply:
    """One sample as the API gave it."""

    text: str
    finish: str
    logprobs: tuple[float, ...] = ()
    texts: tuple[str, ...] = ()
    top_logprobs: tuple[tuple[TokenLogprob, ...], ...] = ()


def form_of_request(request: ApiRequest, model: ApiModel) -> AnswerForm | None:
    """What the answer is held to by a JSON schema; None if it is held to nothing, or scored."""
    if isinstance(request.node, SelectNode):
        return None if model.scores_tokens else form_of_choices(request.choices)
    return form_for(request.node.sampling, model.takes)


def bodies(request: ApiRequest, model: ApiModel, name: str) -> tuple[RequestBody, ...]:
    """The requests that answer one generation or choice, none of them streaming.

    Raises:
        SglcError: its prompt is nothing that the protocol can say.
    """
    node = request.node
    form = form_of_request(request, model)
    if isinstance(node, SelectNode):
        if model.scores_tokens:
            return (RequestBody(_echo(request, name)),)
        sampling = Sampling(max_tokens=_longest(request.choices), temperature=1.0)
        if model.takes.temperature is not None:
            sampling = Sampling(max_tokens=_longest(request.choices), temperature=0.0)
    else:
        sampling = node.sampling
    prompt, steering = (
        _prompt(request, model),
        _sampling(sampling, model, form, choosing=isinstance(node, SelectNode)),
    )
    extra = {**prompt.pop("extra_body", {}), **steering.pop("extra_body", {})}
    shared = {"model": name, **prompt, **steering, **({"extra_body": extra} if extra else {})}
    if node.cache_key and model.takes.cache_key:
        shared["prompt_cache_key"] = node.cache_key
    seed = getattr(node, "seed", None) if sampling.seed is None else sampling.seed
    several = model.takes.samples or sampling.n
    made = []
    for first in range(0, sampling.n, several):
        own: dict[str, Any] = {}
        if seed is not None and model.takes.seed:
            own["seed"] = (seed + first) % 2**63
        if min(several, sampling.n - first) > 1:
            own["n"] = min(several, sampling.n - first)
        made.append(RequestBody({**shared, **own}, first))
    return tuple(made)


def _longest(choices: Sequence[str]) -> int:
    """Tokens that are enough for any choice: none is shorter than a byte."""
    return max(len(choice.encode()) for choice in choices)


def _prompt(request: ApiRequest, model: ApiModel) -> dict[str, Any]:
    if model.protocol == "text":
        return {"prompt": text(request.prompt)}
    turns = messages(request.prompt, request.node.loc)
    fields: dict[str, Any] = {"messages": [_message(turn) for turn in turns]}
    if turns and turns[-1].open:
        if not model.takes.prefill:
            raise LegalizeError(
                "SGLC317", f"`{request.node.site.name}` stands behind text in the same turn", request.node.loc,
                note="the model begins every answer anew",
                hint="end the turn and ask again, or put what stands before it into the user's turn",
            )  # fmt: skip
        fields["extra_body"] = {"continue_final_message": True, "add_generation_prompt": False}
    return fields


def _message(turn: Message) -> dict[str, Any]:
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
    if sampling.temperature != 1:
        fields["temperature"] = sampling.temperature
    for key, usual in (("top_p", 1.0), ("frequency_penalty", 0.0), ("presence_penalty", 0.0)):
        if getattr(sampling, key) != usual:
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
    return {**fields, **({"extra_body": more} if more else {})}


def _extensions(sampling: Sampling, form: AnswerForm | None) -> dict[str, Any]:
    """Fields that OpenAI's API does not have, by the names that vLLM, SGLang and sglc give them.

    Only what `Takes` allows comes here.
    """
    usual = Sampling()
    names = ["top_k", "min_p", "min_tokens", "stop_token_ids", "ignore_eos"]
    names += ["regex", "ebnf"] if form is None else []
    given = (
        (name, getattr(sampling, name)) for name in names if getattr(sampling, name) != getattr(usual, name)
    )
    return {name: list(value) if isinstance(value, tuple) else value for name, value in given}


def asks_logprobs(sampling: Sampling) -> bool:
    """Whether log-probabilities of what is generated are wanted."""
    return sampling.logprobs or sampling.logprob_text or sampling.top_logprobs > 0


def sent_stops(sampling: Sampling, takes: Takes, form: AnswerForm | None) -> tuple[str, ...]:
    """The stop strings that the API is given: inside a JSON answer they would mean something else."""
    if form is not None and form.inside:
        return ()
    return sampling.stop if takes.stops is None else sampling.stop[: takes.stops]


# -- answers -------------------------------------------------------------------------------------------


class Cut:
    """Ends a text at its stop strings, as it comes: those that the API was not given, and patterns."""

    def __init__(self, sampling: Sampling) -> None:
        self._pieces: list[bytes] = []
        self._stream = StopStream(
            self._pieces, sampling.stop, [stop_pattern(pattern) for pattern in sampling.stop_regex]
        )

    @property
    def ended(self) -> bool:
        """Whether a stop has come."""
        return self._stream.match is not None

    def push(self, piece: str) -> str:
        """What now surely belongs to the text."""
        self._pieces.append(piece.encode("utf-8", "replace"))
        return self._stream.push(len(self._pieces) - 1)

    def finish(self) -> str:
        """No more comes: what was held back."""
        return self._stream.finish()


def sample_of(reply: Reply, sampling: Sampling, form: AnswerForm | None, name: str) -> Sample:
    """A generation's sample.

    Raises:
        BackendError: SGLC546, the answer is not in the form that was asked for.
    """
    said = reply.text
    if form is not None and (form.inside or reply.finish != "length"):
        said = _read(form, said, reply.finish, name)
        if sampling.regex is not None and not accepted(sampling.regex, said):
            raise _not_held(name, f"it does not match `{sampling.regex}`", said)
    cut = Cut(sampling)
    kept = cut.push(said) + cut.finish()
    count = len(reply.logprobs)
    if kept != reply.text and count:  # tokens behind the cut do not belong to it
        count, length = 0, 0
        while count < len(reply.texts) and length + len(reply.texts[count]) <= len(kept):
            length += len(reply.texts[count])
            count += 1
    return Sample(
        kept,
        (UNKNOWN_ID,) * count,
        "stop" if cut.ended else reply.finish,
        reply.logprobs[:count],
        reply.texts[:count],
        reply.top_logprobs[:count],
    )


def _read(form: AnswerForm, said: str, finish: str, name: str) -> str:
    try:
        return form.read(said)
    except (ValueError, RecursionError) as error:
        why = "it ended at `max_tokens`" if finish == "length" else f"it is not what was asked for: {error}"
        raise _not_held(name, why, said) from None


def _not_held(name: str, why: str, said: str) -> BackendError:
    shown = said if len(said) <= 80 else f"{said[:77]}..."
    return BackendError(
        "SGLC546", f"the answer for `{name}` does not have its form: {why}", note=f"the API gave {shown!r}",
        hint="give it more `max_tokens`, use `retries=2`, or a model that keeps to schemas",
    )  # fmt: skip


def gen_answer(request: ApiRequest, samples: Sequence[Sample], usage: Usage) -> ApiAnswer:
    """The end of a generation."""
    return ApiAnswer(GenDone(request.index, (), tuple(samples), usage), Made(samples[0].text))


def chosen(request: ApiRequest, reply: Reply, form: AnswerForm, usage: Usage) -> ApiAnswer:
    """The end of a choice that the model wrote.

    Raises:
        BackendError: SGLC546, it wrote something else.
    """
    name = request.node.site.name
    said = _read(form, reply.text, reply.finish, name)
    if said not in request.choices:
        raise _not_held(name, "it is none of the choices", said)
    choice = request.choices.index(said)
    event = SelectDone(request.index, (), choice, said, (), (), (), usage, decided="constrained")
    return ApiAnswer(event, Made(said))


def usage_of(data: Any, attempts: int) -> Usage:
    """Counts of one request: `data` is the answer's `usage`, or None."""
    prompt = getattr(data, "prompt_tokens", None) or 0
    details = getattr(data, "prompt_tokens_details", None)
    cached = getattr(details, "cached_tokens", None) or 0
    completion = getattr(data, "completion_tokens", None) or 0
    return Usage(prompt, cached, prompt - cached, 0, completion, attempts)


# -- choices by echo -----------------------------------------------------------------------------------


def _echo(request: ApiRequest, name: str) -> dict[str, Any]:
    """One request that has every choice behind the prompt scored, and each alone if the method needs that."""
    assert isinstance(request.node, SelectNode)
    before = text(request.prompt)
    prompts = [before + choice for choice in request.choices]
    if request.node.method in NEEDS_UNCONDITIONAL:
        prompts += request.choices
    return {"model": name, "prompt": prompts, "max_tokens": 0, "temperature": 0.0, "echo": True, "logprobs": 0}


def scored(request: ApiRequest, replies: Sequence[Any], usage: Usage) -> ApiAnswer:
    """The end of a choice from log-probabilities of echoed texts.

    Args:
        replies: for each prompt of `_echo`, in order, its `logprobs` (tokens, token_logprobs, text_offset).

    Raises:
        BackendError: SGLC544, they are not those of the texts.
    """
    node = request.node
    assert isinstance(node, SelectNode)
    before, count = len(text(request.prompt)), len(request.choices)
    if any(reply is None or not reply.token_logprobs for reply in replies):
        raise _no_scores(request)
    # Where a choice merges with the text before it, all are scored from the beginning of that token on.
    begins = [_begin(reply, before) for reply in replies[:count]]
    begin = min(reply.text_offset[at] for reply, at in zip(replies, begins, strict=False))
    logprobs = [_behind(reply, begin, request) for reply in replies[:count]]
    alone = [tuple(reply.token_logprobs) for reply in replies[count:]]
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


def _begin(reply: Any, before: int) -> int:
    """The first token that reaches behind the prompt's `before` characters."""
    offsets = [*reply.text_offset, float("inf")]
    return max(0, next(i for i, end in enumerate(offsets[1:]) if end > before))


def _behind(reply: Any, begin: int, request: ApiRequest) -> tuple[float, ...]:
    found: list[float] = []
    for number, (offset, logprob) in enumerate(zip(reply.text_offset, reply.token_logprobs, strict=True)):
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
