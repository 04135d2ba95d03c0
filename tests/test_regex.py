"""Automata of regular expressions: the texts that `re` takes, no others, and as few states as can be."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sglc as sgl
from sglc.errors import LegalizeError, TraceError
from sglc.ir.grammar import regex
from sglc.ir.grammar.dfa import DEAD, ByteDfa, accepts, run
from sglc.ir.grammar.regex import _utf8, compile_regex
from sglc.ir.grammar.stops import stop_pattern
from tests.depth import at_depth, few

LETTERS = "abAB01_ .\n\x00é\u017f\u212a한\uffff😀\U0010ffff"  # among them two that fold to ASCII letters
CLASSES = (
    r"\d", r"\D", r"\w", r"\W", r"\s", r"\S", ".", "[ab]", "[^ab]", r"[\W\D]", r"[^\Wa]", "[A-é]", "[^é-한]",
    "[0-\U0010ffff]", r"\x00", r"\.", "(?i:[^a-k])", "(?i:K)", "(?i:é)", "(?s:.)", "(?-i:a)",
)  # fmt: skip


# Each with a letter that it takes, if one does.
LEAVES = [(leaf, re.findall(leaf, LETTERS, re.ASCII)[-1:]) for leaf in (*"abAé한😀", *CLASSES)]

Example = tuple[str, str]


def examples() -> st.SearchStrategy[Example]:
    """Patterns, each with a text that it takes, as a rule: `(?i:[^a])` takes less than `[^a]`."""

    def repeated(part: Example, repeat: str) -> Example:
        text = part[1] + repeat if repeat == "{}" else part[1] * (2 if "2" in repeat else 1)
        return f"(?:{part[0]}){repeat}", text

    def larger(inner: st.SearchStrategy[Example]) -> st.SearchStrategy[Example]:
        repeats = st.sampled_from(("*", "+", "?", "*?", "{2}", "{1,2}", "{,2}", "{1,}", "{}"))
        return st.one_of(
            st.lists(inner, max_size=3).map(
                lambda parts: ("".join(p for p, _ in parts), "".join(t for _, t in parts))
            ),
            st.lists(inner, min_size=1, max_size=3).map(
                lambda parts: (f"(?:{'|'.join(p for p, _ in parts)})", parts[-1][1])
            ),
            st.builds(repeated, inner, repeats),
            inner.map(lambda part: (f"(?i:{part[0]})", part[1])),
            inner.map(lambda part: (f"({part[0]})", part[1])),
        )

    leaves = st.sampled_from([(leaf, "".join(found)) for leaf, found in LEAVES])
    return st.recursive(leaves, larger, max_leaves=6)


def patterns() -> st.SearchStrategy[str]:
    return examples().map(lambda example: example[0])


@settings(max_examples=at_depth(40, 50, 1000), deadline=None, derandomize=True)
@given(examples(), st.lists(st.text(st.sampled_from(LETTERS), max_size=5), min_size=8, max_size=8))
def test_the_automaton_takes_what_fullmatch_takes(example: Example, texts: list[str]) -> None:
    pattern, taken = example
    compiled = re.compile(pattern, re.ASCII)
    dfa = compile_regex(pattern)
    for text in (*texts, *texts[0], taken, taken[:-1], taken + taken[:1]):
        assert accepts(dfa, text.encode()) == bool(compiled.fullmatch(text)), (pattern, text)


@pytest.mark.slow
def test_examples_take_their_texts() -> None:
    """Nearly all, or the comparison would be one of refusals."""
    taken = []

    @settings(max_examples=200, deadline=None, derandomize=True, database=None)
    @given(examples())
    def look(example: Example) -> None:
        taken.append(re.fullmatch(*example, re.ASCII) is not None)

    look()
    assert sum(taken) > 0.8 * len(taken)


@settings(max_examples=at_depth(40, 50, 1000), deadline=None, derandomize=True)
@given(patterns())
def test_no_state_is_dead_or_double(pattern: str) -> None:
    dfa = compile_regex(pattern)
    states = range(len(dfa.moves))
    alive = set()
    for _ in states:
        alive |= {s for s in states if dfa.accepting[s] or any(to in alive for to in dfa.moves[s])}
    assert alive == set(states)
    # Moore's refinement, another way than the one in use, finds as many classes as there are states.
    label = {s: int(dfa.accepting[s]) for s in states} | {DEAD: -1}
    for _ in states:
        wider = {s: (label[s], *(label[to] for to in dfa.moves[s])) for s in states}
        number = {key: i for i, key in enumerate(dict.fromkeys(wider.values()))}
        label = {s: number[wider[s]] for s in states} | {DEAD: -1}
    assert len(set(label.values())) == len(states) + 1
    assert len(set(zip(*dfa.moves, strict=True))) == len(dfa.moves[0]), "two classes that move alike"


@settings(max_examples=at_depth(20, 30, 500), deadline=None, derandomize=True)
@given(st.binary(max_size=6))
def test_only_utf8_is_text(data: bytes) -> None:
    """`.` with the flag `s` takes any character, so its repeat takes exactly what decodes."""
    try:
        data.decode()
        decodes = True
    except UnicodeDecodeError:
        decodes = False
    assert accepts(compile_regex("(?s).*"), data) == decodes


def test_equal_languages_give_equal_automata() -> None:
    for one, other in (("(a|b)*", "[ab]*"), ("a|ab", "ab?"), (r"\d", "[0-9]"), ("(b*ab)*", "(b|ab)*ab|")):
        assert compile_regex(one) == compile_regex(other)
    assert compile_regex("[ab]*") != compile_regex("[ab]+")
    assert compile_regex("ab?") == ByteDfa(
        bytes(1 if byte == ord("a") else 2 if byte == ord("b") else 0 for byte in range(256)),
        ((DEAD, 1, DEAD), (DEAD, DEAD, 2), (DEAD, DEAD, DEAD)),
        (False, True, True),
    )


@pytest.mark.parametrize(("first", "last"), [(0, 0x10FFFF), (0x7F, 0x80), (0x7FA, 0xD7FE), (0xE001, 0x10000)])
def test_byte_ranges_spell_every_code_point_once(first: int, last: int) -> None:
    if first == 0:  # surrogates have no encoding
        spelled = [*_utf8(0, 0xD7FF), *_utf8(0xE000, last)]
        points = [*range(0x300), *range(0xD700, 0xD800), *range(0xE000, 0xE100), *range(0xFF00, 0x10FFFF, 97)]
    else:
        spelled = list(_utf8(first, last))
        points = list(range(first, last + 1))
    for point in points:
        data = chr(point).encode()
        inside = [
            ranges
            for ranges in spelled
            if len(ranges) == len(data)
            and all(a <= byte <= b for (a, b), byte in zip(ranges, data, strict=True))
        ]
        assert len(inside) == 1
    assert len(spelled) < 20


def test_anchors_at_the_ends_say_nothing() -> None:
    assert compile_regex(r"^ab$") == compile_regex(r"\Aab\Z") == compile_regex("ab")


def test_a_state_behind_a_prefix() -> None:
    dfa = compile_regex("é+")
    half = run(dfa, b"\xc3")
    assert half != DEAD
    assert run(dfa, b"\xa9", half) == run(dfa, "é".encode())
    assert run(dfa, b"a\xc3") == DEAD


@pytest.mark.parametrize(
    ("pattern", "code", "words"),
    few(
        [
            ("(", "SGLC450", "no regular expression"),
            ("a**", "SGLC450", "no regular expression"),
            ("[[:alpha:]]+", "SGLC450", "no regular expression"),
            (r"(a)\1", "SGLC451", "a reference to a group"),
            ("(a)?(?(1)b)", "SGLC451", "a condition on a group"),
            ("a(?=b).", "SGLC451", "a lookahead"),
            ("(?<!a)b", "SGLC451", "a negative lookahead or lookbehind"),
            ("a++", "SGLC451", "a possessive repeat"),
            ("(?>a)", "SGLC451", "an atomic group"),
            (r"\bab", "SGLC451", "an anchor"),
            ("a^b", "SGLC451", "an anchor"),
            (r"(?u:\w)", "SGLC451", "the flag `u`"),
            ("(?:.*a.{16})b", "SGLC452", "too large"),
            ("(a{1,900}){1,900}", "SGLC452", "too large"),
            ("(.?){3000}", "SGLC452", "too large"),
            ("[ab]{120000}", "SGLC452", "too large"),
            ("(" * 5000 + ")" * 5000, "SGLC452", "too large"),
            (r"[^\x00-\U0010ffff]a", "SGLC453", "no text matches"),
            ("[\ud800-\udfff]", "SGLC453", "no text matches"),
        ],
        3,
    ),
)
def test_what_cannot_constrain_is_refused(pattern: str, code: str, words: str) -> None:
    with pytest.raises(LegalizeError, match=words) as failure:
        compile_regex(pattern)
    assert failure.value.code == code


@pytest.mark.parametrize("pattern", ["[[:alpha:]]+", "a[0[:^digit:]_]"])
def test_classes_of_posix_are_refused_where_they_stand(pattern: str) -> None:
    """Python takes them for other characters, and may warn of it at whoever compiles the pattern."""
    for asked in ({"regex": pattern}, {"stop_regex": [pattern]}):
        with pytest.raises(TraceError, match=r"SGLC103.*no POSIX class `\[:\^?(alpha|digit):\]` at position"):
            sgl.gen("x", **asked)  # type: ignore[arg-type]
    with pytest.raises(LegalizeError, match="SGLC471"):
        stop_pattern(pattern)


def test_what_only_python_would_warn_of_is_as_it_reads_it() -> None:
    code = """if True:
        import sglc as sgl
        from sglc.backends.scripted import ScriptedBackend

        @sgl.function
        def tell(s, pattern):
            s += sgl.gen("x", regex=pattern) + sgl.gen("y", stop_regex=pattern)

        print(tell.run("[[a]--]|[[:a]", backend=ScriptedBackend(lambda asked: ":"))["x"])
    """
    given = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert (given.stdout, given.stderr) == (":\n", "")


@pytest.mark.parametrize(("pattern", "states"), [("(a{0,2}){0,900}", 40), ("(.?){1500}", 80)])
def test_the_sets_that_states_are_put_together_of_are_counted(pattern: str, states: int) -> None:
    effort = regex._Effort()
    with pytest.raises(LegalizeError, match="SGLC452"):
        regex._compiled(pattern, effort, calls=False)
    assert 0 < effort.states <= states


def test_what_is_wrong_with_a_pattern_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LegalizeError) as first:
        compile_regex("found(?=once)")
    monkeypatch.delattr(regex, "_compiled")
    with pytest.raises(LegalizeError) as second:
        compile_regex("found(?=once)")
    assert str(second.value) == str(first.value)
    assert second.value.at == first.value.at == 5


@pytest.mark.parametrize(
    ("pattern", "place"),
    few(
        [
            (r"(a)[\1]\\\1", 9),
            (r"(?P<x>a)b(?P=x)", 9),
            ("[(?=]a(?=b).", 6),
            (r"\(?!a(?<!a)b", 5),
            ("^a+b++$", 5),
            ("ab{2}+", 5),
            ("^a[^$]$b$", 6),
            (r"a\bb", 1),
            ("(a)?(?(1)b)", 4),
            ("a(?>b)", 1),
            (r"a(?u:\w)", 1),
            ("(a{1,900}b{2}){1,901}", 14),
            ("(?:.*a.{16})b", 7),
        ],
        4,
    ),
)
def test_a_refusal_says_where(pattern: str, place: int) -> None:
    with pytest.raises(LegalizeError) as failure:
        compile_regex(pattern)
    assert failure.value.note.startswith(f"at position {place} of the pattern; ")


@pytest.mark.parametrize(
    "pattern", few(["(?x: a # (?=b)\n (?=c) c)", "(.?" + "x?" * 5000 + ")*" + ".?" * 3000], 1)
)
def test_a_refusal_without_a_place_gives_none(pattern: str) -> None:
    with pytest.raises(LegalizeError) as failure:
        compile_regex(pattern)
    assert "position" not in failure.value.note


def test_an_automaton_is_built_once() -> None:
    assert compile_regex("(kept){2,9}") is compile_regex("(kept){2,9}")
