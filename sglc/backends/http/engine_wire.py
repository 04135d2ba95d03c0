"""What the protocols of other engines have in common: what they lack, and answers as `/generate` gives them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sglc.errors import BackendError
from sglc.ir.target import Tokenizer

Answer = Mapping[str, Any]
_UNSAID = ("canonical", "strict")  # say how we hold a text to a form, not to which
_BODY = ("input_ids", "sampling_params", "return_logprob", "logprob_start_len", "top_logprobs_num",
         "return_text_in_logprobs")  # fmt: skip


def others(body: Mapping[str, Any], engine: str) -> dict[str, Any]:
    """The fields of a request that are none of `/generate`'s own.

    Raises:
        BackendError: SGLC544, likeliest tokens or texts of tokens are asked for.
    """
    if body.get("top_logprobs_num") or body.get("return_text_in_logprobs"):
        raise lacking(f"likeliest tokens, and texts of tokens, are not read from a {engine} server")
    return {name: value for name, value in body.items() if name not in _BODY}


def check_said(left: Iterable[str], engine: str) -> None:
    """Refuse what is left of the sampling's fields.

    Raises:
        BackendError: SGLC544, with the name of the first.
    """
    for name in left:
        if name not in _UNSAID:
            raise lacking(f"a {engine} server has no field for `{name}`")


def lacking(message: str) -> BackendError:
    """What an engine cannot be asked for."""
    hint = "run this program on `local`, or on an sglc server"
    return BackendError("SGLC544", message, hint=hint)


def answer(
    text: str,
    reason: str,
    matched: object,
    tokens: tuple[int, int, int],
    made: Sequence[Any],
    scored: Sequence[Any],
) -> Answer:
    """An answer of `/generate`.

    Args:
        matched: the stop that ended it; None or "" for none.
        tokens: of the prompt, of these cached, and generated.
        made: (log-probability, id) of what stands for the text, `scored` of the prompt.
    """
    prompt, cached, completion = tokens
    meta = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "cached_tokens": cached,
        "finish_reason": {"type": reason, **({"matched": matched} if matched not in (None, "") else {})},
        "output_token_logprobs": made,
        "input_token_logprobs": scored,
    }
    return {"text": text, "meta_info": meta}


def kept(ids: Sequence[int], text: str, tokenizer: Tokenizer) -> list[int]:
    """The ids that stand for a text: without what ended it."""
    table, wanted = tokenizer.token_bytes(), text.encode()
    spelled, count = b"", 0
    for number, id_ in enumerate(ids, 1):
        spelled += table[id_]
        if not wanted.startswith(spelled):
            break
        if table[id_]:
            count = number
    return list(ids[:count])
