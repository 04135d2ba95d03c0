"""Ten programs that fill in records field by field, and what each field has to be."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
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


@sgl.function
def character(s: Any, name: str = "Ann") -> None:
    s += sgl.user(f"Fill in the sheet of {name}.")
    with s.assistant():
        s += '{"house": "' + sgl.gen("house", choices=["Red", "Blue", "Green"])
        s += '", "blood": "' + sgl.gen("blood", regex="Pure|Half|Muggle") + '", "alive": "'
        s += sgl.gen("alive", choices=["yes", "no"]) + '", "wood": "' + sgl.gen("wood", regex=r"[\w ]{1,16}")
        s += '", "length": ' + sgl.gen("length", regex=r"[0-9]{1,2}\.[0-9]")
        s += ', "patronus": "' + sgl.gen("patronus", regex=_PHRASE)
        s += '", "born": "' + sgl.gen("born", regex=_DATE)
        s += '", "motto": "' + sgl.gen("motto", regex=_PHRASE) + '"}'


@sgl.function
def city(s: Any, name: str = "Rome") -> None:
    s += sgl.user(f"Fill in the record of {name}.")
    with s.assistant():
        s += "Country: " + sgl.gen("country", regex=_WORDS) + "\nLatitude: "
        s += (
            sgl.gen("latitude", regex=r"-?[0-9]{1,2}\.[0-9]")
            + "\nPopulation: "
            + sgl.gen("population", dtype=int)
        )
        s += "\nIt is famous for " + sgl.gen("landmark", regex=_PHRASE)


@sgl.function
def ticket(s: Any, text: str = "It broke.") -> None:
    s += sgl.user(text)
    with s.assistant():
        s += "Urgency: " + sgl.select("urgency", choices=["low", "high"])
        s += "\nKind: " + sgl.select("kind", choices=["bug", "wish", "question"])
        s += "\nDue: " + sgl.gen("due", regex=_DATE)


@sgl.function
def meeting(s: Any, text: str = "We meet on Monday.") -> None:
    s += sgl.user(text)
    s += sgl.assistant(
        "Day: " + sgl.gen("day", regex=_DATE) + " from " + sgl.gen("begin", regex=_TIME)
        + " to " + sgl.gen("end", regex=_TIME) + "; all of it: " + sgl.gen("whole", dtype=bool)
    )  # fmt: skip


@sgl.function
def dice(s: Any, text: str = "Roll.") -> None:
    s += sgl.user(text)
    s += sgl.assistant(
        "First: " + sgl.gen("first", json_schema=json.dumps(_NUMBERS))
        + "\nSecond: " + sgl.gen("second", json_schema=json.dumps(_NUMBERS))
        + "\nWinner: " + sgl.gen("winner", choices=["first", "second"])
    )  # fmt: skip


@sgl.function
def points(s: Any, text: str = "Draw a line.") -> None:
    s += sgl.user(text)
    s += sgl.assistant(
        "From " + sgl.gen("here", json_schema=json.dumps(_POINT))
        + " to " + sgl.gen("there", json_schema=json.dumps(_POINT))
        + " in " + sgl.gen("colour", regex="red|green") + " ink"
    )  # fmt: skip


@sgl.function
def invoice(s: Any, text: str = "Tea, 3.50") -> None:
    s += sgl.user(text)
    s += sgl.assistant(
        "Number " + sgl.gen("number", regex="[A-Z]{2}-[0-9]{4}") + ", total " + sgl.gen("total", dtype=float)
        + " " + sgl.gen("currency", choices=["EUR", "USD"]) + ", note: " + sgl.gen("note", max_tokens=12)
    )  # fmt: skip


@sgl.function
def reviewed(s: Any, text: str = "A warm place.") -> None:
    s += sgl.user(text)
    s += sgl.assistant(
        "Stars: " + sgl.gen("stars", regex="[1-5]") + "\nMood: " + sgl.gen("mood", choices=["good", "bad"])
        + "\nQuote: " + sgl.gen("quote", regex='"[^"\n]{1,30}"') + "\nAgain: " + sgl.gen("again", dtype=bool)
    )  # fmt: skip


@sgl.function
def address(s: Any, text: str = "Main street 5, Oslo") -> None:
    s += sgl.user(text)
    s += sgl.assistant(
        "Street: " + sgl.gen("street", stop="\n", max_tokens=12) + "\nNumber: "
        + sgl.gen("number", regex="[0-9]{1,4}")
        + "\nCity: " + sgl.gen("city", stop="\n", max_tokens=8) + "\nCode: " + sgl.gen("code", regex="[0-9]{5}")
    )  # fmt: skip


@sgl.function
def parcel(s: Any, text: str = "A book for Ann") -> None:
    s += sgl.user(text)
    s += sgl.assistant(
        "Grams: " + sgl.gen("grams", regex="[1-9][0-9]{0,3}") + "; size " + sgl.gen("width", regex="[0-9]{1,2}")
        + "x" + sgl.gen("height", regex="[0-9]{1,2}") + "; to " + sgl.gen("to", regex=_WORDS)
        + "; fragile: " + sgl.gen("fragile", choices=["yes", "no"])
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Record:
    """A program, and what each of its fields has to be."""

    program: Any
    fields: Mapping[str, Valid]


RECORDS: Mapping[str, Record] = {
    "character": Record(character, {
        "house": _among("Red", "Blue", "Green"), "blood": _among("Pure", "Half", "Muggle"),
        "alive": _among("yes", "no"), "wood": _matches(r"[\w ]{1,16}"),
        "length": _matches(r"[0-9]{1,2}\.[0-9]"),
        "patronus": _matches(_PHRASE), "born": _matches(_DATE), "motto": _matches(_PHRASE),
    }),
    "city": Record(city, {
        "country": _matches(_WORDS), "latitude": _matches(r"-?[0-9]{1,2}\.[0-9]"),
        "population": _matches("[-+]?[0-9]+"), "landmark": _matches(_PHRASE),
    }),
    "ticket": Record(ticket, {
        "urgency": _among("low", "high"), "kind": _among("bug", "wish", "question"), "due": _matches(_DATE),
    }),
    "meeting": Record(meeting, {
        "day": _matches(_DATE), "begin": _matches(_TIME), "end": _matches(_TIME),
        "whole": _among("True", "False"),
    }),
    "dice": Record(dice, {"first": _numbers, "second": _numbers, "winner": _among("first", "second")}),
    "points": Record(points, {"here": _point, "there": _point, "colour": _among("red", "green")}),
    "invoice": Record(invoice, {
        "number": _matches("[A-Z]{2}-[0-9]{4}"), "total": lambda text: float(text) is not None,
        "currency": _among("EUR", "USD"), "note": _any,
    }),
    "reviewed": Record(reviewed, {
        "stars": _matches("[1-5]"), "mood": _among("good", "bad"), "quote": _matches('"[^"\n]{1,30}"'),
        "again": _among("True", "False"),
    }),
    "address": Record(address, {
        "street": _line, "number": _matches("[0-9]{1,4}"), "city": _line, "code": _matches("[0-9]{5}"),
    }),
    "parcel": Record(parcel, {
        "grams": _matches("[1-9][0-9]{0,3}"), "width": _matches("[0-9]{1,2}"), "height": _matches("[0-9]{1,2}"),
        "to": _matches(_WORDS), "fragile": _among("yes", "no"),
    }),
}  # fmt: skip
