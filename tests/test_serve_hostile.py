"""Requests that are made to break a server: each is refused by its place, or does what it says."""

from __future__ import annotations

import json
import resource
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.runtime.tiny_model import save_tiny_model
from tests.serving import Server, serving
from tests.test_compiling import COSTLY
from tests.waiting import HANG_S, until

pytestmark = pytest.mark.slow

HALF = "a\ud800b"
ENDPOINTS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "a", "max_tokens": 2},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2},
    "/generate": {"text": "a", "sampling_params": {"max_new_tokens": 2}},
}
MAKE_NO_TEXTS: dict[str, dict[str, Any]] = {
    "/tokenize": {"prompt": "a"},
    "/flush_cache": {},
    "/abort_request": {"abort_all": True},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny_model(folder, max_position_embeddings=4096)
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    options = (
        "--name",
        "tiny",
        "--device",
        "cpu",
        "--max-rows",
        "8",
        "--kv-mib",
        "64",
        "--compile-timeout",
        "1",
    )
    with serving("--model", str(folder), *options) as server:
        runtime = server.runtime()
        assert runtime is not None
        for pid in (server.process.pid, runtime):  # and what they begin
            resource.prlimit(pid, resource.RLIMIT_AS, (7_000_000 << 10,) * 2)
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
        ("stop_token_ids", [5] * 100_000),
        ("logit_bias", {str(i): 1 for i in range(100_000)}),
        ("stop", ["a"] * 100_000),
        ("stop", "a" * 100_000),  # all its beginnings together have 5 * 10^9 characters
        ("stop_regex", ["a"] * 100_000),
        ("stop_regex", "a" * 100_000),
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
        "rid", "service_tier", "store", "nvext", "kv_hints", "agent_hints", "user", "metadata", "log_metrics",
        "background", "no_logs", "return_bytes", "return_entropy",
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


@pytest.mark.parametrize("field", ["repeat_penalty", "lora_path", "guided_whitespace_pattern"])
def test_fields_that_change_the_answer_and_are_not_there_fail(server: Server, field: str) -> None:
    status, content = server.ask("POST", "/v1/completions", asked("/v1/completions", **{field: 1.5}))
    assert (status, content["error"]["code"]) == (400, "unsupported_field")
    assert ("use `repetition_penalty`" in content["error"]["message"]) == (field == "repeat_penalty")


@pytest.mark.parametrize("path", ENDPOINTS)
def test_extreme_numbers_do_what_they_say(server: Server, path: str) -> None:
    for field in ("temperature", "top_p", "min_p"):
        for value in (5e-324, 1e-300, 3e38 if field == "temperature" else 1):
            status, content = server.ask("POST", path, asked(path, **{field: value}))
            assert status == 200, (field, value, content)
    for bias in (-1e308, 1e308):
        assert server.ask("POST", path, asked(path, logit_bias={"5": bias}))[0] == 200


def test_a_stop_pattern_takes_time_in_the_text_alone(server: Server) -> None:
    """`re` would try 2^400 ways to read the text."""
    held = {"regex": "a{400}[bc]", "max_tokens": 401, "stop_regex": "(a|a)*b"}
    for path in ("/v1/completions", "/v1/chat/completions"):
        status, content = server.ask("POST", path, asked(path, **held))
        assert status == 200, content
        assert content["usage"]["completion_tokens"] >= 1
    status, content = server.ask("POST", "/v1/completions", asked("/v1/completions", stop_regex="(a+)+(?=b)"))
    assert (status, content["error"]["code"]) == (400, "SGLC471")


def test_deep_schemas_are_held_to_or_refused(server: Server) -> None:
    for opening, closing in (('{"items": ', "}"), ("[", "]")):
        for depth in (500, 50_000):
            schema = opening * depth + "true" + closing * depth
            body = '{"prompt": "a", "max_tokens": 1, "json_schema": {"anyOf": [' + schema + "]}}"
            status, content = server.ask("POST", "/v1/completions", body.encode())
            assert status == (200 if (opening[0], depth) == ("{", 500) else 400), content


ENDLESS = {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}
DOUBLED = 'root ::= r0\nr60 ::= "a"\n' + "\n".join(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(60))
FORMS = [
    ({"ebnf": 'root ::= "a" root'}, 400),
    ({"ebnf": "root ::= (root)*"}, None),
    ({"ebnf": 'root ::= "a"{1000000000}'}, None),
    ({"ebnf": 'root ::= ((("a"{0,900} "b"){0,900} "c"){0,900} "d"){0,900}'}, None),
    ({"ebnf": "root ::= " + "(" * 100_000 + '"a"' + ")" * 100_000}, 400),
    ({"ebnf": DOUBLED}, 200),
    ({"json_schema": ENDLESS}, 400),
    ({"json_schema": ENDLESS, "strict": True}, 400),
    ({"json_schema": {"type": "string", "minLength": 10**6, "maxLength": 10**9}}, None),
    ({"json_schema": {"type": "array", "items": {"type": "integer"}, "minItems": 10**8}}, None),
    ({"json_schema": {"enum": [f"{i:x}" * 9 for i in range(100_000)]}}, None),
    ({"json_schema": {"type": "string", "pattern": "^(a|b|ab)*(a|b){60}c$"}}, None),
    ({"regex": "(a|b)*a(a|b){40}"}, 400),
    ({"regex": "((a{0,99}b){0,99}c){0,99}"}, None),
    ({"regex": "(" * 5_000 + "a" + ")" * 5_000}, 400),
]  # fmt: skip


@pytest.mark.parametrize(("form", "expected"), FORMS)
def test_a_form_is_refused_or_held_to_and_nobody_else_suffers(
    server: Server, form: dict[str, Any], expected: int | None
) -> None:
    status, content = server.ask("POST", "/v1/completions", asked("/v1/completions", **form))
    assert status in ((200, 400) if expected is None else (expected,)), content
    assert server.ask("POST", "/v1/completions", ENDPOINTS["/v1/completions"])[0] == 200


# -- how much is taken -------------------------------------------------------------------------------


def raw(server: Server, *parts: bytes) -> bytes:
    """All that the server says to these bytes, until it closes the connection."""
    host, _, port = server.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=HANG_S) as connection:
        for part in parts:
            connection.sendall(part)
        received = b""
        while data := connection.recv(1 << 16):
            received += data
    return received


def test_a_length_and_an_encoding_together_are_refused_and_nothing_behind_them_is_read(server: Server) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
    smuggled = b"GET /v1/models HTTP/1.1\r\nhost: a\r\n\r\n"
    for fields in (
        b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n",
        b"content-length: 5\r\ncontent-length: 6\r\n\r\nhello",
    ):
        answers = raw(server, head + fields + smuggled)
        assert answers.count(b"HTTP/1.1 ") == 1
        assert answers.startswith(b"HTTP/1.1 400")


def test_what_is_no_request_is_answered_as_any_other(server: Server) -> None:
    for data in (b"hello\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\r\n\r\n", b"GET /health HTTP/1.1\r\n\r\n"):
        head, _, body = raw(server, data).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert b"content-type: application/json" in head.lower()
        assert json.loads(body)["error"]["code"] == "bad_request"


HEAD = b"GET /health HTTP/1.1\r\nhost: a\r\n"
POST = HEAD.replace(b"GET /health", b"POST /generate")
FAULTS = {
    b"GET /health HTTP/1.1\r\n\r\n": "`Host` is missing",
    HEAD + b"host: b\r\n\r\n": "two `Host`",
    POST + b"content-length: 2\r\ncontent-length: 3\r\n\r\n{}": "two `Content-Length`",
    POST + b"content-length: -2\r\n\r\n{}": "`Content-Length` is no length",
    POST + b"transfer-encoding: gzip, chunked\r\n\r\n": "not `chunked` alone",
}


@pytest.mark.parametrize("data", FAULTS, ids=FAULTS.values())
def test_what_is_wrong_with_a_head_is_told(server: Server, data: bytes) -> None:
    head, _, body = raw(server, data).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert FAULTS[data] in json.loads(body)["error"]["message"]


@pytest.mark.parametrize("size", [65_536, 65_537, 300_000])
@pytest.mark.parametrize("part", [1 << 20, 40_000])
def test_a_head_has_a_limit_however_it_comes(server: Server, size: int, part: int) -> None:
    data = HEAD + b"connection: close\r\nx: "
    data += b"a" * (size - len(data) - 4) + b"\r\n\r\n"
    head, _, body = raw(server, *(data[at : at + part] for at in range(0, size, part))).partition(b"\r\n\r\n")
    if size > 65_536:
        assert head.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")
        assert json.loads(body)["error"]["code"] == "head_too_large"
    else:
        assert head.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("part", [1 << 17, 30_000])
def test_who_asks_for_a_head_with_a_long_one_gets_no_body(server: Server, part: int) -> None:
    data = HEAD.replace(b"GET", b"HEAD") + b"x: " + b"a" * 70_000 + b"\r\n\r\n"
    head, _, body = raw(server, *(data[at : at + part] for at in range(0, len(data), part))).partition(
        b"\r\n\r\n"
    )
    assert head.startswith(b"HTTP/1.1 431 ")
    assert body == b""


STREAM = json.dumps({"prompt": "a", "max_tokens": 200, "ignore_eos": True, "stream": True}).encode()
WHOLE = HEAD.replace(
    b"GET /health", b"POST /v1/completions"
) + b"content-type: application/json\r\ncontent-length: %d\r\n" % len(STREAM)


@pytest.mark.parametrize("behind", [b"\r\n", b"junk" * 1000])
@pytest.mark.parametrize("begun", [False, True])
def test_what_comes_behind_a_whole_request_does_not_cut_its_answer(
    server: Server, behind: bytes, begun: bool
) -> None:
    host, _, port = server.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=HANG_S) as connection:
        connection.sendall(WHOLE + b"connection: close\r\n\r\n" + STREAM + (b"" if begun else behind))
        received = connection.recv(1) if begun else b""
        if begun:
            connection.sendall(behind)
        received += connection.makefile("rb").read()
    assert received.startswith(b"HTTP/1.1 200 ")
    assert received.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


def test_what_is_wrong_behind_an_answer_is_not_answered(server: Server) -> None:
    host, _, port = server.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=HANG_S) as connection:
        connection.sendall(
            POST.replace(b"/generate", b"/nothing") + b"transfer-encoding: chunked\r\n\r\n1\r\na\r\n"
        )
        received = connection.recv(1)
        connection.sendall(b"zz\r\n")
        received += connection.makefile("rb").read()
    assert received.startswith(b"HTTP/1.1 404 ")
    assert received.count(b"HTTP/1.1") == 1


def test_empty_lines_before_a_request_are_nothing(server: Server) -> None:
    last = HEAD + b"connection: close\r\n\r\n"
    for parts in ((b"\r\n" + HEAD + b"\r\n\r\n" + last,), (b"\r", b"\n" + HEAD + b"\r\n", b"\r\n", last)):
        assert raw(server, *parts).count(b"HTTP/1.1 200 ") == 2


@pytest.mark.parametrize("path", ["/nothing", "/v1/completions", "/tokenize"])
@pytest.mark.parametrize("megabytes", [4, 20])  # it takes 16
def test_who_is_refused_reads_so_though_the_body_is_not_read(server: Server, path: str, megabytes: int) -> None:
    size = megabytes << 20
    head = f"POST {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {size}\r\n\r\n"
    answer = raw(server, head.encode(), b"[" * size)
    status = 413 if megabytes > 16 else 404 if path == "/nothing" else 400
    assert answer.startswith(b"HTTP/1.1 %d " % status)


def test_a_target_may_name_the_host(server: Server) -> None:
    for target, status in (("http://b/health", 200), ("HTTP://b:80/nothing", 404), ("http://b?x", 404)):
        answer = raw(server, f"GET {target} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n".encode())
        assert answer.startswith(b"HTTP/1.1 %d " % status)


TURN = {"role": "user", "content": "a"}


def test_more_than_is_taken_of_one_request_is_refused(server: Server) -> None:
    for path, body, param, code in (
        ("/v1/completions", {"prompt": ["a"] * 10_000}, "prompt", "too_many"),
        ("/generate", {"text": ["a"] * 257}, "text", "too_many"),
        ("/v1/completions", {"prompt": ["a"] * 200, "n": 128}, None, "too_many"),
        ("/v1/completions", {"prompt": [5] * 1_000_000}, "prompt", "context_length_exceeded"),
        ("/generate", {"input_ids": [[5] * 5_000]}, "input_ids", "context_length_exceeded"),
        ("/v1/completions", {"prompt": "word " * 1_000_000}, "prompt", "context_length_exceeded"),
        ("/generate", {"text": ["a b " * 20_000] * 200}, "text", "context_length_exceeded"),
        ("/v1/chat/completions", {"messages": [TURN] * 50_000}, "messages", "context_length_exceeded"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 50_000}]},
            "messages",
            "context_length_exceeded",
        ),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "word " * 1_000_000}]},
            "messages",
            "context_length_exceeded",
        ),
    ):
        status, content = server.ask("POST", path, body)
        assert (status, content["error"]["param"], content["error"]["code"]) == (400, param, code)


def test_more_texts_than_there_is_room_for_are_turned_away_for_now(server: Server) -> None:
    long = {"prompt": ["a"] * 8, "n": 128, "max_tokens": 3_000, "ignore_eos": True, "stream": True}
    with socket.create_connection(server.url.removeprefix("http://").split(":"), timeout=HANG_S) as connection:
        content = json.dumps(long).encode()
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n%s" % (len(content), content)
        )
        until(lambda: server.info()["running_rows"] > 0, "it does not run")
        for path, body in ENDPOINTS.items():
            request = urllib.request.Request(
                server.url + path, json.dumps(body).encode(), {"content-type": "application/json"}
            )
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(request, timeout=HANG_S)
            with refused.value as answer:
                assert (answer.code, answer.headers["retry-after"]) == (429, "1")
                assert json.loads(answer.read())["error"]["code"] == "queue_full"
        assert server.ask("GET", "/health")[0] == 200
        for path, body in MAKE_NO_TEXTS.items():
            assert server.ask("POST", path, body)[0] == 200
    until(server.idle, "it goes on")
    for path, body in ENDPOINTS.items():
        assert server.ask("POST", path, body)[0] == 200


def test_a_grammar_that_takes_too_long_is_refused_while_others_are_answered(server: Server) -> None:
    with ThreadPoolExecutor(1) as pool:
        costly = pool.submit(server.ask, "POST", "/v1/completions", asked("/v1/completions", ebnf=COSTLY))
        answered = 0
        while not costly.done():
            assert server.ask("POST", "/v1/completions", ENDPOINTS["/v1/completions"])[0] == 200
            answered += 1
    status, content = costly.result()
    assert (status, content["error"]["param"], content["error"]["code"]) == (400, "ebnf", "SGLC457")
    assert "takes more than 1 s" in content["error"]["message"]
    assert answered > 10


def test_nothing_is_left_behind(server: Server) -> None:
    assert server.idle()
    _, *said = server.log.read_text().splitlines()
    assert [line for line in said if line != "WARNING:  Invalid HTTP request received."] == []
