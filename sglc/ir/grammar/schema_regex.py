"""JSON schemas of plain parts as regular expressions, which call each other where a schema contains itself.

They are those of objects with listed properties, of arrays, and of values whose form is plain: automata hold
them at less cost than a parser does, and say how large they are. The documents are the parser's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sglc.ir.grammar.json_schema import enforced
from sglc.ir.grammar.regex import MOST_CALLS, call
from sglc.ir.grammar.schema_leaves import kind_of, kinds_of
from sglc.ir.remembered import remembered

_CHAR = r'(?:[^"\\\x00-\x1f\x7f]|\\[nrbtf\\"])'
_CHAR_PLACES = 12  # of an automaton, for a character: its bytes, and the escapes
_NATURAL = "(?:0|[1-9][0-9]*)"
_INTEGER = f"-?{_NATURAL}"
_NUMBER = rf"{_INTEGER}(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
_MOST_PLACES = 12_000  # of the automaton as it is first built: more takes longer than it saves
_MOST_INTEGERS = 1_000  # between the bounds of one
_CALL = "x-call"  # of a part, the number of the rule that it is
_MOST_DIGITS = 15  # of a bound
_OF_OBJECTS = frozenset({"type", "properties", "required", "additionalProperties"})
_OF_ARRAYS = frozenset({"type", "items", "minItems", "maxItems"})
_OF_TEXTS = frozenset({"type", "minLength", "maxLength"})
_OF_INTEGERS = frozenset({"type", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
_OF_NUMBERS = _OF_INTEGERS | {"multipleOf"}


class _IsNotRegularError(Exception):
    """A schema, or a part of it, is better held by a parser."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """A regular expression, and about how many places of an automaton it takes."""

    pattern: str
    places: int


def schema_regex(text: str) -> str | None:
    """The regular expression of the documents of the schema `text`; None if there is none of the plain kind.

    Raises:
        LegalizeError: as `enforced`.
    """
    rules = schema_rules(text)
    return rules[0] if rules is not None and len(rules) == 1 else None


@remembered(256)
def schema_rules(text: str) -> tuple[str, ...] | None:
    """The documents of the schema `text` as rules for `pushdown`; None if it is not of the plain kind.

    One that does not contain itself has one rule, a regular expression.

    Raises:
        LegalizeError: as `enforced`.
    """
    form = enforced(text).form
    definitions = form.get("$defs", {}) if isinstance(form, dict) else {}
    try:
        whole = {key: part for key, part in form.items() if key != "$defs"} if definitions else form
        called: list[str] = []
        for _ in range(2):  # the second time all are known that are called: nothing is written out before it is
            references = _References(definitions, called)
            rules = [_piece(references.resolved(whole, ()))]
            for name in called:  # grows meanwhile
                rules.append(_piece(references.resolved(definitions[name], (name,))))
                _sized("", sum(rule.places for rule in rules))
    except (_IsNotRegularError, RecursionError):
        return None
    return tuple(rule.pattern for rule in rules)


class _References:
    """Resolves references. What is part of itself is called, by its place in `called`, which grows."""

    def __init__(self, definitions: dict[str, Any], called: list[str]) -> None:
        self._definitions = definitions
        self._left = _MOST_PLACES  # parts that all of it may have
        self.called = called

    def resolved(self, form: Any, inside: tuple[str, ...]) -> Any:
        """A schema without references; `inside` are those that it is part of."""
        self._left -= 1
        if self._left < 0:
            raise _IsNotRegularError
        if isinstance(form, list):
            return [self.resolved(part, inside) for part in form]
        if not isinstance(form, dict):
            return form
        if "$ref" in form:
            name = form["$ref"].removeprefix("#/$defs/")
            if set(form) != {"$ref"} or name not in self._definitions or len(self.called) == MOST_CALLS - 1:
                raise _IsNotRegularError
            if name in inside and name not in self.called:
                self.called.append(name)
            if name in self.called:
                return {_CALL: 1 + self.called.index(name)}
            return self.resolved(self._definitions[name], (*inside, name))
        made = dict(form)
        for key in ("items", "additionalProperties", "anyOf"):
            if key in form:
                made[key] = self.resolved(form[key], inside)
        if "properties" in form:
            named = form["properties"].items()
            made["properties"] = {name: self.resolved(part, inside) for name, part in named}
        return made


def _piece(form: Any) -> _Piece:
    if not isinstance(form, dict):
        raise _IsNotRegularError
    if _CALL in form:
        return _Piece(call(form[_CALL]), 2)
    if "const" in form or "enum" in form:
        return _listed(form)
    if set(form) == {"anyOf"}:
        return _any([_piece(part) for part in form["anyOf"]])
    kinds = form.get("type")
    if isinstance(kinds, list):
        # What is said of values of one type says nothing of others.
        return _any([_piece(_of_kind(form, kind)) for kind in kinds])
    if kinds not in _KINDS:
        raise _IsNotRegularError
    keys, make = _KINDS[kinds]
    if not keys.issuperset(form):
        raise _IsNotRegularError
    return make(form)


def _of_kind(form: dict[str, Any], kind: str) -> dict[str, Any]:
    # What numbers have to keep to integers have to as well, also if no pattern says it.
    others = {key for keys, _ in _KINDS.values() for key in keys} - _KINDS[kind][0]
    others -= _OF_NUMBERS if kind == "integer" else frozenset()
    return {key: value for key, value in form.items() if key not in others} | {"type": kind}


def _any(pieces: list[_Piece]) -> _Piece:
    if not pieces:
        raise _IsNotRegularError
    return _sized(f"(?:{'|'.join(piece.pattern for piece in pieces)})", sum(piece.places for piece in pieces))


def _sized(pattern: str, places: int) -> _Piece:
    if places > _MOST_PLACES:
        raise _IsNotRegularError
    return _Piece(pattern, places)


def _listed(form: dict[str, Any]) -> _Piece:
    values = form["enum"] if "enum" in form else [form["const"]]
    if not {"enum", "const", "type"}.issuperset(form) or {"enum", "const"}.issubset(form):
        raise _IsNotRegularError
    kinds = kinds_of(form["type"]) if "type" in form else None
    texts: list[str] = []
    for value in values:
        if isinstance(value, float | dict | list) or (kinds is not None and kind_of(value) not in kinds):
            raise _IsNotRegularError
        texts.append(json.dumps(value, ensure_ascii=False))
    return _any([_literal(text) for text in texts])


def _literal(text: str) -> _Piece:
    if not text.isprintable() and any(0xD800 <= ord(char) <= 0xDFFF for char in text):
        raise _IsNotRegularError
    return _sized(re.escape(text), len(text.encode()))


def _text(form: dict[str, Any]) -> _Piece:
    least, most = form.get("minLength", 0), form.get("maxLength")
    bounds = "*" if most is None and not least else f"{{{least},{'' if most is None else most}}}"
    return _sized(f'"{_CHAR}{bounds}"', 2 + _CHAR_PLACES * max(1, least if most is None else most))


def _integer(form: dict[str, Any]) -> _Piece:
    low, high = _bound(form, "minimum", "exclusiveMinimum", 1), _bound(form, "maximum", "exclusiveMaximum", -1)
    if low is None and high is None:
        return _Piece(_INTEGER, 4)
    if high is None and low in (0, 1):
        return _Piece(_NATURAL if low == 0 else "[1-9][0-9]*", 3)
    if high is None and low is not None and 1 < low < 10**_MOST_DIGITS:
        return _at_least(str(low))
    if low is None or high is None or high - low > _MOST_INTEGERS:
        raise _IsNotRegularError
    zero = [_literal("-0")] if low < 0 <= high else []
    return _any([*zero, *_integers(low, high + 1)])


def _at_least(digits: str) -> _Piece:
    """The integers from the one with these digits on: it, longer ones, and those with a larger digit."""
    size = len(digits)
    larger = [
        f"{digits[:at]}[{int(digit) + 1}-9][0-9]{{{size - at - 1}}}"
        for at, digit in enumerate(digits)
        if digit != "9"
    ]
    ways = "|".join([digits, f"[1-9][0-9]{{{size},}}", *larger])
    return _Piece(f"(?:{ways})", (size + 2) ** 2)


def _integers(first: int, behind: int) -> list[_Piece]:
    """The integers from `first` up to before `behind`."""
    return [_literal(str(value)) for value in range(first, behind)]


def _bound(form: dict[str, Any], key: str, beside: str, step: int) -> int | None:
    """The last integer that a bound leaves; None without one."""
    given = [form[name] + step * (name == beside) for name in (key, beside) if name in form]
    if not given:
        return None
    if len(given) > 1 or not float(given[0]).is_integer():
        raise _IsNotRegularError
    return int(given[0])


def _number(form: dict[str, Any]) -> _Piece:
    if set(form) == {"type"}:
        return _Piece(_NUMBER, 10)
    low, high = form.get("minimum"), form.get("maximum")
    digits = _decimals(form["multipleOf"]) if "multipleOf" in form else None
    fraction = r"(?:\.[0-9]+)?" if digits is None else rf"(?:\.[0-9]{{1,{digits}}})?"
    if {"exclusiveMinimum", "exclusiveMaximum"}.intersection(form):
        raise _IsNotRegularError
    if high is None and (low == 0 or (low is None and digits is not None)):
        return _Piece((_NATURAL if low == 0 else _INTEGER) + fraction, 6 + (digits or 1))
    if digits is not None or not (isinstance(low, int) and isinstance(high, int)):
        raise _IsNotRegularError
    if not 0 <= low < high <= low + _MOST_INTEGERS:
        raise _IsNotRegularError
    below = _any(_integers(low, high))
    return _any([_sized(below.pattern + fraction, below.places + 3), _sized(rf"{high}(?:\.0+)?", 8)])


def _decimals(step: float) -> int:
    """The digits behind the point of 0.1, 0.01 and so on."""
    found = re.fullmatch("0\\.(0{0,5}1)", str(step)) or re.fullmatch("1e-0([56])", str(step))
    if found is None:
        raise _IsNotRegularError
    return int(found[1]) if step < 1e-4 else len(found[1])


def _array(form: dict[str, Any]) -> _Piece:
    least, most = form.get("minItems", 0), form.get("maxItems")
    if most == 0 or form.get("items") is False:
        if least:
            raise _IsNotRegularError
        return _Piece(r"\[\]", 2)
    item = _piece(form.get("items"))
    more = f"{{{max(least - 1, 0)},{'' if most is None else most - 1}}}"
    inside = f"{item.pattern}(?:, {item.pattern}){more}"
    count = max(2, least + 1 if most is None else most)
    return _sized(rf"\[{inside}\]" if least else rf"\[(?:{inside})?\]", 2 + (item.places + 2) * count)


def _object(form: dict[str, Any]) -> _Piece:
    properties, required = form.get("properties", {}), set(form.get("required", ()))
    if form.get("additionalProperties") is not False or not required.issubset(properties):
        raise _IsNotRegularError
    behind, first, places, first_places = "", "", 0, 0  # what follows another property, and what begins
    for name, part in reversed(properties.items()):
        value = _piece(part)
        key = json.dumps(name, ensure_ascii=False)
        one = _literal(f"{key}: ").pattern + value.pattern
        size = len(key.encode()) + 2 + value.places
        if name in required:
            first, first_places = one + behind, size + places
            behind = f", {one}{behind}"
        else:
            first, first_places = f"(?:{one}{behind}|{first})", size + places + first_places
            behind = f"(?:, {one})?{behind}"
        places += size + 2
        _sized("", first_places)
    return _Piece(rf"\{{{first}\}}", 2 + first_places)


_KINDS: dict[str, tuple[frozenset[str], Callable[[dict[str, Any]], _Piece]]] = {
    "object": (_OF_OBJECTS, _object),
    "array": (_OF_ARRAYS, _array),
    "string": (_OF_TEXTS, _text),
    "integer": (_OF_INTEGERS, _integer),
    "number": (_OF_NUMBERS, _number),
    "boolean": (frozenset({"type"}), lambda form: _Piece("(?:true|false)", 9)),
    "null": (frozenset({"type"}), lambda form: _Piece("null", 4)),
}
