"""Vertex AI behind a log-in that fails: what passes is tried again, and else it is said how to log in."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

import sglc as sgl
from sglc.backends.remote.google_login import login_trouble
from sglc.backends.retry import Patience, Trouble
from sglc.errors import BackendError
from tests.api_programs import question

pytest.importorskip("google.auth")
pytestmark = pytest.mark.slow
MODELS = ("gemini-2.5-flash", "claude-opus-5-5")
QUICK = Patience(attempts=2, first_wait_s=0.01)


@contextmanager
def tokens(status: int, answer: str) -> Iterator[tuple[str, list[str]]]:
    """An end point that gives out tokens, and who asked it."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer.encode())

        def log_message(self, *given: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/token", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def failed(model: str, uri: str) -> BackendError:
    """What a run ends with whose log-in is at `uri`; the model itself is nowhere."""
    from google.oauth2.credentials import Credentials

    login = Credentials(token=None, refresh_token="r", token_uri=uri, client_id="c", client_secret="s")  # type: ignore[no-untyped-call]
    backend: Any = sgl.VertexAI(
        model, base_url="http://127.0.0.1:9", project="p", location="eu", credentials=login, patience=QUICK
    )
    try:
        error = question.run(backend=backend).error()
    finally:
        backend.close()
    assert isinstance(error, BackendError)
    assert error.loc is not None
    return error


@pytest.mark.parametrize("model", MODELS)
def test_who_is_not_let_in_is_told_how_to_log_in(model: str) -> None:
    refusal = {"error": "invalid_grant", "error_description": "Token has been expired or revoked."}
    with tokens(400, json.dumps(refusal)) as (uri, asked):
        error = failed(model, uri)
    assert (error.code, len(asked)) == ("SGLC541", 1)
    assert error.message.endswith("the log-in failed: invalid_grant: Token has been expired or revoked.")
    assert "gcloud auth application-default login" in error.hint


@pytest.mark.parametrize("status", [200, 404])
@pytest.mark.parametrize("model", MODELS)
def test_a_log_in_that_answers_with_a_page_is_tried_again(model: str, status: int) -> None:
    with tokens(status, "<html>") as (uri, asked):
        error = failed(model, uri)
    assert (error.code, error.note, len(asked)) == ("SGLC543", "2 attempts", 2)
    assert "the log-in failed: its answer is malformed" in error.message


def test_no_log_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere/login.json")
    backend = sgl.VertexAI("gemini-2.5-flash", base_url="http://127.0.0.1:9", project="p", location="eu")
    error = question.run(backend=backend).error()
    assert isinstance(error, BackendError)
    assert (error.code, "gcloud" in error.hint) == ("SGLC541", True)
    assert "the log-in failed: File /nowhere/login.json was not found." in error.message


def test_what_a_log_in_s_errors_mean() -> None:
    from google.auth.exceptions import RefreshError, TransportError

    for passing in (TransportError("down"), RefreshError("busy", retryable=True)):  # type: ignore[no-untyped-call]
        trouble = login_trouble("vertex:m", passing)
        assert isinstance(trouble, Trouble)
        assert trouble.again
    lacking = RefreshError("a refresh token is missing")  # type: ignore[no-untyped-call]
    assert isinstance(login_trouble("vertex:m", lacking), BackendError)
    other = TypeError("of somebody else")
    assert login_trouble("vertex:m", other) is other
