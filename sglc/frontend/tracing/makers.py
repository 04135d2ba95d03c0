"""Classes of the user's whose objects a program makes of data, and what reads typed values from texts.

A plan holds their names only: it runs where they are known, like the declared functions that it calls.
"""

from __future__ import annotations

import ast
import dataclasses
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import EnumMeta
from functools import partial
from threading import Lock
from typing import Any, Literal, Union

from sglc.errors import Loc, RunError
from sglc.frontend.outputs.output_form import OutputParser
from sglc.frontend.outputs.pydantic_types import is_pydantic
from sglc.frontend.outputs.typed import form_of
from sglc.ir.core import Site
from sglc.ir.pure import FACTORIES, STORED, is_written, sets_up_itself

# By their names in a plan, the newest last. What has a plan holds its own: each cell of a notebook brings more.
MAKERS: dict[str, Callable[..., Any]] = {}
_MOST = 10_000
_ADDING = Lock()


def declare_class(kind: type) -> str:
    """Make a class known whose objects a program makes of data; gives its name in a plan."""
    return _known(f"{kind.__module__}.{kind.__qualname__}", kind)


def declare_parser(parser: OutputParser) -> str:
    """Make known what reads typed values from texts; gives its name in a plan."""
    return _known(_name_of(parser), parser.parse)


def _known(name: str, maker: Callable[..., Any]) -> str:
    with _ADDING:  # calls may come from several threads
        MAKERS.pop(name, None)
        MAKERS[name] = maker
        while len(MAKERS) > _MOST:
            del MAKERS[next(iter(MAKERS))]
    return name


def _name_of(parser: OutputParser) -> str:
    kind = parser.dtype
    shown = f"{kind.__module__}.{kind.__qualname__}" if isinstance(kind, type) else parser.name
    return f"{shown} of {parser.loc}"


@dataclass(frozen=True, slots=True)
class NoValue:
    """Stands for a variable whose text spells no value: only who reads it gets the error."""

    problem: RunError
    site: Site | None = None  # of the generation, where the plan says it


def declare_reader(parser: OutputParser) -> str:
    """Make known what reads a variable's typed value at the end; gives its name in a plan."""
    return _known(_name_of(parser) + STORED, partial(_softly, parser.parse))


def _softly(parse: Callable[[str], Any], text: str) -> Any:
    try:
        return parse(text)
    except RunError as problem:
        return NoValue(problem)


def left_text(text: str) -> str:
    """Reads a variable whose type is not known here: it stays the text that was generated."""
    return text


def type_named(name: str) -> str:
    """The type whose values something that `declare_reader` made known reads, as the program spells it."""
    return name.removesuffix(STORED).rpartition(" of ")[0]


def maker_named(name: str) -> Callable[..., Any] | None:
    """What a plan's name means: a class of a module that is loaded, or what reads its values from texts.

    Where a class is not loaded, a variable stays the text that was generated (`left_text`).
    """
    stored = name.endswith(STORED)
    shown, of, place = name.removesuffix(STORED).rpartition(" of ")
    if not of:
        return class_named(name)
    kind = _spelled(shown)
    if kind is None:
        return MAKERS.get(name, left_text if stored else None)
    file, line, column = place.rsplit(":", 2)
    loc = Loc(file, int(line), int(column))
    form = form_of(kind, loc)
    if form.value is None:
        return str
    parse = OutputParser(form.name, form.value, loc, kind).parse
    return partial(_softly, parse) if stored else parse


def _spelled(shown: str) -> Any:
    """The type that a name in a plan spells: of plain types, of `Literal`, and of classes that only hold."""
    try:
        return _type_of(ast.parse(shown.removeprefix("builtins."), mode="eval").body)
    except (SyntaxError, ValueError, TypeError):
        return None


_KINDS = (str, int, float, bool, list, dict, tuple)
_PLAIN = {**{kind.__name__: kind for kind in _KINDS}, "None": None, "Any": Any}


def _type_of(node: ast.expr) -> Any:
    """Raises ValueError: it is none of them."""
    match node:
        case ast.Constant(value=None):
            return None
        case ast.Constant(value=value) if value is Ellipsis:
            return value
        case ast.Name(id=name) if name in _PLAIN:
            return _PLAIN[name]
        case ast.Subscript(value=ast.Name(id="Literal"), slice=values):
            return Literal[ast.literal_eval(values)]
        case ast.Subscript(
            value=ast.Name(id="list" | "dict" | "tuple" | "Optional" | "Union" as name), slice=inner
        ):
            parts = tuple(map(_type_of, inner.elts if isinstance(inner, ast.Tuple) else [inner]))
            if name in _PLAIN:
                return _PLAIN[name][parts]  # type: ignore[index]
            more = (None,) if name == "Optional" else ()
            return Union[(*parts, *more)]
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return Union[_type_of(left), _type_of(right)]  # noqa: UP007  # it also takes what is no class
    kind = _loaded(ast.unparse(node))
    if kind is None or not (only_holds(kind) or is_pydantic(kind)):
        raise ValueError(f"`{ast.unparse(node)}` is not known here")
    return kind


def class_named(name: str) -> type | None:
    """A class of that name in a module that is loaded, if its objects only hold what they are given.

    A plan may come from a stranger: no other class is found by its name.
    """
    kind = _loaded(name)
    return kind if kind is not None and only_holds(kind) else None


def _loaded(name: str) -> type | None:
    module, _, attribute = name.rpartition(".")
    kind = getattr(sys.modules.get(module), attribute, None)
    return kind if isinstance(kind, type) else None


def only_holds(kind: type) -> bool:
    """Whether making an object of a class runs no code of the user's."""
    if isinstance(kind, EnumMeta):
        return not is_written(kind, "_missing_") and not is_written(type(kind), "__call__")
    if dataclasses.is_dataclass(kind):
        known = all(field.default_factory in FACTORIES for field in dataclasses.fields(kind))
        return known and not sets_up_itself(kind)
    return issubclass(kind, tuple) and hasattr(kind, "_fields") and not sets_up_itself(kind)
