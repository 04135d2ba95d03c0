"""Compressed automata: the same texts over fewer edges, each as long as it can be."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sglc as sgl
from sglc.cli import main
from sglc.ir.grammar.dfa import DEAD, ByteDfa, Edge, accepts, compressed, forced_bytes, only_classes, run
from sglc.ir.grammar.fsm_summary import automaton_of_choices
from sglc.ir.grammar.regex import compile_regex
from sglc.ir.text.fsm_graph import to_fsm_dot
from tests.depth import at_depth
from tests.test_regex import LETTERS, patterns


def taken(dfa: ByteDfa, edges: tuple[Edge, ...], data: bytes) -> bool:
    """Whether `data` is a walk along `edges` from the start to where a text may end."""
    state, at = 0, 0
    while at < len(data):
        fits = [
            edge
            for edge in edges
            if edge.source == state
            and any(first <= data[at] <= last for first, last in edge.first)
            and data.startswith(edge.rest, at + 1)
        ]
        assert len(fits) <= 1, "two edges begin alike"
        if not fits:
            return False
        state, at = fits[0].target, at + 1 + len(fits[0].rest)
    return dfa.accepting[state]


def walked(dfa: ByteDfa, rng: random.Random) -> bytes:
    """A match, or what one begins with."""
    state, data = 0, bytearray()
    while len(data) < 30 and not (dfa.accepting[state] and rng.random() < 0.3):
        ways = [byte for byte in range(256) if dfa.moves[state][dfa.classes[byte]] != DEAD]
        if not ways:
            break
        data.append(rng.choice(ways))
        state = run(dfa, data[-1:], state)
    return bytes(data)


@settings(max_examples=at_depth(50, 60, 150), deadline=None, derandomize=True)
@given(patterns(), st.lists(st.text(st.sampled_from(LETTERS), max_size=5), min_size=8, max_size=8))
def test_compressed_automata_take_the_same_texts(pattern: str, texts: list[str]) -> None:
    dfa = compile_regex(pattern)
    edges, rng = compressed(dfa), random.Random(pattern)
    for data in (*(text.encode() for text in texts), *(walked(dfa, rng) for _ in range(8))):
        assert taken(dfa, edges, data) == accepts(dfa, data), data


@settings(max_examples=at_depth(40, 50, 100), deadline=None, derandomize=True)
@given(patterns())
def test_what_is_forced_is_what_every_match_has(pattern: str) -> None:
    dfa = compile_regex(pattern)
    # Of bytes that move alike the first two tell whether there is a choice.
    kinds = range(len(dfa.moves[0]))
    some = [byte for kind in kinds for byte in [b for b in range(256) if dfa.classes[b] == kind][:2]]
    for state in range(len(dfa.moves)):
        forced, at = forced_bytes(dfa, state, only_classes(dfa.classes, dfa.moves)), state
        for byte in forced:
            ways = [other for other in some if run(dfa, bytes([other]), at) != DEAD]
            assert ways == [byte]
            assert not dfa.accepting[at]
            at = run(dfa, bytes([byte]), at)
        ways = [other for other in some if run(dfa, bytes([other]), at) != DEAD]
        assert dfa.accepting[at] or len(ways) > 1, "a run that could be longer"


def test_runs_are_single_edges() -> None:
    dfa = compile_regex('{"house": "(Gryffindor|Slytherin)", "year": 1[0-9]{2}}')
    edges = compressed(dfa)
    assert len(dfa.moves) > 40
    digits = ((48, 57),)
    assert [(edge.first, edge.rest.decode()) for edge in edges] == [
        (((123, 123),), '"house": "'),
        (((71, 71),), "ryffindor"),
        (((83, 83),), "lytherin"),
        (((34, 34),), ', "year": 1'),
        (digits, ""),
        (digits, "}"),
    ]
    assert forced_bytes(dfa, 0, only_classes(dfa.classes, dfa.moves)) == b'{"house": "'
    assert forced_bytes(dfa, edges[-1].target, only_classes(dfa.classes, dfa.moves)) == b""


@sgl.function
def birth(s, who):  # type: ignore[no-untyped-def]
    s += f"{who}: "
    s += sgl.gen("year", regex="born (1[0-9]{2}|unknown é\n)!")
    s += sgl.gen("again", regex="born (1[0-9]{2}|unknown é\n)!")
    s += sgl.gen("long", regex="([ab][cd]){600}")


@pytest.fixture
def drawn() -> list[str]:
    return to_fsm_dot(birth.trace()).splitlines()


def test_a_drawing_has_every_automaton_once_with_its_runs(drawn: list[str]) -> None:
    clusters = [line for line in drawn if "subgraph cluster_" in line]
    assert len(clusters) == 2
    labels = [line.split("label=")[1] for line in drawn if line.startswith("    f0_") and "->" in line]
    assert sorted(labels) == [
        '"!", style=bold];', '"1"];', '"[0-9]"];', '"[0-9]"];', '"born ", style=bold];',
        '"unknown é\\\\n", style=bold];',
    ]  # fmt: skip
    assert sum("doublecircle" in line for line in drawn) == 1
    assert any("too many edges to draw" in line for line in drawn)


@pytest.mark.slow
def test_the_command_draws_the_automata_of_called_programs_and_choices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "f.sglir"
    file.write_text("""\
def f(q):
    t0 = call('g', (q,)):
        def g(text):
            s0 = root()
            s1, t0 = gen(s0, 'x', regex='"a": (1|)')
            s2, t1 = select(s1, 'y', ('yes', 'yesterday'))
            s3, t2 = select(s2, 'again', ('yes', 'yesterday'))
            s4, t3 = select(s3, 'z', (text, 'no'))
            s5, t4 = gen(s4, 'w', json_schema='{"type": "boolean"}')
            s6, t5 = gen(s5, 'v', json_schema='{"type": "string", "pattern": "a"}')
            return t4
    return t0
""")
    assert main(["compile", str(file), "--target", "local", "--emit", "fsm"]) == 0
    drawn = capsys.readouterr().out.splitlines()
    assert [line.strip() for line in drawn if "label=" in line and "shape" not in line] == [
        r'label="x: /\"a\": (1|)/: 3 states, 1 run, 5 of 5 bytes forced";',
        r'f0_0 -> f0_5 [label="\"a\": ", style=bold];',
        'f0_5 -> f0_6 [label="1"];',
        """label="y, again: 'yes' | 'yesterday': 3 states, 2 runs, 3 of 3 bytes forced";""",
        'f1_0 -> f1_3 [label="yes", style=bold];',
        'f1_3 -> f1_9 [label="terday", style=bold];',
        r'label="w: {\"type\": \"boolean\"}: 3 states, 3 runs, 3 of 4 bytes forced";',
        'f2_0 -> f2_6 [label="fals", style=bold];',
        'f2_0 -> f2_6 [label="tru", style=bold];',
        'f2_6 -> f2_7 [label="e", style=bold];',
    ]
    assert main(["compile", "examples/quickstart.py", "--target", "local", "--emit", "fsm"]) == 0
    assert "cluster" not in capsys.readouterr().out


@given(st.lists(st.text("abé한", max_size=4), min_size=1, max_size=6))
@settings(max_examples=at_depth(30, 50, 1000), deadline=None, derandomize=True)
def test_automata_of_choices_take_just_these(choices: list[str]) -> None:
    dfa = automaton_of_choices(choices)
    assert dfa is not None
    edges = compressed(dfa)
    for text in {*choices, *(text[:-1] for text in choices), *(f"{text}a" for text in choices), "b"}:
        assert accepts(dfa, text.encode()) == taken(dfa, edges, text.encode()) == (text in choices)
