"""SGLang's `Generate` as plain data: requests and answers of `/generate` as messages, and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from uuid import uuid4

from smg_grpc_proto import sglang_scheduler_pb2 as pb

from sglc.errors import BackendError
from sglc.ir.target import Tokenizer

Json = Any
# What counts as absent on the wire where it is 0, and is not.
_USUAL = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "n": 1}
_NAMES = {"ebnf": "ebnf_grammar"}
_FIELDS = pb.SamplingParams.DESCRIPTOR.fields_by_name


def requests_of(body: Mapping[str, Json], *, stream: bool = False) -> Iterator[Any]:
    """The messages that ask what `body` asks `/generate`, whose prompts are ids: one for each prompt.

    Raises:
        BackendError: SGLC544, something is asked for that answers have no place for.
    """
    if body.get("return_text_in_logprobs"):
        raise BackendError(
            "SGLC544", "the texts of tokens have no place in answers over gRPC", hint="use `http://`"
        )
    given = body["input_ids"]
    for ids in given if isinstance(given[0], list) else [given]:
        request = pb.GenerateRequest(
            request_id=uuid4().hex,
            tokenized=pb.TokenizedInput(input_ids=ids),
            return_logprob=body.get("return_logprob", False),
            logprob_start_len=body.get("logprob_start_len", -1),
            top_logprobs_num=body.get("top_logprobs_num", 0),
            stream=stream,
        )
        _add(request.sampling_params, {**body["sampling_params"], **body.get("custom_params", {})})
        yield request


def _add(params: Any, asked: Mapping[str, Json]) -> None:
    custom: dict[str, Json] = {}
    for name, value in {**_USUAL, **asked}.items():
        field = _NAMES.get(name, name)
        if field not in _FIELDS:
            # A seed has more bits than the numbers of a `Struct`.
            custom[name] = str(value) if name == "sampling_seed" else value
        elif isinstance(value, list):
            getattr(params, field).extend(value)
        elif isinstance(value, dict):
            getattr(params, field).update(value)
        else:
            setattr(params, field, value)
            if isinstance(value, float):  # the field has 32 bits of it
                custom[name] = value
    if custom:
        params.custom_params.update(custom)


class SoFar:
    """The answer to a request for one text, as far as it has come."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._output: list[Json] = []
        self._tops: list[Json] = []
        self._prompt: dict[str, Json] = {}

    def take(self, message: Any) -> dict[str, Json]:
        """One more message; gives the answer as `/generate` would have it now."""
        if message.HasField("complete"):
            return answer_of(message.complete, self._tokenizer)
        chunk = message.chunk
        self._ids += chunk.token_ids
        self._output += _tokens(chunk.output_logprobs)
        self._tops += _tops(chunk.output_logprobs.top_logprobs)
        self._prompt = self._prompt or _of_prompt(chunk.input_logprobs)
        about = {"output_token_logprobs": list(self._output), "output_top_logprobs": list(self._tops)}
        # A character may be cut in the middle; no text that was told is taken back.
        text = self._tokenizer.decode(self._ids).rstrip("\ufffd")
        return {"text": text, "meta_info": {**about, **self._prompt}}


def answer_of(complete: Any, tokenizer: Tokenizer) -> dict[str, Json]:
    """An answer that is whole, as `/generate` would have it."""
    reason: dict[str, Json] = {"type": complete.finish_reason}
    if matched := complete.WhichOneof("matched_stop"):
        reason["matched"] = getattr(complete, matched)
    about = {
        "finish_reason": reason,
        "prompt_tokens": complete.prompt_tokens,
        "completion_tokens": complete.completion_tokens,
        "cached_tokens": complete.cached_tokens,
        "output_token_logprobs": _tokens(complete.output_logprobs),
        "output_top_logprobs": _tops(complete.output_logprobs.top_logprobs),
    }
    text = tokenizer.decode(list(complete.output_ids))
    return {"text": text, "meta_info": {**about, **_of_prompt(complete.input_logprobs)}}


def _of_prompt(given: Any) -> dict[str, Json]:
    logprobs = [each.value if each.HasField("value") else None for each in given.token_logprobs]
    return {
        "input_token_logprobs": list(zip(logprobs, given.token_ids, strict=True)),
        "input_top_logprobs": [place or None for place in _tops(given.top_logprobs)],
    }


def _tokens(given: Any) -> list[tuple[float, int]]:
    return list(zip(given.token_logprobs, given.token_ids, strict=True))


def _tops(places: Sequence[Any]) -> list[list[tuple[float, int]]]:
    return [list(zip(place.values, place.token_ids, strict=True)) for place in places]
