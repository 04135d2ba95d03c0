"""sglc: an optimizing compiler for LLM programs."""

import typing as _typing

if _typing.TYPE_CHECKING:  # what is resolved below, for type checkers and editors
    from sglc.api.function import (
        Function as Function,
        function as function,
        set_default_backend as set_default_backend,
    )
    from sglc.api.plan import load_plan as load_plan
    from sglc.api.together import run_together as run_together
    from sglc.errors import SglcError as SglcError
    from sglc.execution.context import flush_cache as flush_cache, get_server_info as get_server_info
    from sglc.execution.result import Result as Result
    from sglc.frontend.language.chat_templates import register_chat_template as register_chat_template
    from sglc.frontend.language.choices import (
        greedy_token_selection as greedy_token_selection,
        token_length_normalized as token_length_normalized,
        unconditional_likelihood_normalized as unconditional_likelihood_normalized,
    )
    from sglc.frontend.language.expr import (
        assistant as assistant,
        assistant_begin as assistant_begin,
        assistant_end as assistant_end,
        gen as gen,
        gen_int as gen_int,
        gen_string as gen_string,
        image as image,
        section as section,
        select as select,
        separate_reasoning as separate_reasoning,
        system as system,
        system_begin as system_begin,
        system_end as system_end,
        user as user,
        user_begin as user_begin,
        user_end as user_end,
        video as video,
    )
    from sglc.frontend.outputs.called_tools import describe_tools as describe_tools
    from sglc.frontend.tracing.control import (
        call as call,
        cond as cond,
        contains as contains,
        eq as eq,
        loop as loop,
        map as map,
        not_ as not_,
        parse_json as parse_json,
        switch as switch,
    )
    from sglc.frontend.tracing.tools import pause as pause, pure as pure, run_tools as run_tools, tool as tool
    from sglc.lang.endpoints import (
        Anthropic as Anthropic,
        Crusoe as Crusoe,
        LiteLLM as LiteLLM,
        OpenAI as OpenAI,
        RuntimeEndpoint as RuntimeEndpoint,
        VertexAI as VertexAI,
    )
    from sglc.lang.global_config import global_config as global_config
    from sglc.lang.runtime import Engine as Engine, Runtime as Runtime, ServerArgs as ServerArgs

    __version__: str

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
__all__ = sorted(_OWN)

# ... for programs that want the whole graph, ...
_STRUCTURED = {
    **dict.fromkeys(("call", "cond", "loop", "map", "switch"), "sglc.frontend.tracing.control"),
    **dict.fromkeys(("contains", "eq", "not_", "parse_json"), "sglc.frontend.tracing.control"),
    **dict.fromkeys(("pause", "pure", "run_tools", "tool"), "sglc.frontend.tracing.tools"),
}

# ... and for programs that were written for SGLang.
_SGLANG = {
    **dict.fromkeys(("Anthropic", "Crusoe", "LiteLLM", "OpenAI"), "sglc.lang.endpoints"),
    **dict.fromkeys(("RuntimeEndpoint", "VertexAI"), "sglc.lang.endpoints"),
    **dict.fromkeys(("Engine", "Runtime", "ServerArgs"), "sglc.lang.runtime"),
    **dict.fromkeys(("assistant_begin", "assistant_end"), "sglc.frontend.language.expr"),
    **dict.fromkeys(("system_begin", "system_end", "user_begin", "user_end"), "sglc.frontend.language.expr"),
    **dict.fromkeys(("gen_int", "gen_string", "image"), "sglc.frontend.language.expr"),
    **dict.fromkeys(("separate_reasoning", "video"), "sglc.frontend.language.expr"),
    **dict.fromkeys(("flush_cache", "get_server_info"), "sglc.execution.context"),
    **dict.fromkeys(("greedy_token_selection", "token_length_normalized"), "sglc.frontend.language.choices"),
    "unconditional_likelihood_normalized": "sglc.frontend.language.choices",
    "global_config": "sglc.lang.global_config",
    "register_chat_template": "sglc.frontend.language.chat_templates",
}


if not _typing.TYPE_CHECKING:  # a checker that saw it would take every name

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
