"""JSON schemas as grammars of llguidance, with strings as exact regular expressions."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Set
from importlib.util import find_spec
from typing import Any

from sglc.errors import LegalizeError
from sglc.ir.grammar.json_schema import Enforced, enforced
from sglc.ir.grammar.schema_leaves import refused
from sglc.ir.grammar.schema_pattern import rust_pattern
from sglc.ir.remembered import remembered

# On one line, so that a model cannot go on with spaces. Without `\\u` a text is spelled in one way, so that a
# name that is listed cannot come again in disguise.
_LAYOUT: Any = {
    "whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ", "lenient": False,
    "json_allowed_escapes": 'nrbtf\\"',
}  # fmt: skip
# What is forced is found by others: here any token that spells it is allowed.
HEADER = '%llguidance {"no_forcing": true}'
_TRIED = 500_000  # characters of schemas that are looked at for the one that is at fault

_PLACES = ("properties", "patternProperties", "$defs")
_SEVERAL = ("allOf", "anyOf", "oneOf", "prefixItems")
_SINGLE = ("items", "additionalProperties")

# Narrower than RFC 3339: no leap seconds, which are at few minutes, and no year 0; capital letters.
_DATE = (
    r"(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|"
    r"02-(?:0[1-9]|1[0-9]|2[0-8]))|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
)
_YEAR = r"^(?:[1-9]|0[1-9]|00[1-9]|000[1-9])"
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_CHAR = r"[A-Za-z0-9\-._~!$&'()*+,;=:@]|%[0-9A-Fa-f]{2}"
_VARIABLES = (
    r"[+#./;?&]?(?:[A-Za-z0-9_]|%[0-9A-Fa-f]{2})(?:\.?(?:[A-Za-z0-9_]|%[0-9A-Fa-f]{2}))*(?::[1-9][0-9]{0,3}|\*)?"
    r"(?:,(?:[A-Za-z0-9_]|%[0-9A-Fa-f]{2})(?:\.?(?:[A-Za-z0-9_]|%[0-9A-Fa-f]{2}))*(?::[1-9][0-9]{0,3}|\*)?)*"
)
_RELATIVE = (
    rf"^(?:/|(?:/?(?:{_CHAR})+)*/?)(?:\?(?:{_CHAR}|[/?])*)?(?:#(?:{_CHAR}|[/?])*)?$",
    r"^[^:]*(?:[/?#]|$)",  # what begins like a scheme is one
)
# Formats that llguidance does not know, or knows inexactly.
_FORMATS = {
    "date": (f"^{_DATE}$", _YEAR),
    "date-time": (f"^{_DATE}T{_TIME}$", _YEAR),
    "time": (f"^{_TIME}$",),
    "json-pointer": (r"^(?:/(?:[^~/]|~[01])*)*$",),
    "relative-json-pointer": (r"^(?:0|[1-9][0-9]*)(?:#|(?:/(?:[^~/]|~[01])*)*)$",),
    "uri-template": (rf"^(?:[!#$&(-;=?-\[\]_a-z~]|%[0-9A-Fa-f]{{2}}|\{{{_VARIABLES}\}})*$",),
}  # fmt: skip


def json_grammar(text: str) -> str:
    """The schema `text` as a grammar of llguidance.

    Raises:
        LegalizeError: as `enforced`; SGLC456 llguidance cannot enforce it; SGLC458 it is not installed.
    """
    return _grammar(exact_schema(text))


@remembered(128)
def exact_schema(text: str) -> str:
    """What stands behind `%json` in a grammar of llguidance for the schema `text`. The newest are kept.

    Raises:
        LegalizeError: as `json_grammar`.
    """
    schema = enforced(text)
    endless = _endless(schema.form)
    if endless is not None:
        raise refused(
            schema.places.get(id(endless), "#"), "a part that always needs itself again,",
            hint="give it a way to end",
        )  # fmt: skip
    exact = _written(schema.form)
    if problem := problem_of(_grammar(exact)):
        path, said = _fault(schema, problem)
        raise _refused(path, said)
    return exact


def _refused(path: str, said: str) -> LegalizeError:
    """What llguidance says of a part, in words of schemas."""
    if "coerce_one_of" in said:  # an option that it has
        return refused(
            path, "a `oneOf` of which one value may keep to several parts",
            hint="make it an `anyOf`, or tell its parts apart: by their types, or a property that is a `const`",
        )  # fmt: skip
    if re.search(r"minimum \(.*\) is greater than maximum", said):  # as they are written, they are in order
        return refused(
            path, "bounds that leave no number, of which the exclusive ones count as a millionth further in,",
            hint="set them further apart, or make them inclusive",
        )  # fmt: skip
    return refused(path, f"what no text satisfies, or no automaton can do ({said}),")


def check_schema(text: str) -> None:
    """Refuse a schema that cannot be enforced, as far as can be told with what is installed.

    Raises:
        LegalizeError: as `json_grammar`.
    """
    if find_spec("llguidance") is None:
        enforced(text)
    else:
        json_grammar(text)


def _written(form: Any) -> str:
    return json.dumps({"x-guidance": _LAYOUT, **_exact(form)})


def _grammar(exact: str) -> str:
    return f"{HEADER}\nstart: %json {exact}"


def problem_of(grammar: str) -> str:
    """What is wrong with a grammar, on one line."""
    try:
        from llguidance import LLMatcher
    except ImportError as error:
        raise LegalizeError(
            "SGLC458", "JSON schemas need the package `llguidance`", note=f"{error}",
            hint="pip install 'sglc[local]'",
        ) from None  # fmt: skip
    said: str = LLMatcher.validate_grammar(grammar)
    return re.sub(r"^at \d+\(\d+\): ", "", said).partition("\n")[0]


def _exact(form: Any) -> Any:
    """A schema with its patterns and formats in llguidance's syntax."""
    if not isinstance(form, dict):
        return form
    made: dict[str, Any] = {}
    also: list[Any] = []
    for key, value in form.items():
        if key == "pattern":
            made[key] = rust_pattern(value)
        elif key == "format" and value in _FORMATS:
            also += _all(_FORMATS[value])
        elif key == "format" and value == "uri-reference":
            also.append({"anyOf": [{"format": "uri"}, {"allOf": _all(_RELATIVE)}]})
        elif key == "exclusiveMinimum":
            least = _above(value)
            made["minimum"] = max(least, form.get("minimum", least))
        elif key == "exclusiveMaximum":
            most = -_above(-value)
            made["maximum"] = min(most, form.get("maximum", most))
        elif key == "patternProperties":
            patterns: dict[str, list[Any]] = {}
            for name, part in value.items():  # two may be spelled differently, and mean the same
                patterns.setdefault(rust_pattern(name), []).append(_exact(part))
            made[key] = {name: {"allOf": parts} for name, parts in patterns.items()}
        elif key in _PLACES:
            made[key] = {name: _exact(part) for name, part in value.items()}
        elif key in _SEVERAL:
            made[key] = [_exact(part) for part in value]
        elif key in _SINGLE:
            made[key] = _exact(value)
        elif key not in made:
            made[key] = value
    if also:
        made["allOf"] = [*made.get("allOf", []), *also]
    return made


def _above(bound: float) -> float:
    """A little more than `bound`: llguidance takes 3 for larger than 3 beside 3.5, and -0 for less than 0."""
    more = round(bound + 1e-6, 6)
    return more if more > bound else math.nextafter(bound, math.inf)


def _all(patterns: Iterable[str]) -> list[Any]:
    return [{"pattern": pattern} for pattern in patterns]


def _fault(form: Enforced, problem: str) -> tuple[str, str]:
    """The innermost part of a schema that has a problem, and what it is."""
    definitions, tried, at = form.form.get("$defs", {}), 0, form.form
    parts = [*_parts(at), *definitions.values()]
    while parts and tried < _TRIED:
        part = parts.pop(0)
        grammar = _grammar(_written({"$defs": definitions, **part})) if isinstance(part, dict) else ""
        tried += len(grammar)
        if grammar and problem_of(grammar) == problem:
            at, parts = part, [*_parts(part)]
    return form.places.get(id(at), "#"), problem


def _parts(form: Any) -> Iterator[Any]:
    """The schemas right inside one."""
    for key in _SEVERAL:
        yield from form.get(key, ())
    for key in ("properties", "patternProperties"):
        yield from form.get(key, {}).values()
    for key in _SINGLE:
        if key in form:
            yield form[key]


def _endless(form: Any) -> Any:
    """A part of a schema of which no document is finite, as far as references go; None if there is none."""
    definitions = form.get("$defs", {})
    ends: set[str] = set()
    while True:
        more = {name for name, part in definitions.items() if name not in ends and _ends(part, ends)}
        if not more:
            return next((part for part in (form, *definitions.values()) if not _ends(part, ends)), None)
        ends |= more


def _ends(schema: Any, ends: Set[str]) -> bool:
    """Whether `schema` has a finite document, given which definitions have."""
    if not isinstance(schema, dict):
        return True
    demands = [
        combine([_ends(part, ends) for part in schema[key]])
        for key, combine in (("anyOf", any), ("oneOf", any), ("allOf", all))
        if key in schema
    ]
    if "$ref" in schema:
        demands.append(schema["$ref"].rpartition("/")[2] in ends)
    kinds = schema.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if all(kind in ("object", "array") for kind in kinds):
        needed = {"object": _required_properties, "array": _required_items}
        demands.append(any(all(_ends(part, ends) for part in needed[kind](schema)) for kind in kinds))
    return all(demands)


def _required_properties(schema: dict[str, Any]) -> list[Any]:
    properties = schema.get("properties", {})
    return [properties[name] for name in schema.get("required", ()) if name in properties]


def _required_items(schema: dict[str, Any]) -> list[Any]:
    least, first = schema.get("minItems", 0), schema.get("prefixItems", [])
    return [*first[:least]] + [schema.get("items")] * (least > len(first))
