"""The life of `sglc serve`: its connections, and its end by a signal, whatever its runtime is doing."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from sglc.serve.server import bound_socket
from tests.depth import some_of
from tests.processes import alive, compilers
from tests.runtime.tiny_model import save_tiny_model
from tests.serving import Server, serving
from tests.test_compiling import COSTLY
from tests.waiting import HANG_S, until

pytestmark = pytest.mark.slow

SIGNALS = [signal.SIGINT, signal.SIGTERM]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny_model(folder, max_position_embeddings=4096)
    return folder


@contextmanager
def tiny(folder: Path, *options: str, status: int = 0) -> Iterator[Server]:
    given = ("--model", str(folder), "--name", "tiny", "--device", "cpu", "--kv-mib", "64", *options)
    with serving(*given, status=status) as server:
        yield server


def test_what_constraints_need_is_loaded_before_anybody_is_answered(folder: Path) -> None:
    with tiny(folder) as server:
        mapped = Path(f"/proc/{server.runtime()}/maps").read_text()
        assert "llguidance" in mapped
        assert "xgrammar" in mapped
        assert len(compilers(server.process.pid)) == 1


ENDED_AS_IT_SERVES = """
import os, signal, sys
from sglc.cli import main

class Told:
    def write(self, text):
        sys.__stderr__.write(text)
        if "serving" in text:
            os.kill(os.getpid(), signal.SIGTERM)

    def flush(self):
        sys.__stderr__.flush()

sys.stderr = Told()
sys.exit(main(["serve", "--port", "0", "--device", "cpu", "--model", sys.argv[1], "--kv-mib", "64"]))
"""


def test_a_signal_may_come_as_soon_as_it_says_that_it_serves(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENDED_AS_IT_SERVES, folder], stderr=subprocess.PIPE, text=True, timeout=60
    )
    assert (done.returncode, done.stderr.count("serving")) == (0, 1), done.stderr


class Client:
    """A connection for one request."""

    def __init__(self, server: Server) -> None:
        self._connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=HANG_S)

    def ask(self, method: str, path: str, body: Any = None) -> None:
        self._connection.request(method, path, body and json.dumps(body), {"content-type": "application/json"})

    def complete(self, **changes: Any) -> None:
        given = {"prompt": "once upon", "max_tokens": 400, "temperature": 0.0, "ignore_eos": True}
        self.ask("POST", "/v1/completions", {**given, **changes})

    def begin(self) -> None:
        """Wait for the head of the answer."""
        self.answer = self._connection.getresponse()

    def read(self) -> str:
        return self.answer.read().decode()

    def whole(self) -> tuple[int, Any]:
        self.begin()
        return self.answer.status, json.loads(self.read())

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def clients() -> Iterator[Callable[[Server], Client]]:
    with ExitStack() as stack:
        yield lambda server: stack.enter_context(closing(Client(server)))


def gone(pid: int | None) -> bool:
    return not Path(f"/proc/{pid}").exists()


# -- connections -------------------------------------------------------------------------------------


def test_small_answers_are_sent_at_once() -> None:
    with bound_socket("127.0.0.1", 0) as listening:
        listening.listen()
        with socket.create_connection(listening.getsockname()), listening.accept()[0] as connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize(("options", "stays"), some_of([(("--keep-alive", "1"), False), ((), True)], 1, 1))
def test_an_idle_connection_stays_for_as_long_as_is_said(
    tmp_path: Path, options: tuple[str, ...], stays: bool
) -> None:
    script = tmp_path / "script.json"
    script.write_text('[{"text": "one"}]')
    with serving("--model", f"scripted:{script}", *options) as server:
        host, _, port = server.url.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port)), timeout=6.5) as connection:  # uvicorn's own is 5
            connection.sendall(b"GET /v1/models HTTP/1.1\r\nhost: a\r\n\r\n")
            received = b""
            while not received.endswith(b"}"):
                received += connection.recv(4096)
            try:
                assert connection.recv(1) == b""
                assert not stays
            except TimeoutError:
                assert stays


# -- the end -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", some_of(SIGNALS, 1, 1))
def test_what_runs_is_answered_and_nothing_new_begins(
    folder: Path, clients: Callable[[Server], Client], sent: signal.Signals
) -> None:
    with tiny(folder) as server:
        pid = server.runtime()
        assert pid is not None
        stream, whole = clients(server), clients(server)
        stream.complete(stream=True)
        stream.begin()
        whole.complete()
        until(lambda: server.info()["requests"] == 2, "it does not run")
        os.kill(pid, signal.SIGSTOP)
        server.process.send_signal(sent)
        until(lambda: "ending" in server.log.read_text(), "it does not end")
        for path, body in (("/health", None), ("/v1/models", None), ("/v1/completions", {"prompt": "a"})):
            other = clients(server)
            other.ask("GET" if body is None else "POST", path, body)
            status, content = other.whole()
            assert (status, other.answer.headers["retry-after"], content["error"]["code"]) == (
                503,
                "1",
                "draining",
            )
        os.kill(pid, signal.SIGCONT)
        status, content = whole.whole()
        assert (status, content["choices"][0]["finish_reason"]) == (200, "length")
        events = stream.read()
        assert '"finish_reason":"length"' in events
        assert events.endswith("data: [DONE]\n\n")
        assert server.process.wait(HANG_S) == 0
        assert gone(pid)


@pytest.mark.parametrize("sent", some_of(SIGNALS[::-1], 1, 1))
def test_what_takes_too_long_is_told_so(
    folder: Path, clients: Callable[[Server], Client], sent: signal.Signals
) -> None:
    """The runtime is in one call that does not return, as far as anybody can see."""
    with tiny(folder, "--drain-timeout", "0.5") as server:
        pid = server.runtime()
        assert pid is not None
        stream, whole, question = clients(server), clients(server), clients(server)
        stream.complete(stream=True, max_tokens=3_500)
        stream.begin()
        whole.complete(max_tokens=3_500)
        until(lambda: server.info()["requests"] == 2, "it does not run")
        os.kill(pid, signal.SIGSTOP)
        question.ask("GET", "/get_server_info")  # a thread of the server waits for this
        server.process.send_signal(sent)
        *_, error, done = stream.read().rstrip("\n").split("\n\n")
        assert json.loads(error.removeprefix("data: "))["error"]["code"] == "draining"
        assert done == "data: [DONE]"
        status, content = whole.whole()
        assert (status, content["error"]["code"]) == (503, "draining")
        assert server.process.wait(HANG_S) == 0
        assert gone(pid)
        assert "Traceback" not in server.log.read_text()


def test_half_of_a_request_is_told_so_too(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text('[{"text": "one"}]')
    head = "POST /generate HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
    with serving("--model", f"scripted:{script}", "--drain-timeout", "0.2") as server, ExitStack() as stack:
        host, _, port = server.url.removeprefix("http://").partition(":")
        connections = []
        for part in (
            f"{head}content-length: 9\r\n\r\n{{",
            f"{head}transfer-encoding: chunked\r\n\r\n1\r\n{{\r\n",
            "",
        ):
            connections.append(stack.enter_context(socket.create_connection((host, int(port)), timeout=HANG_S)))
            connections[-1].sendall(part.encode())
        assert server.ask("GET", "/health")[0] == 200  # behind them
        server.process.send_signal(signal.SIGTERM)
        *halves, nothing = [connection.makefile("rb").read() for connection in connections]
        assert nothing == b""
        for answer in halves:
            assert answer.startswith(b"HTTP/1.1 503")
            assert b'"code":"draining"' in answer
        assert server.process.wait(HANG_S) == 0
        _, ending = server.log.read_text().splitlines()
        assert ending.startswith("sglc: ending: 2 answers")


def test_half_of_a_body_that_has_its_answer_is_not_waited_for(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text('[{"text": "one"}]')
    with serving("--model", f"scripted:{script}") as server:
        host, _, port = server.url.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port)), timeout=HANG_S) as connection:
            connection.sendall(b"POST /nothing HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n{")
            assert connection.recv(12) == b"HTTP/1.1 404"
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(HANG_S) == 0
        assert "Cancel" not in server.log.read_text()


def test_what_is_being_compiled_ends_with_the_server(folder: Path, clients: Callable[[Server], Client]) -> None:
    with tiny(folder, "--drain-timeout", "0.5", "--compile-timeout", "100") as server:
        costly = clients(server)
        costly.complete(ebnf=COSTLY)
        until(lambda: len(compilers(server.process.pid)) >= 2, "it is not compiled")  # one forks the other
        ours = compilers(server.process.pid)
        server.process.send_signal(signal.SIGTERM)
        status, content = costly.whole()
        assert (status, content["error"]["code"]) == (503, "draining")
        assert server.process.wait(HANG_S) == 0
        until(lambda: not any(map(alive, ours)), "a process is left behind")


@pytest.mark.parametrize("sent", some_of(SIGNALS[::-1], 1, 1))
def test_a_second_signal_ends_at_once(
    folder: Path, clients: Callable[[Server], Client], sent: signal.Signals
) -> None:
    with tiny(folder, status=128 + sent) as server:
        pid = server.runtime()
        assert pid is not None
        stream = clients(server)
        stream.complete(stream=True, max_tokens=3_500)
        stream.begin()
        os.kill(pid, signal.SIGSTOP)
        server.process.send_signal(sent)
        until(lambda: "ending" in server.log.read_text(), "it does not end")
        server.process.send_signal(sent)
        server.process.wait(HANG_S)
        until(lambda: gone(pid), "the runtime is left behind")
