"""Whether a value keeps to a schema of structured outputs, as far as that says types, names, values and sizes.

Servers that know nothing of schemas answer all the same. Patterns and formats are not looked at here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

Json = Any
_BOUNDS: Mapping[str, Callable[[Json, Json], bool]] = {
    "minimum": lambda value, bound: value >= bound,
    "maximum": lambda value, bound: value <= bound,
    "exclusiveMinimum": lambda value, bound: value > bound,
    "exclusiveMaximum": lambda value, bound: value < bound,
    "multipleOf": lambda value, bound: _divides(Decimal(str(bound)), Decimal(str(value))),
    "minItems": lambda value, bound: len(value) >= bound,
    "maxItems": lambda value, bound: len(value) <= bound,
}


def check_value(schema: Mapping[str, Json], value: Json) -> None:
    """Hold a value against a schema in the form that `answer_form` asks for.

    Raises:
        ValueError: it does not keep to it, and where.
    """
    _check(schema, value, "", schema.get("$defs", {}))


def _check(schema: Mapping[str, Json], value: Json, path: str, definitions: Mapping[str, Json]) -> None:
    if "$ref" in schema:
        return _check(definitions[schema["$ref"].rpartition("/")[2]], value, path, definitions)
    if "anyOf" in schema:
        return _check_any(schema["anyOf"], value, path, definitions)
    if "enum" in schema and not any(_equal(value, own) for own in schema["enum"]):
        raise ValueError(f"{_place(path)} is none of the values that may be")
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(_is(kind, value) for kind in kinds):
        raise ValueError(f"{_place(path)} is no {' or '.join(kinds)}")
    for key, holds in _BOUNDS.items():
        if key in schema and not holds(value, schema[key]):
            raise ValueError(f"{_place(path)} is outside of `{key}`")
    if isinstance(value, dict):
        _check_object(schema, value, path, definitions)
    if isinstance(value, list) and "items" in schema:
        for index, item in enumerate(value):
            _check(schema["items"], item, f"{path}/{index}", definitions)
    return None


def _check_any(parts: Json, value: Json, path: str, definitions: Mapping[str, Json]) -> None:
    problem = None
    for part in parts:
        try:
            return _check(part, value, path, definitions)
        except ValueError as error:
            problem = problem or error
    raise problem or ValueError(f"{_place(path)} may be nothing")


def _check_object(
    schema: Mapping[str, Json], value: Mapping[str, Json], path: str, definitions: Mapping[str, Json]
) -> None:
    properties = schema.get("properties", {})
    if missing := [name for name in schema.get("required", ()) if name not in value]:
        raise ValueError(f"{_place(path)} has no `{missing[0]}`")
    for name, own in value.items():
        if name in properties:
            _check(properties[name], own, f"{path}/{name}", definitions)
        elif schema.get("additionalProperties") is False:
            raise ValueError(f"{_place(path)} has a `{name}`, which it may not")


def _is(kind: str, value: Json) -> bool:
    match kind:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "integer" if isinstance(value, Decimal):
            return value == value.to_integral_value()
        case "integer":
            return not isinstance(value, bool) and isinstance(value, int | float) and float(value).is_integer()
        case "number":
            return isinstance(value, int | float | Decimal) and not isinstance(value, bool)
        case "string":
            return isinstance(value, str)
        case "array":
            return isinstance(value, list)
        case _:
            return isinstance(value, dict)


def _divides(one: Decimal, other: Decimal) -> bool:
    try:
        return other % one == 0
    except ArithmeticError:  # a number of more digits than are looked at
        return False


def _equal(one: Json, other: Json) -> bool:
    """Whether they are the same JSON: true is not 1."""
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _place(path: str) -> str:
    return f"what is at `{path}`" if path else "it"
