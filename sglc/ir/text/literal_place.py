"""Where in a source, Python or the text form of a program, a character of a string literal stands."""

from __future__ import annotations

import ast
import io
import linecache
import re
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from sglc.errors import Loc

# What one character of a value is written as, where it is not raw; of a `\` that means nothing the `\` alone.
_WRITTEN = re.compile(
    r"\\(?:\n|[\\'\"abfnrtv]|[0-7]{1,3}|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|N\{[^}]*\})|[\s\S]"
)
_MOST_CHARACTERS = 1_000_000  # of a file that is read through

_Place = tuple[int, int]  # line and column, from 1


@dataclass(frozen=True, slots=True)
class _Literal:
    """A literal's value, or that of adjacent ones, and where each character of it stands."""

    value: str
    places: tuple[_Place, ...]


def place_in_literal(value: str, at: int, near: Loc) -> Loc | None:
    """Where character `at` of a literal `value` stands, in the call at `near` or where the file has it once.

    None if it is not written as a literal, or nobody can tell which one it is.
    """
    linecache.checkcache(near.file)  # an editor may have changed it since it was traced
    lines = linecache.getlines(near.file)
    if sum(map(len, lines)) > _MOST_CHARACTERS:
        return None
    tokens = list(_tokens(lines))
    found = [one for one in _literals(tokens) if one.value == value and at < len(one.places)]
    inside = [one for one in found if (near.line, near.column) <= one.places[0] <= _end(tokens, near)]
    if not inside and len(found) != 1:
        return None
    line, column = (inside or found)[0].places[at]
    return replace(near, line=line, column=column, end_column=column + 1)


def _tokens(lines: Iterable[str]) -> Iterator[tokenize.TokenInfo]:
    """What Python's own reader makes of a source, up to where it is none."""
    try:
        yield from tokenize.generate_tokens(io.StringIO("".join(lines)).readline)
    except (tokenize.TokenError, SyntaxError):
        return


def _end(tokens: Iterable[tokenize.TokenInfo], near: Loc) -> _Place:
    """Where the brackets end that open behind `near`."""
    depth = 0
    for token in tokens:
        if (token.start[0], token.start[1] + 1) < (near.line, near.column) or token.type != tokenize.OP:
            continue
        depth += (token.string in "([{") - (token.string in ")]}")
        if depth == 0 and token.string in ")]}":
            return token.start[0], token.start[1] + 1
    return near.line, near.column


def _literals(tokens: Iterable[tokenize.TokenInfo]) -> Iterator[_Literal]:
    parts: list[_Literal] = []
    for token in tokens:
        if token.type == tokenize.STRING:
            parts += _literal(token)
        elif token.type not in (tokenize.NL, tokenize.COMMENT) and parts:
            yield _Literal("".join(one.value for one in parts), sum((one.places for one in parts), ()))
            parts = []


def _literal(token: tokenize.TokenInfo) -> Iterator[_Literal]:
    """One literal; bytes and f-strings are none."""
    opened = re.match(r"([A-Za-z]*)('''|\"\"\"|'|\")", token.string)
    if opened is None or set(opened[1].lower()) - {"r", "u"}:
        return
    text = token.string[opened.end() : -len(opened[2])]
    value, places = [], []
    line, column = token.start[0], token.start[1] + 1 + opened.end()
    for part in list(text) if "r" in opened[1].lower() else _WRITTEN.findall(text):
        made = part if len(part) == 1 else ast.literal_eval(f'"{part}"') if part != '\\"' else '"'
        value.append(made)
        places += [(line, column)] * len(made)
        line, column = (line + 1, 1) if part.endswith("\n") else (line, column + len(part))
    yield _Literal("".join(value), tuple(places))
