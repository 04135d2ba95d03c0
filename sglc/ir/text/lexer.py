"""The text of a program cut into plain data by lark: lines, blocks, calls and what is given in them.

Knows the grammar and nothing of ops. Names stay tokens, so that errors have a place.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

from lark import Lark, Token, Transformer, UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from sglc.errors import Loc, VerifyError


def cut(text: str, filename: str) -> Source:
    """The text as data.

    Raises:
        VerifyError: SGLC201, with the place.
    """
    try:
        return cast(Source, _lark().parse(text))
    except UnexpectedInput as error:
        raise _syntax_error(error, filename) from None


@dataclass(frozen=True, slots=True)
class CallText:
    op: Token
    positional: tuple[Any, ...]
    keywords: tuple[tuple[Token, Any], ...]


@dataclass(frozen=True, slots=True)
class Line:
    """One op: what stands left of `=`, the call, and for an op with blocks what follows its colon."""

    names: tuple[Token, ...]
    call: CallText
    comment: str
    binding: tuple[Token, ...] = ()
    body: tuple[LexedBlock | Arm | Source | Token, ...] = ()

    @property
    def first(self) -> Token:
        return self.names[0] if self.names else self.call.op


@dataclass(frozen=True, slots=True)
class LexedBlock:
    lines: tuple[Line, ...]
    end: Token  # `yield`
    results: tuple[Token, ...]
    comment: str


@dataclass(frozen=True, slots=True)
class Arm:
    start: Token  # `case`
    case: str
    block: LexedBlock


@dataclass(frozen=True, slots=True)
class Source:
    start: Token  # `def`
    title: str
    params: tuple[tuple[Token, CallText | None], ...]
    outputs: tuple[str, ...] | None
    comment: str
    lines: tuple[Line, ...]
    end: Token  # `return`
    returns: Any


class _Cut(Transformer[Token, Any]):
    """Grammar rules to plain data. Names stay tokens, so that errors have a place."""

    def start(self, parts: list[Any]) -> Source:
        return next(part for part in parts if isinstance(part, Source))

    def program(self, parts: list[Any]) -> Source:
        start, title, params, _, outputs, comment, *lines, end, returns, _ = parts
        name = _string(title) if title.type == "STRING" else str(title)
        return Source(start, name, params or (), outputs, comment, tuple(lines), end, returns)

    def outputs(self, parts: list[Token]) -> tuple[str, ...]:
        return tuple(map(_string, parts))

    def flat(self, parts: list[Any]) -> Line:
        names, call, comment = parts
        return Line(names or (), call, comment)

    def nested(self, parts: list[Any]) -> Line:
        names, call, binding, comment, *body = parts
        blocks = tuple(part for part in body if not isinstance(part, str) or isinstance(part, Token))
        return Line(names or (), call, comment, binding or (), blocks)

    def arm(self, parts: list[Any]) -> Arm:
        start, case, _, block = parts
        return Arm(start, _string(case), block)

    def block(self, parts: list[Any]) -> LexedBlock:
        *lines, end, results, comment = parts
        return LexedBlock(tuple(lines), end, results or (), comment)

    def trailer(self, parts: list[Token]) -> str:
        return str(parts[0]) if parts else ""

    def call(self, parts: list[Any]) -> CallText:
        given = parts[1:]
        positional = tuple(part for part in given if not isinstance(part, _Keyword))
        keywords = tuple((part.name, part.item) for part in given if isinstance(part, _Keyword))
        return CallText(parts[0], positional, keywords)

    def keyword(self, parts: list[Any]) -> _Keyword:
        return _Keyword(parts[0], parts[1])

    def items(self, parts: list[Any]) -> tuple[Any, ...]:
        return tuple(parts)

    names = params = param = items

    def mapping(self, parts: list[tuple[str, Any]]) -> dict[str, Any]:
        return dict(parts)

    def entry(self, parts: list[Any]) -> tuple[str, Any]:
        return _string(parts[0]), parts[1]

    def string(self, parts: list[Token]) -> str:
        return _string(parts[0])

    def number(self, parts: list[Token]) -> int | float | Digits:
        digits = str(parts[0])
        if not digits.lstrip("-").isdigit():
            return float(digits)
        return int(digits) if len(digits) <= MAX_DIGITS else Digits()

    def name(self, parts: list[Token]) -> Token:
        return parts[0]

    def none(self, _: list[Token]) -> None:
        return None

    def true(self, _: list[Token]) -> bool:
        return True

    def false(self, _: list[Token]) -> bool:
        return False


MAX_DIGITS = 300  # what is longer does not fit a float


class Digits:
    """A number with too many digits; whoever takes it says where it stands."""


@dataclass(frozen=True, slots=True)
class _Keyword:
    name: Token
    item: Any


def _string(token: Token) -> str:
    body = token[1:-1]
    return str(ast.literal_eval(str(token))) if "\\" in body else str(body)


@cache
def _lark() -> Lark:
    grammar = Path(__file__).with_name("grammar.lark").read_text(encoding="utf-8")
    return Lark(grammar, parser="lalr", transformer=_Cut(), maybe_placeholders=True)


_NAMES = {
    "NAME": "a name", "STRING": "a string", "NUMBER": "a number", "_NL": "end of line", "COMMENT": "a comment",
    "$END": "end of file", "LPAR": "`(`", "RPAR": "`)`", "LBRACE": "`{`", "RBRACE": "`}`", "COMMA": "`,`",
    "ARROW": "`->`",
    "COLON": "`:`", "EQUAL": "`=`", "DEF": "`def`", "RETURN": "`return`", "NONE": "`None`", "TRUE": "`True`",
    "FALSE": "`False`", "ELSE": "`else`", "CASE": "`case`", "YIELD": "`yield`", "AS": "`as`", "__ANON_0": "`_`",
    "UNDERSCORE": "`_`",
}  # fmt: skip


def _syntax_error(error: UnexpectedInput, filename: str) -> VerifyError:
    match error:
        case UnexpectedToken():
            found = f"`{error.token}`"
            if not error.token.strip():
                found = _NAMES.get(error.token.type, found)
            expected = error.accepts or error.expected
        case UnexpectedCharacters():
            found, expected = f"`{error.char}`", error.allowed
        case _:
            found, expected = "end of file", set()
    wanted = ", ".join(sorted(_NAMES.get(name, name) for name in expected if name != "COMMENT"))
    line, column = max(error.line, 1), max(error.column, 1)
    return VerifyError(
        "SGLC201",
        f"unexpected {found}",
        Loc(filename, line, column),
        note=f"expected: {wanted}" if wanted else "",
    )
