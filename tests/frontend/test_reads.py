"""Reading what generations make where a function runs as Python: when they are launched, what comes back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import sglc as sgl
from sglc.backends.scripted import Asked, ScriptedBackend
from sglc.errors import BackendError
from sglc.passes import compile as compilation
from tests.depth import few
from tests.frontend.programs import READS, body_source, from_file, outcome
from tests.oracle_backend import OracleBackend
from tests.templates import TEMPLATES, ByteTokenizer

PYTHON: dict[str, Any] = {"mode": "python"}


class Noted(ScriptedBackend):
    """Answers with the variable's name in angles, has no answer for `bad`, and notes what was asked."""

    def __init__(self) -> None:
        self.events: list[str] = []
        super().__init__(self.answered)

    def answered(self, asked: Asked) -> str | None:
        self.events.append(f"asked {asked.site.name}")
        return None if asked.site.name == "bad" else f"<{asked.site.name}>"


@pytest.mark.slow
@pytest.mark.parametrize("name", few(READS, 12))
def test_python_gives_what_the_function_gives_otherwise(name: str, tmp_path: Path) -> None:
    backend = OracleBackend()
    program = from_file(tmp_path, READS[name])
    python, otherwise = (program.run("why", backend=backend, seed=3, **how) for how in (PYTHON, {}))
    assert python.error() is None
    assert outcome(python) == outcome(otherwise)


def test_what_is_appended_is_launched_when_python_reads() -> None:
    backend = Noted()

    @sgl.function
    def program(s: Any) -> Any:
        s += "a" + sgl.gen("x")
        s += "b" + sgl.gen("y")
        backend.events.append("appended")
        texts = s["x"], s["x"], s["y"]
        backend.events.append(f"read {[type(text).__name__ for text in texts]}")
        s += "c" + texts[0] + sgl.gen("z")
        backend.events.append("returns")
        return s["z"]

    result = program.run(backend=backend, **PYTHON)
    assert result.text() == "a<x>b<y>c<x><z>"
    assert result.ret_value == "<z>"
    assert backend.events == [
        "appended", "asked x", "asked y", "read ['str', 'str', 'str']", "returns", "asked z",
    ]  # fmt: skip


def test_lists_and_scopes_are_read_as_texts() -> None:
    @sgl.function
    def program(s: Any) -> Any:
        with s.var_scope("part"):
            s += "a" + sgl.gen("x")
        forks = s.fork(2)
        forks += lambda i: str(i) + sgl.gen("tip")
        inner = forks[1].fork(1)
        inner += sgl.gen("deep")
        inner.join()
        tips = s.join(forks)
        s += sgl.gen("several", n=2) + sgl.gen("number", dtype=int)
        return s["part"], tips["tip"], s["deep"], s["several"], s["number"], tips

    backend = ScriptedBackend(lambda asked: "7" if asked.site.name == "number" else f"<{asked.site.name}>")
    result = program.run(backend=backend, **PYTHON)
    deep = [None, ["<deep>"]]
    assert result.ret_value == (
        "a<x>", ["<tip>"] * 2, deep, ["<several>"] * 2, "7", {"tip": ["<tip>"] * 2, "deep": deep},
    )  # fmt: skip
    assert outcome(result) == outcome(program.run(backend=backend))


def test_a_failure_is_raised_where_it_is_read() -> None:
    backend = Noted()

    @sgl.function
    def program(s: Any, catch: bool) -> Any:
        s += "a" + sgl.gen("bad") + "b"
        backend.events.append("before")
        try:
            s += s["bad"]
        except BackendError:
            if not catch:
                raise
            s += "caught"
        backend.events.append("behind")
        s += sgl.gen("y")
        return s["y"]

    failed = program.run(catch=False, backend=backend, **PYTHON)
    error = failed.error()
    assert isinstance(error, BackendError)
    assert error.code == "SGLC521"
    assert backend.events == ["before", "asked bad"]
    caught = program.run(catch=True, backend=backend, **PYTHON)
    assert (caught.error(), caught.text()) == (None, "abcaught<y>")
    assert backend.events[2:] == ["before", "asked bad", "behind", "asked y"]


def test_sites_do_not_depend_on_where_a_run_waits(tmp_path: Path) -> None:
    """A join counts as an occurrence of its name whether or not one launch made all that it gathers."""
    source = body_source(
        """
        s += "a"
        forks = s.fork(2)
        forks += gen("x")
        if q == "wait":
            str(forks[0]["x"])
        forks.join()
        outer = s.fork(1)
        inner = outer[0].fork(1)
        inner += gen("y")
        inner.join()
        if q == "wait":
            str(outer[0]["y"])
        outer.join()
        s += gen("x") + gen("y")
        """
    )
    program, backend = from_file(tmp_path, source), Noted()
    first, second = (program.run(q, backend=backend, **PYTHON) for q in ("no", "wait"))
    assert [call.site for call in first.calls] == [call.site for call in second.calls]
    assert first.text() == second.text()


def test_equal_rows_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    @sgl.function
    def program(s: Any, q: str) -> None:
        s += "Q: " + q + "\n" + sgl.gen("a")
        if s["a"] == q:
            s += "same"
        s += sgl.gen("b")

    compiled: list[Any] = []

    def counted(*args: Any, **options: Any) -> Any:
        compiled.append(args)
        return compile_program(*args, **options)

    compile_program = compilation.compile_program
    monkeypatch.setattr(compilation, "compile_program", counted)
    backend = ScriptedBackend(lambda asked: "r7")
    # One row at a time: those that compile at the same moment may each do it.
    rows = [{"q": f"r{i}"} for i in range(20)]
    results = program.run_batch(rows, backend=backend, num_threads=1, hoist_prefix=False, **PYTHON)
    assert [result.error() for result in results] == [None] * 20
    assert len(compiled) == 3  # what is launched first, and the two ways to go on


def test_a_line_of_thousands_of_terms_runs(tmp_path: Path) -> None:
    body = 's += "a" + gen("x")\ns += ' + " + ".join(['"b"'] * 2_000 + ['s["x"]'])
    program = from_file(tmp_path, body_source(body))
    for how in (PYTHON, {}):
        result = program.run("", backend=Noted(), **how)
        assert result.error() is None
        assert result.text() == "a<x>" + "b" * 2_000 + "<x>"


@pytest.mark.parametrize("how", [PYTHON, {}])
def test_a_joined_branch_keeps_its_text(how: dict[str, Any]) -> None:
    @sgl.function
    def program(s: Any) -> Any:
        s += sgl.user("Q")
        forks = s.fork(2)
        forks += sgl.user("idea") + sgl.assistant(sgl.gen("idea") + "!")
        forks.join()
        s += sgl.gen("behind")
        s += s["behind"]  # launched, and the branches are not kept any more
        with s.copy() as branch:
            branch += "c" + sgl.gen("c")
            again = branch.text()
            branch += "d"
        s += branch.text()[len(again) :]
        return forks[1].text(), forks[1].messages()

    result = program.run(backend=Noted(), **how)
    turns = [("user", "Q"), ("user", "idea"), ("assistant", "<idea>!")]
    text = "".join(f"<|im_start|>{role}\n{said}<|im_end|>\n" for role, said in turns)
    assert result.ret_value == (text, [{"role": role, "content": said} for role, said in turns])
    assert result.text() == "<|im_start|>user\nQ<|im_end|>\n<behind><behind>d"


def test_a_branch_keeps_what_waited_for_a_retry_when_it_was_joined() -> None:
    @sgl.function
    def program(s: Any) -> Any:
        branch = s.fork(1)
        branch += "a" + sgl.gen("n", dtype=int, retries=1) + "b" + sgl.user("c")
        branch.join()
        return branch[0].text(), s["n"]

    backend = ScriptedBackend(lambda asked: "7")
    text = "a7b<|im_start|>user\nc<|im_end|>\n"
    assert program.run(backend=backend).ret_value == (text, ["7"])


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_branch_reads_the_same_before_it_is_joined_behind_that_and_behind_the_run(template: str) -> None:
    @sgl.function
    def program(s: Any) -> Any:
        s += sgl.user(" Q ")
        s += sgl.assistant(sgl.gen("a") + " ")
        branch = s.fork(1)[0]
        branch += sgl.user("more") + sgl.assistant(sgl.gen("b"))
        before = branch.text(), s.text()
        s.join([branch])
        return before, (branch.text(), s.text()), (branch, s)

    backend = Noted()
    backend.target = replace(backend.target, tokenizer=ByteTokenizer(TEMPLATES[template], bos=True))
    before, behind, (branch, state) = program.run(backend=backend, **PYTHON).ret_value
    assert before == behind == (branch.text(), state.text())
    assert "<a>" in before[0]


def test_a_state_that_is_returned_is_read_behind_the_run() -> None:
    @sgl.function
    def program(s: Any) -> Any:
        with s.var_scope("turn"):
            s += sgl.user("Q")
        s += sgl.gen("x")
        forks = s.fork(2)
        forks += sgl.gen("y")
        forks.join()
        return {"state": s, "forks": forks}

    result = program.run(backend=Noted())
    text = "<|im_start|>user\nQ<|im_end|>\n<x>"
    made = result.ret_value
    assert (made["state"].text(), made["state"]["turn"]) == (text, text.removesuffix("<x>"))
    assert str(made["state"]) == f"ProgramState({text})"
    assert result.as_json()["value"] == {"state": text, "forks": [text + "<y>"] * 2}


@pytest.mark.parametrize("how", [PYTHON, {}])
def test_sync_waits_and_raises_nothing(how: dict[str, Any]) -> None:
    backend = Noted()

    @sgl.function
    def program(s: Any) -> Any:
        s += "a" + sgl.gen("x")
        fork = s.fork(1)
        fork += sgl.gen("bad")
        s.sync()
        backend.events.append("behind")
        s += sgl.gen("y")

    result = program.run(backend=backend, **how)
    assert isinstance(result.error(), BackendError)
    assert (result["x"], result["y"]) == ("<x>", "<y>")
    if how:
        assert backend.events == ["asked x", "asked bad", "behind", "asked y"]


def test_a_plan_needs_no_sync() -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += "a" + sgl.gen("x")
        s.sync()
        s += sgl.gen("y")

    assert program.run(backend=Noted(), mode="plan").text() == "a<x><y>"
