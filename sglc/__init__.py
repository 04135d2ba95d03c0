"""sglc: an optimizing compiler for LLM programs."""

from typing import Any

from sglc.api import Function, function, set_default_backend
from sglc.errors import SglcError
from sglc.frontend.expr import assistant, gen, select, system, user
from sglc.result import Result

__all__ = [
    "Function",
    "Result",
    "SglcError",
    "assistant",
    "function",
    "gen",
    "select",
    "set_default_backend",
    "system",
    "user",
]

# Names that programs written for SGLang import, resolved when they are used.
_SGLANG = {
    "assistant_begin": "sglc.frontend.expr",
    "assistant_end": "sglc.frontend.expr",
    "flush_cache": "sglc.current",
    "gen_int": "sglc.frontend.expr",
    "gen_string": "sglc.frontend.expr",
    "get_server_info": "sglc.current",
    "greedy_token_selection": "sglc.frontend.choices",
    "system_begin": "sglc.frontend.expr",
    "system_end": "sglc.frontend.expr",
    "token_length_normalized": "sglc.frontend.choices",
    "unconditional_likelihood_normalized": "sglc.frontend.choices",
    "user_begin": "sglc.frontend.expr",
    "user_end": "sglc.frontend.expr",
}

# Names of SGLang's frontend that this release does not have: refused by name, so that nobody wonders.
_LATER = frozenset(
    [
        *("Anthropic", "Crusoe", "Engine", "LiteLLM", "OpenAI", "Runtime", "RuntimeEndpoint", "ServerArgs"),
        *("VertexAI", "global_config", "image", "register_chat_template", "separate_reasoning", "video"),
    ]
)


def __getattr__(name: str) -> Any:
    if name in _LATER:
        from sglc.errors import UsageError
        from sglc.frontend.locate import here

        raise UsageError("SGLC018", f"`sglc.{name}` is not in this release", here())
    if name not in _SGLANG:
        raise AttributeError(f"module `sglc` has no `{name}`")
    from importlib import import_module

    return getattr(import_module(_SGLANG[name]), name)
