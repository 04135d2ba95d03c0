"""Classes as `dtype`: from annotations to a regular expression or a JSON schema, and from texts to objects.

An enumeration or `Literal` is an alternation of its values' texts; everything with fields is JSON. What a
class asks for is said once, by `_shape`: the schema of an annotation together with the function that reads
plain data as it.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import types
import typing
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from sglc.errors import Loc, TraceError
from sglc.frontend.outputs.output_form import PLAIN, OutputForm, whole_json
from sglc.frontend.outputs.pydantic_types import constrains, dumped, is_pydantic, json_schemas, reader

_Read = Callable[[Any], Any]
_SPECIAL = frozenset("\\.^$*+?{}[]|()")
_NOT_EVALUATED = (NameError, AttributeError, TypeError, SyntaxError)
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


@dataclass(frozen=True, slots=True)
class _At:
    """Where an annotation stands: in the classes `around`, the outermost first, of the `dtype` at `loc`.

    `definitions` gathers what becomes the `$defs` of the whole schema.
    """

    loc: Loc
    around: tuple[Any, ...] = ()
    definitions: dict[str, Any] = field(default_factory=dict)

    def inside(self, annotation: Any) -> _At:
        return replace(self, around=(*self.around, annotation))

    def whole(self, schema: dict[str, Any]) -> dict[str, Any]:
        return {"$defs": self.definitions, **schema} if self.definitions else schema


def form_of(dtype: object, loc: Loc) -> OutputForm:
    """The form of a `dtype`: a plain type or its name, or a class that `_shape` knows.

    Raises:
        TraceError: SGLC112 another type, SGLC115 a class with a part that has no form.
    """
    at = _At(loc)
    if (bare := _bare(dtype, at)) is not dtype:
        return form_of(bare, loc)
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
    shape = _shape(dtype, at)

    def value(text: str) -> Any:
        return shape.read(whole_json(text))

    schema = json.dumps(at.whole(shape.schema), ensure_ascii=False)
    return OutputForm(_shown(dtype), json_schema=schema, value=value)


def reader_of(annotation: Any, loc: Loc) -> tuple[str, _Read] | None:
    """The name of an annotation, and what reads plain data as its value; None if data are the value.

    That is so, too, where an annotation has a part without a form in JSON.
    """
    if not _is_read(annotation):
        return None
    try:
        return _shown(annotation), _shape(annotation, _At(loc)).read
    except TraceError:
        return None


def _is_read(annotation: Any) -> bool:
    """Whether values are made of data, or chosen by them."""
    if get_origin(annotation) in (Union, types.UnionType, Literal):
        return True
    if isinstance(annotation, type) and get_origin(annotation) is None:
        made = issubclass(annotation, Enum) or dataclasses.is_dataclass(annotation)
        return made or is_pydantic(annotation)
    return any(map(_is_read, get_args(annotation)))


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
        case _ if is_pydantic(type(value)):
            return dumped(value)
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {own.name: plain(getattr(value, own.name)) for own in dataclasses.fields(value)}
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
    twice = next((text for text, times in Counter(texts).items() if times > 1), None)
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


def _shape(annotation: Any, at: _At) -> _Shape:
    """The shape of an annotation."""
    if annotation is Any:
        return _Shape({}, lambda data: data)
    if annotation in at.around:
        raise _no_form(annotation, at, "it holds itself")
    inner = at.inside(annotation)
    if (bare := _bare(annotation, at)) is not annotation:
        return _shape(bare, inner)
    if get_origin(annotation) is Annotated:
        return _constrained(annotation, at)
    # What is no class may have no hash.
    if annotation is None or (isinstance(annotation, type) and annotation in _JSON_NAMES):
        return _scalar(type(None) if annotation is None else annotation)
    options = _options(annotation)
    if options is not None:
        return _listed(annotation, [value for _, value in options], at)
    origin, arguments = get_origin(annotation) or annotation, get_args(annotation)
    if origin in (Union, types.UnionType):
        return _union([_shape(part, inner) for part in arguments], _shown(annotation))
    if origin is list or (origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis):
        return _array(_shape(arguments[0] if arguments else Any, inner), origin)
    if origin is dict and (not arguments or arguments[0] is str):
        return _dictionary(_shape(arguments[1] if arguments else Any, inner))
    if is_pydantic(annotation):
        return _pydantic(annotation, at)
    if _has_fields(annotation):
        return _fields(annotation, at)
    raise _no_form(annotation, at, "it has no form in JSON")


def _no_form(annotation: Any, at: _At, why: str) -> TraceError:
    inside = f" in `{_shown(at.around[0])}`" if at.around else ""
    return TraceError(
        "SGLC115", f"`dtype` cannot be `{_shown(annotation)}`{inside}: {why}", at.loc,
        note="parts may be: str, int, float, bool, None, list, tuple[T, ...], dict[str, T], unions, Literal, "
        "Enum, dataclass, TypedDict, pydantic model",
    )  # fmt: skip


def _bare(annotation: Any, at: _At) -> Any:
    """What an alias stands for; an `Annotated` without metadata, if that constrains nothing."""
    try:
        if type(annotation).__name__ == "TypeAliasType":  # of `typing`, or of `typing_extensions`
            return annotation.__value__
        if get_origin(annotation) is Annotated and not any(map(constrains, annotation.__metadata__)):
            return annotation.__origin__
    except _NOT_EVALUATED as error:
        raise _no_form(annotation, at, f"what it stands for cannot be evaluated ({error})") from None
    except ValueError as error:
        raise _no_form(annotation, at, str(error)) from None
    return annotation


def _constrained(annotation: Any, at: _At) -> _Shape:
    """An `Annotated`: what it is without metadata, and in that what pydantic makes of them."""
    whole, narrowed = _shape(annotation.__origin__, replace(at, definitions={})), _pydantic(annotation, at)
    changes = any(hasattr(item, "__get_pydantic_core_schema__") for item in annotation.__metadata__)

    def read(data: Any) -> Any:
        value, checked = whole.read(data), narrowed.read(data)
        # Limits leave it as it is, and its classes are read by their own rules.
        return checked if changes else value

    return _Shape(narrowed.schema, read)


def _scalar(annotation: type) -> _Shape:
    name, kinds = _JSON_NAMES[annotation]

    def read(data: Any) -> Any:
        if not isinstance(data, kinds) or (isinstance(data, bool) and annotation is not bool):
            raise ValueError(f"`{data!r}` is no {name}")
        try:
            return float(data) if isinstance(data, int | float) and annotation is float else data
        except OverflowError as error:  # of an integer
            raise ValueError(str(error)) from None

    return _Shape({"type": name}, read)


def _listed(annotation: Any, values: list[Any], at: _At) -> _Shape:
    """One of these values, as JSON has them: `[1]` for `(1,)`, and 1 is 1.0, but not true."""
    known: dict[Any, Any] = {}
    items = []
    for value in values:
        held = value.value if isinstance(value, Enum) else value
        try:
            item = json.loads(json.dumps(held, allow_nan=False))
        except (TypeError, ValueError, RecursionError):
            raise _no_form(annotation, at, f"its value `{held!r}` is none of JSON's") from None
        if (key := _key(item)) not in known:
            items.append(item)
        if known.setdefault(key, value) != value:
            raise _no_form(annotation, at, f"it has two values that are written `{json.dumps(item)}`")
    if not items:
        raise _no_form(annotation, at, "it has no values")
    what = f"`{_shown(annotation)}`"
    if isinstance(annotation, type):  # a `Literal` shows them itself
        what += f", which has the values {', '.join(map(repr, items))}"

    def read(data: Any) -> Any:
        if (key := _key(data)) not in known:
            raise ValueError(f"`{data!r}` is no {what}")
        return known[key]

    return _Shape({"enum": items}, read)


def _key(data: Any) -> Any:
    """The same for the same JSON."""
    match data:
        case list():
            return (list, *map(_key, data))
        case dict():
            return (dict, frozenset((name, _key(part)) for name, part in data.items()))
        case _:
            return (type(data) is bool, data)


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


def _fields(cls: Any, at: _At) -> _Shape:
    """A dataclass or a `TypedDict`: an object with its fields and no others."""
    hints = _hints(cls, at)
    if hasattr(cls, "__dataclass_fields__"):
        names, required = _own_fields(cls, at)
        return _record({name: hints[name] for name in names}, required, cls, at.inside(cls))
    required = []
    for name, hint in hints.items():
        hints[name], said = _unqualified(hint)
        if name in cls.__required_keys__ if said is None else said:
            required.append(name)
    return _record(hints, required, cls, at.inside(cls))


def _own_fields(cls: Any, at: _At) -> tuple[list[str], list[str]]:
    """The names of the fields that a dataclass is called with, and of those that it must be."""
    missing = dataclasses.MISSING
    own = [one for one in dataclasses.fields(cls) if one.init]
    names = [one.name for one in own]
    required = [one.name for one in own if one.default is missing and one.default_factory is missing]
    try:
        for given in (names, required):
            inspect.signature(cls.__init__).bind(None, **dict.fromkeys(given))  # not what pydantic says of it
    except TypeError as error:
        raise _no_form(cls, at, f"its `__init__` takes other arguments than its fields ({error})") from None
    return names, required


def _hints(annotated: Any, at: _At) -> dict[str, Any]:
    try:
        return typing.get_type_hints(annotated, include_extras=True)
    except _NOT_EVALUATED as error:
        raise _no_form(annotated, at, f"its annotations cannot be evaluated ({error})") from None


def _unqualified(hint: Any) -> tuple[Any, bool | None]:
    """A field of a `TypedDict` without what is said of it, and whether that requires it.

    Its `__required_keys__` do not know of annotations that are texts.
    """
    origin, required = get_origin(hint), None
    if origin is Annotated:
        inner, required = _unqualified(hint.__origin__)
        return Annotated[(inner, *hint.__metadata__)], required
    name = str(origin).rpartition(".")[2]  # of `typing`, or of `typing_extensions`
    if name not in ("Required", "NotRequired", "ReadOnly"):
        return hint, None
    inner, required = _unqualified(*get_args(hint))
    return inner, required if name == "ReadOnly" else name == "Required"


def arguments_of(function: Callable[..., Any], loc: Loc) -> tuple[dict[str, Any], _Read]:
    """The schema of a function's arguments, and plain data as what it is called with, by name.

    Raises:
        TraceError: SGLC115, a parameter that has no annotation, or one without a form.
    """
    at = _At(loc)
    hints = _hints(function, at)
    required = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise _no_form(function, at, f"`{parameter.name}` has no name of its own in a call")
        if parameter.name not in hints:
            raise _no_form(function, at, f"its parameter `{parameter.name}` has no annotation")
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    hints.pop("return", None)
    shape = _record(hints, required, dict, at)
    return at.whole(shape.schema), shape.read


def _record(hints: Mapping[str, Any], required: list[str], make: Callable[..., Any], at: _At) -> _Shape:
    """An object with these parts and no others."""
    shapes = {name: _shape(hint, at) for name, hint in hints.items()}
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
        parts = {name: shapes[name].read(part) for name, part in given.items()}
        try:
            return make(**parts)
        except AssertionError as error:  # as of a pydantic model; what else its class raises is its own fault
            raise ValueError(str(error) or f"an assertion of `{_shown(make)}` failed") from None

    return _Shape(schema, read)


def _pydantic(annotation: Any, at: _At) -> _Shape:
    known = at.definitions
    try:
        for schema, definitions in json_schemas(annotation):
            if all(known.get(name, part) == part for name, part in definitions.items()):
                known.update(definitions)
                return _Shape(schema, reader(annotation))
    except ValueError as error:
        raise _no_form(annotation, at, str(error)) from None
    raise AssertionError("there is always another name")


def _has_fields(cls: Any) -> bool:
    return isinstance(cls, type) and (
        dataclasses.is_dataclass(cls)
        or is_pydantic(cls)
        or (issubclass(cls, dict) and hasattr(cls, "__required_keys__"))  # a `TypedDict`, of whatever library
    )


def _shown(annotation: Any) -> str:
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return annotation.__name__
    text = str(annotation)
    for inner in _classes(annotation):
        text = text.replace(f"{inner.__module__}.{inner.__qualname__}", inner.__name__)
    return re.sub(r"\btyping\.| at 0x[0-9a-f]+", "", text)  # no address: it names what is in plans


def _classes(annotation: Any) -> Iterator[type]:
    """The classes in an annotation."""
    if isinstance(annotation, type) and get_origin(annotation) is None:
        yield annotation
    for part in get_args(annotation):
        yield from _classes(part)
