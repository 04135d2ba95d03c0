"""SGLang's scheduler protocol as plain data: its requests as those of `/generate`, and answers out of pieces.

The protocol's peer has the tokenizer: ids go both ways, and the text of an answer is the peer's to make. So the
ids of an answer spell its text, whichever ids a stop string was found in.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Sequence
from ctypes import c_float
from typing import Any

from google.protobuf.json_format import MessageToDict
from pydantic import ValidationError
from smg_grpc_proto import sglang_scheduler_pb2 as pb

from sglc.ir.plan.events import GenDone, Sample, TokenLogprob
from sglc.serve.bodies import OTHERWISE, GenerateBody
from sglc.serve.fields import WHOLE_CHARACTERS
from sglc.serve.limits import check_sizes
from sglc.serve.logprobs import Tops
from sglc.serve.problems import Refusal, bad, of_body
from sglc.serve.prompts import ServedTokenizer
from sglc.serve.work import Piece, Work, made_by_each, tokens_of, tops_of

_TAKEN = {
    "request_id", "tokenized", "sampling_params", "return_logprob", "logprob_start_len", "top_logprobs_num",
    "stream",
}  # fmt: skip
# They say who asks or how to go about it, and change no id: those that are ignored.
_ADVISORY = {"timestamp", "log_metrics", "require_reasoning"}
_OF_TEXT = {"skip_special_tokens", "spaces_between_special_tokens", "stream_interval"}
_NAMES = {"ebnf_grammar": "ebnf"}
# What our clients say of sampling in a request's id, which gateways pass on whole.
_IN_ID = re.compile(r"sglc-[0-9a-f]{32}:(\{.*\})", re.DOTALL)
_LONGEST_ID = 1 << 15  # characters: each message of an answer bears it
_MOST_BYTES = 1 << 16  # of custom_params
_MOST_DIGITS = 20  # of a number that is written as text
# What 0 means of fields that nobody can leave out on the wire: nothing, but a temperature of 0 is greedy.
_OF_ZERO = {"temperature": 0.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "n": 1}


def body_of(request: Any, most: Callable[[int], int], max_len: int) -> GenerateBody:
    """What a `GenerateRequest` asks for, as a body of `/generate`.

    Args:
        most: tokens of an answer that no limit is named for, of a prompt of so many ids.
        max_len: tokens that the model has room for.

    Raises:
        Refusal: fields that are not supported, or wrong.
    """
    for field, value in request.ListFields():
        if field.name not in _TAKEN | _ADVISORY and (field.message_type is None or value):
            raise bad(field.name, "is not supported", "unsupported_field")
    if not request.HasField("tokenized"):
        raise bad("tokenized", "is missing", "missing_field")
    check_sizes([request.tokenized.input_ids], "input_ids", max_len, 0)
    if len(request.request_id) > _LONGEST_ID:
        raise bad("request_id", f"has more than {_LONGEST_ID} characters")
    ids = list(request.tokenized.input_ids)
    asked = _sampling(request.sampling_params) | _of_id(request.request_id)
    given: dict[str, Any] = {
        "cache_salt": asked.pop("cache_salt", ""),
        "input_ids": ids,
        "sampling_params": {"max_new_tokens": most(len(ids)), **asked},
        "return_logprob": request.return_logprob,
        "logprob_start_len": request.logprob_start_len,
        "top_logprobs_num": request.top_logprobs_num,
        "stream": request.stream,
    }
    try:
        return GenerateBody.model_validate(given, context=WHOLE_CHARACTERS)
    except ValidationError as error:
        raise of_body(error, GenerateBody) from None


def _sampling(sampling: Any) -> dict[str, Any]:
    """What is set, under the names of `/generate`. `custom_params` are further fields of these."""
    made: dict[str, Any] = {}
    custom: dict[str, Any] = {}
    for field, value in sampling.ListFields():
        name = _NAMES.get(field.name, field.name)
        if name == "custom_params":
            custom = {key: own if key == "cache_salt" else _whole(own) for key, own in _custom(value).items()}
        elif name == "logit_bias":
            made[name] = {key: _short(bias) for key, bias in value.items()}
        elif isinstance(value, float):
            made[name] = _short(value)
        elif name not in _OF_TEXT:
            made[name] = value if isinstance(value, bool | int | str) else list(value)
    for name in made.keys() & custom.keys():
        if not _equal(made[name], custom[name]):
            param = f"sampling_params.{name}"
            raise Refusal(400, f"`{param}`: {OTHERWISE}", param=param, code="invalid_value")
    return {**_OF_ZERO, **made, **custom}


def _custom(given: Any) -> dict[str, Any]:
    try:
        if given.ByteSize() <= _MOST_BYTES:
            return dict(MessageToDict(given))
        said = f"has more than {_MOST_BYTES} bytes"
    except ValueError:  # as JSON has no number for it
        said = "has a number that is not finite"
    raise bad("sampling_params.custom_params", said)


def _of_id(request_id: str) -> Any:
    found = _IN_ID.fullmatch(request_id)
    try:
        return json.loads(found[1]) if found else {}
    except (ValueError, RecursionError):
        raise bad("request_id", "is no JSON behind its colon") from None


def _short(value: float) -> float:
    """The number that was meant: 0.7 and not 0.699999988, which is what 32 bits have of it."""
    short = float(f"{value:.6g}")
    return short if struct.pack("f", short) == struct.pack("f", value) else value


def _equal(value: Any, custom: Any) -> bool:
    """Whether a field has what `custom_params` have of it: a float there may have all 64 bits."""
    if isinstance(value, float) and isinstance(custom, int | float):
        return value == custom or value == _short(c_float(custom).value)
    return bool(value == custom)


def _whole(value: Any) -> Any:
    """All numbers of a `Struct` are floats; a seed of more than 53 bits is written as text."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    digits = isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= _MOST_DIGITS
    return int(value) if digits else value


# -- answers -----------------------------------------------------------------------------------------


class _Told:
    """What was told of a text so far: how many of its tokens, and what is known of its prompt.

    `message` is a chunk of it, which is filled anew with each.
    """

    __slots__ = ("cached", "chunk", "message", "prompt", "size", "tokens")

    def __init__(self, request_id: str, choice: int, size: int) -> None:
        self.tokens = self.cached = 0
        self.size = size  # of its prompt
        self.prompt: tuple[Sequence[TokenLogprob], Tops] = ((), ())
        self.message = pb.GenerateResponse(request_id=request_id)
        self.chunk = self.message.chunk
        self.chunk.prompt_tokens, self.chunk.index = size, choice


class Answering:
    """The answer to one request, as messages that bear its id, on the wire's form."""

    def __init__(self, request_id: str, body: GenerateBody, work: Work, tokenizer: ServedTokenizer) -> None:
        self._request_id, self._body, self._work, self._tokenizer = request_id, body, work, tokenizer
        self._told = [
            _Told(request_id, choice, len(work.prompt_of(choice).ids)) for choice in range(work.choices)
        ]

    def chunks(self, pieces: Sequence[Piece]) -> list[bytes]:
        """What has come together of a stream: a message for each text, and one more for each that ended."""
        made: list[bytes] = []
        if not pieces:
            return made
        several = len(self._told) > 1
        for choice, own in _by_choice(pieces).items() if several else ((0, pieces),):
            told, first, last = self._told[choice], own[0], own[-1]
            tokens: Sequence[TokenLogprob] = first.tokens
            if len(own) > 1:
                tokens = [token for piece in own for token in piece.tokens]
            for piece in own:
                if piece.cached > told.cached:
                    told.cached = piece.cached
            if first.begins:
                told.prompt = first.prompt_logprobs, first.prompt_tops
            ids = [id_ for _, id_, _ in tokens]
            if last.last is not None:
                ids += self._behind(last.last)
            told.tokens += len(tokens)
            if ids:
                chunk = told.chunk
                chunk.token_ids[:] = ids
                chunk.completion_tokens, chunk.cached_tokens = told.tokens, min(told.cached, told.size)
                if self._body.return_logprob:
                    tops = [top for piece in own for top in piece.tops]
                    self._add_logprobs(chunk, tokens, tops, told.prompt if first.begins else ((), ()))
                made.append(told.message.SerializeToString())
            if last.last is not None:
                made.append(self._complete(choice, last.last, last.usage.completion))
        return made

    def whole(self, ends: Sequence[GenDone]) -> list[bytes]:
        """The messages of an answer that is not streamed: one for each text."""
        made: list[bytes] = []
        for end in ends:
            for sample, spent in zip(end.samples, made_by_each(end), strict=True):
                told = self._told[len(made)]
                told.cached = end.usage.cached
                told.prompt = end.prompt_logprobs, end.prompt_top_logprobs
                made.append(self._complete(len(made), sample, spent))
        return made

    def _complete(self, choice: int, sample: Sample, spent: int) -> bytes:
        told = self._told[choice]
        complete = pb.GenerateComplete(
            output_ids=[*sample.ids, *self._behind(sample)],
            finish_reason=sample.finish,
            completion_tokens=spent,
            prompt_tokens=told.size,
            cached_tokens=min(told.cached, told.size),
            index=choice,
        )
        if isinstance(sample.matched, str):
            complete.matched_stop_str = sample.matched
        elif sample.matched is not None:
            complete.matched_token_id = sample.matched
        if self._body.return_logprob:
            self._add_logprobs(complete, tokens_of(sample), tops_of(sample), told.prompt)
        message = pb.GenerateResponse(request_id=self._request_id, complete=complete)
        written: bytes = message.SerializeToString()
        return written

    def _behind(self, sample: Sample) -> list[int]:
        """Ids of what a text has behind its kept ones: a stop string may begin inside of a token."""
        if sample.ids and not isinstance(sample.matched, str):
            return []
        return list(self._tokenizer.encode_within(sample.text[len(self._tokenizer.decode(sample.ids)) :]))

    def _add_logprobs(
        self,
        message: Any,
        tokens: Sequence[TokenLogprob],
        tops: Tops,
        prompt: tuple[Sequence[TokenLogprob], Tops],
    ) -> None:
        message.ClearField("output_logprobs")
        message.ClearField("input_logprobs")
        output, given = message.output_logprobs, message.input_logprobs
        output.token_logprobs.extend([logprob for logprob, _, _ in tokens])
        output.token_ids.extend([id_ for _, id_, _ in tokens])
        output.top_logprobs.extend(map(_top, tops))
        if prompt[0]:
            given.token_logprobs.extend([pb.InputTokenLogProb(value=logprob) for logprob, _, _ in prompt[0]])
            given.token_ids.extend([id_ for _, id_, _ in prompt[0]])
            given.top_logprobs.extend(map(_top, prompt[1]))


def _by_choice(pieces: Sequence[Piece]) -> dict[int, list[Piece]]:
    found: dict[int, list[Piece]] = {}
    for piece in pieces:
        found.setdefault(piece.choice, []).append(piece)
    return found


def _top(likeliest: Sequence[TokenLogprob] | None) -> Any:
    values = [logprob for logprob, _, _ in likeliest or ()]
    return pb.TopLogProbs(values=values, token_ids=[id_ for _, id_, _ in likeliest or ()])
