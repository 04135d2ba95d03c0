"""What printer and parser of the text form agree on."""

from __future__ import annotations

import re
from dataclasses import MISSING, Field
from typing import Any

from sglc.errors import Loc

IR_VERSION = 2  # stands in the first line of a program's text; another one is refused


def required(field: Field[Any]) -> bool:
    """Whether a field of an op has no default, and so stands unnamed in the text."""
    return field.default is MISSING and field.default_factory is MISSING


def _loc_text(loc: Loc) -> str:
    """`file:line:column-end`, white space and `%` in the file name escaped."""
    file = re.sub(r"[\s%]", lambda m: "".join(f"%{byte:02X}" for byte in m[0].encode()), loc.file)
    text = f"{file}:{loc.line}"
    if loc.column or loc.end_column:
        text += f":{loc.column}"
    return f"{text}-{loc.end_column}" if loc.end_column else text


def loc_of(trailer: str) -> Loc | None:
    """The location that one word of a trailer spells; None if it spells none."""
    found = re.fullmatch(r"(\S+?):(\d{1,9})(?::(\d{1,9})(?:-(\d{1,9}))?)?", trailer)
    if found is None:
        return None
    try:
        file = re.sub(r"(?:%[0-9A-F]{2})+", lambda m: bytes.fromhex(m[0].replace("%", "")).decode(), found[1])
    except UnicodeDecodeError:
        return None
    return Loc(file, int(found[2]), int(found[3] or 0), int(found[4] or 0))
