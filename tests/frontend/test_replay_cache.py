"""Runs that share a replay cache record what a run of its own records: programs, slots, handles, sites."""

from __future__ import annotations

from contextvars import copy_context
from random import Random
from typing import Any

import pytest

import sglc as sgl
from sglc.backends.scripted import ScriptedBackend
from sglc.execution.function_run import FunctionRun
from sglc.execution.lifecycle import CallSetup, RunSetup
from sglc.execution.session import Session
from sglc.frontend.recorder.replay_cache import CachingRecorder, ReplayCache
from sglc.frontend.values.recorded import Recorded
from sglc.ir.sampling import Sampling
from tests.depth import at_depth

ANSWERS = ("yes", "no", "so it is")


@sgl.function
def wanderer(s: Any, seed: int) -> Any:
    """A random walk over the language: what it does depends on `seed`, and on what it has read."""
    random = Random(seed)
    states, names = [s], ["x"]
    for _ in range(random.randint(1, 14)):
        state = random.choice(states)
        match random.randint(0, 13):
            case 0 | 1 | 10 | 11 | 12 | 13:
                state += random.choice(["one ", "two ", f"{seed} ", "one "])
            case 2 | 3:
                name = random.choice(["x", "y"])
                state += sgl.gen(name, max_tokens=random.choice([4, 8]), stop=random.choice([None, "."]))
                names.append(name)
            case 4:
                state += sgl.select("z", choices=random.choice([["yes", "no"], ["no", f"{seed}"], ["a", "a"]]))
            case 5:
                states += s.fork(random.randint(1, 3))
            case 6:
                states = [s]
                forks = s.fork(2)
                forks += "b" + sgl.gen("t")
                forks.join()
            case 7:
                if state._stream.turns.open:
                    state += sgl.assistant_end()
                else:
                    state += sgl.user(f"q{random.randint(0, 1)}") + sgl.assistant_begin()
            case 8:
                name = random.choice(names)
                if name in state and state[name] == "yes":
                    state += "so "
            case 9:
                with state.var_scope("v"):
                    state += "in" + sgl.gen("w")
    for state in states:
        if state._stream.turns.open:
            state += sgl.assistant_end()
    return {name: s[name] for name in ("x", "y") if name in s}


class Watched(Session):
    """A run that keeps what was launched."""

    def launch(self, recorded: Recorded) -> None:
        launched.append((recorded.program, dict(recorded.texts), recorded.release, recorded.final))
        super().launch(recorded)


launched: list[Any] = []


def walk(seed: int, cache: ReplayCache, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Any], Any]:
    """What one run launches, and what comes of it."""
    monkeypatch.setattr("sglc.execution.lifecycle.Session", Watched)
    launched.clear()
    backend = ScriptedBackend(
        lambda asked: asked.choices[0] if asked.choices else ANSWERS[(len(asked.prompt) + asked.sample) % 3]
    )
    setup = RunSetup(CallSetup("wanderer", backend, 1), 0, copy_context())
    run = FunctionRun(wanderer.definition, {"seed": seed}, Sampling(), setup, cache)
    run.run()
    result = run.result
    error = result.error()
    shown = (result.partial_text, dict(result.variables), None if error is None else str(error))
    return list(launched), (shown, [(call.site, call.loc) for call in result.calls])


def differs(monkeypatch: pytest.MonkeyPatch, programs: int) -> int | None:
    """The first seed whose run with a shared cache is not as it would be alone; None if there is none."""
    shared = ReplayCache()
    for again in (False, True):
        if again:
            known = shared.recorded
        for seed in range(programs):
            if walk(seed, shared, monkeypatch) != walk(seed, ReplayCache(), monkeypatch):
                return seed
    assert shared.recorded == known  # the second time every step was replayed
    assert shared.nodes > min(500, 8 * programs)
    return None


def test_a_replay_cache_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert differs(monkeypatch, at_depth(25, 250, 1000)) is None


FAULTS: dict[str, Any] = {
    "equal texts are not seen": ("_slot", lambda self, text: -1),
    "occurrences are not counted": ("_count", lambda self, path, name: None),
    "streams have no name in a step": ("_name", lambda self, stream: 0),
    "what was recorded before is lost": ("_leave", lambda self: setattr(self, "_at", None)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_replay_cache_is_caught(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CachingRecorder, *FAULTS[fault])
    try:
        caught = differs(monkeypatch, at_depth(60, 250, 1000)) is not None
    except (AssertionError, KeyError, ValueError, AttributeError):
        caught = True
    assert caught


def test_equal_rows_are_recorded_once() -> None:
    @sgl.function
    def program(s: Any, q: str) -> None:
        s += "Q: " + q + "\n" + sgl.gen("a")
        if s["a"] == q:
            s += "same"
        s += sgl.gen("b")

    backend = ScriptedBackend(lambda asked: "r7")
    results = program.run_batch([{"q": f"r{i}"} for i in range(200)], backend=backend)
    assert [result.error() for result in results] == [None] * 200
    cache = program._replay_cache
    # One first launch, and two that may follow; rows that record at the same time may each record.
    assert cache.recorded <= 3 * 64
    before = cache.recorded
    program.run_batch([{"q": f"r{i}"} for i in range(200)], backend=backend)
    assert cache.recorded == before


def test_a_replay_cache_does_not_grow_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sglc.frontend.recorder.replay_cache._MOST_NODES", 20)
    shared = ReplayCache()
    for seed in range(40):
        assert walk(seed, shared, monkeypatch) == walk(seed, ReplayCache(), monkeypatch), seed
    assert shared.nodes <= 20
