"""JSON schemas whose documents are a regular language, as regular expressions.

They are those of objects with listed properties, of arrays, and of values whose form is plain: automata hold
them at less cost than a parser does, and say how large they are. The documents are the parser's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sglc.ir.grammar.json_schema import enforced
from sglc.ir.grammar.schema_leaves import kinds_of

_CHAR = r'(?:[^"\\\x00-\x1f\x7f]|\\[nrbtf\\"])'
_CHAR_PLACES = 12  # of an automaton, for a character: its bytes, and the escapes
_INTEGER = "-?(?:0|[1-9][0-9]*)"
_NUMBER = rf"{_INTEGER}(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
_MOST_PLACES = 12_000  # of the automaton as it is first built: more takes longer than it saves
_MOST_INTEGERS = 1_000  # between the bounds of one
_OF_OBJECTS = frozenset({"type", "properties", "required", "additionalProperties"})
_OF_ARRAYS = frozenset({"type", "items", "minItems", "maxItems"})
_OF_TEXTS = frozenset({"type", "minLength", "maxLength"})
_OF_NUMBERS = frozenset({"type", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})


class _IsNotRegularError(Exception):
    """A schema, or a part of it, is better held by a parser."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """A regular expression, and about how many places of an automaton it takes."""

    pattern: str
    places: int


@lru_cache(maxsize=256)
def schema_regex(text: str) -> str | None:
    """The regular expression of the documents of the schema `text`; None if it is not of the plain kind.

    Raises:
        LegalizeError: as `enforced`.
    """
    form = enforced(text).form
    definitions = form.get("$defs", {}) if isinstance(form, dict) else {}
    try:
        whole = {key: part for key, part in form.items() if key != "$defs"} if definitions else form
        return _piece(_resolved(whole, definitions, (), [_MOST_PLACES])).pattern
    except (_IsNotRegularError, RecursionError):
        return None


def _resolved(form: Any, definitions: dict[str, Any], inside: tuple[str, ...], left: list[int]) -> Any:
    """A schema without references. `inside` are those that it is part of, `left` how many parts it may have."""
    left[0] -= 1
    if left[0] < 0:
        raise _IsNotRegularError
    if isinstance(form, list):
        return [_resolved(part, definitions, inside, left) for part in form]
    if not isinstance(form, dict):
        return form
    if "$ref" in form:
        name = form["$ref"].removeprefix("#/$defs/")
        if set(form) != {"$ref"} or name in inside or name not in definitions:
            raise _IsNotRegularError
        return _resolved(definitions[name], definitions, (*inside, name), left)
    made = dict(form)
    for key in ("items", "additionalProperties", "anyOf"):
        if key in form:
            made[key] = _resolved(form[key], definitions, inside, left)
    if "properties" in form:
        named = form["properties"].items()
        made["properties"] = {name: _resolved(part, definitions, inside, left) for name, part in named}
    return made


def _piece(form: Any) -> _Piece:
    if not isinstance(form, dict):
        raise _IsNotRegularError
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
    others = {key for keys, _ in _KINDS.values() for key in keys} - _KINDS[kind][0]
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
        if isinstance(value, float) or (kinds is not None and _kind(value) not in kinds):
            raise _IsNotRegularError
        if isinstance(value, dict | list):
            raise _IsNotRegularError
        texts.append(json.dumps(value, ensure_ascii=False))
    return _any([_literal(text) for text in texts])


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    return {str: "string", int: "number", type(None): "null", dict: "object", list: "array"}[type(value)]


def _literal(text: str) -> _Piece:
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
        return _Piece("(?:0|[1-9][0-9]*)" if low == 0 else "[1-9][0-9]*", 3)
    if low is None or high is None or high - low > _MOST_INTEGERS:
        raise _IsNotRegularError
    zero = [_literal("-0")] if low < 0 <= high else []
    return _any([*zero, *(_literal(str(value)) for value in range(low, high + 1))])


def _bound(form: dict[str, Any], key: str, beside: str, step: int) -> int | None:
    """The last integer that a bound leaves; None without one."""
    given = [form[name] + step * (name == beside) for name in (key, beside) if name in form]
    if not given:
        return None
    if len(given) > 1 or not float(given[0]).is_integer():
        raise _IsNotRegularError
    return int(given[0])


def _number(form: dict[str, Any]) -> _Piece:
    if not {"type"}.issuperset(form):
        raise _IsNotRegularError
    return _Piece(_NUMBER, 10)


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
        one = re.escape(f"{key}: ") + value.pattern
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
    "integer": (_OF_NUMBERS, _integer),
    "number": (_OF_NUMBERS, _number),
    "boolean": (frozenset({"type"}), lambda form: _Piece("(?:true|false)", 9)),
    "null": (frozenset({"type"}), lambda form: _Piece("null", 4)),
}
