"""`outputs`: what is not asked for is not made where a plan runs, and cannot be read however it runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sglc as sgl
from sglc.backends.scripted import Asked, ScriptedBackend
from sglc.cli import main
from sglc.errors import MissingVariable, UsageError
from sglc.execution.result import Result

NOTED: list[str] = []
MODES = ["plan", "python"]


@sgl.tool
def note(text: str) -> str:
    NOTED.append(text)
    return text.upper()


@sgl.function
def review(s: Any, essay: str) -> str:
    """Five generations: `score` needs `reason`, the tool needs `title`, a decision needs `mood`."""
    s += essay
    marks, about, title, mood = s.fork(4)
    marks += sgl.gen("reason") + " so " + sgl.gen("score")
    about += sgl.gen("summary")
    s["score"], s["summary"] = marks["score"], about["summary"]
    title += sgl.gen("title")
    noted = str(note(title["title"]))
    mood += sgl.select("mood", ["good", "bad"])
    if mood["mood"] == "good":
        s += sgl.gen("praise")
    else:
        s += sgl.gen("blame")
    s += sgl.gen("last")
    return noted


@sgl.function
def opens(s: Any, essay: str) -> None:
    """It goes on as ordinary Python behind a rare answer."""
    s += essay + sgl.gen("kind")
    side = s.fork(1)
    side[0] += sgl.gen("side")
    if s["kind"] == "rare":
        open("/dev/null").close()
    s += sgl.gen("score")


class Heard(ScriptedBackend):
    """Answers with the name and the length of the prompt; `made` are the names that it was asked for."""

    def __init__(self, **said: str) -> None:
        self.made: list[str] = []

        def answer(asked: Asked) -> str:
            self.made.append(asked.site.name)
            if asked.choices:
                return asked.choices[0]
            return said.get(asked.site.name, f"{asked.site.name} {len(asked.prompt)}.")

        super().__init__(answer)


@pytest.fixture(autouse=True)
def nothing_noted() -> None:
    NOTED.clear()


NEEDED = ["mood", "title"]  # whatever is asked for: a decision reads one, a tool the other


@pytest.mark.slow
@pytest.mark.parametrize(
    ("outputs", "made"),
    [
        (None, ["last", "mood", "praise", "reason", "score", "summary", "title"]),
        ([], NEEDED),
        (["score"], ["mood", "reason", "score", "title"]),
        (["summary"], ["mood", "summary", "title"]),
        (["praise", "blame"], ["mood", "praise", "title"]),
        (["last", "last"], ["last", "mood", "praise", "title"]),
    ],
)
def test_a_plan_makes_what_is_asked_for_and_python_gives_the_same(
    outputs: list[str] | None, made: list[str]
) -> None:
    heard = Heard()
    whole = review.run("Tea.", backend=heard, seed=1).sync()
    everything = sorted(heard.made)
    for mode in MODES:
        backend = Heard()
        result = review.run("Tea.", backend=backend, seed=1, outputs=outputs, mode=mode)
        assert result.error() is None
        assert (result.mode, result.ret_value) == (mode, whole.ret_value)
        assert NOTED.pop() == whole.ret_value.lower()
        asked = [name for name in whole.variables if outputs is None or name in outputs]
        assert result.variables == {name: whole[name] for name in asked}
        assert sorted(backend.made) == (made if mode == "plan" else everything)


READS: dict[str, Callable[[Result], Any]] = {
    "item": lambda result: result["reason"],
    "get_var": lambda result: result.get_var("summary"),
    "text": lambda result: result.text(),
    "messages": lambda result: result.messages(),
    "meta": lambda result: result.get_meta_info("reason"),
    "pieces": lambda result: list(result.text_iter("summary")),
    "all pieces": lambda result: list(result.text_iter()),
    "async pieces": lambda result: asyncio.run(anext(result.text_async_iter("summary"))),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("read", READS)
def test_reading_what_was_not_asked_for_is_an_error_that_names_outputs(mode: Any, read: str) -> None:
    result = review.run("Tea.", backend=Heard(), outputs=["score"], mode=mode)
    for _ in range(2):  # while it runs, perhaps, and behind its end
        with pytest.raises(MissingVariable, match=r"SGLC083.*`outputs`") as caught:
            READS[read](result)
        assert "['score']" in caught.value.note
        result.sync()


@pytest.mark.parametrize("mode", MODES)
def test_what_else_a_result_shows(mode: Any) -> None:
    result = review.run("Tea.", backend=Heard(), outputs=["score"], mode=mode)
    assert ("score" in result, "reason" in result) == (True, False)
    assert list(result.text_iter("score")) == [result["score"]]
    shown = result.as_json()
    assert (shown["text"], list(shown["vars"])) == (None, ["score"])
    assert str(result) == "ProgramState()"
    result["reason"] = "mine"
    assert result["reason"] == "mine"


@pytest.mark.parametrize("mode", [*MODES, "auto"])
def test_a_name_that_the_program_never_makes_is_refused(mode: Any) -> None:
    backend = Heard()
    with pytest.raises(UsageError, match=r"SGLC082.*`scor`") as caught:
        review.run("Tea.", backend=backend, outputs=["scor"], mode=mode)
    assert caught.value.note == "it makes: `score`, `summary`, `praise`, `blame`, `last`"
    with pytest.raises(UsageError, match="SGLC082"):
        review.run_batch([{"essay": "Tea."}], backend=backend, outputs=["scor"], mode=mode)
    with pytest.raises(UsageError, match="SGLC082"):
        review.run("Tea.", backend=backend, outputs="score", mode=mode)
    assert not backend.made


def test_a_program_that_goes_on_as_python_may_make_anything() -> None:
    for said, score in (("rare", "score 8."), ("often", "score 9.")):
        for outputs in (["score"], ["score", "unknown"]):
            backend = Heard(kind=said)
            result = opens.run("Tea.", backend=backend, outputs=outputs)
            assert (result["score"], result.error()) == (score, None)
            assert "unknown" not in result
            with pytest.raises(MissingVariable, match="SGLC083"):
                result.text()
            assert backend.made.count("kind") == 1
            assert (result.mode == "python") is (said == "rare")


def test_every_way_to_run_takes_outputs(tmp_path: Path) -> None:
    rows = [{"essay": "Tea."}, {"essay": "Coffee."}]
    made = ["mood", "reason", "score", "title"]
    backend = Heard()

    def ran(*results: Result) -> None:
        assert all(result["score"].startswith("score") and "reason" not in result for result in results)
        assert sorted(backend.made) == sorted(made * len(results))
        backend.made.clear()

    ran(*review.run_batch(rows, backend=backend, outputs=["score"]))
    ran(*review.stream_batch(rows, backend=backend, outputs=["score"]))
    ran(asyncio.run(review.arun("Tea.", backend=backend, outputs=["score"])))
    compiled = review.compile(backend, outputs=["score"])
    ran(compiled.run("Tea."))
    compiled.save(tmp_path / "plan.json")
    plan = sgl.load_plan(tmp_path / "plan.json", [note])
    assert plan.plan.outputs == ("score",)
    ran(plan.run(essay="Tea.", backend=backend))
    ran(*plan.run_batch(rows, backend=backend))
    pieces = {site.name for site, _ in review.stream("Tea.", backend=backend, outputs=["score"])}
    assert pieces == {"mood", "reason", "score", "title"}
    assert "prune: `review[1].summary#0`" in review.explain(backend, outputs=["score"]).text()


def test_plans_with_and_without_outputs_stand_side_by_side() -> None:
    backend = Heard()
    for outputs in (None, ["score"], None, ["summary"], ["score"]):
        backend.made.clear()
        review.run("Tea.", backend=backend, outputs=outputs, mode="plan").sync()
        assert ("summary" in backend.made) == (outputs is None or "summary" in outputs)
        assert ("reason" in backend.made) == (outputs is None or "score" in outputs)


def test_a_pass_less_makes_all_and_reads_the_same() -> None:
    backend = Heard()
    result = review.run("Tea.", backend=backend, outputs=["score"], passes="-prune")
    assert result["score"]
    assert "reason" not in result
    assert "summary" in backend.made


PROGRAM = """\
import sglc as sgl


@sgl.function
def ask(s, question):
    s += question
    a, b = s.fork(2)
    a += sgl.gen("score")
    b += sgl.gen("reason")
    s["score"], s["reason"] = a["score"], b["reason"]
    s += sgl.gen("last")
"""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "ask.py").write_text(PROGRAM)
    (tmp_path / "answers.json").write_text(json.dumps([{"name": "score", "text": "seven"}]))
    (tmp_path / "rows.jsonl").write_text('{"question": "a"}\n{"question": "b"}\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_the_command_line_takes_outputs(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The script has no other answer: what is not asked for would fail."""
    given = ["--backend", "scripted:answers.json", "--outputs", "score"]
    assert main(["run", "ask.py", *given, "--arg", "question=Why?"]) == 0
    assert capsys.readouterr().out == 'score = "seven"\n'
    assert main(["run", "ask.py", *given, "--arg", "question=Why?", "--passes", "+fold_text", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["vars"] == {"score": "seven"}
    assert main(["run", "ask.py", *given, "--batch", "rows.jsonl", "--json"]) == 0
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["vars"], row["text"]) for row in shown] == [({"score": "seven"}, None)] * 2
    compile_for = ["compile", "ask.py", "--target", "scripted:answers.json", "--outputs", "score"]
    assert main([*compile_for, "--emit", "ir"]) == 0
    found = capsys.readouterr().out
    assert "def ask(question) -> ('score',):" in found
    assert "reason" not in found
    assert main([*compile_for, "--emit", "json", "-o", "plan.json"]) == 0
    assert main(["run", "plan.json", "--backend", "scripted:answers.json", "--arg", "question=Why?"]) == 0
    assert capsys.readouterr().out == 'score = "seven"\n'
    assert main(["explain", "ask.py", "--target", "scripted:answers.json", "--outputs", "score"]) == 0
    assert "`ask[1].reason#0` is not generated" in capsys.readouterr().out


def test_a_batch_goes_on_with_the_outputs_that_it_began_with(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["run", "ask.py", "--backend", "scripted:answers.json", "--batch", "rows.jsonl", "-o", "out.jsonl"]
    assert main([*given, "--outputs", "score"]) == 0
    assert main([*given, "--outputs", "score", "--resume"]) == 0
    assert main([*given, "--outputs", "reason", "--resume"]) == 2
    assert "the option `outputs` was ['score'] and is ['reason']" in capsys.readouterr().err
