"""What a generation is held to, as an API asks for it that knows JSON schemas alone, and how it is read back.

The schemas are in the subset that the API's structured outputs take (`schema_subsets`): objects with all of
their properties and no others. Where the form itself is no such object, the API is asked for an object with
one property, and its value is the text. Every answer is a text of the form; not every text of the form is an
answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from typing import Any

from sglc.errors import LegalizeError
from sglc.ir.grammar.finite import includes, texts_of
from sglc.ir.grammar.json_schema import enforced
from sglc.ir.grammar.regex import compile_regex
from sglc.ir.grammar.schema_check import check_value
from sglc.ir.grammar.schema_leaves import KEYWORDS
from sglc.ir.grammar.schema_subsets import SUBSETS, SchemaSubset
from sglc.ir.grammar.whole_characters import whole_characters
from sglc.ir.sampling import Sampling
from sglc.ir.target import Takes

KEY = "value"  # the property that holds a text which is no object
OVERHEAD_TOKENS = 16  # at most, that the object round a value takes

# Of OpenAI's structured outputs, and of others that say none: values of one schema, and their characters where
# there are many.
_MOST_VALUES = 1000
_MANY_VALUES, _MOST_CHARACTERS = 250, 15_000
_MOST_DIGITS = 1000
_INTEGER, _NATURAL = r"-?(0|[1-9][0-9]*)", r"0|[1-9][0-9]*"
# What JavaScript reads otherwise, or not at all. Answers are held against the pattern as Python reads it.
_PYTHONS_OWN = re.compile(r"\(\?(?!:)|\\[AZbBaN]")
_NUMBER = r"-?(0|[1-9][0-9]*)(\.[0-9]+)?"
# Texts that are numbers, however they are written: a pattern of others, too, is not narrowed to numbers.
_NUMBERS = r"\s*[-+]?[0-9]*\.?[0-9]*([eE][-+]?[0-9]+)?\s*"
_ANY_TEXT = r"[\s\S]*"


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """`schema` is what the API is asked for (JSON); with `inside` the text is the value under `KEY`.

    `remarks` say how that differs from what the program asks for. With `checked` a schema is what the program
    asks for: an answer is held against it when it is read, and the text is JSON, a string with its quotes.
    """

    schema: str
    inside: bool
    remarks: tuple[str, ...] = ()
    checked: bool = False

    def read(self, answer: str) -> str:
        """The generation's text.

        Raises:
            ValueError: `answer` is no JSON, or not what was asked for.
        """
        data = json.loads(answer, parse_float=Decimal, parse_constant=_no_number)
        if self.checked:
            check_value(json.loads(self.schema), data)
        if not self.inside:
            return answer
        if not isinstance(data, dict) or KEY not in data:
            raise ValueError(f"an object with `{KEY}` was asked for")
        value = data[KEY]
        match value:
            case str() if not self.checked:
                return whole_characters(value)
            case Decimal() if abs(value.adjusted()) <= _MOST_DIGITS:
                return format(value, "f")
            case Decimal():
                raise ValueError(f"the number {value} is too long to be written out")
            case _:
                return whole_characters(_written(value))


def _written(value: Any) -> str:
    """JSON on one line, its numbers with all of their digits: a `float` may round them, or be infinite."""
    match value:
        case list():
            return f"[{', '.join(map(_written, value))}]"
        case dict():
            return f"{{{', '.join(f'{_written(key)}: {_written(part)}' for key, part in value.items())}}}"
        case Decimal():
            return str(value)
        case _:
            return json.dumps(value, ensure_ascii=False)


def _no_number(name: str) -> Any:
    raise ValueError(f"JSON has no `{name}`")


def form_for(sampling: Sampling, takes: Takes) -> AnswerForm | None:
    """The form that a model is asked for; None if the generation is held to nothing, or as it is.

    Raises:
        LegalizeError: SGLC312, SGLC313, as `form_of`; SGLC312 also without structured outputs.
    """
    if takes.holds(sampling):
        return None
    if not takes.json_schema:
        raise LegalizeError(
            "SGLC312", "it cannot hold a generation to a form",
            note="it knows no structured outputs", hint="use a model that does, or run on `local`",
        )  # fmt: skip
    return form_of(sampling, takes.json_schema)


def form_of(sampling: Sampling, subset: str = "strict") -> AnswerForm | None:
    """The form of a generation in a subset of JSON Schema; None if it is held to nothing.

    Raises:
        LegalizeError: SGLC312 a regular expression, a grammar or a tag that no such schema says, SGLC313 a JSON
            schema with a part that structured outputs leave out.
    """
    if sampling.regex is not None:
        return _of_regex(sampling.regex, subset)
    if sampling.json_schema is not None:
        return _of_schema(sampling.json_schema, subset)
    if sampling.ebnf is not None:
        raise LegalizeError("SGLC312", "it cannot hold a generation to an `ebnf` grammar", hint=_ELSEWHERE)
    if sampling.structural_tag is not None:
        raise LegalizeError(
            "SGLC312", "it cannot hold pieces of a text to a `structural_tag`", hint=_TAGS_ELSEWHERE
        )
    return None


_TAGS_ELSEWHERE = "let a generation of its own write each piece, or run on `local` or on an sglc server"
_ELSEWHERE = "use `json_schema` or a few `choices`, or run on `local` or on an sglc server"


def form_of_choices(choices: Sequence[str]) -> AnswerForm:
    """The form of a choice between texts.

    Raises:
        LegalizeError: SGLC314, these are too many.
    """
    texts = tuple(dict.fromkeys(choices))
    if not _few(texts):
        raise LegalizeError(
            "SGLC314", f"it cannot decide between {len(texts)} texts of {sum(map(len, texts))} characters",
            note=f"one schema has at most {_MOST_VALUES} values, and {_MOST_CHARACTERS} characters",
        )  # fmt: skip
    return AnswerForm(_wrapped({"type": "string", "enum": list(texts)}), True)


@lru_cache(maxsize=256)
def _of_regex(pattern: str, subset: str) -> AnswerForm:
    dfa = compile_regex(pattern)
    texts = texts_of(dfa, _MOST_VALUES)
    if texts is not None and _few(texts):
        schema: dict[str, Any] = {"type": "string", "enum": list(texts)}
        return AnswerForm(_wrapped(schema), True, (f"its {len(texts)} texts are asked for as an `enum`",))
    numeric = includes(compile_regex(_NUMBERS), dfa)
    for kind, language, more in (
        ("number", _NUMBER, {}),
        ("integer", _INTEGER, {}),
        ("integer", _NATURAL, {"minimum": 0}),
    ):
        said = all(key in _subset(subset).kept.get(kind, ()) for key in more)
        if said and numeric and includes(dfa, compile_regex(language)):
            remark = f"it is asked for as a JSON `{kind}`" + (" from 0 on" if more else "")
            return AnswerForm(_wrapped({"type": kind, **more}), True, (remark,))
    if "pattern" in _subset(subset).kept.get("string", ()) and not _PYTHONS_OWN.search(pattern):
        text = {"type": "string", "pattern": f"^(?:{pattern})$"}
        return AnswerForm(_wrapped(text), True, ("it is asked for as a JSON string with that `pattern`",))
    if includes(dfa, compile_regex(_ANY_TEXT)):
        return AnswerForm(_wrapped({"type": "string"}), True, ("it is asked for as a JSON string",))
    raise LegalizeError(
        "SGLC312", "it cannot hold a generation to this `regex`",
        note="a pattern with few texts, or one of numbers that any JSON integer or number matches, it can do",
        hint=_ELSEWHERE,
    )  # fmt: skip


def _few(texts: Sequence[str]) -> bool:
    many = len(texts) > _MANY_VALUES and sum(map(len, texts)) > _MOST_CHARACTERS
    return len(texts) <= _MOST_VALUES and not many


@lru_cache(maxsize=256)
def _of_schema(text: str, subset: str) -> AnswerForm:
    schema = dict(enforced(text).form)
    definitions = schema.pop("$defs", {})
    strict = _Strict(_subset(subset))
    made = strict.schema(schema, "#")
    others = {name: strict.schema(part, f"#/$defs/{name}") for name, part in definitions.items()}
    if not strict.subset.recursive:
        _refuse_recursion(others)
    remarks = []
    if strict.optional:
        remarks.append(f"properties that may be left out are always there: {', '.join(strict.optional)}")
    inside = made.get("type") != "object"
    if inside:
        made = object_of({KEY: made})
        remarks.append(f"it is asked for as the value of `{KEY}` of an object")
    whole = _dumped({**made, **({"$defs": others} if others else {})})
    return AnswerForm(whole, inside, tuple(remarks), checked=True)


def _subset(name: str) -> SchemaSubset:
    return SUBSETS.get(name, SUBSETS["strict"])


def _refuse_recursion(definitions: Mapping[str, Any]) -> None:
    """Refuse definitions that refer to themselves."""
    refers = {
        name: set(re.findall(r'"\$ref": "#/\$defs/([^"]*)"', _dumped(own))) for name, own in definitions.items()
    }
    for _ in definitions:
        refers = {name: own.union(*(refers.get(other, ()) for other in own)) for name, own in refers.items()}
    for name, own in refers.items():
        if name in own:
            raise _left_out(f"#/$defs/{name}", "a definition that refers to itself")


def object_of(properties: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of an object with all of these properties, and no others."""
    return {
        "type": "object", "properties": dict(properties), "required": list(properties),
        "additionalProperties": False,
    }  # fmt: skip


def _wrapped(value: Mapping[str, Any]) -> str:
    return _dumped(object_of({KEY: value}))


def _dumped(schema: Mapping[str, Any]) -> str:
    return json.dumps(schema, ensure_ascii=False)


@dataclass(slots=True)
class _Strict:
    """Schemas in the enforced form of `json_schema`, in a subset of structured outputs."""

    subset: SchemaSubset
    optional: dict[str, None] = field(default_factory=dict)

    def schema(self, schema: Any, path: str) -> dict[str, Any]:
        match schema:
            case True | {} if not isinstance(schema, dict) or not schema:
                raise _left_out(path, "a value of any kind")
            case {"$ref": target} if len(schema) == 1:
                return {"$ref": target}
            case {"const": value}:
                return self.schema({"enum": [value], **_rest(schema, "const")}, path)
            case {"enum": list(values)} if {*schema} <= {"enum", "type"}:
                values = [value for value in values if _kind(value) in _named(schema.get("type", [*KEYWORDS]))]
                if any(isinstance(value, dict | list) for value in values):
                    raise _left_out(f"{path}/enum", "an `enum` of objects or lists")
                return self._enum(values, path)
            case {"anyOf": list(parts)} if len(schema) == 1:
                return {"anyOf": [self.schema(part, f"{path}/anyOf/{i}") for i, part in enumerate(parts)]}
            case {"type": list(kinds)}:
                return {"anyOf": [self.schema(_of_kind(kind, schema), path) for kind in kinds]}
            case {"type": "object"}:
                return self._object(schema, path)
            case {"type": str(kind)}:
                return self._value(kind, schema, path)
            case _:
                raise _left_out(path, " and ".join(f"`{key}`" for key in schema or {"false": 0}))

    def _enum(self, values: Sequence[Any], path: str) -> dict[str, Any]:
        kinds = _types(values)
        if isinstance(kinds, list) and not self.subset.several_types:
            parts = [self._enum([value for value in values if _types([value]) == kind], path) for kind in kinds]
            return {"anyOf": parts}
        if not self.subset.several_types and (kinds == "null" or (kinds == "boolean" and len({*values}) == 2)):
            return {"type": kinds}  # these are all values of the type
        if isinstance(kinds, list) or kinds in self.subset.enums:
            return {"type": kinds, "enum": list(values)}
        raise _left_out(f"{path}/enum", f"an `enum` of the type `{kinds}`")

    def _object(self, schema: Mapping[str, Any], path: str) -> dict[str, Any]:
        if schema.get("additionalProperties", True) is not False:
            raise _left_out(path, "an object whose names are free")
        for key in schema:
            if key not in ("type", "properties", "required", "additionalProperties"):
                raise _left_out(f"{path}/{key}", f"`{key}`")
        properties = {
            name: self.schema(part, f"{path}/properties/{name}")
            for name, part in schema.get("properties", {}).items()
            if part is not False  # what must not be there is what is not mentioned
        }
        required = schema.get("required", [])
        self.optional.update(dict.fromkeys(f"`{name}`" for name in properties if name not in required))
        return object_of(properties)

    def _value(self, kind: str, schema: Mapping[str, Any], path: str) -> dict[str, Any]:
        made: dict[str, Any] = {"type": kind}
        if kind == "array" and "items" not in schema:
            raise _left_out(path, "a list without `items`")
        for key, value in schema.items():
            match key:
                case "type":
                    pass
                case "items" if value is False:
                    raise _left_out(f"{path}/items", "a list without `items`")
                case "items":
                    made["items"] = self.schema(value, f"{path}/items")
                case "format" if value not in self.subset.formats:
                    raise _left_out(f"{path}/format", f"the format `{value}`")
                case "minItems" if value > 1 and not self.subset.least_items:
                    raise _left_out(f"{path}/minItems", "`minItems` above 1")
                case _ if key in self.subset.kept.get(kind, ()):
                    made[key] = value
                case _:
                    raise _left_out(f"{path}/{key}", f"`{key}`")
        return made


_KINDS = {
    str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null", list: "array",
    dict: "object",
}  # fmt: skip


def _kind(value: Any) -> str:
    return "integer" if isinstance(value, float) and value.is_integer() else _KINDS[type(value)]


def _named(types: str | Sequence[str]) -> set[str]:
    """The types that a `type` names."""
    named = {types} if isinstance(types, str) else {*types}
    return named | {"integer"} if "number" in named else named


def _rest(schema: Mapping[str, Any], taken: str) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key != taken}


def _of_kind(kind: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema of one of several types, with the keywords that speak of it."""
    every = {key for keys in KEYWORDS.values() for key in keys}
    more = _rest(schema, "type")
    return {
        "type": kind,
        **{key: value for key, value in more.items() if key in KEYWORDS[kind] or key not in every},
    }


def _types(values: Sequence[Any]) -> str | list[str]:
    found = list(dict.fromkeys(_KINDS[type(value)] for value in values))
    return found[0] if len(found) == 1 else found


def _left_out(path: str, what: str) -> LegalizeError:
    return LegalizeError(
        "SGLC313", f"it cannot hold a generation to a `json_schema` with {what}",
        note=f"at `{path}`; structured outputs leave it out",
        hint="leave it out of the schema, or run on `local` or on an sglc server",
    )  # fmt: skip
