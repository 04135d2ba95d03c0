"""Who gets into `sglc serve`, and that its keys do not get out."""

from __future__ import annotations

import hmac
import json
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from sglc.serve.keys import Keys
from tests.serving import Server, serving
from tests.waiting import HANG_S

pytestmark = pytest.mark.slow

API = ("given-1", "given-2", "in-file-1", "in-file-2")
ADMIN = ("boss-given", "boss-in-file")
COMPLETION = {"prompt": "a", "max_tokens": 2}
FOR_ALL = (("GET", "/v1/models"), ("GET", "/get_model_info"), ("POST", "/v1/completions"), ("GET", "/docs"))
FOR_ADMINS = (("GET", "/server_info"), ("GET", "/get_server_info"), ("POST", "/flush_cache"))


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("script") / "script.json"
    path.write_text('[{"text": "one two three"}]')
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
        assert err.startswith(f"error[SGLC033]: `{path}` ")
        assert "cret" not in err


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
