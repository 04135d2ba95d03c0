"""`sglc serve` gives nobody more time, or more tokens, than its options say."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from tests.runtime.tiny_model import save_tiny_model
from tests.serving import Server, serving
from tests.waiting import HANG_S, until

pytestmark = pytest.mark.slow

LONG = {"prompt": "once upon", "max_tokens": 400, "temperature": 0.0, "ignore_eos": True}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny_model(folder, max_position_embeddings=4096)
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    (folder / "chat_template.jinja").write_text(template)
    bounds = {"request-timeout": 4, "body-timeout": 2, "keep-alive": 1, "max-tokens": 7, "max-len": 500}
    options = [f"--{name}={most}" for name, most in bounds.items()]
    with serving("--model", str(folder), "--device", "cpu", "--kv-mib", "64", *options) as server:
        yield server


def connected(server: Server) -> socket.socket:
    host, _, port = server.url.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=HANG_S)


def request(path: str, body: dict[str, Any], **more: Any) -> bytes:
    content = json.dumps({**body, **more}).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(content)}\r\n\r\n".encode() + content


def rest(connection: socket.socket) -> bytes:
    """What is still to come, until the server closes the connection."""
    received = b""
    while more := connection.recv(1 << 16):
        received += more
    return received


def refusal(answer: bytes) -> tuple[bytes, str]:
    """Status and code of an answer that is an error."""
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.split()[1], json.loads(body)["error"]["code"]


# -- time ------------------------------------------------------------------------------------------


ENDPOINTS = {
    "/v1/completions": LONG,
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "once upon"}]},
    "/generate": {"text": "once upon", "sampling_params": {"max_new_tokens": 400, "ignore_eos": True}},
}


def test_what_takes_too_long_is_told_so_and_stopped(server: Server) -> None:
    pid = server.runtime()
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)  # in one call that does not return, as far as anybody can see
    try:
        with ExitStack() as stack:
            connections = []
            for path, body in ENDPOINTS.items():
                for stream in (False, True):  # whose first token does not come either
                    connections.append(stack.enter_context(closing(connected(server))))
                    connections[-1].sendall(request(path, body, stream=stream))
            for answer in map(rest, connections):
                assert refusal(answer) == (b"503", "timed_out")
                assert b"\r\nx-should-retry: false\r\n" in answer
                assert b"\r\nretry-after:" not in answer
                assert b"\r\nconnection: close\r\n" in answer
    finally:
        os.kill(pid, signal.SIGCONT)
    until(server.idle, "it goes on")


def test_a_stream_that_takes_too_long_ends_with_an_event(server: Server) -> None:
    pid = server.runtime()
    assert pid is not None
    with closing(connected(server)) as stream:
        stream.sendall(request("/v1/completions", LONG, stream=True))
        received = stream.recv(1 << 16)
        os.kill(pid, signal.SIGSTOP)
        try:
            received += rest(stream)
        finally:
            os.kill(pid, signal.SIGCONT)
    assert received.startswith(b"HTTP/1.1 200")
    *_, error, done = received.replace(b"\r\n", b"\n").split(b"data: ")
    assert done.startswith(b"[DONE]\n\n")
    assert json.loads(error.split(b"\n")[0])["error"]["code"] == "timed_out"
    until(server.idle, "it goes on")


def test_half_of_a_request_is_not_waited_for(server: Server) -> None:
    whole = request("/v1/completions", LONG)
    with closing(connected(server)) as body, closing(connected(server)) as chunks:
        body.sendall(whole[:-1])
        chunks.sendall(b"POST /generate HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{\r\n")
        for answer in (rest(body), rest(chunks)):
            assert refusal(answer) == (b"408", "body_timed_out")
            assert b"\r\nconnection: close\r\n" in answer
        assert server.ask("POST", "/generate", {"text": "a"})[0] == 200


def test_a_head_is_not_waited_for(server: Server) -> None:
    with ExitStack() as stack:
        connections = []
        for before in (b"", b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n"):
            for begun in (b"", b"GET /health HTTP/1.1\r\nhost:"):
                connections.append(stack.enter_context(closing(connected(server))))
                connections[-1].sendall(before + begun)
        answers = [rest(connection) for connection in connections]
    assert [answer.count(b"HTTP/1.1 200 OK") for answer in answers] == [0, 0, 1, 1]
    assert answers[:2] == [b"", b""]


# -- tokens ----------------------------------------------------------------------------------------


def test_a_chat_without_a_limit_has_one(server: Server) -> None:
    body = {"messages": [{"role": "user", "content": "once upon"}], "ignore_eos": True}
    for more, made in (({}, 7), ({"max_tokens": 9}, 9), ({"max_completion_tokens": 5}, 5)):
        status, answer = server.ask("POST", "/v1/chat/completions", {**body, **more})
        assert (status, answer["usage"]["completion_tokens"]) == (200, made)
    full = {**body, "messages": [{"role": "user", "content": " a" * 249}]}
    status, answer = server.ask("POST", "/v1/chat/completions", full)
    assert status == 200, answer
    assert answer["usage"]["total_tokens"] == 500
    assert answer["usage"]["completion_tokens"] == 2


def test_a_prompt_and_its_answer_are_no_longer_than_is_said(server: Server) -> None:
    assert server.ask("GET", "/v1/models")[1]["data"][0]["max_model_len"] == 500
    status, answer = server.ask("POST", "/v1/completions", {"prompt": [5] * 490, "max_tokens": 10})
    assert status == 200, answer
    for prompt, made in (([5] * 490, 11), ([5] * 501, 1)):
        status, answer = server.ask("POST", "/v1/completions", {"prompt": prompt, "max_tokens": made})
        assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
        assert "500" in answer["error"]["message"]


def test_nothing_is_left_behind(server: Server) -> None:
    assert server.idle()
    assert server.log.read_text().count("\n") == 1
