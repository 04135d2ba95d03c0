"""What goes wrong between a program and a vendor's API: one clear outcome, and no request too many."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from types import AsyncGeneratorType
from typing import Any

import pytest

import sglc as sgl
from sglc.backends import retry
from sglc.backends.retry import Patience
from sglc.errors import BackendError, RunError
from sglc.ir.plan.events import Usage
from tests.api_programs import question
from tests.api_targets import HERE, at
from tests.depth import some_of
from tests.openai_server import Fault, UntilAsked, serving
from tests.vendor_shapes import anthropic_chunks, anthropic_whole, gemini_chunks, gemini_whole
from tests.waiting import until

pytestmark = pytest.mark.slow

OPENAI, CLAUDE, GEMINI = "openai:gpt-4o", "anthropic:claude-opus-5-5", "gemini:gemini-2.5-flash"
TARGETS = [
    name
    for name in (
        "openai:gpt-4o",
        "anthropic:claude-opus-5-5",
        "gemini:gemini-2.5-flash",
        "litellm:openai/gpt-4o",
        "litellm:anthropic/claude-opus-5-5",
    )
    if name.partition(":")[0] in HERE
]
# What passes is tried again, and the next answer holds.
PASSING = {
    "too many, with a wait": Fault(429, {"retry-after": "0.01"}),
    "too many": Fault(429),
    "a fault of the server": Fault(500, code="api_error"),
    "busy": Fault(529, code="overloaded_error"),
    "a page of a proxy": Fault(502, body="<html>\nbad gateway</html>"),
    "a connection that breaks at once": Fault(0),
}
# What stays is asked for once; the hint says what to do.
STAYING = {
    "an expired key": (Fault(401, code="authentication_error"), "key"),
    "a key that may not": (Fault(403, code="permission_error"), "key"),
    "a prompt that is too long": (Fault(400, code="invalid_request_error"), ""),
    "a request that is too large": (Fault(413, code="request_too_large"), ""),
    "a model that is not there": (Fault(404, code="not_found_error"), "name"),
}
# Answers that are none, whatever the protocol.
BROKEN = {
    "cut off": Fault(200, body='{"choices": [{"index": 0, "message": {"content": "so'),
    "another shape": Fault(200, body='{"some": "thing"}'),
    "nothing": Fault(200, body="null"),
    "a list": Fault(200, body="[]"),
    "a page": Fault(200, body="<html>hello</html>"),
    "no end of brackets": Fault(200, body="[" * 100_000),
}
FOUND_OUT = [(name, what) for name in TARGETS for what in PASSING]


def then_fine(fault: Any) -> Callable[[dict[str, Any]], Any]:
    left = [fault]
    return lambda body: left.pop() if left else "fine"


@pytest.mark.parametrize(("name", "what"), some_of(FOUND_OUT, 2, 8))
@pytest.mark.parametrize("live", [False, True])
def test_what_passes_is_tried_again(name: str, what: str, live: bool) -> None:
    with serving(then_fine(PASSING[what])) as api, at(api, name) as backend:
        result = question.run(backend=backend, stream=live)
        assert result["answer"] == "fine"
        assert len(api.bodies) == result.usage.calls == 2
        assert api.bodies[0] == api.bodies[1]


@pytest.mark.parametrize("name", TARGETS)
def test_a_wait_that_is_asked_for_is_kept_to(name: str) -> None:
    with serving(lambda body: Fault(429, {"retry-after": "1000"})) as api, at(api, name) as backend:
        error = question.run(backend=backend).error()
        assert isinstance(error, BackendError)
        assert (error.note, len(api.bodies)) == ("1 attempt; in 1000 s it would be too late", 1)


@pytest.mark.parametrize(
    ("name", "what"), some_of([(name, what) for name in TARGETS for what in STAYING], 2, 8)
)
@pytest.mark.parametrize("live", [False, True])
def test_what_stays_is_asked_for_once(name: str, what: str, live: bool) -> None:
    fault, hint = STAYING[what]
    with serving(lambda body: fault) as api, at(api, name) as backend:
        error = question.run(backend=backend, stream=live).error()
        assert isinstance(error, BackendError)
        assert (error.code, error.loc is not None, len(api.bodies)) == ("SGLC542", True, 1)
        assert f"HTTP {fault.status}: " in error.message or name.startswith("litellm:")
        assert "scripted" in error.message
        assert "\n" not in error.message
        assert hint in error.hint or name.startswith("litellm:")


@pytest.mark.parametrize(("name", "what"), some_of([(name, what) for name in TARGETS for what in BROKEN], 2, 8))
def test_an_answer_that_cannot_be_read_is_asked_for_again(name: str, what: str) -> None:
    with serving(then_fine(BROKEN[what])) as api, at(api, name) as backend:
        assert question.run(backend=backend)["answer"] == "fine"
        assert len(api.bodies) == 2
    with serving(lambda body: BROKEN[what]) as api, at(api, name) as backend:
        error = question.run(backend=backend).error()
        assert isinstance(error, BackendError)
        assert (error.code, error.loc is not None, len(api.bodies)) == ("SGLC543", True, 4)
        assert "\n" not in error.message


NO_STREAM = {
    **BROKEN,
    "nothing at all": Fault(200, body=""),
    "no choices": Fault(200, body='{"choices": [], "content": []}'),
    "an error": Fault(200, body='{"error": {"message": "inner failure", "code": 500}}'),
}
# LiteLLM has clients of its own for each vendor; Ollama's reads a line of JSON for a piece.
STREAMING = [*TARGETS, *(["litellm:ollama_chat/llama3"] if "litellm" in HERE else [])]


@pytest.mark.parametrize(
    ("name", "what"), some_of([(name, what) for name in STREAMING for what in NO_STREAM], 3, 60)
)
def test_a_stream_of_nothing_is_asked_for_again(name: str, what: str) -> None:
    with serving(lambda body: NO_STREAM[what]) as api, at(api, name) as backend:
        error = question.run(backend=backend, stream=True).error()
        assert isinstance(error, BackendError)
        assert (error.code, error.loc is not None, len(api.bodies)) == ("SGLC543", True, 4)


@pytest.mark.parametrize("name", [name for name in TARGETS if name.startswith(("openai", "litellm:openai"))])
def test_counts_that_nobody_has_told_are_none(name: str) -> None:
    piece = {"id": "x", "object": "chat.completion.chunk", "created": 0, "model": "m"}
    said = [{"index": 0, "delta": {"content": "one two"}, "finish_reason": None}]
    end = [{"index": 0, "delta": {}, "finish_reason": "stop"}]
    lines = [json.dumps({**piece, "choices": choices}) for choices in (said, end)]
    text = "".join(f"data: {line}\n\n" for line in (*lines, "[DONE]"))
    stream = Fault(200, {"content-type": "text/event-stream"}, body=text)
    with serving(lambda body: stream) as api, at(api, name) as backend:
        result = question.run(backend=backend, stream=True)
        assert (result["answer"], result.usage) == ("one two", Usage(calls=1))


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize(
    "fault",
    [
        Fault(200, {"content-encoding": "gzip"}, body="no gzip"),
        Fault(200, body=b'{"choices": "\xff"}'),
    ],
)
def test_bytes_that_are_no_text_are_asked_for_again(name: str, fault: Fault) -> None:
    with serving(then_fine(fault)) as api, at(api, name) as backend:
        assert question.run(backend=backend)["answer"] == "fine"
        assert len(api.bodies) == 2


@pytest.mark.parametrize("name", [OPENAI, CLAUDE, GEMINI])
def test_what_nobody_expects_is_counted(name: str) -> None:
    with serving(lambda body: "fine") as api, at(api, name) as backend:
        backend.trouble = lambda error: error  # type: ignore[method-assign]
        api.answer = lambda body: Fault(400)
        result = question.run(backend=backend)
        error = result.error()
        assert isinstance(error, BackendError)
        assert (error.code, error.loc is not None, result.usage.calls) == ("SGLC502", True, 1)


@pytest.mark.parametrize("name", [name for name in TARGETS if name != GEMINI])
def test_redirects_without_end_are_no_answer(name: str) -> None:
    with serving(lambda body: Fault(307, {"location": "?"})) as api, at(api, name) as backend:
        error = question.run(backend=backend).error()
        assert "SGLC543" in str(error)
        assert "redirects" in str(error)


@pytest.mark.parametrize("name", [OPENAI, CLAUDE, GEMINI])
def test_a_redirect_takes_no_key_along(name: str) -> None:
    with serving(lambda body: "fine") as other, serving(lambda body: "fine") as api, at(api, name) as backend:
        api.answer = lambda body: Fault(307, {"location": f"{other.url.removesuffix('/v1')}{api.paths[-1]}"})
        error = question.run(backend=backend).error()
        assert all("k" not in header.values() for header in other.headers)
        assert ("check the base URL" in str(error)) == (name == GEMINI)


@pytest.mark.parametrize("name", TARGETS)
def test_an_address_that_is_none_is_asked_once(name: str) -> None:
    with serving(lambda body: "fine") as api:
        api.url = "127.0.0.1:9/v1"
        with at(api, name) as backend:
            error = question.run(backend=backend).error()
        assert isinstance(error, BackendError)
        assert (error.code, error.note) == ("SGLC542", "1 attempt")


@pytest.mark.parametrize("name", TARGETS)
def test_a_stream_that_breaks_is_not_asked_for_again(name: str) -> None:
    with serving(lambda body: Fault(0, said="so far so good")) as api, at(api, name) as backend:
        result = question.run(backend=backend, stream=True)
        pieces: list[str] = []
        with pytest.raises(BackendError, match=r"SGLC543.*broke off"):
            pieces.extend(result.text_iter("answer"))
        assert "".join(pieces) == "so far so good"
        assert len(api.bodies) == 1
    # Where nobody has heard a piece, it may begin anew, and nothing is there twice.
    with serving(then_fine(Fault(0, said="so far so good"))) as api, at(api, name) as backend:
        assert question.run(backend=backend)["answer"] == "fine"
        assert len(api.bodies) == 2


@pytest.mark.parametrize("name", TARGETS)
def test_a_server_that_stalls_is_left(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    patience = Patience(attempts=2, first_wait_s=0.01, attempt_s=60, total_s=300)
    with serving(lambda body: "late", delay_s=60) as api:
        monkeypatch.setattr(retry, "asyncio", UntilAsked(api))
        with at(api, name, patience=patience) as backend:
            error = question.run(backend=backend).error()
        assert isinstance(error, BackendError)
        assert (error.code, error.note, len(api.bodies)) == ("SGLC543", "2 attempts", 2)


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("live", [False, True])
def test_a_run_that_is_stopped_leaves_its_request(name: str, live: bool) -> None:
    with serving(lambda body: "late", delay_s=60) as api, at(api, name) as backend:
        result = question.run(backend=backend, stream=live)
        until(lambda: api.in_flight)
        result.stop()
        assert "SGLC407" in str(result.error())
        until(lambda: not api.in_flight)
        assert (api.gone, len(api.bodies)) == (1, 1)


@pytest.mark.parametrize("name", ["openai:gpt-4o", "anthropic:claude-opus-5-5", "http"])
def test_half_of_a_character_is_not_sent(name: str) -> None:
    with serving(lambda body: "fine") as api:
        made = at(api, name) if name != "http" else closing(sgl.RuntimeEndpoint(api.url.removesuffix("/v1")))
        with made as backend:
            error = question.run("a\ud800b", backend=backend).error()
        assert isinstance(error, RunError)
        assert (error.code, error.loc is not None, len(api.bodies)) == ("SGLC430", True, 0)


@pytest.mark.parametrize("name", TARGETS)
def test_requests_at_once_are_bounded(name: str) -> None:
    with serving(lambda body: "fine", delay_s=0.02) as api, at(api, name, concurrency=3) as backend:
        results = question.run_batch([{"q": str(number)} for number in range(12)], backend=backend)
        assert [result["answer"] for result in results] == ["fine"] * 12
        assert 2 <= api.most_in_flight <= 3


@pytest.mark.parametrize("name", TARGETS)
def test_the_other_rows_go_on(name: str) -> None:
    def answer(body: dict[str, Any]) -> Any:
        return Fault(400) if "bad" in json.dumps(body) else "fine"

    with serving(answer) as api, at(api, name) as backend:
        rows = [{"q": word} for word in ("one", "bad", "two", "three")]
        results = question.run_batch(rows, backend=backend)
        errors = [result.error() for result in results]
        assert [error is None for error in errors] == [True, False, True, True]
        assert isinstance(errors[1], BackendError)
        assert errors[1].code == "SGLC542"
        assert [result["answer"] for result, error in zip(results, errors, strict=True) if error is None] == [
            "fine"
        ] * 3
        assert len(api.bodies) == 4


# -- no answer ---------------------------------------------------------------------------------------

_BODY = {"model": "m", "messages": [], "contents": []}


def _openai(**choice: Any) -> dict[str, Any]:
    whole = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "a"}, **choice}
    return {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [whole]}


def _refused(category: str) -> dict[str, Any]:
    details = {"type": "refusal", "category": category, "explanation": "That could do harm."}
    return {**anthropic_whole("", _BODY, "refusal"), "stop_details": details}


def _delta(**choice: Any) -> str:
    """A chunk of OpenAI's."""
    data = {"id": "x", "object": "chat.completion.chunk", "created": 0, "model": "m"}
    return f"data: {json.dumps({**data, 'choices': [{'index': 0, 'finish_reason': None, **choice}]})}\n\n"


_OPENED = _delta(delta={"content": "fi"})
_CHECKED = {"content_filter_results": {"hate": {"filtered": False}}, "content_filter_offsets": {}}
_BROKE_OFF = {"finish_reason": "error", "error": {"code": 502, "message": "Provider disconnected"}}
# What Mistral's thinking models say where others have a text.
_THOUGHT = [
    {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "fine"},
]  # fmt: skip

NO_ANSWERS: Mapping[str, tuple[str, Any, str]] = {
    "OpenAI's filter": ("openai:gpt-4o", _openai(finish_reason="content_filter"), "filter"),
    "OpenAI's model refuses": (
        "openai:gpt-4o",
        _openai(message={"role": "assistant", "content": None, "refusal": "No."}),
        "refuses: No.",
    ),
    "Claude refuses": ("anthropic:claude-opus-5-5", _refused("bio"), "refuses: That could do harm."),
    "Google's filter": ("gemini:gemini-2.5-flash", gemini_whole(["a"], _BODY, "SAFETY"), "SAFETY"),
    "Google's filter of names": ("gemini:gemini-2.5-flash", gemini_whole([""], _BODY, "SPII"), "SPII"),
    "Google blocks the prompt": (
        "gemini:gemini-2.5-flash",
        {"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}},
        "blocks the prompt: PROHIBITED_CONTENT",
    ),
}


@pytest.mark.parametrize("what", NO_ANSWERS)
def test_no_answer_is_said_and_not_asked_for_again(what: str) -> None:
    name, answer, said = NO_ANSWERS[what]
    with serving(lambda body: answer) as api, at(api, name) as backend:
        result = question.run(backend=backend)
        error = result.error()
        assert isinstance(error, BackendError)
        assert (error.code, error.loc is not None, len(api.bodies)) == ("SGLC545", True, 1)
        assert said in error.message
        counted = result.usage.prompt > 0
        assert (result.usage.calls, counted) == (1, "usage" in answer or "usageMetadata" in answer)


_COUNTS = {"prompt_tokens": 9, "completion_tokens": 3}
_COUNTED = f"data: {json.dumps({'choices': [], 'usage': _COUNTS})}\n\n"
_BLOCKED = {"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": 9}}
COUNTED: Mapping[str, tuple[str, Iterable[str], int]] = {
    "OpenAI's filter": (OPENAI, [_delta(delta={}, finish_reason="content_filter"), _COUNTED], 3),
    "OpenAI's model refuses": (
        OPENAI, [_delta(delta={"refusal": "No."}), _delta(delta={}, finish_reason="stop"), _COUNTED], 3,
    ),
    "Claude refuses": (CLAUDE, anthropic_chunks("so far", _BODY, breaks=False, stop="refusal"), 2),
    "Google's filter": (GEMINI, gemini_chunks("so far", _BODY, breaks=False, finish="SAFETY"), 4),
    "Google blocks the prompt": (GEMINI, [f"data: {json.dumps(_BLOCKED)}\n\n"], 0),
}  # fmt: skip


@pytest.mark.parametrize("what", COUNTED)
def test_a_stream_without_an_answer_is_counted(what: str) -> None:
    name, chunks, completion = COUNTED[what]
    stream = streamed(chunks)
    with serving(lambda body: stream) as api, at(api, name) as backend:
        result = question.run(backend=backend, stream=True)
        error = result.error()
        assert isinstance(error, BackendError)
        assert (error.code, len(api.bodies)) == ("SGLC545", 1)
        assert (result.usage.calls, result.usage.prompt > 0) == (1, True)
        assert result.usage.completion == completion


def test_a_prompt_that_is_blocked_is_counted() -> None:
    with at_once(_BLOCKED, GEMINI) as result:
        assert "SGLC545" in str(result.error())
        assert (result.usage.prompt, result.usage.calls) == (9, 1)


def test_a_prompt_that_azure_s_filter_blocks_is_no_answer() -> None:
    told = {"error": {"code": "content_filter", "message": "The response was filtered."}}
    with at_once(Fault(400, body=json.dumps(told)), "azure:gpt-4o") as result:
        assert "SGLC545" in str(result.error())
        assert "blocks the prompt" in str(result.error())


def test_a_candidate_that_is_stopped_is_the_end_of_its_own_branch_alone() -> None:
    @sgl.function
    def two(s: Any) -> None:
        s += sgl.user("Say something.")
        forks = s.fork(2)
        forks += sgl.assistant(sgl.gen("x"))
        with suppress(BackendError):
            _ = forks[0]["x"]
        s.set_var("second", forks[1]["x"])

    answer = gemini_whole(["a", "b"], _BODY)
    answer["candidates"][0]["finishReason"] = "SAFETY"
    with serving(lambda body: answer) as api, at(api, GEMINI) as backend:
        result = two.run(backend=backend)
        assert (result["second"], len(result.failures), len(api.bodies)) == ("b", 1, 1)


def streamed(chunks: Iterable[str]) -> Fault:
    return Fault(200, {"content-type": "text/event-stream"}, body="".join(chunks))


def _told(kind: str) -> str:
    """An error inside a stream of Anthropic's."""
    error = {"type": "error", "error": {"type": kind, "message": "scripted"}}
    return f"event: error\ndata: {json.dumps(error)}\n\n"


_BEGUN = list(anthropic_chunks("so far", _BODY, breaks=True))
STREAMS: Mapping[str, tuple[str, Iterable[str], str | None, int]] = {
    "Claude refuses": (CLAUDE, anthropic_chunks("so", _BODY, breaks=False, stop="refusal"), "SGLC545", 1),
    "Google's filter": (GEMINI, gemini_chunks("so", _BODY, breaks=False, finish="SAFETY"), "SGLC545", 1),
    "busy before the first text": (CLAUDE, [*_BEGUN[:3], _told("overloaded_error")], None, 2),
    "busy behind the first text": (CLAUDE, [*_BEGUN, _told("overloaded_error")], "SGLC543", 1),
    "invalid before the first text": (CLAUDE, [*_BEGUN[:1], _told("invalid_request_error")], "SGLC542", 1),
    "no end": (CLAUDE, _BEGUN[:3], None, 2),
    "no end behind text": (GEMINI, gemini_chunks("so", _BODY, breaks=True), "SGLC543", 1),
    "no JSON": (GEMINI, ["data: {so\n\n"], None, 2),
    "Azure's filter behind the text": (
        "azure:gpt-4o",
        [
            _OPENED,
            _delta(**_CHECKED),
            _delta(delta={"content": "ne"}),
            _delta(delta=None, finish_reason="stop"),
        ],
        None,
        1,
    ),
    "Azure's filter": ("azure:gpt-4o", [_OPENED, _delta(finish_reason="content_filter")], "SGLC545", 1),
    "counts without a choice": (
        OPENAI,
        [_delta(delta={"content": "fine"}, finish_reason="stop"), 'data: {"usage": {"prompt_tokens": 3}}\n\n'],
        None,
        1,
    ),
    "broken off before the first text": ("openrouter:a/m", [_delta(delta={}, **_BROKE_OFF)], None, 2),
    "broken off": ("openrouter:a/m", [_OPENED, _delta(delta={}, **_BROKE_OFF)], "SGLC543", 1),
    "thoughts": (
        "mistral:magistral-medium-latest",
        [
            _delta(delta={"content": _THOUGHT[:1]}),
            _delta(delta={"content": _THOUGHT[1:]}, finish_reason="stop"),
        ],
        None,
        1,
    ),
}


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        ({"code": 402, "message": "Insufficient credits"}, "SGLC542", "HTTP 402: Insufficient credits"),
        ({"type": "invalid_request_error", "message": "too long"}, "SGLC542", "HTTP 400: too long"),
        ({"code": "insufficient_quota", "message": "no money"}, "SGLC542", "no money"),
        ({"code": 502, "message": "gone"}, "SGLC543", "HTTP 502: gone"),
        ("gone", "SGLC543", "gone"),
    ],
)
def test_an_error_in_the_place_of_an_answer(live: bool, error: Any, code: str, said: str) -> None:
    told = json.dumps({"error": error})
    answer = streamed([f"data: {told}\n\n"]) if live else Fault(200, body=told)
    with serving(lambda body: answer) as api, at(api, "openrouter:a/m") as backend:
        found = question.run(backend=backend, stream=live).error()
        assert isinstance(found, BackendError)
        assert (found.code, len(api.bodies)) == (code, 1 if code == "SGLC542" else 4)
        assert said in found.message or (live and isinstance(error, str))  # which the SDK leaves out


@pytest.mark.parametrize("name", ["openai:gpt-4o", "anthropic:claude-opus-5-5", "gemini:gemini-2.5-flash"])
@pytest.mark.parametrize(
    "body", [{"detail": [{"loc": ["body", "x"], "msg": "not an integer"}]}, {"error": "not an integer"}]
)
def test_what_an_error_of_another_shape_says_is_told(name: str, body: dict[str, Any]) -> None:
    with serving(lambda _: Fault(422, body=json.dumps(body))) as api, at(api, name) as backend:
        error = question.run(backend=backend).error()
    assert isinstance(error, BackendError)
    assert "not an integer" in error.message


_CLAUDE_S_ERROR = {"type": "error", "error": {"type": "invalid_request_error", "message": "bad"}}


@pytest.mark.parametrize(
    ("name", "live", "told"),
    [
        (OPENAI, True, {"error": {"type": "invalid_request_error", "message": "bad"}}),
        (CLAUDE, False, _CLAUDE_S_ERROR),
        (CLAUDE, True, _CLAUDE_S_ERROR),
    ],
)
def test_an_error_with_the_status_of_an_answer(name: str, live: bool, told: dict[str, Any]) -> None:
    with serving(lambda body: told) as api, at(api, name) as backend:
        error = question.run(backend=backend, stream=live).error()
        assert isinstance(error, BackendError)
        assert (error.code, len(api.bodies)) == ("SGLC542", 1)
        assert "HTTP 400: bad" in error.message


@pytest.mark.parametrize(("name", "answer"), [(OPENAI, _openai()), (CLAUDE, anthropic_whole("a", _BODY))])
def test_a_server_that_does_not_stream_is_asked_once(name: str, answer: dict[str, Any]) -> None:
    whole = Fault(200, body=json.dumps(answer))
    with serving(lambda body: whole) as api, at(api, name) as backend:
        error = question.run(backend=backend, stream=True).error()
        assert isinstance(error, BackendError)
        assert (error.code, len(api.bodies)) == ("SGLC542", 1)
        assert "all at once" in error.message
        assert "stream=True" in error.hint
    stream = streamed([_delta(delta={"content": "fine"}, finish_reason="stop")])
    stream.headers["content-type"] = "application/json"  # a wrong name is no other answer
    with serving(lambda body: stream) as api, at(api, OPENAI) as backend:
        assert question.run(backend=backend, stream=True)["answer"] == "fine"


@pytest.mark.parametrize("name", [OPENAI, CLAUDE])
def test_a_redirect_to_nowhere_is_asked_once(name: str) -> None:
    with serving(lambda body: Fault(301)) as api, at(api, name) as backend:
        error = question.run(backend=backend).error()
        assert isinstance(error, BackendError)
        assert (error.code, len(api.bodies)) == ("SGLC542", 1)
        assert "HTTP 301" in error.message


def test_a_text_at_the_beginning_of_a_block_of_claude_s() -> None:
    chunks = [
        chunk.replace('"text": ""', '"text": "and "') for chunk in anthropic_chunks("so", _BODY, breaks=False)
    ]
    with serving(lambda body: streamed(chunks)) as api, at(api, CLAUDE) as backend:
        assert question.run(backend=backend, stream=True)["answer"] == "and so"


def test_more_tokens_of_the_cache_than_there_are() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 9}}
    with at_once({**_openai(), "usage": usage}, OPENAI) as result:
        assert result["answer"] == "a"
        assert (result.usage.prompt, result.usage.cached, result.usage.computed) == (5, 5, 0)


def test_choices_that_are_too_many_or_have_no_number() -> None:
    answer = _openai()
    del answer["choices"][0]["index"]
    with at_once(answer, OPENAI) as result:
        assert result["answer"] == "a"
    with at_once({**answer, "choices": _openai()["choices"] + _openai(index=1)["choices"]}, OPENAI) as result:
        error = result.error()
        assert isinstance(error, BackendError)
        assert (error.code, error.hint) == ("SGLC544", "")


@pytest.mark.parametrize("what", STREAMS)
def test_streams_that_go_wrong(what: str) -> None:
    name, chunks, code, requests = STREAMS[what]
    with serving(then_fine(streamed(chunks))) as api, at(api, name) as backend:
        result = question.run(backend=backend, stream=True)
        error = result.error()
        assert (getattr(error, "code", None), len(api.bodies)) == (code, requests)
        if code is None:
            assert result["answer"] == "fine"
            assert result.text().count("fine") == 1


@pytest.mark.parametrize("what", STREAMS)
def test_a_stream_that_is_not_read_to_its_end_is_left_to_no_collection_of_garbage(what: str) -> None:
    def half_read() -> set[int]:
        return {id(one) for one in gc.get_objects() if isinstance(one, AsyncGeneratorType) and one.ag_frame}

    name, chunks, _, _ = STREAMS[what]
    gc.collect()
    gc.disable()
    try:
        with serving(then_fine(streamed(chunks))) as api, at(api, name) as backend:
            before = half_read()
            question.run(backend=backend, stream=True).error()
            until(lambda: half_read() <= before)
    finally:
        gc.enable()


@pytest.mark.parametrize("said", ["abort", "insufficient_system_resource", "", None])
def test_an_answer_that_does_not_say_that_it_is_whole_is_none(said: Any) -> None:
    with serving(then_fine(_openai(finish_reason=said))) as api, at(api, OPENAI) as backend:
        assert question.run(backend=backend)["answer"] == "fine"
        assert len(api.bodies) == 2
    stream = streamed([_delta(delta={"content": ""}), _delta(delta={}, finish_reason=said)])
    with serving(then_fine(stream)) as api, at(api, OPENAI) as backend:
        assert question.run(backend=backend, stream=True)["answer"] == "fine"
        assert len(api.bodies) == 2


@pytest.mark.parametrize("said", ["eos", "eos_token", "stop_sequence", "end_turn"])
def test_an_answer_may_be_whole_in_other_words(said: str) -> None:
    with at_once(_openai(finish_reason=said), OPENAI) as result:
        assert result["answer"] == "a"
        assert result.get_meta_info("answer")["finish_reason"]["type"] == "stop"


def test_an_answer_that_was_broken_off_is_none() -> None:
    with serving(then_fine(_openai(**_BROKE_OFF))) as api, at(api, "openrouter:a/m") as backend:
        assert question.run(backend=backend)["answer"] == "fine"
        assert len(api.bodies) == 2
    with serving(lambda body: _openai(**_BROKE_OFF)) as api, at(api, "openrouter:a/m") as backend:
        assert "HTTP 502: Provider disconnected" in str(question.run(backend=backend).error())


def test_answers_in_mistral_s_words() -> None:
    with at_once(_openai(finish_reason="model_length"), "mistral:mistral-large-latest") as result:
        assert result.get_meta_info("answer")["finish_reason"]["type"] == "length"
    thought = _openai(message={"role": "assistant", "content": _THOUGHT})
    with at_once(thought, "mistral:magistral-medium-latest") as result:
        assert result["answer"] == "fine"


@sgl.tool
def now() -> str:
    """The time."""
    return "noon"


@sgl.function
def timed(s: Any) -> None:
    s += sgl.user("?") + sgl.assistant(sgl.gen("answer", tools=[now]))


@pytest.mark.parametrize("arguments", ["{}", "", None, {}])
def test_a_call_without_arguments(arguments: Any) -> None:
    called = {"id": "1", "type": "function", "function": {"name": "now", "arguments": arguments}}
    answer = _openai(message={"role": "assistant", "content": None, "tool_calls": [called]})
    with serving(lambda body: answer) as api, at(api, OPENAI) as backend:
        (call,) = timed.run(backend=backend)["answer"].calls
    assert (call.name, call.arguments) == ("now", {})


def test_a_call_in_the_older_protocol_s_words() -> None:
    message = {"role": "assistant", "content": None, "function_call": {"name": "now", "arguments": "{}"}}
    answer = _openai(message=message, finish_reason="function_call")
    with serving(lambda body: answer) as api, at(api, OPENAI) as backend:
        (call,) = timed.run(backend=backend)["answer"].calls
    assert (call.name, call.arguments) == ("now", {})


def test_a_call_that_is_cut_off_is_no_text() -> None:
    called = {"id": "1", "type": "function", "function": {"name": "now", "arguments": '{"zone": "Ro'}}
    message = {"role": "assistant", "content": None, "tool_calls": [called]}
    answer = _openai(message=message, finish_reason="length")
    with serving(lambda body: answer) as api, at(api, OPENAI) as backend:
        result = timed.run(backend=backend)
        assert "SGLC545" in str(result.error())
        assert "`now` ended at `max_tokens`" in str(result.error())
        assert len(api.bodies) == 1


@contextmanager
def at_once(answer: Any, name: str) -> Iterator[Any]:
    """The result of one question with this answer."""
    with serving(lambda body: answer) as api, at(api, name) as backend:
        yield question.run(backend=backend)


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("reason", ["pause_turn", "abort", "other"])
def test_a_message_that_ends_for_no_known_reason_is_asked_for_again(reason: str, live: bool) -> None:
    whole = anthropic_whole("a", _BODY)
    odd = (
        streamed(anthropic_chunks("a", _BODY, breaks=False, stop=reason))
        if live
        else {**whole, "stop_reason": reason}
    )
    with serving(lambda body: odd) as api, at(api, CLAUDE) as backend:
        error = question.run(backend=backend, stream=live).error()
    assert isinstance(error, BackendError)
    assert error.code == "SGLC543"
    assert f"broken off: {reason}" in error.message
    assert len(api.bodies) == (1 if live else 4)  # what was handed on is not asked for again


# -- texts of another type -----------------------------------------------------------------------------


MESSAGE = anthropic_whole("a", _BODY)
ODD = [
    ("openai:gpt-4o", _openai(message={"role": "assistant", "content": 7})),
    ("openai:gpt-4o", {**_openai(), "choices": {"0": "a"}}),
    ("openai:gpt-4o", {**_openai(), "choices": ["a"]}),
    (CLAUDE, {**MESSAGE, "content": "a"}),
    (CLAUDE, {**MESSAGE, "content": [{"type": "text", "text": 7}]}),
    (CLAUDE, {**MESSAGE, "usage": {"input_tokens": "many"}}),
    (CLAUDE, {**MESSAGE, "stop_reason": None}),
    (GEMINI, {"candidates": [{"finishReason": "STOP", "content": {"parts": [{"text": 7}]}}]}),
    (GEMINI, {"candidates": "a"}),
    (GEMINI, {"candidates": [{"content": {"parts": [{"text": "a"}]}}]}),
]


@pytest.mark.parametrize(("name", "answer"), ODD)
def test_values_of_another_type(name: str, answer: dict[str, Any]) -> None:
    with serving(lambda body: answer) as api, at(api, name) as backend:
        error = question.run(backend=backend).error()
        assert isinstance(error, BackendError)
        assert (error.code, error.loc is not None, len(api.bodies)) == ("SGLC543", True, 4)
        assert "malformed" in error.message
