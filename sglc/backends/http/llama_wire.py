"""llama.cpp's `/completion` as plain data: what `/generate` asks for in its words, and its answers in its.

It scores no prompt, but says how likely each token was that it made, before grammars and samplers. So a text
is scored as what is made where the grammar allows its ids alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sglc.backends.http.engine_wire import Answer, answer, check_said, kept, lacking, others
from sglc.backends.http.server_info import ServerModel
from sglc.errors import BackendError
from sglc.ir.grammar.regex_gbnf import regex_gbnf
from sglc.ir.grammar.schema_regex import schema_regex
from sglc.ir.target import Tokenizer

PATH = "/completion"
_SAME = ("temperature", "top_p", "top_k", "min_p", "logit_bias", "stop")
# Its own order has the temperature last. What is off by default elsewhere is on in it.
_USUAL = {"samplers": ["penalties", "temperature", "top_k", "top_p", "min_p"], "temperature": 1.0, "top_p": 1.0,
          "top_k": 0, "min_p": 0.0}  # fmt: skip
_READ = ("content", "tokens", "tokens_predicted", "tokens_evaluated", "stop_type", "stopping_word", "truncated",
         "timings", "completion_probabilities")  # fmt: skip
_SEEDS = 2**31  # of 32 bits: the last of these means any, and samples count on from theirs
_LEAST_LOGPROB = -1e30  # below is that of 0, which is what becomes of a probability below some 1e-45


def asked(body: Mapping[str, Any], model: ServerModel) -> list[dict[str, Any]]:
    """A request of `/generate` as those of `/completion`: of as many samples as it has slots, or of one text.

    Raises:
        BackendError: SGLC544, llama.cpp has no field for something that is asked for.
    """
    sampling, more = dict(body["sampling_params"]), others(body, "llama.cpp")
    if isinstance(body["input_ids"][0], list):
        return [_scoring(ids, body["logprob_start_len"]) for ids in body["input_ids"]]
    ids, most, count = body["input_ids"], sampling.pop("max_new_tokens"), sampling.pop("n", 1)
    made = {"prompt": ids, "n_predict": most, "return_tokens": True, "response_fields": _READ, **_USUAL, **more}
    made |= {name: sampling.pop(name) for name in _SAME if name in sampling}
    grammar = _grammar(sampling)
    if grammar is not None:
        made["grammar"] = grammar
    if "repetition_penalty" in sampling:
        if "logit_bias" in made:
            raise lacking("a llama.cpp server adds a `logit_bias` before a `repetition_penalty`, not behind it")
        made |= {"repeat_penalty": sampling.pop("repetition_penalty"), "repeat_last_n": len(ids) + most}
    seed = sampling.pop("sampling_seed", None)
    check_said(sampling, "llama.cpp")
    return [
        made
        | {"n_cmpl": min(model.concurrency, count - first)}
        | ({} if seed is None else {"seed": (seed + first) % _SEEDS})
        for first in range(0, count, model.concurrency)
    ]


def _grammar(sampling: dict[str, Any]) -> str | None:
    """The grammar of a form, which is taken out of the sampling's fields."""
    schema = sampling.pop("json_schema", None)
    pattern = sampling.pop("regex", None) if schema is None else schema_regex(schema)
    if pattern is not None:
        return regex_gbnf(pattern)
    if schema is not None:
        raise lacking("a llama.cpp server cannot be held to all that this `json_schema` says")
    return sampling.pop("ebnf", None)  # type: ignore[no-any-return]


def _scoring(ids: Sequence[int], begin: int) -> dict[str, Any]:
    """The request that scores the ids from `begin` on; the first of all has nothing before it."""
    forced = ids[max(begin, 1) :]
    return {
        "prompt": ids[: max(begin, 1)],
        "n_predict": len(forced),
        "n_probs": 1,
        "grammar": "root ::= " + (" ".join(f"<[{id_}]>" for id_ in forced) or '""'),
        "samplers": [],
        "response_fields": _READ,
    }


def told(answers: Sequence[Any], body: Mapping[str, Any], tokenizer: Tokenizer) -> list[Answer]:
    """Answers of `/completion`, in order, as those of `/generate`.

    Raises:
        BackendError: SGLC544, they are not of the texts that were to be scored, or one was cut.
    """
    samples = [each for made in answers for each in (made if isinstance(made, list) else [made])]
    if not isinstance(body["input_ids"][0], list):
        return [_made(sample, tokenizer) for sample in samples]
    begin = body["logprob_start_len"]
    return [_scored(ids, begin, sample) for ids, sample in zip(body["input_ids"], samples, strict=True)]


def _made(sample: Mapping[str, Any], tokenizer: Tokenizer) -> Answer:
    if sample["truncated"]:
        raise BackendError("SGLC544", "the context of the llama.cpp server was full before the text ended",
                           hint="start it with a larger `--ctx-size`, which its slots share")  # fmt: skip
    reason = "length" if sample["stop_type"] == "limit" else "stop"
    tokens = sample["tokens_evaluated"], sample["timings"]["cache_n"], sample["tokens_predicted"]
    ids = kept(sample["tokens"], sample["content"], tokenizer)
    return answer(sample["content"], reason, sample["stopping_word"], tokens, [[None, id_] for id_ in ids], [])


def _scored(ids: Sequence[int], begin: int, sample: Mapping[str, Any]) -> Answer:
    forced = ids[max(begin, 1) :]
    made = sample.get("completion_probabilities", [])[: len(forced)]  # it makes one token at least
    if [place["id"] for place in made] != forced:
        raise BackendError("SGLC544", "the llama.cpp server made other tokens than those it was held to",
                           hint="it has to take token ids in grammars")  # fmt: skip
    logprobs = [place["logprob"] if place["logprob"] > _LEAST_LOGPROB else None for place in made]
    scored = [
        [logprob, id_] for logprob, id_ in zip(([] if begin else [None]) + logprobs, ids[begin:], strict=True)
    ]
    return answer("", "length", None, (len(ids), sample["timings"]["cache_n"], 0), [], scored)
