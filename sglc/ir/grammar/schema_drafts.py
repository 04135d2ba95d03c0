"""Drafts of JSON Schema: what an older one does not know has no effect there.

{"$schema": ".../draft-04/schema#", "const": 1, "type": "string"}  ->  {"type": "string"}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sglc.ir.grammar.schema_leaves import ANNOTATIONS, Json, escaped, refused

# Drafts by what stands in `$schema`, and as they follow each other; without one a schema is of the newest.
_NAMED = {"draft-04": 4, "draft-05": 4, "draft-06": 6, "draft-07": 7, "2019-09": 2019, "2020-12": 2020}
_OLDEST = ("draft-00", "draft-01", "draft-02", "draft-03")
NEWEST = 2020
_SINCE = {
    **dict.fromkeys(("const", "contains", "propertyNames"), 6),
    **dict.fromkeys(("if", "then", "else"), 7),
    **dict.fromkeys(
        (
            "dependentRequired", "dependentSchemas", "maxContains", "minContains", "unevaluatedItems",
            "unevaluatedProperties", "$recursiveRef",
        ),
        2019,
    ),
    **dict.fromkeys(("prefixItems", "$dynamicRef"), NEWEST),
}  # fmt: skip
_ONLY_REFERENCE = 7  # up to here `$ref` stands alone, whatever is beside it
_NAMED_SCHEMAS = ("properties", "patternProperties", "dependentSchemas", "dependencies")
_SCHEMAS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_SCHEMA = (
    "items", "additionalItems", "additionalProperties", "unevaluatedItems", "unevaluatedProperties", "not",
    "if", "then", "else", "contains", "propertyNames",
)  # fmt: skip

Ignore = Callable[[str, str], None]  # of a place, and what is there


def draft_of(schema: Json) -> int:
    """The draft that a schema says it is of.

    Raises:
        LegalizeError: SGLC456, one whose keywords mean something else.
    """
    named = str(schema.get("$schema", "")) if isinstance(schema, dict) else ""
    if any(draft in named for draft in _OLDEST):
        raise refused(
            "#/$schema", f"the dialect `{named}`,", hint="write it in a newer draft: from draft-04 on"
        )
    return next((draft for name, draft in _NAMED.items() if name in named), NEWEST)


def identifier_in(draft: int) -> str:
    """The keyword that names a part of a schema."""
    return "id" if draft <= 4 else "$id"


def stands_alone(schema: Mapping[str, Json], draft: int) -> bool:
    """Whether a schema is nothing but a reference, whatever is beside it."""
    return "$ref" in schema and draft <= _ONLY_REFERENCE


def in_draft(schema: Json, draft: int, path: str, ignore: Ignore) -> Json:
    """`schema`, which stands at `path`, without what the draft does not know, inside too."""
    if not isinstance(schema, dict) or draft == NEWEST:
        return schema
    made: dict[str, Any] = {}
    alone = stands_alone(schema, draft)
    for key, value in schema.items():
        at = f"{path}/{escaped(key)}"
        if alone and key != "$ref":
            if key not in ANNOTATIONS:
                ignore(at, f"`{key}` beside `$ref`, in this draft,")
        elif _SINCE.get(key, 0) > draft:
            ignore(at, f"`{key}`, which this draft does not know,")
        elif key in _NAMED_SCHEMAS and isinstance(value, dict):
            made[key] = {
                name: in_draft(part, draft, f"{at}/{escaped(name)}", ignore) for name, part in value.items()
            }
        elif key in _SCHEMAS and isinstance(value, list):
            made[key] = [in_draft(part, draft, f"{at}/{i}", ignore) for i, part in enumerate(value)]
        elif key in _SCHEMA:
            made[key] = in_draft(value, draft, at, ignore)
        else:
            made[key] = value
    return made
