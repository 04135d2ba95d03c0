"""Control flow and operations on texts: what they mean, that passes keep it, and that this is really checked.

What is wrong with a text is in tests/golden/errors_verify.md, what passes make of it in the other specs.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from random import Random

import pytest

from benchmarks.compile_time import deep_text, stages
from sglc.errors import RunError, VerifyError
from sglc.ir.core import (
    OPS,
    Op,
    Program,
    Region,
    Site,
    Type,
    Value,
    operands,
    reading,
    substitute,
    walk,
    with_regions,
)
from sglc.ir.depth import MAX_DEPTH
from sglc.ir.ops import Append, Call, Concat, Cond, Eq, Format, Loop, Map, Root, Switch
from sglc.ir.plan.plan import CallStep, CondStep, LoopStep, Plan, Step
from sglc.ir.plan.segment import ExtendNode, Node, Segment
from sglc.ir.text.graph import to_dot, waves
from sglc.ir.text.printer import from_text, identity, to_text
from sglc.ir.verify.verify import verify
from sglc.passes.base import run_pipeline
from sglc.passes.lowering.lower_plan import lower_plan
from tests.depth import at_depth, few
from tests.random_programs import ARGS, STREAMS, random_program
from tests.reference.interpret import Meaning, Model, meaning
from tests.reference.interpret_plan import plan_meaning
from tests.reference.numbering import canonical
from tests.soak_ir import (
    MODEL,
    PASSES,
    PLAIN,
    check_mutant,
    check_pass,
    check_plan,
    check_text,
    host,
    means,
    without_turns,
)

S, T, B, L = Type.STREAM, Type.TEXT, Type.BOOL, Type.LIST
SEEDS = range(at_depth(20, 34, 400))


def run(lines: str, **args: str) -> Meaning:
    """The meaning of `def f(...)` with these lines; a generation answers with its site."""
    program = from_text(f"def f({', '.join(args)}):\n{lines}", "f.sglir")
    verify(program)
    return meaning(program, Model(lambda site, _: f"<{site}>", lambda *_: 0, host=host), args)


# -- what the ops mean -------------------------------------------------------------------------------


@pytest.mark.parametrize(("a", "expected"), [("yes", "then"), ("no", "else")])
def test_cond_runs_one_block(a: str, expected: str) -> None:
    found = run(
        "    b0 = eq(a, 'yes')\n    s0 = root()\n"
        "    s2, t0 = cond(b0):\n"
        "        s1 = append(s0, 'then')\n        yield s1, a\n"
        "    else:\n"
        "        s3 = append(s0, 'else')\n        yield s3, a\n"
        "    s4, t1 = gen(s2, 'x')\n    return (s2, t0)\n",
        a=a,
    )
    assert found.returns == (expected, a)
    assert found.calls == {Site("f", (), "x"): (expected, "<f.x#0>")}


@pytest.mark.parametrize(("a", "expected"), [("x", "1"), ("", "2"), ("xx", "3"), ("X", "3")])
def test_switch_runs_the_block_of_the_equal_case(a: str, expected: str) -> None:
    cases = "".join(
        f"        case {case}:\n            t{i} = format(('{i}',))\n            yield t{i}\n"
        for i, case in enumerate(("'x'", "''", "_"), 1)
    )
    assert run(f"    t0 = switch(a):\n{cases}    return t0\n", a=a).returns == expected


@pytest.mark.parametrize(("limit", "expected"), [(1, "a."), (2, "a.."), (3, "a..."), (9, "a...")])
def test_loop_ends_by_itself_or_at_its_limit(limit: int, expected: str) -> None:
    found = run(
        f"    s0 = root()\n    s1, t0 = loop((s0, a), {limit}) as s2, t1:\n"
        "        s3, t2 = gen(s2, 'x')\n"
        "        t3 = format((t1, '.'))\n        b0 = eq(t3, 'a...')\n        b1 = not_(b0)\n"
        "        yield b1, s3, t3\n    return (t0, s1)\n",
        a="a",
    )
    runs = len(expected) - 1
    texts = [f"<f@{i}.x#0>" for i in range(runs)]
    assert found.returns == (expected, "".join(texts))
    assert found.calls == {Site(f"f@{i}", (), "x"): ("".join(texts[:i]), texts[i]) for i in range(runs)}


def test_map_gives_a_list_for_each_yield_and_a_site_for_each_item() -> None:
    found = run(
        "    s0 = root()\n    l0 = concat((a, 'two'))\n    l1, l2 = map(l0) as t0:\n"
        "        s1 = fork(s0)\n        s2 = append(s1, t0)\n        s3, t1 = gen(s2, 'x', fork=(0,))\n"
        "        l3 = map(l0) as t2:\n            s4 = append(s3, t2)\n            s5, t3 = gen(s4, 'y')\n"
        "            yield t3\n"
        "        yield t1, l3\n    l4 = concat((l1, l0))\n    return (l2, l4)\n",
        a="one",
    )
    inner = [tuple(f"<f@{i}@{j}.y#0>" for j in range(2)) for i in range(2)]
    assert found.returns == (tuple(inner), ("<f@0[0].x#0>", "<f@1[0].x#0>", "one", "two"))
    assert found.calls[Site("f@1", (0,), "x")][0] == "two"
    assert found.calls[Site("f@1@0", (), "y")][0] == "two<f@1[0].x#0>one"
    assert len(found.calls) == 6


def test_map_over_nothing() -> None:
    found = run("    l0 = concat(())\n    l1 = map(l0) as t0:\n        yield t0\n    return l1\n")
    assert found.returns == ()


def test_called_programs_have_sites_of_their_own() -> None:
    found = run(
        "    s0 = root()\n    l0 = concat((a, a))\n    map(l0) as t0:\n"
        "        s1 = append(s0, 'p')\n"
        "        t1, s2, t2 = call('first', (t0, s1)):\n"
        "            def judge(b, s0: resume('k')):\n                s1, t0 = gen(s0, 'x')\n"
        "                loop((), 2):\n                    s2 = fork(s1)\n"
        "                    s3, t1 = gen(s2, 'y')\n"
        "                    b0 = eq(b, '')\n                    yield b0\n"
        "                return {'a': (t0, 1, s1), 'b': b}\n"
        "        t3 = call('second', (t2,), function='h'):\n"
        "            def judge(b):\n                return b\n"
        "        yield\n    return\n",
        a="q",
    )  # fmt: skip
    assert list(found.calls) == [
        Site("f@0.first#0/judge", (), "x"), Site("f@0.first#0/judge@0", (), "y"),
        Site("f@1.first#0/judge", (), "x"), Site("f@1.first#0/judge@0", (), "y"),
    ]  # fmt: skip
    assert found.calls[Site("f@1.first#0/judge", (), "x")][0] == "p"


@pytest.mark.parametrize(("a", "expected"), [("?", ("why", "?", "pre")), ("", "done")])
def test_python_takes_over_on_one_path(a: str, expected: object) -> None:
    found = run(
        "    s0 = root()\n    s1 = append(s0, 'pre')\n    b0 = in_('?', a)\n    cond(b0):\n"
        "        host_call('why', reads=(a, s1))\n        yield\n    else:\n        yield\n"
        "    s2, t0 = gen(s1, 'x')\n    return 'done'\n",
        a=a,
    )
    handed = a == "?"
    assert found.returns == expected
    assert found.hosts == ((("why", ("?", "pre")),) if handed else ())
    assert len(found.calls) == (0 if handed else 1)


def test_operations_on_texts() -> None:
    found = run(
        "    t0 = strip(a)\n    t1 = lower(t0)\n    b0 = eq(t1, 'straße')\n    b1 = in_('ß', a)\n"
        "    b2 = in_('', '')\n"
        '    b3 = not_(b2)\n    j0 = parse_json(\' {"a": [1, 2.5, null, true], "b": "\\\\u00e9"}\')\n'
        "    return (t0, t1, b0, b1, b2, b3, j0)\n",
        a=" STRAßE\n",
    )
    assert found.returns == (
        "STRAßE", "straße", True, True, True, False, {"a": (1, 2.5, None, True), "b": "é"},
    )  # fmt: skip


@pytest.mark.parametrize(
    "spelled", ["", "{", "nan", "NaN", "-Infinity", "1 2", "'x'", "9" * 5000, "[" * 100_000]
)
def test_parse_json_of_something_else_fails_with_its_place(spelled: str) -> None:
    with pytest.raises(RunError) as caught:
        run("    j0 = parse_json(a)\n    return j0\n", a=spelled)
    assert caught.value.code == "SGLC460"
    assert caught.value.message.startswith("`parse_json` is given a text that is no JSON: ")
    assert str(caught.value.loc) == "f.sglir:2:5"


def test_map_over_what_is_no_text_fails_with_its_place() -> None:
    with pytest.raises(RunError) as caught:
        run("    l0 = join('x', (a, None))\n    l1 = map(l0) as t0:\n        yield t0\n    return l1\n", a="a")
    assert caught.value.code == "SGLC461"
    assert caught.value.message == "item 1 of the list that `map` runs over is no text"
    assert str(caught.value.loc) == "f.sglir:3:5"


# -- what verify must find in programs that were not parsed -------------------------------------------

s0, s1, t0, t1, b0, l0 = Value(0, S), Value(1, S), Value(2, T), Value(3, T), Value(4, B), Value(5, L)
TRUE = Eq("", "", results=(b0,))
NOTHING = Region((), ())
DEEP: Op = Root(results=(s0,))
for _ in range(5_000):  # recursion would not come to its end
    DEEP = Cond(b0, Region((), (DEEP,)), NOTHING)

BROKEN: dict[str, tuple[str, tuple[Op, ...]]] = {
    "a value of an arm behind it": (
        "SGLC203", (TRUE, Cond(b0, Region((), (Root(results=(s0,)),)), NOTHING), Append(s0, "x", results=(s1,)))
    ),
    "a value of one arm in the other": (
        "SGLC203",
        (TRUE, Cond(b0, Region((), (Root(results=(s0,)),)), Region((), (Append(s0, "", results=(s1,)),)))),
    ),
    "a yield of what nothing defines": ("SGLC203", (TRUE, Cond(b0, Region((), (), (t0,)), NOTHING))),
    "its own result in a block": ("SGLC203", (Loop((), 1, Region((), (), (b0,)), results=()),)),
    "an id used again behind the block": (
        "SGLC204", (TRUE, Cond(b0, Region((), (Root(results=(s0,)),)), NOTHING), Root(results=(s0,)))
    ),
    "an id used in both arms": (
        "SGLC204",
        (TRUE, Cond(b0, Region((), (Root(results=(s0,)),)), Region((), (Root(results=(s0,)),)))),
    ),
    "a parameter that is defined already": (
        "SGLC204", (Format((), results=(t0,)), Loop((t0,), 1, Region((t0,), (), (b0, t0)), results=(t1,)))
    ),
    "parameters for an arm": ("SGLC215", (TRUE, Cond(b0, Region((t0,), ()), NOTHING))),
    "a block of map without an item": ("SGLC215", (Concat((), results=(l0,)), Map(l0, NOTHING))),
    "more cases than blocks": (
        "SGLC215", (Format((), results=(t0,)), Switch(t0, ("a", "b"), (NOTHING,), NOTHING))
    ),
    "results that no arm yields": ("SGLC206", (TRUE, Cond(b0, NOTHING, NOTHING, results=(t0,)))),
    "blocks in too many blocks": ("SGLC217", (TRUE, DEEP)),
    "a value that a called program does not have": (
        "SGLC203", (Call(Site("f", (), "g"), (), Program("g", (), (Append(s0, "x", results=(s1,)),))),)
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_broken_invariant_is_found(what: str) -> None:
    code, ops = BROKEN[what]
    with pytest.raises(VerifyError) as caught:
        verify(Program("f", (), ops))
    assert caught.value.code == code


def test_blocks_in_too_many_blocks_have_a_place() -> None:
    head = "".join(f"{'    ' * i}loop((), 1):\n" for i in range(1, 300))
    tail = "".join(f"{'    ' * i}yield\n" for i in range(300, 1, -1))
    with pytest.raises(VerifyError) as caught:
        from_text(f"def f():\n{head}{tail}    return\n", "deep.sglir")
    assert caught.value.code == "SGLC217"
    assert caught.value.loc is not None
    assert caught.value.loc.line == 202
    with pytest.raises(VerifyError) as caught:
        from_text(f"def f():\n    return {'(' * 5000}(){',)' * 5000}\n", "deep.sglir")
    assert caught.value.code == "SGLC216"


def nested(depth: int) -> Program:
    """A program whose blocks stand `depth` deep, made without its text."""
    op: Op = Root(results=(s0,))
    for _ in range(depth):
        op = Cond(b0, Region((), (op,)), NOTHING)
    return Program("f", (), (TRUE, op))


@pytest.mark.parametrize(
    "walk_it", [verify, to_text, identity, canonical, means, waves, to_dot], ids=lambda walk: walk.__name__
)
def test_no_walk_meets_the_recursion_limit(walk_it: Callable[[Program], object]) -> None:
    """Not on the deepest program, and not on one that is far too deep; the limit is as before."""
    limit = sys.getrecursionlimit()
    assert walk_it(nested(MAX_DEPTH)) is not walk_it
    assert sys.getrecursionlimit() == limit
    if walk_it in (verify, to_text, identity):
        with pytest.raises(VerifyError, match="SGLC217"):
            walk_it(nested(MAX_DEPTH + 1))
        with pytest.raises(VerifyError, match="SGLC217"):
            walk_it(nested(20_000))


@pytest.mark.slow
def test_the_deepest_text_goes_through_every_stage() -> None:
    """From a caller that has little room itself, in several threads at once."""

    def deep_caller(frames: int) -> Plan:
        return deep_caller(frames - 1) if frames else stages(deep_text())[2]

    found: list[Plan] = []
    threads = [threading.Thread(target=lambda: found.append(deep_caller(700))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    assert found[0].estimate.calls == 0  # the cheapest of two blocks
    assert found[0].estimate.max_new_tokens == 128 * 2**67  # of 200 blocks 67 are loops of two


# -- properties --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", few(PASSES, 1))
def test_pass_keeps_meaning(name: str) -> None:
    changed = sum(check_pass(random_program(seed, regions=True), name) for seed in SEEDS)
    assert changed > len(SEEDS) // 6


def test_text_form_is_exact() -> None:
    for seed in few(SEEDS, 8):
        check_text(random_program(seed, regions=True))


def test_plans_mean_what_their_programs_do() -> None:
    blocks = sum(check_plan(random_program(seed, regions=True)) for seed in SEEDS)
    assert blocks > 5 * len(SEEDS)


def broken_plans(plan: Plan) -> Iterator[tuple[str, Plan]]:
    """The plan with one mistake of a lowering each."""
    for number, block in enumerate(plan.blocks):
        for at, step in enumerate(block.steps):
            wrong: Step | None = None
            match step:
                case CondStep():
                    wrong = replace(step, then=step.orelse, orelse=step.then)
                case LoopStep():
                    wrong = replace(step, max_iters=step.max_iters + 1)
                case CallStep():
                    wrong = replace(step, site=replace(step.site, name="other"))
                case Segment():
                    wrong = replace(step, nodes=tuple(map(_without_literals, step.nodes)))
            if wrong is not None and wrong != step:
                steps = (*block.steps[:at], wrong, *block.steps[at + 1 :])
                blocks = (*plan.blocks[:number], replace(block, steps=steps), *plan.blocks[number + 1 :])
                yield type(step).__name__, replace(plan, blocks=blocks)


def _without_literals(node: Node) -> Node:
    if not isinstance(node, ExtendNode):
        return node
    return replace(node, parts=tuple(part for part in node.parts if not isinstance(part, str)))


def test_broken_plans_are_caught() -> None:
    """Of each kind of mistake some change what a program does, and then the plan means something else."""
    caught: Counter[str] = Counter()
    for seed in range(at_depth(30, 30, 200)):
        program = without_turns(random_program(seed, regions=True))
        plan, expected = lower_plan(program, PLAIN), means(program)
        for kind, broken in broken_plans(plan):
            caught[kind] += plan_meaning(broken, MODEL, ARGS, STREAMS) != expected
    assert sorted(kind for kind, count in caught.items() if count) == [
        "CallStep", "CondStep", "LoopStep", "Segment",
    ]  # fmt: skip


def test_random_programs_hold_every_op() -> None:
    found: Counter[str] = Counter()
    for seed in range(100):
        program = random_program(seed, regions=True)
        verify(program)
        found.update(op.mnemonic for op in walk((*program.params, *program.ops)))
    # The first is lowering's, the others are made by tracing.
    assert set(OPS) - found.keys() == {"control", "guard", "prompt", "store", "text_of"}
    assert min(found[name] for name in ("cond", "switch", "loop", "map", "call", "host_call")) > 100 // 4


def test_random_changes_of_a_text_are_programs_or_errors_with_a_place() -> None:
    """20 texts of each of many programs."""
    random = Random(0)
    programs = [random_program(seed, regions=True, length=15) for seed in few(SEEDS, 3)]
    fine = sum(check_mutant(program, random) for program in programs for _ in range(20))
    assert len(programs) / 2 < fine < 10 * len(programs)


def test_operands_are_what_is_read_from_outside() -> None:
    program = from_text(
        "def f(a):\n    b0 = eq(a, '')\n    s0 = root()\n    s1 = cond(b0):\n        s2 = append(s0, a)\n"
        "        yield s2\n    else:\n        yield s0\n    return s1\n",
        "f.sglir",
    )
    a, flag, root = program.params[0].results[0], program.ops[0].results[0], program.ops[1].results[0]
    assert list(operands(program.ops[2])) == [flag, root, a, root]


def test_a_change_in_a_block_changes_identity() -> None:
    program = random_program(5, regions=True)
    seen = {identity(program)}
    for op in walk(program.ops):
        if isinstance(op, Append) and isinstance(op.text, str):
            seen.add(identity(_each(program, lambda o, op=op: replace(o, text="?") if o is op else o)))  # type: ignore[misc]
    assert len(seen) > 2


def test_views_show_blocks_as_one() -> None:
    text = (
        "def f(a):\n    b0 = eq(a, '')\n    s0 = root()\n    s1, t0 = gen(s0, 'x')\n    s2 = cond(b0):\n"
        "        s3, t1 = gen(s1, 'y')\n        yield s3\n    else:\n        yield s1\n"
        "    s4, t2 = gen(s2, 'z')\n    return t2\n"
    )
    program = from_text(text, "f.sglir")
    assert [[op.mnemonic for op in wave] for wave in waves(program)] == [["gen"], ["cond"], ["gen"]]
    assert "cond(b0)" in to_dot(program)


@pytest.mark.slow
def test_time_is_linear() -> None:
    """Text, checks and passes on 2,000 small blocks: four times the blocks, less than ten times as long."""

    def seconds(count: int) -> float:
        """Of this thread alone, so that it does not matter what else the machine does."""
        lines = ["# sglir 2", "def f(a):", "    b0 = eq(a, '')", "    s0 = root()"]
        for i in range(count):
            lines += [
                f"    s{3 * i + 3} = cond(b0):",
                f"        s{3 * i + 1} = append(s{3 * i}, 'x')",
                f"        yield s{3 * i + 1}",
                "    else:",
                f"        s{3 * i + 2} = append(s{3 * i}, 'y')",
                f"        yield s{3 * i + 2}",
            ]
        text = "\n".join([*lines, f"    return s{3 * count}", ""])
        begin = time.thread_time()
        program = from_text(text, "long.sglir")
        assert to_text(program) == text
        assert canonical(program) == program
        run_pipeline(program, PLAIN, PASSES)
        return time.thread_time() - begin

    seconds(10)  # builds the parser
    short, long = min(seconds(500), seconds(500)), seconds(2_000)
    assert long < 10 * short


# -- broken passes -----------------------------------------------------------------------------------


def _each(program: Program, change: Callable[[Op], Op]) -> Program:
    """The program with `change` made to every op, those in blocks first."""

    def block(ops: Iterable[Op]) -> tuple[Op, ...]:
        return tuple(change(with_regions(op, lambda r: replace(r, ops=block(r.ops)))) for op in ops)

    # An op that has no blocks comes to `change` as it is.
    return replace(program, ops=block(program.ops))


def swap_arms(program: Program) -> Program:
    """A rewrite that takes the wrong arm."""
    return _each(
        program, lambda op: replace(op, then=op.orelse, orelse=op.then) if isinstance(op, Cond) else op
    )


def default_first(program: Program) -> Program:
    """A rewrite that loses the last case of a switch."""

    def change(op: Op) -> Op:
        return replace(op, cases=op.cases[:-1], arms=op.arms[:-1]) if isinstance(op, Switch) else op

    return _each(program, change)


def loop_once_more(program: Program) -> Program:
    """An unrolling that is off by one."""
    return _each(program, lambda op: replace(op, max_iters=op.max_iters + 1) if isinstance(op, Loop) else op)


def turn_lists(program: Program) -> Program:
    """A map that yields its lists in another order."""

    def change(op: Op) -> Op:
        if not isinstance(op, Map):
            return op
        return replace(op, body=replace(op.body, results=op.body.results[::-1]))

    return _each(program, change)


def other_arguments(program: Program) -> Program:
    """An inlining that mixes up what is passed."""

    def change(op: Op) -> Op:
        return replace(op, args=("mixed up", *op.args[1:])) if isinstance(op, Call) else op

    return _each(program, change)


def share_between_arms(program: Program) -> Program:
    """CSE that takes what one arm makes for what another one needs."""
    first: dict[Op, Op] = {}
    rename: dict[Value, Value] = {}

    def block(before: Iterable[Op]) -> tuple[Op, ...]:
        ops: list[Op] = []
        for op in before:
            op = with_regions(reading(op, rename), region)
            twin = first.setdefault(replace(op, results=()), op) if isinstance(op, Append | Root) else op
            if twin is op:
                ops.append(op)
            else:
                rename.update(zip(op.results, twin.results, strict=True))
        return tuple(ops)

    def region(before: Region) -> Region:
        return replace(before, ops=block(before.ops), results=substitute(before.results, rename))

    return replace(program, ops=block(program.ops), returns=substitute(program.returns, rename))


def skip_blocks(program: Program) -> Program:
    """A pass that renames what it drops, and forgets that blocks read it too."""
    rename: dict[Value, Value] = {}
    ops: list[Op] = []
    for op in program.ops:
        op = reading(op, rename)
        if isinstance(op, Append) and op.text == "":
            rename[op.results[0]] = op.stream
            continue
        ops.append(op)
    return replace(program, ops=tuple(ops), returns=substitute(program.returns, rename))


def hoist_from_loop(program: Program) -> Program:
    """A rewrite that moves the first op of a loop's block before the loop."""
    ops: list[Op] = []
    for op in program.ops:
        if isinstance(op, Loop) and op.body.ops:
            ops.append(op.body.ops[0])
            op = replace(op, body=replace(op.body, ops=op.body.ops[1:]))
        ops.append(op)
    return replace(program, ops=tuple(ops))


MUTANTS = [
    swap_arms, default_first, loop_once_more, turn_lists, other_arguments, share_between_arms, skip_blocks,
    hoist_from_loop,
]  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_broken_pass_is_caught(mutant: Callable[[Program], Program]) -> None:
    assert any(is_caught(random_program(seed, regions=True), mutant) for seed in SEEDS)


def is_caught(program: Program, mutant: Callable[[Program], Program]) -> bool:
    after = mutant(program)
    try:
        verify(after)
    except VerifyError:
        return True
    try:
        return means(after) != means(program)
    except RunError:
        return True
