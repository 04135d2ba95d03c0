"""What a JSON schema says of single values: types, bounds, patterns, listed values; and its errors."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from re import _constants as sre
from re import _parser
from typing import Any

from sglc.errors import LegalizeError
from sglc.ir.grammar.regex import compile_regex

Json = Any  # what `json.loads` gives

# The keywords that speak of values of each type.
KEYWORDS = {
    "string": ("pattern", "format", "minLength", "maxLength"),
    "integer": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    "array": ("items", "prefixItems", "minItems", "maxItems", "unevaluatedItems"),
    "object": (
        "properties", "required", "additionalProperties", "minProperties", "maxProperties",
        "unevaluatedProperties",
    ),
    "boolean": (),
    "null": (),
}  # fmt: skip


def check_pattern(pattern: Json, path: str) -> None:
    """Refuse a `pattern` that is no automaton, or that JSON's escapes would change.

    Raises:
        LegalizeError: as `compile_regex`; SGLC455, SGLC456.
    """
    if not isinstance(pattern, str):
        raise malformed(path, "`pattern` is a text")
    try:
        compile_regex(pattern)
    except LegalizeError as error:
        raise LegalizeError(
            error.code, error.message, note=f"at `{path}`; {error.note}", hint=error.hint
        ) from None
    stack: list[Any] = [_parser.parse(pattern, re.ASCII)]
    while stack:
        match stack.pop():
            case (sre.LITERAL | sre.NOT_LITERAL, int() as code) if code < 32 or chr(code) in '"\\':
                raise refused(path, f"a pattern with {chr(code)!r}, which is escaped in a JSON string,")
            case (sre.SUBPATTERN, (_, added, removed, _)) if added or removed:
                raise refused(path, "a pattern with flags")
            case _parser.SubPattern() as inner:
                if inner.state.flags & ~(re.ASCII | re.UNICODE):
                    raise refused(path, "a pattern with flags")
                stack += inner
            case (tuple() | list()) as several:
                stack += several


def types_of(schema: Mapping[str, Json], path: str) -> list[str]:
    """The types that a schema names, each once; none if it names none. Raises LegalizeError: SGLC455."""
    if "type" not in schema:
        return []
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if not types or not all(isinstance(kind, str) and kind in KEYWORDS for kind in types):
        raise malformed(f"{path}/type", f"`type` is one of {', '.join(KEYWORDS)}, or a list of them")
    return list(dict.fromkeys(types))


def fits(value: Json, kind: str) -> bool:
    """Whether a value is of a type."""
    match kind:
        case "string":
            return isinstance(value, str)
        case "integer":
            return not isinstance(value, bool) and isinstance(value, int | float) and float(value).is_integer()
        case "number":
            return not isinstance(value, bool) and isinstance(value, int | float)
        case "boolean":
            return isinstance(value, bool)
        case "null":
            return value is None
        case "array":
            return isinstance(value, list)
        case _:
            return isinstance(value, dict)


def check_bounds(own: Mapping[str, Json], low: str, high: str, path: str) -> None:
    """Refuse bounds that are no counts, or leave nothing. Raises LegalizeError: SGLC455."""
    for key in (low, high):
        value = own.get(key, 0)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise malformed(f"{path}/{key}", f"`{key}` is a count")
    if high in own and own.get(low, 0) > own[high]:
        raise malformed(f"{path}/{low}", f"`{low}` is larger than `{high}`")


def listed_values(schema: Json) -> list[str]:
    """The values that a schema lists, as texts that are equal for equal values; none if it lists none."""
    if not isinstance(schema, dict):
        return []
    values = [schema["const"]] if "const" in schema else schema.get("enum", [])
    # Numbers are left out: 1 and 1.0 are the same value.
    return [json.dumps(value, sort_keys=True) if isinstance(value, str) else "" for value in values]


def disjoint(groups: list[list[str]]) -> bool:
    """Whether no value is in two of `groups`, as far as `listed_values` tells."""
    every = [value for group in groups for value in dict.fromkeys(group)]
    return "" not in every and len(set(every)) == len(every)


def escaped(name: str) -> str:
    """A name as a step of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def malformed(path: str, what: str) -> LegalizeError:
    """What stands at `path` is no schema (SGLC455)."""
    return LegalizeError(
        "SGLC455", "`json_schema` is no schema", note=f"at `{path}`: {what}", hint="mend the schema"
    )


def refused(
    path: str, what: str, *, hint: str = "leave it out, and check the value in the program"
) -> LegalizeError:
    """What stands at `path` is a schema, but cannot be enforced (SGLC456)."""
    return LegalizeError(
        "SGLC456", f"`json_schema` has {what} which cannot be enforced" if what.endswith(",") else
        f"`json_schema` has {what}, which cannot be enforced", note=f"at `{path}`", hint=hint,
    )  # fmt: skip
