"""What a model takes: what the table knows of it, and what its protocol has no field for or its vendor refuses.

Each rule that is in no table says whose it is. A model that nobody knows is asked only for what all of its
protocol take: what is refused by mistake can be allowed with `takes=`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from sglc.backends.models.table import ModelFacts, facts_of
from sglc.ir.target import Takes


@dataclass(frozen=True, slots=True)
class ApiModel:
    """A model behind an API. `protocol` as in `Target`; `length` is OpenAI's field for `max_tokens`.

    `longest`: tokens of an answer that thinks before it, where a request has to say how many.
    `own_defaults`: where a request does not say temperature and top_p, they are not 1, but the model's own.
    """

    protocol: str
    takes: Takes
    images: bool = False
    scores_tokens: bool = False
    known: bool = True
    length: str = "max_completion_tokens"
    longest: int = 4096
    own_defaults: bool = False


def api_model(target: str) -> ApiModel | None:
    """What the model of a vendor's own API takes, by the name of its back end; None for other back ends."""
    kind, _, name = target.partition(":")
    match kind:
        case "openai" | "azure":
            return openai_model(target, own_server=False)
        case "openai-completions":
            return openai_model(target, own_server=False, chat=False)
        case "vertex" if not name.startswith(CLAUDE):
            return gemini_model(target)
        case "anthropic" | "vertex":
            return messages_model(target)
        case "gemini":
            return gemini_model(target)
        case "litellm":
            return litellm_model(target)
        case "mistral" | "openrouter":
            return dialect_model(target)
        case _:
            return None


CLAUDE = "claude-"  # what the models are called whose protocol is Anthropic's, wherever they are


_ROLES = ("system", "user", "assistant")

# -- OpenAI's protocols ----------------------------------------------------------------------------------

# OpenAI's API reference: at most 4 stop strings, 8 samples are usual, `top_logprobs` up to 20.
_OPENAI = Takes(
    stops=4, samples=8, temperature=2.0, top_k=False, min_p=False, min_tokens=False, stop_tokens=False,
    stop_regex=False, logprobs=20, prompt_logprobs=False, regex=False, ebnf=False, structural_tag=False,
    json_schema="", prefill=False, cache_key=True, tools=True, repetition_penalty=False,
)  # fmt: skip
# Models that reason: no `stop` ("not supported with latest reasoning models", API reference), one sample, none
# of the sampling parameters (reasoning guide).
_REASONING = replace(
    _OPENAI, reasons=True, stops=0, samples=1, seed=False, temperature=None, top_p=False, penalties=False,
    logit_bias=False, logprobs=-1,
)  # fmt: skip
_COMPLETIONS = ApiModel(
    "text", replace(_OPENAI, logprobs=5, prefill=True, cache_key=False, tools=False), length="max_tokens"
)
# Base models give log-probabilities of echoed text; the instructed one has not since 2023.
_BASE = ("babbage-002", "davinci-002")
# Servers of one's own: what vLLM, SGLang, llama-server and sglc have in common.
_SERVER = replace(_OPENAI, samples=1, json_schema="strict", cache_key=False)


def openai_model(target: str, *, own_server: bool, chat: bool | None = None) -> ApiModel:
    """A model of OpenAI's chat and completions protocols, at OpenAI, on Azure, or on a server of one's own.

    Args:
        target: `openai:MODEL` or `azure:DEPLOYMENT`, which often has the name of its model.
        own_server: the base URL is none of these two; names of OpenAI's models count there too.
        chat: which protocol is asked for; None: the model's own, or chat.
    """
    facts = facts_of(target)
    if facts is None and target.startswith("azure:"):
        facts = facts_of("openai:" + target.partition(":")[2])
    if facts is None or (chat is not None and chat == facts.completes):
        return _unknown_openai(facts, own_server, chat)
    if facts.completes:
        scores = facts.name.removeprefix("openai/").removeprefix("ft:").startswith(_BASE)
        return replace(_COMPLETIONS, scores_tokens=scores)
    length = "max_completion_tokens" if facts.schema or facts.reasons else "max_tokens"
    return ApiModel("chat", _openai(facts), facts.images, length=length)


def _openai(facts: ModelFacts) -> Takes:
    takes = replace(
        _REASONING if facts.reasons and not facts.effort_none else _OPENAI,
        json_schema="strict" if facts.schema else "",
        cache_key=facts.caches and facts.schema,  # the older ones keep no prompts
    )
    if facts.effort_none:
        # These do not think unless they are asked to, and take `temperature`, `top_p` and `logprobs` then
        # (OpenAI's guide to GPT-5.1 and 5.2).
        takes = replace(takes, stops=0, samples=1, seed=False, penalties=False, logit_bias=False)
    return takes


def _unknown_openai(facts: ModelFacts | None, own_server: bool, chat: bool | None) -> ApiModel:
    if own_server and chat is False:
        takes = replace(_SERVER, logprobs=5, prefill=True, tools=False)
        return ApiModel(
            "text", takes, scores_tokens=True, known=False, length="max_tokens", own_defaults=True
        )  # fmt: skip
    if own_server:  # vLLM and SGLang take defaults from the model's `generation_config.json`
        return ApiModel("chat", _SERVER, known=False, length="max_tokens", own_defaults=True)
    if chat is False:
        return replace(_COMPLETIONS, known=False)
    return ApiModel("chat", _REASONING, known=False)


# The types of Mistral's SDK have neither `min_p` nor `logit_bias` nor ids of tokens; log-probabilities have a
# shape of their own. A turn that is begun goes on with `prefix`, but nobody says that the answer leaves it out;
# without that the API refuses a last turn of the assistant's.
_MISTRAL = replace(
    _OPENAI, temperature=1.5, top_k=True, min_tokens=True, repetition_penalty=True, logit_bias=False,
    logprobs=-1, late_system=False, follows_own=False,
)  # fmt: skip
# OpenRouter's page of parameters; providers that lack one are not asked (`require_parameters`). A last turn of
# the assistant's is a prefill (its API reference).
_OPENROUTER = replace(_SERVER, top_k=True, min_p=True, repetition_penalty=True, follows_own=False)


def dialect_model(target: str) -> ApiModel:
    """A model of a service that speaks OpenAI's protocol: `mistral:MODEL`, `openrouter:VENDOR/MODEL`."""
    facts = facts_of(target)
    if target.startswith("openrouter:"):
        return ApiModel("chat", _OPENROUTER, known=False, length="max_tokens")
    # Which temperature is usual differs from model to model (Mistral's API reference).
    if facts is None:
        takes = replace(_MISTRAL, samples=1, cache_key=False)
        return ApiModel("chat", takes, known=False, length="max_tokens", own_defaults=True)
    takes = replace(_MISTRAL, json_schema="strict" if facts.schema else "", cache_key=facts.caches)
    return ApiModel("chat", takes, facts.images, length="max_tokens", own_defaults=True)


# -- Anthropic's messages ----------------------------------------------------------------------------------

PICTURES = ("image/jpeg", "image/png", "image/gif", "image/webp")  # the SDK's types

# The protocol has no field for seeds, penalties, log-probabilities or several samples (the SDK's types). A last
# turn of the assistant's is always a prefill. Texts that are empty or of white space alone are refused, and
# pictures outside of the user's turns.
NOT_IN_MESSAGES: dict[str, Any] = {
    "samples": 1, "seed": False, "min_p": False, "penalties": False, "repetition_penalty": False,
    "logit_bias": False, "min_tokens": False, "stop_tokens": False, "stop_regex": False, "logprobs": -1,
    "prompt_logprobs": False, "regex": False, "ebnf": False, "structural_tag": False, "blank_turns": False,
    "follows_own": False, "pictures": PICTURES, "picture_roles": ("user",),
}  # fmt: skip
# Stop strings of white space alone are refused ("each stop sequence must contain non-whitespace"), system turns
# behind others by older models. White space at the end of a prefilled turn is refused, and a prefilled turn
# together with `output_config.format`.
_MESSAGES = Takes(
    **NOT_IN_MESSAGES, blank_stops=False, temperature=None, top_p=False, top_k=False, json_schema="",
    prefill=False, bound_prefill=False, roles=_ROLES, late_system=False,
)  # fmt: skip


_LONGEST = 16_384  # tokens; the SDK wants answers that may be longer than 21,333 streamed


def messages_model(target: str) -> ApiModel:
    """A model of Anthropic's messages: `anthropic:MODEL`, or `vertex:MODEL` for Claude on Vertex AI."""
    facts = facts_of(target)
    if facts is None:
        return ApiModel("chat", replace(_MESSAGES, reasons=True), known=False)
    model = ApiModel("chat", _messages(facts), facts.images)
    return replace(model, longest=min(facts.longest_answer or model.longest, _LONGEST))


def _messages(facts: ModelFacts) -> Takes:
    takes = replace(
        _MESSAGES,
        json_schema="anthropic" if facts.schema else "",
        tools=facts.tools,
        prefill=facts.prefill,
        late_system=facts.late_system,
        reasons=facts.reasons and not facts.prefill,  # from 4.6 on they think when they see fit
        cache_key=facts.caches,
        cache_least=facts.least_kept or Takes().cache_least,
        cache_turns=True,
    )
    if not facts.fixed_sampling:
        # Models up to 4.6 take them still, temperatures up to 1 and, from 4.1 on, one of the two at a time; the
        # SDK, which has no such arguments any more, sends them as `extra_body`.
        takes = replace(takes, temperature=1.0, top_p=True, top_k=True, top_p_at_any_temperature=False)
    return takes


# -- Google's generate_content -------------------------------------------------------------------------------

# There are no fields for `min_p`, `logit_bias` and prompts' log-probabilities (Google's API reference).
NOT_IN_GENERATE: dict[str, Any] = {
    "min_p": False, "logit_bias": False, "min_tokens": False, "stop_tokens": False, "stop_regex": False,
    "prompt_logprobs": False, "regex": False, "ebnf": False, "structural_tag": False, "late_system": False,
    "cache_key": False, "picture_addresses": False, "follows_own": False,
}  # fmt: skip
# GenerationConfig: up to 5 stop strings, up to 8 candidates, temperatures up to 2. Log-probabilities of answers
# are refused by most models. Whether a turn of the model goes on where it ends differs by the model: none may
# be last.
_GENERATE = Takes(
    **NOT_IN_GENERATE, stops=5, samples=8, temperature=2.0, logprobs=-1, json_schema="", prefill=False,
    roles=_ROLES, repetition_penalty=False,
)  # fmt: skip


def gemini_model(target: str) -> ApiModel:
    """A model of Google's `generateContent`: `gemini:MODEL` or `vertex:MODEL`."""
    facts = facts_of(target)
    if facts is None:
        takes = replace(_GENERATE, temperature=None, top_p=False, top_k=False, penalties=False, samples=1)
        return ApiModel("chat", replace(takes, reasons=True), known=False)
    return ApiModel("chat", _generate(facts), facts.images)


def _generate(facts: ModelFacts) -> Takes:
    takes = replace(
        _GENERATE,
        json_schema="gemini" if facts.schema else "",
        tools=facts.tools,
        roles=_ROLES[1:] if facts.no_system else _ROLES,
        reasons=facts.reasons,
    )
    if facts.fixed_sampling:
        takes = replace(takes, temperature=None, top_p=False, top_k=False)
    if not facts.name.partition("/")[2].startswith(_PENALTIES):
        takes = replace(takes, penalties=False)
    return takes


_PENALTIES = ("gemini-1", "gemini-2", "gemma")  # later ones refuse them (LiteLLM's code; it is in no table)


# -- LiteLLM ---------------------------------------------------------------------------------------------------

# What LiteLLM says in all vendors' words: one sample, no parameters that only some have. A turn that is begun
# it glues before the answer, and system turns it moves to the front where the vendor has a field for them. What
# a last turn of the assistant's is, the vendor says: with OpenAI's models it is a whole one. Pictures it
# fetches where the vendor does not, and leaves out where they stand in other turns than the user's.
_LITELLM: dict[str, Any] = {
    "samples": 1, "seed": False, "penalties": False, "repetition_penalty": False, "logit_bias": False,
    "cache_key": False, "top_k": False, "prefill": False,
    "picture_roles": ("user",), "picture_addresses": True,
}  # fmt: skip


def litellm_model(target: str) -> ApiModel:
    """A model by LiteLLM's name. What its vendor refuses of what is taken here, LiteLLM refuses itself."""
    facts = facts_of(target)
    if facts is None:
        takes = replace(_OPENAI, logprobs=-1, tools=False, follows_own=False, **_LITELLM)
        return ApiModel("chat", takes, known=False, length="max_tokens")
    vendor = facts.name.partition("/")[0]
    if CLAUDE in facts.name:
        takes = replace(_messages(facts), late_system=False)
    elif vendor in ("gemini", "vertex_ai"):
        takes = _generate(facts)
    elif vendor in ("openai", "azure"):
        takes = _openai(facts)
    else:
        takes = replace(
            _OPENAI, json_schema="strict" if facts.schema else "", reasons=facts.reasons, logprobs=-1,
            roles=_ROLES[1:] if facts.no_system else None, follows_own=False,
        )  # fmt: skip
    if facts.fixed_sampling:
        takes = replace(takes, temperature=None, top_p=False)
    takes = replace(takes, tools=facts.tools, **_LITELLM)
    return ApiModel("chat", takes, facts.images, length="max_tokens")
