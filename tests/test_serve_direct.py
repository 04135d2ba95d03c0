"""Requests that go past the framework are answered as it would, and events are sent as they come."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sglc.backends.scripted import Rule, ScriptedBackend, by_rules
from sglc.errors import BackendError
from sglc.ir.plan.events import Delta, Event, EventBatches, NodeFailed
from sglc.ir.plan.segment import Segment
from sglc.serve import bodies, direct, reading
from sglc.serve.access_log import AccessLog
from sglc.serve.app import make_app, make_direct
from sglc.serve.direct import Direct
from sglc.serve.door import Access, guarded
from sglc.serve.keys import Keys
from sglc.serve.limits import Limits
from sglc.serve.metrics import Metrics
from sglc.serve.problems import Refusal, as_json, in_pieces
from sglc.serve.sending import EventStream
from sglc.serve.service import Service

WORDS = " one two three"
GIVEN = json.dumps({"prompt": "Count", "seed": 1}).encode()


def service(backend: ScriptedBackend | None = None) -> Service:
    made = backend or ScriptedBackend(by_rules([Rule(text=WORDS)]))
    tokenizer: Any = made.target.tokenizer
    return Service(made, tokenizer, "m", 1 << 20, limits=Limits(body=10_000))


def sent(
    app: ASGIApp,
    *parts: bytes,
    path: str = "/v1/completions",
    method: str = "POST",
    leaves: bool = False,
    **headers: str,
) -> list[Message]:
    """What `app` answers to a body that comes in parts; the client stays until then, unless it `leaves`."""
    fields = {"content-type": "application/json", "content-length": str(sum(map(len, parts))), **headers}
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "http_version": "1.1",
        "headers": [(name.encode(), value.encode()) for name, value in fields.items() if value],
    }
    bodies = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    bodies[-1]["more_body"] = leaves
    answered: list[Message] = []

    async def receive() -> Message:
        if bodies:
            return bodies.pop(0)
        if not leaves:
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        answered.append(message)

    asyncio.run(AccessLog(app, Metrics(), written=False)(scope, receive, send))
    return answered


def told(answered: list[Message]) -> tuple[int, bytes]:
    return answered[0]["status"], b"".join(message["body"] for message in answered[1:])


NOT_TAKEN = {
    "no JSON": b'{"prompt": ',
    "an empty body": b"",
    "not an object": b"[1]",
    "an unknown field": b'{"prompt": "a", "no_such": 1}',
    "a wrong type": b'{"prompt": "a", "n": "1"}',
    "a wrong object": b'{"prompt": "a", "stream_options": 3, "stream": true}',
    "a list of no field": b'{"prompt": "a", "tokens": [' + b'"a", ' * 300 + b'"a"]}',
    "half a character": b'{"prompt": "\\ud800"}',
    "half a character in bytes": b'{"prompt": "\xed\xa0\x80"}',
    "no UTF-8": b'{"prompt": "\xff"}',
    "not a number": b'{"prompt": "a", "temperature": NaN}',
    "more than a number holds": b'{"prompt": "a", "temperature": 1e999}',
    "a large number": b'{"prompt": "a", "n": 1000000000000000000000000000000}',
    "a deep one": b'{"prompt": ' + b"[" * 5_000,
    "many digits": b'{"prompt": "a", "n": ' + b"9" * 5_000 + b"}",
    "a long one": b'{"prompt": "' + b"a" * 10_000 + b'"}',
    "another model": b'{"prompt": "a", "model": "other"}',
    "two limits": b'{"prompt": "a", "regex": "a", "ebnf": "root ::= \\"a\\""}',
}


@pytest.mark.slow
@pytest.mark.parametrize("body", NOT_TAKEN.values(), ids=NOT_TAKEN)
def test_what_is_wrong_is_said_in_the_same_words(body: bytes) -> None:
    status, content = told(sent(make_direct(service()), body))
    assert (status, content) == told(sent(make_app(service()), body))
    assert 400 <= status < 500


LARGE = {
    "no JSON": b'{"prompt": "' + b"a" * 300_000,
    "no JSON behind much": b'{"prompt": [' + b"5, " * 200_000 + b"}",
    "no UTF-8": b'{"prompt": "' + b"a" * 300_000 + b"\xff" + b'"}',
    "not an object": b"[" + b"5, " * 200_000 + b"5]",
    "a deep one": b'{"prompt": ' + b"[" * 300_000,
    "an unknown field": b'{"no_such": 1, "prompt": "' + b"a" * 300_000 + b'"}',
    "many prompts": b'{"prompt": [' + b'"a", ' * 100_000 + b'"a"]}',
    "many ids to stop at": b'{"prompt": "a", "stop_token_ids": [' + b"7, " * 200_000 + b"7]}",
    "half a character": b'{"prompt": "\\ud800' + b"a" * 300_000 + b'"}',
    "a long form": b'{"prompt": "a", "regex": "' + b"a" * 2_000_000 + b'"}',
    "a large schema": b'{"prompt": "a", "json_schema": {"enum": [' + b'"abcdef", ' * 200_000 + b'"a"]}}',
    "a large body": b'{"prompt": "Count", "user": "' + b"a" * 300_000 + b'"}',
    "ids of one prompt": b'{"prompt": [' + b"65, " * 100_000 + b"66]}",
    "an id that no model has": b'{"prompt": [[65], [' + b"65, " * 100_000 + b"1000000000000]]}",
    "an id below all": b'{"prompt": [[65], [' + b"65, " * 100_000 + b"-1]]}",
    "an id that is none": b'{"prompt": [[65], [' + b"65, " * 100_000 + b"true]]}",
    "ids beside what is deep": b'{"kv_hints": '
    + b"[" * 300
    + b"]" * 300
    + b', "prompt": [[0], ['
    + b"0, " * 100_000
    + b"0]]}",
    "no ids": b'{"prompt": [[], [' + b"65, " * 100_000 + b"65]]}",
}
# What only the framework, or who knows the model's ids, can tell.
ONLY_HERE = [LARGE[name] for name in ("half a character", "ids of one prompt", "an id that no model has")]


@pytest.mark.slow
@pytest.mark.parametrize("body", LARGE.values(), ids=LARGE)
def test_large_bodies_are_looked_at_elsewhere_and_told_the_same(body: bytes) -> None:
    served = replace(service(), limits=Limits())
    app = make_direct(served)
    assert isinstance(app, Direct)
    status, content = told(sent(app, body))
    expected = told(sent(make_app(served), body))
    assert (status, content) == expected or (status, expected[0], b"cmpl-" in content) == (200, 200, True)
    begun = app._checker._process
    assert begun is not None
    if status != 200:  # it was refused there, and never read here
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(direct, "decoded", None)
            if body not in ONLY_HERE:
                assert told(sent(app, body)) == (status, content)
    begun.kill()
    begun.wait()
    assert told(sent(app, body))[0] == status  # whoever has ended is begun again
    app._checker._end()


@pytest.mark.parametrize("path", ["/v1/completions", "/generate"])
def test_ids_of_many_prompts_are_read_elsewhere(path: str) -> None:
    served = replace(service(), limits=Limits())
    known = served.tokenizer.encode("one two three four five six seven")
    given = [[known[(number + at) % 7] for at in range(2_000)] for number in range(60)]
    fields = {"prompt": given, "echo": True, "seed": 1} if path.startswith("/v1") else {"input_ids": given}
    app, framework = make_direct(served), make_app(served)
    assert isinstance(app, Direct)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(direct, "decoded", None)
        status, content = told(sent(app, json.dumps(fields).encode(), path=path))
    expected, other = told(sent(framework, json.dumps(fields).encode(), path=path))
    assert status == expected == 200
    made, same = (_lasting(json.loads(answer)) for answer in (content, other))
    assert made == same
    assert len(made) == len(given)
    app._checker._end()


def _lasting(answer: Any) -> list[Any]:
    """Of an answer's choices what is the same each time."""
    if isinstance(answer, dict):
        return [(choice["text"], choice["index"]) for choice in answer["choices"]]
    return [(each["text"], each["meta_info"]["prompt_tokens"]) for each in answer]


@pytest.mark.slow
@pytest.mark.parametrize(
    "headers",
    [{"content-type": ""}, {"content-type": "text/plain"}, {"content-length": ""}, {"content-length": "99999"}],
)
def test_bodies_of_another_kind_or_length_are_the_frameworks(headers: dict[str, str]) -> None:
    status, _ = told(sent(make_direct(service()), GIVEN, **headers))
    assert status == told(sent(make_app(service()), GIVEN, **headers))[0]


@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-www-form-urlencoded"])
def test_what_is_not_called_json_is_told_so(kind: str) -> None:
    for path in ("/v1/completions", "/v1/chat/completions", "/generate", "/tokenize"):
        status, content = told(sent(make_direct(service()), GIVEN, path=path, **{"content-type": kind}))
        assert status == 400
        assert "`Content-Type: application/json`" in json.loads(content)["error"]["message"]


def test_further_parameters_need_no_others() -> None:
    """Past the framework and through it."""
    body = b'{"text": "Count", "custom_params": {"max_new_tokens": 3}}'
    for app in (make_direct(service()), make_app(service())):
        assert told(sent(app, body, path="/generate"))[0] == 200


def test_further_parameters_do_not_take_the_place_of_others() -> None:
    for given, status in (({"top_k": 3}, 400), ({"top_k": 5}, 200), ({"top_k": None}, 200)):
        body = {"text": "Count", "sampling_params": given, "custom_params": {"top_k": 5}}
        for app in (make_direct(service()), make_app(service())):
            answered, content = told(sent(app, json.dumps(body).encode(), path="/generate"))
            assert answered == status, content
            if status == 400:
                assert json.loads(content)["error"]["param"] == "sampling_params.top_k"


def test_a_body_may_come_in_parts() -> None:
    status, content = told(sent(make_direct(service()), GIVEN[:5], b"", GIVEN[5:]))
    assert (status, json.loads(content)["choices"][0]["text"]) == (200, WORDS)


def test_others_go_on_while_a_long_conversation_is_read() -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "a"}] * 20_000}).encode()
    made = service()
    app = make_direct(replace(made, limits=Limits(body=1 << 24, characters=10_000)))
    turns = 0

    async def count(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal turns
        task = asyncio.ensure_future(app(scope, receive, send))
        while not task.done():
            turns += 1
            await asyncio.sleep(0)
        task.result()

    status, content = told(sent(count, body, path="/v1/chat/completions"))
    assert (status, json.loads(content)["error"]["code"]) == (400, "context_length_exceeded")
    assert turns > 100


def test_nothing_is_answered_to_who_leaves_before_the_end_of_a_body() -> None:
    backend = ScriptedBackend(by_rules([Rule(text=WORDS)]))
    status, _ = told(sent(make_direct(service(backend)), GIVEN[:5], leaves=True))
    assert status == 400
    assert backend.calls == 0


def test_the_framework_is_not_asked_what_it_need_not_know() -> None:
    async def framework(*_: Any) -> None:
        raise AssertionError("it is asked")

    app = make_direct(service())
    assert isinstance(app, Direct)
    app._app = framework
    for path, body in (
        ("/v1/completions", GIVEN),
        ("/v1/chat/completions", b'{"messages": [{"role": "user", "content": "Count"}]}'),
        ("/generate", b'{"text": "Count"}'),
    ):
        assert told(sent(app, body, path=path))[0] == 200


@pytest.mark.parametrize("length", [{}, {"content-length": ""}], ids=["direct", "framework"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/api/chat", "/tokenize", "/detokenize"])
def test_what_has_no_room_is_not_looked_at(path: str, length: dict[str, str]) -> None:
    given: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": ""}] * 51}
    if path == "/detokenize":
        given = {"tokens": [10**9] * 51}  # the model has no such id, which is not looked for
    status, content = told(
        sent(make_direct(replace(service(), max_len=50)), json.dumps(given).encode(), path=path, **length)
    )
    assert status == 400
    assert b"50 tokens" in content


def test_a_result_of_no_call_is_refused_wherever_it_is_sent() -> None:
    given = {"model": "m", "messages": [{"role": "tool", "tool_call_id": "a", "content": "1"}]}
    for path in ("/v1/chat/completions", "/tokenize", "/api/chat"):
        status, content = told(sent(make_direct(service()), json.dumps(given).encode(), path=path))
        assert status == 400
        assert b"`messages.0.tool_call_id`: no call before it" in content


def test_every_text_is_of_its_keys_share() -> None:
    shares: list[str] = []

    class Noting(ScriptedBackend):
        def submit(self, segment: Segment, *, streams: bool = True) -> AsyncIterator[Event]:
            shares.append(segment.share)
            return super().submit(segment, streams=streams)

    served = service(Noting(by_rules([Rule(text=WORDS)])))
    access = Access(Keys.of(["one", "two"]))
    app = guarded(make_direct(served), access, served.limits, served.drain, served.queue, served.metrics)
    for key in ("one", "two"):
        for path, given in (
            ("/v1/completions", {"prompt": "Count"}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Count"}]}),
            ("/generate", {"text": "Count"}),
            ("/api/generate", {"model": "m", "prompt": "Count", "raw": True, "options": {"num_predict": 9}}),
            ("/api/chat", {"model": "m", "messages": [{"role": "user", "content": "Count"}]}),
        ):
            body = json.dumps(given).encode()
            assert told(sent(app, body, path=path, authorization=f"Bearer {key}"))[0] == 200
    one, two = shares[:5], shares[5:]
    assert (len(set(one)), len(set(two)), len(shares)) == (1, 1, 10)
    assert len({"", *one, *two}) == 3


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"prompt": "\xff"}', "UTF-8"),
        (b'{"prompt": ' + b"[" * 5_000, "nested too deeply"),
        (b'{"prompt": ' + b"9" * 5_000 + b"}", "4300 digits"),
    ],
)
def test_why_a_body_cannot_be_read_is_told(body: bytes, said: str) -> None:
    status, content = told(sent(make_direct(service()), body))
    assert status == 400
    assert said in json.loads(content)["error"]["message"]


def test_who_has_no_key_is_told_so() -> None:
    served = service()
    access = Access(Keys.of(["one"]))
    app = guarded(make_direct(served), access, served.limits, served.drain, served.queue, served.metrics)
    for given, said in (
        ("", "no key is given"),
        ("Basic a", "no key is given"),
        ("Bearer a", "not this server's"),
    ):
        status, content = told(sent(app, GIVEN, authorization=given))
        assert status == 401
        assert said in json.loads(content)["error"]["message"]


def test_what_is_aborted_is_named() -> None:
    asked: tuple[tuple[dict[str, Any], int], ...] = (
        ({}, 400), ({"rid": ""}, 400), ({"rid": "a"}, 200), ({"abort_all": True}, 200),
    )  # fmt: skip
    for given, status in asked:
        answered, content = told(
            sent(make_direct(service()), json.dumps(given).encode(), path="/abort_request")
        )
        assert answered == status
        assert status == 200 or json.loads(content)["error"]["param"] == "rid"


ALLOWED = {"authorization": "Bearer one"}
AT_THE_DOOR = {
    "no key": (401, {}),
    "two lengths": (400, {"transfer-encoding": "chunked", **ALLOWED}),
    "another name": (400, {"host": "other", **ALLOWED}),
    "a large body": (413, {"content-length": "99999", **ALLOWED}),
    "an encoding": (415, {"content-encoding": "gzip", **ALLOWED}),
    "no room": (429, ALLOWED),
}


@pytest.mark.parametrize("case", AT_THE_DOOR)
def test_who_is_turned_away_is_told_in_the_words_of_the_path(case: str) -> None:
    expected, headers = AT_THE_DOOR[case]
    served = replace(service(), limits=Limits(body=10_000, queue=1))
    if case == "no room":
        served.queue.let_in({}, 1, 1)
    app = guarded(
        make_direct(served), Access(Keys.of(["one"]), hosts=("m",)), served.limits, served.drain,
        served.queue, served.metrics,
    )  # fmt: skip
    errors = []
    for path, given in (("/generate", {"text": "a"}), ("/api/generate", {"model": "m", "prompt": "a"})):
        status, content = told(sent(app, json.dumps(given).encode(), path=path, **{"host": "m", **headers}))
        assert status == expected
        errors.append(json.loads(content)["error"])
    assert errors[1] == errors[0]["message"]


def test_a_body_in_chunks_that_is_too_large_is_told_so() -> None:
    status, content = told(sent(make_direct(service()), b" " * 10_001, **{"content-length": ""}))
    error = json.loads(content)["error"]
    assert (status, error["code"]) == (413, "body_too_large")
    assert error["message"] == "the body is larger than the server takes"


@pytest.mark.parametrize(
    "path", ["/v1/completions/", "/v1/models/", "/health/", "/redoc", "/docs/oauth2-redirect"]
)
def test_other_paths_are_not_there(path: str) -> None:
    assert told(sent(make_direct(service()), GIVEN, path=path, method="GET"))[0] == 404


def test_a_fault_of_the_server_is_told_and_logged() -> None:
    def broken(_: Any) -> str:
        raise ZeroDivisionError("bug")

    answered: list[Message] = []
    app = make_direct(service(ScriptedBackend(broken)))

    async def noting(scope: Any, receive: Any, send: Any) -> None:
        async def put(message: Message) -> None:
            answered.append(message)

        await app(scope, receive, put)

    with pytest.raises(ZeroDivisionError):  # which the server of ASGI writes down
        sent(noting, GIVEN)
    status, content = told(answered)
    assert (status, json.loads(content)["error"]["code"]) == (500, "internal_error")


# -- events ------------------------------------------------------------------------------------------


def test_events_that_are_there_together_are_sent_together_and_stay_apart() -> None:
    async def rest() -> AsyncGenerator[list[int], None]:
        yield [2]
        yield [3, 4]

    first, one, two, last = sent(EventStream([0, 1], rest(), 9), b"")[1:]
    assert first["body"] == b"data: 0\n\ndata: 1\n\n"
    assert one["body"] == b"data: 2\n\n"
    assert two["body"] == b"data: 3\n\ndata: 4\n\n"
    assert (last["body"], last["more_body"]) == (b"data: [DONE]\n\n", False)


class Together(ScriptedBackend):
    """Two words and a failure that are there at once."""

    def submit(self, segment: Segment, *, streams: bool = True) -> AsyncIterator[Event]:
        return EventBatches(self._events())

    async def _events(self) -> AsyncGenerator[Sequence[Event], None]:
        yield [Delta(2, " one"), Delta(2, " two"), NodeFailed(2, BackendError("SGLC506", "it ended"))]


def test_what_came_before_a_failure_is_sent() -> None:
    backend = Together(by_rules([]))
    status, content = told(sent(make_direct(service(backend)), b'{"prompt": "Count", "stream": true}'))
    one, two, error, done, _ = content.decode().split("\n\n")
    assert status == 200
    assert [json.loads(event[6:])["choices"][0]["text"] for event in (one, two)] == [" one", " two"]
    assert json.loads(error[6:])["error"]["code"] == "SGLC506"
    assert done == "data: [DONE]"


def test_each_word_is_an_event_however_late_it_is() -> None:
    backend = ScriptedBackend(by_rules([Rule(text=WORDS)]), word_s=1e-9)
    body = b'{"prompt": "Count", "stream": true}'
    _, *bodies = sent(make_direct(service(backend)), body)
    *events, done, _ = b"".join(message["body"] for message in bodies).split(b"\n\n")
    assert [json.loads(event[6:])["choices"][0]["text"] for event in events] == [" one", " two", " three", ""]
    assert done == b"data: [DONE]"


_SCHEMA = {"type": "object", "properties": {"é": {"enum": [1, 2.5, None, "\ud83d\ude00"]}}}


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (bodies.CompletionBody, {"prompt": "a", "json_schema": _SCHEMA}),
        (bodies.CompletionBody, {"prompt": "a", "guided_json": _SCHEMA}),
        (bodies.GenerateBody, {"text": "a", "sampling_params": {"json_schema": _SCHEMA, "top_k": 3}}),
        (bodies.CompletionBody, {"prompt": "a", "structured_outputs": {"json": _SCHEMA}}),
        (
            bodies.ChatBody,
            {
                "messages": [{"role": "user", "content": "a"}],
                "response_format": {"type": "json_schema", "json_schema": {"name": "b", "schema": _SCHEMA}},
            },
        ),
    ],
)
def test_a_large_body_s_schemas_come_back_as_texts(kind: type[bodies.RequestBody], body: Any) -> None:
    content = json.dumps(body).encode()
    again = reading.unpacked(reading.packed(kind, content, Limits(), 4096))
    assert reading.validated(kind, again) == reading.validated(kind, reading.decoded(content))
    assert "'properties'" not in repr(again)
    assert "properties" in repr(again)


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "a"}, {"prompt": "a", "json_schema": '{"type": "object"}'},
        {"text": "a", "sampling_params": {"json_schema": _SCHEMA}, "custom_params": {"json_schema": _SCHEMA}},
    ],
)  # fmt: skip
def test_a_large_body_without_them_is_read_again(body: Any) -> None:
    kind: type[bodies.RequestBody] = bodies.GenerateBody if "text" in body else bodies.CompletionBody
    assert reading.packed(kind, json.dumps(body).encode(), Limits(), 4096) == b""


def test_a_plan_that_is_too_large_is_refused_where_large_bodies_are_read() -> None:
    content = json.dumps({"plan": {"steps": ["a" * 100]}, "rows": [{}]}).encode()
    assert reading.packed(bodies.ProgramBody, content, Limits(), 4096) == b""
    with pytest.raises(Refusal, match="more than the 100 of `--max-plan`"):
        reading.packed(bodies.ProgramBody, content, Limits(plan=100), 4096)


def test_a_large_answer_is_the_same_in_pieces() -> None:
    content = {
        "choices": [{"index": 0, "logprobs": {"tokens": ["é", "b"], "top_logprobs": [{"é": -0.5}, None]}}],
        "usage": {"total_tokens": 1}, "infinite": -math.inf,
    }  # fmt: skip
    for whole in (content, [content, content], [], "a"):
        assert as_json(in_pieces(whole)).body == as_json(whole).body
