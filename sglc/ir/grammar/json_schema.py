"""JSON schemas that a generation can be held to: everything that a schema asks for, or a refusal.

A keyword is taken only where it can be enforced while text is made. What is generated is a document
of the schema, though not every document of it can be: objects have their properties in the schema's order
and no others unless `additionalProperties` allows them, patterns match whole strings, and a schema
without a `type` is read as one of the type that its keywords speak of.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from sglc.errors import LegalizeError
from sglc.ir.grammar.schema_leaves import (
    KEYWORDS,
    Json,
    check_bounds,
    check_pattern,
    disjoint,
    escaped,
    fits,
    listed_values,
    malformed,
    refused,
    types_of,
)

# Say nothing about documents.
_ANNOTATIONS = frozenset(
    {
        "$comment", "$defs", "$schema", "contentEncoding", "contentMediaType", "default", "definitions",
        "deprecated", "description", "discriminator", "example", "examples", "readOnly", "title", "writeOnly",
    }
)  # fmt: skip
# Keywords that say all there is to say: beside them only annotations, and for values a `type`, may stand.
_WHOLE = ("$ref", "enum", "const", "anyOf", "oneOf", "allOf")
_FORMATS = frozenset(
    {
        "date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "json-pointer",
        "relative-json-pointer", "time", "uri", "uri-reference", "uri-template", "uuid",
    }
)  # fmt: skip
_LARGEST = 2**63 - 1
_DEEPEST = 100  # nested schemas


@lru_cache(maxsize=128)
def enforceable(text: str) -> str:
    """The schema `text` in a form whose every keyword is enforced. The newest are kept.

    Raises:
        LegalizeError: SGLC455 no JSON, or no schema; SGLC456 a keyword that cannot be enforced there.
    """
    try:
        schema = json.loads(text, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}: {error.msg}"
        raise LegalizeError("SGLC455", "`json_schema` is no JSON", note=where, hint="mend the schema") from None
    except RecursionError:
        raise _too_deep() from None
    checker = _Checker(schema)
    made = checker.schema(schema, "#", 0)
    definitions: dict[str, Json] = {}
    while len(definitions) < len(checker.names):  # one may refer to more
        target, name = list(checker.names.items())[len(definitions)]
        definitions[name] = checker.schema(checker.resolve(target, target), target, 0)
    if definitions:
        # A reference beside `$defs` would lose its siblings, so the root is one choice of one.
        made = {"$defs": definitions, "anyOf": [made]}
    return json.dumps(made, ensure_ascii=False)


@dataclass(slots=True)
class _Checker:
    """One schema's check. `names` are what its referenced parts are called in the enforced form."""

    root: Json
    names: dict[str, str] = field(default_factory=dict)

    def schema(self, schema: Json, path: str, depth: int) -> Json:
        """`schema`, found at `path`, in its enforced form."""
        if depth > _DEEPEST:
            raise _too_deep()
        if schema is True:
            return True
        if schema is False:
            raise refused(path, "`false`, which no value satisfies")
        if not isinstance(schema, dict):
            raise malformed(path, f"a schema is an object, not `{json.dumps(schema)[:40]}`")
        asserting = {key: value for key, value in schema.items() if key not in _ANNOTATIONS}
        if path == "#":
            asserting.pop("$id", None)
        known = {*_WHOLE, "type", *(key for keys in KEYWORDS.values() for key in keys)}
        for key in asserting:
            if key not in known:
                raise refused(f"{path}/{escaped(key)}", f"`{key}`")
        for key in _WHOLE:
            if key in asserting:
                return self._whole(key, asserting, path, depth)
        return self._typed(asserting, path, depth)

    def _whole(self, key: str, asserting: Mapping[str, Json], path: str, depth: int) -> Json:
        value, at = asserting[key], f"{path}/{key}"
        if key in ("enum", "const"):
            values = value if key == "enum" else [value]
            if not isinstance(values, list) or not values:
                raise malformed(at, "`enum` is a list of values that is not empty")
            types = types_of(asserting, path)
            values = [v for v in values if not types or any(fits(v, kind) for kind in types)]
            if not values:
                raise refused(at, f"`{key}` with no value of its `type`,")
            self._alone({*asserting} - {key, "type"}, key, path)
            return {"enum": values}
        self._alone({*asserting} - {key}, key, path)
        if key == "$ref":
            return self._reference(value, at)
        if not isinstance(value, list) or not value:
            raise malformed(at, f"`{key}` is a list of schemas that is not empty")
        parts = [self.schema(part, f"{at}/{i}", depth + 1) for i, part in enumerate(value)]
        if len(parts) == 1:
            return parts[0]
        if key == "allOf":
            raise refused(at, "`allOf` with several schemas")
        if key == "oneOf" and not self._apart(value, at):
            raise refused(
                at, "`oneOf`, unless a type or a required constant tells its schemas apart,",
                hint="say `anyOf` if more than one may hold",
            )  # fmt: skip
        return {"anyOf": parts}

    def _alone(self, others: Iterable[str], key: str, path: str) -> None:
        for other in sorted(others):
            raise refused(f"{path}/{other}", f"`{other}` beside `{key}`")

    def _reference(self, target: Json, at: str) -> Json:
        if not isinstance(target, str):
            raise malformed(at, "`$ref` is a text")
        seen = [target]
        while True:
            found = self.resolve(seen[-1], at)
            if not (isinstance(found, dict) and isinstance(found.get("$ref"), str)):
                break
            if found["$ref"] in seen:
                raise malformed(at, "a reference that leads to itself")
            seen.append(found["$ref"])
        name = self.names.setdefault(target, f"d{len(self.names)}")
        return {"$ref": f"#/$defs/{name}"}

    def resolve(self, target: str, at: str) -> Json:
        """The part of the schema that a reference means."""
        if target != "#" and not target.startswith("#/"):
            raise refused(at, f"`$ref` to `{target}`, which is not inside the schema,")
        found = self.root
        for step in target.split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            try:
                found = found[int(name)] if isinstance(found, list) else found[name]
            except (KeyError, IndexError, ValueError, TypeError):
                raise malformed(at, f"`{target}` is not there") from None
        return found

    def _apart(self, parts: list[Json], at: str) -> bool:
        """Whether no document can be of two of `parts`, as far as is easily seen."""
        found = []
        for part in parts:
            while isinstance(part, dict) and isinstance(part.get("$ref"), str):
                part = self.resolve(part["$ref"], at)
            if not isinstance(part, dict):
                return False
            found.append(part)
        types = [{"number" if t == "integer" else t for t in types_of(part, at)} for part in found]
        if all(types) and len(set().union(*types)) == sum(map(len, types)):
            return True
        values = [listed_values(part) for part in found]
        if all(values) and disjoint(values):
            return True
        if any(kinds != {"object"} for kinds in types):
            return False
        names = set.intersection(*(set(part.get("required") or []) for part in found))
        return any(
            all(tags) and disjoint(tags)
            for tags in (
                [listed_values(part.get("properties", {}).get(name)) for part in found]
                for name in sorted(names)
            )
        )

    def _typed(self, asserting: Mapping[str, Json], path: str, depth: int) -> Json:
        keys = [key for key in asserting if key != "type"]
        types = types_of(asserting, path)
        if "number" in types and "integer" in types:
            types.remove("integer")
        if not types and keys:
            # `number` is the wider reading of bounds alone.
            types = [kind for kind in ("string", "number", "array", "object") if {*keys} <= {*KEYWORDS[kind]}][
                :1
            ]
        for key in keys:
            if not any(key in KEYWORDS[kind] for kind in types):
                wanted = next(kind for kind, own in KEYWORDS.items() if key in own)
                raise refused(
                    f"{path}/{key}", f"`{key}` without a `type` that it is for",
                    hint=f'say `"type": "{wanted}"` beside it',
                )  # fmt: skip
        if not types:
            return True
        made = []
        for kind in types:
            own = {key: asserting[key] for key in keys if key in KEYWORDS[kind]}
            made.append({"type": kind, **self._parts(kind, own, path, depth)})
        return made[0] if len(made) == 1 else {"anyOf": made}

    def _parts(self, kind: str, own: Mapping[str, Json], path: str, depth: int) -> dict[str, Json]:
        match kind:
            case "string":
                return self._string(own, path)
            case "integer" | "number":
                return self._number(kind, own, path)
            case "array":
                return self._array(own, path, depth)
            case "object":
                return self._object(own, path, depth)
            case _:
                return {}

    def _string(self, own: Mapping[str, Json], path: str) -> dict[str, Json]:
        check_bounds(own, "minLength", "maxLength", path)
        if len({"pattern", "format"} & {*own}) + bool({"minLength", "maxLength"} & {*own}) > 1:
            raise refused(path, f"{' and '.join(f'`{key}`' for key in own)} together")
        if "format" in own and own["format"] not in _FORMATS:
            raise refused(
                f"{path}/format", f"the format `{own['format']}`", hint=f"known: {', '.join(sorted(_FORMATS))}"
            )
        if "pattern" in own:
            check_pattern(own["pattern"], f"{path}/pattern")
        return dict(own)

    def _number(self, kind: str, own: Mapping[str, Json], path: str) -> dict[str, Json]:
        for key, value in own.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise malformed(f"{path}/{key}", f"`{key}` is a number")
            if abs(value) > _LARGEST or (kind == "integer" and value != int(value)):
                raise refused(f"{path}/{key}", f"`{key}` of `{value}`")
        if "multipleOf" in own and (len(own) > 1 or own["multipleOf"] <= 0):
            raise refused(f"{path}/multipleOf", "`multipleOf` with bounds, or of no positive number,")
        low = max((own[key] for key in ("minimum", "exclusiveMinimum") if key in own), default=-_LARGEST)
        high = min((own[key] for key in ("maximum", "exclusiveMaximum") if key in own), default=_LARGEST)
        if low > high:
            raise malformed(path, "no number is within the bounds")
        return {key: int(value) if kind == "integer" else value for key, value in own.items()}

    def _array(self, own: Mapping[str, Json], path: str, depth: int) -> dict[str, Json]:
        made = dict(own)
        if made.pop("unevaluatedItems", False) is not False:
            raise refused(f"{path}/unevaluatedItems", "`unevaluatedItems`")
        check_bounds(own, "minItems", "maxItems", path)
        first = made.get("prefixItems", [])
        if not isinstance(first, list):
            raise malformed(f"{path}/prefixItems", "`prefixItems` is a list of schemas")
        made.pop("prefixItems", None)
        if first:
            made["prefixItems"] = [
                self.schema(part, f"{path}/prefixItems/{i}", depth + 1) for i, part in enumerate(first)
            ]
        if isinstance(made.get("items"), dict):
            made["items"] = self.schema(made["items"], f"{path}/items", depth + 1)
        elif made.get("items", True) is True and not first:
            made["items"] = True
        elif not isinstance(made.get("items", False), bool):
            raise malformed(f"{path}/items", "`items` is a schema")
        more = made.get("items", False) is not False
        if not more and own.get("minItems", 0) > len(first):
            raise refused(f"{path}/minItems", "`minItems` larger than what `prefixItems` and `items` give")
        if own.get("maxItems", len(first)) < len(first):
            raise refused(f"{path}/maxItems", "`maxItems` smaller than the number of `prefixItems`")
        return made

    def _object(self, own: Mapping[str, Json], path: str, depth: int) -> dict[str, Json]:
        made = dict(own)
        if made.pop("unevaluatedProperties", False) is not False:
            raise refused(f"{path}/unevaluatedProperties", "`unevaluatedProperties`")
        check_bounds(own, "minProperties", "maxProperties", path)
        properties = own.get("properties", {})
        if not isinstance(properties, dict):
            raise malformed(f"{path}/properties", "`properties` is an object of schemas")
        if "properties" in own:
            # A property that must not be there is one that is not mentioned.
            made["properties"] = {
                name: self.schema(part, f"{path}/properties/{escaped(name)}", depth + 1)
                for name, part in properties.items()
                if part is not False
            }
        required = own.get("required", [])
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise malformed(f"{path}/required", "`required` is a list of names")
        for name in required:
            if name not in made.get("properties", {}):
                raise refused(
                    f"{path}/required", f"`required` of `{name}`, which `properties` does not allow,",
                    hint="list it in `properties`",
                )  # fmt: skip
        free = own.get("additionalProperties", True)
        if not isinstance(free, bool | dict):
            raise malformed(f"{path}/additionalProperties", "`additionalProperties` is a schema")
        if properties and isinstance(free, dict):
            # A name can be spelled with escapes, and then its value would be held to the wrong schema.
            raise refused(
                f"{path}/additionalProperties", "a schema for `additionalProperties` beside `properties`,"
            )
        if isinstance(free, dict):
            free = self.schema(free, f"{path}/additionalProperties", depth + 1)
        made["additionalProperties"] = free if "properties" not in own else False
        if made["additionalProperties"] is False:
            if own.get("minProperties", 0) > len(made.get("properties", {})):
                raise malformed(f"{path}/minProperties", "more properties than there are")
        elif counted := {"minProperties", "maxProperties"} & {*own}:
            # Names may repeat, and a reader counts them once.
            raise refused(f"{path}/{min(counted)}", f"`{min(counted)}` where names are free")
        return made


def _too_deep() -> LegalizeError:
    return LegalizeError(
        "SGLC456", f"`json_schema` is nested deeper than {_DEEPEST}, which cannot be enforced",
        hint="name the inner schemas in `$defs` and refer to them",
    )  # fmt: skip


def _no_constant(name: str) -> Json:
    raise LegalizeError("SGLC455", f"`json_schema` is no JSON: it has `{name}`", hint="mend the schema")
