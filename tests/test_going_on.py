"""A plan whose program goes on as Python shows what Python alone shows: nothing twice, and nothing lost."""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import json
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import sglc as sgl
from sglc.api.plan import LoadedPlan
from sglc.backends.scripted import Asked, ScriptedBackend
from sglc.errors import Paused, UsageError
from sglc.execution.served import Served
from sglc.ir.plan.plan_json import plan_from_json, plan_to_json

NUMBERS = itertools.count()


def answering(asked: Asked) -> str:
    return asked.choices[0] if asked.choices else f"<{asked.site}>"


@sgl.function
def reads_what_it_made(s: Any) -> None:
    s += "Q: " + sgl.gen("x")
    s += f" then {s['x']}\n"
    forks = s.fork(2)
    forks[0] += sgl.gen("side")
    forks[1] += sgl.gen("side")
    s += forks[0]["side"] + " or " + forks[1]["side"] + sgl.gen("y")
    if s["y"] == "nothing":
        return
    s += str(next(NUMBERS) < 0) + sgl.gen("z")


@sgl.function
def raises_in_an_arm(s: Any) -> None:
    s += "Q: " + sgl.gen("x")
    if s["x"] == "wrong":
        raise ValueError("it is wrong")
    s += " then " + sgl.gen("y") + " end"


@sgl.function
def reads_a_number(s: Any) -> int:
    s += "Q: " + sgl.gen("x")
    number = int(s["x"])
    s += " then " + sgl.gen("y") + " end"
    return number


@sgl.tool
def refuses(text: str) -> str:
    raise LookupError(text)


@sgl.function
def calls_a_tool(s: Any) -> Any:
    s += "Q: " + sgl.gen("x")
    known = refuses(s["x"])
    s += " then " + sgl.gen("y") + " end"
    return known


@sgl.function
def may_go_on_as_python(s: Any) -> None:
    s += "Q: " + sgl.gen("x")
    if s["x"] == "right":
        s += str(next(NUMBERS) < 0)
    s += " then " + sgl.gen("y") + " and " + sgl.gen("z")


def _ordinary(text: str) -> str:
    return text + str(next(NUMBERS) < 0)


@sgl.function
def says_again_behind_an_arm(s: Any) -> None:
    s += "Q: " + sgl.gen("x")
    forks = s.fork(2)
    for fork in forks:
        fork += sgl.gen("side")

    def arm() -> None:
        nonlocal s
        s += " an arm" + forks[0]["side"]
        s += _ordinary(" as Python")

    sgl.cond(sgl.eq(s["x"], "another"), lambda: None, arm)
    s += " then " + s["x"] + forks[1]["side"] + sgl.gen("y") + sgl.select("z", ["right"])


PROGRAMS = [reads_what_it_made, says_again_behind_an_arm]
RAISING = [raises_in_an_arm, reads_a_number, calls_a_tool]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("live", [False, True], ids=["at the end", "live"])
def test_the_whole_text_is_told_once(program: sgl.Function, live: bool) -> None:
    backend = ScriptedBackend(answering)
    python = program.run(backend=backend, mode="python").sync()
    result = program.run(backend=backend, stream=live)
    pieces = list(result.text_iter())
    assert result.why_python.startswith("it goes on as Python")
    assert "".join(pieces) == result.text() == python.text()


@pytest.mark.parametrize("program", RAISING, ids=lambda program: program.__name__)
def test_a_run_that_fails_has_no_text_behind_what_failed(program: sgl.Function) -> None:
    backend = ScriptedBackend(lambda asked: "wrong")
    python = program.run(backend=backend, mode="python").sync()
    result = program.run(backend=backend, mode="plan").sync()
    assert type(result.error()) is type(python.error())
    assert result.partial_text == python.partial_text == "Q: wrong"


@sgl.function
def fails_behind_what_nobody_read(s: Any) -> None:
    s += "Q: " + sgl.gen("x") + " then "
    s += sgl.gen("y") + " end"
    s += refuses("it")


def test_what_a_plan_has_made_is_kept_though_the_body_fails_before_it_reads_it() -> None:
    backend = ScriptedBackend(lambda asked: f"the {asked.site.name}")
    result = fails_behind_what_nobody_read.run(backend=backend, mode="plan").sync()
    plan = LoadedPlan(fails_behind_what_nobody_read.compile(backend).plan).run(backend=backend).sync()
    assert isinstance(result.error(), LookupError)
    assert result.partial_text == plan.partial_text == "Q: the x then the y end"
    assert dict(result.variables) == dict(plan.variables) == {"x": "the x", "y": "the y"}


@sgl.function
def asks(s: Any, word: str) -> str:
    s += word + sgl.gen("about")
    return str(sgl.pause("name", s["about"]))


@sgl.function
def pauses_in_a_called_program(s: Any) -> None:
    s += "Q: " + sgl.gen("x")
    asked = asks(s["x"])
    s += s["x"] + " about " + asked["about"] + " then " + sgl.gen("y")


def test_a_paused_plan_has_no_text_behind_the_pause() -> None:
    result = pauses_in_a_called_program.run(backend=ScriptedBackend(answering), mode="plan").sync()
    assert isinstance(result.error(), Paused)
    assert result.partial_text == "Q: <pauses_in_a_called_program.x#0>"


@sgl.function
def pauses_behind_a_turn(s: Any, word: str) -> None:
    s += sgl.user("Q") + sgl.assistant(sgl.gen("x"))
    s += sgl.user(word + " said " + s["x"])
    s["answer"] = str(sgl.pause("name", s["x"]))
    s += sgl.assistant(sgl.gen("y"))


@sgl.function
def pauses_in_a_text(s: Any, word: str) -> None:
    s += word + " Q: " + sgl.gen("x") + " that is: "
    s += s["x"] + "!"
    s["answer"] = str(sgl.pause("name", s["x"]))
    s += " then " + word + s["x"]
    s["other"] = str(sgl.pause("other"))
    s += " and " + word + sgl.gen("y")


@sgl.function
def pauses_between_texts(s: Any, word: str) -> None:
    s += "hello " + word
    s["answer"] = str(sgl.pause("name"))
    s += ", and " + word


@sgl.function
def pauses_at_its_end(s: Any, word: str) -> None:
    s += "Q: " + sgl.gen("x")
    s += " that is: " + s["x"] + word
    s["answer"] = str(sgl.pause("name", s["x"]))


@sgl.function
def pauses_before_it_branches(s: Any, word: str) -> None:
    s += "Q: " + sgl.gen("x")
    s += " that is: " + s["x"]
    s["answer"] = str(sgl.pause("name", s["x"]))
    if s["answer"] == "yes":
        s += "yes" + sgl.gen("y")
        return
    s += "no" + word + sgl.gen("z")


@sgl.function
def pauses_in_a_turn(s: Any, word: str) -> None:
    with s.user():
        s += word + sgl.gen("x")
        s += s["x"]
        s += str(sgl.pause("name", "x"))
        s += " then " + word
    s += sgl.assistant(sgl.gen("y"))


@sgl.function
def reads_a_branch_behind_a_pause(s: Any, word: str) -> None:
    s += "Q: " + sgl.gen("x")
    branch = s.fork(1)[0]

    def again() -> None:
        nonlocal branch
        branch += word + sgl.gen("more")

    sgl.loop(again, max_iters=2)
    s["answer"] = str(sgl.pause("name", s["x"]))
    s += " then " + branch.text() + branch["more"] + sgl.gen("y")


PAUSING = [
    pauses_behind_a_turn, pauses_in_a_text, pauses_between_texts, pauses_at_its_end, pauses_before_it_branches,
    pauses_in_a_turn, reads_a_branch_behind_a_pause,
]  # fmt: skip


def paused(run: Callable[..., sgl.Result], **options: Any) -> tuple[str, str, bool]:
    """What is told of a run, what it says at its end, and whether it has paused."""
    result = run(word="W", backend=ScriptedBackend(lambda asked: "wrong"), stream=True, **options)
    pieces: list[str] = []
    with suppress(Paused):
        pieces.extend(result.text_iter())
    return "".join(pieces), result.partial_text, isinstance(result.error(), Paused)


@pytest.mark.parametrize("program", PAUSING, ids=lambda program: program.__name__)
def test_a_paused_plan_says_what_stands_before_the_pause(program: sgl.Function, tmp_path: Path) -> None:
    plan = program.compile(backend=ScriptedBackend(lambda asked: "wrong")).plan
    loaded = LoadedPlan(plan_from_json(json.loads(json.dumps(plan_to_json(plan)))))
    said = paused(program.run, mode="python", record=str(tmp_path / "python"))
    assert said == paused(program.run, mode="plan", record=str(tmp_path / "plan")) == paused(loaded.run)
    assert said[0] == said[1]
    assert said[2]
    for answers in ({"name": "yes"}, {"name": "yes", "other": "no"}):
        python, planned = (
            paused(program.run, mode=mode, record=str(tmp_path / mode), resume=True, answers=answers)
            for mode in ("python", "plan")
        )
        assert python == planned


@pytest.mark.parametrize("times", [1, 2])
def test_what_blocks_say_behind_a_pause_in_them_is_not_told(times: int) -> None:
    @sgl.function
    def program(s: Any, word: str) -> None:
        def body() -> None:
            nonlocal s
            s += " inside " + word
            s["answer"] = str(sgl.pause("name", s["x"]))
            s += " behind " + word

        s += "Q: " + sgl.gen("x")
        s += " that is: " + s["x"]
        if times > 1:
            sgl.loop(body, max_iters=times)
        else:
            sgl.cond(sgl.eq(s["x"], "wrong"), body)
        s += " then " + word + sgl.gen("y")

    result = program.run(word="W", backend=ScriptedBackend(lambda asked: "wrong"), mode="plan", stream=True)
    told: list[str] = []
    with pytest.raises(Paused):
        told.extend(result.text_iter())
    assert "".join(told) == result.partial_text == "Q: wrong that is: wrong"


def test_text_behind_an_arm_that_raises_is_not_streamed() -> None:
    backend = ScriptedBackend(lambda asked: "wrong")
    told: list[str] = []
    with pytest.raises(ValueError, match="it is wrong"):
        told.extend(raises_in_an_arm.run(backend=backend, mode="plan", stream=True).text_iter())
    assert "".join(told) == "Q: wrong"


@pytest.mark.parametrize(("program", "last"), [(raises_in_an_arm, "y"), (may_go_on_as_python, "z")])
def test_text_comes_as_soon_as_a_branch_is_passed(program: sgl.Function, last: str) -> None:
    """The last generation waits until what is before it was read."""
    seen = threading.Event()

    def waiting(asked: Asked) -> str:
        assert asked.site.name != last or seen.wait(20)
        return asked.site.name

    pieces = program.run(backend=ScriptedBackend(waiting), stream=True).text_iter()
    told = ""
    while not told.endswith({"y": "Q: x then ", "z": "Q: x then y and "}[last]):
        told += next(pieces)
    seen.set()
    assert "".join([told, *pieces]) == {"y": "Q: x then y end", "z": "Q: x then y and z"}[last]


@sgl.function
def ends_in_arms(s: Any, q: str) -> None:
    """The turn that goes on belongs to each arm: there is no prompt behind the decision."""
    s += sgl.user(q) + sgl.assistant(sgl.gen("x") + sgl.select("c", ["a", "b"]))
    if s["c"] == "a":
        s += sgl.user("More?")
    if s["x"] == "x":
        s += sgl.user("Why?")
    s += sgl.assistant(sgl.gen("y") + " end")


@pytest.mark.parametrize("chosen", [0, 1])
@pytest.mark.parametrize("live", [False, True], ids=["at the end", "live"])
def test_a_program_that_ends_in_arms_tells_its_text(live: bool, chosen: int) -> None:
    backend = ScriptedBackend(lambda asked: asked.choices[chosen] if asked.choices else asked.site.name)
    result = ends_in_arms.run("q", backend=backend, mode="plan", stream=live)
    told = "".join(result.text_iter())
    assert told == result.text() == ends_in_arms.run("q", backend=backend, mode="python").text()
    assert told.endswith("y end<|im_end|>\n")


def test_what_all_arms_begin_with_is_told_before_they_end() -> None:
    seen = threading.Event()

    def waiting(asked: Asked) -> str:
        assert asked.site.name != "y" or seen.wait(20)
        return asked.choices[0] if asked.choices else asked.site.name

    pieces = ends_in_arms.run("q", backend=ScriptedBackend(waiting), mode="plan", stream=True).text_iter()
    told = ""
    while not told.endswith("xa"):
        told += next(pieces)
    seen.set()
    assert "".join(pieces).endswith("y end<|im_end|>\n")


# -- variables of the context ------------------------------------------------------------------------

USER = contextvars.ContextVar("user", default="nobody")


@sgl.tool
def log_in(name: str) -> str:
    USER.set(name)
    return "in"


@sgl.tool
async def log_in_slowly(name: str) -> str:
    await asyncio.sleep(0)
    USER.set(name)
    return "in"


@sgl.tool
def who() -> str:
    return USER.get()


@sgl.function
def sets_a_variable(s: Any, name: str) -> None:
    s += "Q: " + log_in(name) + " as " + who() + sgl.gen("x")


@sgl.function
async def sets_a_variable_slowly(s: Any, name: str) -> None:
    s += "Q: " + await log_in_slowly(name) + " as " + who() + sgl.gen("x")


@sgl.function
def sets_one_in_turn(s: Any, name: str) -> None:
    forks = s.fork(2)
    for fork, number in zip(forks, "12", strict=True):
        fork += log_in(name + number) + who() + sgl.gen("x")
    s += forks[0].text() + forks[1].text() + who()


@sgl.function
def sets_one_and_goes_on(s: Any, name: str) -> None:
    s += "Q: " + log_in(name) + sgl.gen("x")
    if s["x"] != "wrong":
        s += str(id(s) < 0) + who()


@pytest.mark.parametrize(
    "program", [sets_a_variable, sets_a_variable_slowly, sets_one_in_turn, sets_one_and_goes_on],
    ids=lambda program: program.__name__,
)  # fmt: skip
def test_what_a_tool_sets_in_the_context_is_seen_behind_it(program: sgl.Function) -> None:
    backend = ScriptedBackend(answering)
    python = program.run("bob", backend=backend, mode="python").sync()
    results = [program.run(name, backend=backend).sync() for name in ("bob", "eve")]
    assert "bob" in python.text()
    assert [result.text() for result in results] == [python.text(), python.text().replace("bob", "eve")]
    assert all(result.mode == "plan" or "goes on as Python" in result.why_python for result in results)
    assert USER.get() == "nobody"


# -- coroutine functions ------------------------------------------------------------------------------

LOOKED: list[str] = []


@sgl.tool
async def looks(text: str) -> str:
    LOOKED.append(text)
    return text[::-1]


@sgl.tool
async def looks_in_vain(text: str) -> str:
    LOOKED.append(text)
    raise LookupError(text)


@sgl.function
async def goes_on_behind(s: Any) -> str:
    s += "Q: " + await looks("tea") + sgl.gen("x")
    if s["x"] == "wrong":
        s += str(id(s) < 0)
    return str(s["x"])


@sgl.function
async def raises_behind(s: Any) -> int:
    s += "Q: " + await looks("tea") + sgl.gen("x")
    return int(s["x"])


@sgl.function
async def awaits_what_raises(s: Any) -> None:
    s += "Q: " + sgl.gen("x")
    s += await looks_in_vain(s["x"])


@pytest.mark.parametrize(
    "program", [goes_on_behind, raises_behind, awaits_what_raises], ids=lambda program: program.__name__
)
def test_what_a_coroutine_function_gave_is_awaited(program: sgl.Function) -> None:
    def told(mode: Any) -> tuple[Any, ...]:
        LOOKED.clear()
        result = program.run(backend=ScriptedBackend(lambda asked: "wrong"), mode=mode).sync()
        assert result.mode == "python"
        return repr(result.error()), result.partial_text, dict(result.variables), tuple(LOOKED)

    assert told("plan") == told("python")


# -- tools of called programs ------------------------------------------------------------------------

CALLED: list[str] = []


@sgl.tool
def pay(text: str) -> None:
    CALLED.append("pay")
    raise ValueError(text)


@sgl.tool
def note(text: str) -> None:
    CALLED.append("note")


@sgl.function
def orders(s: Any) -> None:
    s += "Q: " + sgl.gen("x")
    pay(s["x"])


@sgl.function
def calls_what_orders(s: Any) -> None:
    orders()
    s += "Q: " + sgl.gen("x")
    note(s["x"])


@pytest.mark.parametrize("waits", [True, False], ids=["as it is", "nobody waits"])
def test_what_was_called_in_a_called_program_is_not_called_again(
    waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The called program comes to its tool only when its caller waits for it, or has come to its own."""
    go_on, over = threading.Event(), threading.Event()
    called, wait = Served.called, Served.wait

    def late(served: Served, name: str, *given: Any) -> Any:
        if name.endswith(".pay"):
            assert go_on.wait(20)
        made = called(served, name, *given)
        go_on.set()
        if name.endswith(".pay") and made is not None:
            over.set()
        return made

    def waiting(served: Served, ended: Any) -> None:
        if waits:
            go_on.set()
            wait(served, ended)

    monkeypatch.setattr(Served, "called", late)
    monkeypatch.setattr(Served, "wait", waiting, raising=False)
    CALLED.clear()
    result = calls_what_orders.run(backend=ScriptedBackend(answering))
    assert isinstance(result.error(), ValueError)
    assert "pay` raised" in result.why_python
    assert (CALLED == ["pay", "note"]) == over.is_set() == waits
    assert waits or sorted(CALLED) == ["note", "pay", "pay"]


MADE: list[str] = []


@sgl.tool
def send(text: str) -> str:
    if text == "<bad>":
        raise LookupError(text)
    MADE.append(text)
    return f"sent {text}"


@sgl.function
def worker(s: Any, task: str) -> str:
    s += f"{task}: " + sgl.gen("w")
    return send(s["w"])


@sgl.function
def breaks_behind_each(s: Any) -> Any:
    s += "Q: " + sgl.gen("plan")
    made = [worker(task).ret_value for task in s["plan"].split(", ")]
    s += ", ".join(made) + sgl.select("judged", ["yes", "no"])
    if s["judged"] == "yes":
        s += str(next(NUMBERS) < 0)
    return made


class OwnError(Exception):
    pass


@sgl.function
def raises_behind_each(s: Any) -> Any:
    s += "Q: " + sgl.gen("plan")
    made = {task: worker(task)["w"] for task in s["plan"].split(", ")}
    s += str(made) + sgl.select("judged", ["yes", "no"])
    if s["judged"] == "yes":
        raise OwnError(s["plan"])
    return made


@sgl.function
def breaks_in_a_loop_behind_each(s: Any) -> None:
    def once() -> Any:
        s.__iadd__(sgl.gen("plan"))
        s.__iadd__(", ".join(worker(task)["w"] for task in s["plan"].split(", ")) + sgl.gen("judged", "yes|no"))
        if sgl.eq(s["judged"], "no"):
            return False
        return next(NUMBERS) < 0

    sgl.loop(once, max_iters=2)


@sgl.function
def makes_each(s: Any) -> str:
    s += "Q: " + sgl.gen("plan")
    return ", ".join(worker(task)["w"] for task in s["plan"].split(", "))


@sgl.function
def breaks_behind_a_call(s: Any) -> Any:
    made = makes_each().ret_value
    s += made + sgl.select("judged", ["yes", "no"])
    if s["judged"] == "yes":
        s += str(next(NUMBERS) < 0)
    return made


@sgl.function
def fails_behind_each(s: Any) -> Any:
    s += "Q: " + sgl.gen("plan")
    made = [worker(task)["w"] for task in s["plan"].split(", ")]
    s += ", ".join(made) + sgl.gen("bad")
    return send(s["bad"])


@sgl.function
def breaks_behind_a_map(s: Any) -> Any:
    s += "Q: " + sgl.gen("plan")
    made = sgl.map(s["plan"].split(", "), lambda task: worker(task).ret_value)
    s += ", ".join(made) + sgl.select("judged", ["yes", "no"])
    if s["judged"] == "yes":
        s += str(next(NUMBERS) < 0)
    return made


def by_site(asked: Asked) -> str:
    known = {"plan": "a, b", "judged": "yes", "bad": "<bad>"}
    return known.get(asked.site.name, f"<{asked.site}>")


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (breaks_behind_each, "behind a comprehension that generates"),
        (raises_behind_each, "behind a comprehension that generates"),
        (breaks_in_a_loop_behind_each, ""),
        (breaks_behind_a_call, "behind a comprehension that generates"),
        (fails_behind_each, ""),
        (breaks_behind_a_map, "it goes on as Python"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
@pytest.mark.parametrize("way", ["run", "arun", "run_batch"])
def test_what_a_comprehension_generates_is_asked_once(program: sgl.Function, why: str, way: str) -> None:
    """Its generations have other sites as Python, which would not find them there."""
    backend = ScriptedBackend(by_site)

    def shown(result: sgl.Result) -> Any:
        error = result.error()
        made = sorted(MADE)
        MADE.clear()
        return type(error), str(error), None if error else result.ret_value, result.usage.calls, made

    python = shown(program.run(backend=backend, mode="python"))
    if way == "arun":
        result = asyncio.run(program.arun(backend=backend))
    elif way == "run_batch":
        [result] = program.run_batch([{}], backend=backend)
    else:
        result = program.run(backend=backend)
    sent = shown(result)
    assert why in result.why_python
    if program is fails_behind_each:  # its plan ends there, and draws other samples
        assert (result.mode, len(sent[-1])) == ("plan", len(python[-1]))
        sent = (*sent[:-1], python[-1])
    assert sent == python


@pytest.mark.parametrize("mode", ["auto", "plan"])
def test_why_and_where_a_plan_goes_on_as_python_is_said(mode: Any) -> None:
    """A plan that has begun is not lost, though it is to be one."""
    result = may_go_on_as_python.run(backend=ScriptedBackend(lambda asked: "right"), mode=mode).sync()
    first = may_go_on_as_python.definition.code.co_firstlineno
    assert result.mode == "python"
    reason = "it goes on as Python: an iterator from outside goes on where it is"
    assert result.why_python == f"{reason} (tests/test_going_on.py:{first + 4}:18)"


def test_such_a_plan_is_none() -> None:
    MADE.clear()
    with pytest.raises(UsageError, match="comprehension that generates") as caught:
        breaks_behind_each.run(backend=ScriptedBackend(by_site), mode="plan")
    assert (caught.value.code, MADE) == ("SGLC058", [])
