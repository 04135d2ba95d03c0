"""SGLang's classes of back ends, its switches and its module paths."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

import sglc as sgl
from sglc.backends.scripted import ScriptedBackend
from sglc.errors import BackendError, TraceError, UsageError
from sglc.frontend.language.chat_templates import (
    ChatTemplate,
    ChatTemplateStyle,
    get_chat_template,
    get_chat_template_by_model_path,
    jinja_of,
    register_chat_template,
    register_chat_template_matching_function,
)
from sglc.runtime.tokenizer.chat_template import ChatTemplate as Jinja
from tests.runtime.tiny_model import save_tiny_model
from tests.small_default import says
from tests.waiting import press_ctrl_c, until


@sgl.function
def hello(s: Any) -> None:
    s += sgl.user("Hi") + sgl.assistant(sgl.gen("x", max_tokens=4, temperature=0))


@pytest.fixture(autouse=True)
def no_default() -> Iterator[None]:
    yield
    sgl.set_default_backend(None)
    sgl.global_config.verbosity = 0


# -- back ends by name and by object ---------------------------------------------------------------


def test_an_unknown_back_end_of_one_call_is_an_error_with_its_place() -> None:
    @sgl.function
    def asks(s: Any) -> None:
        s += "a" + sgl.gen("x", backend="nowhere")

    error = asks.run(backend=ScriptedBackend(lambda asked: "")).error()
    assert isinstance(error, UsageError)
    assert error.code == "SGLC012"
    assert error.loc is not None
    assert error.loc.line == asks.definition.loc.line + 1


# -- Runtime and Engine ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mem_fraction_static": 0.9}, "takes no `mem_fraction_static`"),
        ({"tp_size": 2}, "`tp_size` cannot be `2`"),
        ({"dtype": "int3"}, "`dtype` cannot be `'int3'`"),
        ({"page_size": 0}, "`page_size` cannot be `0`"),
    ],
)
def test_server_arguments_are_checked_by_name(arguments: dict[str, Any], message: str) -> None:
    for kind in (sgl.Runtime, sgl.Engine):
        with pytest.raises(UsageError, match=message) as caught:
            kind(model_path="smollm2", **arguments)
        assert caught.value.code == "SGLC027"
    with pytest.raises(UsageError, match="SGLC029"):
        sgl.Runtime(chat_template="no-such")


def test_a_server_argument_may_be_none_where_that_is_its_default() -> None:
    unset: dict[str, Any] = {"chunked_prefill_size": None, "max_running_requests": None, "chat_template": None}
    assert sgl.Engine(model_path="smollm2", **unset).server_args == sgl.ServerArgs(model_path="smollm2")
    with pytest.raises(UsageError, match="`page_size` cannot be `None`"):
        sgl.Engine(model_path="smollm2", page_size=None)


def test_a_runtime_loads_nothing_before_its_use() -> None:
    runtime = sgl.Runtime(
        model_path="no/such/model", max_running_requests=3, disable_radix_cache=True, log_level="error"
    )
    assert runtime.endpoint.options.max_rows == 3
    assert not runtime.endpoint.options.cache
    assert runtime.server_args == sgl.ServerArgs(
        model_path="no/such/model", max_running_requests=3, disable_radix_cache=True
    )
    runtime.shutdown()


@pytest.mark.parametrize("head_dim", [8, 32])  # what torch computes, and what compiled kernels can
@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_model_that_computes_no_numbers_fails_what_asks_it(
    tmp_path: Path, head_dim: int, number: float
) -> None:
    save_tiny_model(tmp_path, head_dim=head_dim, intermediate_size=64)
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.norm.weight"][:] = number
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})

    @sgl.function
    def chosen(s: Any) -> None:
        s += "a" + sgl.select("x", choices=["b", "cd"])

    with sgl.Engine(model_path=str(tmp_path), device="cpu") as engine:
        for params in ({"temperature": 0}, {"temperature": 1.0, "n": 2}, {"regex": "a+"}):
            with pytest.raises(BackendError, match=r"SGLC518.*not numbers"):
                engine.generate("a", params)
        with pytest.raises(BackendError, match=r"SGLC518.*not numbers"):
            chosen.run(backend=engine)["x"]
        with pytest.raises(BackendError, match=r"SGLC518.*not numbers"):
            engine.generate("abc", {"max_new_tokens": 0}, logprob_start_len=0)
        info = engine.server_info()
        assert (info["requests"], info["used_pages"], info["executor"]) == (
            0, 0, "CpuExecutor" if head_dim == 32 else "TorchExecutor",
        )  # fmt: skip


@pytest.mark.usefixtures("smollm2")
def test_an_engine_with_the_real_model() -> None:
    with sgl.Engine(model_path="smollm2", chat_template="chatml") as engine:
        made = engine.generate("The capital of France is", {"max_new_tokens": 3, "temperature": 0})
        assert says(made["text"][:6], " Paris")
        assert made["meta_info"]["completion_tokens"] == len(made["output_ids"])
        # Control tokens in a prompt are control tokens.
        tokenizer = engine.get_tokenizer()
        turn = tokenizer.render([{"role": "user", "content": "Hi"}], generate=True)
        assert turn == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
        params = {"max_new_tokens": 4, "temperature": 0, "stop": ["\n"]}
        first, second = engine.generate([turn, "1, 2, 3,"], params)
        assert says(second["text"][:2], " 4")
        (raw,) = json.loads(sgl.Runtime.generate(engine, [turn], params))
        assert raw["output_ids"] == first["output_ids"]
        assert len(engine.generate("a", {"max_new_tokens": 1, "n": 3})) == 3
        each = engine.generate(["a", "b"], [{"max_new_tokens": 1}, {"max_new_tokens": 2, "ignore_eos": True}])
        assert [one["meta_info"]["completion_tokens"] for one in each] == [1, 2]
        # It is a back end like any other, under the template that was asked for.
        sgl.set_default_backend(engine)
        result = hello.run()
        assert result.text().startswith(turn)
        assert result["x"].startswith(first["text"][:3])
        assert sgl.get_server_info()["model"] == "smollm2"
        sgl.flush_cache()
        with pytest.raises(UsageError, match="SGLC031"):
            engine.generate("a", {"max_tokens": 3})
        for prompt, given in (
            ([], {}),
            (["a", "b"], [{}]),
            ("a", ["max_new_tokens"]),
            (None, {}),
            (5, {}),
            ("a", 5),
        ):
            with pytest.raises(UsageError, match="SGLC030"):
                engine.generate(prompt, given)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sgl.Engine]:
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny_model(folder, max_position_embeddings=100_000)
    with sgl.Engine(model_path=str(folder), device="cpu") as engine:
        yield engine


def test_each_sample_has_its_own_log_probabilities(tiny: sgl.Engine) -> None:
    params = {"max_new_tokens": 30, "temperature": 3.0, "n": 4, "sampling_seed": 3, "stop": ["a", "e", "t"]}
    several = tiny.generate("once", params, return_logprob=True, top_logprobs_num=2)
    assert len({tuple(one["output_ids"]) for one in several}) == 4
    for one in several:
        ids, meta = one["output_ids"], one["meta_info"]
        assert [id_ for _, id_, _ in meta["output_token_logprobs"]] == ids
        assert len(meta["output_top_logprobs"]) == len(ids)
        assert meta["completion_tokens"] >= len(ids)
        assert meta["prompt_tokens"] == len(meta["prompt_ids"])
    made = [one["meta_info"]["completion_tokens"] for one in several]
    assert sum(made) == several[0]["meta_info"]["usage"]["completion"]
    ends = [one["meta_info"]["finish_reason"] for one in several]
    assert len({json.dumps(end) for end in ends}) > 1


@pytest.mark.parametrize(
    ("params", "code"),
    [
        ({"regex": "a", "json_schema": "{}"}, "SGLC112.*`generate` has both `regex` and `json_schema`"),
        ({"ebnf": 'root ::= "a"', "json_schema": {}}, "SGLC112.*`json_schema` and `ebnf`"),
        ({"temperature": 1e300}, "SGLC103.*from 0 to 3e[+]38"),
        ({"temperature": 10**400}, "SGLC103.*from 0 to 3e[+]38"),
        ({"logit_bias": {5: 10**400}}, "SGLC103.*larger than any float"),
    ],
)
def test_sampling_parameters_that_are_refused(tiny: sgl.Engine, params: dict[str, Any], code: str) -> None:
    with pytest.raises(TraceError, match=code):
        tiny.generate("a", params)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("params", [{"temperature": 3 * 10**38}, {"logit_bias": {5: 1e300, 6: -(10**300)}}])
def test_the_largest_numbers_are_taken(tiny: sgl.Engine, params: dict[str, Any]) -> None:
    assert tiny.generate("a", {"max_new_tokens": 2, "ignore_eos": True, **params})["output_ids"]


ENDLESS = {"max_new_tokens": 90_000, "ignore_eos": True}


def test_ctrl_c_stops_what_an_engine_generates(tiny: sgl.Engine) -> None:
    press_ctrl_c(lambda: tiny.server_info()["requests"])
    with pytest.raises(KeyboardInterrupt):
        tiny.generate("once", ENDLESS)
    until(lambda: tiny.server_info()["requests"] == 0)


def test_a_cancelled_task_stops_what_an_engine_generates(tiny: sgl.Engine) -> None:
    async def main() -> None:
        task = asyncio.ensure_future(tiny.async_generate("once", ENDLESS))
        while not await asyncio.to_thread(lambda: tiny.server_info()["requests"]):
            pass
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    until(lambda: tiny.server_info()["requests"] == 0)
    assert len(asyncio.run(tiny.async_generate("once", {"max_new_tokens": 2}))["output_ids"]) <= 2


# -- chat templates --------------------------------------------------------------------------------

TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": '{{ 1 }} and "two"'},
    {"role": "assistant", "content": "3"},
    {"role": "user", "content": "Why?"},
]


@pytest.mark.parametrize(
    "name",
    ["default", "claude", "chatml", "qwen", "llama-2-chat", "llama-3-instruct", "gemma-it", "vicuna_v1.1"],
)
def test_a_template_says_the_same_as_jinja(name: str) -> None:
    template = get_chat_template(name)
    jinja = Jinja(jinja_of(template), {})
    for end in range(1, len(TALK) + 1):
        assert jinja.render(TALK[:end], generate=False) == template.get_prompt(TALK[:end])
    open_turn = template.role_prefix_and_suffix["assistant"][0]
    assert jinja.render(TALK, generate=True) == template.get_prompt(TALK) + open_turn
    without = [{"role": "system", "content": None}, *TALK[1:2]]
    assert jinja.render(TALK[1:2], generate=False) == template.get_prompt(
        without if template.default_system_prompt is not None else TALK[1:2]
    )


@pytest.mark.usefixtures("smollm2")
def test_a_registered_template_is_used_by_its_name() -> None:
    template = ChatTemplate(
        "test-arrows", None, {"user": (">> ", "\n"), "assistant": ("<< ", "\n")}, stop_str=["\n"],
        style=ChatTemplateStyle.PLAIN,
    )  # fmt: skip
    sgl.register_chat_template(template)
    assert get_chat_template("test-arrows") is template
    runtime = sgl.Runtime(model_path="smollm2", chat_template="test-arrows")
    tokenizer = runtime.get_tokenizer()
    assert tokenizer.render([{"role": "user", "content": "a"}], generate=True) == ">> a\n<< "
    own = sgl.Runtime(model_path="smollm2").get_tokenizer()
    assert tokenizer.hash != own.hash
    assert tokenizer.encode("a b") == own.encode("a b")
    assert "im_start" in own.render([{"role": "user", "content": "a"}], generate=True)
    with pytest.raises(UsageError, match="SGLC029"):
        get_chat_template("unknown")


def test_matching_functions_say_which_template_a_path_has() -> None:
    assert get_chat_template_by_model_path("x/unheard-of").name == "default"

    @register_chat_template_matching_function
    def match(path: str) -> ChatTemplate | None:
        return get_chat_template("chatml") if "test-smol" in path else None

    assert get_chat_template_by_model_path("x/test-smol-1").name == "chatml"


# -- switches and paths ----------------------------------------------------------------------------


def test_global_config(capsys: pytest.CaptureFixture[str]) -> None:
    config = sgl.global_config
    assert config.enable_precache_with_tracing
    backend = ScriptedBackend(lambda asked: "b")

    @sgl.function
    def program(s: Any) -> None:
        s += "a" + sgl.gen("x")

    config.default_backend = backend
    config.verbosity = 2
    assert program.run().text() == "ab"
    assert capsys.readouterr().out == "ab\n"
    sgl.set_default_backend(None)
    assert config.default_backend is None
    with pytest.raises(AttributeError):
        config.no_such_switch = 1  # type: ignore[attr-defined]


def test_the_paths_of_sglang() -> None:
    from sglc.ir.plan.backend import Backend
    from sglc.lang import api, chat_template, choices, interpreter, ir
    from sglc.lang.backend.anthropic import Anthropic
    from sglc.lang.backend.base_backend import BaseBackend
    from sglc.lang.backend.crusoe import Crusoe
    from sglc.lang.backend.litellm import LiteLLM
    from sglc.lang.backend.openai import OpenAI
    from sglc.lang.backend.runtime_endpoint import Runtime, RuntimeEndpoint
    from sglc.lang.backend.vertexai import VertexAI

    for cls in (Anthropic, Crusoe, LiteLLM, OpenAI, Runtime, RuntimeEndpoint, VertexAI):
        assert getattr(sgl, cls.__name__) is cls
    assert BaseBackend is Backend
    assert re.fullmatch(r"[0-9]+\.[0-9]+\.[0-9]+", sgl.__version__)
    for name in (name for name in dir(api) if not name.startswith("_")):
        assert getattr(api, name) is getattr(sgl, name)
    assert chat_template.register_chat_template is register_chat_template
    assert choices.token_length_normalized is sgl.token_length_normalized
    assert isinstance(hello, ir.SglFunction)
    seen: list[Any] = []

    @sgl.function
    def program(s: interpreter.ProgramState) -> None:
        seen.append(isinstance(s, interpreter.ProgramState))
        seen.append(isinstance(s.fork(2), interpreter.ProgramStateGroup))

    program.run(backend=ScriptedBackend(lambda asked: "")).sync()
    assert seen == [True, True]


@pytest.mark.parametrize(
    ("package", "make"),
    [
        ("openai", lambda: sgl.OpenAI("gpt-4o", api_key="k")),
        (
            "openai",
            lambda: sgl.OpenAI("gpt-4o", is_azure=True, api_key="k", azure_endpoint="http://127.0.0.1:9"),
        ),
        ("openai", lambda: sgl.Crusoe("meta/llama", api_key="k")),
        ("anthropic", lambda: sgl.Anthropic("claude-opus-5-5", api_key="k")),
        ("google.genai", lambda: sgl.VertexAI("gemini-2.5-pro", api_key="k")),
        ("litellm", lambda: sgl.LiteLLM("openai/gpt-5.2", api_key="k")),
        ("httpx2", lambda: sgl.RuntimeEndpoint("http://127.0.0.1:9")),
    ],
)
def test_a_missing_package_is_named(package: str, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(BackendError, match="SGLC540") as caught:
        hello.run(backend=make())
    assert "pip install" in caught.value.hint


def test_nothing_is_loaded_or_asked_before_the_first_use() -> None:
    assert sgl.OpenAI("gpt-4o", base_url="http://127.0.0.1:9/v1").target.protocol == "chat"
    assert sgl.RuntimeEndpoint("http://127.0.0.1:9").base_url == "http://127.0.0.1:9"
    hello.cache(sgl.OpenAI("gpt-4o"))  # no API's cache is filled ahead: nothing is asked for
