"""What `dtype` asks of a text: the form that constrains it, and the value that is read from it.

The regular expressions of the four plain types are SGLang's, and their values are texts as in SGLang.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sglc.errors import Loc, RunError
from sglc.frontend.locate import here
from sglc.ir.core import NOWHERE
from sglc.ir.grammar.whole_characters import read_json

REGEX_INT = r"[-+]?[0-9]+[ \n]*"
REGEX_FLOAT = r"[-+]?[0-9]*\.?[0-9]+[ \n]*"
REGEX_BOOL = r"(True|False)"
REGEX_STR = r"\"[\w\d\s]*\""

_SHOWN = 120  # characters of a text in an error
_DEEPEST = 200  # lists and objects in each other, as pydantic: what walks a value needs more of the stack


@dataclass(frozen=True, slots=True)
class OutputForm:
    """A text matches `regex` or `json_schema`; `stop` ends it where the value ends.

    `value` gives what the text spells, and raises `ValueError` with the reason if it spells nothing;
    without it the value is the text itself.
    """

    name: str
    regex: str | None = None
    json_schema: str | None = None
    stop: tuple[str, ...] = ()
    value: Callable[[str], Any] | None = None


PLAIN = {
    "int": OutputForm("int", REGEX_INT, stop=(" ", "\n")),
    "float": OutputForm("float", REGEX_FLOAT, stop=(" ", "\n")),
    "bool": OutputForm("bool", REGEX_BOOL),
    "str": OutputForm("str", REGEX_STR),
}


@dataclass(frozen=True, slots=True)
class OutputParser:
    """How the text of a generation is parsed: `value` as in `OutputForm`, `loc` the generation's place.

    `dtype` is what asked for it.
    """

    name: str
    value: Callable[[str], Any]
    loc: Loc
    dtype: object = field(default=None, compare=False)

    def parse(self, text: str | list[str]) -> Any:
        """The value of a text; of several samples the list of theirs.

        Raises:
            RunError: SGLC410, at the place that reads it.
        """
        if isinstance(text, list):
            return [self.parse(sample) for sample in text]
        try:
            return self.value(text)
        except ValueError as problem:
            raise unparsable(self, text, " ".join(str(problem).split())) from None


def unparsable(
    parser: OutputParser, text: str, reason: str, attempts: int = 1, place: Loc | None = None
) -> RunError:
    """The error of a text that spells no value, at `place` or where the user's code is now."""
    place = place or here()
    tries = f", in the last of {attempts} attempts" if attempts > 1 else ""
    again = "more `retries` make it again" if attempts > 1 else "`retries=2` makes it again"
    longer = "" if _is_whole(text) else "; a larger `max_tokens` leaves room for the end"
    return RunError(
        "SGLC410", f"what was generated is no `{parser.name}`: {reason}",
        parser.loc if place == NOWHERE else place,
        note=f"`gen` at {parser.loc} made {shown(text)}{tries}",
        hint=again + longer,
    )  # fmt: skip


def _is_whole(text: str) -> bool:
    """Whether a text is a whole JSON value, so that it is what is said that is wrong."""
    try:
        read_json(text)
    except (ValueError, RecursionError):
        return False
    return True


def shown(text: str) -> str:
    """A text in an error: quoted, and cut where it is long."""
    return repr(text) if len(text) <= _SHOWN else f"{text[:_SHOWN]!r}... ({len(text)} characters)"


def matching(pattern: str) -> Callable[[str], str]:
    """The text itself, if all of it matches `pattern` as `gen(regex=...)` understands it."""

    def value(text: str) -> str:
        if re.fullmatch(pattern, text, re.ASCII) is None:
            raise ValueError("it does not match the regular expression to its end")
        return text

    return value


def whole_json(text: str) -> Any:
    """The JSON value that the text spells (RFC 8259: no NaN), as far as Python can hold it.

    Raises:
        ValueError: it spells none.
    """

    def no_number(name: str) -> Any:
        raise ValueError(f"`{name}` is no JSON")

    def number(spelled: str) -> float:
        if math.isinf(value := float(spelled)):
            raise ValueError(f"`{shown(spelled)}` is too large a number")
        return value

    try:
        value = read_json(text, no_number, number)
    except json.JSONDecodeError as error:
        raise ValueError(f"it is no JSON: {error}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if text.count("[") + text.count("{") > _DEEPEST and _depth(value) > _DEEPEST:
        raise ValueError("it is nested too deeply")
    return value


def _depth(value: Any) -> int:
    depth, level = 0, [value]
    while level := [part for part in level if isinstance(part, list | dict)]:
        depth += 1
        level = [part for held in level for part in (held.values() if isinstance(held, dict) else held)]
    return depth
