"""`http://`: an sglc server as a back end gives what `local` gives, and says what goes wrong."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import sglc as sgl
from sglc.backends.http import http_trouble, llama_wire, server_info, vllm_wire
from sglc.backends.http.http_trouble import address_of, events_of
from sglc.backends.http.http_wire import Choosing, scores
from sglc.backends.http.server_info import model_of
from sglc.backends.local import LocalBackend
from sglc.backends.registry import connect, disconnect
from sglc.backends.remote.text_tokenizer import TextTokenizer
from sglc.backends.retry import Patience
from sglc.cli import main
from sglc.cli.program_file import open_function
from sglc.errors import BackendError, RunError
from sglc.execution.result import Result
from sglc.ir.plan.events import Usage
from tests.constraints.random_tags import holds
from tests.depth import few
from tests.openai_server import Api, Fault
from tests.openai_server import serving as api_serving
from tests.serving import Server, serving

QUICK = Patience(attempts=3, first_wait_s=0.01, longest_wait_s=0.02)
EXAMPLES = Path(__file__).parent.parent / "examples"


CITY = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
CALLS: dict[str, Any] = {
    "type": "structural_tag",
    "format": {
        "type": "tags_with_separator", "separator": " ", "at_least_one": True,
        "tags": [{"type": "tag", "begin": "<call>", "end": "</call>",
                  "content": {"type": "json_schema", "json_schema": CITY}}],
    },
}  # fmt: skip

MADE: list[sgl.RuntimeEndpoint] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """No connection outlives its test."""
    yield
    while MADE:
        MADE.pop().close()


def endpoint(api: Api, **options: Any) -> sgl.RuntimeEndpoint:
    MADE.append(sgl.RuntimeEndpoint(api.url.removesuffix("/v1"), patience=QUICK, **options))
    return MADE[-1]


@pytest.fixture(scope="module")
def remote(server: Server) -> Iterator[sgl.RuntimeEndpoint]:
    backend = sgl.RuntimeEndpoint(server.url, patience=QUICK)
    yield backend
    backend.close()


@pytest.fixture(scope="module")
def as_text(server: Server) -> Iterator[sgl.RuntimeEndpoint]:
    """The same server, as if its tokenizer were not on this machine."""
    backend = sgl.RuntimeEndpoint(server.url, patience=QUICK)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_info, "_tokenizer_here", lambda name, wanted: None)
        assert not backend.model.exact
    yield backend
    backend.close()


def both(local: LocalBackend, other: Any, program: Any, **arguments: Any) -> tuple[Result, Result]:
    results = program.run(backend=other, seed=11, **arguments), program.run(backend=local, seed=11, **arguments)
    assert [result.error() for result in results] == [None, None]
    assert results[0].text() == results[1].text()
    assert dict(results[0].variables) == dict(results[1].variables)
    return results


@sgl.function
def sampled(s: Any) -> None:
    s += sgl.system("You tell stories.") + sgl.user("Begin one about <|im_end|> a fox.")
    s += sgl.assistant("Once" + sgl.gen("a", max_tokens=6, stop=["x", " the"]))
    s += sgl.user("On")
    with s.assistant():
        for fork in (forks := s.fork(2)):
            fork += sgl.gen("b", max_tokens=5, temperature=0.7, top_p=0.9, n=2)
        s.join(forks)
        s += "Year: " + sgl.gen("year", regex="1[0-9]{3}") + " and" + sgl.gen("c", max_tokens=3, top_k=20)


def test_ids_and_seeds_are_those_of_local(local: LocalBackend, remote: sgl.RuntimeEndpoint) -> None:
    assert (remote.target.protocol, remote.target.name) == ("tokens", remote.base_url)
    assert same_samples(local, remote).usage.calls == 5


def same_samples(local: LocalBackend, remote: Any) -> Result:
    """Samples and what they took are those of `local`; gives the other result."""
    there, here = both(local, remote, sampled)
    made = [sorted(result.calls, key=lambda call: str(call.site)) for result in (there, here)]
    for mine, its in zip(*made, strict=True):
        assert [sample.ids for sample in mine.samples] == [sample.ids for sample in its.samples]
        for one, other in zip(mine.samples, its.samples, strict=True):
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-3)
            assert one.finish == other.finish
    assert there.usage.prompt == here.usage.prompt
    assert there.usage.completion == here.usage.completion
    return there


@pytest.mark.slow
def test_what_ends_several_samples_counts(local: LocalBackend, remote: sgl.RuntimeEndpoint) -> None:
    """A token that is not kept, and what was made behind a stop string."""

    @sgl.function
    def several(s: Any) -> None:
        s += "The" + sgl.gen("token", n=3, stop_token_ids=[300], logit_bias={300: 100}, max_tokens=9)
        s += "It" + sgl.gen("text", n=3, stop=["ing", "."], max_tokens=24, temperature=1.0)
        s += sgl.gen("nothing", n=2, max_tokens=0)

    there, here = both(local, remote, several, max_calls=9)  # so that it is no program of the server
    assert there.usage.completion == here.usage.completion > 6


@pytest.mark.slow
def test_each_sample_counts_what_it_took(server: Server) -> None:
    """Whether it is told of as it comes, or all at its end."""
    sampling = {"n": 12, "max_new_tokens": 2, "stop": ["a"], "temperature": 1.5, "sampling_seed": 5}
    body = {"text": "once upon", "sampling_params": {**sampling, "ignore_eos": True}}
    _, whole = server.ask("POST", "/generate", body)
    _, told = server.ask("POST", "/generate", {**body, "stream": True})
    events = [json.loads(line.removeprefix("data: ")) for line in told.split("\n") if "{" in line]
    last = {event["index"]: event for event in events}
    streamed = [(last[place]["text"], last[place]["meta_info"]["completion_tokens"]) for place in range(12)]
    assert [(answer["text"], answer["meta_info"]["completion_tokens"]) for answer in whole] == streamed
    reasons = [answer["meta_info"]["finish_reason"]["type"] for answer in whole]
    assert {"stop", "length"} == {*reasons}
    assert {count for _, count in streamed} == {1, 2}


@pytest.mark.slow
def test_a_text_that_is_cut_says_so(local: LocalBackend, remote: sgl.RuntimeEndpoint) -> None:
    """By its length, or by which stop; one that is held to a form, and ended by neither, is whole."""

    @sgl.function
    def cut(s: Any) -> None:
        s += "The number is "
        s += sgl.gen("long", regex="[0-9]{40}", max_tokens=5, temperature=0)
        s += sgl.gen("stopped", json_schema={"enum": ["one", "two"]}, stop="o", temperature=0)
        s += sgl.gen("pattern", ebnf='root ::= "say " [a-z]{9}', stop_regex=["y.", "q"], temperature=0)
        s += sgl.gen("whole", json_schema={"enum": ["one", "two"]}, stop="z", temperature=0)
        s += sgl.gen("token", stop_token_ids=[300], logit_bias={300: 100}, temperature=0)

    for backend in (local, remote):
        result = cut.run(backend=backend)
        told = {name: result.get_meta_info(name)["finish_reason"] for name in result.variables}
        assert told == {
            "long": {"type": "length", "length": 5},
            "stopped": {"type": "stop", "matched": "o"},
            "pattern": {"type": "stop", "matched": "y."},
            "whole": {"type": "stop"},
            "token": {"type": "stop", "matched": 300},
        }
        assert re.fullmatch("[0-9]{1,39}", result["long"])
        assert result["stopped"] in ('"', '"tw')
        assert result["pattern"] == "sa"
        assert result["whole"] in ('"one"', '"two"')


@pytest.mark.slow
def test_structural_tags_are_those_of_local(local: LocalBackend, remote: sgl.RuntimeEndpoint) -> None:
    @sgl.function
    def asked(s: Any) -> None:
        s += "The weather in Rome:" + sgl.gen("x", structural_tag=CALLS, max_tokens=48, temperature=1.0, seed=5)

    here, there = asked.run(backend=local), asked.run(backend=remote)
    assert there["x"] == here["x"]
    assert holds(CALLS["format"], here["x"])


@pytest.mark.slow
def test_what_gateways_leave_out_goes_beside_it(
    server: Server, local: LocalBackend, remote: sgl.RuntimeEndpoint
) -> None:
    @sgl.function
    def biased(s: Any) -> None:
        s += "The capital of France is"
        s += sgl.gen("a", max_tokens=8, temperature=0, logit_bias={7042: -20.0}, stop_regex=["[.] [A-Z]"])

    both(local, remote, biased)
    asked = {"text": "a", "sampling_params": {"max_new_tokens": 3}, "custom_params": {"stop_regex": [5]}}
    status, said = server.ask("POST", "/generate", asked)
    assert (status, said["error"]["param"]) == (400, "sampling_params.stop_regex.0")


@pytest.mark.parametrize(
    "method", [sgl.token_length_normalized, sgl.greedy_token_selection, sgl.unconditional_likelihood_normalized]
)
def test_choices_are_scored_as_on_local(
    local: LocalBackend, remote: sgl.RuntimeEndpoint, as_text: sgl.RuntimeEndpoint, method: Any
) -> None:
    @sgl.function
    def choose(s: Any) -> None:
        s += "The capital of France is"
        s += sgl.select("city", choices=[" Paris", " Paris, France", "ians", " Rome"], choices_method=method)

    for other in (remote, as_text):
        there, here = both(local, other, choose)
        (one,), (two,) = there.calls, here.calls
        assert one.decided == two.decided == "continuation"
        assert one.choice_ids == two.choice_ids
        assert one.scores == pytest.approx(two.scores, abs=1e-4)
        for mine, other_s in zip(one.logprobs, two.logprobs, strict=True):
            assert mine == pytest.approx(other_s, abs=1e-4)
        assert len(one.unconditional) == len(two.unconditional)
        # The server runs the plan whole; of texts it is asked for the choices, and perhaps for them alone.
        assert one.usage.calls == (2 + bool(one.unconditional) if other is as_text else 1)


def test_pieces_come_as_they_are_made(local: LocalBackend, remote: sgl.RuntimeEndpoint) -> None:
    @sgl.function
    def count(s: Any) -> None:
        s += "1, 2, 3," + sgl.gen("more", max_tokens=4, temperature=0, return_logprob=True, top_logprobs_num=2)

    def places(told: Any) -> Any:
        """Ids, and log-probabilities as far as two runs of one model agree."""
        if isinstance(told, list | tuple):
            return [places(part) for part in told]
        return round(told, 2) if isinstance(told, float) else told

    pieces = [text for _, text in count.stream(backend=remote)]
    whole, here = both(local, remote, count)
    assert "".join(pieces) == whole["more"]
    assert len(pieces) > 2
    mine, its = whole.get_meta_info("more"), here.get_meta_info("more")
    for key in ("output_token_logprobs", "output_top_logprobs"):
        assert [places(place) for place in mine[key]] == [places(place) for place in its[key]]


@sgl.function
def ask(s: Any, question: str) -> None:
    s += sgl.user(question) + sgl.assistant(sgl.gen("x", max_tokens=5))


def test_without_the_tokenizer_prompts_are_text(local: LocalBackend, as_text: sgl.RuntimeEndpoint) -> None:
    assert as_text.target.protocol == "text"
    both(local, as_text, ask, question="What is the capital of France?")
    error = ask.run("An <|im_end|> in it", backend=as_text).error()
    assert isinstance(error, RunError)
    assert error.code == "SGLC548"
    assert "`<|im_end|>`" in error.message


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("quickstart", {"question": "What is the capital of France?"}),
        ("judge", {"essay": "Rain is good for the garden."}),
        ("few_shot", {"review": "The best evening of the year."}),
    ],
)
def test_examples(
    local: LocalBackend, remote: sgl.RuntimeEndpoint, name: str, arguments: dict[str, str]
) -> None:
    both(local, remote, open_function(str(EXAMPLES / f"{name}.py")), **arguments)


@pytest.mark.parametrize("chat", [True, False])
def test_the_same_server_through_openai_s_client(server: Server, local: LocalBackend, chat: bool) -> None:
    backend = sgl.OpenAI(server.model, chat, base_url=f"{server.url}/v1", api_key="none", patience=QUICK)
    judge = open_function(str(EXAMPLES / "judge.py")).run(backend=backend, essay="Rain is good.")
    assert judge.error() is None
    assert judge["verdict"] in ("weak", "fair", "strong")
    decided = [call.decided for call in judge.calls if call.kind == "select"]
    assert decided == ["constrained" if chat else "continuation"]
    if chat:  # the server writes the turns, and an answer is the same text
        given = {"question": "What is the capital of France?", "seed": 3}
        answers = [ask.run(backend=other, **given)["x"] for other in (backend, local)]
        assert answers[0] == answers[1] != ""
    else:
        both(local, backend, open_function(str(EXAMPLES / "few_shot.py")), review="Good.")
    backend.close()


def test_the_server_says_how_it_stands(remote: sgl.RuntimeEndpoint) -> None:
    assert sgl.get_server_info(remote)["model"] == "smollm2"
    sgl.flush_cache(remote)


def test_by_name(server: Server) -> None:
    @sgl.function
    def short(s: Any) -> None:
        s += "a" + sgl.gen("x", max_tokens=1)

    assert short.run(backend=server.url).error() is None
    assert connect(server.url) is connect(server.url)
    disconnect()


def test_no_server_and_no_such_server() -> None:
    for url in ("http://127.0.0.1:9", "http://not a host"):
        with pytest.raises(BackendError, match="SGLC547"):
            _ = sgl.RuntimeEndpoint(url).target


@pytest.mark.slow
def test_a_scripted_server_answers_too(tmp_path: Path) -> None:
    @sgl.function
    def ask(s: Any) -> None:
        s += sgl.user("Hi") + sgl.assistant(sgl.gen("x"))

    script = tmp_path / "answers.json"
    script.write_text(json.dumps([{"prompt": "Hi", "text": "Hello there."}]))
    with serving("--model", f"scripted:{script}", "--api-key", "secret") as server:
        backend = sgl.RuntimeEndpoint(server.url, api_key="secret")
        assert ask.run(backend=backend)["x"] == "Hello there."
        backend.close()
        with pytest.raises(BackendError, match="HTTP 401") as refused:
            _ = sgl.RuntimeEndpoint(server.url).target
        assert "`SGLC_API_KEY`" in refused.value.hint


@pytest.mark.slow
def test_a_key_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """For commands, and for objects that were given none. No error shows what stands there."""
    (tmp_path / "prog.py").write_text(
        "import sglc as sgl\n"
        "@sgl.function\n"
        "def ask(s):\n"
        "    s += sgl.user('Hi') + sgl.assistant(sgl.gen('x'))\n"
    )
    (tmp_path / "answers.json").write_text(json.dumps([{"prompt": "Hi", "text": "Hello there."}]))
    program = f"{tmp_path}/prog.py:ask"
    with serving("--model", f"scripted:{tmp_path}/answers.json", "--api-key", "secret") as server:
        monkeypatch.setenv("SGLC_API_KEY", "secret")
        assert main(["run", program, "--backend", server.url]) == 0
        assert "Hello there." in capsys.readouterr().out
        assert sgl.RuntimeEndpoint(server.url).model.name
        with pytest.raises(BackendError, match="HTTP 401"):
            _ = sgl.RuntimeEndpoint(server.url, api_key="another").target
        disconnect()
        for wrong, status in (("wrong-one", 1), ("two words", 2)):
            monkeypatch.setenv("SGLC_API_KEY", wrong)
            assert main(["run", program, "--backend", server.url]) == status
            said = capsys.readouterr().err
            assert "`SGLC_API_KEY`" in said
            assert wrong not in said
        disconnect()


@sgl.function
def greet(s: Any, name: str = "you") -> None:
    s += sgl.user(f"Greet {name}") + sgl.assistant(sgl.gen("x", stop=["!"]))


@pytest.mark.parametrize(
    "fault", few([Fault(429, {"retry-after": "0.01"}), Fault(500), Fault(0, said="half")], 1)
)
@pytest.mark.parametrize("live", [False, True])
def test_faults_that_pass_are_tried_again_and_counted(fault: Fault, live: bool) -> None:
    left = [fault, fault]
    with api_serving(lambda body: left.pop() if left else "Hello you") as api:
        backend = endpoint(api, chat_template_name="chatml")
        result = greet.run(backend=backend, stream=live)
        assert result["x"] == "Hello you"
        assert result.usage == Usage(prompt=4, cached=1, computed=3, completion=2, calls=3)
        assert {body["text"] for body in api.bodies} == {
            "<|im_start|>user\nGreet you<|im_end|>\n<|im_start|>assistant\n"
        }
        assert api.bodies[-1]["sampling_params"]["stop"] == ["!", "<|im_end|>"]


def so_far(*texts: str) -> Fault:
    """A stream of SGLang's, with these texts in its chunks."""
    chunks = [
        {"text": text, "meta_info": {"finish_reason": {"type": "stop"} if number == len(texts) else None}}
        for number, text in enumerate(texts, 1)
    ]
    body = "".join(f"data: {json.dumps(chunk, ensure_ascii=False)}\r\n\r\n" for chunk in chunks)
    return Fault(200, {"content-type": "text/event-stream"}, body=f"{body}data: [DONE]\r\n\r\n")


@pytest.mark.parametrize(
    ("sent", "pieces"),
    [
        # Line ends of Unicode's are none of the protocol's.
        (["one", "one\u2028two\x85th", "one\u2028two\x85three"], ["one", "\u2028two\x85th", "ree"]),
        (["foo", "foo <|im", "foo "], ["foo", " "]),  # the beginning of a stop is taken back
        (["a ", "a <|im", "a <|im_port"], ["a ", "<|im_port"]),  # it was none
        (["a <", "a <b", "a <b>"], ["a ", "<b", ">"]),
    ],
)
def test_a_stream_s_pieces_are_its_text(sent: list[str], pieces: list[str]) -> None:
    with api_serving(lambda body: so_far(*sent)) as api:
        result = greet.run(backend=endpoint(api, chat_template_name="chatml"), stream=True)
        assert list(result.text_iter("x")) == pieces
        assert result["x"] == "".join(pieces)


def test_a_stream_that_has_only_what_is_new_is_refused() -> None:
    with api_serving(lambda body: so_far("foo ", "barbaz ", "qux")) as api:
        error = greet.run(backend=endpoint(api), stream=True).error()
        assert isinstance(error, BackendError)
        assert (error.code, len(api.bodies)) == ("SGLC544", 1)


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_lines_of_a_stream_end_where_they_do_however_they_come(size: int) -> None:
    sent = 'data: "é\u2028"\r\n\r\ndata:2\n\nevent: x\rdata: 3\r\rdata: [DONE]'.encode()

    class Response:
        async def aiter_bytes(self) -> AsyncIterator[bytes]:
            for at in range(0, len(sent), size):
                yield sent[at : at + size]

    async def read() -> list[str]:
        return [data async for data in events_of(Response())]

    assert asyncio.run(read()) == ['"é\u2028"', "2", "3", "[DONE]"]


def test_a_long_line_of_a_stream_is_looked_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[int] = []

    class Counting:
        def split(self, data: bytes) -> list[bytes]:
            looked_at.append(len(data))
            return data.split(b"\n")

    class Response:
        async def aiter_bytes(self) -> AsyncIterator[bytes]:
            yield b"data:"
            for _ in range(50):
                yield b"x" * 100
            yield b"\n"

    async def read() -> list[str]:
        return [data async for data in events_of(Response())]

    monkeypatch.setattr(http_trouble, "_LINE_END", Counting())
    assert asyncio.run(read()) == ["x" * 5000]
    assert sum(looked_at) == 5006


def test_an_address_is_shown_without_its_password() -> None:
    assert address_of("http://me:a@b@127.0.0.1:1/v1/") == "http://127.0.0.1:1/v1"


@pytest.mark.parametrize(
    "answer",
    few(
        [
            {"text": None, "meta_info": {"finish_reason": {"type": "stop"}}},
            {"text": "x", "meta_info": None},
            {"text": "x", "meta_info": {"finish_reason": "stop"}},
            {"text": "x", "meta_info": {"finish_reason": {"type": "stop"}, "prompt_tokens": "many"}},
            {"text": "x"},
        ],
        2,
    ),
)
@pytest.mark.parametrize("live", [False, True])
def test_an_answer_of_another_shape_is_asked_for_again(answer: Any, live: bool) -> None:
    sent = {"content-type": "text/event-stream"} if live else {"content-type": "application/json"}
    body = f"data: {json.dumps(answer)}\n\ndata: [DONE]\n\n" if live else json.dumps(answer)
    left = [Fault(200, sent, body=body)]
    with api_serving(lambda body: left.pop() if left else "Hello") as api:
        result = greet.run(backend=endpoint(api), stream=live)
        assert (result["x"], result.usage.calls) == ("Hello", 2)


def test_an_error_told_in_a_stream_is_tried_again_by_its_status() -> None:
    def told(code: int) -> Fault:
        error = {"error": {"message": "too long", "type": "BadRequestError", "code": code}}
        return Fault(200, {"content-type": "text/event-stream"}, body=f"data: {json.dumps(error)}\n\n")

    with api_serving(lambda body: told(400)) as api:
        error = greet.run(backend=endpoint(api), stream=True).error()
        assert isinstance(error, BackendError)
        assert (error.code, len(api.bodies)) == ("SGLC542", 1)
        assert "HTTP 400: too long" in error.message
    left = [told(503)]
    with api_serving(lambda body: left.pop() if left else "Hello") as api:
        assert greet.run(backend=endpoint(api), stream=True)["x"] == "Hello"


@pytest.mark.parametrize("info", [{"concurrency": "many"}, {"control_tokens": 7}, {"special_tokens": "a"}])
def test_a_server_that_says_something_odd_of_itself_is_refused(info: dict[str, Any]) -> None:
    with api_serving(lambda body: "Hello") as api:
        api.model_info.update(info)
        with pytest.raises(BackendError, match=r"SGLC547.*of itself is malformed"):
            greet.run(backend=endpoint(api)).sync()


def test_no_password_of_an_address_is_shown() -> None:
    backend = sgl.RuntimeEndpoint("http://me:secret@127.0.0.1:1")
    with pytest.raises(BackendError, match="SGLC547") as caught:
        greet.run(backend=backend)
    assert "`http://127.0.0.1:1`" in str(caught.value)
    assert "secret" not in f"{caught.value}{backend!r}"


def test_retries_are_bounded_and_a_batch_goes_on() -> None:
    with api_serving(lambda body: Fault(503) if "bad" in body["text"] else "Hello") as api:
        backend = endpoint(api, concurrency=2)
        results = greet.run_batch([{"name": name} for name in ("one", "bad", "two")], backend=backend)
        assert [result.variables for result in results] == [{"x": "Hello"}, {}, {"x": "Hello"}]
        error = results[1].error()
        assert isinstance(error, BackendError)
        assert (error.code, error.note) == ("SGLC543", "3 attempts")
        assert len(api.bodies) == 5
        assert api.most_in_flight <= 2


@pytest.mark.slow
def test_pictures_go_beside_the_prompt_to_a_server_whose_model_sees() -> None:
    picture = "data:image/png;base64,iVBORw0KGgo="

    @sgl.function
    def look(s: Any, word: str = "What") -> None:
        s += sgl.user(sgl.image(picture) + f"{word} is this?") + sgl.assistant(sgl.gen("x"))

    @sgl.function
    def choose(s: Any) -> None:
        s += sgl.user(sgl.image(picture) + "Which?") + sgl.assistant(sgl.select("x", choices=["a", "b"]))

    def answer(body: dict[str, Any]) -> Any:
        if not isinstance(body["text"], list):
            return "A dot"
        told = [[(None, 1, None), (-1.0, 2, None), (-0.5 * n, 3 + n, None)][: 3 if n else 2] for n in range(3)]
        return [{"text": "", "meta_info": {"prompt_tokens": 2, "input_token_logprobs": own}} for own in told]

    with api_serving(answer) as api:
        api.model_info = {"model_path": "some/qwen2-vl", "has_image_understanding": True}
        backend = endpoint(api, chat_template_name="qwen2-vl")
        assert look.run(backend=backend)["x"] == "A dot"
        assert api.bodies[0]["image_data"] == [picture]
        mark = "<|vision_start|><|image_pad|><|vision_end|>"
        assert f"user\n{mark}What is this?<|im_end|>" in api.bodies[0]["text"]
        assert "SGLC548" in str(look.run(mark, backend=backend).error())
        assert choose.run(backend=backend)["x"] == "a"
        assert api.bodies[-1]["image_data"] == [[picture]] * 3
        api.model_info = {"model_path": "some/qwen"}
        assert "SGLC308" in str(look.run(backend=endpoint(api, chat_template_name="chatml")).error())


def test_prompts_that_begin_alike_have_one_routing_key() -> None:
    @sgl.function
    def ask(s: Any, question: str) -> None:
        s += "Lamps are to be kept dry. " * 4 + question + sgl.gen("a") + "\n" + sgl.gen("b")

    @sgl.function
    def other(s: Any, question: str) -> None:
        s += "Lamps are to be kept cool. " * 4 + question + sgl.gen("a")

    @sgl.function
    def short(s: Any, question: str) -> None:
        s += "Say: " + question + sgl.gen("a")

    with api_serving(lambda body: "ok") as api:
        backend = endpoint(api)
        ask.run_batch([{"question": "Why?"}, {"question": "When?"}], backend=backend)
        assert other.run("Why?", backend=backend)["a"] == "ok"
        assert short.run("Why?", backend=backend)["a"] == "ok"
        keys = [headers.get("x-smg-routing-key") for headers in api.headers[-6:]]
        assert len(set(keys[:4])) == 1
        assert keys[0]
        assert keys[4]
        assert keys[4] != keys[0]
        assert keys[5] is None


# -- without a server ------------------------------------------------------------------------------


def test_a_server_of_sglang_s_gets_its_known_template() -> None:
    model = model_of({"model_path": "some/chatml"}, "chatml")
    assert (model.exact, model.own, model.stops) == (False, False, ("<|im_end|>",))
    assert isinstance(model.tokenizer, TextTokenizer)
    turns = [{"role": "user", "content": "Hi"}]
    assert (
        model.tokenizer.render(turns, generate=True)
        == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    with pytest.raises(BackendError, match="SGLC547"):
        model_of({}, None)


Told = list[list[tuple[float | None, int, str | None]]]


def scored(asked: Choosing, told: Told) -> Any:
    return scores(asked, [{"text": "", "meta_info": {"input_token_logprobs": own}} for own in told])


def test_log_probabilities_are_read_whatever_their_values() -> None:  # B17
    exact = Choosing({}, 1, ((5,), (6, 7)))
    assert scored(exact, [[(0.0, 5, None)], [(-1.0, 6, None), (0.0, 7, None)]]).logprobs == (
        (0.0,),
        (-1.0, 0.0),
    )
    with pytest.raises(BackendError, match="SGLC544"):
        scored(exact, [[(None, 5, None)], [(-1.0, 6, None), (0.0, 7, None)]])
    with pytest.raises(BackendError, match="SGLC544"):
        scored(exact, [[(0.0, 8, None)], [(-1.0, 6, None), (0.0, 7, None)]])
    # A prompt of one token, and a choice that merges with it: the window has to begin before it.
    text = Choosing({}, 0)
    assert scored(text, [[(None, 1, None)], [(None, 1, None), (-2.0, 2, None)]]).ids == ((2,),)
    with pytest.raises(RunError, match="SGLC402"):
        scored(text, [[(None, 1, None)], [(None, 3, None)]])
    assert scored(Choosing({}, 4), [[(-1.0, 1, None)], [(-1.0, 3, None)]]) is None


@pytest.mark.parametrize("more", [{"top_logprobs_num": 2}, {"return_text_in_logprobs": True}])
@pytest.mark.parametrize(("wire", "engine"), [(vllm_wire, "vLLM"), (llama_wire, "llama.cpp")])
def test_what_is_not_read_from_other_engines_is_refused(more: dict[str, Any], wire: Any, engine: str) -> None:
    model = server_info.ServerModel("m", TextTokenizer("", {}, (), ""), True, False, 2, True)
    body = {"input_ids": [1], "sampling_params": {"max_new_tokens": 1}, "return_logprob": True}
    assert len(wire.asked({**body, "logprob_start_len": -1}, model)) == 1
    with pytest.raises(BackendError, match=f"not read from a {engine} server"):
        wire.asked({**body, "logprob_start_len": -1, **more}, model)
