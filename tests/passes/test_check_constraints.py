"""What generations are held to is checked at compile time, wherever they stand, and built once."""

from __future__ import annotations

import pytest

from sglc.errors import LegalizeError
from sglc.ir.grammar.dfa import accepts
from sglc.ir.grammar.regex import compile_regex
from sglc.ir.grammar.schema_grammar import json_grammar
from sglc.ir.target import Target
from sglc.ir.text.printer import from_text
from sglc.passes.base import run_pipeline
from sglc.passes.compile import compile_program
from tests.depth import few

LOCAL = Target("local")
BODY = """\
def f(q):
    s0 = root()
    s1 = append(s0, q)
    s2, t0 = gen(s1, 'x', {})
    return t0
"""


def test_compiling_twice_builds_an_automaton_once() -> None:
    pattern, schema = "only (here){3,7}", '{"maxLength": 12345}'
    program = from_text(BODY.format(f"regex={pattern!r}"), "f.sglir")
    before = compile_regex.cache_info().misses
    compile_program(program, LOCAL)
    assert compile_regex.cache_info().misses == before + 1
    compile_program(program, LOCAL)
    assert accepts(compile_regex(pattern), b"only hereherehere")  # as the run asks for it
    assert compile_regex.cache_info().misses == before + 1

    before = json_grammar.cache_info().misses
    for _ in range(2):
        compile_program(from_text(BODY.format(f"json_schema={schema!r}"), "f.sglir"), LOCAL)
    assert json_grammar.cache_info().misses == before + 1


@pytest.mark.parametrize(
    ("argument", "code"),
    few(
        [
            ("regex='('", "SGLC450"),
            ("regex='a(?=b).'", "SGLC451"),
            ("regex='[ab]{120000}'", "SGLC452"),
            ("regex='[^\\\\x00-\U0010ffff]'", "SGLC453"),
            ("json_schema='{'", "SGLC455"),
            ("json_schema='{\"not\": {}}'", "SGLC456"),
            ("json_schema='{', strict=True", "SGLC455"),
            ("json_schema='{\"not\": {}}', strict=True", "SGLC456"),
            ("ebnf='rot ::= \"a\"'", "SGLC457"),
            ("stop_regex=('(',)", "SGLC471"),
            ("stop_regex=('a?',)", "SGLC472"),
        ],
        4,
    ),
)
def test_a_refusal_has_the_generation_s_place(argument: str, code: str) -> None:
    program = from_text(BODY.format(argument), "place.sglir")
    with pytest.raises(LegalizeError) as failure:
        compile_program(program, LOCAL)
    assert failure.value.code == code
    assert failure.value.loc is not None
    assert (failure.value.loc.file, failure.value.loc.line) == ("place.sglir", 4)


def test_a_check_changes_nothing() -> None:
    program = from_text(BODY.format("regex='[ab]+', stop_regex=('c+',)"), "f.sglir")
    assert run_pipeline(program, LOCAL, ("check_constraints",)) == (program, ())


def test_generations_of_called_programs_and_blocks_are_checked() -> None:
    text = """\
def compare(a):
    t0 = call('first', (a,)):
        def judge(essay):
            b0 = eq(essay, 'x')
            t1 = cond(b0):
                s0 = root()
                s1 = append(s0, essay)
                s2, t0 = gen(s1, 'score', regex='(')
                yield t0
            else:
                yield essay
            return t1
    return t0
"""
    with pytest.raises(LegalizeError) as failure:
        run_pipeline(from_text(text, "f.sglir"), LOCAL, ("check_constraints",))
    assert failure.value.loc is not None
    assert (failure.value.code, failure.value.loc.line) == ("SGLC450", 8)
