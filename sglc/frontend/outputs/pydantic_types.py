"""What pydantic reads: its models, its dataclasses, and parts whose `Annotated` metadata constrains them.

Values are validated as JSON, where strict models take dates, enumerations and tuples, too. A model is known by
what it has; pydantic itself is loaded only for what cannot be there without it, or without a constraint.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

_LIMITS = ("ge", "gt", "le", "lt", "multiple_of", "min_length", "max_length", "pattern")


def is_pydantic(cls: Any) -> bool:
    """Whether it is a model or a dataclass of pydantic's."""
    return _is_model(cls) or (isinstance(cls, type) and "__pydantic_validator__" in vars(cls))


def _is_model(cls: Any) -> bool:
    return isinstance(cls, type) and hasattr(cls, "model_json_schema") and hasattr(cls, "model_validate_json")


def constrains(metadata: Any) -> bool:
    """Whether an item of an `Annotated` says which values there may be, and not only something about them.

    Raises:
        ValueError: it does in the words of another library.
    """
    if _root(metadata) == "pydantic" and hasattr(metadata, "json_schema_extra"):  # a `Field`
        return bool(metadata.metadata) or metadata.discriminator is not None
    if _root(metadata) in ("pydantic", "annotated_types") or hasattr(metadata, "__get_pydantic_core_schema__"):
        return True
    if any(getattr(metadata, limit, None) is not None for limit in _LIMITS):
        raise ValueError(f"`{metadata!r}` is no constraint that is known here")
    return False


def _root(value: object) -> str:
    return type(value).__module__.partition(".")[0]


def json_schemas(annotation: Any) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """A type's schema and its `$defs`, time and again with other names in `$defs`.

    Raises:
        ValueError: it has none.
    """
    suffix, number = "", 1
    while True:
        template = f"#/$defs/{{model}}{suffix}"
        try:
            if _is_model(annotation):
                made = annotation.model_json_schema(ref_template=template)
            else:
                made = _adapter(annotation).json_schema(ref_template=template)
        except (RuntimeError, NameError, TypeError) as error:  # of which pydantic's own are made
            raise ValueError(str(error).partition("\n")[0]) from None
        definitions = {f"{name}{suffix}": part for name, part in made.get("$defs", {}).items()}
        yield {key: part for key, part in made.items() if key != "$defs"}, definitions
        number += 1
        suffix = f"_{number}"


def reader(annotation: Any) -> Callable[[Any], Any]:
    """Plain data as a value; pydantic's `ValidationError` is a `ValueError`."""
    validate = annotation.model_validate_json if _is_model(annotation) else _adapter(annotation).validate_json

    def read(data: Any) -> Any:
        try:
            return validate(json.dumps(data))
        except RecursionError:
            raise ValueError("it is nested too deeply") from None

    return read


def dumped(value: Any) -> Any:
    """An object of a model or a dataclass of pydantic's as plain data."""
    if _is_model(type(value)):
        return value.model_dump(mode="json")
    return _adapter(type(value)).dump_python(value, mode="json")


def _adapter(annotation: Any) -> Any:
    try:
        from pydantic import TypeAdapter
    except ImportError:
        raise ValueError("pydantic 2, which would enforce it, is not installed") from None
    return TypeAdapter(annotation)
