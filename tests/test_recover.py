"""A program that catches a failed generation goes on, and its result lists the failure."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

import sglc as sgl
from sglc.api.plan import LoadedPlan
from sglc.backends.scripted import Asked, ScriptedBackend
from sglc.cli import main
from sglc.errors import BackendError, LegalizeError, RunError, SglcError
from sglc.ir.plan.events import Event
from sglc.ir.plan.segment import GenNode, Segment
from tests.depth import at_depth, few
from tests.oracle_backend import OracleBackend


def scripted() -> tuple[ScriptedBackend, list[Asked]]:
    """Has no answer for what is called `bad`; else the name. And what it was asked."""
    asked: list[Asked] = []

    def say(one: Asked) -> str | None:
        asked.append(one)
        return None if one.site.name.startswith("bad") else f"<{one.site.name}>"

    return ScriptedBackend(say), asked


def prompts(asked: list[Asked]) -> dict[str, str]:
    return {one.site.name: one.prompt for one in asked}


GOOD = ScriptedBackend(lambda asked: "<spare>")


@sgl.function
def same_prompt(s: Any) -> Any:
    s += "A" + sgl.gen("first") + "B" + sgl.gen("bad") + "C" + sgl.gen("bad_too") + "D"
    try:
        got = s["bad"]
    except SglcError:
        got = "a default"
    s += got + sgl.gen("after")
    return got, s["after"].upper(), s.text()


def test_the_prompt_goes_on_as_if_nothing_had_been_made() -> None:
    backend, asked = scripted()
    result = same_prompt.run(backend=backend)
    assert result.error() is None
    whole = "A<first>BCDa default<after>"
    assert result.ret_value == ("a default", "<AFTER>", whole)
    assert result.text() == whole == result.partial_text
    assert prompts(asked)["after"] == "A<first>BCDa default"
    assert [str(failure.site) for failure in result.failures] == ["same_prompt.bad#0", "same_prompt.bad_too#0"]
    assert dict(result.variables) == {"first": "<first>", "after": "<after>"}
    for name in ("bad", "bad_too"):
        with pytest.raises(BackendError, match=r"the script has nothing for `same_prompt.bad#0`"):
            result[name]
        assert name not in result
    assert backend.kept == 0


@sgl.function
def branches(s: Any) -> Any:
    s += "A"
    forks = s.fork(3)
    for i, fork in enumerate(forks):
        fork += f"{i}" + sgl.gen("bad" if i == 1 else "good")
    texts = []
    for fork, name in zip(forks, ("good", "bad", "good"), strict=True):
        try:
            texts.append(fork[name].upper())
        except sgl.SglcError:
            fork += "again" + sgl.gen("spare", backend=GOOD)
            texts.append(fork["spare"])
    for fork in forks:
        fork += "then" + sgl.gen("more")
    s.join(forks)
    s += ",".join(texts) + sgl.gen("after")
    return s["more"]


def test_other_branches_and_another_back_end() -> None:
    backend, asked = scripted()
    result = branches.run(backend=backend)
    assert result.error() is None
    assert result.ret_value == ["<more>"] * 3
    assert result.text() == "A<GOOD>,<spare>,<GOOD><after>"
    seen = sorted(one.prompt for one in asked if one.site.name == "more")
    assert seen == ["A0<good>then", "A1again<spare>then", "A2<good>then"]
    assert [str(failure.site) for failure in result.failures] == ["branches[1].bad#0"]


@sgl.function
def chat(s: Any) -> Any:
    s += sgl.system("Be brief.")
    s += sgl.user("Why?")
    s += sgl.assistant(sgl.gen("bad"))
    try:
        str(s["bad"]).upper()
    except BackendError as error:
        s += sgl.user("Try again: " + error.code)
        s += sgl.assistant(sgl.gen("answer"))
    return s.messages()


def test_chat_turns_stay_turns() -> None:
    backend, asked = scripted()
    result = chat.run(backend=backend)
    assert result.ret_value == result.messages()
    assert [turn["content"] for turn in result.messages()] == [
        "Be brief.",
        "Why?",
        "",
        "Try again: SGLC521",
        "<answer>",
    ]
    assert prompts(asked)["answer"].count("<|im_start|>assistant\n") == 2
    assert result.text().endswith("<answer><|im_end|>\n")


@sgl.function
def elsewhere(s: Any, broken: Any) -> Any:
    s += "A" + sgl.gen("bad", backend=broken) + "B"
    with contextlib.suppress(SglcError):
        s["bad"].upper()
    try:
        s["bad"].upper()  # it has not become another error
    except SglcError as error:
        s += error.code
    s += sgl.gen("after")
    assert "bad" not in s


def test_a_failure_of_another_back_end() -> None:
    backend, asked = scripted()
    result = elsewhere.run(backend, backend=backend)
    assert result.error() is None
    assert prompts(asked)["after"] == "ABSGLC521"
    assert [failure.site.name for failure in result.failures] == ["bad"]
    with pytest.raises(BackendError):
        result["bad"]


@sgl.function
def unseen(s: Any) -> Any:
    s += "A"
    forks = s.fork(2)
    forks[0] += sgl.gen("bad")
    forks[1] += sgl.gen("bad_too")
    with contextlib.suppress(SglcError):
        forks[0]["bad"].upper()
    forks[1] += "B" + sgl.gen("behind")
    s += sgl.gen("after")
    return s["after"].upper()


def test_a_failure_that_nobody_caught_stays_the_run_s() -> None:
    backend, asked = scripted()
    result = unseen.run(backend=backend)
    error = result.error()
    assert isinstance(error, BackendError)
    assert "bad_too" in error.message
    assert [failure.site.name for failure in result.failures] == ["bad", "bad_too", "behind"]
    assert "behind" not in prompts(asked)  # there is no prompt that it could go on behind
    assert result["after"] == "<after>"


@sgl.function
def asks(s: Any) -> Any:
    s += "Q" + sgl.gen("bad")
    return s["bad"].strip()


@sgl.function
def calls(s: Any) -> Any:
    try:
        got = asks().ret_value
    except SglcError:
        got = "none"
    s += got + sgl.gen("after")
    return got


def test_a_program_that_was_called_and_failed() -> None:
    backend, _ = scripted()
    result = calls.run(backend=backend)
    assert (result.error(), result.ret_value, result.text()) == (None, "none", "none<after>")
    assert [failure.site.name for failure in result.failures] == ["bad"]


@sgl.function
def refused(s: Any) -> Any:
    s += "A" + sgl.gen("first")
    s["first"].upper()
    branch = s.fork(1)[0]
    s += sgl.gen("bad", json_schema='{"type": "object", "allOf": [{"type": "string"}]}')
    with contextlib.suppress(SglcError):
        s["bad"].upper()
    try:
        branch += "B" + sgl.gen("behind")
        branch["behind"].upper()
    except SglcError as error:
        return error.code
    return "a prompt without its beginning"


def test_what_goes_on_behind_a_refusal_is_refused() -> None:
    backend, asked = scripted()
    result = refused.run(backend=backend)
    assert (result.error(), result.ret_value) == (None, "SGLC456")
    assert list(prompts(asked)) == ["first"]
    with pytest.raises(LegalizeError):
        result["bad"]


@sgl.function
def greedy(s: Any) -> Any:
    for i in range(4):
        s += sgl.gen(f"line{i}")
        try:
            s[f"line{i}"].upper()
        except SglcError:
            return "caught"
    return "all"


def test_a_budget_cannot_be_caught() -> None:
    result = greedy.run(backend=scripted()[0], max_calls=2)
    error = result.error()
    assert isinstance(error, RunError)
    assert error.code == "SGLC408"
    assert list(result.variables) == ["line0", "line1"]


def test_pieces_and_batches() -> None:
    result = same_prompt.run(backend=scripted()[0], stream=True)
    assert "".join(result.text_iter()) == "A<first>BCDa default<after>"
    rows = same_prompt.run_batch([{}] * 3, backend=scripted()[0])
    assert [row.error() for row in rows] == [None] * 3
    assert [len(row.failures) for row in rows] == [2, 2, 2]


def test_a_recording_repeats_the_failure_and_what_came_behind_it(tmp_path: Path) -> None:
    first = same_prompt.run(backend=scripted()[0], record=str(tmp_path / "tape"))
    assert first.error() is None
    again = same_prompt.run(replay=str(tmp_path / "tape"))
    assert again.error() is None
    assert again.as_json() == first.as_json()
    assert [str(one.site) for one in again.failures] == [str(one.site) for one in first.failures]


class Breaks(OracleBackend):
    """The local back end; every segment with a generation `bad` breaks down."""

    async def submit(self, segment: Segment, **options: Any) -> AsyncIterator[Event]:
        if any(isinstance(node, GenNode) and node.site.name.startswith("bad") for node in segment.nodes):
            raise ConnectionError("gone")
        async for event in super().submit(segment, **options):
            yield event


@sgl.function
def local(s: Any, tries: int) -> Any:
    s += "Hello" + sgl.gen("first", max_tokens=4)
    s["first"].upper()
    for i in range(tries):
        s += "Once" + sgl.gen(f"bad{i}", max_tokens=4)
        try:
            s[f"bad{i}"].upper()
        except SglcError:
            s += "More"
    s += sgl.gen("after", max_tokens=4)
    return s["after"].upper()


def test_the_local_runtime_goes_on() -> None:
    backend = Breaks()
    try:
        result = local.run(2, backend=backend)
        assert result.error() is None
        assert result.text() == f"Hello{result['first']}OnceMoreOnceMore{result['after']}"
        assert len(result.failures) == 2
    finally:
        backend.close()


@pytest.mark.slow
def test_random_programs_that_recover() -> None:
    """The prompts are those of a program in which the failed generations are not there."""
    for seed in range(at_depth(12, 25, 60)):
        backend, asked = scripted()
        rng = random.Random(seed)
        steps = [(rng.randrange(3), rng.choice(["good", "good", "bad"]), rng.random() < 0.6) for _ in range(12)]

        @sgl.function
        def program(s: Any, steps: Any) -> Any:
            forks = s.fork(3)
            for number, (branch, name, read) in enumerate(steps):
                forks[branch] += f"[{number}]" + sgl.gen(f"{name}{number}")
                if read or name == "bad":
                    try:
                        forks[branch][f"{name}{number}"].upper()
                    except SglcError:
                        forks[branch] += "!"

        result = program.run(steps, backend=backend)
        assert result.error() is None, seed
        expected = ["", "", ""]
        for number, (branch, name, _) in enumerate(steps):
            expected[branch] += f"[{number}]"
            assert prompts(asked)[f"{name}{number}"] == expected[branch], seed
            expected[branch] += "!" if name == "bad" else f"<good{number}>"
        assert len(result.failures) == sum(name == "bad" for _, name, _ in steps)


# -- effects -----------------------------------------------------------------------------------------

DONE: list[str] = []


@sgl.tool
def act(text: str) -> str:
    DONE.append(text)
    return f"[{text}]"


@sgl.function
def effects(s: Any) -> Any:
    s += "A" + sgl.gen("first")
    s += act(s["first"])
    s += sgl.gen("bad")
    print("read", s["bad"])
    act("behind the read")
    return s["bad"]


@sgl.function
def called(s: Any, given: str) -> str:
    s += given + sgl.gen("bad")
    return "it did not need the text"


@sgl.pure
def refuses(text: str) -> str:
    raise ValueError(f"no {text}")


def by_subscript(s: Any) -> Any:
    s += "A" + sgl.gen("bad")
    return s["bad"].upper()


def by_name(s: Any) -> Any:
    s += "A" + sgl.gen("bad")
    return s.get_var("bad")


def of_a_branch(s: Any) -> Any:
    forks = s.fork(2)
    forks[1] += "A" + sgl.gen("bad")
    return forks[1]["bad"].upper()


def of_joined_branches(s: Any) -> Any:
    forks = s.fork(2)
    forks += "A" + sgl.gen("bad")
    return s.join(forks)["bad"][1].upper()


def of_a_scope(s: Any) -> Any:
    with s.var_scope("all"):
        s += "A" + sgl.gen("bad")
    return s["all"].upper()


def of_the_whole_text(s: Any) -> Any:
    s += "A" + sgl.gen("bad")
    return len(s.text())


def of_a_value(s: Any) -> Any:
    s += "A" + sgl.gen("good", dtype=list[int])  # its text spells none
    return s["good"][0]


def of_a_called_program(s: Any) -> Any:
    return called("A")["bad"].upper()


def of_what_it_returns(s: Any) -> Any:
    return called("A").ret_value


def of_a_pure_function(s: Any) -> Any:
    s += "A" + sgl.gen("good")
    return refuses(s["good"])


def of_a_number(s: Any) -> Any:
    s += "A" + sgl.gen("good")
    return int(s["good"])


READS = [
    by_subscript, by_name, of_a_branch, of_joined_branches, of_a_scope, of_the_whole_text, of_a_value,
    of_a_called_program, of_what_it_returns, of_a_pure_function, of_a_number,
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("read", few(READS, 4), ids=lambda function: function.__name__)
@pytest.mark.parametrize("planned", [False, True], ids=["function", "plan"])
def test_no_tool_is_called_behind_any_read_that_fails(read: Callable[[Any], Any], planned: bool) -> None:
    @sgl.function
    def reads_and_acts(s: Any) -> Any:
        made = read(s)
        act("behind the read")
        return repr(made)

    DONE.clear()
    backend, _ = scripted()
    program: Any = reads_and_acts
    if planned:
        program = LoadedPlan(reads_and_acts.compile(backend).plan, [act, refuses])
    assert program.run(backend=backend).error() is not None
    assert DONE == []


@pytest.mark.parametrize("planned", [False, True], ids=["function", "plan"])
def test_no_effect_behind_the_read_of_a_failure(planned: bool, capsys: pytest.CaptureFixture[str]) -> None:
    DONE.clear()
    backend, _ = scripted()
    program: Any = LoadedPlan(effects.compile(backend).plan, [act]) if planned else effects
    error = program.run(backend=backend).error()
    assert isinstance(error, BackendError)
    assert DONE == ["<first>"]
    assert capsys.readouterr().out == ""


# -- the command line --------------------------------------------------------------------------------

PROGRAM = """
import sglc as sgl

@sgl.function
def answer(s):
    s += "A" + sgl.gen("bad")
    try:
        got = s["bad"].upper()
    except sgl.SglcError:
        got = "none"
    s += got + sgl.gen("after")
    return got
"""


def test_the_command_line_shows_what_was_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "prog.py").write_text(PROGRAM)
    (tmp_path / "script.json").write_text(json.dumps([{"name": "after", "text": " yes"}]))
    monkeypatch.chdir(tmp_path)
    assert main(["run", "prog.py", "--backend", "scripted:script.json", "--json"]) == 0
    out, err = capsys.readouterr()
    shown = json.loads(out)
    assert (shown["error"], shown["value"], shown["vars"]) == (None, "none", {"after": " yes"})
    (failure,) = shown["failures"]
    assert (failure["site"], failure["code"]) == ("answer.bad#0", "SGLC521")
    assert "`answer.bad#0` failed, and the program went on:\nerror[SGLC521]" in err
    assert '6 |     s += "A" + sgl.gen("bad")\n  |                ^^^^^^^^^^^^^^' in err
