"""JSON schemas for llguidance, which refuses what it cannot enforce: `strict=True`."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from sglc.errors import LegalizeError

# As xgrammar writes documents: on one line, so that a model cannot go on with spaces.
_LAYOUT: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ", "lenient": False}


@lru_cache(maxsize=128)
def strict_grammar(text: str) -> str:
    """The schema `text` as a grammar of llguidance. The newest are kept.

    Raises:
        LegalizeError: SGLC455 no JSON; SGLC456 llguidance cannot enforce it; SGLC458 it is not installed.
    """
    try:
        schema = json.loads(text)
        ends = has_finite_document(schema)
    except (json.JSONDecodeError, RecursionError) as error:
        raise LegalizeError(
            "SGLC455", "`json_schema` is no JSON", note=f"{error}", hint="mend the schema"
        ) from None
    if not ends:
        raise LegalizeError(
            "SGLC456", "`json_schema` always needs itself again: no finite document satisfies it",
            hint="give it a way to end",
        )  # fmt: skip
    try:
        from llguidance import LLMatcher
    except ImportError:
        raise LegalizeError(
            "SGLC458", "a `strict` JSON schema needs the package `llguidance`",
            hint="pip install 'sglc[strict]', or leave `strict` out",
        ) from None  # fmt: skip
    try:
        grammar = LLMatcher.grammar_from_json_schema(text, overrides=_LAYOUT)
        problem = LLMatcher.validate_grammar(grammar)
    except ValueError as error:  # its parser takes 128 levels
        problem = str(error)
    if problem:
        raise LegalizeError(
            "SGLC456", "`json_schema` has what llguidance cannot enforce", note=problem.splitlines()[0],
            hint="leave it out, and check the value in the program",
        )  # fmt: skip
    return str(grammar)


def has_finite_document(schema: Any) -> bool:
    """Whether what a schema requires comes to an end, as far as references go; values are not looked at."""
    ends = {"#": False}  # by reference
    while True:
        before = dict(ends)
        for target in before:
            ends[target] = ends[target] or _ends(_resolved(schema, target), ends)
        if ends["#"] or ends == before:
            return ends["#"]


def _ends(schema: Any, ends: dict[str, bool]) -> bool:
    """Whether `schema` has a finite document, given what `ends`; the references that it has join them."""
    if not isinstance(schema, dict):
        return True
    demands = [
        combine([_ends(part, ends) for part in schema[key]])
        for key, combine in (("anyOf", any), ("oneOf", any), ("allOf", all))
        if isinstance(schema.get(key), list)
    ]
    if isinstance(target := schema.get("$ref"), str):
        demands.append(ends.setdefault(target, False))
    kinds = schema.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if kinds and all(kind in ("object", "array") for kind in kinds):
        needed = {"object": _required_properties, "array": _required_items}
        parts = [[_ends(part, ends) for part in needed[kind](schema)] for kind in kinds]
        demands.append(any(map(all, parts)))
    return all(demands)


def _required_properties(schema: dict[str, Any]) -> list[Any]:
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict) or not isinstance(required, list):
        return []
    return [properties[name] for name in required if isinstance(name, str) and name in properties]


def _required_items(schema: dict[str, Any]) -> list[Any]:
    least, first = schema.get("minItems", 0), schema.get("prefixItems", [])
    if not isinstance(least, int) or not isinstance(first, list):
        return []
    return first[:least] + [schema.get("items")] * (least > len(first))


def _resolved(schema: Any, target: str) -> Any:
    """What a reference means; True where that is not for us to say."""
    found = schema
    for step in target.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        match found:
            case dict() if name in found:
                found = found[name]
            case list() if name.isdecimal() and int(name) < len(found):
                found = found[int(name)]
            case _:
                return True
    return found if target == "#" or target.startswith("#/") else True
