"""Which rules of a grammar some finite text satisfies, decided on the grammar as xgrammar has parsed it.

A rule that derives no finite text can only be gone on with for ever: `root ::= "a" root`, or an object that
requires one of its own kind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

_CLASS, _RULE, _SEQUENCE, _CHOICES, _REPEAT = 1, 4, 5, 6, 8  # GrammarExprType of grammar_impl.h


def endless_rule(serialized: str) -> str | None:
    """The name of a rule that is reached from the root and derives no finite text, if there is one.

    Args:
        serialized: what `xgrammar.Grammar.serialize_json` gives.
    """
    grammar: dict[str, Any] = msgspec.json.decode(serialized)
    data, begins = grammar["grammar_expr_data"], grammar["grammar_expr_indptr"]
    rules: list[list[Any]] = grammar["rules"]  # name, expression, ...

    def expression(index: int) -> tuple[int, Sequence[int]]:
        kind, size = data[begins[index] : begins[index] + 2]
        return kind, data[begins[index] + 2 : begins[index] + 2 + size]

    readers: list[list[int]] = [[] for _ in rules]  # of a rule, those that name it
    reached, stack = {grammar["root_rule_id"]}, [grammar["root_rule_id"]]
    while stack:
        reader = stack.pop()
        for rule in _named(expression, rules[reader][1]):
            readers[rule].append(reader)
            if rule not in reached:
                reached.add(rule)
                stack.append(rule)
    ends = [False] * len(rules)
    stack = sorted(reached)
    while stack:
        rule = stack.pop()
        if not ends[rule] and _ends(expression, rules[rule][1], ends):
            ends[rule] = True
            stack += readers[rule]
    return next((str(rules[rule][0]) for rule in sorted(reached) if not ends[rule]), None)


def _named(expression: Callable[[int], tuple[int, Sequence[int]]], index: int) -> list[int]:
    """The rules that an expression names."""
    kind, values = expression(index)
    if kind in (_RULE, _REPEAT):
        return [values[0]]
    inner = values if kind in (_SEQUENCE, _CHOICES) else ()
    return [rule for part in inner for rule in _named(expression, part)]


def _ends(expression: Callable[[int], tuple[int, Sequence[int]]], index: int, ends: Sequence[bool]) -> bool:
    """Whether an expression derives a finite text, `ends` saying which rules are known to."""
    kind, values = expression(index)
    if kind == _RULE:
        return ends[values[0]]
    if kind == _REPEAT:  # rule, at least, at most
        return values[1] == 0 or ends[values[0]]
    if kind == _SEQUENCE:
        return all(_ends(expression, part, ends) for part in values)
    if kind == _CHOICES:
        return any(_ends(expression, part, ends) for part in values)
    return kind != _CLASS or values[0] != 0 or len(values) > 1  # what is left are texts, and classes
