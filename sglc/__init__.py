"""sglc: an optimizing compiler for LLM programs."""

import typing as _typing

if _typing.TYPE_CHECKING:
    from sglc.api.function import Function, function, set_default_backend
    from sglc.api.plan import load_plan
    from sglc.api.together import run_together
    from sglc.errors import SglcError
    from sglc.execution.result import Result
    from sglc.frontend.language.expr import assistant, gen, section, select, system, user
    from sglc.frontend.outputs.called_tools import describe_tools

__all__ = [
    "Function",
    "Result",
    "SglcError",
    "assistant",
    "describe_tools",
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

# What is resolved when it is used, so that the command line begins at once: the language and its runs, ...
_OWN = {
    **dict.fromkeys(("Function", "function", "set_default_backend"), "sglc.api.function"),
    **dict.fromkeys(("assistant", "gen", "section", "select", "system", "user"), "sglc.frontend.language.expr"),
    "describe_tools": "sglc.frontend.outputs.called_tools",
    "Result": "sglc.execution.result",
    "SglcError": "sglc.errors",
    "load_plan": "sglc.api.plan",
    "run_together": "sglc.api.together",
}

# ... for programs that want the whole graph, ...
_STRUCTURED = {
    **dict.fromkeys(("call", "cond", "loop", "map", "switch"), "sglc.frontend.tracing.control"),
    **dict.fromkeys(("contains", "eq", "not_", "parse_json"), "sglc.frontend.tracing.control"),
    **dict.fromkeys(("pause", "pure", "run_tools", "tool"), "sglc.frontend.tracing.tools"),
}

# ... and for programs that were written for SGLang.
_SGLANG = {
    "Anthropic": "sglc.lang.endpoints",
    "Crusoe": "sglc.lang.endpoints",
    "Engine": "sglc.lang.runtime",
    "LiteLLM": "sglc.lang.endpoints",
    "OpenAI": "sglc.lang.endpoints",
    "Runtime": "sglc.lang.runtime",
    "RuntimeEndpoint": "sglc.lang.endpoints",
    "ServerArgs": "sglc.lang.runtime",
    "VertexAI": "sglc.lang.endpoints",
    "assistant_begin": "sglc.frontend.language.expr",
    "assistant_end": "sglc.frontend.language.expr",
    "flush_cache": "sglc.execution.context",
    "gen_int": "sglc.frontend.language.expr",
    "gen_string": "sglc.frontend.language.expr",
    "get_server_info": "sglc.execution.context",
    "global_config": "sglc.lang.global_config",
    "greedy_token_selection": "sglc.frontend.language.choices",
    "image": "sglc.frontend.language.expr",
    "register_chat_template": "sglc.frontend.language.chat_templates",
    "separate_reasoning": "sglc.frontend.language.expr",
    "system_begin": "sglc.frontend.language.expr",
    "system_end": "sglc.frontend.language.expr",
    "token_length_normalized": "sglc.frontend.language.choices",
    "unconditional_likelihood_normalized": "sglc.frontend.language.choices",
    "user_begin": "sglc.frontend.language.expr",
    "user_end": "sglc.frontend.language.expr",
    "video": "sglc.frontend.language.expr",
}


def __getattr__(name: str) -> _typing.Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("sglc")
    module = _OWN.get(name) or _SGLANG.get(name) or _STRUCTURED.get(name)
    if module is None:
        raise AttributeError(f"module `sglc` has no `{name}`")
    from importlib import import_module

    found = globals()[name] = getattr(import_module(module), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
