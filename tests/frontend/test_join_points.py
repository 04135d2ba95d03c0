"""Arms of a branch meet behind it where nothing can tell them apart, and nowhere else."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import sglc as sgl
from sglc.backends.scripted import Asked, ScriptedBackend
from sglc.frontend.tracing import join_points, trace
from sglc.frontend.tracing.control import asked_of_texts
from sglc.frontend.tracing.interpreter import operations
from sglc.frontend.tracing.tracer import Tracer
from sglc.ir.core import walk
from sglc.ir.ops import Cond, Switch
from sglc.ir.sampling import Sampling
from sglc.ir.text.printer import to_text
from tests.depth import at_depth
from tests.frontend.branches import branching_source

PROGRAMS = at_depth(40, 150, 3_000)
ANSWERS = 4  # sets of answers that each program is run with
MOST = 300  # programs until a planted fault has to be found


def backend(number: int) -> ScriptedBackend:
    """Answers that depend on the prompt, the number of the site, and `number` alone."""

    def answer(asked: Asked) -> str:
        drawn = hashlib.sha256(f"{number} {asked.site.occurrence} {asked.prompt}".encode()).digest()[0]
        texts = asked.choices or ("a", "b", "ab", " a ")
        return texts[drawn % len(texts)]

    return ScriptedBackend(answer)


def branches(program: sgl.Function) -> list[Cond | Switch]:
    return [op for op in walk(program.trace().ops) if isinstance(op, Cond | Switch)]


# -- programs of which it is known ---------------------------------------------------------------------


@sgl.function
def twenty_questions(s: Any, text: str) -> None:
    s += text
    for i in range(20):
        s += f"{i}:" + sgl.select(f"q{i}", choices=["yes", "no"])
        if s[f"q{i}"] == "yes":
            s += " since" + sgl.gen(f"why{i}", max_tokens=3)
    s += "That is all."


@sgl.function
def watches_for_words(s: Any) -> None:
    for word in ("stop", "wait", "end"):
        s += sgl.gen("said", max_tokens=3)
        if s["said"] == word:
            s += " indeed"


@sgl.function
def asks_again(s: Any) -> None:
    s += sgl.select("x", choices=["yes", "no"])
    if s["x"] == "yes":
        s += "first"
    s += sgl.gen("y", max_tokens=3)
    if s["x"] == "yes":
        s += "second"


@sgl.function
def says_what_was_decided(s: Any) -> None:
    s += sgl.gen("x", choices=["yes", "no"]) + "."
    if s["x"] == "yes":
        s += "first" + sgl.gen("y", max_tokens=3)
    s += "(" + s["x"] + ")"


@sgl.function
def assigns(s: Any) -> Any:
    found = []
    for i in range(3):
        s += sgl.select(f"x{i}", choices=["yes", "no"])
        if s[f"x{i}"] == "yes":
            found.append(i)
    return found


@sgl.function
def counts_sites(s: Any) -> None:
    s += sgl.select("x", choices=["yes", "no"])
    if s["x"] == "yes":
        s += sgl.gen("y", max_tokens=3)
    s += "," + sgl.gen("y", max_tokens=3)


@sgl.function
def looks_for_a_variable(s: Any) -> None:
    s += sgl.select("x", choices=["yes", "no"])
    if s["x"] == "yes":
        s += sgl.gen("y", max_tokens=3)
    s += "there" if "y" in s else "not there"


@sgl.tool
def told(text: str) -> str:
    return f"<{text}>"


@sgl.function
def reads_in_an_arm(s: Any) -> None:
    s += sgl.gen("x", max_tokens=3) + sgl.select("y", choices=["yes", "no"])
    if s["y"] == "yes":
        s += s["x"]
    s += told("constant")


def test_what_follows_many_questions_is_recorded_once() -> None:
    made = branches(twenty_questions)
    assert len(made) == 20  # path by path there would be 2**20, of which 64 are recorded
    assert sum(isinstance(op, Switch) for op in twenty_questions.trace().ops) == 20  # none in another
    scripted = backend(0)
    whole = twenty_questions.run(text="T", backend=scripted, seed=1, mode="plan")
    python = twenty_questions.run(text="T", backend=scripted, seed=1, mode="python")
    assert (whole.text(), dict(whole.variables)) == (python.text(), dict(python.variables))


@pytest.mark.parametrize(
    "program",
    [asks_again, says_what_was_decided, assigns, counts_sites, looks_for_a_variable, reads_in_an_arm],
    ids=lambda p: p.__name__,
)
def test_what_knows_the_arms_apart_is_recorded_path_by_path(
    program: sgl.Function, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, on_all_paths = trace.explored(program.definition, Sampling()).program, trace._on_all_paths

    def path_by_path(tracer: Tracer, *others: Any) -> Any:
        tracer.joins = False
        return on_all_paths(tracer, *others)

    monkeypatch.setattr(trace, "_on_all_paths", path_by_path)
    assert to_text(made) == to_text(trace.explored(program.definition, Sampling()).program)


def test_what_a_branch_asks_is_recorded_once_for_its_arms(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def counted(tracer: Tracer, op: Any, left: Any, right: Any, *others: Any) -> Any:
        asked.append(right)
        return asked_of_texts(tracer, op, left, right, *others)

    monkeypatch.setattr(operations, "asked_of_texts", counted)
    assert len(branches(watches_for_words)) == 3
    assert asked == ["stop", "wait", "end"]


def test_no_more_arms_are_recorded_than_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join_points, "MOST_ARMS", 10)
    (found,) = trace.explored(twenty_questions.definition, Sampling()).graph_breaks
    assert found.code == "SGLC146"  # of path by path, which ends at so many paths


# -- random ones ---------------------------------------------------------------------------------------


def loaded(folder: Path, seed: int) -> ModuleType:
    path = folder / f"branches_{seed}.py"
    path.write_text(branching_source(seed))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def outcome(module: ModuleType, mode: str, number: int) -> dict[str, Any]:
    """All that can be seen of a run."""
    module.SEEN.clear()
    result = module.program.run(text="T", word="w", backend=backend(number), seed=1, mode=mode)
    error = result.error()
    seen: dict[str, Any] = {"error": None if error is None else str(error), "tools": list(module.SEEN)}
    if error is None:
        seen |= {
            "text": result.text(), "variables": dict(result.variables), "value": result.ret_value,
            "calls": result.usage.calls, "messages": result.messages(),
        }  # fmt: skip
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("part", range(at_depth(2, 5, 30)))
def test_programs_full_of_branches_run_equally(part: int, tmp_path: Path) -> None:
    for seed in range(part, PROGRAMS, at_depth(2, 5, 30)):
        module = loaded(tmp_path, seed)
        for number in range(ANSWERS):
            assert outcome(module, "auto", number) == outcome(module, "python", number), branching_source(seed)


def test_arms_of_random_programs_meet_and_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    traced: list[bool] = []
    on_all_paths = trace._on_all_paths

    def counted(tracer: Tracer, *others: Any) -> Any:
        made = on_all_paths(tracer, *others)
        traced.append(bool(tracer.joined))
        return made

    monkeypatch.setattr(trace, "_on_all_paths", counted)
    for seed in range(60):
        outcome(loaded(tmp_path, seed), "auto", 0)
    assert traced.count(True) > 10
    assert traced.count(False) > 10


FAULTS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "local variables may differ": (join_points, "_same", lambda values, before: True),
    "containers may be changed": (Tracer, "about_to_change", lambda tracer: None),
    "sites are counted for all arms": (Tracer, "made_unevenly", lambda tracer: False),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_found(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*FAULTS[fault])
    for seed in range(MOST):
        module = loaded(tmp_path, seed)
        for number in range(ANSWERS):
            if outcome(module, "auto", number) != outcome(module, "python", number):
                return
    pytest.fail(f"{MOST} programs do not show that {fault}")
