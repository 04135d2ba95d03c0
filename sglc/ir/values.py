"""Values of a run and the operations on them: the same for the interpreter of programs and for plans.

Values are plain data: texts, truth values, and JSON with its lists as tuples.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from sglc.errors import Loc, RunError, TraceError
from sglc.ir.core import Type
from sglc.ir.depth import MAX_DEPTH
from sglc.ir.remark import place
from sglc.ir.sampling import Sampling

Plain = str | int | float | bool | None | tuple["Plain", ...] | Mapping[str, "Plain"]

MOST_COUNT = 2**31 - 1
_MOST_DIGITS = 15
_TEXT, _BOOL, _ITEM = (Type.TEXT,), (Type.BOOL,), (Type.TEXT, Type.LIST)
DATA = (Type.TEXT, Type.BOOL, Type.LIST, Type.JSON)


@dataclass(frozen=True, slots=True)
class Operation:
    """What an op makes of values, and what it takes: so many operands, which may have these types."""

    make: Callable[..., Plain]
    takes: tuple[Type, ...] = _TEXT
    operands: int | None = 1  # None: any number, in its only field
    fails: bool = False  # the run may end here


def evaluate(operation: str, operands: Sequence[Plain], loc: Loc) -> Plain:
    """What an operation of `OPERATIONS` makes of its operands, which have the types that it takes.

    Raises:
        RunError: SGLC460, `parse_json` of a text that is no JSON.
    """
    known = OPERATIONS[operation]
    return known.make(*operands, loc) if known.fails else known.make(*operands)


def text(value: Plain) -> str:
    """A value that is a text."""
    assert isinstance(value, str), value
    return value


def item_texts(items: Plain, loc: Loc) -> tuple[str, ...]:
    """The texts that a `map` runs over.

    Raises:
        RunError: SGLC461, an item is no text.
    """
    assert isinstance(items, tuple)
    for number, item in enumerate(items):
        if not isinstance(item, str):
            message = f"item {number} of the list that `map` runs over is no text"
            raise RunError("SGLC461", message, place(loc))
    return tuple(str(item) for item in items)


def case_of(value: str, cases: Sequence[str], default: bool, loc: Loc) -> int:
    """Which block of a `switch` runs; the default stands behind the cases.

    Raises:
        RunError: SGLC462, no case fits and there is no default.
    """
    if value in cases:
        return cases.index(value)
    if default:
        return len(cases)
    raise RunError(
        "SGLC462", f"no case of `switch` is {_shown(value)}", place(loc),
        note=f"cases: {', '.join(map(_shown, cases))}", hint="a `case _:` says what happens otherwise",
    )  # fmt: skip


def count_of(written: str, loc: Loc) -> int:
    """A `max_tokens` that a run gives, as a text.

    Raises:
        RunError: SGLC466, it is none of 1 to 2^31-1.
    """
    if written.isdecimal() and len(written) <= _MOST_DIGITS and 1 <= (count := int(written)) <= MOST_COUNT:
        return count
    raise RunError("SGLC466", f"`max_tokens` is {_shown(written)}, and not from 1 to 2^31-1", place(loc))


def limited(sampling: Sampling, written: str, loc: Loc) -> Sampling:
    """`sampling` with the `max_tokens` that a run gives.

    Raises:
        SglcError: as of `count_of` and `refuse_unreachable`.
    """
    made = replace(sampling, max_tokens=count_of(written, loc))
    refuse_unreachable(made, loc)
    return made


def refuse_unreachable(sampling: Sampling, loc: Loc) -> None:
    """Raises TraceError: SGLC103, a generation is to make more tokens than it may."""
    if sampling.unreachable:
        raise TraceError("SGLC103", sampling.unreachable, place(loc), hint="give it a larger `max_tokens`")


def returned(name: str, given: object, gives: str, loc: Loc) -> Plain:
    """What the declared function `name` gave, checked against the type that it was declared with.

    Raises:
        RunError: SGLC463, it has another type, or is no plain data.
    """
    value = plain(given)
    fits = {
        "text": isinstance(value, str),
        "bool": isinstance(value, bool),
        "list": isinstance(value, tuple),
        "json": value is not NOTHING,
    }[gives]
    if fits and value is not NOTHING:
        return value  # type: ignore[return-value]
    raise RunError(
        "SGLC463", f"`{name}` gave a `{type(given).__name__}` instead of a {gives}", place(loc),
        note="a text is a `str`, a list holds plain data",
    )  # fmt: skip


NOTHING = object()  # stands for what is no plain data


def plain(value: object, depth: int = 0) -> object:
    """A Python value as plain data, lists as tuples; `NOTHING` if it is, or holds, something else."""
    match value:
        case _ if depth > MAX_DEPTH:
            return NOTHING
        case None | str() | bool() | int() | float():
            return value
        case list() | tuple():
            parts = tuple(plain(part, depth + 1) for part in value)
            return NOTHING if any(part is NOTHING for part in parts) else parts
        case Mapping():
            items = {key: plain(part, depth + 1) for key, part in value.items()}
            whole = all(isinstance(key, str) and part is not NOTHING for key, part in items.items())
            return items if whole else NOTHING
        case _:
            return NOTHING


def _parsed(spelled: str, loc: Loc) -> Plain:
    """The JSON value that a text spells, lists as tuples."""

    def refuse(name: str) -> NoReturn:
        raise ValueError(name)

    try:
        value = plain(json.loads(spelled, parse_constant=refuse))
    except (ValueError, RecursionError) as error:
        raise _no_json(str(error), loc) from None
    if value is NOTHING:
        raise _no_json(f"it is more than {MAX_DEPTH} levels deep", loc)
    return value  # type: ignore[return-value]


def _no_json(why: str, loc: Loc) -> RunError:
    return RunError("SGLC460", f"`parse_json` is given a text that is no JSON: {why}", place(loc))


def _shown(value: str) -> str:
    return repr(value) if len(value) <= 60 else f"{value[:57]!r}..."


def _listed(*items: Plain) -> Plain:
    return tuple(one for item in items for one in (item if isinstance(item, tuple) else (item,)))


# By the mnemonics of their ops; what fails is told the place, too.
OPERATIONS: dict[str, Operation] = {
    "format": Operation(lambda *parts: "".join(map(text, parts)), operands=None),
    "strip": Operation(lambda one: text(one).strip()),
    "lower": Operation(lambda one: text(one).lower()),
    "eq": Operation(lambda left, right: text(left) == text(right), operands=2),
    "in_": Operation(lambda part, whole: text(part) in text(whole), operands=2),
    "not_": Operation(lambda one: not one, _BOOL),
    "parse_json": Operation(lambda one, loc: _parsed(text(one), loc), fails=True),
    "concat": Operation(_listed, _ITEM, operands=None),
    "pack": Operation(lambda tree: tree, DATA),
}
