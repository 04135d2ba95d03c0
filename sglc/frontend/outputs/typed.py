"""Classes as `dtype`: from annotations to a regular expression or a JSON schema, and from texts to objects.

An enumeration or `Literal` is an alternation of its values' texts; everything with fields is JSON. What a
class asks for is said once, by `_shape`: the schema of an annotation together with the function that reads
plain data as it.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin

from sglc.errors import Loc, TraceError
from sglc.frontend.outputs.output_form import PLAIN, OutputForm, whole_json

_Read = Callable[[Any], Any]
_SPECIAL = frozenset("\\.^$*+?{}[]|()")
_JSON_NAMES: dict[type, tuple[str, type | tuple[type, ...]]] = {
    str: ("string", str),
    int: ("integer", int),
    float: ("number", (int, float)),
    bool: ("boolean", bool),
    type(None): ("null", type(None)),
}


@dataclass(frozen=True, slots=True)
class _Shape:
    """An annotation: its JSON schema, and plain data as its value (`ValueError` if it is none)."""

    schema: dict[str, Any]
    read: _Read


def form_of(dtype: object, loc: Loc) -> OutputForm:
    """The form of a `dtype`: a plain type or its name, or a class that `_shape` knows.

    Raises:
        TraceError: SGLC112 another type, SGLC115 a class with a part that has no form.
    """
    name = dtype.__name__ if isinstance(dtype, type) else dtype
    if isinstance(name, str) and name in PLAIN and (isinstance(dtype, str) or dtype in _JSON_NAMES):
        return PLAIN[name]
    options = _options(dtype)
    if options is not None:
        return _alternation(dtype, options, loc)
    if get_origin(dtype) is None and not _has_fields(dtype) and dtype not in (list, dict):
        raise TraceError(
            "SGLC112", f"`dtype` is `{_shown(dtype)}`", loc,
            note=f"dtypes: {', '.join(PLAIN)}; Enum, Literal, dataclass, TypedDict, pydantic model",
        )  # fmt: skip
    shape = _shape(dtype, (), loc)

    def value(text: str) -> Any:
        return shape.read(whole_json(text))

    schema = json.dumps(shape.schema, ensure_ascii=False)
    return OutputForm(_shown(dtype), json_schema=schema, value=value)


def plain(value: Any) -> Any:
    """A value as plain data for JSON: members as their values, objects as dicts of fields, prompts as texts."""
    match value:
        case Enum():
            return plain(value.value)
        case _ if hasattr(type(value), "refuse_as_text"):  # a `NoText`, whose module builds on this one
            return value.as_data()
        case Mapping():
            return {key: plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        case _ if is_pydantic(type(value)):
            return value.model_dump(mode="json")
        case _:
            return value


# -- alternations ----------------------------------------------------------------------------------


def _options(dtype: Any) -> list[tuple[str, Any]] | None:
    """(text, value) of everything that a finite type holds; None if it is not finite."""
    if isinstance(dtype, type) and issubclass(dtype, Enum):
        return [(str(member.value), member) for member in dtype]
    if get_origin(dtype) is Literal:
        values = get_args(dtype)
        return [(str(item.value if isinstance(item, Enum) else item), item) for item in values]
    return None


def _alternation(dtype: Any, options: list[tuple[str, Any]], loc: Loc) -> OutputForm:
    texts = [text for text, _ in options]
    twice = next((text for i, text in enumerate(texts) if text in texts[:i]), None)
    if not texts or "" in texts or twice is not None:
        problem = "has no values" if not texts else "has a value that is written as nothing"
        if twice is not None:
            problem = f"has two values that are written `{twice}`"
        raise TraceError("SGLC115", f"`dtype` `{_shown(dtype)}` {problem}", loc)
    by_text = dict(options)

    def value(text: str) -> Any:
        if text not in by_text:
            raise ValueError("it is none of the values")
        return by_text[text]

    return OutputForm(_shown(dtype), regex=f"({'|'.join(map(_quoted, texts))})", value=value)


def _quoted(text: str) -> str:
    return "".join("\\" + character if character in _SPECIAL else character for character in text)


# -- JSON ------------------------------------------------------------------------------------------


def _shape(annotation: Any, around: tuple[Any, ...], loc: Loc) -> _Shape:
    """The shape of an annotation; `around` are the classes that it stands in, the outermost first."""
    if annotation is Any:
        return _Shape({}, lambda data: data)
    if annotation is None or annotation in _JSON_NAMES:
        return _scalar(type(None) if annotation is None else annotation)
    options = _options(annotation)
    if options is not None:
        values = {
            (type(item := value.value if isinstance(value, Enum) else value), item): value
            for _, value in options
        }
        return _Shape({"enum": [item for _, item in values]}, _member(values, _shown(annotation)))
    if annotation in around:
        raise _no_form(annotation, around, loc, "it holds itself")
    origin, arguments = get_origin(annotation) or annotation, get_args(annotation)
    inner = (*around, annotation)
    if origin in (Union, types.UnionType):
        return _union([_shape(part, inner, loc) for part in arguments], _shown(annotation))
    if origin is list or (origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis):
        return _array(_shape(arguments[0] if arguments else Any, inner, loc), origin)
    if origin is dict and (not arguments or arguments[0] is str):
        return _dictionary(_shape(arguments[1] if arguments else Any, inner, loc))
    if is_pydantic(annotation):
        return _pydantic(annotation, around, loc)
    if _has_fields(annotation):
        return _fields(annotation, around, loc)
    raise _no_form(annotation, around, loc, "it has no form in JSON")


def _no_form(annotation: Any, around: tuple[Any, ...], loc: Loc, why: str) -> TraceError:
    inside = f" in `{_shown(around[0])}`" if around else ""
    return TraceError(
        "SGLC115", f"`dtype` cannot be `{_shown(annotation)}`{inside}: {why}", loc,
        note="parts may be: str, int, float, bool, None, list, tuple[T, ...], dict[str, T], unions, Literal, "
        "Enum, dataclass, TypedDict, pydantic model",
    )  # fmt: skip


def _scalar(annotation: type) -> _Shape:
    name, kinds = _JSON_NAMES[annotation]

    def read(data: Any) -> Any:
        if not isinstance(data, kinds) or (isinstance(data, bool) and annotation is not bool):
            raise ValueError(f"`{data!r}` is no {name}")
        return float(data) if annotation is float and isinstance(data, int | float) else data

    return _Shape({"type": name}, read)


def _member(values: Mapping[tuple[type, Any], Any], what: str) -> _Read:
    """By type and value, since `True == 1`."""

    def read(data: Any) -> Any:
        if isinstance(data, list | dict) or (type(data), data) not in values:
            raise ValueError(f"`{data!r}` is no `{what}`")
        return values[type(data), data]

    return read


def _union(parts: list[_Shape], what: str) -> _Shape:
    def read(data: Any) -> Any:
        for part in parts:
            try:
                return part.read(data)
            except ValueError:
                continue
        raise ValueError(f"`{data!r}` is no `{what}`")

    return _Shape({"anyOf": [part.schema for part in parts]}, read)


def _array(item: _Shape, made: Callable[[list[Any]], Any]) -> _Shape:
    def read(data: Any) -> Any:
        if not isinstance(data, list):
            raise ValueError(f"`{data!r}` is no list")
        return made([item.read(part) for part in data])

    return _Shape({"type": "array", "items": item.schema}, read)


def _dictionary(item: _Shape) -> _Shape:
    def read(data: Any) -> Any:
        return {key: item.read(part) for key, part in _object(data).items()}

    return _Shape({"type": "object", "additionalProperties": item.schema}, read)


def _object(data: Any) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise ValueError(f"`{data!r}` is no object")
    return data


def _fields(cls: Any, around: tuple[Any, ...], loc: Loc) -> _Shape:
    """A dataclass or a `TypedDict`: an object with its fields and no others."""
    try:
        hints = typing.get_type_hints(cls)
    except NameError as error:
        raise _no_form(cls, around, loc, f"its annotations cannot be evaluated ({error})") from None
    if dataclasses.is_dataclass(cls):
        own = [field for field in dataclasses.fields(cls) if field.init]
        missing = dataclasses.MISSING
        names = [field.name for field in own]
        required = [f.name for f in own if f.default is missing and f.default_factory is missing]
    else:
        names, required = list(hints), [name for name in hints if name in cls.__required_keys__]
    return _record({name: hints[name] for name in names}, required, cls, (*around, cls), loc)


def arguments_of(function: Callable[..., Any], loc: Loc) -> tuple[dict[str, Any], _Read]:
    """The schema of a function's arguments, and plain data as what it is called with, by name.

    Raises:
        TraceError: SGLC115, a parameter that has no annotation, or one without a form.
    """
    hints = typing.get_type_hints(function)
    required = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise _no_form(function, (), loc, f"`{parameter.name}` has no name of its own in a call")
        if parameter.name not in hints:
            raise _no_form(function, (), loc, f"its parameter `{parameter.name}` has no annotation")
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    hints.pop("return", None)
    shape = _record(hints, required, dict, (), loc)
    return shape.schema, shape.read


def _record(
    hints: Mapping[str, Any], required: list[str], make: Callable[..., Any], around: tuple[Any, ...], loc: Loc
) -> _Shape:
    """An object with these parts and no others."""
    shapes = {name: _shape(hint, around, loc) for name, hint in hints.items()}
    schema = {
        "type": "object",
        "properties": {name: shape.schema for name, shape in shapes.items()},
        "required": required,
        "additionalProperties": False,
    }

    def read(data: Any) -> Any:
        given = _object(data)
        for name in required:
            if name not in given:
                raise ValueError(f"`{name}` is missing")
        for name in given:
            if name not in shapes:
                raise ValueError(f"there is no field `{name}`")
        return make(**{name: shapes[name].read(part) for name, part in given.items()})

    return _Shape(schema, read)


def _pydantic(cls: Any, around: tuple[Any, ...], loc: Loc) -> _Shape:
    schema = cls.model_json_schema()
    if around and "$defs" in schema:
        raise _no_form(cls, around, loc, "a pydantic model with models in it stands alone")
    return _Shape(schema, cls.model_validate)  # its `ValidationError` is a `ValueError`


def is_pydantic(cls: Any) -> bool:
    return isinstance(cls, type) and hasattr(cls, "model_json_schema") and hasattr(cls, "model_validate")


def _has_fields(cls: Any) -> bool:
    known = dataclasses.is_dataclass(cls) or typing.is_typeddict(cls) or is_pydantic(cls)
    return known and isinstance(cls, type)


def _shown(annotation: Any) -> str:
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return annotation.__name__
    return str(annotation).replace("typing.", "")
