"""What streams say is known from texts alone, whatever branches and loops they went through."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import count

import pytest

from sglc.errors import LegalizeError
from sglc.ir.core import Op, Program, Type, Value, fresh_ids, next_id, walk, with_regions
from sglc.ir.ops import Append, Call, Cond, Loop, Prompt, Resume, RoleClose, RoleOpen, Store, Switch, TextOf
from sglc.ir.plan.plan import PromptEnd
from sglc.ir.plan.segment import KeepNode, Segment
from sglc.ir.target import Target
from sglc.ir.text.printer import from_text
from sglc.ir.verify.verify import verify
from sglc.passes.base import run_pipeline
from sglc.passes.compile import compile_program
from sglc.passes.prompt.text import with_texts
from sglc.passes.prompt.turns import with_turns
from tests.depth import at_depth
from tests.random_programs import ARGS, random_program
from tests.reference.interpret import Meaning, Model, meaning

_GIVEN: dict[str, object] = {"text": "given", "bool": True, "list": ["one", "two"], "json": {"k": 1}}


def _means(program: Program) -> Meaning:
    model = Model(
        lambda site, prefix: f"<{site.name}{len(prefix)}>",
        lambda site, prefix, choices: 0,
        declared=lambda name, args, named: _GIVEN[name.split()[-1]],
    )
    return meaning(program, model, dict.fromkeys(ARGS, "arg"))


def _plain(op: Op) -> Op:
    """Turns as text: the reference writes them in its own way."""
    if isinstance(op, RoleOpen | RoleClose):
        return Append(op.stream, f"[{op.role}]", results=op.results, loc=op.loc)
    if isinstance(op, Call):
        called = op.program
        params = [replace(p, turns=(), role="") if isinstance(p, Resume) else p for p in called.params]
        return replace(op, program=replace(called, params=tuple(params), ops=tuple(map(_plain, called.ops))))
    return with_regions(op, lambda held: replace(held, ops=tuple(map(_plain, held.ops))))


def _asking(program: Program) -> Program:
    """The program with the text of every stream stored, where it was made."""
    values = count(next_id(program))

    def block(ops: tuple[Op, ...]) -> Iterator[Op]:
        for op in ops:
            yield with_regions(op, lambda held: replace(held, ops=tuple(block(held.ops))))
            for stream in op.results:
                if stream.type is Type.STREAM:
                    text = Value(next(values), Type.TEXT)
                    yield TextOf(stream, results=(text,))
                    yield Store(f"s{stream.id}", text)

    return replace(program, ops=tuple(block(program.ops)))


@pytest.mark.slow
def test_texts_of_streams_are_what_the_streams_say() -> None:
    through, codes = 0, set[str]()
    for seed in range(at_depth(60, 120, 300)):
        made = random_program(seed, regions=True, images=False, python=False, resumed=False)
        program = _asking(replace(made, ops=tuple(map(_plain, made.ops))))
        verify(program)
        try:
            texts, _ = with_texts(program, fresh_ids(program), acts=True)
        except LegalizeError as error:  # a called program gave the stream, or a loop another one
            codes.add(error.code)
            continue
        verify(texts)
        assert not any(isinstance(op, TextOf) for op in walk(texts.ops))
        assert _means(texts) == _means(program), seed
        through += sum(isinstance(op, Cond | Switch | Loop) for op in walk(program.ops))
    assert (through > at_depth(6, 20, 60), codes) == (True, {"SGLC330"})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fold_text", "share_prefixes", "inline_calls"])
def test_passes_keep_what_is_stored(name: str) -> None:
    changed = 0
    for seed in range(at_depth(12, 20, 40)):
        made = random_program(seed, regions=True, images=False, python=False, resumed=False, length=15)
        program = _asking(replace(made, ops=tuple(map(_plain, made.ops))))
        after = run_pipeline(program, Target("plain"), [name])[0]
        changed += after != program
        assert _means(after).stored == _means(program).stored, seed
    assert changed


BRANCHES = """\
def f(q):
    s0 = root()
    s1 = append(s0, 'Q: ')
    s2 = append(s1, q)
    s3, t0 = select(s2, 'a', ('x', 'y'))
    b0 = eq(t0, 'x')
    s6 = cond(b0):
        s4, t1 = gen(s3, 'b')
        yield s4
    else:
        s5 = append(s3, ' no')
        yield s5
    s7 = append(s6, '.')
    prompt(s7)
    return t0
"""


def test_nothing_is_kept_for_a_text() -> None:
    plan = compile_program(from_text(BRANCHES, "f.sglir"), Target("plain")).plan
    kept = [
        [node.handle for node in step.nodes if isinstance(node, KeepNode)]
        for block in (plan.body, *plan.blocks)
        for step in block.steps
        if isinstance(step, Segment)
    ]
    assert [len(handles) for handles in kept] == [1, 0]  # the generation goes on from what was chosen
    (end,) = [variable for variable in plan.variables if isinstance(variable, PromptEnd)]
    assert end.turns == ()


def test_turns_are_written_while_they_are_turns() -> None:
    text = BRANCHES.replace("s1 = append(s0, 'Q: ')", "s8 = append(s0, 'out')\n    s1 = role_open(s8, 'user')")
    program = with_turns(from_text(text, "f.sglir"))
    verify(program)
    (end,) = [op for op in program.ops if isinstance(op, Prompt)]
    assert isinstance(end.turns, tuple)
    opened, q, chosen, more, dot = end.turns
    assert isinstance(opened, Mapping)
    assert dict(opened) == {"open": "user"}  # what stands before it is in no turn
    assert dot == "."
    (arg,) = program.params[0].results
    (cond,) = [op for op in program.ops if isinstance(op, Cond)]
    assert (q, more) == (arg, cond.results[1])
    assert isinstance(chosen, Value)


def test_a_stream_from_outside_has_no_text() -> None:
    program = from_text(
        "def f(s0: resume('k')):\n    s1 = append(s0, 'x')\n    prompt(s1)\n    return None\n", "f.sglir"
    )
    with pytest.raises(LegalizeError) as caught:
        compile_program(program, Target("plain"))
    assert caught.value.code == "SGLC330"


def test_what_only_the_prompts_of_arms_say_is_there() -> None:
    text = (
        "def f():\n    s0 = root()\n    s1, t0 = gen(s0, 'x')\n    s2, t1 = select(s1, 'y', ('a', 'b'))\n"
        "    t2 = format((t0, '!', t1))\n    s3 = append(s2, t2)\n    switch(t1):\n"
        "        case 'a':\n            s4 = append(s3, 'A')\n            prompt(s4)\n            yield\n"
        "        case 'b':\n            prompt(s3)\n            yield\n    return None\n"
    )
    plan = compile_program(from_text(text, "f.sglir"), Target("plain"), ()).plan
    ends = [variable for block in plan.blocks for variable in block.variables]
    assert len(ends) == 2
    assert all(isinstance(end, PromptEnd) for end in ends)
