"""Random schemas and patterns, and texts that are made by walking at random along what a constraint allows."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from decimal import Decimal, localcontext
from functools import cache
from random import Random
from typing import Any

import jsonschema
import numpy as np

from sglc.runtime.constraints.grammar_constraint import Matcher

_NAMES = ("a", "b", "c", "xa", "xb", "é", 'q"', "a/b", "")
_WORDS = ("a", "b", "ab", "", "x\n", "é", '"', "\\", "2024-02-29", "10")
_FORMATS = ("date", "date-time", "time", "ipv4", "ipv6", "uuid", "email", "hostname", "json-pointer")
_ATOMS = (
    "a", "b", "ab", ".", "[ab]", "[^a]", r"\d", r"\w", "[a-c]", "é", r'"', r"\\", r"\n", "[^\\n\\r]", "(a|b)",
    "(ab|)", "(?:a|bc)", r"\x41", r"\u00e9", r"\.", "-", "[-a]", r"[\w-]", r"\/", "😀", "[😀é]",
)  # fmt: skip


def pattern(random: Random) -> str:
    """A pattern, with anchors or without."""
    alternatives = []
    for _ in range(random.choice((1, 1, 1, 2))):
        pieces = [
            random.choice(_ATOMS) + random.choice(("", "", "", "?", "*", "+", "{2}", "{0,2}", "{1,}"))
            for _ in range(random.randint(0, 4))
        ]
        alternatives.append(random.choice(("", "^", "^")) + "".join(pieces) + random.choice(("", "$", "$")))
    return "|".join(alternatives)


def schema(random: Random, depth: int = 3) -> Any:
    """A schema; it may be one that no document satisfies."""
    if random.random() < 0.05:
        return random.random() < 0.9
    made: dict[str, Any] = {}
    kinds = random.sample(
        ("string", "integer", "number", "array", "object", "boolean", "null"), random.choice((1, 1, 1, 2))
    )
    if random.random() < 0.8:
        made["type"] = kinds[0] if len(kinds) == 1 else kinds
    for kind in kinds:
        if random.random() < 0.85:
            made.update(_KINDS[kind](random, depth))
    if random.random() < 0.12:
        made = {
            "enum": [value(random, 2) for _ in range(random.randint(1, 4))],
            **(made if random.random() < 0.3 else {}),
        }
    if depth and random.random() < 0.3:
        key = random.choice(("anyOf", "anyOf", "oneOf", "allOf"))
        parts = [schema(random, depth - 1) for _ in range(random.randint(1, 3))]
        made = {key: parts, **(made if random.random() < 0.6 else {})}
    if depth and random.random() < 0.1:
        made["unevaluatedProperties"] = False
    if depth and random.random() < 0.08:
        made["dependentRequired"] = {random.choice(_NAMES): random.sample(_NAMES, random.randint(0, 2))}
    if depth and random.random() < 0.12:
        made["not"] = schema(random, depth - 1)
    if depth and random.random() < 0.12:
        made["if"] = schema(random, depth - 1)
        for key in random.sample(("then", "else"), random.randint(1, 2)):
            made[key] = schema(random, depth - 1)
    if random.random() < 0.1:
        made["x-note"] = "no keyword"
    entries = list(made.items())
    random.shuffle(entries)
    return dict(entries)


def with_definitions(random: Random) -> Any:
    """A schema some of whose parts are references, which may be recursive."""
    made = schema(random)
    if not isinstance(made, dict) or random.random() < 0.6:
        return made
    reference = {"$ref": "#/$defs/r"}
    inner = schema(random, 2)
    if isinstance(inner, dict) and "object" in str(inner.get("type")):
        inner = {**inner, "properties": {**inner.get("properties", {}), "b": reference}}
    return {
        "$defs": {"r": inner},
        "anyOf": [made, {"type": "array", "items": reference, "maxItems": 2}, reference],
    }


def of_older_draft(random: Random) -> Any:
    """A schema that says that it is of an older draft, with keywords that are not known there."""
    made = with_definitions(random)
    draft = random.choice(("http://json-schema.org/draft-06/schema#", "http://json-schema.org/draft-07/schema#",
                           "https://json-schema.org/draft/2019-09/schema"))  # fmt: skip
    made = {"$schema": draft, **(made if isinstance(made, dict) else {"allOf": [made]})}
    if random.random() < 0.3:
        made["items"] = [schema(random, 1) for _ in range(random.randint(1, 2))]
        made["additionalItems"] = schema(random, 1)
    return made


def value(random: Random, depth: int) -> Any:
    """A JSON value."""
    kind = random.randrange(8 if depth else 6)
    match kind:
        case 0 | 1:
            return random.choice(_WORDS)
        case 2:
            return random.randint(-12, 12)
        case 3:
            return random.choice((0.5, -1.25, 2.0, 10.0))
        case 4 | 5:
            return random.choice((True, False, None))
        case 6:
            return [value(random, depth - 1) for _ in range(random.randint(0, 3))]
        case _:
            return {name: value(random, depth - 1) for name in random.sample(_NAMES, random.randint(0, 3))}


def _string(random: Random, depth: int) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if random.random() < 0.5:
        made["pattern"] = pattern(random)
    if random.random() < 0.2:
        made["format"] = random.choice((*_FORMATS, "color"))
    made.update(_bounds(random, "minLength", "maxLength", 6))
    return made


def _bounds(random: Random, low: str, high: str, most: int) -> dict[str, Any]:
    made: dict[str, Any] = {}
    first = random.randint(0, most)
    if random.random() < 0.3:
        made[low] = first
    if random.random() < 0.4:
        made[high] = random.randint(first, most)
    return made


def _number(random: Random, depth: int) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
        if random.random() < 0.25:
            made[key] = random.choice((-10, -1, 0, 1, 3, 12, 100, 0.5, -0.5, 3.5, -2.25, 7.125))
    if random.random() < 0.25:
        made["multipleOf"] = random.choice((1, 2, 3, 7, 0.5, 0.25, 0.01, 1.5, 12))
    return made


def _array(random: Random, depth: int) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if not depth:
        return {"items": {"type": "null"}}
    if random.random() < 0.3:
        made["prefixItems"] = [schema(random, depth - 1) for _ in range(random.randint(1, 2))]
    if random.random() < 0.8:
        made["items"] = schema(random, depth - 1)
    if random.random() < 0.1:
        made["unevaluatedItems"] = False
    made.update(_bounds(random, "minItems", "maxItems", 4))
    if random.random() < 0.15:
        made["uniqueItems"] = True
        made["items"] = random.choice(
            ({"enum": ["a", 1, True, None, "b"]}, {"type": "boolean"}, {"enum": [1, 2, "x"], "type": "integer"})
        )
    if random.random() < 0.15:
        made["contains"] = schema(random, depth - 1)
        if random.random() < 0.2:
            made["minContains"] = random.randint(0, 1)
    return made


def _object(random: Random, depth: int) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if not depth:
        return {"maxProperties": 1}
    names = random.sample(_NAMES, random.randint(0, 3))
    if names:
        made["properties"] = {name: schema(random, depth - 1) for name in names}
    if random.random() < 0.5:
        made["required"] = random.sample((*names, random.choice(_NAMES)), random.randint(0, len(names)))
        made["required"] = list(dict.fromkeys(made["required"]))
    if random.random() < 0.3:
        made["additionalProperties"] = random.choice((True, False, schema(random, depth - 1)))
    if random.random() < 0.2:
        made["patternProperties"] = {
            random.choice(("^x", "b$", "^[a-c]$", pattern(random))): schema(random, depth - 1)
        }
    if random.random() < 0.2:
        made.update(_bounds(random, "minProperties", "maxProperties", 3))
    if random.random() < 0.15:
        made["propertyNames"] = random.choice(
            ({"pattern": pattern(random)}, {"enum": ["a", 'q"', ""]}, {"maxLength": 1}, {"const": "b"}, False)
        )
    return made


def _nothing(random: Random, depth: int) -> dict[str, Any]:
    return {}


_KINDS: dict[str, Callable[[Random, int], dict[str, Any]]] = {
    "string": _string, "integer": _number, "number": _number, "array": _array, "object": _object,
    "boolean": _nothing, "null": _nothing,
}  # fmt: skip


def walk(matcher: Matcher, random: Random, most: int) -> bytes | None:
    """A text that a matcher over bytes accepts, made at random; None if it has not ended after `most` bytes.

    It ends where it may half of the time, and goes for quotes and brackets that close when it is long.
    """
    made = bytearray()
    while True:
        packed, may_end = matcher.look()
        allowed = np.flatnonzero(np.unpackbits(packed, bitorder="little"))
        if may_end and (not allowed.size or random.random() < 0.5):
            return bytes(made)
        if not allowed.size or len(made) >= most:
            return None
        choices = allowed.tolist()
        closing = [byte for byte in choices if byte in b'"}]']
        byte = random.choice(
            closing if closing and random.random() < len(made) / most else _spread(choices, random)
        )
        matcher.take(byte)
        made.append(byte)


def _spread(choices: list[int], random: Random) -> list[int]:
    """ASCII as often as all other bytes together; escapes as often as what needs none."""
    plain = [byte for byte in choices if byte < 128]
    if 92 in choices and random.random() < 0.05:
        return [92]
    return plain if plain and random.random() < 0.8 else choices


class Reference:
    """`jsonschema`'s validator, with exact numbers, and with JavaScript's meaning of patterns."""

    def __init__(self, schema: Any) -> None:
        # As decimal numbers on both sides, so that 0.29 is a multiple of 0.01.
        exact = json.loads(json.dumps(_in_python(schema)), parse_float=Decimal)
        self._validator = _validator(exact)(exact, format_checker=_FORMAT_CHECKER)

    def problem(self, document: Any) -> str:
        """What is wrong with a document; nothing if it is valid."""
        with localcontext(prec=2500):  # remainders of what is far away
            error = next(iter(self._validator.iter_errors(document)), None)
        return "" if error is None else f"{error.message[:200]} ({error.json_path})"


def parsed(text: str) -> Any:
    """The document in a text."""
    return json.loads(text, parse_float=_number_in)


def _number_in(text: str) -> Decimal:
    mantissa, _, exponent = text.lower().partition("e")
    # No schema here tells numbers apart that are further away.
    return Decimal(mantissa).scaleb(max(-999, min(int(exponent or "0"), 999)))


def python_pattern(pattern: str) -> str:
    """A JavaScript pattern in Python's syntax."""
    return _TOKEN.sub(lambda found: _SAME.get(found[0]) or _class(found[0]), pattern)


def _class(token: str) -> str:
    return token.replace(r"\d", "0-9").replace(r"\w", "A-Za-z0-9_") if token[0] == "[" else token


def _in_python(schema: Any) -> Any:
    match schema:
        case dict():
            made = {key: _in_python(part) for key, part in schema.items()}
            if isinstance(schema.get("pattern"), str):
                made["pattern"] = python_pattern(schema["pattern"])
            if isinstance(named := made.get("patternProperties"), dict):
                made["patternProperties"] = {python_pattern(key): part for key, part in named.items()}
            return made
        case list():
            return [_in_python(part) for part in schema]
        case _:
            return schema


def _is_integer(checker: Any, value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, int | Decimal) and value == int(value)


@cache
def _counting(validator: Any) -> Any:
    checker = validator.TYPE_CHECKER.redefine("integer", _is_integer)
    # That of 2019-09 takes the keywords of a schema for `additionalProperties` for names of properties.
    name = "unevaluatedProperties"
    newest = {name: jsonschema.Draft202012Validator.VALIDATORS[name]} if name in validator.VALIDATORS else {}
    return jsonschema.validators.extend(validator, newest, type_checker=checker)


def _validator(schema: Any) -> Any:
    """The validator of the draft that a schema names."""
    return _counting(jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator))


_TOKEN = re.compile(r"\[(?:\\.|[^\]])*\]|\\.|[.$]", re.DOTALL)
_SAME = {".": "[^\n\r\u2028\u2029]", "$": r"\Z", r"\d": "[0-9]", r"\w": "[A-Za-z0-9_]"}
_FORMAT_CHECKER = jsonschema.FormatChecker(("date", "ipv4", "ipv6", "uuid", "email"))
