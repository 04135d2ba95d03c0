"""sglc: an optimizing compiler for LLM programs."""

import typing as _typing

from sglc.api import Function, function, set_default_backend
from sglc.errors import SglcError
from sglc.frontend.expr import assistant, gen, section, select, system, user

if _typing.TYPE_CHECKING:
    from sglc.loaded_plan import load_plan
    from sglc.result import Result
    from sglc.together import run_together

__all__ = [
    "Function",
    "Result",
    "SglcError",
    "assistant",
    "function",
    "gen",
    "load_plan",
    "run_together",
    "section",
    "select",
    "set_default_backend",
    "system",
    "user",
]

# What is resolved when it is used: what only runs need, ...
_LAZY = {"Result": "sglc.result", "load_plan": "sglc.loaded_plan", "run_together": "sglc.together"}

# ... for programs that want the whole graph, ...
_STRUCTURED = {
    **dict.fromkeys(("call", "cond", "loop", "map", "switch"), "sglc.frontend.control"),
    **dict.fromkeys(("contains", "eq", "not_", "parse_json"), "sglc.frontend.control"),
    **dict.fromkeys(("pure", "tool"), "sglc.frontend.tools"),
}

# ... and for programs that were written for SGLang.
_SGLANG = {
    "Anthropic": "sglc.remote",
    "Crusoe": "sglc.remote",
    "Engine": "sglc.surface",
    "LiteLLM": "sglc.remote",
    "OpenAI": "sglc.remote",
    "Runtime": "sglc.surface",
    "RuntimeEndpoint": "sglc.remote",
    "ServerArgs": "sglc.surface",
    "VertexAI": "sglc.remote",
    "assistant_begin": "sglc.frontend.expr",
    "assistant_end": "sglc.frontend.expr",
    "flush_cache": "sglc.current",
    "gen_int": "sglc.frontend.expr",
    "gen_string": "sglc.frontend.expr",
    "get_server_info": "sglc.current",
    "global_config": "sglc.settings",
    "greedy_token_selection": "sglc.frontend.choices",
    "image": "sglc.frontend.expr",
    "register_chat_template": "sglc.frontend.chat_templates",
    "separate_reasoning": "sglc.frontend.expr",
    "system_begin": "sglc.frontend.expr",
    "system_end": "sglc.frontend.expr",
    "token_length_normalized": "sglc.frontend.choices",
    "unconditional_likelihood_normalized": "sglc.frontend.choices",
    "user_begin": "sglc.frontend.expr",
    "user_end": "sglc.frontend.expr",
    "video": "sglc.frontend.expr",
}


def __getattr__(name: str) -> _typing.Any:
    module = _SGLANG.get(name) or _STRUCTURED.get(name) or _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module `sglc` has no `{name}`")
    from importlib import import_module

    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
