"""JSON schemas that a generation can be held to: everything that a schema asks for, or a refusal.

What is made of a schema is one of draft 2020-12 that means the same or less, with keywords alone that
`schema_grammar` enforces, and references into `$defs` alone. It is less in that objects have no names that are
not listed unless the schema says which, lists behind `prefixItems` end, and a schema without a `type` is of
the types that its keywords speak of. Whether something is less matters where a schema is negated: nothing is
narrowed inside `oneOf`, unless it is plain that no value is of two of its schemas.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from sglc.errors import LegalizeError, shown
from sglc.ir.grammar.schema_choices import told_apart
from sglc.ir.grammar.schema_leaves import (
    ANNOTATIONS,
    KEYWORDS,
    REFUSED,
    SUPPORTED,
    Json,
    check_keywords,
    escaped,
    has_no_effect,
    malformed,
    refused,
)
from sglc.ir.grammar.schema_negation import negated
from sglc.ir.grammar.schema_references import References
from sglc.ir.grammar.schema_rewrites import rewrite
from sglc.ir.remembered import remembered

_TOGETHER = 16  # nested schemas that are written in one; what is deeper has a name
_MOST_OPTIONAL = 1000  # names that may come next in an object


@dataclass(frozen=True, slots=True)
class Enforced:
    """`form` is what is enforced; `places` says where its parts (by `id`) stand in the schema.

    `ignored` are remarks on what has no effect.
    """

    form: Json
    places: Mapping[int, str]
    ignored: tuple[str, ...]


@remembered(128)
def enforced(text: str) -> Enforced:
    """What of the schema `text` is enforced. The newest are kept.

    Raises:
        LegalizeError: SGLC450, SGLC451 a `pattern`; SGLC455 no JSON, or no schema; SGLC456 a keyword that
            cannot be enforced there.
    """
    try:
        schema = json.loads(text, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}: {error.msg}"
        raise LegalizeError("SGLC455", "`json_schema` is no JSON", note=where, hint="mend the schema") from None
    except ValueError as error:
        raise LegalizeError("SGLC455", "`json_schema` is no JSON", note=f"{error}", hint="mend it") from None
    except RecursionError:
        raise _too_deep() from None
    try:
        return read(schema)
    except RecursionError:
        raise _too_deep() from None


def read(schema: Json, *, exact: bool = False) -> Enforced:
    """What of a schema is enforced; with `exact` it is narrowed nowhere.

    Raises:
        LegalizeError: as `enforced`.
    """
    reader = _Reader(schema)
    form = reader.schema(reader.references.resolved("#", "#")[0], "#", _Around(exact=exact))
    if isinstance(form, bool):
        if not form:
            raise refused("#", "`false`, which no value satisfies,")
        form = {}
    definitions: dict[str, Json] = {}
    for number, make in enumerate(reader.waiting):  # one may refer to more
        definitions[f"d{number}"] = make()
    if definitions:
        form = {"$defs": definitions, **form}
    return Enforced(form, reader.places, tuple(reader.ignored))


@dataclass(frozen=True, slots=True)
class _Around:
    """What stands around a schema.

    `joined`: others hold of the same value. `exact`: it may not be narrowed. `names`: of properties that the
    others list; `only`: there may be no others than these and its own.
    """

    joined: bool = False
    exact: bool = False
    names: tuple[str, ...] = ()
    only: bool = False


@dataclass(slots=True)
class _Listed:
    """Names of an object's properties, and whether something says of which kind others are."""

    names: dict[str, None]
    others: bool = False
    patterns: bool = False


@dataclass(slots=True)
class _Reader:
    """Reads one schema. `waiting` makes what has a name, in their order."""

    root: Json
    places: dict[int, str] = field(default_factory=dict)
    ignored: dict[str, None] = field(default_factory=dict)
    waiting: list[Callable[[], Json]] = field(default_factory=list)
    named: dict[tuple[str, _Around], str] = field(default_factory=dict)
    references: References = field(init=False)

    def __post_init__(self) -> None:
        self.references = References(self.root, self._ignore)

    def schema(self, schema: Json, path: str, around: _Around, depth: int = 0) -> Json:
        """`schema`, which stands at `path`, in its enforced form."""
        if schema is True and around.only:
            schema = {}
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise malformed(path, f"a schema is an object, not `{json.dumps(schema)[:40]}`")
        if depth >= _TOGETHER:
            return {"$ref": self._name(schema, path, around)}
        own = self._asserting(schema, path)
        self._negate(own, path, around)
        more = rewrite(
            own, path, lambda part: self.references.followed(part, path)[0],
            exact=around.exact, alone=not around.joined,
        )  # fmt: skip
        if others := [*more]:
            _add_all_of(own, path, others)
        parts = own.get("allOf")
        if {*own} == {"allOf"} and isinstance(parts, list) and len(parts) == 1:
            return self.schema(parts[0], f"{path}/allOf/0", around, depth)
        if "oneOf" in own and "anyOf" not in own:
            apart = self._told_apart(own["oneOf"], f"{path}/oneOf", around)
            if apart is not None:
                own = {"anyOf" if key == "oneOf" else key: value for key, value in own.items()}
                own["anyOf"] = apart
        inner = self._inner(own, path, around)
        made: dict[str, Json] = {}
        self.places[id(made)] = path
        for key, value in own.items():
            at = f"{path}/{key}"
            below = _Around(exact=around.exact)
            if key == "$ref":
                target = self.references.followed({"$ref": value}, path)
                made[key] = self._name(*target, around if len(own) == 1 else _beside(around))
            elif key in ("allOf", "anyOf", "oneOf", "prefixItems"):
                alone = _Around(joined=True, exact=True)
                within = {"allOf": _beside(around), "oneOf": alone, "prefixItems": below}.get(key, inner)
                made[key] = [
                    self.schema(part, f"{at}/{i}", within, depth + 1)
                    for i, part in enumerate(_schemas(value, at))
                ]
            elif key in ("items", "additionalProperties"):
                made[key] = self.schema(value, at, below, depth + 1)
            elif key in ("properties", "patternProperties"):
                made[key] = {
                    name: self.schema(part, f"{at}/{escaped(name)}", below, depth + 1)
                    for name, part in value.items()
                }
            else:
                made[key] = value
        if not around.joined and not around.exact:
            _narrow(made)
        self._check_counts(made, path)
        return made

    def _asserting(self, schema: Mapping[str, Json], path: str) -> dict[str, Json]:
        """The keywords of a schema that say something, those of older drafts in the terms of the newest."""
        own = {key: value for key, value in schema.items() if key not in ANNOTATIONS}
        if isinstance(own.get("items"), list):
            own["prefixItems"] = own.pop("items")
            if "additionalItems" in own:
                own["items"] = own["additionalItems"]
        own.pop("additionalItems", None)
        for key, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
            if isinstance(own.get(key), bool) and own.pop(key) and bound in own:
                own[key] = own.pop(bound)
        for key in [key for key, value in own.items() if has_no_effect(key, value, own)]:
            del own[key]
        for key in [key for key in own if key not in SUPPORTED and key not in REFUSED]:
            self._ignore(f"{path}/{escaped(key)}", f"`{key}`, which is no keyword of JSON Schema,")
            del own[key]
        check_keywords(own, path, self._ignore)
        for key in ("dependentRequired", "dependentSchemas", "dependencies"):
            for name, wanted in own.pop(key, {}).items():
                if self.references.embedded and not isinstance(wanted, list):
                    raise refused(f"{path}/{key}", f"`{key}` in a schema with several identifiers,")
                then = {"required": wanted} if isinstance(wanted, list) else wanted
                _add_all_of(own, path, [{"anyOf": [{"properties": {name: False}}, then]}])
        return own

    def _negate(self, own: dict[str, Json], path: str, around: _Around) -> None:
        """Say `not`, and `if`, in other words. What is said is less, so not where nothing may be narrowed."""
        more: list[Json] = []
        for key in [key for key in ("not", "if") if key in own]:
            schema = own.pop(key)
            other = None if around.exact or self.references.embedded else negated(schema)
            if other is None:
                raise refused(f"{path}/{key}", f"`{key}` of what cannot be negated,")
            if key == "not":
                more.append(other)
                continue
            then, otherwise = own.pop("then", True), own.pop("else", True)
            more.append({"anyOf": [{"allOf": [schema, then]}, {"allOf": [other, otherwise]}]})
        if more:
            _add_all_of(own, path, more)

    def _ignore(self, path: str, what: str) -> None:
        self.ignored[f"at `{shown(path)}` of `json_schema`: {shown(what)} has no effect"] = None

    def _inner(self, own: dict[str, Json], path: str, around: _Around) -> _Around:
        """What is around the schemas of `anyOf` or `oneOf`.

        Says in `own` which names an object may have, where these schemas do not.
        """
        alone = own.pop("unevaluatedProperties", True) is False  # whatever others say
        only = alone or around.only
        inner = _beside(around) if around.joined or len(own) > 1 else replace(around, only=False)
        if not only and ({*own} == {"$ref"} or around.joined or around.exact):
            return inner
        listed = _Listed({} if alone else dict.fromkeys(around.names))
        self._list(own, path, listed, set(), only)
        if listed.others or "additionalProperties" in own:
            if only and listed.patterns:
                raise refused(
                    f"{path}/unevaluatedProperties", "`unevaluatedProperties` beside `patternProperties`,"
                )
            return inner
        if "anyOf" in own and "oneOf" not in own:
            return _Around(exact=around.exact, names=tuple(listed.names), only=only)
        if not only:
            self._list(own, path, listed, set(), only, every=True)
        if only or (listed.names and not listed.others):
            missing = {name: True for name in listed.names if name not in own.get("properties", {})}
            own["properties"] = {**own.get("properties", {}), **missing}
            own["additionalProperties"] = False
        return inner

    def _list(
        self, schema: Json, path: str, listed: _Listed, seen: set[str], only: bool, *, every: bool = False
    ) -> None:
        """Add what `schema`, and what always holds beside it, say of names; with `every`, what may hold too."""
        if not isinstance(schema, dict):
            return
        names = schema.get("properties")
        listed.names.update(dict.fromkeys(names if isinstance(names, dict) else ()))
        if not only:
            required = schema.get("required")
            required = required if isinstance(required, list) else []
            listed.names.update((name, None) for name in required if isinstance(name, str))
        listed.patterns |= bool(schema.get("patternProperties"))
        free = [schema.get(key, False) for key in ("additionalProperties", "unevaluatedProperties")]
        listed.others |= listed.patterns or any(each is not False for each in free)
        for key in ("allOf", "anyOf", "oneOf") if every else ("allOf",):
            parts = schema.get(key)
            for part in parts if isinstance(parts, list) else ():
                self._list(part, path, listed, seen, only, every=every)
        if isinstance(target := schema.get("$ref"), str) and target not in seen:
            seen.add(target)
            self._list(*self.references.resolved(target, path), listed, seen, only, every=every)

    def _name(self, schema: Json, path: str, around: _Around) -> str:
        """A reference to what `schema` is made."""
        if (path, around) not in self.named:
            self.named[path, around] = f"#/$defs/d{len(self.waiting)}"
            self.waiting.append(lambda: self.schema(schema, path, around))
        return self.named[path, around]

    def _told_apart(self, value: Json, at: str, around: _Around) -> list[Json] | None:
        """The schemas of a `oneOf` as such of an `anyOf`; None if they are not plainly told apart."""
        parts = _schemas(value, at)
        followed = [self.references.followed(part, f"{at}/{i}")[0] for i, part in enumerate(parts)]
        more = told_apart(followed) if len(parts) > 1 else [True]
        if more is None or (
            (around.exact or self.references.embedded) and any(each is not True for each in more)
        ):
            return None
        return [
            part if each is True else {"allOf": [part, each]} for part, each in zip(parts, more, strict=True)
        ]

    def _check_counts(self, made: Mapping[str, Json], path: str) -> None:
        """Names may repeat where they are free, and a reader counts them once; listed ones may be too many."""
        free = made.get("additionalProperties", True) is not False or "patternProperties" in made
        if free and made.get("minProperties", 0) > len(set(made.get("required", ()))) + 1:
            raise refused(f"{path}/minProperties", "`minProperties` where names are free,")
        if len({*made.get("properties", ())} - {*made.get("required", ())}) > _MOST_OPTIONAL:
            raise refused(
                f"{path}/properties", f"more than {_MOST_OPTIONAL} `properties` that are not `required`,"
            )


def _beside(around: _Around) -> _Around:
    """Around one of several schemas of a value."""
    return _Around(joined=True, exact=around.exact)


def _add_all_of(own: dict[str, Json], path: str, more: list[Json]) -> None:
    """Ask for `more` beside what else `own` asks for."""
    own["allOf"] = [*(_schemas(own["allOf"], f"{path}/allOf") if "allOf" in own else ()), *more]


def _narrow(made: dict[str, Json]) -> None:
    """Say of which type values are, where only the keywords tell, and that a list ends."""
    keys = {*made} - {"$ref", "allOf", "anyOf", "oneOf"}
    kinds = [kind for kind in ("string", "number", "array", "object") if keys and keys <= {*KEYWORDS[kind]}]
    if kinds and (len(keys) == len(made) or kinds == ["object"]):
        made["type"] = kinds[0]
    first = made.get("prefixItems")
    if first is not None and "items" not in made and made.get("minItems", 0) <= len(first):
        made["items"] = False


def _schemas(value: Json, at: str) -> list[Json]:
    if not isinstance(value, list) or not value:
        raise malformed(at, f"`{at.rpartition('/')[2]}` is a list of schemas that is not empty")
    return value


def _too_deep() -> LegalizeError:
    return LegalizeError(
        "SGLC456", "`json_schema` is nested too deep to be read, which cannot be enforced",
        note="at `#`", hint="name the inner schemas in `$defs` and refer to them",
    )  # fmt: skip


def _no_constant(name: str) -> Json:
    raise LegalizeError("SGLC455", f"`json_schema` is no JSON: it has `{name}`", hint="mend the schema")
