"""Text that stands as UTF-16 in JSON (`"\\ud83d\\ude00"`): half of a character alone is none, and has no UTF-8.

The rule is that of Python's decoders, and of ours for what a model spells: two halves that stand together are
their character, and one alone is U+FFFD.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable
from typing import Any

_UTF_16 = "utf-16-le"
_HALF_PAIR = re.compile("[\ud800-\udfff]")


def has_half_pair(value: Any) -> bool:
    """Whether a text in `value`, as JSON has it, has half of a surrogate pair."""
    stack = [value]
    while stack:
        match stack.pop():
            case str() as text if not text.isascii() and _HALF_PAIR.search(text):
                return True
            case dict() as members:
                stack += members.keys()
                stack += members.values()
            case [first, *_] as items if not isinstance(first, int):
                stack += items
    return False


def whole_characters(text: str) -> str:
    """`text` with its halves of surrogate pairs put together, and U+FFFD for each that is alone."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(_UTF_16, "surrogatepass").decode(_UTF_16, "replace")
    return text


class WholeCharacters:
    """`whole_characters` of a text that comes in pieces; holds a half back that may have another behind it."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder(_UTF_16)("replace")

    def push(self, piece: str) -> str:
        """What now surely belongs to the text."""
        return self._decoder.decode(piece.encode(_UTF_16, "surrogatepass"))

    def finish(self) -> str:
        """No more comes: U+FFFD for a half at the end."""
        return self._decoder.decode(b"", True)


def read_json(
    text: str,
    parse_constant: Callable[[str], Any] | None = None,
    parse_float: Callable[[str], Any] | None = None,
) -> Any:
    """The value of a JSON text, all texts in it made of whole characters.

    Raises:
        ValueError: it is no JSON.
    """
    value = json.loads(text, parse_constant=parse_constant, parse_float=parse_float)
    if r"\u" not in text:
        return value
    return json.loads(whole_characters(json.dumps(value, ensure_ascii=False)))
