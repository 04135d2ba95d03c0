"""What OpenAI's models take, model by model, and the default of servers that speak its protocol.

Facts of 2026-11, from the SDK's types and LiteLLM's table. A model that is not listed is taken to be as
careful as the newest: what is refused here by mistake can be allowed with `OpenAI(takes=...)`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sglc.ir.target import Takes


@dataclass(frozen=True, slots=True)
class ApiModel:
    """`protocol` as in `Target`. `length` is the request's field for `max_tokens`."""

    protocol: str
    takes: Takes
    images: bool = False
    scores_tokens: bool = False
    length: str = "max_completion_tokens"


_OPENAI = Takes(
    stops=4, samples=8, temperature=2.0, top_k=False, min_p=False, min_tokens=False, stop_tokens=False,
    stop_regex=False, logprobs=20, prompt_logprobs=False, regex=False, ebnf=False, json_schema="strict",
    prefill=False, cache_key=True,
)  # fmt: skip

# Chat models that sample as asked: stop strings, temperature, penalties, log-probabilities.
_PLAIN = ApiModel("chat", _OPENAI, images=True)
_OLD = ApiModel("chat", replace(_OPENAI, json_schema="", cache_key=False), length="max_tokens")
# Models that reason: one sample a request, none of the sampling parameters, no stop strings.
_REASONING = ApiModel(
    "chat",
    replace(
        _OPENAI, reasons=True, stops=0, samples=1, seed=False, temperature=None, top_p=False, penalties=False,
        logit_bias=False, logprobs=-1,
    ),
    images=True,
)  # fmt: skip
_BLIND = replace(_REASONING, images=False)
_UNKNOWN = replace(_BLIND, takes=replace(_BLIND.takes, json_schema=""))

_COMPLETIONS = ApiModel(
    "text",
    replace(_OPENAI, logprobs=5, json_schema="", prefill=True, cache_key=False),
    length="max_tokens",
)

# By the beginning of the name; the longest that fits counts.
MODELS = {
    "gpt-3.5-turbo": _OLD,
    "gpt-3.5-turbo-instruct": _COMPLETIONS,
    "davinci-002": replace(_COMPLETIONS, scores_tokens=True),
    "babbage-002": replace(_COMPLETIONS, scores_tokens=True),
    "gpt-4": _OLD,
    "gpt-4-turbo": replace(_OLD, images=True),
    "gpt-4o": _PLAIN,
    "gpt-4.1": _PLAIN,
    "gpt-4.5": _PLAIN,
    "chatgpt-4o": replace(_PLAIN, takes=replace(_OPENAI, json_schema="")),
    "o1": _REASONING,
    "o1-mini": _UNKNOWN,
    "o3": _REASONING,
    "o3-mini": _BLIND,
    "o4-mini": _REASONING,
    "gpt-5": _REASONING,
    "gpt-6": _REASONING,
}

# Servers of one's own (`OPENAI_BASE_URL`): what vLLM, SGLang, llama-server and sglc have in common.
_SERVER = replace(_OPENAI, samples=1, cache_key=False)
SERVER_CHAT = ApiModel("chat", _SERVER, images=False, length="max_tokens")
SERVER_COMPLETIONS = ApiModel(
    "text", replace(_SERVER, logprobs=5, prefill=True), scores_tokens=True, length="max_tokens"
)


def model_of(name: str, *, own_server: bool, chat: bool | None = None) -> ApiModel:
    """What the model `name` takes.

    Args:
        own_server: the base URL is not OpenAI's; names of its models count there too.
        chat: which protocol is asked for; None: the model's own, or chat.
    """
    fits = [prefix for prefix in MODELS if name.startswith(prefix)]
    found = MODELS[max(fits, key=len)] if fits else None
    if found is None or (chat is not None and (found.protocol == "chat") != chat):
        if own_server:
            return SERVER_COMPLETIONS if chat is False else SERVER_CHAT
        return _COMPLETIONS if chat is False else found or _UNKNOWN
    return found
