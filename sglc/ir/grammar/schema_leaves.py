"""What single keywords of a JSON schema say: which there are, whether they are well formed; and its errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from sglc.errors import LegalizeError, shown
from sglc.ir.grammar.schema_pattern import rust_pattern

Json = Any  # what `json.loads` gives

# The keywords that speak of values of each type.
KEYWORDS = {
    "string": ("pattern", "format", "minLength", "maxLength"),
    "integer": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
    "object": (
        "properties", "required", "additionalProperties", "patternProperties", "minProperties", "maxProperties",
    ),
    "boolean": (),
    "null": (),
}  # fmt: skip
KINDS = tuple(kind for kind in KEYWORDS if kind != "integer")  # of values: an integer is a number
_DEPENDENT = ("dependentRequired", "dependentSchemas", "dependencies")
SUPPORTED = frozenset(
    {"$ref", "enum", "const", "anyOf", "oneOf", "allOf", "not", "if", "then", "else", "type", *_DEPENDENT}
    | {"contains", "maxContains", "minContains", "propertyNames", "unevaluatedProperties", "uniqueItems"}
    | {key for keys in KEYWORDS.values() for key in keys}
)
# Keywords that nobody enforces while text is made.
REFUSED = frozenset(
    {
        "$dynamicRef", "$recursiveRef", "disallow", "extends", "unevaluatedItems",
    }
)  # fmt: skip
# Say nothing about documents.
ANNOTATIONS = frozenset(
    {
        "$anchor", "$comment", "$defs", "$dynamicAnchor", "$id", "$recursiveAnchor", "$schema", "$vocabulary",
        "contentEncoding", "contentMediaType", "contentSchema", "default", "definitions", "deprecated",
        "description", "discriminator", "example", "examples", "id", "readOnly", "title", "writeOnly",
    }
)  # fmt: skip
FORMATS = frozenset(
    {
        "date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "json-pointer",
        "relative-json-pointer", "time", "uri", "uri-reference", "uri-template", "uuid",
    }
)  # fmt: skip
_REFUSED_FORMATS = frozenset({"idn-email", "idn-hostname", "iri", "iri-reference", "regex"})
_COUNTS = (
    ("minLength", "maxLength"), ("minItems", "maxItems"), ("minProperties", "maxProperties"),
    ("minContains", "maxContains"),
)  # fmt: skip
_LARGEST = 2**53  # up to here a floating number is every integer
_MOST_REMAINDERS = 10_000  # what `multipleOf` is told by
_TRIVIAL: Mapping[str, tuple[Json, ...]] = {
    "additionalProperties": (), "unevaluatedProperties": (True, {}), "unevaluatedItems": (True, {}),
    "uniqueItems": (False,), "propertyNames": (True, {}), "not": (False,), "minItems": (0,), "minLength": (0,),
    "minProperties": (0,), "required": ([],), "patternProperties": ({},), "dependentRequired": ({},),
    "dependentSchemas": ({},), "dependencies": ({},),
}  # fmt: skip
_NEEDS = {"minContains": "contains", "maxContains": "contains", "then": "if", "else": "if"}


_PATTERN = 1 << 16  # characters; of a million the parser takes a second for a mask


def has_no_effect(key: str, value: Json, own: Mapping[str, Json]) -> bool:
    """Whether a keyword with such a value, beside the others, holds of every value."""
    if key in _NEEDS and _NEEDS[key] not in own:
        return True
    if key == "if" and not {"then", "else"} & {*own}:
        return True
    if key == "unevaluatedItems" and "items" in own:
        return True
    return any(value == each and type(value) is type(each) for each in _TRIVIAL.get(key, ()))


def check_keywords(own: dict[str, Json], path: str, ignore: Callable[[str, str], None]) -> None:
    """Refuse what is malformed in keywords, or what nobody enforces; take out what is no keyword.

    Raises:
        LegalizeError: SGLC455, SGLC456; as `rust_pattern`.
    """
    if own.get("unevaluatedItems") is False and not {"$ref", "allOf", "anyOf", "oneOf", "contains"} & {*own}:
        del own["unevaluatedItems"]
        own["items"] = False
    for key in own:
        if key in REFUSED:
            raise refused(f"{path}/{key}", f"`{key}`")
    if own.get("unevaluatedProperties", False) is not False:
        raise refused(f"{path}/unevaluatedProperties", "a schema for `unevaluatedProperties`")
    types_of(own, path)
    for low, high in _COUNTS:
        _check_bounds(own, low, high, path)
    _check_string(own, path, ignore)
    _check_number(own, path)
    for key in ("properties", "patternProperties", *_DEPENDENT):
        if not isinstance(own.get(key, {}), dict):
            raise malformed(f"{path}/{key}", f"`{key}` is an object of schemas")
    for name in own.get("patternProperties", {}):
        _check_pattern(name, f"{path}/patternProperties/{escaped(name)}")
    for name in own.get("properties", {}):
        check_value(name, f"{path}/properties/{escaped(name)}")
    required = own.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise malformed(f"{path}/required", "`required` is a list of names")
    check_value(required, f"{path}/required")
    if "enum" in own and (not isinstance(own["enum"], list) or not own["enum"]):
        raise malformed(f"{path}/enum", "`enum` is a list of values that is not empty")
    check_value([own.get("enum"), own.get("const")], path)


def _check_string(own: dict[str, Json], path: str, ignore: Callable[[str, str], None]) -> None:
    if "pattern" in own:
        if not isinstance(own["pattern"], str):
            raise malformed(f"{path}/pattern", "`pattern` is a text")
        _check_pattern(own["pattern"], f"{path}/pattern")
    if not isinstance(own.get("format", ""), str):
        raise malformed(f"{path}/format", "`format` is a text")
    if "format" in own and own["format"] not in FORMATS:
        if own["format"] in _REFUSED_FORMATS:
            raise refused(
                f"{path}/format", f"the format `{own['format']}`", hint=f"known: {', '.join(sorted(FORMATS))}"
            )
        ignore(f"{path}/format", f"`format` of `{own.pop('format')}`, which is not known,")


def _check_pattern(pattern: str, path: str) -> None:
    if len(pattern) > _PATTERN:
        raise refused(path, f"a pattern of {len(pattern):,} characters")
    try:
        rust_pattern(pattern)
    except LegalizeError as error:
        raise LegalizeError(
            error.code, shown(error.message), note=f"at `{shown(path)}`; {shown(error.note)}", hint=error.hint
        ) from None


def _check_number(own: dict[str, Json], path: str) -> None:
    for key in KEYWORDS["number"]:
        value = own.get(key, 1)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise malformed(f"{path}/{key}", f"`{key}` is a number")
        if not -_LARGEST <= value <= _LARGEST:
            raise refused(f"{path}/{key}", f"`{key}` of `{value}`")
        if key == "multipleOf":
            if value <= 0:
                raise malformed(f"{path}/{key}", "`multipleOf` is larger than 0")
            _, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
            if int("".join(map(str, digits))) * 10 ** max(int(exponent), 0) > _MOST_REMAINDERS:
                raise refused(f"{path}/{key}", f"`multipleOf` of `{value}`, which takes too long to tell,")
    low = max((own[key] for key in ("minimum", "exclusiveMinimum") if key in own), default=-_LARGEST)
    high = min((own[key] for key in ("maximum", "exclusiveMaximum") if key in own), default=_LARGEST)
    if low > high:
        raise malformed(path, "no number is within the bounds")


def _check_bounds(own: dict[str, Json], low: str, high: str, path: str) -> None:
    """Refuse bounds that are no counts, or leave nothing."""
    for key in (low, high):
        value = own.get(key, 0)
        if isinstance(value, float) and value.is_integer():
            value = own[key] = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise malformed(f"{path}/{key}", f"`{key}` is a count")
    if high in own and own.get(low, 0) > own[high]:
        raise malformed(f"{path}/{low}", f"`{low}` is larger than `{high}`")


def check_value(value: Json, path: str) -> None:
    """Refuse what cannot be written as it is: numbers that are rounded, characters that have to be escaped."""
    stack = [value]
    while stack:
        match stack.pop():
            case str(text):
                if bad := next((char for char in text if not _is_writable(char)), ""):
                    raise refused(path, f"a value with the character {bad!a}")
            case bool() | None:
                pass
            case int() | float() as number:
                if not math.isfinite(number) or abs(number) > _LARGEST:
                    raise refused(path, f"the value `{number}`")
            case list(parts):
                stack += parts
            case dict(parts):
                stack += [*parts, *parts.values()]


def _is_writable(char: str) -> bool:
    return char in "\n\r\t\b\f" or (char >= " " and char != "\x7f" and not "\ud800" <= char <= "\udfff")


def types_of(schema: Mapping[str, Json], path: str) -> list[str]:
    """The types that a schema names, each once; none if it names none. Raises LegalizeError: SGLC455."""
    if "type" not in schema:
        return []
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if not types or not all(isinstance(kind, str) and kind in KEYWORDS for kind in types):
        raise malformed(f"{path}/type", f"`type` is one of {', '.join(KEYWORDS)}, or a list of them")
    return list(dict.fromkeys(types))


def kind_of(value: Json) -> str:
    """The kind of a value, one of `KINDS`."""
    match value:
        case bool():
            return "boolean"
        case str():
            return "string"
        case int() | float():
            return "number"
        case list():
            return "array"
        case None:
            return "null"
        case _:
            return "object"


def kinds_of(types: Json) -> set[str]:
    """The kinds of values that `type` speaks of, as far as it is well formed."""
    named = [types] if isinstance(types, str) else types
    return {"number" if kind == "integer" else kind for kind in named if isinstance(kind, str)}


def escaped(name: str) -> str:
    """A name as a step of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def malformed(path: str, what: str) -> LegalizeError:
    """What stands at `path` is no schema (SGLC455)."""
    return LegalizeError(
        "SGLC455",
        "`json_schema` is no schema",
        note=f"at `{shown(path)}`: {shown(what)}",
        hint="mend the schema",
    )


def refused(
    path: str, what: str, *, hint: str = "leave it out, and check the value in the program"
) -> LegalizeError:
    """What stands at `path` is a schema, but cannot be enforced (SGLC456)."""
    what = shown(what)
    return LegalizeError(
        "SGLC456", f"`json_schema` has {what} which cannot be enforced" if what.endswith(",") else
        f"`json_schema` has {what}, which cannot be enforced", note=f"at `{shown(path)}`", hint=hint,
    )  # fmt: skip
