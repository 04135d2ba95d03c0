"""Ollama's protocol over HTTP, in the shapes that its published description of the API has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest

from sglc.runtime.tokenizer.tokenizer import LocalTokenizer
from sglc.serve.bodies import ChatBody, OllamaChat
from sglc.serve.prompts import of_chat
from tests.serving import Server, serving

TURNS = [{"role": "user", "content": "What is the capital of France?"}]
GREEDY = {"temperature": 0, "num_predict": 8}
COUNTS = {
    "total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration", "eval_count",
    "eval_duration",
}  # fmt: skip


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=server.url, timeout=60) as client:
        yield client


def asked(client: httpx2.Client, path: str, **given: Any) -> tuple[int, list[dict[str, Any]]]:
    answer = client.post(path, json={"model": "smollm2", "options": GREEDY, **given})
    return answer.status_code, [json.loads(line) for line in answer.text.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "given"),
    [
        ("/api/chat", {"messages": TURNS}),
        ("/api/generate", {"prompt": TURNS[0]["content"]}),
        ("/api/generate", {"prompt": "One, two, three,", "raw": True}),
    ],
)
def test_a_text_whole_and_in_lines(client: httpx2.Client, path: str, given: dict[str, Any]) -> None:
    key = "message" if path == "/api/chat" else "response"

    def text(line: dict[str, Any]) -> str:
        content = line[key]["content"] if key == "message" else line[key]
        assert isinstance(content, str)
        return content

    status, (whole,) = asked(client, path, stream=False, **given)
    assert status == 200
    assert whole.keys() == {"model", "created_at", "done", "done_reason", key, *COUNTS}
    assert (whole["model"], whole["done"], whole["eval_count"]) == ("smollm2", True, 8)
    assert datetime.fromisoformat(whole["created_at"]).tzinfo is not None
    status, lines = asked(client, path, **given)
    assert (status, [line["done"] for line in lines]) == (200, [False] * (len(lines) - 1) + [True])
    assert len(lines) > 3
    assert "".join(map(text, lines)) == text(whole)
    # The same as by OpenAI's protocol.
    options = {"temperature": 0, "max_tokens": 8}
    if given.get("raw"):
        same = client.post("/v1/completions", json={"prompt": given["prompt"], **options}).json()
        assert same["choices"][0]["text"] == text(whole)
    else:
        same = client.post("/v1/chat/completions", json={"messages": TURNS, **options}).json()
        assert same["choices"][0]["message"]["content"] == text(whole)
    assert same["usage"]["prompt_tokens"] == whole["prompt_eval_count"]


@pytest.mark.slow
def test_a_form_holds_a_text(client: httpx2.Client) -> None:
    schema = {"type": "object", "properties": {"yes": {"type": "boolean"}}, "required": ["yes"]}
    options = {"num_predict": 40, "seed": 1}
    given = {"messages": TURNS, "format": schema, "stream": False, "options": options, "keep_alive": "5m"}
    _, (answer,) = asked(client, "/api/chat", **given)
    assert isinstance(json.loads(answer["message"]["content"])["yes"], bool)


def test_what_models_there_are(client: httpx2.Client) -> None:
    (model,) = client.get("/api/tags").json()["models"]
    assert model["name"] == model["model"] == "smollm2"
    shown = client.post("/api/show", json={"model": "smollm2"}).json()
    assert shown["capabilities"] == ["completion"]
    assert "messages" in shown["template"]
    assert client.get("/api/version").json()["version"]


@pytest.mark.parametrize("given", [{"model": "smollm2:latest"}, {"name": "smollm2"}])
def test_a_model_is_shown_by_its_name(client: httpx2.Client, given: dict[str, str]) -> None:
    further = {"model": "", "name": "", "system": "", "template": "", "verbose": True, "options": None}
    for body in (given, {**further, **given}):  # as Python's and Go's clients send it
        assert client.post("/api/show", json=body).json()["capabilities"] == ["completion"]


@pytest.mark.parametrize(
    ("content", "status", "said"),
    [
        ('{"model": "other"}', 404, "there is no model `other`"),
        ('{"name": "other:latest"}', 404, "there is no model `other`"),
        ("{}", 400, "`model` is missing"),
        ("x", 400, "no JSON"),
        ("", 400, "no body"),
    ],
)
def test_no_other_model_is_shown(client: httpx2.Client, content: str, status: int, said: str) -> None:
    answer = client.post("/api/show", content=content, headers={"content-type": "application/json"})
    assert answer.status_code == status
    assert said in answer.json()["error"]


@pytest.mark.parametrize(
    ("path", "nothing"),
    [
        ("/api/generate", {}),
        ("/api/generate", {"prompt": ""}),
        ("/api/generate", {"prompt": "", "raw": True}),
        ("/api/generate", {"system": "a"}),
        ("/api/chat", {"messages": []}),
        ("/api/chat", {"messages": None}),
    ],
)
def test_who_asks_nothing_has_the_model_loaded(
    client: httpx2.Client, path: str, nothing: dict[str, Any]
) -> None:
    shown = {"message": {"role": "assistant", "content": ""}} if path == "/api/chat" else {"response": ""}
    kept = [({}, "load"), *(({"keep_alive": time}, "load") for time in ("5m", "10s", -1, 10))]
    let_go = [({"keep_alive": time}, "unload") for time in (0, "0", "0s")]
    for stream in (False, True):
        for given, reason in kept + let_go:
            status, (line,) = asked(client, path, stream=stream, **nothing, **given)
            assert (status, datetime.fromisoformat(line.pop("created_at")).tzinfo) == (200, UTC)
            assert line == {"model": "smollm2", **shown, "done": True, "done_reason": reason}
        assert asked(client, path, model="other", stream=stream, **nothing)[0] == 404


@pytest.mark.parametrize(("field", "value"), [("system", "b"), ("think", True)])
def test_what_is_raw_is_the_whole_prompt(client: httpx2.Client, field: str, value: object) -> None:
    status, (line,) = asked(client, "/api/generate", prompt="a", raw=True, **{field: value})
    assert status == 400
    assert f"`{field}`" in line["error"]
    assert "`raw`" in line["error"]


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain", ""])
@pytest.mark.parametrize("path", ["/api/generate", "/api/chat", "/api/show"])
def test_what_no_page_sends_is_json_whatever_it_is_called(client: httpx2.Client, path: str, kind: str) -> None:
    def sent(**headers: str) -> httpx2.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items() if value}
        return client.post(path, content=b'{"model": "smollm2"}', headers=named)

    assert sent(content_type=kind).status_code == 200
    for origin in ("http://a.example", "null"):
        answer = sent(content_type=kind, origin=origin)
        assert answer.status_code == 400
        assert "`Content-Type: application/json`" in answer.json()["error"]
        assert sent(content_type="application/json", origin=origin).status_code == 200


@pytest.mark.parametrize(
    ("given", "status", "said"),
    [
        ({"model": "other"}, 404, "there is no model `other`"),
        ({"options": {"num_predict": 10**6}}, 400, "longer than the model"),
        ({"options": {"temperature": -1}}, 400, "`temperature`"),
        ({"format": "yaml"}, 400, "schema"),
        ({"think": True}, 400, "`think` is not what this model's template knows of"),
        ({"think": "so-so"}, 400, "`think`"),
    ],
)
def test_errors_are_texts(client: httpx2.Client, given: dict[str, Any], status: int, said: str) -> None:
    for stream in (False, True):
        found, (line,) = asked(client, "/api/chat", **{"messages": TURNS, "stream": stream, **given})
        assert found == status
        assert said in line["error"]


@pytest.mark.parametrize(
    "field", ["images", "tools", "suffix", "template", "context", "repeat_penalty", "no_such"]
)
def test_fields_that_are_not_there_are_refused_by_name(client: httpx2.Client, field: str) -> None:
    status, (line,) = asked(client, "/api/generate", prompt="a", **{field: [7]})
    assert status == 400
    assert f"`{field}`" in line["error"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"logprobs": True}, "there is no field `logprobs`"),
        ({"top_logprobs": 2}, "there is no field `top_logprobs`"),
        ({"option": {}}, "there is no field `option`; is `options` meant?"),
        ({"options": {"num_predicts": 2}}, "there is no field `options.num_predicts`; is `num_predict` meant?"),
    ],
)
def test_a_field_that_is_meant_is_one_of_the_request_s(
    client: httpx2.Client, more: dict[str, object], said: str
) -> None:
    turns = [{"role": "user", "content": "a"}]
    answer = client.post("/api/chat", json={"model": "m", "messages": turns, **more})
    assert (answer.status_code, answer.json()) == (400, {"error": said})


def test_fields_that_ask_for_nothing_are_no_matter(client: httpx2.Client) -> None:
    """Ollama's own clients send them with every request."""
    given = {"suffix": "", "system": "", "template": "", "context": [], "images": []}
    assert asked(client, "/api/generate", prompt="a", **given)[0] == 200


def test_there_are_no_embeddings(client: httpx2.Client) -> None:
    answer = client.post("/api/embed", json={"model": "smollm2", "input": "a"})
    assert answer.status_code == 404
    assert "makes texts" in answer.json()["error"]


def test_latest_is_a_name_of_the_model(client: httpx2.Client) -> None:
    assert asked(client, "/api/chat", model="smollm2:latest", messages=TURNS)[0] == 200


# -- reasoning --------------------------------------------------------------------------------------

TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}"
    "{{ '(' + message.reasoning_content + ')' if message.reasoning_content }}\n{% endfor %}"
    "{{ '(no thinking)' if enable_thinking is defined and not enable_thinking }}"
)


@pytest.fixture(scope="module")
def thinking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx2.Client]:
    script = tmp_path_factory.mktemp("thinking") / "script.json"
    script.write_text(json.dumps([{"text": "<think>two and two</think>it is four"}]))
    with (
        serving("--model", f"scripted:{script}", "--name", "smollm2", "--reasoning-parser", "qwen3") as server,
        httpx2.Client(base_url=server.url, timeout=60) as client,
    ):
        yield client


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "given", "reasoning", "text"),
    [
        ("/api/chat", {"messages": TURNS}, "two and two", "it is four"),
        ("/api/chat", {"messages": TURNS, "think": False}, "two and two", "it is four"),
        ("/api/generate", {"prompt": "a"}, "two and two", "it is four"),
        ("/api/generate", {"prompt": "a", "raw": True}, "", "<think>two and two</think>it is four"),
    ],
)
def test_reasoning_is_a_field_of_its_own(
    thinking: httpx2.Client, path: str, given: dict[str, Any], stream: bool, reasoning: str, text: str
) -> None:
    status, lines = asked(thinking, path, stream=stream, **given, options={})
    parts = [line["message"] if path == "/api/chat" else line for line in lines]
    assert status == 200
    assert "".join(part.get("thinking", "") for part in parts) == reasoning
    assert "".join(part["content" if path == "/api/chat" else "response"] for part in parts) == text


@pytest.mark.parametrize(("think", "written"), [(None, ""), (True, ""), ("high", ""), (False, "(no thinking)")])
def test_the_template_is_told_whether_to_think(
    default_tokenizer: LocalTokenizer, think: Any, written: str
) -> None:
    turns = [*TURNS, {"role": "assistant", "content": "Paris", "thinking": "so"}, *TURNS]
    body = OllamaChat.model_validate({"model": "m", "messages": turns, "think": think}).as_openai()
    assert isinstance(body, ChatBody)
    prompt = of_chat(default_tokenizer.with_template(TEMPLATE), body)
    said = "user: " + TURNS[0]["content"]
    assert prompt.text == f"{said}\nassistant: Paris(so)\n{said}\n{written}"
