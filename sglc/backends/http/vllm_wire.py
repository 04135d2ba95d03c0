"""vLLM's completions as plain data: what `/generate` asks for in their words, and their answers in its."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sglc.errors import BackendError
from sglc.ir.target import Tokenizer

PATH = "/v1/completions"
_SAME = (
    "n", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "logit_bias", "stop", "stop_token_ids", "ignore_eos",
)  # fmt: skip
_NAMES = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens", "sampling_seed": "seed"}
_FORMS = {"regex": "regex", "json_schema": "json", "ebnf": "grammar"}
_UNSAID = ("canonical", "strict")  # say how we hold a text to a form, not to which
_BODY = ("input_ids", "sampling_params", "return_logprob", "logprob_start_len", "top_logprobs_num",
         "return_text_in_logprobs")  # fmt: skip


def asked(body: Mapping[str, Any], model: str) -> dict[str, Any]:
    """A request of `/generate` as one of completions; a field that is none of its own goes as it is.

    Raises:
        BackendError: SGLC544, vLLM has no field for something that is asked for, or it is not read from it.
    """
    sampling = dict(body["sampling_params"])
    more = {name: value for name, value in body.items() if name not in _BODY}
    if body.get("top_logprobs_num") or body.get("return_text_in_logprobs"):
        raise BackendError(
            "SGLC544", "likeliest tokens, and texts of tokens, are not read from a vLLM server",
            hint="run this program on `local`, or on an sglc server",
        )  # fmt: skip
    made: dict[str, Any] = {"model": model, "prompt": body["input_ids"], "return_token_ids": True, **more}
    made |= {name: sampling.pop(name) for name in _SAME if name in sampling}
    made |= {_NAMES[name]: sampling.pop(name) for name in _NAMES if name in sampling}
    form = {_FORMS[name]: sampling.pop(name) for name in _FORMS if name in sampling}
    if form:
        made["structured_outputs"] = form
    if left := [name for name in sampling if name not in _UNSAID]:
        raise BackendError(
            "SGLC544", f"a vLLM server has no field for `{left[0]}`",
            hint="run this program on `local`, or on an sglc server",
        )  # fmt: skip
    if not made["max_tokens"]:
        made["max_tokens"] = 1  # the least that it makes, and what is made is left out
    if body.get("return_logprob"):
        made["logprobs"] = 0  # of what was sampled alone
        if body["logprob_start_len"] >= 0:
            made["prompt_logprobs"] = 0
    return made


def told(answer: Mapping[str, Any], body: Mapping[str, Any], tokenizer: Tokenizer) -> list[Mapping[str, Any]]:
    """An answer of completions as those of `/generate`, one for each prompt and sample.

    Raises:
        BackendError: SGLC544, it lacks tokens, or their log-probabilities.
    """
    choices, usage = answer["choices"], answer.get("usage") or {}
    begin, wanted = body.get("logprob_start_len", -1), bool(body["sampling_params"]["max_new_tokens"])
    several = len(choices) > 1
    found: list[Mapping[str, Any]] = []
    for choice in choices:
        ids, prompt = choice.get("token_ids"), choice.get("prompt_token_ids")
        if ids is None or prompt is None:
            raise BackendError(
                "SGLC544", "the vLLM server leaves out token ids", hint="it has to be 0.11 or newer"
            )
        text = choice["text"] if wanted else ""
        kept = _kept(ids, text, tokenizer) if wanted else []
        logprobs = (choice.get("logprobs") or {}).get("token_logprobs") or [0.0] * len(kept)
        scored = choice.get("prompt_logprobs") or []
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        reason: dict[str, Any] = {"type": choice["finish_reason"]}
        if choice.get("stop_reason") is not None:
            reason["matched"] = choice["stop_reason"]
        meta = {
            "prompt_tokens": len(prompt),
            "completion_tokens": len(ids) if several else usage.get("completion_tokens", len(ids)),
            "cached_tokens": 0 if several else cached,
            "finish_reason": reason,
            "output_token_logprobs": [[logprob, id_] for logprob, id_ in zip(logprobs, kept, strict=False)],
            "input_token_logprobs": _scored(scored, prompt, begin) if begin >= 0 else [],
        }
        found.append({"text": text, "meta_info": meta})
    return found


def _scored(given: Sequence[Any], prompt: Sequence[int], begin: int) -> list[list[Any]]:
    """Log-probabilities of a prompt's ids from `begin` on; the first id has none."""
    if len(given) != len(prompt):
        raise BackendError("SGLC544", "the vLLM server leaves out log-probabilities of the prompt")
    return [
        [None if place is None else place[str(id_)]["logprob"], id_]
        for place, id_ in zip(given[begin:], prompt[begin:], strict=True)
    ]


def _kept(ids: Sequence[int], text: str, tokenizer: Tokenizer) -> list[int]:
    """The ids that stand for a text: without what ended it."""
    table, wanted = tokenizer.token_bytes(), text.encode()
    spelled, kept = b"", 0
    for number, id_ in enumerate(ids, 1):
        spelled += table[id_]
        if not wanted.startswith(spelled):
            break
        if table[id_]:
            kept = number
    return list(ids[:kept])
