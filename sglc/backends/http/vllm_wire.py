"""vLLM's completions as plain data: what `/generate` asks for in their words, and their answers in its."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sglc.backends.http.engine_wire import Answer, answer, check_said, kept, others
from sglc.backends.http.server_info import ServerModel
from sglc.errors import BackendError
from sglc.ir.grammar.schema_regex import schema_regex
from sglc.ir.target import Tokenizer

PATH = "/v1/completions"
_SAME = (
    "n", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "logit_bias", "stop", "stop_token_ids", "ignore_eos",
)  # fmt: skip
_NAMES = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens", "sampling_seed": "seed"}
_FORMS = {"regex": "regex", "json_schema": "json", "ebnf": "grammar"}


def asked(body: Mapping[str, Any], model: ServerModel) -> list[dict[str, Any]]:
    """A request of `/generate` as one of completions; a field that is none of its own goes as it is.

    Raises:
        BackendError: SGLC544, vLLM has no field for something that is asked for, or it is not read from it.
    """
    sampling = dict(body["sampling_params"])
    more = others(body, "vLLM")
    made: dict[str, Any] = {"model": model.name, "prompt": body["input_ids"], "return_token_ids": True, **more}
    made |= {name: sampling.pop(name) for name in _SAME if name in sampling}
    made |= {_NAMES[name]: sampling.pop(name) for name in _NAMES if name in sampling}
    # Its own grammar of a schema has white space where ours has none.
    if (schema := sampling.get("json_schema")) is not None and (pattern := schema_regex(schema)) is not None:
        del sampling["json_schema"]
        sampling["regex"] = pattern
    form = {_FORMS[name]: sampling.pop(name) for name in _FORMS if name in sampling}
    if form:
        made["structured_outputs"] = form
    check_said(sampling, "vLLM")
    if not made["max_tokens"]:
        made["max_tokens"] = 1  # the least that it makes, and what is made is left out
    if body.get("return_logprob"):
        made["logprobs"] = 0  # of what was sampled alone
        if body["logprob_start_len"] >= 0:
            made["prompt_logprobs"] = 0
    return [made]


def told(answers: Sequence[Answer], body: Mapping[str, Any], tokenizer: Tokenizer) -> list[Answer]:
    """An answer of completions as those of `/generate`, one for each prompt and sample.

    Raises:
        BackendError: SGLC544, it lacks tokens, or their log-probabilities.
    """
    (whole,) = answers
    choices, usage = whole["choices"], whole.get("usage") or {}
    begin, wanted = body.get("logprob_start_len", -1), bool(body["sampling_params"]["max_new_tokens"])
    several = len(choices) > 1
    found: list[Answer] = []
    for choice in choices:
        ids, prompt = choice.get("token_ids"), choice.get("prompt_token_ids")
        if ids is None or prompt is None:
            raise BackendError(
                "SGLC544", "the vLLM server leaves out token ids", hint="it has to be 0.11 or newer"
            )
        text = choice["text"] if wanted else ""
        own = kept(ids, text, tokenizer) if wanted else []
        logprobs = (choice.get("logprobs") or {}).get("token_logprobs") or [0.0] * len(own)
        scored = choice.get("prompt_logprobs") or []
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        completion = len(ids) if several else usage.get("completion_tokens", len(ids))
        found.append(
            answer(
                text,
                choice["finish_reason"],
                choice.get("stop_reason"),
                (len(prompt), 0 if several else cached, completion),
                [[logprob, id_] for logprob, id_ in zip(logprobs, own, strict=False)],
                _scored(scored, prompt, begin) if begin >= 0 else [],
            )
        )
    return found


def _scored(given: Sequence[Any], prompt: Sequence[int], begin: int) -> list[list[Any]]:
    """Log-probabilities of a prompt's ids from `begin` on; the first id has none."""
    if len(given) != len(prompt):
        raise BackendError("SGLC544", "the vLLM server leaves out log-probabilities of the prompt")
    return [
        [None if place is None else place[str(id_)]["logprob"], id_]
        for place, id_ in zip(given[begin:], prompt[begin:], strict=True)
    ]
