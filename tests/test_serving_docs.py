"""docs/serving.md: its examples run, and it names every endpoint, option, field and code that there is."""

from __future__ import annotations

import argparse
import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

from sglc.cli.serve import add_serve
from sglc.serve import bodies, fields, problems
from sglc.serve.app import make_app
from sglc.serve.limits import Limits
from sglc.serve.service import Service
from tests.clients.run import clients_table
from tests.serving import Server

PAGE = Path(__file__).parent.parent / "docs" / "serving.md"
_CLIENTS = re.compile(r"(<!-- made by make clients -->\n)(.*?)(<!-- end -->\n)", re.DOTALL)
_EXAMPLE = re.compile(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```\n", re.MULTILINE | re.DOTALL)


def named() -> set[str]:
    """What stands between back quotes."""
    return {word for text in re.findall(r"`([^`\n]+)`", PAGE.read_text()) for word in re.split(r"[\s,]+", text)}


@pytest.mark.model
def test_every_example_prints_what_stands_below_it(server: Server, request: pytest.FixtureRequest) -> None:
    page = PAGE.read_text()
    examples = _EXAMPLE.findall(page)
    assert len(examples) == page.count("```python") == 4
    names: dict[str, Any] = {}
    for code, expected in examples:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(code.replace("http://127.0.0.1:8000", server.url), names)
        if request.config.getoption("--bless"):
            page = page.replace(f"{code}```\n\n```text\n{expected}", f"{code}```\n\n```text\n{out.getvalue()}")
        else:
            assert out.getvalue() == expected, code
    names["client"].close()
    PAGE.write_text(page)


def test_the_table_of_official_clients_is_what_they_found(request: pytest.FixtureRequest) -> None:
    page, made = PAGE.read_text(), f"\n{clients_table()}\n"
    (found,) = _CLIENTS.findall(page)
    if request.config.getoption("--bless"):
        PAGE.write_text(_CLIENTS.sub(lambda found: found[1] + made + found[3], page))
    else:
        assert found[1] == made


def test_every_endpoint_is_named() -> None:
    from sglc.backends.scripted import ScriptedBackend, Words

    app = make_app(Service(ScriptedBackend(lambda asked: None), Words(), "words", 100))
    paths = {
        f"{method.upper()} {path}" for path, methods in app.openapi()["paths"].items() for method in methods
    }
    assert len(paths) >= 8
    page = PAGE.read_text()
    assert [path for path in sorted(paths) if f"`{path}`" not in page] == []


def test_errors_are_described_as_they_are() -> None:
    """Ollama's clients get theirs as texts."""
    from sglc.backends.scripted import ScriptedBackend, Words

    app = make_app(Service(ScriptedBackend(lambda asked: None), Words(), "words", 100))
    for path, methods in app.openapi()["paths"].items():
        for method, described in methods.items():
            schema = described["responses"]["default"]["content"]["application/json"]["schema"]
            kind = "string" if path.startswith("/api/") else "object"
            assert schema["properties"]["error"]["type"] == kind, (method, path)


def test_answers_are_described_by_their_kinds() -> None:
    from sglc.backends.scripted import ScriptedBackend, Words

    app = make_app(Service(ScriptedBackend(lambda asked: None), Words(), "words", 100))
    paths = app.openapi()["paths"]
    kinds = {
        path: set(described["responses"]["200"]["content"])
        for path, methods in paths.items()
        for described in methods.values()
    }
    json, events = "application/json", "text/event-stream"
    streams = {"/v1/completions", "/v1/chat/completions", "/generate", "/v1/programs"}
    lines = {"/api/generate", "/api/chat"}
    assert {path for path in kinds if kinds[path] == {json, events}} == streams
    assert {path for path in kinds if kinds[path] == {json, "application/x-ndjson"}} == lines
    assert kinds["/metrics"] == {"text/plain", "application/openmetrics-text"}
    assert all(kinds[path] == {json} for path in kinds.keys() - streams - lines - {"/metrics"})


def test_every_option_is_named() -> None:
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers()
    add_serve(commands)
    options = {option for action in commands.choices["serve"]._actions for option in action.option_strings}
    assert options - named() - {"-h", "--help"} == set()


@pytest.mark.parametrize(
    "body", [bodies.CompletionBody, bodies.ChatBody, bodies.GenerateBody, bodies.SamplingParams]
)
def test_every_field_is_named(body: type[fields.Body]) -> None:
    assert body.model_fields.keys() - named() == set()


def test_every_code_is_named() -> None:
    source = "".join(path.read_text() for path in sorted(Path(problems.__file__).parent.glob("*.py")))
    codes = (
        set(re.findall(r'code="([a-z_]+)"', source))
        | set(problems._CODES.values())
        | set(problems._UNAVAILABLE)
    )
    codes |= {"invalid_value", "invalid_type", "unsupported_value", *problems._OF_STATUS.values()}
    codes -= {"SGLC502"}  # of the executor: no server meets it
    assert codes - named() == set()
    assert f"{Limits().body >> 20} MiB" in PAGE.read_text()
