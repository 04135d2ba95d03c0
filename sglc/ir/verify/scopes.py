"""Where every stream of a program stands: the chat turn and the named sections that are open in it.

A turn is ended by its own role and never nested. Sections end in the order in which they began. Both
may be left open at the end of a program, which a later one may then resume.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sglc.errors import VerifyError
from sglc.ir.core import Op, Program, Region, Type, Value, values_in
from sglc.ir.ops import (
    Append,
    Call,
    Control,
    Fork,
    Gen,
    Image,
    Resume,
    RoleClose,
    RoleOpen,
    ScopeBegin,
    ScopeEnd,
    Select,
)
from sglc.ir.remark import place
from sglc.ir.verify.fields import problem


@dataclass(frozen=True, slots=True)
class Place:
    """`role` is whose turn is open, "" outside turns; `sections` are open, the innermost last.

    `resumed`: an earlier program, or a caller, may have sections open that are not known here.
    """

    role: str = ""
    sections: tuple[str, ...] = ()
    resumed: bool = False


_OUTSIDE = Place()


class Places:
    """The places of a program's streams, as far as the walk has come.

    Args:
        name: how a value is called in errors.
        called: the program is the block of a `call`, which has to leave the caller's sections open.
    """

    def __init__(self, name: Callable[[Value], str], *, called: bool) -> None:
        self._name = name
        self._called = called
        self._places: dict[int, Place] = {}  # absent outside turns and sections

    def of(self, values: Sequence[Value]) -> tuple[Place, ...]:
        """Where each value stands."""
        return tuple(self._places.get(value.id, _OUTSIDE) for value in values)

    def put(self, values: Sequence[Value], places: Sequence[Place]) -> None:
        """`values` stand where `places` say, as far as these go."""
        for value, there in zip(values, places, strict=False):
            if there is not _OUTSIDE and value.type is Type.STREAM:
                self._places[value.id] = there

    def op(self, op: Op) -> None:
        """Carry the place along the stream that the op extends.

        Raises:
            VerifyError: SGLC207 a turn, SGLC218 a section that begins or ends out of turn.
        """
        match op:
            case Append() | Control() | Image() | Gen() | Select() | Fork():
                after = self._places.get(op.stream.id, _OUTSIDE)
            case Resume():
                after = Place(op.role, resumed=True)
            case RoleOpen() | RoleClose():
                after = self._turn(op)
            case ScopeBegin():
                here = self._places.get(op.stream.id, _OUTSIDE)
                after = replace(here, sections=(*here.sections, op.name))
            case ScopeEnd():
                after = self._section(op)
            case _:
                return
        if after is not _OUTSIDE:
            self.put(op.results, (after,) * len(op.results))

    def _turn(self, op: RoleOpen | RoleClose) -> Place:
        here = self._places.get(op.stream.id, _OUTSIDE)
        if isinstance(op, RoleClose):
            if here.role != op.role:
                note = f"the open turn is `{here.role}`'s" if here.role else "no turn is open"
                raise problem("SGLC207", f"a turn of `{op.role}` ends, which is not open", op, note=note)
            return replace(here, role="")
        if here.role:
            raise problem(
                "SGLC207", f"a turn of `{op.role}` begins inside a turn of `{here.role}`", op,
                hint=f"end the turn of `{here.role}` first",
            )  # fmt: skip
        return replace(here, role=op.role)

    def _section(self, op: ScopeEnd) -> Place:
        here = self._places.get(op.stream.id, _OUTSIDE)
        if not here.sections and here.resumed and not self._called:
            return here  # the program before this one began it
        if not here.sections or here.sections[-1] != op.name:
            note = f"the innermost open one is `{here.sections[-1]}`" if here.sections else "no section is open"
            raise problem("SGLC218", f"a section `{op.name}` ends, which is not open", op, note=note)
        return replace(here, sections=here.sections[:-1])

    def same(self, region: Region, like: Sequence[Value | None]) -> None:
        """The streams that a region yields stand where those do that they take turns with.

        Raises:
            VerifyError: SGLC207 another turn, SGLC218 other sections.
        """
        for value, other in zip(region.results, like, strict=True):
            if value.type is not Type.STREAM:
                continue
            here = self._places.get(value.id, _OUTSIDE)
            there = self._places.get(other.id, _OUTSIDE) if other else _OUTSIDE
            if here.role != there.role:
                raise VerifyError(
                    "SGLC207", f"`{self._name(value)}` is yielded where {is_open(here.role)}",
                    place(region.loc),
                    note=f"the stream that it takes turns with stands where {is_open(there.role)}",
                    hint="end the turns that a block begins, or begin the same in each",
                )  # fmt: skip
            if here.sections != there.sections:
                raise VerifyError(
                    "SGLC218", f"`{self._name(value)}` is yielded with other sections open", place(region.loc),
                    note=f"here: {_named(here)}; in the stream that it takes turns with: {_named(there)}",
                    hint="end the sections that a block begins, or begin the same in each",
                )  # fmt: skip

    def returned(self, called: Program, op: Call, given: Sequence[Place]) -> tuple[Place, ...]:
        """Where the streams stand, for the caller, that this program gives back to `op`.

        Args:
            given: where the streams stand that the call goes on from.

        Raises:
            VerifyError: SGLC218, a section is left open.
        """
        sections = next((there.sections for there in given if there.sections), ())
        places = []
        for value in values_in(called.returns):
            here = self._places.get(value.id, _OUTSIDE)
            if here.sections:
                raise problem(
                    "SGLC218",
                    f"`{called.name}` gives back a stream with an open section `{here.sections[-1]}`", op,
                    hint="end the section before the `return`",
                )  # fmt: skip
            resumed = here.resumed and any(there.resumed for there in given)
            places.append(Place(here.role, sections if here.resumed else (), resumed))
        return tuple(places)


def _named(there: Place) -> str:
    return ", ".join(f"`{name}`" for name in there.sections) or "none"


def is_open(role: str) -> str:
    """Whose turn is open, in words."""
    return f"a turn of `{role}` is open" if role else "no turn is open"
