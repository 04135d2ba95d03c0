"""Incremental text against the naive method: decode everything, then search it."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from re import _parser
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sglc.errors import LegalizeError
from sglc.ir.grammar.stop_search import StopSearch
from sglc.ir.grammar.stops import stop_pattern
from sglc.runtime.tokenizer.detokenize import StopMatch, StopStream
from tests.depth import at_depth

# A vocabulary that splits characters and stop strings in every way: short texts over a small
# alphabet, the bytes of longer characters, invalid bytes, and a control token without bytes.
_PIECES = [
    b"a",
    b"b",
    b"ab",
    b"ba",
    b"aab",
    b"\n",
    b"\n\n",
    b"b\n",
    b"b\na",
    "é".encode(),
    "éa".encode(),
    b"",
    b"\xff",
]
_BYTES = [*_PIECES, *(bytes([byte]) for byte in "é€😀".encode()), b"\x9f\x98", b"\x80a", b"a\xe2", b"\x82\xacb"]
_STOPS = ["a", "ab", "aab", "bab", "\n", "\n\n", "b\na", "é", "aé", "€", "€b", "😀", "\ufffd", "abab"]


def _whole_characters(data: bytes) -> str:
    """`data` without the bytes of a character that is still open at its end."""
    for start in range(max(0, len(data) - 3), len(data)):
        try:
            data[start:].decode()
        except UnicodeDecodeError as error:
            if error.reason == "unexpected end of data" and error.start == 0:
                return data[:start].decode("utf-8", "replace")
    return data.decode("utf-8", "replace")


def _naive(ids: list[int], stops: list[str]) -> tuple[str, bool, int]:
    """(final text, stopped, tokens up to the one that completes the stop)."""
    for count in range(len(ids) + 1):
        text = _whole_characters(b"".join(_BYTES[i] for i in ids[:count]))
        for end in range(len(text) + 1):
            hits = [stop for stop in stops if text[:end].endswith(stop)]
            if hits:
                return text[: end - max(map(len, hits))], True, count
    return b"".join(_BYTES[i] for i in ids).decode("utf-8", "replace"), False, len(ids)


def _check(ids: list[int], stops: list[str]) -> None:
    stream = StopStream(_BYTES, stops)
    emitted, seen = [], 0
    for token in ids:
        emitted.append(stream.push(token))
        seen += 1
        if stream.match is not None:
            break
        emitted_now = "".join(emitted)
        known = _whole_characters(b"".join(_BYTES[i] for i in ids[:seen]))
        assert known.startswith(emitted_now)
        # No more is held back than could begin a stop string.
        held = known[len(emitted_now) :]
        assert not held or any(stop.startswith(held) for stop in stops)
    emitted.append(stream.finish())
    text, stopped, count = _naive(ids, stops)
    assert "".join(emitted) == text
    assert (stream.match is not None) == stopped
    assert seen == count
    assert stream.finish() == ""
    kept = [b"".join(_BYTES[i] for i in ids[:n]).decode("utf-8", "replace") for n in range(len(ids) + 1)]
    if stream.match is not None:
        assert kept[stream.match.kept_tokens] + stream.match.tail == text
        assert stream.match.cut == len(text)
        whole = [_whole_characters(b"".join(_BYTES[i] for i in ids[:n])) for n in range(seen + 1)]
        best = max(n for n in range(seen + 1) if kept[n] == whole[n] and text.startswith(kept[n]))
        assert stream.match.kept_tokens == best


@given(
    st.lists(st.integers(0, len(_BYTES) - 1), max_size=14),
    st.lists(st.sampled_from(_STOPS), max_size=3, unique=True),
)
@settings(max_examples=at_depth(60, 300, 5000), deadline=None, derandomize=True)
@example([0, 7, 0], ["b\na"])
def test_equals_the_naive_method(ids: list[int], stops: list[str]) -> None:
    _check(ids, stops)


def test_equals_the_naive_method_on_long_random_streams() -> None:
    rng = random.Random(0)
    for _ in range(300):
        ids = [rng.randrange(len(_BYTES)) for _ in range(rng.randrange(60))]
        _check(ids, rng.sample(_STOPS[3:], rng.randrange(4)))


@pytest.mark.parametrize(
    ("tokens", "stops", "text", "kept", "tail"),
    [
        pytest.param(["one", "\n\nUs", "er:", " x"], ["\nUser:"], "one\n", 1, "\n", id="spans-tokens"),
        pytest.param(["one two"], ["two"], "one ", 0, "one ", id="begins-inside-a-token"),
        pytest.param(["one", " two"], [" two"], "one", 1, "", id="at-a-seam"),
        pytest.param(["abcdef"], ["f", "cd"], "ab", 0, "ab", id="earliest-of-several"),
        pytest.param(["ab", "cd", "ef"], ["abcdef", "cd"], "ab", 1, "", id="completed-first-wins"),
        pytest.param(["abcdef"], ["bcde", "cd"], "ab", 0, "ab", id="completed-first-wins-within-a-token"),
        pytest.param(["x", "STOP"], ["STOP"], "x", 1, "", id="a-whole-token"),
        pytest.param(["STOP", "x"], ["STOP"], "", 0, "", id="at-once"),
        pytest.param(["aa", "ab"], ["aab"], "a", 0, "a", id="overlaps-its-own-beginning"),
    ],
)
def test_stops(tokens: list[str], stops: list[str], text: str, kept: int, tail: str) -> None:
    stream = StopStream([token.encode() for token in tokens], stops)
    emitted = "".join([*(stream.push(i) for i in range(len(tokens))), stream.finish()])
    assert stream.match is not None
    assert (emitted, stream.match.kept_tokens, stream.match.tail) == (text, kept, tail)


def test_text_given_out_before_the_stop_began_is_part_of_the_tail() -> None:
    """The token ` ab` gives out ` a` at once; when the stop `bc` completes, no id can stand for it."""
    stream = StopStream([b"x", b" ab", b"c"], ["bc"])
    assert [stream.push(0), stream.push(1), stream.push(2)] == ["x", " a", ""]
    assert stream.match == StopMatch("bc", 3, 1, 3, " a")


class _Seams(list[tuple[int, int]]):
    """Seams that count how many of them are read."""

    read = 0

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for seam in super().__iter__():
            self.read += 1
            yield seam


def test_a_token_reads_no_seam_of_text_that_is_held_back() -> None:
    stream = StopStream([b"{ab"], patterns=[stop_pattern(r"\{[\s\S]*\}END")])
    stream._seams = seams = _Seams(stream._seams)
    assert "".join(stream.push(0) for _ in range(200)) == ""
    assert len(seams) == 201
    assert seams.read <= 2 * 200


def test_a_character_in_several_tokens_is_given_out_once_it_is_complete() -> None:
    stream = StopStream([bytes([byte]) for byte in "😀".encode()])
    assert [stream.push(i) for i in range(4)] == ["", "", "", "😀"]
    assert stream.finish() == ""


def test_an_open_character_at_the_end_becomes_a_replacement_character() -> None:
    stream = StopStream([b"a", b"\xf0\x9f"])
    assert [stream.push(0), stream.push(1), stream.finish(), stream.finish()] == ["a", "", "\ufffd", ""]
    assert stream.match is None


_PATTERNS = [
    "a+b", "b{2,3}", "(ab|b)+a", "[^a]b", "a$", r"\n\n+", "(?<=a)b", "(?<=é)", r"\b\n", "^aa?", "(?m:^b)",
    "a(?=b)", "a(?!b)", ".*\n", "(a|b\n)c?", "é|€", "a.b", r"(.)\1", "\ufffd", "(?i:A)b+", "a(b+)?", "[ab]{3}?",
    "(a+)+b", "(a|ab|b)*\n$", r"a*\Bb", r"(?m:(^a|b$)+)\n", "a+$\n", r"(?s:.)*\bé", r"a\B", "a(?!b(?!b))",
    r"\n\b", "a(?!$)", r"a(?!\b)", r"(?!$)\n", r"(?<=\n\b)",
]  # fmt: skip


def _naive_patterns(ids: list[int], stops: list[str], patterns: list[str]) -> tuple[str, bool, int]:
    for count in range(len(ids) + 1):
        text = _whole_characters(b"".join(_BYTES[i] for i in ids[:count]))
        for end in range(len(text) + 1):
            begins = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
            begins += [match.start() for p in patterns if (match := re.search(p, text[:end]))]
            if begins:
                return text[: min(begins)], True, count
    return b"".join(_BYTES[i] for i in ids).decode("utf-8", "replace"), False, len(ids)


@settings(max_examples=at_depth(60, 200, 3000), deadline=None, derandomize=True)
@given(
    st.lists(st.integers(0, len(_BYTES) - 1), max_size=14),
    st.lists(st.sampled_from(_STOPS), max_size=1),
    st.lists(st.sampled_from(_PATTERNS), min_size=1, max_size=2),
)
def test_patterns_end_the_text_before_their_first_match(
    ids: list[int], stops: list[str], patterns: list[str]
) -> None:
    """And nothing is given out that they cut, or that the tokens said to be certain do not spell."""
    stream = StopStream(_BYTES, stops, [stop_pattern(pattern) for pattern in patterns])
    emitted, seen = "", 0
    for token in ids:
        emitted += stream.push(token)
        seen += 1
        if stream.match is not None:
            break
        sure = b"".join(_BYTES[i] for i in ids[: stream.certain_tokens]).decode("utf-8", "replace")
        assert emitted.startswith(sure)
    emitted += stream.finish()
    text, stopped, count = _naive_patterns(ids, stops, patterns)
    assert emitted == text
    assert (stream.match is not None) == stopped
    assert seen == count
    if stream.match is not None:
        kept = b"".join(_BYTES[i] for i in ids[: stream.match.kept_tokens]).decode("utf-8", "replace")
        assert kept + stream.match.tail == text
        assert stream.certain_tokens <= stream.match.kept_tokens


@pytest.mark.parametrize(
    ("pattern", "reach"),
    [
        ("abc", 3), ("a|bcd", 3), (r"\n+", 1), (r"\n{2,}", 2), ("a+b", None), ("[.!?] *", 1),
        ("(a(b(c+)?)*)+", 1), ("a(?=b)", 2), ("a(?!b{2}(?=c))", 4), (r"a\B", 3),
        (r"\n\b", 3), ("^a", 1), ("a(?!$)", 3),
        ("(?<=a)b", 1), ("a{2}(b|cd?)", 3), (r"\n+$", None), ("(a+)x", None), (r"(.)\1", 2),
    ],
)  # fmt: skip
def test_how_far_back_a_match_begins(pattern: str, reach: int | None) -> None:
    assert stop_pattern(pattern).reach == reach


def test_patterns_hold_back_no_more_than_what_may_begin_a_match() -> None:
    stream = StopStream(_BYTES, patterns=[stop_pattern("a(?=bb)"), stop_pattern("bab")])
    assert [stream.push(i) for i in (0, 0, 1, 0, 0)] == ["", "", "a", "a", "b"]  # it looks two ahead
    stream = StopStream(_BYTES, patterns=[stop_pattern("b\n+a")])  # `\n+` inside has no bound
    assert [stream.push(i) for i in (0, 1, 5, 5, 1, 0)] == ["a", "", "", "", "b\n\n", "ba"]
    stream = StopStream(_BYTES, patterns=[stop_pattern("bab"), stop_pattern("\n+")])
    assert [stream.push(i) for i in (0, 0, 1, 0, 0)] == ["", "", "a", "a", "b"]


@pytest.mark.slow
@settings(max_examples=at_depth(100, 300, 20_000), deadline=None, derandomize=True)
@given(
    st.recursive(
        st.sampled_from(
            [
                "a",
                "b",
                "[^a]",
                ".",
                "\n",
                "^",
                "$",
                r"\b",
                r"\B",
                r"\w",
                r"\Z",
                r"\A",
                "(?i:A)",
                "(?m:$)",
                "(?m:^)",
            ]
        ),
        lambda inner: st.one_of(
            st.builds("({}|{})".format, inner, inner),
            st.builds("{}{}".format, inner, inner),
            st.builds("({}){}".format, inner, st.sampled_from(["*", "+", "?", "{2,3}", "+?", "{0,2}?"])),
        ),
        max_leaves=6,
    ),
    st.text("ab\n é", max_size=8),
)
def test_a_search_finds_what_re_does(pattern: str, text: str) -> None:  # fmt: skip
    search = StopSearch(_parser.parse(pattern))
    assert search.matches_nothing == bool(re.search(pattern, ""))
    reading: dict[int, int] = {}
    for end in range(1, len(text) + 1):
        reading = search.read(reading, end - 1, text[end - 2 : end - 1], text[end - 1])
        match = re.search(pattern, text[:end])
        assert reading.get(0) == (match and match.start()), end
        if match:
            break


@pytest.mark.slow
@pytest.mark.parametrize(
    "pattern", ["(a+)+b", "(a|a)*b", "a*a*a*a*a*b", "(a?){40}a{40}b", "(|)*(|)*b", "((|)(|)){40}b"]
)
def test_no_pattern_takes_long(pattern: str) -> None:
    """Steps are counted: `re` would take for ever."""
    read, most = StopSearch._closure, 0

    def counted(search: StopSearch, *given: Any, **more: Any) -> Any:
        nonlocal most
        most += len(search._places)
        return read(search, *given, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StopSearch, "_closure", counted)
        stream = StopStream([b"a", b"b"], patterns=[stop_pattern(pattern)])
        for _ in range(300):
            stream.push(0)
        assert stream.match is None or "b" not in pattern
        stream.push(1)
    assert stream.match is not None
    assert most < 300 * 1000


@pytest.mark.parametrize(
    "pattern",
    [
        "(a{0,999}){0,999}b",
        "a{100000}",
        "x" * 20_000,
        r"(a+)+(?=b)",
        r"(a|a)*\1b",
        "(?=(a*)*b)a",
        "((|){99}){99}",
    ],
)
def test_what_may_take_for_ever_is_refused(pattern: str) -> None:
    with pytest.raises(LegalizeError, match="may take for ever") as failure:
        stop_pattern(pattern)
    assert failure.value.code == "SGLC471"


@pytest.mark.parametrize(("pattern", "code"), [("(", "SGLC471"), ("a*", "SGLC472"), ("$", "SGLC472")])
def test_what_cannot_end_a_text_is_refused(pattern: str, code: str) -> None:
    with pytest.raises(LegalizeError) as failure:
        stop_pattern(pattern)
    assert failure.value.code == code
