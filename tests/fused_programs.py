"""Programs that fill in records field by field, what each field has to be, and of each a twin.

In a twin a text between two fields, or a form, is another one, so that the turn could be cut in two ways.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sglc as sgl

Valid = Callable[[str], bool]
_WORDS, _DATE, _TIME = (
    r"[A-Z][a-z]{1,10}( [A-Z][a-z]{1,10})?",
    r"20[0-9]{2}-(0[1-9]|1[0-2])-[0-2][1-9]",
    "[0-2][0-9]:[0-5][0-9]",
)
_PHRASE = r'[^"\n]{1,30}'  # quotes and ends of lines would end it; backslashes and all scripts may be there
_NUMBERS = {
    "type": "array",
    "items": {"type": "integer", "minimum": 0, "maximum": 9},
    "minItems": 3,
    "maxItems": 3,
}
_POINT = {
    "type": "object", "required": ["x", "y"],
    "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}},
}  # fmt: skip


def _matches(pattern: str) -> Valid:
    return lambda text: re.fullmatch(pattern, text, re.ASCII) is not None


def _among(*texts: str) -> Valid:
    return lambda text: text in texts


def _numbers(text: str) -> bool:
    found = json.loads(text)
    return len(found) == 3 and all(number in range(10) for number in found)


def _point(text: str) -> bool:
    return set(json.loads(text)) == {"x", "y"} and all(
        isinstance(own, int) for own in json.loads(text).values()
    )


def _line(text: str) -> bool:
    return "\n" not in text


def _any(text: str) -> bool:
    return True


def character(before_length: str = '", "length": ') -> Any:
    @sgl.function
    def filled_in(s: Any, name: str = "Ann") -> None:
        s += sgl.user(f"Fill in the sheet of {name}.")
        with s.assistant():
            s += '{"house": "' + sgl.gen("house", choices=["Red", "Blue", "Green"])
            s += '", "blood": "' + sgl.gen("blood", regex="Pure|Half|Muggle") + '", "alive": "'
            s += (
                sgl.gen("alive", choices=["yes", "no"]) + '", "wood": "' + sgl.gen("wood", regex=r"[\w ]{1,16}")
            )
            s += before_length + sgl.gen("length", regex=r"[0-9]{1,2}\.[0-9]")
            s += ', "patronus": "' + sgl.gen("patronus", regex=_PHRASE)
            s += '", "born": "' + sgl.gen("born", regex=_DATE)
            s += '", "motto": "' + sgl.gen("motto", regex=_PHRASE) + '"}'

    return filled_in


def city(before_landmark: str = "\nIt is famous for ") -> Any:
    @sgl.function
    def filled_in(s: Any, name: str = "Rome") -> None:
        s += sgl.user(f"Fill in the record of {name}.")
        with s.assistant():
            s += "Country: " + sgl.gen("country", regex=_WORDS) + "\nLatitude: "
            s += (
                sgl.gen("latitude", regex=r"-?[0-9]{1,2}\.[0-9]")
                + "\nPopulation: "
                + sgl.gen("population", dtype=int)
            )
            s += before_landmark + sgl.gen("landmark", regex=_PHRASE)

    return filled_in


def ticket(
    urgencies: Sequence[str] = ("low", "high"),
    before_kind: str = "\nKind: ",
    kinds: Sequence[str] = ("bug", "wish", "question"),
) -> Any:
    @sgl.function
    def filled_in(s: Any, text: str = "It broke.") -> None:
        s += sgl.user(text)
        with s.assistant():
            s += "Urgency: " + sgl.select("urgency", choices=[*urgencies])
            s += before_kind + sgl.select("kind", choices=[*kinds])
            s += "\nDue: " + sgl.gen("due", regex=_DATE)

    return filled_in


def meeting(time: str = _TIME, before_end: str = " to ") -> Any:
    @sgl.function
    def filled_in(s: Any, text: str = "We meet on Monday.") -> None:
        s += sgl.user(text)
        s += sgl.assistant(
            "Day: " + sgl.gen("day", regex=_DATE) + " from " + sgl.gen("begin", regex=time)
            + before_end + sgl.gen("end", regex=time) + "; all of it: " + sgl.gen("whole", dtype=bool)
        )  # fmt: skip

    return filled_in


def dice(form: Any = _NUMBERS, before_second: str = "\nSecond: ") -> Any:
    @sgl.function
    def filled_in(s: Any, text: str = "Roll.") -> None:
        s += sgl.user(text)
        s += sgl.assistant(
            "First: " + sgl.gen("first", json_schema=json.dumps(form))
            + before_second + sgl.gen("second", json_schema=json.dumps(form))
            + "\nWinner: " + sgl.gen("winner", choices=["first", "second"])
        )  # fmt: skip

    return filled_in


def points(form: Any = _POINT, before_there: str = " to ") -> Any:
    @sgl.function
    def filled_in(s: Any, text: str = "Draw a line.") -> None:
        s += sgl.user(text)
        s += sgl.assistant(
            "From " + sgl.gen("here", json_schema=json.dumps(form))
            + before_there + sgl.gen("there", json_schema=json.dumps(form))
            + " in " + sgl.gen("colour", regex="red|green") + " ink"
        )  # fmt: skip

    return filled_in


def invoice(number: str = "[A-Z]{2}-[0-9]{4}", before_total: str = ", total ") -> Any:
    @sgl.function
    def filled_in(s: Any, text: str = "Tea, 3.50") -> None:
        s += sgl.user(text)
        s += sgl.assistant(
            "Number " + sgl.gen("number", regex=number) + before_total + sgl.gen("total", dtype=float)
            + " " + sgl.gen("currency", choices=["EUR", "USD"]) + ", note: " + sgl.gen("note", max_tokens=12)
        )  # fmt: skip

    return filled_in


def reviewed(quote: str = '"[^"\n]{1,30}"', before_again: str = "\nAgain: ", again: type = bool) -> Any:
    @sgl.function
    def filled_in(s: Any, text: str = "A warm place.") -> None:
        s += sgl.user(text)
        s += sgl.assistant(
            "Stars: " + sgl.gen("stars", regex="[1-5]") + "\nMood: " + sgl.gen("mood", choices=["good", "bad"])
            + "\nQuote: " + sgl.gen("quote", regex=quote) + before_again + sgl.gen("again", dtype=again)
        )  # fmt: skip

    return filled_in


def address(before_number: str = "\nNumber: ") -> Any:
    @sgl.function
    def filled_in(s: Any, text: str = "Main street 5, Oslo") -> None:
        s += sgl.user(text)
        s += sgl.assistant(
            "Street: " + sgl.gen("street", stop="\n", max_tokens=12) + before_number
            + sgl.gen("number", regex="[0-9]{1,4}")
            + "\nCity: " + sgl.gen("city", stop="\n", max_tokens=8)
            + "\nCode: " + sgl.gen("code", regex="[0-9]{5}")
        )  # fmt: skip

    return filled_in


def parcel(before_height: str = "x") -> Any:
    @sgl.function
    def filled_in(s: Any, text: str = "A book for Ann") -> None:
        s += sgl.user(text)
        s += sgl.assistant(
            "Grams: " + sgl.gen("grams", regex="[1-9][0-9]{0,3}")
            + "; size " + sgl.gen("width", regex="[0-9]{1,2}")
            + before_height + sgl.gen("height", regex="[0-9]{1,2}") + "; to " + sgl.gen("to", regex=_WORDS)
            + "; fragile: " + sgl.gen("fragile", choices=["yes", "no"])
        )  # fmt: skip

    return filled_in


def command(closing: str = "\\", before_key: str = '", "env": {"A\\"B": [{"k": "') -> Any:
    @sgl.function
    def filled_in(s: Any, text: str = "List it.") -> None:
        s += sgl.user(text)
        s += sgl.assistant(
            'run({"path": "C:\\' + sgl.gen("folder", regex="[a-z]{1,8}") + closing + before_key
            + sgl.gen("key", regex=_PHRASE) + '"}]}, "text": "}{", "n": ' + sgl.gen("text", dtype=int)
            + "}\\n\t);'\n"
        )  # fmt: skip

    return filled_in


def template(before_mark: str = '}", "\\u0022\u2028": [{"') -> Any:
    @sgl.function
    def filled_in(s: Any, text: str = "A page.") -> None:
        s += sgl.user(text)
        s += sgl.assistant(
            '{{"a": {"b": "${' + sgl.gen("value", regex=r"[^{}]{1,12}") + before_mark
            + sgl.select("mark", choices=['"', '\\"', "}}"]) + '": null}], "tail": "'
            + sgl.gen("tail", regex=_PHRASE) + '"}\n```'
        )  # fmt: skip

    return filled_in


@dataclass(frozen=True, slots=True)
class Record:
    """A program, what each of its fields has to be, and its twin with the field that has no sure end there."""

    program: Any
    fields: Mapping[str, Valid]
    twin: Any
    endless: str


RECORDS: Mapping[str, Record] = {
    "character": Record(character(), {
        "house": _among("Red", "Blue", "Green"), "blood": _among("Pure", "Half", "Muggle"),
        "alive": _among("yes", "no"), "wood": _matches(r"[\w ]{1,16}"),
        "length": _matches(r"[0-9]{1,2}\.[0-9]"),
        "patronus": _matches(_PHRASE), "born": _matches(_DATE), "motto": _matches(_PHRASE),
    }, character(""), "wood"),
    "city": Record(city(), {
        "country": _matches(_WORDS), "latitude": _matches(r"-?[0-9]{1,2}\.[0-9]"),
        "population": _matches("[-+]?[0-9]+"), "landmark": _matches(_PHRASE),
    }, city(""), "population"),
    "ticket": Record(ticket(), {
        "urgency": _among("low", "high"), "kind": _among("bug", "wish", "question"), "due": _matches(_DATE),
    }, ticket(("low", "lower"), "", ("bug", "erbug")), "urgency"),
    "meeting": Record(meeting(), {
        "day": _matches(_DATE), "begin": _matches(_TIME), "end": _matches(_TIME),
        "whole": _among("True", "False"),
    }, meeting("[0-9]{1,2}:[0-9]{1,2}", ""), "begin"),
    "dice": Record(dice(), {
        "first": _numbers, "second": _numbers, "winner": _among("first", "second"),
    }, dice({"type": "integer"}, ""), "first"),
    "points": Record(points(), {
        "here": _point, "there": _point, "colour": _among("red", "green"),
    }, points({"type": "number"}, ""), "here"),
    "invoice": Record(invoice(), {
        "number": _matches("[A-Z]{2}-[0-9]{4}"), "total": lambda text: float(text) is not None,
        "currency": _among("EUR", "USD"), "note": _any,
    }, invoice("[A-Z]{2}-[0-9]{1,4}", ""), "number"),
    "reviewed": Record(reviewed(), {
        "stars": _matches("[1-5]"), "mood": _among("good", "bad"), "quote": _matches('"[^"\n]{1,30}"'),
        "again": _among("True", "False"),
    }, reviewed(_PHRASE, "", int), "quote"),
    "address": Record(address(), {
        "street": _line, "number": _matches("[0-9]{1,4}"), "city": _line, "code": _matches("[0-9]{5}"),
    }, address(""), "street"),
    "parcel": Record(parcel(), {
        "grams": _matches("[1-9][0-9]{0,3}"), "width": _matches("[0-9]{1,2}"), "height": _matches("[0-9]{1,2}"),
        "to": _matches(_WORDS), "fragile": _among("yes", "no"),
    }, parcel(""), "width"),
    "command": Record(command(), {
        "folder": _matches("[a-z]{1,8}"), "key": _matches(_PHRASE), "text": _matches("[-+]?[0-9]+"),
    }, command("", ""), "folder"),
    "template": Record(template(), {
        "value": _matches(r"[^{}]{1,12}"), "mark": _among('"', '\\"', "}}"), "tail": _matches(_PHRASE),
    }, template(""), "value"),
}  # fmt: skip
