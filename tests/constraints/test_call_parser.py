"""Calls of tools are read out of a text as they stand in it, however it is cut; what is none is content."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from typing import Any

import pytest

from sglc.ir.grammar.call_format import FORMATS, HERMES, LLAMA, CallFormat, calls_form
from sglc.ir.grammar.call_parser import CallParser, _ObjectEnd
from sglc.ir.grammar.structural_tag import check_structural_tag
from tests.constraints.random_tags import holds
from tests.depth import at_depth

NAMES = ("get_weather", "f")
Read = tuple[str, list[tuple[str, str]]]


def read(how: CallFormat, pieces: Iterable[str], *, held: bool = False, alone: bool = False) -> Read:
    """Content and calls, as a stream tells them; the parser's own list is the same."""
    parser = CallParser(how, NAMES, held=held, alone=alone)
    told = [*map(parser.feed, pieces), parser.end()]
    calls: list[list[str]] = []
    for _, more in told:
        for piece in more:
            if piece.name is not None:
                assert piece.index == len(calls)
                calls.append([piece.name, ""])
            calls[piece.index][1] += piece.arguments
    found = [(name, arguments) for name, arguments in calls]
    assert found == [(call.name, call.arguments) for call in parser.calls]
    return "".join(content for content, _ in told), found


def hermes(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def llama(name: str, arguments: str) -> str:
    return f'{{"name": "{name}", "parameters": {arguments}}}'


WRITE = {"hermes": hermes, "llama": llama}
ARGUMENTS = ("{}", '{"city": "Köln }\\" \\\\"}', '{"a": {"b": [{}, {"c": "<tool_call> 🦜"}]}}')


def whole_answers(how: CallFormat) -> dict[str, tuple[str, Read]]:
    write, (empty, odd, nested) = WRITE[how.name], ARGUMENTS
    return {
        "no text": ("", ("", [])),
        "no call": (" So it is.\n", (" So it is.\n", [])),
        "a call": (write("f", odd), ("", [("f", odd)])),
        "a text and a call": (
            f"I look.\n\n{write('f', nested)}\n",
            ("I look.", [("f", nested)]),
        ),
        "two calls": (
            write("f", empty) + "\n" + write("get_weather", odd),
            ("", [("f", empty), ("get_weather", odd)]),
        ),
        "a text between": (
            write("f", empty) + "\nand\n" + write("f", odd) + " end \n",
            ("and\n end \n", [("f", empty), ("f", odd)]),
        ),
        "other white space": (
            write("f", empty).replace('": ', '"  :\n').replace(", ", " ,"),
            ("", [("f", empty)]),
        ),
    }


def malformed(how: CallFormat) -> dict[str, str]:
    """None of these is a call: all are content."""
    write = WRITE[how.name]
    call = write("f", '{"a": 1}')
    return {
        "another name": write("g", "{}"),
        "no name": call.replace('"name"', '"nome"') if how is HERMES else call.replace('"f"', "1"),
        "no object": write("f", "[1]"),
        "no JSON": write("f", '{"a": }'),
        "no number": write("f", '{"a": NaN}'),
        "arguments as text": write("f", '"{}"'),
        "a name that is too long": write("f" * 300, "{}"),
        "nested without end": write("f", '{"a":' * 20_000),
        "more behind": call.replace("1}}", "1}, 2}"),
        "not closed": call[: -len(how.end)],
        "half closed": call[:-1],
        "an end alone": "</tool_call>",
        "a beginning alone": how.marker,
        "much white space": call.replace('"name"', '"name"' + " " * 300),
    }


@pytest.mark.parametrize("how", FORMATS, ids=lambda how: how.name)
@pytest.mark.parametrize("held", [False, True])
def test_calls_are_the_same_however_the_text_is_cut(how: CallFormat, held: bool) -> None:
    for text, expected in whole_answers(how).values():
        assert read(how, [text], held=held) == expected
        data = text.encode()
        for cut in range(len(data) + 1):
            # A stream tells text as far as its characters are whole.
            begin = data[:cut].decode("utf-8", "ignore")
            assert read(how, [begin, text[len(begin) :]], held=held) == expected
        assert read(how, text, held=held) == expected


@pytest.mark.slow
@pytest.mark.parametrize("how", FORMATS, ids=lambda how: how.name)
def test_what_is_no_call_is_content(how: CallFormat) -> None:
    good = WRITE[how.name]("f", "{}")
    for said, text in malformed(how).items():
        assert read(how, [text]) == (text, []), said
        assert read(how, [f"{text} {good}"])[1] == [("f", "{}")], said
        if len(text) < 1_000:
            for cut in range(len(text) + 1):
                assert read(how, [text[:cut], text[cut:]]) == (text, []), said
        CallParser(how, NAMES, held=True).feed(text)  # never an exception


@pytest.mark.parametrize("how", FORMATS, ids=lambda how: how.name)
def test_arguments_are_told_as_they_come_where_the_text_is_held_to_calls(how: CallFormat) -> None:
    text = WRITE[how.name]("f", '{"city": "Paris"}')
    parser = CallParser(how, NAMES, held=True)
    pieces = [piece for char in text for piece in parser.feed(char)[1]]
    assert (pieces[0].name, pieces[0].arguments) == ("f", "")
    assert [piece.arguments for piece in pieces[1:]] == list('{"city": "Paris"}')
    assert parser.whole
    cut = CallParser(how, NAMES, held=True)
    cut.feed(text[: text.index("ris")])
    cut.end()
    assert ([call.arguments for call in cut.calls], cut.whole) == (['{"city": "Pa'], False)


@pytest.mark.parametrize("how", FORMATS, ids=lambda how: how.name)
def test_a_held_text_that_ends_inside_a_call_has_nothing_of_it_in_its_content(how: CallFormat) -> None:
    begin, one = "I look.\n", how.written("get_weather", {"city": "Köln"})
    calls = one if how.between is None else f"{one}{how.between}{how.written('f', {})}"
    for cut in range(len(calls) + 1):
        text = calls[:cut]
        inside = cut >= len(how.marker)
        said = "I look." if inside else begin + text  # which may be no beginning of a call
        whole = read(how, [begin + text], held=True)
        assert whole == read(how, begin + text, held=True) == (said, whole[1]), cut
        alone = read(how, [text], held=True, alone=True)
        assert alone == read(how, text, held=True, alone=True) == ("", whole[1]), cut
        assert not text or read(how, [text]) == (text, []) or cut >= len(one)
    assert len(whole[1]) == (1 if how.between is None else 2)


@pytest.mark.parametrize("how", FORMATS, ids=lambda how: how.name)
@pytest.mark.parametrize("held", [False, True])
def test_a_text_that_ends_as_a_call_begins_is_whole(how: CallFormat, held: bool) -> None:
    call = how.written("f", {})
    for length in range(1, len(how.marker)):
        begun = how.marker[:length]
        assert read(how, [f"2 {begun}"], held=held) == read(how, f"2 {begun}", held=held) == (f"2 {begun}", [])
        assert read(how, [f"{call} 2 {begun}"], held=held) == (f"2 {begun}", [("f", "{}")])
        assert read(how, [f"{call} {begun}"], held=held)[0] == ("" if held else begun)


# -- fuzzed ----------------------------------------------------------------------------------------


def reference(how: CallFormat, text: str) -> Read:
    """The same, of a whole text, with Python's own reader of JSON."""
    decoder = json.JSONDecoder(parse_constant=lambda name: 1 / 0)
    parts: list[Any] = [""]
    at = 0
    while at < len(text):
        begin = how.before.match(text[at : at + 256]) if text.startswith(how.marker, at) else None
        if begin is not None and begin[1] in NAMES:
            start = at + begin.end()
            try:
                _, end = decoder.raw_decode(text, start)
            except (ValueError, ZeroDivisionError, RecursionError):
                end = -1
            close = how.behind.match(text[end : end + 256]) if end >= 0 else None
            if close is not None:
                parts += [(begin[1], text[start:end]), ""]
                at = end + close.end()
                continue
        parts[-1] += text[at]
        at += 1
    texts: list[str] = parts[::2]
    content = "".join(texts)
    content = content if texts[0].strip() or len(texts) == 1 else content.lstrip()
    return content if texts[-1].strip() or len(texts) == 1 else content.rstrip(), parts[1::2]


def fuzzed(chance: random.Random, how: CallFormat) -> str:
    write = WRITE[how.name]
    bits = [
        *(write(name, arguments) for name in (*NAMES, "g") for arguments in (*ARGUMENTS, "[]", "{")),
        *("<tool_call>", "</tool_call>", '{"name"', '"name": "f"', '"arguments": {', "}", "{", '"', "\\"),
        *(how.written("f", {"a": "}"})[:length] for length in (5, 20, 40, -2, -9)),
        *("\n", " ", "Hello", "é🦜", "<tool", "_call>", '{"na', ", ", "}\n</tool_call>", " " * 260),
    ]  # fmt: skip
    text = "".join(chance.choices(bits, k=chance.randint(1, 6)))
    for _ in range(chance.choice((0, 0, 1, 2, 5))):
        at = chance.randrange(len(text) + 1)
        text = (
            text[:at] + chance.choice(("", '"', "}", "{", "\\", " ", "x")) + text[at + chance.randint(0, 2) :]
        )
    return text


@pytest.mark.parametrize("how", FORMATS, ids=lambda how: how.name)
def test_fuzzed_texts(how: CallFormat) -> None:
    found = 0
    for seed in range(at_depth(60, 500, 20_000)):
        chance = random.Random(seed)
        text = fuzzed(chance, how)
        expected = reference(how, text)
        cuts = sorted(chance.randrange(len(text) + 1) for _ in range(chance.randint(0, 4)))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        assert read(how, [text]) == read(how, pieces) == read(how, text) == expected, (seed, text)
        for alone in (False, True):
            held = [read(how, come, held=True, alone=alone) for come in ([text], pieces, text)]
            assert held[0] == held[1] == held[2], (seed, text)
        found += bool(expected[1])
    assert found > 10


# -- forms -----------------------------------------------------------------------------------------

CITY = {"type": "object", "properties": {"city": {"enum": ["Köln"]}}, "required": ["city"]}
TOOLS = [{"name": "get_weather", "parameters": CITY}, {"name": "f"}]


@pytest.mark.parametrize("how", FORMATS, ids=lambda how: how.name)
def test_the_form_of_an_answer_takes_what_is_written_and_nothing_else(how: CallFormat) -> None:
    def form(**given: Any) -> Any:
        text = calls_form(how, TOOLS, **{"required": False, "parallel": True, **given})
        check_structural_tag(text)
        return json.loads(text)["format"]

    one, other = how.written("get_weather", {"city": "Köln"}), how.written("f", {})
    bad = [how.written("get_weather", {}), how.written("f", {"a": 1}), how.written("g", {})]
    assert holds(form(), "Hello")
    assert holds(form(), f"Hello {one}")
    assert not any(holds(form(), text) for text in bad)
    assert holds(form(required=True), one)
    assert holds(form(required=True, parallel=False), other)
    assert not any(holds(form(required=True), text) for text in (*bad, "", "Hello", f"Hello {one}"))
    both = one + (how.between or "\n") + other
    assert holds(form(required=True), both) == holds(form(), both) == (how is HERMES)
    assert not holds(form(required=True, parallel=False), both)
    answer = form(answer={"type": "array", "items": {"enum": [1]}})
    assert holds(answer, "[1, 1]")
    assert holds(answer, one)
    assert not holds(answer, "Hello")


def test_formats_are_told_apart() -> None:
    assert LLAMA.written("f", {"a": 1}) == '{"name": "f", "parameters": {"a": 1}}'
    assert read(LLAMA, [HERMES.written("f", {})]) == (HERMES.written("f", {}), [])


@pytest.mark.slow
def test_calls_that_are_none_are_read_again_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at, reads = 0, _ObjectEnd.read

    def counting(self: _ObjectEnd, text: str) -> int:
        nonlocal looked_at
        looked_at += len(text)
        return reads(self, text)

    monkeypatch.setattr(_ObjectEnd, "read", counting)
    text = (HERMES.begun("f") + '{"a": ') * 400
    for pieces in ([text], [text[at : at + 7] for at in range(0, len(text), 7)]):
        looked_at = 0
        assert read(HERMES, pieces) == (text, [])
        assert looked_at < 70 * len(text)
