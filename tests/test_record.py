"""Runs are recorded, and replayed exactly, in this process and in others, without a model and without tools."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import sglc as sgl
from sglc.api.plan import LoadedPlan
from sglc.backends.local import LocalBackend
from sglc.backends.scripted import Asked, ScriptedBackend
from sglc.cli import main
from sglc.cli.program_file import open_function
from sglc.errors import BackendError, RunError, UsageError
from sglc.execution.answers import prompts
from sglc.execution.result import Result
from sglc.ir.plan.segment import Segment
from sglc.ir.text.printer import from_text, to_text
from sglc.observe.observer import open_observer
from sglc.observe.replay import calls, player, tape
from sglc.observe.replay.tape import FILE, read_tape
from sglc.observe.replay.writer import Writer
from sglc.passes.compile import compile_program
from tests.depth import at_depth, few
from tests.openai_server import serving
from tests.oracle_backend import OracleBackend
from tests.random_programs import ARGS, random_program
from tests.serving import serving as server_of
from tests.test_plan_run import Recorded, begun, plain

ROOT = Path(__file__).parent.parent
NUMBERS = count()


class Refusing:
    """A back end that nothing may be asked of."""

    def __getattr__(self, name: str) -> Any:
        if name == "refusal":  # the mark of one that cannot be named
            raise AttributeError
        raise AssertionError(f"`{name}` of the back end is used")


REFUSING: Any = Refusing()


def echoing(asked: Asked) -> str:
    """Every prompt, site and sample has its own answer."""
    if asked.choices:
        return asked.choices[len(asked.prompt) % len(asked.choices)]
    return f"{asked.site.name}{asked.sample} of {len(asked.prompt)} {sum(map(ord, asked.prompt)) % 997}"


def both(program: sgl.Function, folder: Path, backend: Any = None, **arguments: Any) -> tuple[Any, Any]:
    """A run that is recorded, and its replay."""
    chosen = ScriptedBackend(echoing) if backend is None else backend
    first = program.run(backend=chosen, record=str(folder), **arguments).sync()
    again = program.run(backend=REFUSING, replay=str(folder), **arguments).sync()
    return first, again


def same(first: Any, again: Any) -> None:
    assert json.dumps(again.as_json()) == json.dumps(first.as_json())
    assert sorted(again.calls, key=lambda call: str(call.site)) == sorted(
        first.calls, key=lambda call: str(call.site)
    )
    assert again.messages() == first.messages() if first.error() is None else True


# -- what programs do --------------------------------------------------------------------------------


CALLED: list[str] = []
RUNNING: list[Callable[[], None]] = []


@sgl.tool
def lookup(query: str) -> str:
    CALLED.append(query)
    return f"fact {len(CALLED)}"


@sgl.tool
def divide(a: int, b: int) -> Any:
    CALLED.append("divide")
    return (a // b, {"is": [a, None, 0.5]})


@sgl.pure
def shout(text: str) -> str:
    CALLED.append("shout")
    return text.upper()


@sgl.tool
async def later(text: str) -> str:
    CALLED.append("later")
    await asyncio.sleep(0.001)
    return text + "!"


@sgl.tool
def unrecordable() -> Any:
    return {1, 2}


@sgl.tool
def nesting(text: str) -> str:
    """Asks a model of its own accord: what happens inside of a tool is in no recording."""
    return helper.run(text)["h"] + lookup(text)


@sgl.function
def helper(s: Any, text: str) -> None:
    s += text + sgl.gen("h")


@sgl.function
def chain(s: Any, q: str) -> None:
    s += sgl.system("Be brief.") + sgl.user(q) + sgl.assistant(sgl.gen("a"))
    s += sgl.user("Why?") + sgl.assistant(sgl.gen("b", stop="\n"))


@sgl.function
def forked(s: Any, q: str) -> str:
    s += "Q: " + q
    forks = s.fork(3)
    for number, branch in enumerate(forks):
        branch += f" tip {number}:" + sgl.gen("tip", n=2 if number == 1 else 1)
    forks.join()
    s += " best:" + sgl.select("best", ["one", "three"])
    return s["best"] + str(s["tip"])


@sgl.function
def observing(s: Any, q: str) -> Any:
    s += q
    for name in ("a", "b", "c"):
        s += sgl.gen(name)
        if "997" in s[name]:
            s += "never"
    return s.get_meta_info("b")


@sgl.function
def tooled(s: Any, q: str) -> Any:
    s += q + sgl.gen("a")
    facts = [lookup(s["a"]), lookup(s["a"]), shout(q), shout(q)]
    s += "".join(facts) + sgl.gen("b")
    try:
        divide(1, 0)
    except ZeroDivisionError as error:
        s += f" caught {error}"
    return [divide(7, 2), nesting(q)]


@sgl.function
def calling(s: Any, q: str) -> Any:
    first = helper.run(q)
    second = helper.run(first["h"])
    third = [result["h"] for result in helper.run_batch([{"text": q}, {"text": "x"}])]
    s += second["h"] + sgl.gen("a")
    return third


@sgl.function
async def awaiting(s: Any, q: str) -> Any:
    s += q + sgl.gen("a")
    texts = await asyncio.gather(later("x"), later("y"))
    s += "".join(texts) + sgl.gen("b")
    return texts


OTHER = ScriptedBackend(lambda asked: "from the other one")


@sgl.function
def elsewhere(s: Any, q: str) -> None:
    s += q + sgl.gen("a") + sgl.gen("b", backend=OTHER)


@sgl.function
def failing(s: Any, q: str) -> None:
    forks = s.fork(2)
    forks[0] += q + sgl.gen("a", regex="[0-9]+")
    forks[1] += q + sgl.gen("b")
    forks.join()


@sgl.function
def raising(s: Any, q: str) -> None:
    s += q + sgl.gen("a")
    raise ValueError(s["a"])


@sgl.function
def together(s: Any, q: str) -> Any:
    helped, chained = sgl.run_together([(helper, [{"text": q}, {"text": "x"}]), (chain, [{"q": "y"}])])
    s += chained[0]["b"] + sgl.gen("a")
    return [result["h"] for result in helped]


PROGRAMS = (chain, forked, observing, tooled, calling, together, awaiting, elsewhere, failing, raising)


@pytest.mark.parametrize("program", few(PROGRAMS, 5), ids=lambda program: program.__name__)
def test_a_replay_is_the_run_again(program: sgl.Function, tmp_path: Path) -> None:
    backend = ScriptedBackend(echoing)
    sgl.set_default_backend(backend)  # of what calls programs by itself
    first = program.run(q="why", seed=7, record=str(tmp_path)).sync()
    sgl.set_default_backend(REFUSING)
    called, other = len(CALLED), OTHER.calls
    again = program.run(q="why", replay=str(tmp_path)).sync()
    sgl.set_default_backend(None)
    same(first, again)
    assert (first.error() is None) == (program not in (failing, raising))
    assert backend.calls + other
    assert len(CALLED) == called, "a tool was called again"
    assert OTHER.calls == other


def test_what_tools_raise_and_return_comes_back_as_it_was(tmp_path: Path) -> None:
    first, again = both(tooled, tmp_path, q="why")
    assert again.ret_value == first.ret_value
    assert again.ret_value[0] == (3, {"is": [7, None, 0.5]})
    assert " caught integer" in again.text()


@pytest.mark.parametrize("mode", ["auto", "python"])
def test_what_a_tool_raises_is_where_it_was_raised(mode: Any, tmp_path: Path) -> None:
    @sgl.tool
    def raises(text: str) -> str:
        said = "é"; raise LookupError(said + text)  # fmt: skip  # noqa: E702

    @sgl.function
    def program(s: Any) -> None:
        s += "q" + sgl.gen("a")
        s += raises(s["a"])

    first, again = both(program, tmp_path, mode=mode)
    same(first, again)
    assert first.as_json()["error"]["code"] == "LookupError"
    resumed = program.run(backend=ScriptedBackend(echoing), record=str(tmp_path), resume=True, mode=mode).sync()
    assert resumed.as_json()["error"] == first.as_json()["error"]
    assert traceback.extract_tb(again.error().__traceback__)[-1].line.startswith('said = "é"; raise')


def test_a_value_that_json_cannot_hold_is_refused_when_it_is_recorded(tmp_path: Path) -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += "x"
        unrecordable()

    error = program.run(backend=ScriptedBackend(echoing), record=str(tmp_path)).error()
    assert isinstance(error, RunError)
    assert error.code == "SGLC424"


@dataclass
class Town:
    name: str
    large: bool


@sgl.function
def typed(s: Any) -> Any:
    s += "A town: " + sgl.gen("town", dtype=Town)
    s += f"{s['town'].name} is nice." + sgl.gen("why")
    return s["town"]


@pytest.mark.parametrize("mode", ["auto", "python"])
def test_typed_values_are_read_again(mode: Any, tmp_path: Path) -> None:
    backend = ScriptedBackend(lambda asked: '{"name": "Rome", "large": true}')
    first, again = both(typed, tmp_path, backend, mode=mode)
    assert again.ret_value == first.ret_value == Town("Rome", large=True)
    assert again.text() == first.text()


def test_pieces_of_a_replay_add_up(tmp_path: Path) -> None:
    first = chain.run("why", backend=ScriptedBackend(echoing, word_s=0.001), record=str(tmp_path), stream=True)
    first.sync()
    again = chain.run("why", backend=REFUSING, replay=str(tmp_path), stream=True)
    assert "".join(again.text_iter()) == "".join(first.text_iter()) == first.text()
    assert list(again.text_iter("a")) == [first["a"]]


@pytest.mark.parametrize("again", [{}, {"passes": ["-unify"]}, {"mode": "python"}])
def test_a_recording_with_other_passes_is_replayed(again: Any, tmp_path: Path) -> None:
    asked, other = ScriptedBackend(echoing), ScriptedBackend(lambda asked: "something else")
    first = chain.run("why", backend=asked, record=str(tmp_path), passes="-unify").sync()
    assert chain.run("why", backend=other, replay=str(tmp_path), **again).text() == first.text()
    (row,) = chain.run_batch([("why",)], backend=other, replay=str(tmp_path), **again)
    assert row.text() == first.text()


def test_scores_and_log_probabilities_come_back(tmp_path: Path) -> None:
    backend = OracleBackend()

    @sgl.function
    def program(s: Any) -> Any:
        s += "pick" + sgl.select("x", ["yes", "no"])
        s += sgl.gen("y", max_tokens=4, return_logprob=True, top_logprobs_num=2, n=2, ignore_eos=True)
        return [s.get_meta_info("x"), s.get_meta_info("y")]

    first, again = both(program, tmp_path, backend)
    same(first, again)
    assert again.ret_value[0]["normalized_prompt_logprobs"]
    assert again.ret_value[1]["output_top_logprobs"]
    backend.close()


@pytest.mark.slow
def test_a_thousand_rows(tmp_path: Path) -> None:
    rows = [{"q": f"row {number}"} for number in range(1000)]
    first = forked.run_batch(rows, backend=ScriptedBackend(echoing), record=str(tmp_path))
    again = forked.run_batch(rows, backend=REFUSING, replay=str(tmp_path))
    assert [one.as_json() for one in again] == [one.as_json() for one in first]
    assert len({one.text() for one in again}) > 900
    assert len(read_tape(tmp_path).rows) == 1000


class Nowhere(ScriptedBackend):
    """A server that is not there."""

    @property
    def target(self) -> Any:  # type: ignore[override]
        raise BackendError("SGLC547", "no server answers")


def test_failures_that_come_from_outside_are_replayed(tmp_path: Path) -> None:
    """A back end that says nothing, a budget, and a run that was stopped while its Python ran."""
    slow = ScriptedBackend(echoing)

    @sgl.function
    def stopping(s: Any) -> None:
        s += "x" + sgl.gen("a")
        if s["a"]:
            RUNNING[-1]()
        s += "y" + sgl.gen("b")

    RUNNING.append(lambda: None)
    cases: list[tuple[sgl.Function, Any, dict[str, Any], str]] = [
        (helper, Nowhere(echoing), {"text": "x"}, "SGLC547"),
        (forked, slow, {"q": "x", "max_calls": 2}, "SGLC408"),
        (stopping, slow, {}, "SGLC407"),
    ]
    for number, (program, backend, arguments, code) in enumerate(cases):
        folder = tmp_path / str(number)
        if program is stopping:
            first = program.run(backend=ScriptedBackend(echoing, word_s=0.05), record=str(folder), seed=1)
            RUNNING.append(first.stop)
            first.sync()
            RUNNING.append(lambda: None)
            again = program.run(backend=REFUSING, replay=str(folder)).sync()
        else:
            first, again = both(program, folder, backend, **arguments)
        error: Any = first.error()
        assert error.code == code
        if program is not stopping:
            same(first, again)
            continue
        error = again.error()  # its text has what stands in front of the step that was never taken
        assert (error.code, again.usage, again.variables) == (code, first.usage, first.variables)


# -- what differs --------------------------------------------------------------------------------------


SOURCE = """\
import sglc as sgl


@sgl.tool
def fetch(name: str) -> str:
    return name * 2


@sgl.function
def ask(s, q):
    s += "Q: " + q + "\\n"
    s += "A:" + sgl.gen("a", max_tokens=8)
    s += " so" + sgl.gen("b", max_tokens=8)
    s += fetch(s["b"])
    s += " then" + sgl.select("c", ["yes", "no"])
"""


def changed(tmp_path: Path, old: str, new: str, row: int = 0) -> RunError:
    """The error of a row of `ask`, recorded as it is and replayed with a change."""
    path = tmp_path / f"ask_{next(NUMBERS)}.py"  # modules have names of their own, and so have their tools
    path.write_text(SOURCE)
    folder = str(tmp_path / "r")
    rows = [{"q": "x"}, {"q": "y"}]
    good = open_function(str(path)).run_batch(rows, backend=ScriptedBackend(echoing), record=folder)
    assert [result.error() for result in good] == [None, None]
    path.write_text(SOURCE.replace(old, new))
    os.utime(
        path, (0, 0)
    )  # another time of change: Python's own cache tells sources by that and by their length
    results = open_function(str(path)).run_batch(rows, backend=REFUSING, replay=folder)
    error = results[row].error()
    assert isinstance(error, RunError)
    return error


STEPS = [  # what is written in another way, and what a replay says of it
    ('"Q: "', '"Question: "', "SGLC420", 12, "Question: x"),
    ('" so"', '" so then"', "SGLC420", 13, "site `ask.b#0`"),
    ('gen("b", max_tokens=8)', 'gen("b", max_tokens=9)', "SGLC420", 13, "`max_tokens` was 8 and is 9"),
    ('gen("b", max_tokens=8)', 'gen("b", max_tokens=8, stop="x")', "SGLC420", 13, "`stop` was None"),
    ('["yes", "no"]', '["no", "yes"]', "SGLC420", 15, "`choices` was ['yes', 'no'] and is ['no', 'yes']"),
    ('gen("a"', 'gen("aa"', "SGLC421", 12, "it has: `ask.a#0`, `ask.b#0`, `ask.c#0`"),
    ('fetch(s["b"])', 'fetch(s["a"])', "SGLC425", 14, 'recorded: ("b0'),
    ('fetch(s["b"])', 'fetch(s["b"]) + fetch("x")', "SGLC421", 14, '("x")'),
    ('    s += " then" + sgl.select("c", ["yes", "no"])\n', "", "SGLC422", 0, ".py:15"),
]


@pytest.mark.parametrize(("old", "new", "code", "line", "said"), few(STEPS, 3))
def test_the_first_step_that_differs_is_named(
    tmp_path: Path, old: str, new: str, code: str, line: int, said: str
) -> None:
    error = changed(tmp_path, old, new)
    assert error.code == code
    assert (error.loc.line if error.loc else 0) == line
    assert said in error.note + error.message
    assert error.hint


def test_text_that_looks_like_markup_is_another_prompt(tmp_path: Path) -> None:
    marked, spelt = (
        'sgl.user("x") + sgl.assistant(sgl.gen("a", max_tokens=8))',
        '"<|im_start|>user\\nx<|im_end|>\\n<|im_start|>assistant\\n" + sgl.gen("a", max_tokens=8)',
    )
    source = SOURCE.replace('"A:" + sgl.gen("a", max_tokens=8)', marked).replace(
        '    s += "Q: " + q + "\\n"\n', ""
    )
    (tmp_path / "ask.py").write_text(source)
    folder = str(tmp_path / "r")
    open_function(str(tmp_path / "ask.py")).run("x", backend=ScriptedBackend(echoing), record=folder).sync()
    (tmp_path / "ask.py").write_text(source.replace(marked, spelt))
    error = open_function(str(tmp_path / "ask.py")).run("x", backend=REFUSING, replay=folder).error()
    assert isinstance(error, RunError)
    assert "markup in one is ordinary text in the other" in error.note


@sgl.function
def spelled(s: Any, word: str) -> None:
    s += word + sgl.gen("k", max_tokens=4)


@sgl.function
def in_turns(s: Any) -> None:
    s += "Words:" + sgl.gen("words")
    s += "".join([spelled(word=str(word))["k"] for word in sgl.parse_json(s["words"])])


@pytest.mark.parametrize(("recorded", "replayed"), [("plan", "python"), ("python", "plan")])
def test_turns_of_a_comprehension_are_counted_otherwise_in_the_other_mode(
    recorded: Any, replayed: Any, tmp_path: Path
) -> None:
    backend = ScriptedBackend(lambda asked: '["a", "b"]' if asked.site.name == "words" else "x")
    folder = str(tmp_path / "r")
    assert in_turns.run(backend=backend, mode=recorded, record=folder).error() is None
    assert in_turns.run(backend=REFUSING, mode=recorded, replay=folder).error() is None
    error = in_turns.run(backend=REFUSING, mode=replayed, replay=folder).error()
    assert isinstance(error, RunError)
    assert error.code == "SGLC421"
    assert "counts the turns of a comprehension" in error.note
    assert f'mode="{recorded}"' in error.hint


def test_other_rows_go_on(tmp_path: Path) -> None:
    folder = str(tmp_path / "r")
    rows = [{"q": f"q{number}"} for number in range(6)]
    first = chain.run_batch(rows, backend=ScriptedBackend(echoing), record=folder)
    rows[2] = {"q": "another"}
    again = chain.run_batch([*rows, {"q": "new"}], backend=REFUSING, replay=folder)
    codes = [getattr(result.error(), "code", None) for result in again]
    assert codes == [None, None, "SGLC420", None, None, None, "SGLC421"]
    assert [again[number].text() for number in (0, 1, 3, 4, 5)] == [
        first[number].text() for number in (0, 1, 3, 4, 5)
    ]
    error: Any = again[6].error()
    assert error.note == "this row was not recorded"


# -- recordings that are no good -----------------------------------------------------------------------


def refused(work: Callable[[], Any]) -> str:
    with pytest.raises(UsageError) as caught:
        work()
    return caught.value.code


def test_of_two_runs_that_begin_to_record_in_one_folder_one_says_why_it_cannot(tmp_path: Path) -> None:
    with closing(Writer(tmp_path)) as one:
        other = Writer(tmp_path)
        one.write({})
        for tells in (lambda: other.write({}), lambda: other.write({})):
            with pytest.raises(RunError, match="another run has begun to record in") as caught:
                tells()
            assert caught.value.code == "SGLC080"
        other.close()


def test_what_cannot_be_recorded_or_replayed_is_refused_before_anything_runs(tmp_path: Path) -> None:
    backend = ScriptedBackend(echoing)
    good, other = str(tmp_path / "good"), str(tmp_path / "other")
    chain.run("x", backend=backend, record=good, seed=3).sync()
    calls = backend.calls

    def recorded(folder: str) -> Callable[[], Any]:
        return lambda: chain.run("x", backend=backend, record=folder)

    def replayed(folder: str, program: sgl.Function = chain, **more: Any) -> Callable[[], Any]:
        return lambda: program.run("x", backend=backend, replay=folder, **more)

    (tmp_path / "file").write_text("")
    assert refused(recorded(good)) == "SGLC050"
    assert refused(recorded(str(tmp_path / "file" / "x"))) == "SGLC051"
    assert refused(replayed(other)) == "SGLC052"
    assert refused(replayed(good, forked)) == "SGLC055"
    assert refused(replayed(good, seed=4)) == "SGLC055"
    assert refused(replayed(good, record=other)) == "SGLC056"
    lines = (tmp_path / "good" / FILE).read_text().splitlines()
    for code, text in (
        ("SGLC053", "\n".join([lines[0].replace('"recording": 3', '"recording": 2'), *lines[1:], ""])),
        ("SGLC052", "\n".join([*lines[:2], "{", *lines[2:], ""])),
        ("SGLC052", "\n".join([*lines[:2], '{"row": 0}', ""])),
        ("SGLC052", ""),
    ):
        (tmp_path / "other").mkdir(exist_ok=True)
        (tmp_path / "other" / FILE).write_text(text)
        assert refused(replayed(other)) == code
    assert backend.calls == calls
    same(chain.run("x", backend=backend, replay=good, seed=3), chain.run("x", backend=REFUSING, replay=good))


def test_a_tokenizer_without_its_template_is_refused(tmp_path: Path) -> None:
    backend = ScriptedBackend(echoing)

    class Closed:
        hash, bos_id, eos_ids, has_template = "x", None, (), True

    closed: Any = Closed()
    backend.__dict__["target"] = replace(backend.target, tokenizer=closed)
    error: Any = helper.run("x", backend=backend, record=str(tmp_path)).error()
    assert error.code == "SGLC054"


KILLED = """\
import os, sys, threading
import sglc as sgl
from sglc.backends.scripted import ScriptedBackend

@sgl.function
def two(s, q):
    s += q + sgl.gen("a")
    s += " and" + sgl.gen("b")
    if s["a"] == "":
        s += "never"

done = 0

def answer(asked):
    global done
    done += 1
    if done == 151:
        os._exit(9)
    return f"to {asked.prompt}"

if __name__ == "__main__":
    rows = [{"q": f"row {i}"} for i in range(100)]
    two.run_batch(rows, backend=ScriptedBackend(answer, word_s=0.0001), record=sys.argv[1], num_threads=4)
"""


def test_what_a_killed_run_was_answered_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "killed.py"
    path.write_text(KILLED)
    folder = tmp_path / "r"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, path, folder], capture_output=True, timeout=120, env=env, check=False
    )
    assert done.returncode == 9, done.stderr
    with open(folder / FILE, "ab") as file:
        file.write(b'{"is": "answer", "row": 1, "wit')  # cut short as a full disk would
    read = read_tape(folder)
    ended = [number for number, row in read.rows.items() if row.ends]
    assert 0 < len(ended) < 100
    assert sum(len(row.answers) for row in read.rows.values()) > 100
    rows = [{"q": f"row {i}"} for i in range(100)]
    again = open_function(str(path)).run_batch(rows, backend=REFUSING, replay=str(folder))
    good = [result.row for result in again if result.error() is None]
    assert set(ended) <= set(good)
    for result in again:
        error: Any = result.error()
        if error is None:
            assert result["b"] == f"to row {result.row}to row {result.row} and"
        else:
            assert error.code == "SGLC421"
            assert error.note in ("recording it was cut short", "this row was not recorded")


# -- other processes, other back ends --------------------------------------------------------------------


QUICK = """\
import sglc as sgl


@sgl.tool
def note(text: str) -> str:
    print("called", text)
    return f"noted {len(text)}"


@sgl.function
def quick(s, question):
    s += sgl.system("Answer in one word.")
    s += sgl.user(question) + sgl.assistant(sgl.gen("a", max_tokens=4, temperature=0))
    forks = s.fork(2)
    for branch in forks:
        branch += sgl.user("Are you sure?") + sgl.assistant(sgl.select("sure", ["yes", "no"]))
    forks.join()
    s += sgl.user(note(s["a"])) + sgl.assistant(sgl.gen("b", max_tokens=3, n=2, temperature=0.8))
    s += sgl.user("A digit:") + sgl.assistant(sgl.gen("c", regex="[0-9]"))
"""

FRESH = """\
import socket, sys
def refuse(*_, **__): raise AssertionError("the network is used")
socket.socket.connect = refuse
from sglc.cli import main
code = main(sys.argv[1:])
loaded = {"torch", "transformers", "gguf", "safetensors", "openai", "httpx", "httpx2", "xgrammar"}
print(*sorted(loaded & sys.modules.keys()), file=sys.stderr)
sys.exit(code)
"""


def fresh(*command: str, cwd: Path, home: Path) -> subprocess.CompletedProcess[str]:
    """`sglc` in another process that finds no model."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(home), "XDG_CACHE_HOME": str(home / "none")}
    env["SGLC_CACHE"] = str(home / "none")
    return subprocess.run(
        [sys.executable, "-c", FRESH, *command],
        capture_output=True, text=True, timeout=120, cwd=cwd, env=env, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_a_real_model_s_run_is_replayed_in_a_fresh_process(local: LocalBackend, tmp_path: Path) -> None:
    (tmp_path / "quick.py").write_text(QUICK)
    program = open_function(str(tmp_path / "quick.py"))
    rows = [{"question": "Capital of France?"}, {"question": "2 + 2?"}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    first = program.run_batch(rows, backend=local, record=str(tmp_path / "r"), seed=11)
    lines = [json.dumps(result.as_json(), ensure_ascii=False, default=str) + "\n" for result in first]
    command = ("run", "quick.py", "--batch", "rows.jsonl", "--replay", "r")
    done = fresh(*command, "--json", cwd=tmp_path, home=tmp_path)
    assert done.stderr.splitlines()[-1] == "", done.stderr  # no package of a model or of a network is loaded
    assert done.returncode == 0, done.stderr
    assert done.stdout == "".join(lines)
    again = fresh(*command, "-o", "out.jsonl", cwd=tmp_path, home=tmp_path)
    assert again.returncode == 0, again.stderr
    kept = (tmp_path / "out.jsonl").read_text().splitlines(keepends=True)  # as rows end: in no order
    assert sorted(kept, key=lambda line: json.loads(line)["index"]) == lines


@pytest.mark.slow
def test_a_plan_is_recorded_and_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plan.py").write_text(
        "import sglc as sgl\n\n\n@sgl.function\ndef tips(s, q):\n    s += sgl.user(q)\n"
        '    s += sgl.assistant(sgl.gen("a"))\n    s += sgl.user("Sure?")\n'
        '    s += sgl.assistant(sgl.select("b", ["yes", "no"]))\n'
    )
    Path("script.json").write_text('[{"name": "a", "text": "tea"}, {"name": "b", "text": "no"}]')
    backend = ("--backend", "scripted:script.json")
    assert main(["compile", "plan.py", "--target", backend[1], "--emit", "json", "-o", "plan.json"]) == 0
    assert main(["run", "plan.json", *backend, "--arg", "q=Tea?", "--record", "r", "--json"]) == 0
    first = capsys.readouterr().out
    Path("script.json").write_text("[]")
    done = fresh("run", "plan.json", "--arg", "q=Tea?", "--replay", "r", "--json", cwd=tmp_path, home=tmp_path)
    assert done.stdout == first, done.stderr
    assert json.loads(first)["vars"] == {"a": "tea", "b": "no"}
    done = fresh("run", "plan.json", "--arg", "q=Coffee?", "--replay", "r", cwd=tmp_path, home=tmp_path)
    assert "error[SGLC420]" in done.stderr
    assert done.returncode == 1


def test_an_api_s_run_is_replayed_when_the_api_is_gone_and_its_key_is_nowhere(tmp_path: Path) -> None:
    @sgl.function
    def ask(s: Any) -> None:
        s += sgl.user("Tea?") + sgl.assistant(sgl.gen("a", max_tokens=8))
        s += sgl.user("Sure?") + sgl.assistant(sgl.gen("b", max_tokens=8))

    with serving(lambda body: f"{len(body['messages'])} messages") as api:
        backend = sgl.OpenAI("gpt-4o", base_url=api.url, api_key="sk-very-secret")
        first = ask.run(backend=backend, record=str(tmp_path)).sync()
        asked = len(api.bodies)
        again = ask.run(backend=REFUSING, replay=str(tmp_path)).sync()
        assert len(api.bodies) == asked == 2
        backend.close()
    same(first, again)
    assert again["b"] == "3 messages"
    text = (tmp_path / FILE).read_text()
    assert "secret" not in text
    assert "127.0.0.1" not in text


@pytest.mark.slow
def test_a_server_s_run_is_replayed_when_the_server_is_gone(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text('[{"name": "a", "text": "tea"}, {"text": "later"}]')
    with server_of("--model", f"scripted:{script}") as server:
        backend = sgl.RuntimeEndpoint(server.url)
        first = chain.run("Tea?", backend=backend, record=str(tmp_path / "r")).sync()
        backend.close()
    assert first.error() is None
    same(first, chain.run("Tea?", backend=REFUSING, replay=str(tmp_path / "r")).sync())


def test_what_a_stream_showed_is_shown_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("shown.py").write_text(QUICK)
    rules = [{"name": "sure", "text": "no"}, {"name": "c", "text": "7"}, {"text": "some words here"}]
    Path("script.json").write_text(json.dumps({"rules": rules, "word_s": 0.001}))
    command = ["run", "shown.py", "--arg", "question=x", "--stream"]
    assert main([*command, "--backend", "scripted:script.json", "--record", "r"]) == 0
    first = capsys.readouterr().out
    assert main([*command, "--replay", "r"]) == 0
    again = capsys.readouterr().out.splitlines()
    shown = first.replace("called some words here\n", "").splitlines()
    # The choices and `b` are made side by side: which of them is told first is not the recording's to say.
    assert (again[0], sorted(again[1:-1]), again[-1]) == (shown[0], sorted(shown[1:-1]), shown[-1])
    assert again[0] == "[a] some words here"
    assert len(again) == 5


def test_a_password_in_a_server_s_address_is_not_written(tmp_path: Path) -> None:
    backend = ScriptedBackend(echoing)
    backend.__dict__["target"] = replace(backend.target, name="http://me:secret@host:1")
    first, again = both(helper, tmp_path, backend, text="x")
    same(first, again)
    assert "secret" not in (tmp_path / FILE).read_text()


# -- random programs -------------------------------------------------------------------------------------


def ran(plan: Any, args: Mapping[str, str], tools: Any, **options: Any) -> Result:
    loaded = LoadedPlan(plan)
    loaded.tools = tools
    result = loaded.run(args, **options)
    result.sync()
    return result


def random_plan(seed: int, backend: OracleBackend) -> Any:
    made = random_program(seed, regions=True, images=False, ascii_only=True, python=False, resumed=False)
    return compile_program(from_text(plain(to_text(begun(made))), "random.sglir"), backend.target).plan


def check_random(seeds: range, folder: Path) -> int:
    """Random programs, recorded and replayed; how many generations that were."""
    backend = OracleBackend()
    args, answers = {**ARGS, "b": "beta"}, 0
    for seed in seeds:
        plan, tools = random_plan(seed, backend), Recorded()
        place = str(folder / f"r{seed}")
        made = ran(plan, args, tools, backend=backend, seed=seed, record=place)
        called = len(tools.calls)
        replayed = ran(plan, args, {}, backend=REFUSING, replay=place)
        error, again = made.error(), replayed.error()
        assert type(again) is type(error)
        if isinstance(error, RunError) and isinstance(again, RunError):
            assert (again.code, again.message) == (error.code, error.message)
        else:
            assert error is None
            assert replayed.variables == made.variables
            assert replayed.ret_value == made.ret_value
            assert {str(call.site): call for call in replayed.calls} == {
                str(call.site): call for call in made.calls
            }
        assert len(tools.calls) == called
        answers += len(made.calls)
    backend.close()
    return answers


def test_random_programs_are_replayed(tmp_path: Path) -> None:
    assert check_random(range(at_depth(2, 8, 200)), tmp_path) > at_depth(6, 24, 660)


# -- the tests find what they should ---------------------------------------------------------------------


def wrong_occurrence(patch: pytest.MonkeyPatch) -> None:
    enter = tape._enter

    def entered(row: Any, number: int, line: Any) -> None:
        if line["is"] == "answer":
            line = {**line, "site": line["site"].rpartition("#")[0] + "#0"}
        enter(row, number, line)

    patch.setattr(tape, "_enter", entered)


def any_row(patch: pytest.MonkeyPatch) -> None:
    row = player.Player.row
    patch.setattr(player.Player, "row", lambda self, number, *rest: row(self, 0, *rest))


def unchecked(patch: pytest.MonkeyPatch) -> None:
    asked = prompts.Followed.inputs
    patch.setattr(prompts.Followed, "inputs", lambda self, index: replace(asked(self, index), hash=""))


def sorted_choices(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(prompts, "sha256", lambda text: sha256_of(text))


def sha256_of(text: bytes) -> Any:
    from hashlib import sha256

    pieces, options = json.loads(text)
    options["choices"] = sorted(options.get("choices", ()))
    return sha256(json.dumps([pieces, options], sort_keys=True).encode())


def any_arguments(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(calls, "given_json", lambda args, named: (None, None))
    patch.setattr(
        calls.Calls, "recorded_of", lambda self, call: self.recorded.calls["", call["function"]]["", 0]
    )


def first_sample(patch: pytest.MonkeyPatch) -> None:
    made = tape.answer_json

    def answered(event: Any) -> Any:
        data = made(event)
        return {**data, "samples": data["samples"][:1] * len(data["samples"])} if "samples" in data else data

    from sglc.observe.replay import recorder

    patch.setattr(recorder, "answer_json", answered)


def leftovers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tape.TapeRow, "unused", lambda self: None)


def twice(tmp_path: Path) -> None:
    """Two generations of one name, in each of two rows."""

    @sgl.function
    def program(s: Any, q: str) -> None:
        s += q + sgl.gen("a", n=2)
        s += " again" + sgl.gen("a")
        s += sgl.select("c", ["x", "y"])

    rows = [{"q": "p"}, {"q": "q"}]
    first = program.run_batch(rows, backend=ScriptedBackend(echoing), record=str(tmp_path / "twice"))
    again = program.run_batch(rows, backend=REFUSING, replay=str(tmp_path / "twice"))
    for one, other in zip(first, again, strict=True):
        same(one, other)


def differing(old: str, new: str, code: str) -> Callable[[Path], None]:
    def check(tmp_path: Path) -> None:
        assert changed(tmp_path, old, new).code == code

    return check


MUTANTS = [
    (wrong_occurrence, twice),
    (any_row, twice),
    (first_sample, twice),
    (unchecked, differing('"Q: "', '"Question: "', "SGLC420")),
    (sorted_choices, differing('["yes", "no"]', '["no", "yes"]', "SGLC420")),
    (any_arguments, differing('fetch(s["b"])', 'fetch(s["a"])', "SGLC425")),
    (leftovers, differing('    s += " then" + sgl.select("c", ["yes", "no"])\n', "", "SGLC422")),
]


@pytest.mark.parametrize(("mutant", "check"), few(MUTANTS, 2), ids=lambda one: one.__name__)
def test_a_broken_recording_is_found_out(
    mutant: Callable[[pytest.MonkeyPatch], None], check: Callable[[Path], None], tmp_path: Path
) -> None:
    (tmp_path / "whole").mkdir()
    (tmp_path / "broken").mkdir()
    check(tmp_path / "whole")
    with pytest.MonkeyPatch.context() as patch:
        mutant(patch)
        with pytest.raises((AssertionError, RunError)):
            check(tmp_path / "broken")
    gc.collect()  # a failure that nobody has read is told here, and not in a later test


def test_segments_without_a_row_are_followed_and_not_written(tmp_path: Path) -> None:
    """What is done once for all rows of a batch, such as computing what they share, is no answer of a row."""
    observer, _ = open_observer("x", lambda: 1, None, 2, None, {"record": str(tmp_path)})
    assert observer is not None

    async def submitted() -> list[Any]:
        return [event async for event in observer.backend(ScriptedBackend(echoing)).submit(Segment(()))]

    assert asyncio.run(submitted()) == []
    assert not (tmp_path / FILE).exists()


def test_a_batch_that_is_refused_begins_no_recording(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="SGLC011"):
        chain.run_batch([{"q": "x"}, {"nothing": "y"}], backend=REFUSING, record=str(tmp_path / "r"))
    assert not (tmp_path / "r").exists()
