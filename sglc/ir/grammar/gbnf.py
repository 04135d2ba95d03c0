"""Grammars in GBNF (llama.cpp's notation): what can be said of one without a model.

Strings and classes end, brackets match, bounds are in order, every rule that is named is there. The grammar
itself is compiled where the model is.
"""

from __future__ import annotations

import re

from sglc.errors import LegalizeError, shown
from sglc.ir.remembered import remembered

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+|\#[^\n]*)
    |(?P<text>"(?:\\[^\n]|[^"\\\n])*")
    |(?P<set>\[(?:\\[^\n]|[^\]\\\n])*\])
    |(?P<is>::=)
    |(?P<call>[A-Z]\w*(?=\())
    |(?P<name>[A-Za-z_][\w.-]*)
    |(?P<repeat>\{[ \t]*\d*[ \t]*,?[ \t]*\d*[ \t]*\}|[*+?])
    |(?P<open>\(=?)
    |(?P<close>\))
    |(?P<or>\|)
    |(?P<other>[\w,=.-]+)""",
    re.VERBOSE,
)
_MOST_DIGITS = 9  # of a repeat: xgrammar counts with 32 bits
_RANGE = re.compile(
    r"""(?P<first>\\x[0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}|\\U[0-9A-Fa-f]{8}|\\.|[^\\])
    (?:-(?P<last>\\x[0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}|\\U[0-9A-Fa-f]{8}|\\.|[^\\]))?""",
    re.VERBOSE | re.DOTALL,
)


@remembered(128)
def check_gbnf(grammar: str) -> None:
    """Refuse a grammar that is none.

    Raises:
        LegalizeError: SGLC457, with the line and column.
    """
    at = 0
    opened: list[int] = []
    rules: dict[str, int] = {}
    named: dict[str, int] = {}
    pending: tuple[str, int] | None = None  # a name whose use the next token tells
    calls = False
    unread: int | None = None  # the place of what only stands in calls
    while at < len(grammar):
        token = _TOKEN.match(grammar, at)
        if token is None:
            what = {'"': "a text without its end", "[": "a class without its end"}
            raise _wrong(grammar, at, what.get(grammar[at], f"`{grammar[at]}` is not expected"))
        match token.lastgroup:
            case "is" if pending is None or opened:
                raise _wrong(grammar, at, "`::=` without a rule's name")
            case "is":
                assert pending is not None
                if pending[0] in rules:
                    raise _wrong(grammar, pending[1], f"a second rule `{pending[0]}`")
                rules[pending[0]] = pending[1]
            case "open":
                opened.append(at)
            case "close" if not opened:
                raise _wrong(grammar, at, "`)` without `(`")
            case "close":
                opened.pop()
            case "call":
                calls = True
            case "other" if unread is None:
                unread = at
            case "set" if backward := _backward(token[0][1:-1].removeprefix("^")):
                raise _wrong(grammar, at, f"the range `{backward}` ends before it begins")
            case "set" if token[0] == "[]":
                raise _wrong(grammar, at, "the class `[]` has no characters")
            case "repeat":
                bounds = re.findall(r"\d+", token[0])
                if any(len(bound.lstrip("0")) > _MOST_DIGITS for bound in bounds):
                    raise _wrong(grammar, at, f"the repeat `{shown(token[0])}` is too large")
                if len(bounds) == 2 and int(bounds[0]) > int(bounds[1]):
                    raise _wrong(grammar, at, f"the repeat `{token[0]}` has more at least than at most")
        if token.lastgroup not in ("space", "is") and pending is not None:
            named.setdefault(*pending)
        if token.lastgroup != "space":
            pending = (token[0], at) if token.lastgroup == "name" else None
        at = token.end()
    if pending is not None:
        named.setdefault(*pending)
    if opened:
        raise _wrong(grammar, opened[-1], "`(` without `)`")
    if unread is not None and not calls:
        raise _wrong(grammar, unread, f"`{grammar[unread]}` is not expected")
    if "root" not in rules:
        raise _wrong(grammar, 0, "there is no rule `root`")
    for name, place in named.items():
        # What stands in a call need not be a rule.
        if name not in rules and not calls:
            raise _wrong(grammar, place, f"there is no rule `{name}`")


def _backward(members: str) -> str:
    """The range of a class that ends before it begins; "" if all are in order."""
    for found in _RANGE.finditer(members):
        if found["last"] is not None and _code(found["first"]) > _code(found["last"]):
            return found[0]
    return ""


def _code(member: str) -> int:
    if member[:2] in ("\\x", "\\u", "\\U"):
        return int(member[2:], 16)
    if member[0] == "\\":
        return ord({"n": "\n", "r": "\r", "t": "\t"}.get(member[1], member[1]))
    return ord(member)


def _wrong(grammar: str, at: int, what: str) -> LegalizeError:
    line = grammar.count("\n", 0, at) + 1
    column = at - grammar.rfind("\n", 0, at)
    return LegalizeError(
        "SGLC457", "`ebnf` is no grammar", note=f"line {line}, column {column}: {what}",
        hint="the notation is GBNF: `root ::= ...`", at=at,
    )  # fmt: skip
