"""Schemas of which just one may hold, said so that it is plain: each with what tells it from the others."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sglc.ir.grammar.schema_leaves import KINDS, Json, kinds_of

_MOST_PAIRED = 500  # of which each is compared with each


def told_apart(parts: Sequence[Json]) -> list[Json] | None:
    """What to ask for beside each of `parts`, so that no value is of two of them; None if that is not seen.

    Two are told apart by their types, by the texts that they list, by a required property of which they list
    different texts, or by a property that one requires and that is left out of the other. References are
    followed before; whether what they lead to is well formed is not known yet.
    """
    if _all_differ(parts) or _all_differ_in_a_property(parts):
        return [True] * len(parts)
    if len(parts) > _MOST_PAIRED:
        return None
    absent: list[dict[str, bool]] = [{} for _ in parts]
    for i, one in enumerate(parts):
        for j, other in enumerate(parts[:i]):
            if _are_apart(one, other):
                continue
            for at, left, right in ((i, one, other), (j, other, one)):
                only = _required(right) - _required(left)
                if not only:
                    return None
                if not absent[at].keys() & only:
                    absent[at][min(only)] = False
    return [{"type": "object", "properties": names} if names else True for names in absent]


def _all_differ(parts: Sequence[Json]) -> bool:
    """Whether no two of them list a value in common, however many there are."""
    listed = [_listed(part) for part in parts]
    return all(listed) and sum(map(len, listed)) == len(set[str]().union(*listed))


def _all_differ_in_a_property(parts: Sequence[Json]) -> bool:
    if any(not isinstance(part, dict) or _kinds(part) != {"object"} for part in parts):
        return False
    shared = set.intersection(*map(_required, parts))
    return any(_all_differ([_property(part, name) for part in parts]) for name in shared)


def _are_apart(one: Json, other: Json) -> bool:
    if not isinstance(one, dict) or not isinstance(other, dict):
        return False
    if not _kinds(one) & _kinds(other):
        return True
    if _differ(one, other):
        return True
    if _kinds(one) != {"object"} and _kinds(other) != {"object"}:
        return False
    return any(
        _differ(_property(one, name), _property(other, name)) for name in _required(one) & _required(other)
    )


def _kinds(schema: dict[str, Any]) -> set[str]:
    """Types of values that a schema may hold of."""
    types = schema.get("type")
    return kinds_of(types) if isinstance(types, str | list) else {*KINDS}


def _differ(one: Json, other: Json) -> bool:
    """Whether both list their values, and none in common; numbers are left out: 1 and 1.0 are the same."""
    first, second = _listed(one), _listed(other)
    return bool(first) and bool(second) and not first & second


def _listed(schema: Json) -> set[str]:
    if not isinstance(schema, dict) or not {"const", "enum"} & {*schema}:
        return set()
    values = [schema["const"]] if "const" in schema else schema["enum"]
    if not isinstance(values, list):
        return set()
    texts = [json.dumps(value) if isinstance(value, str | bool | None) else "" for value in values]
    return set() if "" in texts else {*texts}


def _required(schema: Json) -> set[str]:
    names = schema.get("required") if isinstance(schema, dict) else None
    return {name for name in names if isinstance(name, str)} if isinstance(names, list) else set()


def _property(schema: dict[str, Any], name: str) -> Json:
    properties = schema.get("properties")
    return properties.get(name) if isinstance(properties, dict) else None
