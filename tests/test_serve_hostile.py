"""Requests that are made to break a server: each is refused by its place, or does what it says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.runtime.tiny_model import save_tiny_model
from tests.serving import Server, serving

HALF = "a\ud800b"
ENDPOINTS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "a", "max_tokens": 2},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2},
    "/generate": {"text": "a", "sampling_params": {"max_new_tokens": 2}},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny_model(folder, max_position_embeddings=4096)
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    options = ("--name", "tiny", "--device", "cpu", "--max-rows", "8", "--kv-mib", "64")
    with serving("--model", str(folder), *options) as server:
        yield server


def asked(path: str, **fields: Any) -> dict[str, Any]:
    """A request with fields at the place where they belong in it."""
    body = ENDPOINTS[path]
    if path == "/generate":
        return {**body, "sampling_params": {**body["sampling_params"], **fields}}
    return {**body, **fields}


@pytest.mark.parametrize("path", ENDPOINTS)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("regex", HALF),
        ("ebnf", f'root ::= "{HALF}"'),
        ("json_schema", {"enum": [HALF]}),
        ("json_schema", {"type": "object", "properties": {HALF: True}}),
        ("json_schema", f'{{"const": "{HALF}"}}'),
        ("stop", [HALF]),
        ("stop_regex", HALF),
        ("top_k", 10**30),
        ("n", 10**30),
        ("logit_bias", {"9" * 30: 1}),
        ("stop_token_ids", [10**30]),
    ],
)
def test_values_that_nothing_can_hold_are_refused_by_their_place(
    server: Server, path: str, field: str, value: Any
) -> None:
    status, content = server.ask("POST", path, asked(path, **{field: value}))
    assert status == 400, content
    param = f"sampling_params.{field}" if path == "/generate" else field
    assert content["error"]["param"].startswith(param)
    assert content["error"]["code"] in ("invalid_value", "invalid_type")


def test_half_a_character_is_refused_wherever_it_stands(server: Server) -> None:
    for path, body, param in (
        ("/v1/completions", {"prompt": HALF}, "prompt"),
        ("/v1/completions", {"prompt": ["a", HALF]}, "prompt"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": HALF}]}, "messages"),
        ("/v1/completions", {"prompt": "a", "model": HALF}, "model"),
        ("/v1/completions", {"prompt": "a", HALF: 1}, None),
        ("/generate", {"text": HALF}, "text"),
    ):
        status, content = server.ask("POST", path, body)
        assert (status, content["error"]["param"]) == (400, param)


@pytest.mark.parametrize("path", ENDPOINTS)
def test_fields_that_change_no_answer_never_fail_a_request(server: Server, path: str) -> None:
    names = [
        "rid", "priority", "nvext", "kv_hints", "agent_hints", "user", "metadata", "log_metrics", "background",
        "no_logs", "return_bytes", "return_entropy",
    ]  # fmt: skip
    if path == "/generate":
        names.append("model")
    for value in (HALF, 10**30, -1.5, True, ["a", None], {"a": {"b": HALF}}, ""):
        status, content = server.ask("POST", path, {**ENDPOINTS[path], **dict.fromkeys(names, value)})
        assert status == 200, content


def test_a_request_is_called_what_it_asks_for_if_that_can_be(server: Server) -> None:
    for given, called in (("mine", "mine"), (HALF, "a?b")):
        _, content = server.ask("POST", "/generate", {**ENDPOINTS["/generate"], "rid": given})
        assert content["meta_info"]["id"] == called


@pytest.mark.parametrize("field", ["repetition_penalty", "lora_path", "structural_tag"])
def test_fields_that_change_the_answer_and_are_not_there_fail(server: Server, field: str) -> None:
    status, content = server.ask("POST", "/v1/completions", asked("/v1/completions", **{field: 1.5}))
    assert (status, content["error"]["code"]) == (400, "unsupported_field")


@pytest.mark.parametrize("path", ENDPOINTS)
def test_extreme_numbers_do_what_they_say(server: Server, path: str) -> None:
    for field in ("temperature", "top_p", "min_p"):
        for value in (5e-324, 1e-300, 3e38 if field == "temperature" else 1):
            status, content = server.ask("POST", path, asked(path, **{field: value}))
            assert status == 200, (field, value, content)
    for bias in (-1e308, 1e308):
        assert server.ask("POST", path, asked(path, logit_bias={"5": bias}))[0] == 200


def test_deep_schemas_are_refused(server: Server) -> None:
    for opening, closing in (('{"items": ', "}"), ("[", "]")):
        for depth in (500, 50_000):
            schema = opening * depth + "true" + closing * depth
            body = '{"prompt": "a", "max_tokens": 1, "json_schema": {"anyOf": [' + schema + "]}}"
            status, content = server.ask("POST", "/v1/completions", body.encode())
            assert status == 400, content


def test_nothing_is_left_behind(server: Server) -> None:
    assert server.idle()
    assert server.log.read_text().count("\n") == 1, server.log.read_text()
