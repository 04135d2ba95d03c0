"""Regular expressions of Python, whose whole text matches, in llama.cpp's notation for grammars."""

from __future__ import annotations

import re
from functools import lru_cache

from sglc.ir.grammar.rust_regex import rust_regex

_CODE = re.compile(r"\\x\{([0-9a-f]+)\}")
_PARTS = re.compile(
    rf"(?P<open>\(\?:)|(?P<repeat>\{{[0-9,]+\}})|(?P<set>\[[^\]]*\])|(?P<code>{_CODE.pattern})|(?P<text>[0-9A-Za-z]+)"
)


@lru_cache(maxsize=128)
def regex_gbnf(pattern: str) -> str:
    """A grammar of one rule, of the texts of `pattern` as `gen(regex=...)` understands it.

    What `rust_regex` writes has few parts: groups, classes, code points, letters; repeats only behind groups.

    Raises:
        LegalizeError: as `compile_regex`.
    """
    return "root ::= " + _PARTS.sub(_part, rust_regex(pattern))


def _part(found: re.Match[str]) -> str:
    match found.lastgroup:
        case "open":
            return "( "
        case "repeat":
            return f"{found[0]} "
        case "text":
            return f'"{found[0]}" '
        case kind:
            inner = _CODE.sub(lambda code: f"\\U{int(code[1], 16):08X}", found[0])
            return f"{inner} " if kind == "set" else f"[{inner}] "
