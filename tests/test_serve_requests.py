"""What the server refuses, and how (tests/serve/requests.md); and what it takes that means nothing."""

from __future__ import annotations

import http.client
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.depth import few
from tests.serving import Server

SPEC = Path(__file__).parent / "serve" / "requests.md"
_CASE = re.compile(
    r"^## ([^\n]*)\n\n```http\n(\w+) (\S+)\n(.*?)```\n\n```json\n(.*?)```$", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Case:
    title: str
    method: str
    path: str
    body: str
    expected: str


def cases() -> list[Case]:
    return [Case(*found) for found in _CASE.findall(SPEC.read_text())]


def test_every_case_is_read() -> None:
    titles = [case.title for case in cases()]
    assert len(titles) == len(set(titles)) == SPEC.read_text().count("\n## ")


@pytest.mark.parametrize("case", few(cases(), 15), ids=lambda case: case.title)
def test_refused(server: Server, case: Case, request: pytest.FixtureRequest) -> None:
    status, content = server.ask(case.method, case.path, case.body.encode() or None)
    shown = f"{status}\n{json.dumps(content, indent=1, ensure_ascii=False)}\n"
    if request.config.getoption("--bless"):
        head = f"## {case.title}\n\n```http\n{case.method} {case.path}\n{case.body}```\n\n```json\n"
        text = SPEC.read_text()
        assert text.count(head + case.expected) == 1
        SPEC.write_text(text.replace(head + case.expected, head + shown))
        return
    assert 400 <= status < 500
    assert set(content["error"]) == {"message", "type", "param", "code"}
    assert shown == case.expected


TAKEN: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "One, two,", "max_tokens": 4, "temperature": 0}),
    (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "Count"}], "max_tokens": 4, "temperature": 0},
    ),
    ("/generate", {"text": "One, two,", "sampling_params": {"max_new_tokens": 4, "temperature": 0}}),
]


@pytest.mark.parametrize(("path", "body"), TAKEN, ids=[path for path, _ in TAKEN])
def test_nulls_are_absent_and_neutral_values_mean_nothing(
    server: Server, path: str, body: dict[str, Any]
) -> None:
    from sglc.serve.bodies import ChatBody, CompletionBody, GenerateBody
    from sglc.serve.fields import UNSUPPORTED, Body

    kinds: dict[str, type[Body]] = {
        "/v1/completions": CompletionBody,
        "/v1/chat/completions": ChatBody,
        "/generate": GenerateBody,
    }
    nulls: dict[str, Any] = {
        (field.alias or name): None for name, field in kinds[path].model_fields.items() if name not in body
    }
    nulls |= dict.fromkeys(UNSUPPORTED) | {"no_such_field": None}
    neutral = {"tools": [], "tool_choice": "none", "length_penalty": 1.0, "suffix": "", "store": False}
    told = [server.ask("POST", path, given) for given in (body, {**body, **nulls}, {**body, **neutral})]
    assert [status for status, _ in told] == [200, 200, 200]
    texts = [
        content["text"]
        if path == "/generate"
        else content["choices"][0].get("message") or content["choices"][0]["text"]
        for _, content in told
    ]
    assert texts[0] == texts[1] == texts[2]


def test_nulls_inside_of_messages_are_absent(server: Server) -> None:
    """As a client sends back an answer that it got."""
    _, first = server.ask("POST", *TAKEN[1])
    message = {**first["choices"][0]["message"], "tool_calls": None, "audio": None, "name": None}
    messages = [*TAKEN[1][1]["messages"], message, {"role": "user", "content": "Go on"}]
    status, _ = server.ask("POST", "/v1/chat/completions", {"messages": messages, "max_tokens": 1})
    assert status == 200


def test_a_body_without_end_is_refused(server: Server) -> None:
    from sglc.serve.limits import Limits

    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=20)
    connection.putrequest("POST", "/v1/completions")
    connection.putheader("content-type", "application/json")
    connection.putheader("content-length", str(Limits().body + 1))
    connection.endheaders(b"{")
    answer = connection.getresponse()
    error = json.loads(answer.read())["error"]
    assert (answer.status, error["code"], error["type"]) == (413, "body_too_large", "invalid_request_error")
    connection.close()


def test_deeply_nested_json_is_refused(server: Server) -> None:
    status, content = server.ask("POST", "/v1/completions", b'{"prompt": ' + b"[" * 200_000)
    assert (status, content["error"]["code"]) == (400, "bad_request")
    assert content["error"]["message"] == "the body is nested too deeply"
    assert server.ask("GET", "/health") == (200, {"status": "ok"})


def test_nothing_is_left_behind(server: Server) -> None:
    assert server.idle()
    assert server.log.read_text().count("\n") == 1  # nothing of all this is the server's fault
