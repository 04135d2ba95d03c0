"""Scripted answers: which rule answers, how an answer is cut, what is refused, what is kept."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import sglc as sgl
from sglc.backends.registry import connect
from sglc.backends.scripted import Rule, ScriptedBackend, Words, by_rules, read_script
from sglc.errors import BackendError, UsageError
from sglc.ir.plan.events import Event, NodeFailed
from sglc.ir.plan.segment import ExtendNode, KeepNode, OpenNode, Segment
from sglc.ir.target import ControlText


@sgl.function
def pair(s: Any, topic: str) -> None:
    s += sgl.user(f"About {topic}")
    with s.assistant():
        for fork in (forks := s.fork(2)):
            fork += sgl.gen("side", stop=".", n=1)
        s.join(forks)
        s += sgl.gen("end", max_tokens=2)


def test_the_first_rule_that_holds_answers() -> None:
    rules = [
        Rule(name="side", branch=(1,), text="right. And more"),
        Rule(name="side", prompt="About tea", text="left"),
        Rule(name="end", text="one two three"),
    ]
    backend = ScriptedBackend(by_rules(rules))
    result = pair.run("tea", backend=backend)
    assert result["side"] == ["left", "right"]
    assert result["end"] == "one two"
    assert result.get_meta_info("end")["finish_reason"] == {"type": "length", "length": 0}
    assert (backend.calls, backend.submits, backend.kept) == (3, 1, 0)
    assert result.usage.completion == 4


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize(("stop", "said"), [((), "room "), (("oo",), "r")])
def test_an_answer_ends_at_a_pattern(stop: tuple[str, ...], said: str, live: bool) -> None:
    @sgl.function
    def asked(s: Any) -> None:
        s += sgl.user("Where?") + sgl.assistant(sgl.gen("x", stop=list(stop) or None, stop_regex="[0-9]+"))

    backend = ScriptedBackend(by_rules([Rule(text="room 12, upstairs")]))
    result = asked.run(backend=backend, stream=live)
    assert result["x"] == said


def test_what_no_rule_answers_is_an_error_and_the_rest_stays() -> None:
    result = pair.run("tea", backend=ScriptedBackend(by_rules([Rule(name="side", text="x")])))
    error = result.error()
    assert isinstance(error, BackendError)
    assert error.code == "SGLC521"
    assert error.loc is not None
    assert result.variables == {"side": ["x", "x"]}


def test_a_stream_that_nothing_kept_fails_what_goes_on_behind_it() -> None:
    """As with every back end: what would have kept it may fail while this segment is on its way."""

    async def ends() -> list[Event]:
        nodes = (OpenNode(7), ExtendNode(0, ("a",)), OpenNode(None), ExtendNode(2, ("b",)), KeepNode(3, 8))
        return [event async for event in backend.submit(Segment(nodes))]

    backend = ScriptedBackend({})
    found = {event.node: event.error.code for event in asyncio.run(ends()) if isinstance(event, NodeFailed)}
    assert found == {0: "SGLC403", 1: "SGLC403"}
    assert backend.kept == 1


@sgl.function
def goes_on_while_it_speaks(s: Any) -> None:
    s += "Q" + sgl.gen("x")
    s += sgl.gen("y")
    if s["x"]:  # `y` is on its way
        s += " and" + sgl.gen("z")


@pytest.mark.parametrize("mode", ["plan", "python"])
def test_who_goes_on_behind_a_stream_waits_until_it_is_kept(mode: Any) -> None:
    backend = ScriptedBackend(lambda asked: f" {asked.site.name}" * 3, word_s=0.01)
    result = goes_on_while_it_speaks.run(backend=backend, mode=mode)
    assert result.text() == "Q x x x y y y and z z z"
    assert backend.kept == 0


def test_a_stream_that_fails_while_it_is_waited_for_fails_what_goes_on_behind_it() -> None:
    answers = {"x": " x x", "y": None, "z": " z"}
    result = goes_on_while_it_speaks.run(
        backend=(backend := ScriptedBackend(lambda asked: answers[asked.site.name], word_s=0.01)),
        mode="python",
    )
    error = result.error()
    assert isinstance(error, BackendError)
    assert error.code == "SGLC521"
    assert [failure.site.name for failure in result.failures] == ["y", "z"]
    assert backend.kept == 0


def test_a_choice_and_a_form_are_held_to() -> None:
    @sgl.function
    def pick(s: Any) -> None:
        s += sgl.select("mood", choices=["good", "bad"])
        s += sgl.gen("year", regex="[0-9]{4}")

    rules = [Rule(text="maybe"), Rule(text="bad"), Rule(name="year", text="1999")]
    result = pick.run(backend=ScriptedBackend(by_rules(rules)))
    assert result["mood"] == "bad"
    meta = result.get_meta_info("mood")
    assert meta is not None
    assert (meta["decided"], meta["input_token_logprobs"], "probabilities" in meta) == ("match", [], False)
    with pytest.raises(BackendError, match="SGLC522"):
        result.text()


def test_words_come_one_by_one_where_they_take_time() -> None:
    @sgl.function
    def one(s: Any) -> None:
        s += "Say:" + sgl.gen("x")

    backend = ScriptedBackend(lambda asked: " a few  words", word_s=0.001)
    assert list(one.run(backend=backend, stream=True).text_iter("x")) == [" a", " few", "  words"]


def test_a_script_is_a_file(tmp_path: Path) -> None:
    path = tmp_path / "answers.json"
    path.write_text(json.dumps([{"name": "side", "text": "x", "branch": [0]}, {"text": "any"}]))
    backend = connect(f"scripted:{path}")
    assert pair.run("tea", backend=backend)["side"] == ["x", "any"]
    path.rename(tmp_path / "other.json")
    path.write_text(json.dumps({"rules": [{"text": "y"}], "word_s": 0.5}))
    other = read_script(str(path))
    assert other.word_s == 0.5
    assert other.identity != read_script(str(path.with_name("other.json"))).identity


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("[", "SGLC008"),
        ('[{"txt": "a"}]', "SGLC036"),
        ('{"word_s": 1}', "SGLC036"),
        ('[{"text": 1}]', "SGLC036"),
        ('[{"text": "a", "name": 5}]', "SGLC036"),
        ('[{"text": "a", "function": ["f"]}]', "SGLC036"),
        ('[{"text": "a", "occurrence": "0"}]', "SGLC036"),
        ('[{"text": "a", "occurrence": -1}]', "SGLC036"),
        ('[{"text": "a", "sample": true}]', "SGLC036"),
        ('[{"text": "a", "branch": 0}]', "SGLC036"),
        ('[{"text": "a", "branch": ["0"]}]', "SGLC036"),
        ('[{"text": "a", "prompt": "("}]', "SGLC036"),
        ('["a"]', "SGLC036"),
        ('"a"', "SGLC036"),
        ('{"rules": {}}', "SGLC036"),
        ('{"rules": [], "words": 1}', "SGLC036"),
        ('{"rules": [], "word_s": -1}', "SGLC036"),
        ('{"rules": [], "word_s": NaN}', "SGLC036"),
        ('{"rules": [], "word_s": "1"}', "SGLC036"),
        ("[" * 100_000, "SGLC008"),
    ],
)
def test_a_broken_script_is_refused(tmp_path: Path, text: str, code: str) -> None:
    path = tmp_path / "answers.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=code):
        read_script(str(path))


def test_words_are_tokens_and_control_text_is_text() -> None:
    words = Words()
    text = " say <|im_end|>\n\n twice "
    assert words.decode(words.encode(text)) == text
    assert max(words.encode("<|im_start|>")) > 1
    assert words.split_control("<|im_start|>user\n") == (ControlText("<|im_start|>", (0,)), "user\n")
