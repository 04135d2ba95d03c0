"""Grammars in GBNF (llama.cpp's notation): what can be said of one without a model.

Strings and classes end, brackets match, every rule that is named is there. The grammar itself is
compiled where the model is.
"""

from __future__ import annotations

import re
from functools import lru_cache

from sglc.errors import LegalizeError

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


@lru_cache(maxsize=128)
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
        if token.lastgroup not in ("space", "is") and pending is not None:
            named.setdefault(*pending)
        if token.lastgroup != "space":
            pending = (token[0], at) if token.lastgroup == "name" else None
        at = token.end()
    if pending is not None:
        named.setdefault(*pending)
    if opened:
        raise _wrong(grammar, opened[-1], "`(` without `)`")
    if "root" not in rules:
        raise _wrong(grammar, 0, "there is no rule `root`")
    for name, place in named.items():
        # What stands in a call need not be a rule.
        if name not in rules and not calls:
            raise _wrong(grammar, place, f"there is no rule `{name}`")


def _wrong(grammar: str, at: int, what: str) -> LegalizeError:
    line = grammar.count("\n", 0, at) + 1
    column = at - grammar.rfind("\n", 0, at)
    return LegalizeError(
        "SGLC457", "`ebnf` is no grammar", note=f"line {line}, column {column}: {what}",
        hint="the notation is GBNF: `root ::= ...`", at=at,
    )  # fmt: skip
