"""What generations are held to is checked at compile time, wherever they stand, and built once."""

from __future__ import annotations

import linecache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sglc as sgl
from sglc.cli.program_file import open_functions
from sglc.errors import LegalizeError, Loc, TraceError
from sglc.ir.grammar.dfa import DEAD, accepts, compressed, forced_bytes, only_classes
from sglc.ir.grammar.fsm_summary import summary
from sglc.ir.grammar.regex import compile_regex
from sglc.ir.grammar.schema_grammar import exact_schema
from sglc.ir.grammar.stops import stop_pattern
from sglc.ir.plan.plan_file import plan_from_text, plan_to_text
from sglc.ir.plan.plan_text import plan_text
from sglc.ir.plan.segment import GenNode, Segment, SelectNode
from sglc.ir.sampling import Sampling
from sglc.ir.target import Takes, Target
from sglc.ir.text.literal_place import place_in_literal
from sglc.ir.text.printer import from_text
from sglc.passes.base import run_pipeline
from sglc.passes.compile import compile_program
from sglc.runtime.constraints import automaton_cache
from sglc.runtime.constraints.constraint import Constraints
from tests.depth import at_depth, few
from tests.test_regex import patterns

LOCAL = Target("local")
BODY = """\
def f(q):
    s0 = root()
    s1 = append(s0, q)
    s2, t0 = gen(s1, 'x', {})
    return t0
"""


def test_compiling_twice_builds_an_automaton_once() -> None:
    compile_regex.cache_clear()  # another test compiles the same
    exact_schema.cache_clear()
    pattern, schema = "only (here){3,7}", '{"maxLength": 12345}'
    program = from_text(BODY.format(f"regex={pattern!r}"), "f.sglir")
    before = compile_regex.misses
    compile_program(program, LOCAL)
    assert compile_regex.misses == before + 1
    compile_program(program, LOCAL)
    assert accepts(compile_regex(pattern), b"only hereherehere")  # as the run asks for it
    assert compile_regex.misses == before + 1

    before = exact_schema.misses
    for _ in range(2):
        compile_program(from_text(BODY.format(f"json_schema={schema!r}"), "f.sglir"), LOCAL)
    assert exact_schema.misses == before + 1


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
            ("structural_tag='{}'", "SGLC464"),
            ('structural_tag=\'{"format": {"type": "grammar"}}\'', "SGLC465"),
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


@pytest.mark.parametrize(
    ("argument", "shown"),
    few(
        [
            (r"regex=r'a\d(?=b)b'", "(?=b)"),
            (r"regex='a\x41\\d(?=b)b'", "(?=b)"),
            ("regex=(r'ab'  # one\n        'c'\n        '한(?=b)b')", "(?=b)"),
            ("regex=PATTERN", "(?=c)"),
            ("regex=TWICE", "sgl.gen("),  # nobody can tell which one it is
            ("regex='a(?' + '=b)b'", "sgl.gen("),
            ("stop_regex=['x', 'é*']", "sgl.gen("),
            ("ebnf='''root ::= \"a\"\n  | item'''", "item"),
            ("regex='[a', name='x'", "[a'"),
        ],
        4,
    ),
)
def test_a_refusal_points_into_the_pattern(argument: str, shown: str, tmp_path: Path) -> None:
    file = tmp_path / "shape.py"
    file.write_text(
        "import sglc as sgl\nPATTERN = 'a(?=c)c'\nTWICE = 'b(?=d)'\nAGAIN = 'b(?=d)'\n\n@sgl.function\n"
        f"def ask(s):\n    s += sgl.gen({argument})\n",
        encoding="utf-8",
    )
    (function,) = open_functions(str(file))
    with pytest.raises((LegalizeError, TraceError)) as failure:
        compile_program(function.trace(), LOCAL)
    loc = failure.value.loc
    assert loc is not None
    lines = file.read_text(encoding="utf-8").splitlines()
    assert lines[loc.line - 1][loc.column - 1 :].startswith(shown)


def test_a_place_behind_letters_of_several_bytes_is_counted_in_letters(tmp_path: Path) -> None:
    """In a file that begins with a byte order mark, as some editors write it."""
    file = tmp_path / "shape.py"
    line = "    s += '한국한국é' + sgl.gen('x', regex='ab(?=b)') + sgl.gen('y', regex='ab(?=b)')"
    file.write_text(f"import sglc as sgl\n\n@sgl.function\ndef ask(s):\n{line}\n", encoding="utf-8-sig")
    (function,) = open_functions(str(file))
    with pytest.raises(LegalizeError) as failure:
        compile_program(function.trace(), LOCAL)
    loc = failure.value.loc
    assert loc is not None
    assert loc.column - 1 == line.index("(?=b)")


@pytest.mark.parametrize("digits", [11, 5000])
def test_a_number_of_too_many_digits_is_refused(digits: int) -> None:
    """`re` does not say so as it says what else is wrong."""
    pattern = f"a{{{'9' * digits}}}"
    for check in (compile_regex, stop_pattern):
        with pytest.raises(LegalizeError):
            check(pattern)

    @sgl.function
    def ask(s: Any) -> None:
        s += sgl.gen("x", regex=pattern)

    with pytest.raises(TraceError, match="no regular expression"):
        ask.trace()


@pytest.mark.parametrize(
    "pattern", ["\ud800", "\ud800(?=b)", "\x1b[2J\n(?=b)", "a\ud800*[^\\s\\S]", "(?=b)" + "a" * 1000]
)
def test_a_refused_pattern_is_shown_on_one_line(pattern: str) -> None:
    with pytest.raises(LegalizeError) as failure:
        compile_regex(pattern)
    assert failure.value.message.isprintable()
    assert failure.value.note.isprintable()
    assert len(failure.value.message) < 500


@pytest.mark.slow
@settings(max_examples=at_depth(60, 80, 2000), deadline=None, derandomize=True)
@given(st.lists(st.text(st.sampled_from("ab'\"\\\\\n\té한\x00😀{"), max_size=8), min_size=1, max_size=3))
def test_every_character_of_a_literal_has_its_place(texts: list[str]) -> None:
    spelled = "  # \u00e9\n".join(map(repr, texts))
    source = f"x = [1,\n  f({spelled})]\n"
    linecache.cache["spelled.py"] = (len(source), None, source.splitlines(keepends=True), "spelled.py")
    value = "".join(texts)
    for at, character in enumerate(value):
        loc = place_in_literal(value, at, Loc("spelled.py", 2, 3))
        assert loc is not None
        line = source.split("\n")[loc.line - 1]
        assert line[loc.column - 1 :].startswith((character, repr(character)[1:-1], "\\'"))
    assert place_in_literal(value, len(value), Loc("spelled.py", 2, 3)) is None


@pytest.mark.slow
def test_the_size_of_automata() -> None:
    def said(pattern: str) -> str:
        return str(summary(compile_regex(pattern)))

    assert said("a") == "2 states, 1 run, 1 of 1 bytes forced"
    assert said("[ab]") == "2 states, 0 runs, 0 of 1 bytes forced"
    assert said('{"a": [0-9]}') == "3 states, 2 runs, 7 of 8 bytes forced"
    assert said("born (1[0-9]{3}|unknown)") == "6 states, 2 runs, 5 of 9 bytes forced"
    assert said("(ab)*") == "1 state, 1 run, 0 of 0 bytes forced"
    assert said("[ab]{40000}") == "40,001 states, too many to look for runs"


@pytest.mark.slow
@settings(max_examples=at_depth(40, 50, 1000), deadline=None, derandomize=True)
@given(patterns())
def test_sizes_are_those_of_the_compressed_automaton(pattern: str) -> None:
    dfa = compile_regex(pattern)
    found, edges = summary(dfa), compressed(dfa)
    assert found.states == len({0, *(state for edge in edges for state in (edge.source, edge.target))})
    alone = {
        edge.source for edge in edges if forced_bytes(dfa, edge.source, only_classes(dfa.classes, dfa.moves))
    }
    assert found.runs == sum(bool(edge.rest) or edge.source in alone for edge in edges)
    # The shortest texts by their own way: all states that texts of a length lead to.
    states, length = {0}, 0
    while not any(dfa.accepting[state] for state in states):
        states = {to for state in states for to in dfa.moves[state] if to != DEAD}
        length += 1
    assert found.shortest == length
    assert found.forced <= length


def test_marks_go_into_the_plan_with_the_key_of_the_form(tmp_path: Path) -> None:
    pattern, grammar = "only (here){3,7}", 'root ::= "ab" | "cd"'
    text = BODY.format(f"regex={pattern!r}").replace(
        "return t0",
        f"""\
s3, t1 = select(s2, 'y', ('yes', 'yesterday'))
    s4, t2 = gen(s3, 'z', ebnf={grammar!r})
    s5, t3 = select(s4, 'w', (q, 'no'))
    return t0""",
    )
    program = from_text(text, "f.sglir")
    plan = compile_program(program, LOCAL).plan
    again = plan_from_text(plan_to_text(plan), "plan.json")
    assert again == plan
    (step,) = again.steps
    assert isinstance(step, Segment)
    held = [node for node in step.nodes if isinstance(node, GenNode | SelectNode)]
    assert [node.fsm for node in held] == [
        "6 states, 5 runs, 17 of 17 bytes forced", "3 states, 2 runs, 3 of 3 bytes forced", "", ""
    ]  # fmt: skip
    constraints = Constraints([bytes([byte]) for byte in range(256)], 256, folder=tmp_path, identity="it")
    path = automaton_cache.path_of(tmp_path, "regex", pattern, "it", 256)
    automaton_cache.save(path, constraints.regex(pattern)._tables, slow=True)
    constraints.of(Sampling(ebnf=grammar))
    forms = [node.form for node in held if isinstance(node, GenNode)]
    assert sorted(path.name[:17] for path in tmp_path.iterdir()) == sorted(f"{form}-" for form in forms)
    assert f"fsm=({held[0].fsm}) form={forms[0]}" in plan_text(plan)


def test_targets_without_automata_have_no_marks() -> None:
    program = from_text(BODY.format("regex='yes|no'"), "f.sglir")
    api = Target("api", protocol="chat", takes=Takes(regex=False))
    assert run_pipeline(program, api, ("compile_constraints",)) == (program, ())


def test_without_an_automaton_nothing_changes() -> None:
    for argument in ("max_tokens=4", "stop_regex=('c+',)"):
        program = from_text(BODY.format(argument), "f.sglir")
        assert run_pipeline(program, LOCAL, ("compile_constraints",)) == (program, ())


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
        run_pipeline(from_text(text, "f.sglir"), LOCAL, ("compile_constraints",))
    assert failure.value.loc is not None
    assert (failure.value.code, failure.value.loc.line) == ("SGLC450", 8)
