"""The loop that runs passes: order, checks between them, what it reports."""

from __future__ import annotations

import gc
import random
import sys
from dataclasses import replace
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import pytest

import sglc as sgl
from sglc.errors import LegalizeError, UsageError, VerifyError
from sglc.frontend.tracing.trace import explored
from sglc.ir.core import Op, Program, walk
from sglc.ir.ops import Gen, Select
from sglc.ir.plan import asked
from sglc.ir.rewrite import rewritten
from sglc.ir.sampling import Sampling
from sglc.ir.target import Target
from sglc.ir.text.printer import from_text, to_text
from sglc.passes import compile as compile_module
from sglc.passes import fold_text, share_prefixes
from sglc.passes.base import PASSES, Exactness, Pass, run_pipeline
from sglc.passes.compile import compile_program
from sglc.passes.pipelines import LOCAL, pipeline_for
from tests.depth import at_depth
from tests.random_programs import random_program
from tests.templates import CHATML, ByteTokenizer

PLAIN = Target("plain")
CHAT = Target("local", ByteTokenizer(CHATML))
TEXT = """\
def f():
    s0 = root()
    s1 = append(s0, 'a')
    s2 = append(s1, 'b')
    s3 = root()
    s4 = append(s3, 'ab')
    return (s2, s4)
"""


def program() -> Program:
    return from_text(TEXT, "f.sglir")


def test_what_is_not_there_is_not_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first call waits for these walks: for texts in texts, for what is equal, and for questions that are
    marked."""
    calls: list[str] = []

    def counted(module: ModuleType, name: str) -> None:
        before = getattr(module, name)

        def count(*args: Any) -> Any:
            calls.append(name)
            return before(*args)

        monkeypatch.setattr(module, name, count)

    counted(fold_text, "_formats")
    counted(share_prefixes, "_merge")
    counted(asked, "numbered")
    sampled = from_text(
        "def f():\n    s0 = root()\n    s1, t0 = gen(s0, 'x', max_tokens=2)\n    return t0\n",
        "f.sglir",
    )
    assert asked.asked_in_plan(compile_program(sampled, PLAIN).plan) is asked.NOTHING_ASKED
    assert calls == []


@sgl.function
def searching(s: Any, question: str) -> None:
    s += question + sgl.select("search", choices=["yes", "no"])
    if s["search"] == "yes":
        s += " Query:" + sgl.gen("query")
    s += " Answer:" + sgl.gen("answer")
    if s["answer"] == "never":
        s += " again"


def test_nothing_that_a_first_call_makes_waits_to_be_collected() -> None:
    """Else it meets a collection, which takes as long as a pass."""

    def made() -> object:
        return compile_program(explored(searching.definition, Sampling()).program, PLAIN, to_run=True)

    made()  # what is imported and remembered is there
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        made()
        gc.collect()
        kept = [type(one).__name__ for one in gc.garbage if type(one).__module__.startswith("sglc.")]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert kept == []


def test_nothing_is_found_out_by_an_exception() -> None:
    """What an op reads is asked for a first time: an exception takes ten times as long as an answer."""
    raised: list[str] = []

    def seen(frame: FrameType, event: str, given: Any) -> Any:
        frame.f_trace_lines = False
        if event == "exception" and issubclass(given[0], AttributeError):
            raised.append(frame.f_code.co_qualname)
        return seen

    program = explored(searching.definition, Sampling()).program
    before = sys.gettrace()
    sys.settrace(seen)
    try:
        compile_program(program, PLAIN, to_run=True)
    finally:
        sys.settrace(before)
    assert not {"inputs", "operands", "regions"} & {*raised}


def test_passes_run_in_order_and_are_observed() -> None:
    seen: list[tuple[str, int]] = []
    run_pipeline(
        program(),
        PLAIN,
        ["fold_text", "share_prefixes"],
        observe=lambda name, p: seen.append((name, len(p.ops))),
    )
    assert seen == [("fold_text", 4), ("share_prefixes", 2)]
    seen.clear()
    run_pipeline(
        program(),
        PLAIN,
        ["share_prefixes", "fold_text"],
        observe=lambda name, p: seen.append((name, len(p.ops))),
    )
    assert seen == [("share_prefixes", 4), ("fold_text", 3)]


def test_no_passes_still_verify() -> None:
    assert run_pipeline(program(), PLAIN, []) == (program(), ())
    with pytest.raises(VerifyError):
        run_pipeline(Program("f", (), program().ops[1:]), PLAIN, [])


def test_unknown_pass_is_refused_before_anything_runs() -> None:
    seen: list[str] = []
    with pytest.raises(UsageError, match="SGLC020") as caught:
        run_pipeline(program(), PLAIN, ["fold_text", "foldtext"], observe=lambda name, _: seen.append(name))
    assert seen == []
    for name in PASSES:
        assert name in caught.value.note


def test_a_broken_pass_is_found_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(p: Program, _: Target) -> Program:
        return Program(p.name, p.params, p.ops[1:], p.returns)

    monkeypatch.setitem(PASSES, "broken", Pass("broken", Exactness.TOKENS, broken, "drops the first op"))
    seen: list[str] = []
    with pytest.raises(VerifyError, match="SGLC203"):
        run_pipeline(program(), PLAIN, ["fold_text", "broken"], observe=lambda name, _: seen.append(name))
    assert seen == ["fold_text"]
    with pytest.raises(VerifyError, match="pass `broken` made it"):
        run_pipeline(program(), PLAIN, ["fold_text", "broken", "share_prefixes"], step_by_step=False)


def test_what_is_wrong_at_first_is_said_of_no_pass() -> None:
    with pytest.raises(VerifyError) as caught:
        run_pipeline(Program("f", (), program().ops[1:]), PLAIN, LOCAL, step_by_step=False)
    assert "made it" not in str(caught.value)


@pytest.mark.parametrize("chat", [False, True])
def test_passes_give_the_same_where_only_the_last_program_is_verified(chat: bool) -> None:
    target = CHAT if chat else PLAIN
    for seed in range(at_depth(15, 60, 500)):
        source = random_program(seed, chat=chat, regions=True)
        names = random.Random(seed).choice([LOCAL, (*LOCAL, *LOCAL)])
        try:
            expected = run_pipeline(source, target, names)
        except LegalizeError as error:
            with pytest.raises(LegalizeError, match=error.code):
                run_pipeline(source, target, names, step_by_step=False)
            continue
        made, said = run_pipeline(source, target, names, step_by_step=False)
        # But for what tells people of the program, and in which order rows run: no run reads it.
        assert to_text(made, locs=True) == to_text(without_marks(expected[0]), locs=True)
        # A pass that finds nothing new is not asked again.
        assert {one.source for one in expected[1] if one not in said} <= {"compile_constraints", "hoist_prefix"}


def test_a_pass_of_the_users_sees_in_runs_what_it_sees_in_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[tuple[str, tuple[str, ...]]]] = []

    def look(program: Program, target: Target) -> Program:
        seen.append([(op.fsm, op.hoist) for op in walk(program.ops) if isinstance(op, Gen)])
        return program

    @sgl.function
    def pick(s: Any, text: str) -> None:
        s += text + sgl.gen("digits", regex="[0-9]+")

    monkeypatch.setitem(PASSES, "look", Pass("look", Exactness.TOKENS, look, "looks"))
    for step_by_step in (True, False):
        run_pipeline(pick.trace(), CHAT, (*LOCAL, "look"), step_by_step=step_by_step)
    shown, run = seen
    assert shown == run
    assert all(mark for marks in shown for mark in marks), shown


def test_what_is_refused_takes_no_place_in_the_cache() -> None:
    before = dict(compile_module._CACHE)
    wrong = Program("f", (), program().ops[1:])
    with pytest.raises(VerifyError):
        compile_module.cached(wrong, PLAIN)
    assert compile_module._CACHE.keys() == before.keys()


def without_marks(before: Program) -> Program:
    def changed(op: Op) -> Op:
        return replace(op, fsm="", hoist=()) if isinstance(op, Gen | Select) else op

    return replace(before, ops=rewritten(before.ops, changed))


def test_debug_and_dump(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SGLC_DUMP", str(tmp_path / "dump"))
    monkeypatch.setenv("SGLC_DEBUG", "2")
    after, _ = run_pipeline(program(), PLAIN, ["fold_text", "share_prefixes"])
    out, err = capsys.readouterr()
    assert out == ""
    assert "pass fold_text: " in err
    assert to_text(after, locs=True) in err
    (folder,) = (tmp_path / "dump").iterdir()
    files = sorted(path.name for path in folder.iterdir())
    assert files == ["00-input.sglir", "01-fold_text.sglir", "02-share_prefixes.sglir"]
    assert (folder / files[0]).read_text(encoding="utf-8") == to_text(program(), locs=True)
    assert (folder / files[2]).read_text(encoding="utf-8") == to_text(after, locs=True)


@pytest.mark.parametrize("folder", ["file", "file/below"])
def test_a_dump_that_cannot_be_written_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: str
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SGLC_DUMP", str(tmp_path / folder))
    with pytest.raises(UsageError, match="`SGLC_DUMP`") as caught:
        run_pipeline(program(), PLAIN, ["fold_text"])
    assert caught.value.code == "SGLC001"


def test_nothing_is_printed_without_debug(capsys: pytest.CaptureFixture[str]) -> None:
    run_pipeline(program(), PLAIN, LOCAL)
    assert capsys.readouterr() == ("", "")


def test_every_pass_says_what_it_is() -> None:
    for name, made in PASSES.items():
        assert made.name == name
        assert made.summary
        assert made.run.__doc__
        assert "->" in made.run.__doc__
        assert isinstance(made.exactness, Exactness)
    assert set(pipeline_for(PLAIN)) <= set(PASSES)
