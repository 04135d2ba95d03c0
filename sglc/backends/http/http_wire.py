"""SGLang's `/generate` as plain data: what is asked for, and what the answers mean. Nothing is sent here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any
from uuid import uuid4

from sglc.backends.http.server_info import ServerModel
from sglc.backends.remote.answers import Cut, asks_logprobs
from sglc.backends.remote.prompts import Prompt, ids, ids_and_tail
from sglc.backends.remote.segment_runner import ApiAnswer, ApiRequest
from sglc.backends.remote.text_tokenizer import TextTokenizer
from sglc.backends.retry import Paid
from sglc.errors import BackendError, RunError, shown
from sglc.ir.choice_scoring import NEEDS_UNCONDITIONAL, decide
from sglc.ir.plan.dataflow import encode_behind, with_ids
from sglc.ir.plan.events import Delta, GenDone, Sample, SelectDone, TokenLogprob, Usage
from sglc.ir.plan.segment import GenNode, ImagePart, Made, SelectNode
from sglc.ir.sampling import Sampling
from sglc.ir.target import ControlText
from sglc.runtime.ids import common_prefix

Json = Any
_NAMES = {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens", "seed": "sampling_seed"}
_REPORTS = ("logprobs_from", "top_logprobs", "logprob_text", "logprobs")
_USUAL = Sampling()
_OF_MODELS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")  # in `generation_config.json`
# Fields of sglc's servers that gateways leave out of `sampling_params` without a word.
_CUSTOM = ("canonical", "logit_bias", "stop_regex", "strict", "structural_tag")
_LOOK_BACK = 2  # ids before the end of a prompt that are looked at: a choice may merge with them


def prompt_field(prompt: Prompt, model: ServerModel) -> dict[str, Any]:
    """The prompt as the server takes it.

    Raises:
        RunError: SGLC402 it is empty, SGLC548 a literal would become a control token.
    """
    if model.exact:
        if not (whole := ids(prompt, model.tokenizer)):
            raise _nothing()
        return {"input_ids": list(whole)}
    text, pictures = _written(prompt, model)
    if not text:
        raise _nothing()
    return {"text": text, **({"image_data": pictures} if pictures else {})}


def _written(prompt: Prompt, model: ServerModel) -> tuple[str, list[str]]:
    """A prompt as text, and the pictures whose places are marked in it."""
    assert isinstance(model.tokenizer, TextTokenizer)
    pictures = [str(item.data) for item in prompt if isinstance(item, ImagePart)]
    mark = ControlText(model.image_token, (0,))
    items = tuple([mark if isinstance(item, ImagePart) else item for item in prompt])
    return model.tokenizer.text(Prompt(None, items)), pictures


def _nothing() -> RunError:
    return RunError("SGLC402", "there is no text before this generation", hint="append some text first")


def gen_body(request: ApiRequest, model: ServerModel) -> dict[str, Any]:
    """The request of a generation, not streaming.

    Raises:
        RunError: as `prompt_field`.
    """
    node = request.node
    assert isinstance(node, GenNode)
    sampling = node.sampling
    asked: dict[str, Any] = {"max_new_tokens": sampling.max_tokens}
    # SGLang's and vLLM's defaults may be the model's own; sglc's are ours, llama.cpp's stand in `llama_wire`.
    said = () if model.own or model.engine == "llama.cpp" else _OF_MODELS
    for field in fields(Sampling):
        value, usual = getattr(sampling, field.name), getattr(_USUAL, field.name)
        if field.name not in (*_REPORTS, "seed", "logit_bias") and (value != usual or field.name in said):
            asked[_NAMES.get(field.name, field.name)] = list(value) if isinstance(value, tuple) else value
    if more := [stop for stop in model.stops if stop not in sampling.stop]:
        asked["stop"] = [*sampling.stop, *more]
    if sampling.logit_bias:
        asked["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias}
    seed = node.seed if sampling.seed is None else sampling.seed
    if seed is not None:
        asked["sampling_seed"] = seed if model.own else seed % 2**63
    body = {**prompt_field(request.prompt, model), "sampling_params": asked}
    if model.own and (custom := {name: asked.pop(name) for name in _CUSTOM if name in asked}):
        body["custom_params"] = custom
    begin = sampling.logprobs_from
    if model.exact or begin is not None or asks_logprobs(sampling):  # the ids of exact prompts come with them
        body |= {"return_logprob": True, "logprob_start_len": -1 if begin is None else begin}
        body |= {"top_logprobs_num": sampling.top_logprobs} if sampling.top_logprobs else {}
        body |= {"return_text_in_logprobs": True} if sampling.logprob_text else {}
    return body


def one_by_one(body: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """A request for a gateway that asks the server over gRPC, as requests of one prompt each.

    Of a request it passes on few fields, but its id whole: that says how texts are sampled.

    Args:
        body: as of `gen_body` or `Choosing`, with ids for prompts.
        name: of the model.

    Raises:
        BackendError: SGLC544, something is asked for that it leaves out of answers.
    """
    if body.get("top_logprobs_num") or body.get("return_text_in_logprobs"):
        raise BackendError(
            "SGLC544", "a gateway that speaks gRPC to its servers leaves out likeliest tokens, and texts",
            hint="have it speak HTTP to them",
        )  # fmt: skip
    given = body["input_ids"]
    sampling = {**body["sampling_params"], **body.get("custom_params", {})}
    asked = {key: value for key, value in body.items() if key != "custom_params"} | {
        "model": name,
        "sampling_params": {key: value for key, value in sampling.items() if key in ("max_new_tokens", "n")},
    }
    told = json.dumps(sampling)
    return [
        {**asked, "input_ids": ids, "rid": f"sglc-{uuid4().hex}:{told}"}
        for ids in (given if isinstance(given[0], list) else [given])
    ]


@dataclass(slots=True)
class Spoken:
    """How far a streamed answer was handed on.

    `cut` is for servers that send what may begin a stop, and take it back.
    """

    cut: Cut | None = None
    text: str = ""
    tokens: int = 0
    heard: str = ""  # of it, what `cut` has

    def delta(self, index: int, answer: Mapping[str, Json]) -> Delta | None:
        """What is new in `answer`, which has all the text so far; None if nothing is.

        Raises:
            BackendError: SGLC544, it has something else.
        """
        whole, meta = str(answer["text"]), answer["meta_info"]
        held = self.cut if not meta.get("finish_reason") else None
        before = self.text if held is None else self.heard
        if not whole.startswith(before):
            raise BackendError(
                "SGLC544", "the server streams something else than all of the text so far",
                note=f"{shown(whole)!r} is no more of {shown(before)!r}",
                hint="start it without `--incremental-streaming-output`",
            )  # fmt: skip
        new = whole[len(before) :]
        if held is not None:
            self.heard, new = whole, held.push(new)
        if not new:
            return None
        prompt = () if self.text else _triples(meta.get("input_token_logprobs"))
        tops = () if self.text else _tops(meta.get("input_top_logprobs"))
        begin = self.tokens
        self.text += new
        surely = len(self.text) == len(whole)  # else it is not known which of them belong to what was held back
        tokens = _triples(meta.get("output_token_logprobs")) if surely else ()
        likeliest = _tops(meta.get("output_top_logprobs")) if surely else ()
        self.tokens = max(begin, len(tokens))
        made = tuple(place or () for place in likeliest[begin:])
        return Delta(index, new, tokens[begin:], made, prompt, tops)


def gen_answer(
    request: ApiRequest, answers: Sequence[Mapping[str, Json]], model: ServerModel, tries: int
) -> ApiAnswer:
    """The end of a generation; `answers` are its samples.

    Raises:
        BackendError: SGLC544, they lack what is needed.
    """
    node = request.node
    assert isinstance(node, GenNode)
    first = answers[0]["meta_info"]
    completion = sum(int(answer["meta_info"].get("completion_tokens") or 0) for answer in answers)
    usage = _usage(first, tries, completion)
    with Paid(usage):
        samples = [_sample(answer, node.sampling) for answer in answers]
    event = GenDone(
        request.index,
        (),
        tuple(samples),
        usage,
        _triples(first.get("input_token_logprobs")) if node.sampling.logprobs_from is not None else (),
        _tops(first.get("input_top_logprobs")) if node.sampling.logprobs_from is not None else (),
    )
    made = samples[0]
    if not model.exact:
        return ApiAnswer(event, Made(made.text))
    return ApiAnswer(event, with_ids(made.text, made.ids, model.tokenizer))


def _sample(answer: Mapping[str, Json], sampling: Sampling) -> Sample:
    meta = answer["meta_info"]
    reason = meta.get("finish_reason") or {}
    finish = reason.get("type")
    if finish == "abort":
        raise BackendError("SGLC544", "the server stopped the generation", note=str(meta["finish_reason"]))
    tokens = _triples(meta.get("output_token_logprobs"))
    return Sample(
        str(answer["text"]),
        tuple(id_ for _, id_, _ in tokens),
        "length" if finish == "length" else "stop",
        tuple(logprob or 0.0 for logprob, _, _ in tokens),
        tuple(said or "" for _, _, said in tokens) if sampling.logprob_text else (),
        tuple(place or () for place in _tops(meta.get("output_top_logprobs"))),
        matched=reason.get("matched", meta.get("matched_stop")),
    )


def _usage(meta: Mapping[str, Json], tries: int, completion: int, scored: int = 0) -> Usage:
    prompt, cached = int(meta.get("prompt_tokens") or 0), int(meta.get("cached_tokens") or 0)
    return Usage(prompt, cached, prompt - cached, scored, completion, tries)


def _triples(given: Json) -> tuple[TokenLogprob, ...]:
    return tuple((logprob, int(id_), said[0] if said else None) for logprob, id_, *said in given or ())


def _tops(given: Json) -> tuple[tuple[TokenLogprob, ...] | None, ...]:
    return tuple(None if place is None else _triples(place) for place in given or ())


# -- choices -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Choosing:
    """A choice between texts: `body` has every text behind the prompt scored from id `begin` on.

    Of an exact prompt `begin` is where the choices begin, and `ids` are theirs. Else the prompt itself comes
    first, so that the answer shows where they begin.
    """

    body: Mapping[str, Json]
    begin: int
    ids: tuple[tuple[int, ...], ...] = ()


def choosing(request: ApiRequest, model: ServerModel, prompt_tokens: int | None = None) -> Choosing:
    """The request that scores the choices.

    Args:
        prompt_tokens: of the prompt as the server reads it; needed unless prompts are exact, 0 to look at all.

    Raises:
        RunError: as `prompt_field`.
    """
    if model.exact:
        known, tail = ids_and_tail(request.prompt, model.tokenizer)
        encode = partial(encode_behind, model.tokenizer, known)
        whole = [(*known, *encode(tail + choice)) for choice in request.choices]
        begin = min(common_prefix((*known, *encode(tail)), ids) for ids in whole)
        if not begin:
            raise _nothing()
        body = _scoring({"input_ids": [list(ids) for ids in whole]}, begin)
        return Choosing(body, begin, tuple(ids[begin:] for ids in whole))
    assert prompt_tokens is not None
    before, pictures = _written(request.prompt, model)
    begin = max(0, prompt_tokens - _LOOK_BACK)
    texts = [before, *(before + choice for choice in request.choices)]
    seen = {"image_data": [pictures] * len(texts)} if pictures else {}
    return Choosing(_scoring({"text": texts, **seen}, begin), begin)


def alone(ids: Sequence[Sequence[int]]) -> Mapping[str, Json]:
    """The request that scores texts by themselves."""
    return _scoring({"input_ids": [list(own) for own in ids]}, 0)


def _scoring(prompts: Mapping[str, Json], begin: int) -> dict[str, Json]:
    sampling = {"max_new_tokens": 0, "temperature": 0.0}
    return {**prompts, "sampling_params": sampling, "return_logprob": True, "logprob_start_len": begin}


@dataclass(frozen=True, slots=True)
class ScoredText:
    """Ids of the choices behind what they have in common with the prompt, and their log-probabilities."""

    ids: tuple[tuple[int, ...], ...]
    logprobs: tuple[tuple[float, ...], ...]


def scores(asked: Choosing, answers: Sequence[Mapping[str, Json]]) -> ScoredText | None:
    """What the answers say; None: the window began too late, all of the prompt has to be looked at.

    Raises:
        BackendError: SGLC544, they are not of these texts.
        RunError: SGLC402, the choices have nothing before them.
    """
    told = [_triples(answer["meta_info"].get("input_token_logprobs")) for answer in answers]
    if asked.ids:
        if [tuple(id_ for _, id_, _ in own) for own in told] != list(asked.ids):
            raise BackendError("SGLC544", "the server scored other tokens than those it was asked for")
        shared, wholes = 0, told
    else:
        before, *wholes = told
        ids = [id_ for _, id_, _ in before]
        shared = min(common_prefix(ids, [id_ for _, id_, _ in own]) for own in wholes)
        if not shared:
            if asked.begin:
                return None
            raise _nothing()
    behind = [own[shared:] for own in wholes]
    logprobs = tuple(tuple(_sure(logprob) for logprob, _, _ in own) for own in behind)
    return ScoredText(tuple(tuple(id_ for _, id_, _ in own) for own in behind), logprobs)


def _sure(logprob: float | None) -> float:
    if logprob is None:
        raise BackendError("SGLC544", "the server left out a log-probability")
    return logprob


def chosen(
    request: ApiRequest,
    found: ScoredText,
    own: Sequence[Mapping[str, Json]],
    meta: Mapping[str, Json],
    tries: int,
) -> ApiAnswer:
    """The end of a choice.

    Args:
        own: answers of `alone`, if the method needs them.
        meta: of the first choice's answer.
    """
    node = request.node
    assert isinstance(node, SelectNode)
    by_itself = [_triples(answer["meta_info"].get("input_token_logprobs")) for answer in own]
    unconditional = tuple((None, *(logprob for logprob, _, _ in texts[1:])) for texts in by_itself)
    decision = decide(node.method, found.logprobs, unconditional)
    said = request.choices[decision.choice]
    prompt = int(meta.get("prompt_tokens") or 0) - len(found.ids[0])
    cached = min(int(meta.get("cached_tokens") or 0), prompt)
    usage = Usage(prompt, cached, prompt - cached, sum(len(ids) - 1 for ids in found.ids), 0, tries)
    event = SelectDone(
        request.index, (), decision.choice, said, decision.scores, found.ids, found.logprobs, usage,
        unconditional, decision.matrix,
    )  # fmt: skip
    return ApiAnswer(event, Made(said))


def needs_alone(request: ApiRequest) -> bool:
    """Whether the method also wants the choices scored by themselves."""
    return isinstance(request.node, SelectNode) and request.node.method in NEEDS_UNCONDITIONAL
