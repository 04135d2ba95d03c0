"""A plan's result shows what its function's result shows: from memory, from a file, in batches, streamed."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import sglc as sgl
from sglc.api.plan import LoadedPlan
from sglc.backends.scripted import Asked, ScriptedBackend
from sglc.errors import BackendError, RunError
from sglc.execution.result import Result
from sglc.ir.plan.plan_json import plan_from_json, plan_to_json
from sglc.ir.plan.segment import GenNode, Segment


@sgl.function
def inner(s: Any, word: str) -> Any:
    s += "Inner " + word + sgl.gen("x")
    s["kept"] = "of inner"
    return s["x"]


@sgl.function
def straight(s: Any, q: str) -> Any:
    s += sgl.system("Be brief.")
    with s.var_scope("turns"):
        s += sgl.user("About " + q)
        s += sgl.assistant(sgl.gen("x") + ", " + sgl.gen("y", n=2))
    s += sgl.user("Bye")
    s["pair"] = (1, s["x"])
    rows = [s["x"]]
    s["rows"] = rows
    rows.append("later")


@sgl.function
def in_arms(s: Any, q: str) -> Any:
    with s.var_scope("begin"):
        s += q + sgl.select("a", choices=["x", "y"])
    if s["a"] == "x":
        s["only"] = "of x"
        s += sgl.user("More?")
        s += sgl.assistant(sgl.gen("more"))
        if inner("deep").ret_value == "nothing":
            return "early"
    else:
        s += " because " + sgl.gen("why")
    s["last"] = s["begin"]
    s += " end"
    return s["last"]


@sgl.function
def branches_and_lines(s: Any, q: str) -> Any:
    forks = s.fork(2)
    for i, fork in enumerate(forks):
        fork += f"{q} {i}" + sgl.gen("tip")
    s.join(forks)
    for i in range(2):
        s += sgl.gen("line")
        s[f"line{i}"] = s["line"] + inner(s["line"])["x"]

    return s["tip"][0]


PROGRAMS = [straight, in_arms, branches_and_lines]


def answering(asked: Asked) -> str:
    if asked.choices:
        return asked.choices[len(asked.prompt) % 2]
    return f"<{asked.site} {asked.sample}>"


def shown(result: Result) -> dict[str, Any]:
    """All that a result shows but times."""
    error = result.error()
    if error is not None:
        raise error
    names = list(result.variables)
    meta = {name: result.get_meta_info(name) or {} for name in names}
    return {
        "text": result.text(),
        "said": str(result),
        "messages": result.messages(),
        "value": result.ret_value,
        "variables": {name: result[name] for name in names},
        "all": dict(result.variables),
        "pieces": "".join(map(str, result.text_iter())),
        "by name": {name: list(result.text_iter(name)) for name in names},
        "calls": sorted((str(call.site), call.prompt_ids, call.usage) for call in result.calls),
        "usage": result.usage,
        "meta": {n: {k: v for k, v in info.items() if not k.endswith("_s")} for n, info in meta.items()},
    }


@pytest.fixture
def backend() -> ScriptedBackend:
    return ScriptedBackend(answering)


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("q", ["tea", "teas"])
@pytest.mark.parametrize("live", [False, True])
def test_a_result_shows_the_same(
    program: sgl.Function, q: str, live: bool, backend: ScriptedBackend, tmp_path: Path
) -> None:
    wanted = shown(program.run(q, backend=backend, seed=3, stream=live))
    made = program.compile(backend)
    made.save(tmp_path / "plan.json")
    for plan in (LoadedPlan(made.plan), sgl.load_plan(tmp_path / "plan.json")):
        assert shown(plan.run(q=q, backend=backend, seed=3, stream=live)) == wanted
    assert plan_from_json(plan_to_json(made.plan)) == made.plan


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_batch_shows_the_same(program: sgl.Function, backend: ScriptedBackend) -> None:
    rows = [{"q": "a" * size} for size in range(1, 5)]
    plan = LoadedPlan(program.compile(backend).plan)
    wanted = [shown(result) for result in program.run_batch(rows, backend=backend, seed=3)]
    assert [shown(result) for result in plan.run_batch(rows, backend=backend, seed=3)] == wanted


def test_a_call_has_a_site_of_its_own_in_both_ways(backend: ScriptedBackend) -> None:
    @sgl.function
    def outer(s: Any) -> None:
        s += "a" + sgl.gen("inner")  # a generation of the program's name counts with it
        s["one"], s["two"] = inner("b").ret_value, inner("c").ret_value

    wanted = ["outer.inner#0", "outer.inner#1/inner.x#0", "outer.inner#2/inner.x#0"]
    plan = LoadedPlan(outer.compile(backend).plan)
    for _ in range(2):  # as recorded, and as replayed
        result = outer.run(backend=backend, seed=3)
        assert sorted(str(call.site) for call in result.calls) == wanted
        assert shown(result) == shown(plan.run(backend=backend, seed=3))
    assert result.get_meta_info("x") is None  # of a called program


def test_a_called_program_draws_what_the_plan_draws() -> None:
    @sgl.function
    def outer(s: Any, q: str) -> None:
        s += q + inner(q)["x"] + sgl.gen("y")

    class Noting(ScriptedBackend):
        def submit(self, segment: Segment, **options: Any) -> Any:
            seeds.update((str(node.site), node.seed) for node in segment.nodes if isinstance(node, GenNode))
            return super().submit(segment, **options)

    seeds: set[tuple[str, int | None]] = set()
    noting, rows = Noting(answering), [{"q": "a"}, {"q": "b"}]
    outer.run_batch(rows, backend=noting, seed=5)
    python, seeds = seeds, set()
    LoadedPlan(outer.compile(noting).plan).run_batch(rows, backend=noting, seed=5)
    assert seeds == python
    assert len({seed for _, seed in python} - {None}) == len(python) == 4


def test_a_budget_counts_called_programs(backend: ScriptedBackend) -> None:
    @sgl.function
    def outer(s: Any) -> None:
        s += sgl.gen("x")
        s += str(len(s["x"]))
        s += str(len(inner("word").ret_value)) + sgl.gen("y")

    result = outer.run(backend=backend, max_calls=2)
    error = result.error()
    assert isinstance(error, RunError)
    assert (error.code, "`y`" in error.message) == ("SGLC408", True)
    assert len(result.calls) == 2


def test_a_failed_plan_shows_its_prompt_as_far_as_it_came() -> None:
    def failing(asked: Asked) -> str | None:
        if asked.site.name == "more":
            return None
        return "x" if asked.choices else "said"

    backend = ScriptedBackend(failing)
    python = in_arms.run("q", backend=backend, seed=1)
    result = LoadedPlan(in_arms.compile(backend).plan).run(q="q", backend=backend, seed=1)
    assert type(result.error()) is type(python.error()) is not type(None)
    assert result.partial_text == python.partial_text != ""
    assert result["begin"] == python["begin"] == "qx"


@sgl.function
def fails_in_an_arm(s: Any) -> None:
    with s.var_scope("all"):
        s += "A" + sgl.gen("a")
        if s["a"] == "said":
            s += " in" + sgl.gen("b")
            s["kept"] = "of the arm"
            s += " deep" + sgl.gen("a") + sgl.gen("no")
        s += " end"


@sgl.function
def fails_in_a_round(s: Any) -> None:
    s += "Go"
    for _ in range(9):
        s += " round" + sgl.gen("a")
        if s["a"] == "stop":
            break
        s += " then" + sgl.gen("b")
    s += " end"


@sgl.function
def raises_at_the_end(s: Any) -> None:
    s += "A" + sgl.gen("a")
    if s["a"] == "said":
        raise ValueError("no")
    s += " end"


@pytest.mark.parametrize("program", [fails_in_an_arm, fails_in_a_round, raises_at_the_end])
def test_a_failed_run_leaves_the_same_however_it_ran(program: sgl.Function) -> None:
    def run(runs: Any, **how: Any) -> tuple[str, dict[str, Any]]:
        made: list[str] = []

        def answer(asked: Asked) -> str | None:
            made.append(asked.site.name)
            return None if asked.site.name == "no" or len(made) == 5 else "said"

        result = runs.run(backend=ScriptedBackend(answer), seed=1, **how)
        assert result.error() is not None
        return result.partial_text, dict(result.variables)

    text, variables = run(program, mode="python")
    assert text.startswith(("Asaid", "Go"))
    for runs, how in (
        (program, {"mode": "plan"}),
        (LoadedPlan(program.compile(ScriptedBackend(answering)).plan), {}),
    ):
        its_text, its_variables = run(runs, **how)
        assert its_text == text
        # Of one that was being made again, the value before may stay.
        assert its_variables | variables == its_variables


@sgl.function
def waits_for_somebody(s: Any) -> None:
    s += "A" + sgl.gen("a") + " then" + sgl.gen("b")
    s["kept"] = "before"
    sgl.pause("go", "Go on?")
    s += " on" + sgl.gen("c")
    other = s.fork(1)[0]
    other += " aside" + sgl.gen("d")


@pytest.mark.parametrize("way", ["python", "plan", "file"])
def test_nothing_begins_behind_a_pause_and_all_before_it_is_made(way: Any, tmp_path: Path) -> None:
    backend = ScriptedBackend(lambda asked: "said")
    runs: Any = waits_for_somebody
    how = {} if way == "file" else {"mode": way}
    if way == "file":
        runs = LoadedPlan(waits_for_somebody.compile(backend).plan)
    result = runs.run(backend=backend, record=str(tmp_path), **how)
    assert isinstance(result.error(), RunError)
    assert dict(result.variables) == {"a": "said", "b": "said", "kept": "before"}
    assert result.partial_text == "Asaid thensaid"
    assert backend.calls == 2
    went_on = runs.run(backend=backend, record=str(tmp_path), resume=True, answers={"go": True}, **how)
    assert went_on.text() == "Asaid thensaid onsaid"
    assert (went_on["kept"], backend.calls) == ("before", 4)


@sgl.tool
def weather(city: str) -> str:
    return f"fine in {city}"


@sgl.function
def calls_a_tool(s: Any) -> None:
    s += sgl.user("q")
    s += sgl.assistant(sgl.gen("step", tools=[weather]))
    s += sgl.user(sgl.run_tools(s["step"]))
    s += sgl.assistant(sgl.gen("answer"))


def test_a_text_that_spells_no_call_is_an_error_where_a_plan_of_a_file_is_read(tmp_path: Path) -> None:
    wrong = '<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>'
    backend = ScriptedBackend(lambda asked: wrong if asked.site.name == "step" else "x")
    calls_a_tool.compile(backend).save(tmp_path / "plan.json")
    result = sgl.load_plan(tmp_path / "plan.json", [weather]).run(backend=backend)
    error = result.error()
    assert isinstance(error, RunError)
    defined = calls_a_tool.definition.loc
    assert error.code == "SGLC410"
    assert error.loc is not None
    assert (error.loc.file, error.loc.line) == (defined.file, defined.line + 3)  # of the read
    with pytest.raises(RunError, match="SGLC410"):
        result["step"]
    assert "".join(result.text_iter("step")) == wrong


@sgl.function
def asks_twice(s: Any, go_on: Any) -> None:
    s += "Q" + sgl.gen("said")
    if s["said"]:
        go_on.wait(20)
    s += " and" + sgl.gen("said")


@sgl.function
def says_it_twice(s: Any) -> None:
    s += "Q" + sgl.gen("said") + " and" + sgl.gen("said")


def test_a_body_may_wait_for_who_reads_what_it_has_come_to() -> None:
    """So a value is given before the end; of a plan it is the last one."""
    backend = ScriptedBackend(lambda asked: f" {asked.site.occurrence}")
    go_on = threading.Event()
    result = asks_twice.run(go_on, backend=backend)
    assert result["said"] == " 0"
    go_on.set()
    assert result.sync()["said"] == " 1"
    assert says_it_twice.run(backend=backend, mode="plan")["said"] == " 1"


@sgl.function
def in_an_arm(s: Any) -> None:
    s += "Q" + sgl.select("c", choices=["a", "b"])
    if s["c"] == "a":
        s += "A" + sgl.gen("y") + sgl.gen("z")
    else:
        s += "B" + sgl.gen("other")


@sgl.function
def in_an_arm_of_an_arm(s: Any) -> None:
    s += "Q" + sgl.gen("y") + sgl.select("c", choices=["a", "b"])
    if s["c"] == "a":
        s += "A" + sgl.gen("x")
        if s["x"] != "wrong":
            s += sgl.gen("y") + sgl.gen("z")


@sgl.function
def stored_once_more(s: Any) -> None:
    s += "Q" + sgl.select("c", choices=["a", "b"])
    if s["c"] == "a":
        s += "A" + sgl.gen("y") + sgl.gen("z")
    s["y"] = s["c"] + "!"


@pytest.mark.parametrize("mode", ["plan", "python"])
@pytest.mark.parametrize("program", [in_an_arm, in_an_arm_of_an_arm], ids=lambda program: program.__name__)
def test_what_an_arm_generates_is_read_as_it_comes(program: Any, mode: Any) -> None:
    """The generation behind it waits until it was read."""
    read = threading.Event()

    def answer(asked: Asked) -> str:
        assert asked.site.name != "z" or read.wait(20)
        return asked.choices[0] if asked.choices else f" {asked.site}"

    result = program.run(backend=ScriptedBackend(answer), mode=mode, stream=True)
    occurrence = 0 if program is in_an_arm else 1
    while result["y"] != f" {program.__name__}.y#{occurrence}":  # as Python, the one before
        assert mode == "python"
    assert "".join(result.text_iter("y")) == result["y"]
    read.set()
    assert result.error() is None
    assert list(result.text_iter("y")) == [result["y"]]


def test_what_is_stored_behind_an_arm_is_not_read_before() -> None:
    backend = ScriptedBackend(lambda asked: asked.choices[0] if asked.choices else " said")
    assert list(stored_once_more.run(backend=backend, mode="plan", stream=True).text_iter("y")) == ["a!"]


def test_a_failure_in_an_arm_is_told_where_it_is_read() -> None:
    backend = ScriptedBackend(
        lambda asked: asked.choices[0] if asked.choices else None if asked.site.name == "y" else " z"
    )
    for mode in ("plan", "python"):
        result = in_an_arm.run(backend=backend, mode=mode)
        with pytest.raises(BackendError, match="SGLC521"):
            result["y"]
        assert result.variables == {"c": "a"}
        assert [failure.site.name for failure in result.failures] == ["y", "z"]


@sgl.function
def typed_list(s: Any) -> Any:
    s += "a" + sgl.gen("x", dtype=list, max_tokens=5000)


@pytest.mark.parametrize("deep", [500, 900])
def test_a_value_may_be_nested_deeper_than_what_looks_at_it(deep: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sglc.frontend.outputs.output_form._DEEPEST", deep)
    backend = ScriptedBackend(lambda asked: "[" * deep + "]" * deep)
    result = typed_list.run(backend=backend, mode="plan")
    assert result.error() is None
    assert str(result["x"]).startswith("[[[[")


@pytest.mark.parametrize("kind", [RecursionError, LookupError])
def test_nobody_waits_where_a_value_cannot_be_stored(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*given: Any) -> None:
        raise kind("too deep")

    monkeypatch.setattr("sglc.execution.plan.run.PlanPart._store", fails)
    result = inner.run("word", backend=ScriptedBackend(lambda asked: "b"), mode="plan")
    assert isinstance(result.error(), kind)
