"""`sglc serve` when things go wrong: a dead runtime, clients that leave or stop reading, signals, keys."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx2
import openai
import pytest

from tests.depth import some_of
from tests.runtime.tiny_model import save_tiny_model
from tests.serving import Server, serving
from tests.waiting import until

LONG = {"prompt": "once upon", "max_tokens": 3_500, "temperature": 0.0}
FOREVER = {"extra_body": {"ignore_eos": True}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny_model(folder, max_position_embeddings=4096)
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    (folder / "chat_template.jinja").write_text(template)
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    options = ("--name", "tiny", "--device", "cpu", "--max-rows", "8", "--kv-mib", "64", "--stall-timeout", "1")
    with serving("--model", str(folder), *options) as server:
        yield server


def client_of(server: Server, **options: Any) -> openai.AsyncOpenAI:
    given: dict[str, Any] = {"api_key": "none", "max_retries": 0, **options}
    return openai.AsyncOpenAI(base_url=server.url + "/v1", **given)


def complete(server: Server, **changes: Any) -> tuple[int, Any]:
    return server.ask(
        "POST", "/v1/completions", {"prompt": "a", "max_tokens": 2, "ignore_eos": True, **changes}
    )


# -- a runtime that dies ---------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("sent", some_of([signal.SIGKILL, signal.SIGTERM], 1, 1))
def test_a_dead_runtime_fails_what_runs_and_the_next_requests_have_another(
    server: Server, sent: signal.Signals
) -> None:
    pid = server.runtime()
    assert pid is not None
    begun = 0

    async def whole(client: openai.AsyncOpenAI) -> Any:
        return await client.completions.create(model="tiny", **LONG, **FOREVER)  # type: ignore[call-overload]

    async def streamed(client: openai.AsyncOpenAI) -> None:
        nonlocal begun
        stream = await client.completions.create(model="tiny", stream=True, **LONG, **FOREVER)  # type: ignore[call-overload]
        await anext(stream)
        begun += 1
        async for _ in stream:
            pass

    async def main() -> list[Any]:
        async with client_of(server) as client:
            requests = [asyncio.create_task(streamed(client)) for _ in range(4)]
            while begun < 4:
                assert not any(request.done() for request in requests), requests
                await asyncio.sleep(0.01)
            requests += [asyncio.create_task(whole(client)) for _ in range(8)]  # for some there is no row
            while (await asyncio.to_thread(server.info))["requests"] < 12:
                assert not any(request.done() for request in requests), requests
            os.kill(pid, sent)
            async with asyncio.timeout(5):
                return await asyncio.gather(*requests, return_exceptions=True)

    failed = asyncio.run(main())
    assert len(failed) == 12
    statuses = [error.status_code for error in failed if isinstance(error, openai.InternalServerError)]
    assert statuses == [503] * 8  # a stream that had begun has a status already
    for error in failed:
        assert isinstance(error, openai.APIError)
        assert error.code == "SGLC506"
        assert f"ended by signal {sent.name}" in error.message
    assert complete(server)[0] == 200
    assert server.runtime() not in (None, pid)
    assert server.idle()
    assert server.ask("GET", "/health") == (200, {"status": "ok"})


@pytest.mark.slow
def test_a_dead_runtime_is_replaced_by_a_look_at_the_server_s_health(server: Server) -> None:
    pid = server.runtime()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    until(
        lambda: server.ask("GET", "/health")[0] == 200 and server.runtime() not in (None, pid), "no new runtime"
    )
    assert server.idle()


# -- clients that leave ----------------------------------------------------------------------------


def connected(server: Server, received: int | None = None) -> socket.socket:
    host, _, port = server.url.removeprefix("http://").partition(":")
    connection = socket.socket()
    if received is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, received)
    connection.settimeout(20)
    connection.connect((host, int(port)))
    return connection


def request(path: str, **body: Any) -> bytes:
    """An HTTP request; one that the end of a text does not end."""
    endless = {} if "sampling_params" in body else {"ignore_eos": True}
    content = json.dumps({**endless, **body}).encode()
    head = ("POST %s HTTP/1.1", "host: a", "content-type: application/json", "content-length: %d", "", "")
    return "\r\n".join(head).encode() % (path.encode(), len(content)) + content


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("n", [1, 5])
def test_the_work_of_a_client_that_leaves_is_stopped(server: Server, stream: bool, n: int) -> None:
    submits = server.info()["submits"]
    with connected(server) as connection:
        connection.sendall(request("/v1/completions", stream=stream, n=n, **LONG))
        if stream:
            received = b""
            while received.count(b"data: ") < 3:
                received += connection.recv(4096)
            assert received.startswith(b"HTTP/1.1 200")
        until(lambda: server.info()["running_rows"] == n, "it does not run")
    until(server.idle, "the work goes on")
    assert server.info()["submits"] == submits + 1
    assert complete(server)[0] == 200


def test_a_client_that_leaves_before_its_turn_is_forgotten(server: Server) -> None:
    with connected(server) as first:
        first.sendall(request("/v1/completions", n=8, **LONG))  # all rows
        until(lambda: server.info()["running_rows"] == 8, "it does not run")
        for stream in (True, False):
            with connected(server) as second:
                second.sendall(request("/v1/completions", stream=stream, **LONG))
                until(lambda: server.info()["requests"] == 2, "it does not wait")
            until(lambda: server.info()["requests"] == 1, "it still waits")
    until(server.idle, "the work goes on")


def test_a_client_that_leaves_in_the_middle_of_its_request_is_nothing(server: Server) -> None:
    submits = server.info()["submits"]
    for part in (b"POST /v1/comp", request("/v1/completions", **LONG)[:-9]):
        with connected(server) as connection:
            connection.sendall(part)
    assert complete(server)[0] == 200
    assert server.info()["submits"] == submits + 1


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/generate"])
def test_a_client_that_stops_reading_is_left(server: Server, path: str) -> None:
    asked: dict[str, dict[str, Any]] = {
        "/v1/completions": {**LONG, "n": 8, "logprobs": 20},
        "/v1/chat/completions": {
            "messages": [{"role": "user", "content": "a"}], "max_tokens": 3_500, "n": 8, "logprobs": True,
            "top_logprobs": 20,
        },
        "/generate": {
            "text": "a", "sampling_params": {"max_new_tokens": 3_500, "n": 8, "ignore_eos": True},
            "return_logprob": True,
        },
    }  # fmt: skip
    with connected(server, received=4096) as connection:
        connection.sendall(request(path, stream=True, **asked[path]))
        until(lambda: server.info()["running_rows"] > 0, "it does not run")
        until(server.idle, "the work goes on")
        assert complete(server)[0] == 200
        received = b""
        try:
            while data := connection.recv(1 << 16):
                received += data
        except ConnectionResetError:
            pass
        assert received.startswith(b"HTTP/1.1 200")
        assert b"[DONE]" not in received


def test_a_client_that_reads_slowly_gets_all(server: Server) -> None:
    body = {"prompt": "a", "max_tokens": 60, "stream": True, "logprobs": 20, "n": 8}
    with connected(server, received=4096) as connection:
        connection.sendall(request("/v1/completions", **body))
        received = b""
        while b"[DONE]" not in received:
            received += connection.recv(4096)
    assert received.count(b'"finish_reason":"length"') == 8
    until(server.idle, "it goes on")


def test_the_server_has_logged_no_fault_of_its_own(server: Server) -> None:
    assert "Traceback" not in server.log.read_text()


# -- methods ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_heads_are_those_of_gets_and_other_methods_are_told_which(server: Server) -> None:
    with httpx2.Client(base_url=server.url, timeout=60) as client:
        for path in ("/health", "/v1/models", "/get_model_info", "/api/version"):
            answer, head = client.get(path), client.head(path)
            assert (answer.status_code, head.status_code, head.content) == (200, 200, b"")
            assert head.headers["content-length"] == answer.headers["content-length"]
        for method, path, allowed in (
            ("PUT", "/health", "GET, HEAD"),
            ("GET", "/v1/completions", "POST"),
            ("HEAD", "/generate", "POST"),
            ("DELETE", "/api/chat", "POST"),
        ):
            refused = client.request(method, path)
            assert (refused.status_code, refused.headers["allow"]) == (405, allowed)


# -- keys and names --------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_key_is_asked_for(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text('[{"name": "chat", "prompt": "capital", "text": "Paris."}, {"text": "one two three"}]')
    with serving("--model", f"scripted:{script}", "--name", "script", "--api-key", "s3cret") as server:
        assert server.ask("GET", "/health") == (200, {"status": "ok"})
        for headers in ({}, {"authorization": "Bearer s3cre"}, {"authorization": "s3cret"}):
            for method, path in (("GET", "/v1/models"), ("POST", "/generate"), ("GET", "/nothing")):
                status, content = server.ask(method, path, None, **headers)
                assert (status, content["error"]["code"]) == (401, "invalid_api_key")
        key = {"authorization": "Bearer s3cret"}
        assert server.ask("GET", "/v1/models", None, **key)[1]["data"][0]["id"] == "script"
        with (
            openai.OpenAI(base_url=server.url + "/v1", api_key="wrong", max_retries=0) as client,
            pytest.raises(openai.AuthenticationError),
        ):
            client.models.list()
        scripted(server)


def scripted(server: Server) -> None:
    """A script's answers over HTTP, for tests of clients."""
    with openai.OpenAI(base_url=server.url + "/v1", api_key="s3cret", max_retries=0) as client:
        question: Any = [{"role": "user", "content": "The capital of France?"}]
        answer = client.chat.completions.create(model="script", messages=question)
        assert answer.choices[0].message.content == "Paris."
        answer = client.chat.completions.create(model="script", messages=question, n=2, stop="i", seed=1)
        assert [choice.message.content for choice in answer.choices] == ["Par", "Par"]
        chunks = list(client.completions.create(model="script", prompt="a", stream=True, n=2, max_tokens=2))
        texts = ["".join(c.text for chunk in chunks for c in chunk.choices if c.index == i) for i in range(2)]
        assert texts == ["one two", "one two"]
        whole = client.completions.create(model="script", prompt="a b c", echo=True)
        assert whole.choices[0].text == "a b cone two three"
        assert whole.usage is not None
        assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (3, 3)
        with pytest.raises(openai.BadRequestError, match="no log-probabilities"):
            client.completions.create(model="script", prompt="a", logprobs=1)


@pytest.mark.slow
def test_a_script_without_an_answer_is_the_request_s_fault(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text('{"rules": [{"prompt": "^say", "text": "one two three"}], "word_s": 0.001}')
    with serving("--model", f"scripted:{script}") as server:
        status, content = server.ask("POST", "/generate", {"text": "nothing"})
        assert (status, content["error"]["code"]) == (400, "SGLC521")
        status, content = server.ask("POST", "/generate", {"text": "say", "stream": True})
        assert status == 200
        events = [line.removeprefix("data: ") for line in content.split("\n\n") if line]
        assert events.pop() == "[DONE]"
        assert [json.loads(event)["text"] for event in events] == [
            "one", "one two", "one two three", "one two three"
        ]  # fmt: skip
        assert json.loads(events[-1])["meta_info"]["finish_reason"] == {"type": "stop"}
        assert server.ask("POST", "/flush_cache") == (200, {"flushed": True})
        assert server.info()["calls"] == 2


def test_a_port_that_is_taken_is_refused_before_anything_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    from sglc.cli import main

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        assert main(["serve", "--model", "no-such-model", "--port", port]) == 2
    assert "error[SGLC038]" in capsys.readouterr().err


def test_a_port_that_another_server_has_while_it_loads_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    """It does not listen there yet, and others that reuse addresses get none of it, either."""
    from sglc.cli import main
    from sglc.serve.server import bound_socket

    with bound_socket("127.0.0.1", 0) as loading, socket.socket() as other:
        port = loading.getsockname()[1]
        assert main(["serve", "--model", "no-such-model", "--port", str(port)]) == 2
        assert "error[SGLC038]" in capsys.readouterr().err
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with pytest.raises(OSError, match="in use"):
            other.bind(("0.0.0.0", port))
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))


def test_a_port_is_free_as_soon_as_its_server_has_ended(tmp_path: Path) -> None:
    """Whatever is left of connections that the server itself has closed; and it has one owner then, too."""
    script = tmp_path / "script.json"
    script.write_text('[{"text": "one"}]')
    port = "0"
    for _ in range(2):
        with serving("--model", f"scripted:{script}", "--port", port) as server:
            assert server.ask("GET", "/health")[0] == 200
            port = server.url.rpartition(":")[2]
            with socket.create_connection(("127.0.0.1", int(port))) as left:
                left.sendall(b"GET / HTTP/1.0\r\n\r\n")  # the server closes first
                while left.recv(4096):
                    pass
    from sglc.errors import UsageError
    from sglc.serve.server import bound_socket

    with bound_socket("127.0.0.1", int(port)), pytest.raises(UsageError, match="SGLC038"):
        bound_socket("127.0.0.1", int(port))


def test_a_port_that_is_taken_as_grpc_begins() -> None:
    from sglc.errors import UsageError
    from sglc.serve.door import Access
    from sglc.serve.grpc_server import GrpcServer
    from sglc.serve.service import Service
    from tests.oracle_backend import Characters

    async def begin(taken: Any) -> None:
        await GrpcServer(Service(cast(Any, None), Characters(), "none", 4_000), Access(), taken).start()

    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = SimpleNamespace(getsockname=other.getsockname, close=lambda: None)
        with pytest.raises(UsageError, match="SGLC038"):
            asyncio.run(begin(taken))


def test_a_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from sglc.cli import main

    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "sglc.serve.server", raising=False)  # as in a new process
    assert main(["serve", "--port", "0"]) == 2
    err = capsys.readouterr().err
    assert "error[SGLC039]: `sglc serve` needs a package that is not here: uvicorn" in err
    assert "hint: install `sglc[server]`" in err
