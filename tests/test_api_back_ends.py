"""Every vendor's API through its own SDK over real HTTP: what is sent, what is refused, what answers say."""

from __future__ import annotations

import base64
import gc
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import sglc as sgl
from sglc.backends.anthropic import AnthropicBackend
from sglc.backends.gemini import GeminiBackend
from sglc.backends.openai import OpenAIBackend
from sglc.backends.registry import connect, disconnect
from sglc.backends.retry import Patience, Trouble
from sglc.errors import BackendError, LegalizeError, RunError, UsageError
from sglc.ir.plan.events import Usage
from sglc.ir.target import Takes
from tests.api_programs import PICTURE, PROGRAMS, conversation, question, schema_of, speaking
from tests.api_targets import HERE, at
from tests.depth import some_of
from tests.openai_server import Fault, serving
from tests.vendor_shapes import anthropic_whole, check_body, gemini_whole

# What programs of ours a model refuses, and by which rule. What is not here runs.
_THINKS = {"sampled": "SGLC311"}  # it takes no temperature
TARGETS: Mapping[str, Mapping[str, str]] = {
    "openai:gpt-4o": {},
    "openai:gpt-5": _THINKS,
    "azure:gpt-4o": {},
    "anthropic:claude-opus-5-5": _THINKS,
    "anthropic:claude-opus-4-5": {},
    "gemini:gemini-2.5-flash": {},
    "gemini:gemini-3.6-flash": _THINKS,
    "vertex:gemini-2.5-pro": {},
    "mistral:mistral-large-latest": {},
    "openrouter:openai/gpt-4o": {"picture": "SGLC308"},
    "litellm:openai/gpt-4o": {},
    "litellm:anthropic/claude-opus-5-5": _THINKS,
    "litellm:gemini/gemini-2.5-flash": {},
}
ONE_SAMPLE = ("openai:gpt-5", "anthropic:", "openrouter:", "litellm:")  # `n` is several requests
CELLS = [(name, program) for name in TARGETS if name.partition(":")[0] in HERE for program in PROGRAMS]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "program"), some_of(CELLS, 6, 20))
def test_every_body_is_in_the_vendor_s_own_types(name: str, program: str) -> None:
    asked = PROGRAMS[program]
    with serving(speaking()) as api, at(api, name) as backend:
        result = asked.program.run(backend=backend)
        error = result.error()
        if code := TARGETS[name].get(program):
            assert isinstance(error, LegalizeError)
            assert (error.code, error.loc is not None, api.bodies) == (code, True, [])
            return
        assert error is None
        requests = 3 if program == "stops" and name.startswith(ONE_SAMPLE) else asked.requests
        assert len(api.bodies) == result.usage.calls == requests
        if not name.startswith("litellm:"):  # its words are its own
            for path, body in zip(api.paths, api.bodies, strict=True):
                check_body(path, body)
        assert result.usage.prompt == result.usage.cached + result.usage.computed > 0
        assert result.usage.cached == result.usage.calls
        if program == "stops":
            assert result["idea"] == ["one two "] * 3


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in TARGETS if name.partition(":")[0] in HERE])
def test_streams_say_the_same_in_pieces(name: str) -> None:
    with serving(speaking()) as api, at(api, name) as backend:
        pieces = [text for _, text in conversation.stream(backend=backend) if text]
        live = conversation.run(backend=backend, stream=True)
        whole = conversation.run(backend=backend)
        assert "".join(pieces) == "one two " * 3
        assert len(pieces) > 3
        assert (
            dict(live.variables)
            == dict(whole.variables)
            == dict.fromkeys(("turn_0", "turn_1", "turn_2"), "one two ")
        )
        assert live.usage == whole.usage
        assert live.usage.calls == 3
        for path, body in zip(api.paths, api.bodies, strict=True) if not name.startswith("litellm:") else ():
            check_body(path, body)


# -- Anthropic -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_messages_say_turns_instructions_and_pictures() -> None:
    @sgl.function
    def look(s: Any) -> None:
        s += sgl.system("Be brief.") + sgl.system("Be kind.")
        s += sgl.user(sgl.image(PICTURE) + "What is this?")
        s += sgl.assistant(sgl.gen("x", max_tokens=9, stop=["\n", "END", " "]))
        s += sgl.system("Be loud.") + sgl.user("And now?") + sgl.assistant(sgl.gen("y"))

    with serving(speaking("A dot\nand")) as api, at(api, "anthropic:claude-opus-5-5") as backend:
        result = look.run(backend=backend)
        assert (result["x"], result["y"]) == ("A", "A dot\nand")
        first, second = api.bodies
        assert first == {
            "model": "claude-opus-5-5",
            "max_tokens": 9,
            "stop_sequences": ["END"],
            "system": [{"type": "text", "text": "Be brief."}, {"type": "text", "text": "Be kind."}],
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "image",
                            "source": {
                                "type": "base64",
                                "media_type": "image/png",
                                "data": base64.b64encode(PICTURE).decode(),
                            },
                        },
                        {"type": "text", "text": "What is this?"},
                    ],
                }
            ],
        }
        assert second["messages"][1:] == [
            {"role": "assistant", "content": "A"},
            {"role": "system", "content": "Be loud."},
            {"role": "user", "content": "And now?"},
        ]
        assert api.headers[0]["authorization"] == "Bearer k"
    with serving(speaking()) as api, at(api, "anthropic:claude-opus-4-5") as backend:
        error = look.run(backend=backend).error()
        assert isinstance(error, LegalizeError)
        assert (error.code, error.loc is not None, api.bodies) == ("SGLC318", True, [])


def test_a_claude_that_goes_on_in_its_turn() -> None:
    @sgl.function
    def goes_on(s: Any) -> None:
        s += sgl.user("Rome?") + sgl.assistant("It is" + sgl.gen("x") + ". Well," + sgl.gen("y"))

    @sgl.function
    def held(s: Any) -> None:
        s += sgl.user("Rome?") + sgl.assistant("It is" + sgl.select("x", choices=[" old", " new"]))

    @sgl.function
    def blank(s: Any) -> None:
        s += sgl.user("Rome?") + sgl.assistant("It is " + sgl.gen("x"))

    @sgl.function
    def blank_later(s: Any, word: str) -> None:
        s += sgl.user("Rome?") + sgl.assistant(f"It is{word}" + sgl.gen("x"))

    with serving(speaking(" old")) as api, at(api, "anthropic:claude-opus-4-5") as backend:
        assert goes_on.run(backend=backend)["y"] == " old"
        assert [body["messages"][-1] for body in api.bodies] == [
            {"role": "assistant", "content": "It is"},
            {"role": "assistant", "content": "It is old. Well,"},
        ]
        api.bodies.clear()
        error = blank_later.run(backend=backend, word=" \n").error()
        assert isinstance(error, LegalizeError)
        assert (error.code, api.bodies) == ("SGLC317", [])
        assert "white space" in error.note
        for program, answer in ((held, " new"), (blank, "Linux")):  # the text is a property of the answer
            assert program.run(backend=backend)["x"] == answer
            assert [turn["role"] for turn in api.bodies[-1]["messages"]] == ["user"]
            assert schema_of(api.bodies[-1])["properties"]["text"]["enum"][0].startswith("It is")
    with serving(speaking()) as api, at(api, "anthropic:claude-opus-4-6") as backend:
        error = goes_on.run(backend=backend).error()
        assert isinstance(error, LegalizeError)
        assert (error.code, api.bodies) == ("SGLC317", [])


def test_an_older_claude_samples_by_one_of_two() -> None:
    @sgl.function
    def drawn(s: Any, **_: Any) -> None:
        s += sgl.user("Hi") + sgl.assistant(sgl.gen("x"))

    with serving(speaking()) as api, at(api, "anthropic:claude-opus-4-5") as backend:
        drawn.run(backend=backend, temperature=0.5, top_k=5).sync()
        drawn.run(backend=backend, top_p=0.5).sync()
        assert [{key: body.get(key) for key in ("temperature", "top_p", "top_k")} for body in api.bodies] == [
            {"temperature": 0.5, "top_p": None, "top_k": 5},
            {"temperature": None, "top_p": 0.5, "top_k": None},
        ]
        api.bodies.clear()
        for given in ({"temperature": 0.5, "top_p": 0.5}, {"temperature": 1.5}, {"frequency_penalty": 1}):
            error = drawn.run(backend=backend, **given).error()
            assert isinstance(error, LegalizeError)
            assert (error.code, api.bodies) == ("SGLC311", [])


def test_usage_of_messages_counts_what_is_read_and_written() -> None:
    whole = anthropic_whole("a b", {"model": "m", "messages": []})
    whole["usage"] = {
        "input_tokens": 10, "cache_read_input_tokens": 200, "cache_creation_input_tokens": 30,
        "output_tokens": 2,
    }  # fmt: skip
    with serving(lambda body: whole) as api, at(api, "anthropic:claude-opus-5-5") as backend:
        assert question.run(backend=backend).usage == Usage(240, 200, 40, 0, 2, 1)


@pytest.mark.slow
def test_claude_on_vertex() -> None:
    with serving(speaking()) as api:
        where = {"project": "p", "location": "eu", "base_url": api.url}
        backend: Any = sgl.VertexAI("claude-opus-5-5", access_token="t", **where)
        try:
            assert question.run(backend=backend)["answer"] == "one two END three"
            assert question.run(backend=backend, stream=True)["answer"] == "one two END three"
        finally:
            backend.close()
        place = "/v1/projects/p/locations/eu/publishers/anthropic/models/claude-opus-5-5"
        assert api.paths == [f"{place}:rawPredict", f"{place}:streamRawPredict"]
        assert api.headers[0]["authorization"] == "Bearer t"
        body = api.bodies[0]
        assert body.pop("anthropic_version")
        check_body("/v1/messages", {**body, "model": "claude-opus-5-5"})
    try:
        assert (
            connect("vertex:claude-opus-5-5").target.takes == connect("anthropic:claude-opus-5-5").target.takes
        )
        assert type(connect("vertex:claude-opus-5-5")) is type(backend) is AnthropicBackend
    finally:
        disconnect()
    with pytest.raises(UsageError, match="takes no `safety_settings`"):
        sgl.VertexAI("claude-opus-5-5", [])


@pytest.mark.parametrize(
    ("make", "wrong"),
    [
        (lambda: sgl.OpenAI("gpt-4o", api_keyy="k"), "`openai:gpt-4o` takes no `api_keyy`"),
        (lambda: sgl.OpenAI("d", is_azure=True, endpoint="e"), "`azure:d` takes no `endpoint`"),
        (lambda: sgl.Anthropic("claude-opus-5-5", key="k"), "takes no `key`"),
        (lambda: sgl.VertexAI("gemini-2.5-pro", projekt="p"), "takes no `projekt`"),
        (lambda: sgl.VertexAI("claude-opus-5-5", projekt="p"), "takes no `projekt`"),
    ],
)
def test_an_option_that_no_client_takes_is_named(make: Any, wrong: str) -> None:
    with pytest.raises(UsageError, match="SGLC027") as caught:
        _ = question.run(backend=make())["answer"]
    assert wrong in caught.value.message
    assert "api_key" in caught.value.note or "project_id" in caught.value.note


# -- Google ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_generate_content_says_turns_instructions_and_pictures() -> None:
    @sgl.function
    def look(s: Any) -> None:
        s += sgl.system("Be brief.") + sgl.user(sgl.image(PICTURE) + "What is this?")
        s += sgl.assistant(sgl.gen("x", max_tokens=9, temperature=0, top_k=3, seed=2**40 + 5))
        s += sgl.user("And now?") + sgl.assistant(sgl.gen("y", presence_penalty=0.5))

    with serving(speaking("A dot")) as api, at(api, "gemini:gemini-2.5-flash") as backend:
        result = look.run(backend=backend)
        assert (result["x"], result["y"]) == ("A dot", "A dot")
        first, second = api.bodies
        assert first == {
            "systemInstruction": {"parts": [{"text": "Be brief."}]},
            "contents": [
                {
                    "role": "user",
                    "parts": [
                        {"inlineData": {"mime_type": "image/png", "data": base64.b64encode(PICTURE).decode()}},
                        {"text": "What is this?"},
                    ],
                }
            ],
            "generationConfig": {"maxOutputTokens": 9, "temperature": 0.0, "topP": 1.0, "topK": 3, "seed": 5},
        }
        assert [turn["role"] for turn in second["contents"]] == ["user", "model", "user"]
        assert second["generationConfig"]["presencePenalty"] == 0.5
        assert api.headers[0]["x-goog-api-key"] == "k"
        assert api.paths == ["/v1/models/gemini-2.5-flash:generateContent"] * 2


@pytest.mark.slow
def test_what_google_cannot_be_told() -> None:
    @sgl.function
    def elsewhere(s: Any) -> None:
        s += sgl.user(sgl.image("https://example.org/a.png") + "What?") + sgl.assistant(sgl.gen("x"))

    @sgl.function
    def late(s: Any) -> None:
        s += sgl.user("Hi") + sgl.system("Be brief.") + sgl.assistant(sgl.gen("x"))

    with serving(speaking()) as api, at(api, "gemini:gemini-2.5-flash") as backend:
        for program, code in ((elsewhere, "SGLC308"), (late, "SGLC318")):
            error = program.run(backend=backend).error()
            assert isinstance(error, LegalizeError)
            assert (error.code, error.loc is not None, api.bodies) == (code, True, [])


def _behind_a_call(picture: str, role: str = "user") -> sgl.Function:
    @sgl.function
    def program(s: Any) -> None:
        s += sgl.user("Hi") + sgl.assistant(sgl.gen("x"))
        s += sgl.user("See.") if role == "assistant" else ""
        with getattr(s, role)():
            s += sgl.image(picture)
            if role == "assistant":
                s += sgl.gen("y")
        if role == "user":
            s += sgl.assistant(sgl.gen("y"))

    return program


@pytest.mark.parametrize(
    ("name", "program", "said"),
    [
        ("anthropic:claude-opus-5-5", _behind_a_call("data:image/bmp;base64,AAAA"), "`image/bmp`"),
        ("anthropic:claude-opus-5-5", _behind_a_call("https://e.org/a.png", "assistant"), "`assistant`"),
        ("anthropic:claude-opus-5-5", _behind_a_call("a.png", "assistant"), "`assistant`"),
        ("gemini:gemini-2.5-flash", _behind_a_call("https://e.org/a.png"), "its address"),
    ],
)
def test_a_picture_that_a_model_does_not_take_is_refused_before_anything_is_asked(
    name: str, program: sgl.Function, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.png").write_bytes(PICTURE)
    with serving(speaking()) as api, at(api, name) as backend:
        found = [program.run(backend=backend, mode=mode).error() for mode in ("auto", "python")]
        with pytest.raises(LegalizeError) as caught:
            program.compile(backend=backend)
        for error in (*found, caught.value):
            assert isinstance(error, LegalizeError)
            assert error.code == "SGLC308"
            assert said in error.message
            assert error.loc is not None
            assert error.loc.line == program.definition.loc.line + 4
        assert api.bodies == []


def test_a_picture_that_only_a_run_knows_is_refused_before_its_request() -> None:
    @sgl.function
    def program(s: Any, picture: str) -> None:
        s += sgl.user(sgl.image(picture)) + sgl.assistant(sgl.gen("x"))

    with serving(speaking()) as api, at(api, "gemini:gemini-2.5-flash") as backend:
        for mode in ("plan", "python"):
            error = program.run("https://e.org/a.png", backend=backend, mode=mode).error()
            assert isinstance(error, LegalizeError)
            assert (error.code, "its address" in error.message) == ("SGLC308", True)
        assert api.bodies == []


@pytest.mark.slow
def test_log_probabilities_of_google_where_a_model_gives_them() -> None:
    @sgl.function
    def told(s: Any) -> None:
        s += sgl.user("Hi") + sgl.assistant(sgl.gen("x", return_logprob=True, top_logprobs_num=2))

    whole = gemini_whole(["a b"], {"contents": []})
    whole["candidates"][0]["logprobsResult"] = {
        "chosenCandidates": [
            {"token": "a", "tokenId": 5, "logProbability": -0.5},
            {"token": " b", "tokenId": 6, "logProbability": -1.5},
        ],
        "topCandidates": [
            {"candidates": [{"token": "a", "tokenId": 5, "logProbability": -0.5}]},
            {"candidates": []},
        ],
    }
    with serving(lambda body: whole) as api:
        with at(api, "gemini:gemini-2.5-flash", takes=Takes(json_schema="gemini")) as backend:
            (call,) = told.run(backend=backend).calls
            assert call.samples[0].logprobs == (-0.5, -1.5)
            assert call.samples[0].top_logprobs == (((-0.5, 5, "a"),), ())
            config = api.bodies[0]["generationConfig"]
            assert (config["responseLogprobs"], config["logprobs"]) == (True, 2)
        with at(api, "gemini:gemini-2.5-flash") as backend:
            assert "SGLC311" in str(told.run(backend=backend).error())
            assert len(api.bodies) == 1


@pytest.mark.slow
def test_safety_settings_of_vertex_are_sent_as_they_are() -> None:
    settings = [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}]
    with serving(speaking()) as api, at(api, "vertex:gemini-2.5-pro", safety_settings=settings) as backend:
        question.run(backend=backend).sync()
        assert api.bodies[0]["safetySettings"] == settings
        assert api.paths == ["/v1beta1/publishers/google/models/gemini-2.5-pro:generateContent"]


# -- Azure -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_azure_by_its_api_without_a_version_and_with_one() -> None:
    with serving(speaking()) as api:
        root = api.url.removesuffix("/v1")
        plain = sgl.OpenAI("gpt-4o", is_azure=True, azure_endpoint=root, api_key="k")
        dated = sgl.OpenAI("gpt-4o", is_azure=True, azure_endpoint=root, api_key="k", api_version="2024-10-21")
        for backend in (plain, dated):
            assert question.run(backend=backend)["answer"] == "one two END three"
            assert backend.target.name == "azure:gpt-4o"
            backend.close()
        assert api.paths == [
            "/openai/v1/chat/completions", "/openai/deployments/gpt-4o/chat/completions",
        ]  # fmt: skip
        assert api.headers[0]["authorization"] == "Bearer k"
        assert api.headers[1]["api-key"] == "k"
        named = sgl.OpenAI("my-deployment", is_azure=True, azure_endpoint=root, api_key="k")
        assert not named.target.known


def _token() -> str:
    return "t"


async def _awaited_token() -> str:
    return "t"


@pytest.mark.slow
@pytest.mark.parametrize("version", [{}, {"api_version": "2024-10-21"}])
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"azure_ad_token": "t"},
        {"azure_ad_token_provider": _token},
        {"azure_ad_token_provider": _awaited_token},
    ],
)
def test_azure_by_a_token(given: Any, version: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_OPENAI_API_KEY", raising=False)
    if not given:
        monkeypatch.setenv("AZURE_OPENAI_AD_TOKEN", "t")
    with serving(speaking()) as api:
        root = api.url.removesuffix("/v1")
        backend = sgl.OpenAI("gpt-4o", is_azure=True, azure_endpoint=root, **given, **version)
        assert question.run(backend=backend)["answer"] == "one two END three"
        backend.close()
        assert api.headers[0]["authorization"] == "Bearer t"


@pytest.mark.slow
def test_a_key_may_be_made_for_each_request() -> None:
    with serving(speaking()) as api:
        for azure in ({}, {"is_azure": True}):
            backend = sgl.OpenAI("gpt-4o", base_url=api.url, api_key=_token, **azure)
            assert question.run(backend=backend)["answer"] == "one two END three"
            backend.close()
        assert [headers["authorization"] for headers in api.headers] == ["Bearer t"] * 2


@pytest.mark.slow
@pytest.mark.parametrize("version", [{}, {"api_version": "2024-10-21"}])
def test_azure_goes_by_what_is_given_before_the_environment(
    version: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_OPENAI_AD_TOKEN", "environment")
    with serving(speaking()) as api:
        azure = {"is_azure": True, "azure_endpoint": api.url.removesuffix("/v1"), **version}
        for given in ({"api_key": "t"}, {"azure_ad_token_provider": _token}):
            backend = sgl.OpenAI("gpt-4o", **given, **azure)
            assert question.run(backend=backend)["answer"] == "one two END three"
            backend.close()
            headers = api.headers[-1]
            assert headers.get("authorization", headers.get("api-key")) in ("t", "Bearer t")
        both = sgl.OpenAI("gpt-4o", api_key="k", azure_ad_token="t", **azure)
        with pytest.raises(BackendError, match=r"SGLC541.*[Oo]nly one"):
            question.run(backend=both)


def _fails() -> str:
    raise KeyError("gone")


async def _none() -> None:
    return None


@pytest.mark.slow
@pytest.mark.parametrize("made", [lambda: None, lambda: "", _none, _fails])
@pytest.mark.parametrize(
    "azure", [None, {}, {"api_version": "2024-10-21"}], ids=["openai", "azure", "with a version"]
)
def test_a_function_that_gives_no_key_is_said(made: Any, azure: Any) -> None:
    with serving(speaking()) as api:
        backends = [sgl.OpenAI("gpt-4o", base_url=api.url, api_key=made)]
        if azure is not None:
            azure = {"is_azure": True, "azure_endpoint": api.url.removesuffix("/v1"), **azure}
            given = ({"api_key": made}, {"azure_ad_token_provider": made})
            backends = [sgl.OpenAI("gpt-4o", **each, **azure) for each in given]
        for backend in backends:
            error = question.run(backend=backend).error()
            backend.close()
            assert isinstance(error, BackendError)
            assert error.code == "SGLC541"
        assert not api.bodies


def test_what_azure_takes_with_a_version_alone_is_named() -> None:
    made = sgl.OpenAI("m", is_azure=True, azure_endpoint="http://x", api_key="k", azure_deployment="d")
    with pytest.raises(UsageError, match=r"SGLC027.*takes no `azure_deployment`"):
        question.run(backend=made)


@pytest.mark.parametrize("name", ["openai:gpt-4o", "anthropic:claude-opus-5-5"])
def test_connecting_takes_no_longer_than_the_sdk_has_it(name: str) -> None:
    with serving(speaking()) as api, at(api, name, patience=Patience()) as backend:
        client, _ = backend.connect()
        assert (client.timeout.connect, client.timeout.read) == (5.0, 600.0)
    with serving(speaking()) as api, at(api, name, patience=Patience(attempt_s=2.0)) as backend:
        client, _ = backend.connect()
        assert (client.timeout.connect, client.timeout.read) == (2.0, 2.0)


@pytest.mark.parametrize(("attempt_s", "connect_s"), [(600.0, 5.0), (2.0, 2.0)])
def test_connecting_to_google_takes_no_longer(
    monkeypatch: pytest.MonkeyPatch, attempt_s: float, connect_s: float
) -> None:
    seen: list[tuple[float, float]] = []
    connecting = GeminiBackend.connect

    async def note(request: Any) -> None:
        seen.append((request.extensions["timeout"]["connect"], request.extensions["timeout"]["read"]))

    def connect(self: GeminiBackend) -> Any:
        client, end = connecting(self)
        hooks = client._api_client._async_httpx_client._client_kwargs.setdefault("event_hooks", {})
        hooks.setdefault("request", []).append(note)
        return client, end

    monkeypatch.setattr(GeminiBackend, "connect", connect)
    patience = Patience(attempt_s=attempt_s)
    with serving(speaking()) as api, at(api, "gemini:gemini-2.5-flash", patience=patience) as backend:
        error = question.run(backend=backend).error()
    assert error is None
    assert set(seen) == {(connect_s, attempt_s)}


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("openai:gpt-4o", "OPENAI_API_KEY"), ("azure:gpt-4o", "OPENAI_API_VERSION"),
        ("anthropic:claude-opus-5-5", "ANTHROPIC_AUTH_TOKEN"), ("gemini:gemini-2.5-flash", "GOOGLE_API_KEY"),
        ("vertex:gemini-2.5-flash", "GOOGLE_CLOUD_PROJECT"), ("mistral:m", "MISTRAL_API_KEY"),
    ],
)  # fmt: skip
def test_another_environment_is_another_back_end(
    name: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "one")
    first = connect(name)
    assert connect(name) is first
    monkeypatch.setenv(variable, "another")
    assert connect(name) is not first
    disconnect()


def test_claude_on_vertex_without_a_project(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("ANTHROPIC_VERTEX_PROJECT_ID", "GOOGLE_CLOUD_PROJECT"):
        monkeypatch.delenv(variable, raising=False)
    made = sgl.VertexAI("claude-opus-4-5", location="us-east5", access_token="t", base_url="http://127.0.0.1:9")
    error = question.run(backend=made).error()
    made.close()
    assert isinstance(error, BackendError)
    assert (error.code, "ANTHROPIC_VERTEX_PROJECT_ID" in error.hint) == ("SGLC541", True)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["gemini-2.5-flash", "claude-opus-5-5"])
def test_who_vertex_does_not_let_in_may_log_in(model: str) -> None:
    with serving(lambda body: Fault(401)) as api:
        login = (
            {"access_token": "t", "project": "p", "location": "eu"} if "claude" in model else {"api_key": "k"}
        )
        made = sgl.VertexAI(model, base_url=api.url.removesuffix("/v1"), **login)
        error = question.run(backend=made).error()
        made.close()
    assert isinstance(error, BackendError)
    assert (error.code, "gcloud auth" in error.hint) == ("SGLC542", True)


# -- by name, and without what they need -------------------------------------------------------------

KEYS = {
    "openai:gpt-4o": {"OPENAI_API_KEY": "k"},
    "azure:gpt-4o": {"AZURE_OPENAI_API_KEY": "k", "AZURE_OPENAI_ENDPOINT": "{root}"},
    "anthropic:claude-opus-5-5": {"ANTHROPIC_API_KEY": "k", "ANTHROPIC_BASE_URL": "{root}"},
    "gemini:gemini-2.5-flash": {"GEMINI_API_KEY": "k", "GOOGLE_GEMINI_BASE_URL": "{root}"},
    "vertex:gemini-2.5-flash": {"GOOGLE_API_KEY": "k", "GOOGLE_VERTEX_BASE_URL": "{root}"},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", KEYS)
def test_by_name_with_what_the_environment_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variables in KEYS.values():
        for variable in variables:
            monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("ANTHROPIC_CONFIG_DIR", str(tmp_path))
    with serving(speaking()) as api:
        with pytest.raises(BackendError, match="SGLC541") as caught:
            connect(name).start()
        assert next(iter(KEYS[name])).partition("_")[0] in caught.value.hint
        disconnect()
        monkeypatch.setenv("OPENAI_BASE_URL", api.url)
        for variable, value in KEYS[name].items():
            monkeypatch.setenv(variable, value.format(root=api.url.removesuffix("/v1")))
        try:
            assert question.run(backend=name)["answer"] == "one two END three"
            assert len(api.bodies) == 1
        finally:
            disconnect()


def test_environments_that_are_replaced_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = list[OpenAIBackend]()
    monkeypatch.setattr(OpenAIBackend, "close", lambda backend: closed.append(backend))
    disconnect()
    closed.clear()
    made = []
    for number in range(10):
        monkeypatch.setenv("OPENAI_API_KEY", f"k{number}")
        made.append(connect("openai:gpt-4o"))
        monkeypatch.setenv("GOOGLE_API_KEY", f"k{number}")  # none of OpenAI's
        assert connect("openai:gpt-4o") is made[-1]
    assert closed == made[:6]
    disconnect()
    assert set(closed) == set(made)


WITH_LITELLM = pytest.mark.skipif("litellm" not in HERE, reason="it wants an environment of its own")


@WITH_LITELLM
@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("litellm:openai/gpt-4o", "OPENAI_API_KEY"),
        ("litellm:gemini/gemini-2.5-flash", "GEMINI_API_KEY"),
        ("litellm:anthropic/claude-opus-4-5", "ANTHROPIC_API_KEY"),
    ],
)
@pytest.mark.parametrize("live", [False, True])
def test_a_key_that_litellm_lacks_is_named(
    name: str, key: str, live: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("OPENAI_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(BackendError, match="SGLC541") as caught:
        _ = question.run(backend=connect(name), stream=live)["answer"]
    assert key in caught.value.hint
    disconnect()


@WITH_LITELLM
def test_a_limit_of_litellm_s_has_everybody_wait() -> None:
    import litellm

    info = '{"error": {"details": [{"retryDelay": "2s"}]}}'
    error = litellm.RateLimitError(f"slow: {info}", "gemini", "gemini/m")
    trouble = sgl.LiteLLM("gemini/gemini-2.5-flash", api_key="k").trouble(error)
    assert isinstance(trouble, Trouble)
    assert (trouble.wait_s, trouble.limited) == (2.0, True)


@WITH_LITELLM
def test_litellm_is_given_its_own_keywords() -> None:
    with serving(speaking()) as api:
        made = sgl.LiteLLM("gpt-4o", api_key="k", api_base=api.url, custom_llm_provider="openai")
        assert question.run(backend=made)["answer"] == "one two END three"
        assert made.identity == api.url
        made.close()
        for own in ({"drop_params": True}, {"num_retries": 2}, {"stream": True}):
            made = sgl.LiteLLM("openai/gpt-4o", api_key="k", base_url=api.url, **own)
            with pytest.raises(UsageError, match=f"SGLC027.*takes no `{next(iter(own))}`"):
                _ = question.run(backend=made)["answer"]
        assert len(api.bodies) == 1


REACHED = [*KEYS, "http://127.0.0.1:9"]


@pytest.mark.parametrize("name", REACHED)
@pytest.mark.parametrize("key", ["sk-SECRET\r", "sk-S\u00c9CRET"])
def test_a_key_that_cannot_be_sent_is_not_shown(name: str, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if key.endswith("\r") and "gemini" in name:
        return  # Google's client strips it
    for variables in KEYS.values():
        for variable, value in variables.items():
            monkeypatch.setenv(variable, value.format(root="http://127.0.0.1:9") if value != "k" else key)
    made = sgl.RuntimeEndpoint(name, api_key=key) if name.startswith("http") else connect(name)
    with pytest.raises(BackendError, match="SGLC541") as caught:
        question.run(backend=made)
    assert "CRET" not in str(caught.value)
    assert "printable" in caught.value.hint
    disconnect()


def test_a_header_that_cannot_be_sent_is_not_shown() -> None:
    with serving(speaking()) as api:
        made = sgl.OpenAI("m", api_key="k", base_url=api.url, default_headers={"x": "SECRET\n"})
        error = str(question.run(backend=made).error())
        made.close()
    assert "a header cannot be sent" in error
    assert "5 attempts" not in error
    assert "SECRET" not in error


@pytest.mark.parametrize("name", REACHED)
@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:1", "nonsense://x"])
def test_a_proxy_that_cannot_be_used_is_said(name: str, proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variables in KEYS.values():
        for variable, value in variables.items():
            monkeypatch.setenv(variable, value.format(root="http://127.0.0.1:9"))
    monkeypatch.setenv("ALL_PROXY", proxy)
    monkeypatch.setitem(sys.modules, "socksio", None)
    made = sgl.RuntimeEndpoint(name) if name.startswith("http") else connect(name)
    with pytest.raises(BackendError, match="SGLC541") as caught:
        question.run(backend=made)
    assert "`ALL_PROXY`" in caught.value.hint
    disconnect()
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # the SDKs cannot close what is half made
    del caught, made
    gc.collect()


@pytest.mark.parametrize("endpoint", ["", "/", "/openai/v1", "/openai/v1/"])
def test_azure_is_given_no_key_of_openai_s(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "not for others")
    monkeypatch.delenv("OPENAI_API_VERSION", raising=False)
    monkeypatch.delenv("AZURE_OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", f"https://own.openai.azure.com{endpoint}")
    with pytest.raises(BackendError, match=r"SGLC541.*there is no key"):
        connect("azure:gpt-4o").start()
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", "k")
    backend = connect("azure:gpt-4o")
    assert isinstance(backend, OpenAIBackend)
    client, _ = backend.connect()
    assert (client.api_key, str(client.base_url)) == ("k", "https://own.openai.azure.com/openai/v1/")
    disconnect()


@pytest.mark.parametrize(
    ("name", "key"), [("mistral:m", "MISTRAL_API_KEY"), ("openrouter:a/m", "OPENROUTER_API_KEY")]
)
def test_a_service_has_a_key_and_an_address_of_its_own(
    name: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "not for others")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.delenv(key, raising=False)
    with pytest.raises(BackendError, match="SGLC541") as caught:
        connect(name).start()
    assert key in caught.value.hint
    monkeypatch.setenv(key, "k")
    backend = connect(name)
    assert isinstance(backend, OpenAIBackend)
    client, _ = backend.connect()
    assert (client.api_key, client.base_url.host) == ("k", urlsplit(backend.identity).hostname)
    disconnect()


def test_words_of_other_services() -> None:
    sampled = sgl.gen("x", max_tokens=4, temperature=0.5, top_k=3, seed=7)

    @sgl.function
    def asked(s: Any) -> None:
        s += sgl.user("Hi") + sgl.assistant(sampled)

    with serving(speaking()) as api:
        for name in ("mistral:mistral-large-latest", "openrouter:openai/gpt-4o"):
            with at(api, name) as backend:
                assert asked.run(backend=backend).error() is None
    mistral, openrouter = api.bodies
    told = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "temperature": 0.5, "top_k": 3}
    assert mistral == {**told, "model": "mistral-large-latest", "random_seed": 7, "top_p": 1.0}
    require = {"provider": {"require_parameters": True}}
    assert openrouter == {**told, "model": "openai/gpt-4o", "seed": 7, **require}


@sgl.function
def as_it_is(s: Any) -> None:
    s += sgl.user("Hi") + sgl.assistant(sgl.gen("x", max_tokens=4, temperature=1, top_p=1))


BOTH = {"temperature": 1.0, "top_p": 1.0}
SAID = {
    "openai:gpt-4o": {}, "openai:gpt-5": {}, "azure:gpt-4o": {}, "anthropic:claude-opus-4-5": {},
    "anthropic:claude-opus-5-5": {}, "mistral:mistral-large-latest": BOTH, "mistral:unheard-of": BOTH,
    "gemini:gemini-2.5-flash": {"temperature": 1.0, "topP": 1.0}, "gemini:gemini-3.6-flash": {},
}  # fmt: skip


@pytest.mark.parametrize("name", SAID)
def test_what_is_usual_is_said_where_a_model_has_other_defaults(name: str) -> None:
    with serving(speaking()) as api, at(api, name) as backend:
        as_it_is.run(backend=backend).sync()
    (body,) = api.bodies
    body = body.get("generationConfig", body)
    assert {key: body[key] for key in ("temperature", "top_p", "topP") if key in body} == SAID[name]


def test_what_is_usual_is_said_to_servers_of_one_s_own() -> None:
    with serving(speaking()) as api:
        for chat in (True, False):
            made = sgl.OpenAI(
                "qwen", base_url=api.url, api_key="k", is_chat_model=chat, chat_template="chatml"
            )  # fmt: skip
            as_it_is.run(backend=made).sync()
            made.close()
            assert {key: api.bodies[-1].get(key) for key in BOTH} == BOTH
        for takes in (Takes(temperature=None, top_p=False), Takes(top_p_at_any_temperature=False)):
            made = sgl.OpenAI("qwen", base_url=api.url, api_key="k", takes=takes)
            as_it_is.run(backend=made).sync()
            made.close()
            assert "top_p" not in api.bodies[-1]
            assert ("temperature" in api.bodies[-1]) == (takes.temperature is not None)


def test_sglang_is_told_all_that_a_model_may_have_defaults_of() -> None:
    with serving(lambda body: "fine") as api:
        made = sgl.RuntimeEndpoint(api.url.removesuffix("/v1"))
        as_it_is.run(backend=made, seed=1).sync()
        made.close()
        told = api.bodies[-1]["sampling_params"]
    rest = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
    assert {key: told.get(key) for key in (*BOTH, *rest)} == {**BOTH, **rest}


@pytest.mark.parametrize("name", ["anthropic:claude-opus-5-5", "gemini:gemini-2.5-flash"])
def test_instructions_alone_are_no_prompt(name: str) -> None:
    @sgl.function
    def instructed(s: Any) -> None:
        s += sgl.system("Be brief.") + sgl.assistant(sgl.gen("x"))

    with serving(speaking()) as api, at(api, name) as backend:
        error = instructed.run(backend=backend).error()
    assert "SGLC402" in str(error)
    assert not api.bodies


@pytest.mark.parametrize("name", ["anthropic:claude-opus-5-5", "gemini:gemini-2.5-flash"])
def test_no_turn_at_all_is_no_prompt(name: str) -> None:
    @sgl.function
    def silent(s: Any) -> None:
        s += sgl.assistant(sgl.gen("x"))

    with serving(speaking()) as api, at(api, name) as backend:
        error = silent.run(backend=backend).error()
    assert isinstance(error, RunError)
    assert (error.code, error.message, api.bodies) == ("SGLC402", "there is no turn before this generation", [])


# -- turns that a vendor reads as something else -------------------------------------------------------


@sgl.function
def answers_again(s: Any) -> None:
    s += sgl.user("Hi") + sgl.assistant("one ") + sgl.assistant(sgl.gen("x"))


@sgl.function
def answers_twice(s: Any) -> None:
    s += sgl.user("Hi") + sgl.assistant(sgl.gen("x")) + sgl.assistant(sgl.gen("y"))


GOES_ON = [
    name
    for name in (
        "anthropic:claude-opus-4-5", "anthropic:claude-opus-5-5", "gemini:gemini-2.5-flash",
        "mistral:mistral-large-latest", "openrouter:openai/gpt-4o", "litellm:anthropic/claude-opus-4-5",
        "litellm:gemini/gemini-2.5-flash", "litellm:ollama_chat/llama3",
    )
    if name.partition(":")[0] in HERE
]  # fmt: skip


@pytest.mark.parametrize("name", GOES_ON)
@pytest.mark.parametrize("mode", ["auto", "python"])
def test_no_answer_begins_where_the_model_would_go_on(name: str, mode: Any) -> None:
    with serving(speaking()) as api, at(api, name) as backend:
        error = answers_again.run(backend=backend, mode=mode).error()
        assert isinstance(error, LegalizeError)
        assert (error.code, error.loc is not None, api.bodies) == ("SGLC318", True, [])
        error = answers_twice.run(backend=backend, mode=mode).error()
        assert isinstance(error, LegalizeError)
        assert (error.code, error.loc is not None, api.bodies) == ("SGLC318", True, [])


@sgl.function
def asks_on(s: Any) -> None:
    def turn(s: Any = s) -> Any:
        s += sgl.assistant(sgl.gen("x"))
        more = sgl.not_(sgl.eq(s["x"], "never"))
        sgl.cond(more, lambda: s.user("Go on."))
        return more

    s += sgl.user("Hi")
    sgl.loop(turn, 2)


@pytest.mark.parametrize("name", [name for name in GOES_ON if "ollama" not in name])  # its server is not here
@pytest.mark.parametrize("mode", ["auto", "plan", "python"])
def test_an_answer_that_may_stand_behind_another_one_is_looked_at_as_it_is_asked_for(
    name: str, mode: Any
) -> None:
    with serving(speaking()) as api, at(api, name) as backend:
        result = asks_on.run(backend=backend, mode=mode)
        assert (result.error(), len(api.bodies)) == (None, 2)


def test_an_answer_of_openai_s_is_a_turn_of_its_own() -> None:
    for name in ("openai:gpt-4o", *(["litellm:openai/gpt-4o"] if "litellm" in HERE else [])):
        with serving(speaking()) as api, at(api, name) as backend:
            assert answers_again.run(backend=backend).error() is None
            assert api.bodies[0]["messages"][1:] == [{"role": "assistant", "content": "one "}]


@sgl.function
def says(s: Any, system: str, user: str, assistant: str) -> None:
    s += sgl.system(system) + sgl.user(user) + sgl.assistant(assistant)
    s += sgl.user("So?") + sgl.assistant(sgl.gen("x"))


OF_CLAUDE = [
    name
    for name in ("anthropic:claude-opus-5-5", "litellm:anthropic/claude-opus-5-5")
    if name.partition(":")[0] in HERE
]


@pytest.mark.parametrize("name", OF_CLAUDE)
@pytest.mark.parametrize("given", [("", "a", "a"), ("a", " \n", "a"), ("a", "a", "")])
def test_claude_is_sent_no_blank_text(name: str, given: tuple[str, str, str]) -> None:
    with serving(speaking()) as api, at(api, name) as backend:
        error = says.run(*given, backend=backend).error()
        assert isinstance(error, LegalizeError)
        assert (error.code, error.loc is not None, api.bodies) == ("SGLC318", True, [])
        assert says.run("a", "a", "a", backend=backend).error() is None


@pytest.mark.parametrize("name", OF_CLAUDE)
def test_a_blank_answer_is_not_sent_back_to_claude(name: str) -> None:
    @sgl.function
    def goes_on(s: Any) -> None:
        s += sgl.user("Hi") + sgl.assistant(sgl.gen("x")) + sgl.user("So?") + sgl.assistant(sgl.gen("y"))

    with serving(speaking(" ")) as api, at(api, name) as backend:
        result = goes_on.run(backend=backend)
        error = result.error()
        assert isinstance(error, LegalizeError)
        assert (error.code, result["x"], len(api.bodies)) == ("SGLC318", " ", 1)


@pytest.mark.parametrize("name", OF_CLAUDE)
def test_pictures_of_claude_s_are_the_user_s_and_of_its_types(name: str) -> None:
    @sgl.function
    def shown(s: Any, drawn: bytes) -> None:
        s += sgl.user("Draw.") + sgl.assistant("Here: " + sgl.image(drawn))
        s += sgl.user("What is it?") + sgl.assistant(sgl.gen("x"))

    @sgl.function
    def instructed(s: Any, style: bytes) -> None:
        s += sgl.system("Like this: " + sgl.image(style)) + sgl.user("Draw.") + sgl.assistant(sgl.gen("x"))

    @sgl.function
    def asked(s: Any, drawn: str) -> None:
        s += sgl.user("What is it?" + sgl.image(drawn)) + sgl.assistant(sgl.gen("x"))

    bitmap = "data:image/bmp;base64,Qk0="
    with serving(speaking()) as api, at(api, name) as backend:
        for result in (
            shown.run(PICTURE, backend=backend), instructed.run(PICTURE, backend=backend),
            asked.run(bitmap, backend=backend),
        ):  # fmt: skip
            error = result.error()
            assert isinstance(error, LegalizeError)
            assert (error.code, error.loc is not None, api.bodies) == ("SGLC308", True, [])


# -- forms -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_forms_are_asked_for_in_the_vendor_s_subset() -> None:
    schema = {
        "type": "object",
        "properties": {
            "kind": {"enum": ["a", "b", None]},
            "sure": {"enum": [True, False]},
            "size": {"type": "integer", "minimum": 1},
        },
        "required": ["kind", "sure"],
    }

    @sgl.function
    def described(s: Any) -> None:
        s += sgl.user("Hi") + sgl.assistant(sgl.gen("x", json_schema=json.dumps(schema)))

    with serving(speaking()) as api:
        with at(api, "gemini:gemini-2.5-flash") as backend:
            assert json.loads(described.run(backend=backend)["x"]) == {"kind": None, "sure": True, "size": 7}
            assert api.bodies.pop()["generationConfig"]["responseJsonSchema"]["properties"] == {
                "kind": {"anyOf": [{"type": "string", "enum": ["a", "b"]}, {"type": "null"}]},
                "sure": {"type": "boolean"},
                "size": {"type": "integer", "minimum": 1},
            }
        with at(api, "anthropic:claude-opus-5-5") as backend:
            error = described.run(backend=backend).error()
            assert isinstance(error, LegalizeError)
            assert (error.code, api.bodies) == ("SGLC313", [])
            assert "`minimum`" in error.message
            del schema["properties"]["size"]["minimum"]  # type: ignore[index]
            described.run(backend=backend).sync()
            assert api.bodies[0]["output_config"]["format"]["schema"]["properties"] == {
                "kind": {"anyOf": [{"type": "string", "enum": ["a", "b"]}, {"type": "null"}]},
                "sure": {"type": "boolean"},
                "size": {"type": "integer"},
            }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["anthropic:claude-opus-5-5", "gemini:gemini-2.5-flash"])
def test_a_whole_turn_in_one_request_of_any_vendor(name: str) -> None:
    @sgl.function(num_api_spec_tokens=64)
    def person(s: Any) -> None:
        s += sgl.user("Two lines: Name: ..., Age: ...")
        s += sgl.assistant("Name:" + sgl.gen("name", stop="\n") + "\nAge:" + sgl.gen("age", stop="\n"))

    with serving(speaking("Name: Ann\nAge: 7")) as api, at(api, name) as backend:
        result = person.run(backend=backend)
        assert (result["name"], result["age"]) == (" Ann", " 7")
        assert (len(api.bodies), result.usage.saved_calls) == (1, 1)
    answers = iter(("Ann", "Name: Ann\nAge: 7"))
    with serving(lambda body: next(answers)) as api, at(api, name) as backend:
        assert person.run(backend=backend)["age"] == " 7"
        assert len(api.bodies) == 2
    with serving(lambda body: Fault(400)) as api, at(api, name) as backend:
        assert "SGLC542" in str(person.run(backend=backend).error())
