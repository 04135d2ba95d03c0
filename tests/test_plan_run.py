"""Plans that run: control flow, tools and kept streams on back ends without a model, and twice on a real one.

What a plan means is in test_semantics and test_regions; here it is executed, and what ran is compared
with the interpreter, which is given the same answers.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import sglc as sgl
from sglc.backends.local import LocalBackend
from sglc.backends.scripted import Asked, ScriptedBackend
from sglc.cli import main
from sglc.errors import BackendError, RunError, UsageError
from sglc.execution.plan.executor import run_plan
from sglc.execution.session import Session
from sglc.execution.tool_calls import Tools
from sglc.ir.core import Op, Program, Site, Type, Value, next_id, with_regions
from sglc.ir.depth import MAX_DEPTH
from sglc.ir.ops import Append, Call, RoleClose, RoleOpen, Root
from sglc.ir.plan.backend import Backend
from sglc.ir.plan.plan import HostStep, Plan
from sglc.ir.plan.plan_json import plan_from_json, plan_to_json
from sglc.ir.plan.segment import Segment
from sglc.ir.text.printer import from_text, to_text
from sglc.ir.verify.verify import verify
from sglc.passes.compile import compile_program
from tests.depth import at_depth
from tests.oracle_backend import OracleBackend
from tests.random_programs import ARGS, random_program
from tests.reference.interpret import Meaning, Model, meaning
from tests.soak_ir import declared
from tests.waiting import HANG_S, let_the_loop_run, until

Answers = Mapping[str, str] | Callable[[Asked], str | None]


class Watched(ScriptedBackend):
    """Scripted, and it remembers the most streams that it ever kept, and the order of what it was asked."""

    def __init__(self, answers: Answers, *, word_s: float = 0.0) -> None:
        answer = answers if callable(answers) else lambda asked: answers.get(asked.site.name)
        self.asked: list[tuple[Site, str]] = []

        def noted(asked: Asked) -> str | None:
            self.asked.append((asked.site, asked.prompt))
            return answer(asked)

        super().__init__(noted, word_s=word_s)
        self.most_kept = 0
        self.at_once = self.most_at_once = 0  # segments

    async def submit(self, segment: Segment, *, streams: bool = True) -> Any:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        async for event in super().submit(segment, streams=streams):
            self.most_kept = max(self.most_kept, self.kept)
            yield event
        self.most_kept = max(self.most_kept, self.kept)
        self.at_once -= 1


def planned(text: str, backend: Backend) -> Plan:
    """The plan of `def f(...)`, read back from JSON as another process would read it."""
    program = from_text(text if text.startswith("def") else f"def f(a, b):\n{text}", "f.sglir")
    plan = compile_program(program, backend.target).plan
    again = plan_from_json(json.loads(json.dumps(plan_to_json(plan))))
    assert again == plan
    return again


def ran(
    text: str, backend: Backend, tools: Tools | None = None, run: Session | None = None, **args: str
) -> tuple[dict[str, Any], Any]:
    args = args or {"a": "A", "b": "B"}
    return run_plan(planned(text, backend), args, run or Session(backend, 0), tools or {})


# -- against the interpreter -------------------------------------------------------------------------


def begun(program: Program) -> Program:
    """The program with roles as text, and a first character in every stream: this model needs a prompt."""
    fresh = count(next_id(program))

    def block(ops: tuple[Op, ...]) -> Iterator[Op]:
        for op in ops:
            match op:
                case Root():
                    value = Value(next(fresh), Type.STREAM)
                    yield Root(results=(value,))
                    yield Append(value, "#", results=op.results)
                case RoleOpen():
                    yield Append(op.stream, f"<{op.role}>", results=op.results)
                case RoleClose():
                    yield Append(op.stream, f"</{op.role}>", results=op.results)
                case Call():
                    yield replace(op, program=begun(op.program))
                case _:
                    yield with_regions(op, lambda region: replace(region, ops=tuple(block(region.ops))))

    params = tuple(replace(op, role="") if hasattr(op, "role") else op for op in program.params)  # type: ignore[call-arg]
    return replace(program, params=params, ops=tuple(block(program.ops)))


def plain(text: str) -> str:
    """One sample a generation, and only characters that the back end knows."""
    for odd, even in ((" n=3,", ""), ("'\"\\\\u00e9\"'", "'1'"), (", seed=18446744073709551615", "")):
        text = text.replace(odd, even)
    return text


def outcome(work: Callable[[], Any]) -> Any:
    """What it returns, or the error that it raises."""
    try:
        return work()
    except RunError as error:
        return error


class Recorded(Mapping[str, Callable[..., Any]]):
    """The functions of random programs, which have every name; calls of tools are noted."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("there is no end of them")

    def __len__(self) -> int:
        return 1

    def __getitem__(self, name: str) -> Callable[..., Any]:
        def function(*args: Any, **named: Any) -> Any:
            given = (tuple(map(tupled, args)), {key: tupled(item) for key, item in named.items()})
            if name.startswith(("tool ", "free ")):
                self.calls.append((name, given))
            return declared(name, *given)

        return function


def tupled(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(tupled, value))
    return {key: tupled(item) for key, item in value.items()} if isinstance(value, dict) else value


def test_random_programs_run_as_they_are_interpreted() -> None:
    backend = OracleBackend()
    generations = 0
    programs = at_depth(4, 20, 300)
    for seed in range(programs):
        generations += check_run(seed, backend)
        backend.settle()
        assert backend.machine._kept.empty
    assert generations > 250 * programs // 60
    backend.close()


def check_run(seed: int, backend: OracleBackend) -> int:
    """Every generation sees the text that the interpreter says, given the answers that came; how many ran."""
    made = random_program(seed, regions=True, images=False, ascii_only=True, python=False, resumed=False)
    program = from_text(plain(to_text(begun(made))), "random.sglir")
    verify(program)
    tools, run, args = Recorded(), Session(backend, seed), {**ARGS, "b": "beta"}
    value = outcome(lambda: run_plan(compile_program(program, backend.target).plan, args, run, tools)[1])
    if isinstance(value, RunError):
        assert value.code == "SGLC404", to_text(program)  # an empty choice
        return 0
    texts = {site: output.text for site, output in run.outputs.generations.items()}
    choose = lambda site, _, choices: choices.index(texts[site])  # noqa: E731
    expected = meaning(program, Model(lambda site, _: texts[site], choose, declared=declared), args)  # type: ignore[return-value]
    assert set(expected.calls) == set(texts)
    tokenizer = backend.target.tokenizer
    assert tokenizer is not None
    for call in run.calls:
        assert expected.calls[call.site][0] == tokenizer.decode(call.prompt_ids), to_text(program)
    assert tupled(value) == expected.returns, to_text(program)
    assert [call for call in tools.calls if call[0].startswith("tool ")] == ordered_hosts(expected)
    assert sorted(map(repr, tools.calls)) == sorted(map(repr, expected.hosts))
    return len(texts)


def ordered_hosts(expected: Meaning) -> list[Any]:
    """The calls of tools in program order."""
    return [host for host in expected.hosts if host[0].startswith("tool ")]


# -- what runs ---------------------------------------------------------------------------------------

REACT = """\
def react(question):
    s0 = root()
    s1 = append(s0, question)
    s2, t0 = loop((s1, question), 5) as s3, t1:
        s4 = append(s3, '\\nThought:')
        s5, t2 = gen(s4, 'thought', stop=('\\n',))
        s6, t3 = select(s5, 'action', (' search', ' finish'))
        s7, t4, b0 = switch(t3):
            case ' search':
                s8, t5 = gen(s6, 'query')
                t6 = tool('search', (t5,), named={'limit': 2})
                s9 = append(s8, t6)
                b1 = eq('', '')
                yield s9, t6, b1
            case ' finish':
                s10, t7 = gen(s6, 'answer')
                b2 = eq(t7, '')
                yield s10, t7, b2
        yield b0, s7, t4
    return {'answer': t0, 'log': s2}
"""


def reacting(asked: Asked) -> str | None:
    answers = {"thought": " hm\n", "query": " tea?", "answer": " Yes."}
    finished = "FOUND" in asked.prompt
    return answers.get(asked.site.name) or (" finish" if finished else " search")


def test_an_agent_with_a_tool_runs_from_its_text() -> None:
    backend = Watched(reacting)
    seen: list[Any] = []

    def search(query: str, limit: int) -> str:
        seen.append((query, limit))
        return " FOUND" if len(seen) == 2 else " nothing"

    run = Session(backend, 0)
    variables, value = ran(REACT, backend, {"search": search}, run, question="Tea?")
    assert seen == [(" tea?", 2), (" tea?", 2)]
    log = "Tea?\nThought: hm search tea? nothing\nThought: hm search tea? FOUND\nThought: hm finish Yes."
    assert value == {"answer": " Yes.", "log": log}
    assert variables == {"thought": " hm", "action": " finish", "query": " tea?", "answer": " Yes."}
    assert [str(site) for site, _ in backend.asked][-1] == "react@2.answer#0"
    assert backend.kept == 0


@pytest.mark.parametrize(("a", "expected"), [("x", {"t": "then"}), ("y", {"t": "else", "late": "L"})])
def test_variables_are_those_of_what_ran(a: str, expected: dict[str, str]) -> None:
    text = """\
    s0 = root()
    s1, t0 = gen(s0, 't')
    b0 = eq(a, 'x')
    cond(b0):
        s2, t1 = gen(s1, 't', occurrence=1)
        yield
    else:
        s3, t2 = gen(s1, 't', occurrence=1)
        s4, t3 = gen(s3, 'late')
        yield
    s5 = root()
    s6, t4 = gen(s5, 'in a branch', fork=(0,))
    return
"""
    names = {"t": "else" if a == "y" else "then", "late": "L", "in a branch": "?"}
    backend = Watched(lambda asked: "first" if asked.prompt == "" else names[asked.site.name])
    variables, value = ran(text, backend, a=a, b="")
    assert (variables, value) == (expected, None)


def test_several_samples_are_a_list_and_go_on_as_the_first() -> None:
    text = """\
    s0 = root()
    s1, t0 = gen(s0, 'x', n=2)
    t1 = lower(t0)
    l0 = concat((t0, a))
    s2 = append(s1, t1)
    s3, t2 = select(s2, 'y', (t1, 'no'))
    t3 = format((t0, '!'))
    s4, t4 = select(s3, 'z', (t3, 'no'))
    l1 = join('both', (t0, None))
    return {'x': t0, 'l': l0, 's': s4}
"""
    backend = Watched(lambda asked: asked.choices[0] if asked.choices else f"AB{asked.sample}")
    variables, value = ran(text, backend)
    assert variables == {"x": ["AB0", "AB1"], "y": "ab0", "z": "AB0!", "both": [["AB0", "AB1"], None]}
    assert value == {"x": ["AB0", "AB1"], "l": ["AB0", "A"], "s": "AB0ab0ab0AB0!"}


def test_json_goes_to_tools_as_plain_data_and_comes_back_as_it_is() -> None:
    text = """\
    j0 = parse_json('{"k": [1, null, {"x": true}]}')
    l0 = join('l', (a, None))
    j1 = tool('shape', ((j0, 1.5), l0), named={'deep': {'a': (b, False)}}, gives='json')
    b0 = tool('flag', (j1,), gives='bool')
    l1 = pure_call('split', (a,), gives='list')
    j2 = pack({'j': j1, 'l': (l1, b0), 'n': None})
    return j2
"""
    seen: list[Any] = []

    def shape(*args: Any, **named: Any) -> Any:
        seen.append((args, named))
        return {"tuple": (1, 2), "text": "t"}

    tools = {"shape": shape, "flag": lambda shape: shape["tuple"] == (1, 2), "split": list}
    _, value = ran(text, Watched({}), tools, a="xy", b="B")
    assert seen == [(([{"k": [1, None, {"x": True}]}, 1.5], ["xy", None]), {"deep": {"a": ["B", False]}})]
    assert value == {"j": {"tuple": (1, 2), "text": "t"}, "l": [["x", "y"], True], "n": None}


MAPPED = """\
    s0 = root()
    s1 = append(s0, 'P')
    l0 = tool('items', (), gives='list')
    l1 = map(l0) as t0:
        s2 = fork(s1)
        s3 = append(s2, t0)
        s4, t1 = gen(s3, 'x')
        t2 = tool('check', (t0,))
        yield t2
    return l1
"""


def test_items_run_at_once_and_their_tools_in_order() -> None:
    items = [str(i) for i in range(6)]
    # The first item is the slowest, and still its tool comes first.
    backend = Watched(lambda asked: "w " * (8 - int(asked.prompt[1])), word_s=0.001)
    order: list[str] = []

    def check(item: str) -> str:
        order.append(item)
        return f"<{item}>"

    _, value = ran(MAPPED, backend, {"items": lambda: items, "check": check})
    assert value == [f"<{item}>" for item in items]
    assert order == items
    assert backend.most_at_once == 6
    assert backend.kept == 0


def test_what_is_independent_overlaps() -> None:
    """Two generations that wait for different tools, and one that waits for none."""
    text = """\
    s0 = root()
    s1 = append(s0, 'one')
    s2, t0 = gen(s1, 'free')
    t1 = pure_call('slow', ('1',))
    s3 = append(s1, t1)
    s4 = fork(s3)
    s5, t2 = gen(s4, 'x')
    t3 = pure_call('slow', ('2',))
    s6 = append(s1, t3)
    s7, t4 = gen(s6, 'y')
    return (t0, t2, t4)
"""
    both = threading.Barrier(3, timeout=HANG_S)  # the two functions, and the answer of `free`

    def slow(which: str) -> str:
        both.wait()
        return which

    def answer(asked: Asked) -> str:
        return asked.prompt

    backend = Watched(answer, word_s=0.05)
    waiting = threading.Thread(target=lambda: (until(lambda: len(backend.asked) == 1), both.wait()))
    waiting.start()
    _, value = ran(text, backend, {"slow": slow})
    waiting.join()
    assert value == ["one", "one1", "one2"]


def test_streams_are_given_back_as_soon_as_nobody_reads_them() -> None:
    text = """\
    s0 = root()
    s1 = append(s0, 'P')
    s2 = loop((s1,), 40) as s3:
        s4, t0 = gen(s3, 'x')
        b0 = pure_call('more', (t0,), gives='bool')
        yield b0, s4
    s5, t1 = gen(s2, 'end')
    return t1
"""
    backend = Watched({"x": "x", "end": "E"})
    _, value = ran(text, backend, {"more": lambda text: True})
    assert value == "E"
    assert backend.asked[-1][1] == "P" + 40 * "x"
    assert backend.most_kept <= 4
    assert backend.kept == 0


def test_blocks_that_stand_as_deep_as_they_may_run() -> None:
    lines = ["def f(a):", "    s0 = root()", "    b0 = eq(a, a)"]
    ends = []
    for level in range(1, MAX_DEPTH + 1):
        indent = "    " * level
        lines.append(f"{indent}cond(b0):")
        ends += [f"{indent}    yield", f"{indent}else:", f"{indent}    yield"]
    inside = "    " * (MAX_DEPTH + 1)
    lines += [f"{inside}s1 = append(s0, a)", f"{inside}s2, t0 = gen(s1, 'x')"]
    text = "\n".join([*lines, *[line for at in range(len(ends) - 3, -1, -3) for line in ends[at : at + 3]]])
    backend = Watched({"x": "deep"})
    variables, _ = ran(f"{text}\n    return\n", backend, a="A")
    assert variables == {"x": "deep"}


def test_functions_see_the_context_of_the_caller_and_may_be_coroutines() -> None:
    who = contextvars.ContextVar("who", default="nobody")
    who.set("the caller")

    async def tell() -> str:
        await asyncio.sleep(0)
        return who.get()

    assert ran("    t0 = tool('tell', ())\n    return t0\n", Watched({}), {"tell": tell})[1] == "the caller"


# -- what fails --------------------------------------------------------------------------------------


def broken(*_: object, **__: object) -> str:
    raise KeyError("no such page")


FAILING = """\
    s0 = root()
    s1 = append(s0, 'P')
    s2, t0 = gen(s1, 'x')
    t1 = tool('broken', (t0,))
    s3 = append(s2, t1)
    s4, t2 = gen(s3, 'never')
    t3 = tool('after', ())
    s5 = append(s1, 'Q')
    s6, t4 = gen(s5, 'other')
    return t2
"""


def test_a_tool_that_raises_is_an_error_with_a_place_and_its_cause() -> None:
    backend, called = Watched({"x": "x", "other": "o"}), []
    run = Session(backend, 0)
    with pytest.raises(RunError) as caught:
        ran(FAILING, backend, {"broken": broken, "after": lambda: called.append(1) or ""}, run)
    assert caught.value.code == "SGLC409"
    assert caught.value.message == "`broken` raised `KeyError`: 'no such page'"
    assert str(caught.value.loc) == "f.sglir:5:5"
    assert isinstance(caught.value.__cause__, KeyError)
    assert called == []  # the program would not have come to it
    assert sorted(site.name for site in run.outputs.generations) == ["other", "x"]  # the rest went on
    assert backend.kept == 0


def test_a_generation_that_fails_fails_what_reads_it_and_nothing_else() -> None:
    backend = Watched({"other": "o"})
    run = Session(backend, 0)
    called: list[str] = []
    with pytest.raises(BackendError) as caught:
        ran(FAILING, backend, {"broken": broken, "after": lambda: called.append("") or ""}, run)
    assert caught.value.code == "SGLC521"
    assert str(caught.value.loc) == "f.sglir:4:5"
    assert run.outputs.generations[Site("f", (), "other")].text == "o"
    assert backend.kept == 0


def test_the_first_failure_in_the_order_of_the_program_is_raised() -> None:
    text = """\
    t0 = pure_call('late', ())
    t1 = pure_call('early', ())
    j0 = pack((t0, t1))
    return j0
"""
    over = threading.Event()

    def late() -> str:
        assert over.wait(HANG_S)
        raise ValueError("first in the program")

    def early() -> str:
        over.set()
        raise ValueError("first in time")

    with pytest.raises(RunError, match="first in the program"):
        ran(text, Watched({}), {"late": late, "early": early})


@pytest.mark.parametrize(
    ("text", "code", "line"),
    [
        ("    j0 = parse_json(a)\n    return j0\n", "SGLC460", 2),
        ("    l0 = join('x', (None,))\n    map(l0) as t0:\n        yield\n    return\n", "SGLC461", 3),
        ("    t0 = switch(a):\n        case 'x':\n            yield a\n    return t0\n", "SGLC462", 2),
        ("    t0 = tool('number', ())\n    return t0\n", "SGLC463", 2),
        ("    l0 = tool('number', (), gives='list')\n    return l0\n", "SGLC463", 2),
    ],
)  # fmt: skip
def test_values_that_do_not_fit_fail_with_their_place(text: str, code: str, line: int) -> None:
    with pytest.raises(RunError) as caught:
        ran(text, Watched({}), {"number": lambda: 3})
    assert caught.value.code == code
    assert str(caught.value.loc) == f"f.sglir:{line}:5"


def test_a_missing_function_is_found_before_anything_runs() -> None:
    backend = Watched({"x": "x"})
    text = """\
    s0 = root()
    s1, t0 = gen(s0, 'x')
    l0 = concat((a,))
    map(l0) as t1:
        t2 = tool('search', (t1,))
        yield
    return
"""
    with pytest.raises(UsageError) as caught:
        ran(text, backend, {"other": str})
    assert caught.value.code == "SGLC025"
    assert caught.value.message == "the plan calls `search`, which is not there"
    assert "--tools" in caught.value.hint
    assert str(caught.value.loc) == "f.sglir:6:9"
    assert backend.submits == 0


def test_a_block_that_hands_over_is_refused_before_anything_runs() -> None:
    backend = Watched({"x": "x"})
    text = """\
    s0 = root()
    s1, t0 = gen(s0, 'x')
    b0 = eq(t0, 'y')
    cond(b0):
        host_call('why')
        yield
    else:
        yield
    return
"""
    assert any(isinstance(step, HostStep) for block in planned(text, backend).blocks for step in block.steps)
    with pytest.raises(UsageError) as caught:
        ran(text, backend)
    assert caught.value.code == "SGLC016"
    assert backend.submits == 0


STOPPED = """\
    s0 = root()
    s1 = append(s0, 'P')
    s2, t0 = gen(s1, 'x')
    t1 = tool('blocking', (t0,))
    s3 = append(s2, t1)
    s4, t2 = gen(s3, 'y')
    t3 = tool('after', ())
    return t2
"""


@pytest.mark.parametrize("where", ["in a generation", "in a tool"])
def test_a_stopped_plan_ends_at_once_and_gives_back_its_streams(where: str) -> None:
    begun, free, called = threading.Event(), threading.Event(), []

    def blocking(text: str) -> str:
        begun.set()
        free.wait(HANG_S)
        return text

    slow = where == "in a generation"
    backend = Watched({"x": "w " * (50_000 if slow else 1), "y": "y"}, word_s=0.02 if slow else 0.001)
    run, problems = Session(backend, 0), []

    def work() -> None:
        tools = {"blocking": blocking, "after": lambda: called.append(1) or ""}
        try:
            ran(STOPPED, backend, tools, run)
        except RunError as error:
            problems.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    until((lambda: len(backend.asked) == 1) if slow else begun.is_set)
    run.stop()
    thread.join(HANG_S)  # it waits neither for the generation, whose backend is told, nor for the tool
    assert not thread.is_alive()
    assert not free.is_set()
    assert [error.code for error in problems] == ["SGLC407"]
    assert backend.kept == 0
    free.set()
    let_the_loop_run()
    assert called == []
    assert len(backend.asked) == 1


def test_a_plan_of_a_stopped_run_does_not_begin() -> None:
    backend = Watched({"x": "x"})
    run = Session(backend, 0)
    run.stop()
    with pytest.raises(RunError) as caught:
        ran("    s0 = root()\n    s1, t0 = gen(s0, 'x')\n    return t0\n", backend, run=run)
    assert caught.value.code == "SGLC407"


class Lost(ScriptedBackend):
    """Breaks down in its second segment."""

    async def submit(self, segment: Segment) -> Any:  # type: ignore[override]
        if self.submits == 1:
            raise ConnectionError("gone")
        async for event in super().submit(segment):
            yield event


def test_a_back_end_that_breaks_down_is_an_error_and_no_hang() -> None:
    backend = Lost(lambda asked: "x")
    with pytest.raises(BackendError, match="gone"):
        ran(FAILING, backend, {"broken": str, "after": lambda: ""})


# -- the command line --------------------------------------------------------------------------------


def test_an_agent_s_text_file_is_compiled_and_its_plan_is_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [line for line in REACT.splitlines() if "tool(" not in line]
    text = (
        "\n".join(lines)
        .replace("append(s8, t6)", "append(s8, ' FOUND')")
        .replace("yield s9, t6", "yield s9, t5")
    )
    rules = [
        {"name": "thought", "text": " hm\n"}, {"name": "query", "text": " tea?"},
        {"name": "answer", "text": " Yes."}, {"name": "action", "prompt": "FOUND", "text": " finish"},
        {"name": "action", "text": " search"},
    ]  # fmt: skip
    (tmp_path / "react.sglir").write_text(text + "\n")
    (tmp_path / "answers.json").write_text(json.dumps(rules))
    backend = f"scripted:{tmp_path / 'answers.json'}"
    plan = tmp_path / "plan.json"
    compile_line = [
        "compile",
        str(tmp_path / "react.sglir"),
        "--target",
        backend,
        "--emit",
        "json",
        "-o",
        str(plan),
    ]
    assert main(compile_line) == 0
    assert main(["run", str(plan), "--backend", backend, "--arg", "question=Tea?", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["value"]["answer"] == " Yes."
    assert shown["vars"]["action"] == " finish"
    assert shown["value"]["log"].endswith("FOUND\nThought: hm finish Yes.")


# -- a real model ------------------------------------------------------------------------------------


def test_a_loop_of_chat_turns_on_a_real_model(local: LocalBackend) -> None:
    """The ids of every prompt are those of the chat template over the turns so far."""
    text = """\
def ask(question):
    s0 = root()
    s1, t0 = loop((s0, question), 3) as s2, t1:
        s3 = role_open(s2, 'user')
        s4 = append(s3, t1)
        s5 = role_close(s4, 'user')
        s6 = role_open(s5, 'assistant')
        s7, t2 = gen(s6, 'answer', max_tokens=6, temperature=0.0)
        s8 = role_close(s7, 'assistant')
        t3 = format(('And why? ', question))
        b0 = eq('', '')
        yield b0, s8, t3
    return t0
"""
    run = Session(local, 0)
    question = "What is the capital of France?"
    variables, value = ran(text, local, run=run, question=question)
    assert value == f"And why? {question}"
    tokenizer = local.target.tokenizer
    assert tokenizer is not None
    messages: list[dict[str, str]] = []
    for number, call in enumerate(run.calls):
        assert str(call.site) == f"ask@{number}.answer#0"
        messages.append({"role": "user", "content": question if number == 0 else f"And why? {question}"})
        ids: list[int] = []
        for part in tokenizer.split_control(tokenizer.render(messages, generate=True)):
            ids += tokenizer.encode(part) if isinstance(part, str) else part.ids
        if number == 0:
            assert list(call.prompt_ids) == ids
        assert tokenizer.decode(call.prompt_ids) == tokenizer.decode(ids)
        messages.append({"role": "assistant", "content": call.samples[0].text})
    assert len(run.calls) == 3
    assert variables == {"answer": run.calls[2].samples[0].text}


def test_an_agent_on_a_real_model_does_what_the_interpreter_says(local: LocalBackend) -> None:
    program = from_text(REACT.replace("stop=('\\n',)", "stop=('\\n',), max_tokens=8")
                        .replace("'query'", "'query', max_tokens=4")
                        .replace("'answer')", "'answer', max_tokens=4)"), "react.sglir")  # fmt: skip
    asked: list[str] = []

    def search(query: str, limit: int) -> str:
        asked.append(query)
        return f" {limit} results."

    run = Session(local, 3)
    compiled = compile_program(program, local.target)
    _, value = run_plan(compiled.plan, {"question": "Which is the largest planet?"}, run, {"search": search})
    texts = {site: output.text for site, output in run.outputs.generations.items()}
    model = Model(
        lambda site, _: str(texts[site]), lambda site, _, choices: choices.index(str(texts[site])),
        declared=lambda name, args, named: f" {named['limit']} results.",
    )  # fmt: skip
    expected = meaning(program, model, {"question": "Which is the largest planet?"})
    assert set(expected.calls) == set(texts)
    assert value == expected.returns
    assert [args for _, args in expected.hosts] == [((query,), {"limit": 2}) for query in asked]


def test_what_fails_where_a_plan_begins_ends_its_run() -> None:
    """Nobody is left waiting for it, whatever it is."""

    class Broken(ScriptedBackend):
        def program(self, run: object) -> None:
            raise RuntimeError("it cannot even begin")

    @sgl.function
    def one(s: Any) -> None:
        s += "Q" + sgl.gen("a")

    error = one.run(backend=Broken(lambda asked: "a")).error()
    assert isinstance(error, RuntimeError)
    assert "even begin" in str(error)
