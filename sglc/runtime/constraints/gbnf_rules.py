"""Grammars, as xgrammar has parsed them, as rules for `pushdown`; others are written out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from sglc.ir.grammar.regex import MOST_CALLS, call

_MOST_LENGTH = 100_000  # of all patterns together


class _CannotBeWrittenError(Exception):
    """The grammar has a part that no pattern stands for, or is too long."""


def gbnf_rules(serialized: str) -> tuple[str, ...] | None:
    """The rules of a grammar, the root's first; None if it has none of them, or more than are worth it.

    Args:
        serialized: what `xgrammar.Grammar.serialize_json` gives.
    """
    try:
        return _Rules(msgspec.json.decode(serialized)).patterns()
    except (_CannotBeWrittenError, RecursionError):
        return None


class _Rules:
    def __init__(self, grammar: dict[str, Any]) -> None:
        self._data: Sequence[int] = grammar["grammar_expr_data"]
        self._begins: Sequence[int] = grammar["grammar_expr_indptr"]
        self._rules: Sequence[Sequence[Any]] = grammar["rules"]  # name, expression, a condition or -1, ...
        self._root: int = grammar["root_rule_id"]
        self._called: list[int] = []
        self._left = _MOST_LENGTH

    def patterns(self) -> tuple[str, ...]:
        for _ in range(2):  # the second time all are known that contain themselves
            self._left = _MOST_LENGTH
            patterns = [self._rule(self._root, ())]
            for rule in self._called:  # grows meanwhile
                patterns.append(self._body(rule, (rule,)))
        return tuple(patterns)

    def _rule(self, rule: int, inside: tuple[int, ...]) -> str:
        if rule in inside and rule not in self._called:
            self._called.append(rule)
        if rule not in self._called:
            return self._body(rule, (*inside, rule))
        if len(self._called) >= MOST_CALLS:
            raise _CannotBeWrittenError
        return call(1 + self._called.index(rule))

    def _body(self, rule: int, inside: tuple[int, ...]) -> str:
        _, expression, condition, *_ = self._rules[rule]
        if condition != -1:
            raise _CannotBeWrittenError
        return self._expression(expression, inside)

    def _expression(self, index: int, inside: tuple[int, ...]) -> str:
        kind, size = self._data[self._begins[index] : self._begins[index] + 2]
        begin = self._begins[index] + 2
        values = self._data[begin : begin + size]
        match kind:  # GrammarExprType of grammar_impl.h
            case 0:  # a text
                try:
                    pattern = re.escape(bytes(values).decode())
                except UnicodeDecodeError:
                    raise _CannotBeWrittenError from None
            case 1 | 2:  # a class, and one that is repeated
                pattern = _characters(values) + "*" * (kind - 1)
            case 3:  # nothing
                pattern = ""
            case 4:  # a rule
                pattern = self._rule(values[0], inside)
            case 5:  # a sequence
                pattern = "".join(self._expression(part, inside) for part in values)
            case 6:  # choices
                pattern = f"(?:{'|'.join(self._expression(part, inside) for part in values)})"
            case 8:  # a rule that is repeated
                least, most = values[1:3]
                pattern = f"(?:{self._rule(values[0], inside)}){{{least},{most if most >= 0 else ''}}}"
            case _:
                raise _CannotBeWrittenError
        self._left -= len(pattern)
        if self._left < 0:
            raise _CannotBeWrittenError
        return pattern


def _characters(values: Sequence[int]) -> str:
    """A class: whether it is one of all others, then the first and the last of each range."""
    ranges = zip(values[1::2], values[2::2], strict=True)
    inside = "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in ranges if last < 0x110000)
    if not inside:
        if values[0]:
            return r"[\s\S]"
        raise _CannotBeWrittenError
    return f"[{'^' if values[0] else ''}{inside}]"
