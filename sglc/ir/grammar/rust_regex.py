"""Regular expressions of Python, whose whole text matches, in the syntax of llguidance: Rust's."""

from __future__ import annotations

import re
from collections.abc import Iterable
from re import _constants as sre
from re import _parser
from typing import Any

from sglc.ir.grammar.regex import ENDS, STARTS, characters, compile_regex
from sglc.ir.grammar.schema_pattern import written


def rust_regex(pattern: str) -> str:
    """`pattern`, as `gen(regex=...)` understands it.

    Raises:
        LegalizeError: as `compile_regex`.
    """
    compile_regex(pattern)
    tree = _parser.parse(pattern, re.ASCII)
    items = [item for item in tree if item[0] is not sre.AT or item[1] not in (*STARTS, *ENDS)]
    return _sequence(items, tree.state.flags)


def literal(text: str) -> str:
    """A pattern of `text` alone."""
    return "".join(written([(ord(char), ord(char))]) for char in text)


def _sequence(items: Iterable[Any], flags: int) -> str:
    return "".join(_item(item, flags) for item in items)


def _item(item: Any, flags: int) -> str:
    match item:
        case (sre.SUBPATTERN, (_, added, removed, inner)):
            return f"(?:{_sequence(inner, (flags | added) & ~removed)})"
        case (sre.BRANCH, (_, options)):
            return f"(?:{'|'.join(_sequence(option, flags) for option in options)})"
        case (sre.MAX_REPEAT | sre.MIN_REPEAT, (least, most, inner)):
            bound = "" if most == sre.MAXREPEAT else most
            return f"(?:{_sequence(inner, flags)}){{{least},{bound}}}"
        case _:
            return written(characters(item, flags))
