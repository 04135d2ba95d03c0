"""Keywords that nobody enforces as they are, said in others: `uniqueItems`, `contains`, `propertyNames`.

{"propertyNames": {"pattern": "^a"}}  ->  {"patternProperties": {"^a": true}, "additionalProperties": false}
{"items": {"enum": [1, 2]}, "uniqueItems": true}  ->  {"enum": [[], [1], [2], [1, 2], [2, 1]]}
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, combinations, permutations

from sglc.ir.grammar.schema_leaves import (
    ANNOTATIONS,
    KEYWORDS,
    KINDS,
    Json,
    kind_of,
    kinds_of,
    malformed,
    refused,
)

_MOST_LISTS = 1024  # of a `uniqueItems`
_MOST_PLACES = 8  # where the first item that a `contains` asks for may stand

Followed = Callable[[Json], Json]  # what a schema that is a reference leads to


def rewrite(own: dict[str, Json], path: str, followed: Followed, *, exact: bool, alone: bool) -> Iterator[Json]:
    """Take these keywords out of `own`; gives what has to hold beside it.

    With `exact` that is no less. `alone`: nothing else holds of the value, so keywords tell of its type.

    Raises:
        LegalizeError: SGLC455, SGLC456.
    """
    alone = alone and not exact
    if "uniqueItems" in own:
        if own["uniqueItems"] is not True:
            raise malformed(f"{path}/uniqueItems", "`uniqueItems` is true or false")
        yield from _unique(own, path, followed, exact=exact, alone=alone)
    if "contains" in own:
        yield from _containing(own, path, exact=exact, alone=alone)
    if "propertyNames" in own:
        yield from _named(own, path, followed)


def _unique(own: dict[str, Json], path: str, followed: Followed, *, exact: bool, alone: bool) -> Iterator[Json]:
    del own["uniqueItems"]
    if own.get("maxItems", 2) <= 1 or not _may_be(own, "array"):
        return
    values = None if "prefixItems" in own else _values(followed(own.get("items", True)), followed)
    least, most = own.get("minItems", 0), own.get("maxItems", math.inf)
    if values is None or {"const", "enum", "contains"} & {*own}:
        raise refused(f"{path}/uniqueItems", "`uniqueItems` of items that are not few")
    sizes = range(least, int(min(most, len(values))) + 1)
    if not sizes:
        raise malformed(f"{path}/minItems", "there are not so many different items")
    if sum(math.perm(len(values), size) for size in sizes) <= _MOST_LISTS:
        lists = chain.from_iterable(permutations(values, size) for size in sizes)
    elif not exact and sum(math.comb(len(values), size) for size in sizes) <= _MOST_LISTS:
        lists = chain.from_iterable(combinations(values, size) for size in sizes)  # in the schema's order
    else:
        raise refused(f"{path}/uniqueItems", "`uniqueItems` of items that are not few")
    for key in ("items", "minItems", "maxItems"):
        own.pop(key, None)
    yield {"anyOf": [{"enum": [list(each) for each in lists]}, *_others(own, alone=alone)]}


def _values(schema: Json, followed: Followed) -> list[Json] | None:
    """The values that a schema holds of, each once; None if these are not listed."""
    if not isinstance(schema, dict):
        return None
    own = {key: value for key, value in schema.items() if key not in ANNOTATIONS}
    kinds = kinds_of(own.pop("type")) if isinstance(own.get("type"), str | list) else {*KINDS}
    match own:
        case {"const": value, **rest} if not rest:
            found = [value]
        case {"enum": list(values), **rest} if not rest:
            found = values
        case {"anyOf": list(parts), **rest} if not rest:
            several = [_values(followed(part), followed) for part in parts]
            if any(each is None for each in several):
                return None
            found = [value for each in several for value in each or ()]
        case {} if not own and kinds <= {"boolean", "null"}:
            found = [False, True] * ("boolean" in kinds) + [None] * ("null" in kinds)
        case _:
            return None
    if any(isinstance(value, float | dict | list) for value in found):  # 1 and 1.0 are the same
        return None
    return list({json.dumps(value): value for value in found if kind_of(value) in kinds}.values())


def _containing(own: dict[str, Json], path: str, *, exact: bool, alone: bool) -> Iterator[Json]:
    """An item that is asked for stands at one of the first places."""
    wanted, least = own.pop("contains"), own.pop("minContains", 1)
    if not isinstance(wanted, dict | bool):
        raise malformed(f"{path}/contains", "`contains` is a schema")
    if least == 0 and "maxContains" not in own:
        return
    if not _may_be(own, "array"):
        own.pop("maxContains", None)
        return
    if exact or least != 1 or {"maxContains", "prefixItems", "unevaluatedItems"} & {*own}:
        raise refused(f"{path}/contains", "`contains` beside other keywords of items, or counted,")
    places = int(min(own.get("maxItems", math.inf), _MOST_PLACES))
    if not places:
        raise malformed(f"{path}/contains", "no item may be there")
    lists = [
        {"type": "array", "prefixItems": [*[True] * place, wanted], "items": True, "minItems": place + 1}
        for place in range(places)
    ]
    yield {"anyOf": [*lists, *_others(own, alone=alone)]}


def _named(own: dict[str, Json], path: str, followed: Followed) -> Iterator[Json]:
    schema = own.pop("propertyNames")
    if not isinstance(schema, dict | bool):
        raise malformed(f"{path}/propertyNames", "`propertyNames` is a schema")
    if not _may_be(own, "object"):
        return
    pattern = _name_pattern(followed(schema))
    if pattern is None:
        raise refused(f"{path}/propertyNames", "`propertyNames` of more than one pattern, list or length")
    yield {"patternProperties": {pattern: True}, "additionalProperties": False}


def _name_pattern(schema: Json) -> str | None:
    """A pattern of the names that `schema` holds of; None if none is known."""
    if isinstance(schema, bool):
        return r"[\s\S]*" if schema else r"[^\s\S]"
    own = {key: value for key, value in schema.items() if key not in ANNOTATIONS}
    if "string" in kinds_of(own.get("type", "string")):
        own.pop("type", None)
    match own:
        case {"pattern": str(pattern), **rest} if not rest:
            return pattern
        case {"enum": list(names), **rest} if not rest:
            return f"^(?:{'|'.join(_quoted([name for name in names if isinstance(name, str)]))})$"
        case {"const": str(name), **rest} if not rest:
            return f"^(?:{''.join(_quoted([name]))})$"
        case {**rest} if {*rest} <= {"minLength", "maxLength"} and _are_counts(rest.values()):
            return rf"^[\s\S]{{{rest.get('minLength', 0)},{rest.get('maxLength', '')}}}$"
        case _:
            return None


def _are_counts(values: Iterable[Json]) -> bool:
    return all(isinstance(value, int) and not isinstance(value, bool) and value >= 0 for value in values)


def _quoted(names: Sequence[str]) -> list[str]:
    return [re.sub(r"\W", lambda found: f"\\u{{{ord(found[0]):x}}}", name, flags=re.ASCII) for name in names]


def _may_be(own: dict[str, Json], kind: str) -> bool:
    """Whether a value may be of a kind, as far as `type` says."""
    return "type" not in own or kind in kinds_of(own["type"])


def _others(own: dict[str, Json], *, alone: bool) -> list[Json]:
    """Values of other types than lists, if they may be there; not where keywords of lists alone tell."""
    if "type" not in own and alone and {*own} <= {*KEYWORDS["array"]}:
        return []
    kinds = kinds_of(own.get("type", [*KINDS])) - {"array"}
    return [{"type": [kind for kind in KINDS if kind in kinds]}] if kinds else []
