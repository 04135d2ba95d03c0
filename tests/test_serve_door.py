"""Who gets into `sglc serve`, and that its keys do not get out."""

from __future__ import annotations

import hmac
import json
import re
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from sglc.serve.keys import ADMIN as ADMIN_SCOPE
from sglc.serve.keys import Keys
from sglc.serve.limits import Limits, allowed_priority
from tests.serving import Server, serving
from tests.waiting import HANG_S, until

pytestmark = pytest.mark.slow

API = ("given-1", "given-2", "in-file-1", "in-file-2")
ADMIN = ("boss-given", "boss-in-file")
COMPLETION = {"prompt": "a", "max_tokens": 2}
FOR_ALL = (("GET", "/v1/models"), ("GET", "/get_model_info"), ("POST", "/v1/completions"), ("GET", "/docs"))
FOR_ADMINS = (("GET", "/server_info"), ("GET", "/get_server_info"), ("POST", "/flush_cache"))


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("script") / "script.json"
    rules = [{"prompt": "^endless", "text": "word " * 30_000}, {"text": "one two three"}]
    path.write_text(json.dumps({"rules": rules, "word_s": 0.001}))
    return f"scripted:{path}"


@pytest.fixture(scope="module")
def server(script: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("keys")
    (folder / "api").write_text(f"# users\n\n{API[2]}\n  {API[3]}  \n")
    (folder / "admin").write_text(f"{ADMIN[1]}\r\n")
    options = (
        *("--api-key", API[0], "--api-key-file", str(folder / "api"), "--api-key", API[1]),
        *("--admin-key", ADMIN[0], "--admin-key-file", str(folder / "admin")),
    )
    with serving("--model", script, "--name", "script", *options) as server:
        yield server


def ask(server: Server, method: str, path: str, key: str | None) -> tuple[int, str]:
    """Status, and code if it is an error."""
    headers = {} if key is None else {"authorization": key}
    status, content = server.ask(method, path, COMPLETION if method == "POST" else None, **headers)
    return status, content["error"]["code"] if status >= 400 else ""


# -- keys ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", API)
def test_every_key_opens_what_is_for_all(server: Server, key: str) -> None:
    for method, path in FOR_ALL:
        assert ask(server, method, path, f"Bearer {key}") == (200, "")
    for method, path in FOR_ADMINS:
        assert ask(server, method, path, f"Bearer {key}") == (403, "no_admin_key")
    with openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0) as client:
        assert client.completions.create(model="script", prompt="a").choices[0].text == "one two three"


@pytest.mark.parametrize("key", ADMIN)
def test_a_key_of_admins_opens_everything(server: Server, key: str) -> None:
    for method, path in (*FOR_ALL, *FOR_ADMINS):
        assert ask(server, method, path, f"bearer {key}") == (200, "")


@pytest.mark.parametrize(
    "key",
    [
        *(None, "", "Bearer", "Bearer ", API[0], f"Basic {API[0]}", f"Bearer {API[0]}x"),
        *(f"Bearer {API[0][:-1]}", f"Bearer {API[0]} ,", f"Bearer {API[0].upper()}"),
        *("Bearer # users", "Bearer \xe9", "Bearer " + "x" * 9_000),
    ],
)  # fmt: skip
def test_nothing_else_opens(server: Server, key: str | None) -> None:
    for method, path in (*FOR_ALL, *FOR_ADMINS, ("GET", "/nothing"), ("POST", "/health_generate")):
        assert ask(server, method, path, key) == (401, "invalid_api_key")
    assert ask(server, "GET", "/health", key) == (200, "")


def test_keys_are_not_told(server: Server) -> None:
    told = [server.log.read_text()]
    for path in ("/server_info", "/get_model_info", "/openapi.json", "/docs", "/v1/models", "/nothing"):
        for key in (ADMIN[0], API[0], "wrong"):
            told.append(json.dumps(server.ask("GET", path, None, authorization=f"Bearer {key}")))
    for body in (b"{", {"prompt": API[2][::-1]}, {"prompt": "a", "temperature": "hot"}):
        told.append(json.dumps(server.ask("POST", "/v1/completions", body, authorization=f"Bearer {API[0]}")))
    assert [key for key in (*API, *ADMIN, "wrong") if any(key in text for text in told)] == []


def test_only_admins_need_a_key_where_only_they_have_one(script: str) -> None:
    with serving("--model", script, "--admin-key", ADMIN[0]) as server:
        for method, path in FOR_ALL:
            assert ask(server, method, path, None) == (200, "")
        for method, path in FOR_ADMINS:
            assert ask(server, method, path, None) == (401, "invalid_api_key")
            assert ask(server, method, path, f"Bearer {ADMIN[0]}") == (200, "")


def test_every_key_is_compared_whichever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[tuple[int, int]] = []
    compare = hmac.compare_digest

    def counted(one: bytes, other: bytes) -> bool:
        lengths.append((len(one), len(other)))
        return compare(one, other)

    monkeypatch.setattr(hmac, "compare_digest", counted)
    keys = Keys.of(API)
    for given, one_of_them in (
        (API[0], True),
        (API[3], True),
        ("given", False),
        ("", False),
        ("x" * 99, False),
    ):
        lengths.clear()
        assert keys.have(given.encode()) == one_of_them
        assert lengths == [(32, 32)] * len(API)
    assert not any(key in repr(keys) for key in API)


@pytest.mark.parametrize(
    "text", ["", "# nothing\n", "good\nhalf a-secret\n", "good\nse\x07cret\n", "s\xe9cret\n"]
)
def test_a_file_of_keys_is_read_before_anything_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    from sglc.cli import main

    path = tmp_path / "keys"
    path.write_text(text)
    for option in ("--api-key-file", "--admin-key-file"):
        assert main(["serve", "--model", "no-such-model", "--port", "0", option, str(path)]) == 2
        err = capsys.readouterr().err
        assert f"error[SGLC033]: `{path}` " in err
        assert "cret" not in err


# -- browsers and names ----------------------------------------------------------------------------

PAGE, OTHER_PAGE = "https://a.example", "https://b.example"


@pytest.fixture(scope="module")
def named(script: str) -> Iterator[Server]:
    options = (
        *("--api-key", API[0], "--cors", PAGE, "--cors", "http://localhost:3000", "--access-log"),
        *("--allowed-host", "127.0.0.1", "--allowed-host", "*.a.example"),
    )
    with serving("--model", script, "--name", "script", *options) as server:
        yield server


@pytest.fixture
def client(named: Server) -> Iterator[httpx2.Client]:
    headers = {"origin": PAGE, "authorization": f"Bearer {API[0]}"}
    with httpx2.Client(base_url=named.url, headers=headers) as client:
        yield client


def test_a_browser_may_ask_whether_it_may_ask_without_a_key(client: httpx2.Client) -> None:
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,x-any"}
    for path in ("/v1/chat/completions", "/generate", "/nothing"):
        answer = client.options(path, headers={**asked, "authorization": ""})
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert answer.headers["access-control-allow-headers"] == "authorization,x-any"
        assert "POST" in answer.headers["access-control-allow-methods"]
        refused = client.options(path, headers={**asked, "origin": OTHER_PAGE})
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "origin_not_allowed")
        assert "access-control-allow-origin" not in refused.headers
    assert client.options("/generate", headers={"authorization": ""}).status_code == 401  # no such question


def test_nothing_behind_two_lengths_is_read_whoever_asks(named: Server) -> None:
    head = "{} HTTP/1.1\r\nhost: {}\r\norigin: {}\r\naccess-control-request-method: POST\r\n"
    ends = "content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
    for line, host in (("OPTIONS /generate", "127.0.0.1"), ("GET /health", "b.example")):
        with socket.create_connection(("127.0.0.1", int(named.url.rpartition(":")[2])), timeout=HANG_S) as one:
            one.sendall(
                f"{head.format(line, host, PAGE)}{ends}GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode()
            )
            received = b""
            while more := one.recv(4096):
                received += more
        assert received.startswith(b"HTTP/1.1 400")
        assert received.count(b"HTTP/1.1 ") == 1


def test_what_a_proxy_says_is_not_believed(named: Server, client: httpx2.Client) -> None:
    answer = client.get("/health", headers={"x-forwarded-for": "10.1.1.1", "x-forwarded-proto": "https"})
    assert logged(named, answer.headers["x-request-id"])["client"].startswith("127.0.0.1:")


@pytest.mark.parametrize(
    ("path", "body", "headers", "status"),
    [
        ("/v1/completions", {"prompt": "a"}, {}, 200),
        ("/v1/completions", {"prompt": "a", "stream": True}, {}, 200),
        ("/v1/completions", {"prompt": 1}, {}, 400),
        ("/v1/completions", {"prompt": "a"}, {"authorization": "Bearer wrong"}, 401),
        ("/nothing", {}, {}, 404),
        ("/v1/completions", {"prompt": "a"}, {"host": "b.example"}, 400),
    ],
)
def test_a_browser_may_read_every_answer(
    client: httpx2.Client, path: str, body: dict[str, Any], headers: dict[str, str], status: int
) -> None:
    answer = client.post(path, json=body, headers=headers)
    assert answer.status_code == status
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert "x-request-id" in answer.headers["access-control-expose-headers"].split(", ")
    assert "access-control-allow-origin" not in client.post(
        path, json=body, headers={**headers, "origin": OTHER_PAGE}
    ).headers  # fmt: skip


def test_a_server_is_asked_by_its_name(client: httpx2.Client) -> None:
    for host in ("127.0.0.1", "127.0.0.1:80", "x.a.example", "x.y.A.example:1"):
        assert client.get("/health", headers={"host": host}).status_code == 200
    for host in (
        "a.example",
        "evil.example",
        "xa.example",
        "127.0.0.1.evil.example",
        "[::1]",
        "localhost",
        "::",
    ):
        answer = client.get("/health", headers={"host": host})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unknown_host")


def test_a_host_that_the_target_names_is_the_one(named: Server) -> None:
    host, _, port = named.url.removeprefix("http://").partition(":")
    for target, other, status in (("http://127.0.0.1", "evil", 200), ("http://evil", "127.0.0.1", 400)):
        with socket.create_connection((host, int(port)), timeout=HANG_S) as connection:
            head = f"GET {target}/health HTTP/1.1\r\nhost: {other}\r\nconnection: close\r\n\r\n"
            connection.sendall(head.encode())
            assert connection.makefile("rb").read().startswith(b"HTTP/1.1 %d " % status)


# -- what is known of a request --------------------------------------------------------------------


def logged(server: Server, request_id: str) -> dict[str, Any]:
    """The line of a request."""

    def lines() -> list[dict[str, Any]]:
        made = [json.loads(line) for line in server.log.read_text().splitlines() if line.startswith("{")]
        return [line for line in made if line["id"] == request_id]

    until(lines, "it is not logged")
    (line,) = lines()
    return line


def test_every_request_has_an_id(client: httpx2.Client) -> None:
    for given in ("mine-1", "!" * 128, "00-a0:b/c=d"):
        assert client.get("/health", headers={"x-request-id": given}).headers["x-request-id"] == given
    made = set()
    for bad in (None, "", "x" * 129, "two words", "tab\there", "\xe9", "x" * 5_000):
        headers = {} if bad is None else {"x-request-id": bad.encode("latin-1")}
        answer = client.get("/health", headers=headers)
        assert re.fullmatch("[0-9a-f]{32}", answer.headers["x-request-id"])
        made.add(answer.headers["x-request-id"])
    assert len(made) == 7


@pytest.mark.parametrize(
    ("path", "body", "headers", "status", "code", "prompt", "completion"),
    [
        ("/v1/completions", {"prompt": "a b"}, {}, 200, None, 2, 3),
        ("/v1/completions", {"prompt": ["a", "b c"], "n": 2, "stream": True}, {}, 200, None, 3, 12),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "q"}]}, {}, 200, None, 8, 3),
        ("/generate", {"text": "a", "stream": True}, {}, 200, None, 1, 3),
        ("/generate", {"text": "a", "wrong": 1}, {}, 400, "unknown_field", None, None),
        (
            "/generate?prompt=in-query",
            {},
            {"authorization": "Bearer wrong-key"},
            401,
            "invalid_api_key",
            None,
            None,
        ),
        ("/nothing", {}, {}, 404, "not_found", None, None),
        ("/health", {}, {"host": "b.example"}, 400, "unknown_host", None, None),
    ],
)
def test_every_request_has_a_line(
    named: Server, client: httpx2.Client, path: str, body: dict[str, Any], headers: dict[str, str],
    status: int, code: str | None, prompt: int | None, completion: int | None,
) -> None:  # fmt: skip
    answer = client.post(path, json=body, headers=headers)
    line = logged(named, answer.headers["x-request-id"])
    if status == 200 and "usage" in answer.text:
        usage = answer.json()["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (prompt, completion)
    known = {name: line.pop(name) for name in ("time", "client", "seconds", "id", "first_s")}
    assert line == {
        "method": "POST", "path": path.partition("?")[0], "status": status, "complete": True,
        "code": code, "prompt_tokens": prompt, "cached_tokens": None if prompt is None else 0,
        "completion_tokens": completion,
    }  # fmt: skip
    assert known["client"].startswith("127.0.0.1:")
    assert 0 <= known["seconds"] < HANG_S
    assert (known["first_s"] is not None) == bool(body.get("stream"))
    assert datetime.fromisoformat(known["time"]).tzinfo == UTC


def test_a_request_whose_client_leaves_has_a_line(named: Server, client: httpx2.Client) -> None:
    body = {"prompt": "endless", "max_tokens": 30_000, "stream": True}
    with client.stream("POST", "/v1/completions", json=body) as answer:
        assert next(answer.iter_bytes()).startswith(b"data: ")
    line = logged(named, answer.headers["x-request-id"])
    assert (line["status"], line["complete"]) == (200, False)


def test_a_path_is_no_line_of_its_own(named: Server, client: httpx2.Client) -> None:
    answer = client.get("/%0a%7b%22id%22:1%7d%1b[31m%c2%9b" + "x" * 500)
    line = logged(named, answer.headers["x-request-id"])
    assert line["path"].startswith('/\n{"id":1}\x1b[31m\x9bxxx')
    assert len(line["path"]) == 256


def test_a_log_has_no_texts_and_no_keys(named: Server, client: httpx2.Client) -> None:
    client.post("/v1/completions?key=in-the-query", json={"prompt": "the-prompt", "user": "the-user"})
    last = client.get("/health").headers["x-request-id"]
    logged(named, last)
    text = named.log.read_text()
    assert text.isascii()
    for secret in (
        "the-prompt",
        "the-user",
        "in-the-query",
        "one two",
        API[0],
        "wrong-key",
        "in-query",
        "Bearer",
    ):
        assert secret not in text
    first, *lines = text.splitlines()
    assert first.startswith("sglc: serving ")
    assert all(line.startswith("{") for line in lines)


def test_without_the_option_there_is_no_line(server: Server) -> None:
    with httpx2.Client(base_url=server.url) as client:
        assert client.get("/health", headers={"x-request-id": "mine"}).headers["x-request-id"] == "mine"
    assert "mine" not in server.log.read_text()


# -- HTTPS -----------------------------------------------------------------------------------------


def made_certificate(folder: Path, name: str) -> tuple[str, str]:
    """A certificate of this machine that signs itself, and its key."""
    cert, key = str(folder / f"{name}.pem"), str(folder / f"{name}-key.pem")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-keyout", key, "-out", cert, "-days", "2", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )  # fmt: skip
    return cert, key


@pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made by openssl")
def test_https(script: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from sglc.cli import main

    cert, key = made_certificate(tmp_path, "one")
    with serving(
        *("--model", script, "--name", "script", "--tls-cert", cert, "--tls-key", key, "--keep-alive", "1")
    ) as server:
        assert server.url.startswith("https://127.0.0.1:")
        trusting = openai.DefaultHttpxClient(verify=ssl.create_default_context(cafile=cert))
        with openai.OpenAI(base_url=server.url + "/v1", api_key="none", http_client=trusting) as client:
            chunks = client.completions.create(model="script", prompt="a", stream=True)
            assert "".join(chunk.choices[0].text for chunk in chunks) == "one two three"
        with (
            openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client,
            pytest.raises(openai.APIConnectionError),
        ):
            client.models.list()  # the certificate is nobody's whom this client trusts
        host, port = "127.0.0.1", int(server.url.rpartition(":")[2])
        with socket.create_connection((host, port), timeout=HANG_S) as plain:
            plain.sendall(b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n")
            assert b"200" not in plain.recv(4096)
        assert server.log.read_text().count("\n") == 1
    other, _ = made_certificate(tmp_path, "other")
    assert (
        main(["serve", "--model", "no-such-model", "--port", "0", "--tls-cert", other, "--tls-key", key]) == 2
    )
    err = capsys.readouterr().err
    assert f"error[SGLC034]: `{other}` cannot be served with `{key}`: the key is another one's\n" in err


# -- how many connections there may be -------------------------------------------------------------


def test_one_connection_too_many_is_told_to_come_again(script: str) -> None:
    with serving("--model", script, "--max-connections", "2") as server, ExitStack() as held:
        port = int(server.url.rpartition(":")[2])
        asked = b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n"

        def opened() -> socket.socket:
            return held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=HANG_S))

        def is_answered(connection: socket.socket) -> bool:
            connection.sendall(asked)
            answer = b""
            while not answer.endswith(b"}") and (more := connection.recv(4096)):
                answer += more
            return answer.startswith(b"HTTP/1.1 200")

        first, _ = (opened() for _ in range(2))
        assert is_answered(first)
        third = opened()
        third.sendall(asked)
        answer = b""
        while more := third.recv(4096):  # until the server closes it
            answer += more
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503")
        assert b"retry-after: 1" in head.lower()
        assert json.loads(body)["error"]["code"] == "too_many_connections"
        assert is_answered(first), "who was there before is answered on"
        first.close()

        def room() -> bool:
            with socket.create_connection(("127.0.0.1", port), timeout=HANG_S) as another:
                return is_answered(another)

        until(room)
        assert server.log.read_text().count("\n") == 1  # that is no news


# -- whose turn it is ------------------------------------------------------------------------------


def test_a_priority_counts_as_far_as_the_operator_lets_it() -> None:
    """0 if nothing is said; an admin's may be any. It is a hint, so no request is refused for it."""
    scopes: list[dict[str, Any]] = [{}, {ADMIN_SCOPE: True}]
    for limits, expected in ((Limits(), [-3, 0, 0]), (Limits(priority=5), [-3, 1, 5])):
        found = [[allowed_priority(limits, scope, claimed) for claimed in (-3, 1, 1000)] for scope in scopes]
        assert found == [expected, [-3, 1, 1000]]


def test_a_claim_that_is_too_high_fails_no_request(server: Server) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "/v1/completions": COMPLETION,
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}]},
        "/generate": {"text": "a"},
    }
    for path, body in bodies.items():
        status, _ = server.ask("POST", path, {**body, "priority": 7}, authorization=f"Bearer {API[0]}")
        assert status == 200
