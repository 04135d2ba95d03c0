"""Values, ops and programs: the data of the IR, all of it frozen.

A program is a flat tuple of ops in static single assignment. A prompt state is a `stream`
value: appending gives a new stream, and using one stream twice is sharing its prefix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, ClassVar, TypeVar, cast, dataclass_transform

from sglc.errors import Loc

NOWHERE = Loc("<none>", 0)


class Type(StrEnum):
    STREAM = "stream"
    TEXT = "text"
    LIST = "list"  # list[text]: what `join` gathers


@dataclass(frozen=True, slots=True)
class Value:
    """One SSA result. Ids are local to a program; names belong to the printer."""

    id: int
    type: Type


@dataclass(frozen=True, slots=True)
class Site:
    """Where a generation stands in a program: it keys the seed and the row of `explain`.

    `name` is the user's key; `occurrence` counts generations of the same function, fork path
    and name within one instance, so two samples never share a site.
    """

    function: str
    fork: tuple[int, ...]
    name: str
    occurrence: int = 0

    def __str__(self) -> str:
        path = f"[{','.join(map(str, self.fork))}]" if self.fork else ""
        return f"{self.function}{path}.{self.name}#{self.occurrence}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """Base of all ops. Fields of a subclass that hold `Value`s are operands, the others attributes."""

    mnemonic: ClassVar[str]
    result_types: ClassVar[tuple[Type, ...] | None]  # None: as many streams as the op was given results
    pure: ClassVar[bool]

    results: tuple[Value, ...] = ()
    loc: Loc = field(default=NOWHERE, compare=False)


# What a program gives back: values inside ordinary JSON-like data.
Tree = Value | str | int | float | bool | None | tuple["Tree", ...] | Mapping[str, "Tree"]


@dataclass(frozen=True, slots=True)
class Program:
    """A function's ops in order. `params` are `arg` and `resume` ops; every other op is in `ops`."""

    name: str
    params: tuple[Op, ...]
    ops: tuple[Op, ...]
    returns: Tree = None


OPS: dict[str, type[Op]] = {}
_O = TypeVar("_O", bound=type[Op])


@dataclass_transform(frozen_default=True)
def op(mnemonic: str, *results: Type, pure: bool = False, variadic: bool = False) -> Callable[[_O], _O]:
    """Declare an op: its text form, what it yields, and whether equal ones may be merged."""

    def register(cls: _O) -> _O:
        made = cast(_O, dataclass(frozen=True, slots=True)(cls))
        made.mnemonic = mnemonic
        made.result_types = None if variadic else results
        made.pure = pure
        OPS[mnemonic] = made
        return made

    return register


def attributes(o: Op) -> Iterator[tuple[str, Any]]:
    """An op's own fields in declaration order, operands among them, without `results` and `loc`."""
    return ((f.name, getattr(o, f.name)) for f in fields(o) if f.name not in ("results", "loc"))


def operands(o: Op) -> Iterator[Value]:
    """Every value the op reads, in field order."""
    for _, item in attributes(o):
        yield from values_in(item)


def values_in(item: object) -> Iterator[Value]:
    """Every value inside a field or a return tree, depth first."""
    match item:
        case Value():
            yield item
        case tuple():
            for part in item:
                yield from values_in(part)
        case Mapping():
            for part in item.values():
                yield from values_in(part)
        case _:
            return


def substitute(item: Any, rename: Mapping[Value, Value]) -> Any:
    """`item` (a field or a return tree) with every value replaced as `rename` says."""
    match item:
        case Value():
            return rename.get(item, item)
        case tuple():
            return tuple(substitute(part, rename) for part in item)
        case Mapping():
            return {key: substitute(part, rename) for key, part in item.items()}
        case _:
            return item
