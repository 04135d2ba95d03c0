"""OpenTelemetry spans, as the SDK's own exporter gets them."""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

import sglc as sgl
from sglc.api.plan import LoadedPlan
from sglc.backends.scripted import Asked, ScriptedBackend, Words
from sglc.errors import BackendError
from sglc.ir.target import Target
from sglc.serve.app import make_direct
from sglc.serve.door import Access, guarded
from sglc.serve.service import Service

NO_SERVER = "http://127.0.0.1:9"


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """What a process exports that has configured a provider."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield exporter
    provider.shutdown()


def answer(asked: Asked) -> str:
    return "y" if asked.choices else "two words"


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def generations(exported: InMemorySpanExporter) -> list[ReadableSpan]:
    return [span for span in exported.get_finished_spans() if "sglc.site" in attributes(span)]


@sgl.tool
def look(text: str) -> str:
    with trace.get_tracer("user").start_as_current_span("own span"):
        return text


@sgl.tool
async def look_later(text: str) -> str:
    await asyncio.sleep(0)
    return text


@sgl.function
def inner(s: Any) -> None:
    s += "x" + sgl.gen("i")


@sgl.function
def program(s: Any, q: str) -> None:
    s += q + sgl.gen("a", max_tokens=7, temperature=0.5)
    look(s["a"])
    inner.run().sync()
    s += sgl.select("c", ["x", "y"])


@pytest.mark.parametrize("mode", ["plan", "python"])
def test_spans_stand_inside_each_other(exported: InMemorySpanExporter, mode: Any) -> None:
    with trace.get_tracer("user").start_as_current_span("request"):
        program.run_batch([{"q": "one"}, {"q": "two"}], backend=ScriptedBackend(answer), mode=mode)
    spans = exported.get_finished_spans()
    tools = f"execute_tool {__name__}.look"
    by_id = {span.context.span_id: span for span in spans}

    def above(span: ReadableSpan) -> list[str]:
        names = []
        while span.parent is not None:
            span = by_id[span.parent.span_id]
            names.append(span.name)
        return names

    rows = [["row 0", "invoke_workflow program", "request"], ["row 1", "invoke_workflow program", "request"]]
    generations = [span for span in spans if span.attributes and "sglc.site" in span.attributes]
    own = [span for span in generations if "/" not in str(span.attributes["sglc.site"])]  # type: ignore[index]
    assert sorted(map(above, own)) == [rows[0], rows[0], rows[1], rows[1]]
    called = [span for span in generations if span not in own]
    if mode == "plan":  # it runs as a part of the program that calls it
        assert sorted(map(above, called)) == rows
    else:
        assert sorted(above(span)[1:] for span in called) == [["invoke_workflow inner", *row] for row in rows]
    assert sorted(above(span) for span in spans if span.name == "own span") == [[tools, *row] for row in rows]


def test_attributes_are_those_of_the_conventions(exported: InMemorySpanExporter) -> None:
    program.run(q="one", backend=ScriptedBackend(answer), seed=1).sync()
    spans = {str(dict(span.attributes or {}).get("sglc.site")): span for span in exported.get_finished_spans()}
    attributes = dict(spans["program.a#0"].attributes or {})
    line = attributes.pop("code.line.number")
    assert 'sgl.gen("a", max_tokens=7' in Path(__file__).read_text().splitlines()[int(str(line)) - 1]
    assert str(attributes.pop("code.file.path")).endswith("test_spans.py")
    assert attributes == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "sglc",
        "gen_ai.request.model": "scripted",
        "gen_ai.request.max_tokens": 7,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.usage.input_tokens": 1,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.usage.output_tokens": 2,
        "gen_ai.response.finish_reasons": ("stop",),
        "sglc.site": "program.a#0",
        "sglc.kind": "gen",
    }
    span = spans["program.a#0"]
    assert span.kind is trace.SpanKind.CLIENT
    assert span.start_time is not None
    assert span.end_time is not None
    assert span.parent is not None
    above = span.parent.span_id
    row = next(span for span in exported.get_finished_spans() if span.context.span_id == above)
    assert row.start_time <= span.start_time <= span.end_time <= row.end_time  # type: ignore[operator]


@pytest.mark.parametrize("mode", ["plan", "python"])
def test_generations_of_a_branch_stand_behind_each_other(exported: InMemorySpanExporter, mode: Any) -> None:
    @sgl.function
    def in_turn(s: Any) -> None:
        s += "x" + sgl.gen("a") + "z" + sgl.gen("b")
        for branch in s.fork(2):
            branch += sgl.gen("c")

    in_turn.run(backend=ScriptedBackend(answer, word_s=0.02), mode=mode).sync()
    spans = [(span.start_time or 0, span.end_time or 0) for span in generations(exported)]
    a, b, *branches = sorted(spans, key=lambda span: span[1])
    assert a[0] < a[1] <= b[0] < b[1]
    assert branches[0][1] > branches[1][0]  # of two branches beside each other


@pytest.mark.parametrize(
    ("name", "provider", "model"),
    [
        ("openai:m", "openai", "m"),
        ("mistral:m-large", "mistral_ai", "m-large"),
        ("openrouter:x/m:free", "openrouter", "x/m:free"),
        ("litellm:m", "litellm", "m"),
        ("litellm:bedrock/m", "aws.bedrock", "bedrock/m"),
        ("litellm:groq/m", "groq", "groq/m"),
        ("scripted", "sglc", "scripted"),
    ],
)
def test_models_and_providers_are_named_as_the_conventions_do(
    exported: InMemorySpanExporter, name: str, provider: str, model: str
) -> None:
    run_as(Target(name, Words(), continues_text=True))
    (span,) = generations(exported)
    assert span.name == f"text_completion {model}"
    known = attributes(span)
    assert (known["gen_ai.provider.name"], known["gen_ai.request.model"]) == (provider, model)


def test_a_servers_model_is_not_its_address(exported: InMemorySpanExporter) -> None:
    run_as(Target("https://served", Words(), continues_text=True, model="m"))
    run_as(Target("grpc://[::1]:7", Words(), continues_text=True))  # of a replay, which knows no model
    known, unknown = generations(exported)
    assert (known.name, unknown.name) == ("text_completion m", "text_completion")
    addresses = [(told["server.address"], told["server.port"]) for told in map(attributes, (known, unknown))]
    assert addresses == [("served", 443), ("::1", 7)]
    assert "gen_ai.request.model" not in attributes(unknown)


def run_as(target: Target) -> None:
    """Run a program on a back end of that `target`."""
    backend = ScriptedBackend(answer)
    backend.__dict__["target"] = target
    inner.run(backend=backend).sync()


def test_what_a_generation_is_asked_for_is_told_where_it_was_said(exported: InMemorySpanExporter) -> None:
    @sgl.function
    def asking(s: Any) -> None:
        s += "x" + sgl.gen("a", n=2, seed=5, stop=["."], top_k=3, frequency_penalty=0.5, presence_penalty=0.25)
        s += sgl.gen("b", seed=2**63)  # more than an exporter can write

    asking.run(backend=ScriptedBackend(answer)).sync()
    told, large = (
        {key: value for key, value in attributes(span).items() if "request" in key}
        for span in generations(exported)
    )
    usual = {
        "gen_ai.request.model": "scripted", "gen_ai.request.max_tokens": 128, "gen_ai.request.temperature": 1.0,
        "gen_ai.request.top_p": 1.0,
    }  # fmt: skip
    assert large == usual
    assert told == usual | {
        "gen_ai.request.choice.count": 2, "gen_ai.request.top_k": 3, "gen_ai.request.seed": 5,
        "gen_ai.request.stop_sequences": (".",), "gen_ai.request.frequency_penalty": 0.5,
        "gen_ai.request.presence_penalty": 0.25,
    }  # fmt: skip


def test_what_is_replayed_says_so_and_is_counted_once(exported: InMemorySpanExporter, tmp_path: Path) -> None:
    tapes = str(tmp_path / "tape")
    inner.run(backend=ScriptedBackend(answer), record=tapes).sync()
    inner.run(replay=tapes).sync()
    recorded, replayed = map(attributes, generations(exported))
    assert "sglc.replayed" not in recorded
    assert recorded["gen_ai.usage.output_tokens"] == 2
    assert replayed["sglc.replayed"] is True
    assert not [name for name in replayed if "usage" in name]


def test_what_a_run_that_goes_on_has_from_before_is_replayed(
    exported: InMemorySpanExporter, tmp_path: Path
) -> None:
    failing = True

    @sgl.function
    def goes_on(s: Any) -> None:
        s += "x" + sgl.gen("a")
        if s["a"] and failing:
            raise LookupError
        s += sgl.gen("b")

    def run(**more: Any) -> Any:
        return goes_on.run(
            backend=ScriptedBackend(answer), record=str(tmp_path / "tape"), mode="python", **more
        )

    assert run().error() is not None
    failing = False
    exported.clear()
    assert run(resume=True, retry_failed=True).error() is None
    told = {
        str(known["sglc.site"]): "sglc.replayed" in known for known in map(attributes, generations(exported))
    }
    assert told == {"goes_on.a#0": True, "goes_on.b#0": False}


def test_failures_are_errors(exported: InMemorySpanExporter) -> None:
    @sgl.function
    def failing(s: Any) -> None:
        s += "x" + sgl.gen("bad", regex="[0-9]")

    failing.run(backend=ScriptedBackend(answer)).error()
    spans = {span.name: span for span in exported.get_finished_spans()}
    assert set(spans) == {"invoke_workflow failing", "row 0", "text_completion scripted"}
    for name in ("row 0", "text_completion scripted"):
        assert spans[name].status.status_code is trace.StatusCode.ERROR
        assert dict(spans[name].attributes or {})["error.type"] == "SGLC522"


BROKEN = {
    "run": lambda: inner.run(backend=NO_SERVER),
    "run_batch": lambda: inner.run_batch([{}], backend=NO_SERVER),
    "arun": lambda: asyncio.run(inner.arun(backend=NO_SERVER)),  # type: ignore[arg-type]
    "plan": lambda: LoadedPlan(inner.compile(ScriptedBackend(answer)).plan).run(backend=NO_SERVER),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_run_that_does_not_begin_has_a_span_that_ends(exported: InMemorySpanExporter, how: str) -> None:
    with pytest.raises(BackendError):
        BROKEN[how]()
    (span,) = exported.get_finished_spans()
    assert (span.name, dict(span.attributes or {})["error.type"]) == ("invoke_workflow inner", "SGLC547")
    assert span.status.status_code is trace.StatusCode.ERROR


def test_a_batch_that_nobody_reads_has_a_span_that_ends(exported: InMemorySpanExporter) -> None:
    results = inner.stream_batch([{}], backend=ScriptedBackend(answer))
    del results
    gc.collect()
    (span,) = exported.get_finished_spans()
    assert span.status.status_code is trace.StatusCode.UNSET


def test_coroutine_functions_have_spans_too(exported: InMemorySpanExporter) -> None:
    @sgl.function
    async def awaiting(s: Any) -> None:
        s += await look_later("x") + sgl.gen("a")

    awaiting.run(backend=ScriptedBackend(answer)).sync()
    assert f"execute_tool {__name__}.look_later" in {span.name for span in exported.get_finished_spans()}


def test_no_prompt_and_no_answer_is_in_a_span(exported: InMemorySpanExporter) -> None:
    program.run(q="a secret", backend=ScriptedBackend(answer)).sync()
    shown = "".join(span.to_json() for span in exported.get_finished_spans())
    assert shown
    assert "secret" not in shown
    assert "two words" not in shown


@sgl.tool
def looks_in_vain(text: str) -> str:
    raise LookupError(f"nothing for {text}")


@sgl.function
def not_found(s: Any) -> None:
    s += "x" + sgl.gen("a")
    s += looks_in_vain(s["a"])


@sgl.function
def no_number(s: Any) -> int:
    s += "x" + sgl.gen("a")
    return int(s["a"])


@pytest.mark.parametrize("mode", ["plan", "python"])
@pytest.mark.parametrize("failing", [not_found, no_number], ids=["tool", "body"])
def test_no_answer_is_in_the_span_of_an_error(exported: InMemorySpanExporter, failing: Any, mode: Any) -> None:
    error = failing.run(backend=ScriptedBackend(answer), mode=mode).error()
    assert "two words" in str(error)
    spans = exported.get_finished_spans()
    assert any(span.status.status_code is trace.StatusCode.ERROR for span in spans)
    assert "two words" not in "".join(span.to_json() for span in spans)


def test_nothing_is_imported_and_nothing_is_watched_where_nobody_asked() -> None:
    code = (
        "import sys, sglc as sgl\n"
        "from sglc.backends.scripted import ScriptedBackend\n"
        "@sgl.function\n"
        "def f(s):\n    s += 'x' + sgl.gen('a')\n"
        "f.run(backend=ScriptedBackend(lambda asked: 'y')).sync()\n"
        "names = ('opentelemetry', 'sglc.observe.')\n"
        "print(sorted(name for name in sys.modules if name.startswith(names)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert out.stdout == "[]\n"


def test_a_provider_that_nobody_configured_costs_nothing() -> None:
    result = inner.run(backend=ScriptedBackend(answer)).sync()
    assert result.error() is None


# -- of a server's requests ------------------------------------------------------------------------


def service_of(backend: ScriptedBackend) -> Service:
    tokenizer: Any = backend.target.tokenizer
    return Service(backend, tokenizer, "m", 1_000)


def served(backend: ScriptedBackend) -> ASGIApp:
    service = service_of(backend)
    return door(make_direct(service), service)


def door(app: ASGIApp, service: Service) -> ASGIApp:
    return guarded(app, Access(), service.limits, service.drain, service.queue, service.metrics)


async def posted(app: ASGIApp, path: str, body: dict[str, Any], **headers: str) -> None:
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://served") as client:
        await client.post(path, json=body, headers=headers)


def test_a_request_has_a_span_below_its_clients(exported: InMemorySpanExporter) -> None:
    app = served(ScriptedBackend(answer))
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    async def all_of_them() -> None:
        await posted(app, "/v1/completions", {"prompt": "my secret"}, traceparent=parent)
        await posted(app, "/v1/completions", {"prompt": "my secret", "stream": True})
        await posted(app, "/v1/chat/completions", {"messages": [], "my-secret": 1})
        await posted(app, "/my-secret", {})

    asyncio.run(all_of_them())
    whole, stream, refused, other = exported.get_finished_spans()
    assert whole.name == "POST /v1/completions"
    assert whole.parent is not None
    assert format(whole.parent.span_id, "x") == "b7ad6b7169203331"
    known = dict(whole.attributes or {})
    assert len(str(known.pop("sglc.request.id"))) == 32
    assert known == {
        "http.request.method": "POST", "http.route": "/v1/completions", "http.response.status_code": 200,
        "url.path": "/v1/completions", "url.scheme": "http",
        "gen_ai.operation.name": "text_completion", "gen_ai.provider.name": "sglc", "gen_ai.request.model": "m",
        "gen_ai.usage.input_tokens": 2, "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.usage.output_tokens": 2,
    }  # fmt: skip
    assert [event.name for event in stream.events] == ["gen_ai.first_token"]
    assert (refused.attributes or {})["error.type"] == "invalid_value"
    assert other.name == "POST"
    assert not {"http.route", "url.path"} & attributes(other).keys()
    assert "secret" not in "".join(span.to_json() for span in (whole, stream, refused, other))


@pytest.mark.parametrize(
    ("path", "operation"),
    [("/api/chat", "chat"), ("/api/generate", "text_completion"), ("/v1/programs", "invoke_workflow")],
)
def test_whatever_makes_texts_has_its_model_and_operation(
    exported: InMemorySpanExporter, path: str, operation: str
) -> None:
    app = served(ScriptedBackend(answer))
    asyncio.run(posted(app, path, {}))
    (span,) = exported.get_finished_spans()
    known = span.attributes or {}
    assert (known["gen_ai.operation.name"], known["gen_ai.request.model"]) == (operation, "m")


class Traced(ScriptedBackend):
    """Reports a span of its own for each segment, as an instrumented HTTP client does."""

    async def submit(self, segment: Any, *, streams: bool = True) -> Any:
        with trace.get_tracer("user").start_as_current_span("POST"):
            await asyncio.sleep(0)
        async for event in super().submit(segment, streams=streams):
            yield event


@pytest.mark.parametrize("mode", ["plan", "python"])
def test_what_a_back_end_reports_stands_in_its_row(exported: InMemorySpanExporter, mode: Any) -> None:
    @sgl.function
    def two(s: Any, q: str) -> None:
        s += q + sgl.gen("a", max_tokens=4)
        s += sgl.gen("b", max_tokens=4)

    two.run_batch([{"q": "x"}, {"q": "y"}, {"q": "z"}], backend=Traced(answer), mode=mode)
    spans = exported.get_finished_spans()
    rows = {span.context.span_id for span in spans if span.name.startswith("row ")}
    posts = [span for span in spans if span.name == "POST"]
    assert len(rows) == 3
    assert {span.parent.span_id for span in posts if span.parent is not None} == rows
    assert all(span.parent is not None for span in posts)


@pytest.mark.parametrize(
    ("method", "path", "name", "told"),
    [
        ("BREW", "/health", "HTTP /health", "_OTHER"),
        ("PUT", "/health", "PUT /health", "PUT"),
        ("BREW", "/my-secret", "HTTP", "_OTHER"),
        ("GET", "/v1/models/my-secret", "GET /v1/models/{name}", "GET"),
    ],
)
def test_only_methods_and_paths_that_are_known_are_told(
    exported: InMemorySpanExporter, method: str, path: str, name: str, told: str
) -> None:
    async def ask() -> None:
        transport = httpx2.ASGITransport(served(ScriptedBackend(answer)))
        async with httpx2.AsyncClient(transport=transport, base_url="http://served") as client:
            await client.request(method, path, params={"key": "my-secret"})

    asyncio.run(ask())
    (span,) = exported.get_finished_spans()
    assert (span.name, attributes(span)["http.request.method"]) == (name, told)
    assert "secret" not in span.to_json()


def test_a_request_s_span_is_the_current_one_and_nobody_makes_another(
    exported: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    suppressed: list[str] = []

    @contextmanager
    def suppress_http_instrumentation() -> Iterator[None]:
        suppressed.append("begun")
        yield
        suppressed.append("ended")

    utils = SimpleNamespace(suppress_http_instrumentation=suppress_http_instrumentation)
    monkeypatch.setitem(sys.modules, "opentelemetry.instrumentation.utils", utils)  # type: ignore[arg-type]
    inside: list[trace.SpanContext] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert suppressed == ["begun"]
        inside.append(trace.get_current_span().get_span_context())
        await JSONResponse({})(scope, receive, send)

    async def ask() -> None:
        await posted(door(app, service_of(ScriptedBackend(answer))), "/v1/completions", {})
        assert trace.get_current_span() is trace.INVALID_SPAN

    asyncio.run(ask())
    (span,) = exported.get_finished_spans()
    assert [context.span_id for context in inside] == [span.context.span_id]
    assert suppressed == ["begun", "ended"]


def test_of_a_stream_that_nobody_reads_no_count_is_told(exported: InMemorySpanExporter) -> None:
    async def leave() -> None:
        body = json.dumps({"prompt": "x", "stream": True}).encode()
        came = iter([{"type": "http.request", "body": body}, {"type": "http.disconnect"}])
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": headers}

        async def receive() -> Any:
            return next(came)

        async def send(message: Any) -> None:
            pass

        await served(ScriptedBackend(answer, word_s=5))(scope, receive, send)

    asyncio.run(leave())
    (span,) = exported.get_finished_spans()
    known = attributes(span)
    assert known["error.type"] == "aborted"
    assert [name for name in known if "usage" in name] == ["gen_ai.usage.input_tokens"]


class Waiting(ScriptedBackend):
    """Answers when as many segments wait as run side by side."""

    waiting = 0

    async def submit(self, segment: Any, *, streams: bool = True) -> Any:
        self.waiting += 1
        while self.waiting < 2:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.02)
        async for event in super().submit(segment, streams=streams):
            yield event


def test_called_programs_that_run_side_by_side_overlap(exported: InMemorySpanExporter) -> None:
    @sgl.function
    def called(s: Any, text: str) -> None:
        s += text + sgl.gen("a", max_tokens=4)

    @sgl.function
    def both(s: Any) -> None:
        one, two = called(text="one"), called(text="two")
        s += one["a"] + two["a"]

    assert both.run(backend=Waiting(answer), mode="plan", passes="-inline_calls").error() is None
    made = [span for span in exported.get_finished_spans() if "sglc.site" in (span.attributes or {})]
    began = [span.start_time or 0 for span in made]
    assert len(made) == 2
    assert max(began) < min(span.end_time or 0 for span in made) - 10_000_000
