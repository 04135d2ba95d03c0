"""The text form: exact both ways, linear, and its errors have a place."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from typing import Any

import pytest

import sglc as sgl
from sglc.errors import Loc, VerifyError
from sglc.ir.core import NOWHERE, OPS, Program, Site, Type, Value, walk
from sglc.ir.ops import Append, Arg, Gen, HostCall, Resume, Root
from sglc.ir.sampling import Sampling
from sglc.ir.text.printer import from_text, identity, to_text
from tests.depth import few
from tests.random_programs import random_program
from tests.reference.numbering import canonical

S, T = Type.STREAM, Type.TEXT


def round_trip(program: Program) -> Program:
    text = to_text(program)
    parsed = from_text(text, "x.sglir")
    assert to_text(parsed) == text
    return parsed


def test_every_op_has_a_text_form() -> None:
    """All ops, every field away from its default."""
    text = """\
# sglir 2
def 'A.b <locals>'(essay, s0: resume('k0', turns=('system', 'user'), role='assistant'), t0: arg('a b'), \
n: arg('n', kind='int', default='3'), _: guard('operator.gt(n, 2)', 'True')):
    s1 = root()
    s2 = append(s1, 'text')
    s3 = append(s2, essay)
    s4 = control(s3, '<|im_start|>', (1, 2))
    s5 = role_open(s4, 'user')
    s6 = role_close(s5, 'user')
    s7, t1 = gen(s6, 'x', fork=(0, 2), occurrence=1, function='f', max_tokens=8, min_tokens=1, n=2, \
stop=('\\n',), stop_token_ids=(3,), temperature=0.5, top_p=0.9, top_k=4, \
min_p=0.1, ignore_eos=True, seed=18446744073709551615)
    s8, t2 = select(s7, 'y', ('a', t1), method='other')
    s9, s10 = fork(s8, labels=('one', 'two'))
    l0 = join('x', (t1, None))
    t3 = format(('a', t1, essay))
    t4 = strip(' a ')
    t5 = lower(t4)
    b0 = eq(t5, 'a')
    b1 = in_('a', essay)
    b2 = not_(b1)
    j0 = parse_json('{}')
    l1 = concat((t4, 'b', l0))
    s13, t7 = cond(b0):
        s11, t6 = gen(s9, 'z')
        yield s11, t6
    else:
        s12 = append(s9, 'no')
        yield s12, t4
    switch(t7):
        case "it's":
            s14 = root()
            yield
        case '':
            yield
        case _:
            host_call('python')
            yield
    s17, t9 = loop((s13, t7), 3) as s15, t8:
        s16 = append(s15, t8)
        yield b2, s16, t8
    loop((), 1):
        yield b2
    l3, l4 = map(l1) as t10:
        l2 = map(l1) as t11:
            yield t11
        yield t10, l2
    t12, s18 = call('judge', (s17, 'x'), fork=(0,)):
        def judge(s0: resume('k'), b):
            s1, t0 = gen(s0, 'x')
            return {'text': (t0, 1), 'stream': s1}
    host_call('because', reads=(t1, s10))
    return (l0,)
"""
    more = """\
# sglir 2
def everything(a):
    l0 = tool('search', (a, {'k': (1, True)}), named={'limit': 3}, gives='list')
    s0 = root()
    s1 = image(s0, 'data:image/png;base64,AA')
    s2 = scope_begin(s1, 'notes', movable=True)
    s3, t0 = gen(s2, 'x', json_schema='{}', stop_regex=('a|b',), frequency_penalty=0.5, \
presence_penalty=-0.5, logit_bias=((1, -0.5),), logprobs_from=0, top_logprobs=2, logprob_text=True)
    s4 = scope_end(s3, 'notes')
    b0 = pure_call('check', (l0,), gives='bool')
    t1 = switch(t0):
        case 'yes':
            yield a
        case 'no':
            yield t0
    j0 = pack({'list': (l0, b0), 'text': t1, 'none': None, 'real': -0.0})
    t2 = text_of(s4, since=s1)
    store('kept', {'text': t2, 'one': (1, True)})
    prompt(s4, turns=({'open': 'user'}, t2, j0))
    return j0
"""
    seen = set()
    for written in (text, more):
        parsed = from_text(written, "x.sglir")
        assert to_text(parsed) == written
        assert parsed == canonical(parsed)
        seen |= {op.mnemonic for op in (*parsed.params, *walk(parsed.ops))}
    assert seen == set(OPS)


@pytest.mark.parametrize(
    "literal",
    [
        "",
        "'",
        '"',
        "'\"",
        "\\",
        "\\n",
        "\n\r\t\0",
        "\u2028\x85\x0c",
        "héllo 한국어 😀",
        "\ud800",
        "# a.py:1:2",
        "{x}",
        "\x1b[0m",
    ],
)
def test_literals_survive(literal: str) -> None:
    stream, after = Value(0, S), Value(1, S)
    program = Program(
        "f", (), (Root(results=(stream,)), Append(stream, literal, results=(after,))), {literal: literal}
    )
    assert round_trip(program) == program
    assert to_text(program).count("\n") == 5
    assert identity(program) == identity(round_trip(program))


@pytest.mark.parametrize(
    "constant",
    [0, -1, 10**30, 1.0, -0.0, 1e-300, 1.5e300, float("inf"), -float("inf"), True, None, (), ((),), {}, "x"],
)
def test_constants_survive_with_their_types(constant: object) -> None:
    found = round_trip(Program("f", (), (), (constant,))).returns  # type: ignore[arg-type]
    assert isinstance(found, tuple)
    assert repr(found[0]) == repr(constant)
    assert "nan" in to_text(round_trip(Program("f", (), (), float("nan"))))


@pytest.mark.parametrize(
    "name", ["s0", "t0", "l0", "nan", "inf", "None", "class", "a b", "", "한국", "root", "labels"]
)
def test_argument_names(name: str) -> None:
    """Any name is printed so that it is read back, even those that the printer gives to other values."""
    arg, stream, after = Value(0, T), Value(1, S), Value(2, S)
    ops = (Root(results=(stream,)), Append(stream, arg, results=(after,)))
    program = Program("f", (Arg(name, results=(arg,)),), ops, after)
    assert round_trip(program) == program


def test_numbering_is_local_to_the_text() -> None:
    a, b = Value(70, S), Value(3, S)
    program = Program("f", (), (Root(results=(a,)), Append(a, "x", results=(b,))), b)
    assert to_text(program) == "# sglir 2\ndef f():\n    s0 = root()\n    s1 = append(s0, 'x')\n    return s1\n"
    assert round_trip(program) == canonical(program) != program
    assert identity(program) == identity(canonical(program))


def test_equal_floats_and_integers_are_one_text() -> None:
    def program(temperature: float) -> Program:
        stream, after, text = Value(0, S), Value(1, S), Value(2, T)
        gen = Gen(stream, Site("f", (), "x"), Sampling(temperature=temperature), results=(after, text))
        return Program("f", (), (Root(results=(stream,)), gen))

    assert identity(program(0)) == identity(program(0.0))


def test_locations_survive() -> None:
    locs = [
        Loc("judge.py", 9, 5, 30),
        Loc("a b%20\t.py", 1),
        Loc("C:\\x.py", 2, 3),
        Loc("<none>", 0),
        Loc("한.py", 7, 0, 4),
    ]
    stream = Value(0, S)
    params = tuple(Resume(f"k{i}", results=(Value(i + 1, S),), loc=loc) for i, loc in enumerate(locs))
    ops = (
        *(Root(results=(Value(i + 10, S),), loc=loc) for i, loc in enumerate(locs)),
        HostCall("why", loc=locs[0]),
    )
    program = Program("f", (Arg("a", results=(stream,)), *params), ops)
    text = to_text(program, locs=True)
    parsed = from_text(text, "elsewhere.sglir")
    assert [op.loc for op in parsed.params] == [NOWHERE, *locs]
    assert [op.loc for op in parsed.ops] == [*locs, locs[0]]
    assert to_text(parsed, locs=True) == text
    assert to_text(parsed) == to_text(program)


def test_text_without_locations_points_at_itself() -> None:
    program = from_text(
        "# a comment\n\ndef f(a):\n  # another\n    s0 = root()  # not a place\n\n    return s0 # end\n",
        "x.sglir",
    )
    assert program.ops[0].loc == Loc("x.sglir", 5, 5, 14)
    assert program.params[0].loc == Loc("x.sglir", 3, 7, 8)


def test_windows_line_ends_and_no_last_newline() -> None:
    program = from_text("def f():\r\n    s0 = root()\r\n    return s0", "x.sglir")
    assert to_text(program) == "# sglir 2\ndef f():\n    s0 = root()\n    return s0\n"


@pytest.mark.parametrize("cut", few(range(0, 400, 7), 20))
def test_a_text_cut_short_is_refused_or_still_a_program(cut: int) -> None:
    text = to_text(random_program(1))
    try:
        loc = from_text(text[:cut], "cut.sglir").params[0].loc
    except VerifyError as error:
        loc = error.loc or NOWHERE
    assert loc.file == "cut.sglir"
    assert 1 <= loc.line <= text.count("\n")


@pytest.mark.slow
def test_time_is_linear() -> None:
    """Four times the ops take less than ten times as long."""
    chain = [f"    s{i + 1} = append(s{i}, 'line {i}')\n" for i in range(8_000)]

    def seconds(count: int) -> float:
        """Of this thread alone, so that it does not matter what else the machine does."""
        text = "# sglir 2\ndef f():\n    s0 = root()\n" + "".join(chain[:count]) + f"    return s{count}\n"
        begin = time.thread_time()
        program = from_text(text, "long.sglir")
        assert to_text(program) == text
        return time.thread_time() - begin

    seconds(10)  # builds the parser
    short, long = min(seconds(2_000), seconds(2_000)), seconds(8_000)
    assert long < 10 * short


def test_printing_loads_no_parser() -> None:
    modules = "sglc.ir.text.printer, sglc.ir.verify.verify, sglc.passes.base, sglc.ir.text.graph"
    code = f"import sys, {modules}; print('lark' in sys.modules, 'networkx' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout == "False False\n"


def test_replacing_a_location_keeps_identity() -> None:
    program = random_program(3)
    moved = replace(program, ops=tuple(replace(op, loc=Loc("other.py", 1)) for op in program.ops))
    assert moved == program
    assert identity(moved) == identity(program)


@sgl.function
def maps_pairs(s: Any, text: str) -> None:
    s += text + sgl.gen("list")
    s["pairs"] = [[at + 2 for at in range(0, len(part), 2)] for part in s["list"].split(",")]


def test_items_of_a_json_value_stay_json() -> None:
    assert "map(j" in to_text(maps_pairs.trace())
    round_trip(maps_pairs.trace())
