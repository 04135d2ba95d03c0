"""Tools that need no order run side by side, and those in program order keep it, however long each takes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue
from random import Random
from typing import Any

import pytest

import sglc as sgl
from sglc.backends.scripted import Asked, ScriptedBackend
from sglc.execution.plan import prepared_block
from sglc.execution.plan.executor import run_plan
from sglc.execution.session import Session
from sglc.frontend.tracing import tools
from sglc.ir.plan.uses import BlockEffects
from sglc.ir.text.printer import from_text
from sglc.passes.base import run_pipeline
from sglc.passes.lowering.lower_plan import lower_plan
from tests.depth import at_depth

LONG_S = 10.0  # nobody waits so long who is called in time
SHORT_S = 0.05  # whoever waits for what comes later has waited in vain

MEETING: list[threading.Barrier] = []
SEEN: list[str] = []
LOCK = threading.Lock()


def met(text: str) -> str:
    """Comes back when three are here at once."""
    MEETING[0].wait()
    return text + "."


@sgl.tool(ordered=False)
def look(text: str) -> str:
    return met(text)


@sgl.tool(ordered=False)
async def look_async(text: str) -> str:
    return met(text)


@sgl.pure
def compute(text: str) -> str:
    return met(text)


@sgl.tool
def note(text: str) -> str:
    SEEN.append(text)
    return text.upper()


@sgl.tool(ordered=False)
def seen(text: str) -> str:
    with LOCK:
        SEEN.append(text)
        return f"{text} {sum(one == text for one in SEEN)}"


@sgl.tool(ordered=False)
def fails(text: str) -> str:
    SEEN.append(text)
    raise KeyError(text)


@pytest.fixture(autouse=True)
def _anew() -> None:
    SEEN.clear()


class Said(ScriptedBackend):
    def __init__(self, **said: str) -> None:
        self.prompts: dict[str, str] = {}

        def answer(asked: Asked) -> str:
            self.prompts[asked.site.name] = asked.prompt
            return said.get(asked.site.name, "yes")

        super().__init__(answer)


@sgl.function
def three_tools(s: Any, a: str) -> None:
    s += look(a + "1") + look(a + "2") + look(a + "3") + sgl.gen("x")


@sgl.function
async def three_kinds(s: Any, a: str) -> None:
    s += look(a + "1") + await look_async(a + "2") + compute(a + "3") + sgl.gen("x")


@sgl.function
async def awaited(s: Any, a: str) -> None:
    s += await look_async(a + "1")
    s += await look_async(a + "2")
    s += await look_async(a + "3")
    s += sgl.gen("x")


@pytest.mark.slow
@pytest.mark.parametrize("program", [three_tools, three_kinds, awaited], ids=lambda program: program.__name__)
def test_three_calls_are_made_at_the_same_time(program: Any) -> None:
    MEETING[:] = [threading.Barrier(3, timeout=LONG_S)]
    backend = Said()
    result = program.run("a", backend=backend, mode="plan")
    assert result.error() is None
    assert backend.prompts["x"] == "a1.a2.a3."


@pytest.mark.slow
@pytest.mark.parametrize("how", [{"mode": "plan", "passes": "-overlap_tools"}, {"mode": "python"}])
def test_without_the_pass_and_as_python_they_are_made_one_by_one(how: Any) -> None:
    MEETING[:] = [threading.Barrier(3, timeout=SHORT_S)]
    result = three_tools.run("a", backend=Said(), **how)
    assert "BrokenBarrierError" in repr(result.error())


OPEN = threading.Event()


@sgl.tool
def waits(text: str) -> str:
    return f"{text} {OPEN.wait(LONG_S)}"


@sgl.tool(ordered=False)
def opens(text: str) -> str:
    OPEN.set()
    return text


@sgl.function
def behind(s: Any, a: str) -> None:
    s += waits(a) + opens(a) + sgl.gen("x")


def test_what_needs_no_order_does_not_wait_for_a_tool_before_it() -> None:
    OPEN.clear()
    backend = Said()
    assert behind.run("a", backend=backend, mode="plan").error() is None
    assert backend.prompts["x"] == "a Truea"


@sgl.function
def guarded(s: Any, a: str) -> None:
    s += a + sgl.gen("ok")
    if s["ok"] == "no":
        raise ValueError("stop")
    s += seen(a)
    if s["ok"] == "perhaps":
        s += seen("perhaps")


def _guarded() -> list[list[str]]:
    found = []
    for said in ("no", "yes", "perhaps"):
        SEEN.clear()
        error = guarded.run("a", backend=Said(ok=said), mode="plan").error()
        assert (error is None) == (said != "no")
        found.append(sorted(SEEN))
    return found


def test_a_call_is_made_only_where_the_program_comes_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _guarded() == [[], ["a"], ["a", "perhaps"]]


def test_a_call_that_is_made_too_early_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BlockEffects, "may_end", BlockEffects.hands_over)
    guarded.__dict__.pop("_plans", None)
    assert _guarded() != [[], ["a"], ["a", "perhaps"]]
    guarded.__dict__.pop("_plans", None)


@sgl.function
def goes_on(s: Any, a: str) -> Any:
    """It goes on as Python behind a rare answer; equal calls of its tools have given different things."""
    first, second = seen(a), seen(a)
    s += first + ";" + second + sgl.gen("kind")
    named = note(a)
    if s["kind"] == "rare":
        open("/dev/null").close()
    s += sgl.gen("last")
    return [first, second, named, seen(a)]


@pytest.mark.parametrize("said", ["rare", "often"])
def test_where_python_goes_on_no_call_is_made_again(said: str) -> None:
    backend = Said(kind=said)
    result = goes_on.run("a", backend=backend)
    first, second, named, third = result.ret_value
    assert (result.mode == "python") is (said == "rare")
    assert sorted(SEEN) == ["a"] * 4  # three look-ups and a note
    assert {first, second} <= {"a 1", "a 2", "a 3"}
    assert first != second != third
    assert named == "A"
    assert backend.prompts["kind"] == f"{first};{second}"


@sgl.function
def failing(s: Any, a: str) -> str:
    first = seen(a)
    return first + fails(a)


def test_a_failure_is_told_as_python_tells_it() -> None:
    for mode in ("auto", "python"):
        SEEN.clear()
        error = failing.run("a", backend=Said(), mode=mode).error()  # type: ignore[arg-type]
        assert type(error) is KeyError
        assert sorted(SEEN) == ["a", "a"]


@sgl.function
def recorded(s: Any, a: str) -> str:
    s += seen(a) + seen(a + "b") + seen(a) + note(a) + sgl.gen("x")
    return s.text()


@pytest.mark.slow
@pytest.mark.parametrize("before", ["plan", "python"])
@pytest.mark.parametrize("now", ["plan", "python"])
def test_a_recording_is_of_the_calls_and_not_of_their_order(before: Any, now: Any, tmp_path: Path) -> None:
    text = recorded.run("a", backend=Said(), mode=before, record=str(tmp_path / "rec")).ret_value
    SEEN.clear()
    for how in ({"replay": str(tmp_path / "rec")}, {"record": str(tmp_path / "rec"), "resume": True}):
        result = recorded.run("a", backend=Said(), mode=now, **how)
        assert result.error() is None
        assert result.ret_value == text
    assert SEEN == []


def test_a_replayed_plan_needs_no_declaration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded.run("a", backend=Said(), mode="plan", record=str(tmp_path / "rec")).sync()
    recorded.compile(Said()).save(tmp_path / "plan.json")
    monkeypatch.setattr(tools, "_DECLARED", {})
    plan = sgl.load_plan(tmp_path / "plan.json")
    assert plan.run(a="a", replay=str(tmp_path / "rec"), backend=Said()).error() is None


# -- every schedule ------------------------------------------------------------------------------------

_KINDS = ("look", "look", "note", "compute")


def random_calls(seed: int) -> tuple[str, list[tuple[str, list[int]]]]:
    """A program of calls, each given what earlier ones gave; and of each its kind and what it reads."""
    random = Random(seed)
    lines, calls = ["def f(a):"], list[tuple[str, list[int]]]()
    for number in range(random.randrange(3, 9)):
        kind = random.choice(_KINDS)
        reads = sorted(random.sample(range(number), random.randrange(min(number, 2) + 1)))
        given = ", ".join([f"'{kind} {number}'", *(f"t{read}" for read in reads)])
        made = f"pure_call('{kind}', ({given},), gives='text')"
        if kind != "compute":
            free = ", order='free'" if kind == "look" else ""
            made = f"tool('{kind}', ({given},), gives='text'{free})"
        lines.append(f"    t{number} = {made}")
        calls.append((kind, reads))
    returned = "".join(f"t{number}, " for number in range(len(calls)))
    return "\n".join([*lines, f"    return ({returned})", ""]), calls


class Schedule:
    """Calls end in an order that is drawn, while others begin; `events` are (number, whether it ended)."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.events: list[tuple[int, bool]] = []
        self.most = 0
        self._waiting: SimpleQueue[tuple[int, threading.Event]] = SimpleQueue()

    def call(self, name: str, *given: str) -> str:
        number, turn = int(name.split()[1]), threading.Event()
        self.events.append((number, False))
        self._waiting.put((number, turn))
        assert turn.wait(LONG_S)
        return f"{number}({','.join(given)})"

    def serve(self, count: int) -> None:
        """End all calls, a drawn one of those that wait at a time."""
        here: list[tuple[int, threading.Event]] = []
        for _ in range(count):
            if not here:
                here.append(self._waiting.get(timeout=LONG_S))
            while self.random.random() < 0.8:
                try:
                    here.append(self._waiting.get(timeout=0.002))
                except Empty:
                    break
            self.most = max(self.most, len(here))
            number, turn = here.pop(self.random.randrange(len(here)))
            self.events.append((number, True))
            turn.set()


def check_schedule(seed: int, passes: list[str]) -> int:
    """Whatever a schedule does, calls in program order keep it; how many calls were made at once."""
    text, calls = random_calls(seed)
    program, _ = run_pipeline(from_text(text, "f.sglir"), Said().target, passes)
    schedule = Schedule(seed)
    serving = threading.Thread(target=schedule.serve, args=(len(calls),), daemon=True)
    serving.start()
    functions: dict[str, Callable[..., Any]] = {
        kind: lambda name, *given: schedule.call(name, *given) for kind in set(_KINDS)
    }
    _, value = run_plan(lower_plan(program, Said().target), {"a": ""}, Session(Said(), 0), functions)
    expected: list[str] = []
    for number, (_, reads) in enumerate(calls):
        expected.append(f"{number}({','.join(expected[read] for read in reads)})")
    assert tuple(value) == tuple(expected), text
    begun = [number for number, ended in schedule.events if not ended]
    assert sorted(begun) == list(range(len(calls))), text  # each once
    for number, (kind, _) in enumerate(calls):
        if kind == "note":
            ended = {one for one, over in schedule.events[: schedule.events.index((number, False))] if over}
            assert ended >= set(range(number)), (text, schedule.events)
    return schedule.most


SEEDS = range(at_depth(20, 40, 1000))


@pytest.mark.slow
def test_tools_in_program_order_keep_it_under_every_schedule() -> None:
    at_once = [check_schedule(seed, ["overlap_tools"]) for seed in SEEDS]
    assert sum(most > 1 for most in at_once) > len(SEEDS) // 2


def test_an_order_that_is_lost_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tools in program order that wait for their arguments alone."""
    order = prepared_block._order

    def lost(*given: Any) -> Any:
        made = order(*given)
        return replace(made, waits=(False,) * len(made.waits))

    monkeypatch.setattr(prepared_block, "_order", lost)

    def caught(seed: int) -> bool:
        try:
            check_schedule(seed, ["overlap_tools"])
        except AssertionError:
            return True
        return False

    assert any(map(caught, range(40)))
