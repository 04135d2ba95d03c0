"""What every program must obey; checked before the first pass and after each one.

A program that passes here can be printed, interpreted and lowered without further checks. Ops
stand in one order and a region's values end with it, so "visible" is dominance.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TypeVar

from sglc.errors import VerifyError
from sglc.ir.core import NOWHERE, Op, Program, Region, Site, Type, Value, inputs, kinds, values_in, walk
from sglc.ir.depth import check_depth, with_room
from sglc.ir.facts import names_in
from sglc.ir.ops import (
    CONTINUING,
    Arg,
    Call,
    Cond,
    Fork,
    Gen,
    Guard,
    HostCall,
    Join,
    Loop,
    Map,
    Resume,
    RoleClose,
    RoleOpen,
    ScopeBegin,
    ScopeEnd,
    Select,
    Switch,
    arms_of,
    continued,
    hands_over,
    types_of,
)
from sglc.ir.remark import place
from sglc.ir.text.printer import value_names
from sglc.ir.verify.fields import SITED, check_fields, operand_types, problem
from sglc.ir.verify.scopes import Place, Places, is_open

_PARAMETERS = (Arg, Guard, Resume)
_PLACING = (RoleOpen, RoleClose, ScopeBegin, ScopeEnd, Call)  # what may begin or end a turn or section
_K = TypeVar("_K")
_V = TypeVar("_V")


@with_room
def verify(program: Program) -> None:
    """Check every invariant of the IR, in time linear in the ops (times the depth of regions).

    Raises:
        VerifyError: SGLC203 a value that is not visible where it is used; SGLC204 a value defined
            twice; SGLC205 an operand of the wrong type; SGLC206 wrong results; SGLC207 a chat turn
            opened or closed out of turn; SGLC208 two generations of one site on one path; SGLC209 a
            stream that two ops continue on one path without a fork; SGLC210 labels that do not fit
            a fork; SGLC211 `host_call` out of place; SGLC212 a parameter out of place or twice;
            SGLC213 a field out of range; SGLC215 a region, or a called program, that does not fit
            its op; SGLC216 too many brackets in brackets; SGLC217 too many regions in regions;
            SGLC218 a section ended out of turn; SGLC219 an unknown type that a function gives.
    """
    check_depth(program)
    _Verifier(program).run()


class _Verifier:
    """One walk over a program in the order of its text, and what is known on the way."""

    def __init__(self, program: Program, no_python_in: str = "") -> None:
        self.program = program
        self.iterations = 0  # loops and maps around it, in this program
        self.no_python_in = no_python_in  # an op around that Python could not come back to, "" for none
        self.visible: dict[int, Value] = {}
        self.ended: set[int] = set()  # ids defined in regions that have ended
        self.name = partial(_name, program)  # how a value is called in errors
        self.places = Places(self.name, called=bool(no_python_in))
        # Whether a stream may stand in a turn or section; else all stand outside, and none is looked at.
        self.has_places = not kinds(program).isdisjoint(_PLACING) or any(
            isinstance(op, Resume) for op in program.params
        )
        self.levels: dict[int, int] = {}  # stream id -> loops and maps around its definition, absent for 0
        # On the paths that lead here: the first op of a site, and the one that goes on from a stream (by id).
        self.sites: dict[Site, Op] = {}
        self.continuing: dict[int, Op] = {}

    def run(self) -> None:
        self.params()
        for op in self.program.params:
            self.op(op)
        self.block(self.program.ops)
        for value in values_in(self.program.returns):
            if self.visible.get(value.id) != value:
                raise self.undefined(value, "return", None)

    def params(self) -> None:
        names: dict[tuple[str, str], Op] = {}
        for op in self.program.params:
            match op:
                case Arg() | Resume():
                    key = (op.mnemonic, op.name)
                case Guard():
                    self.guard(op)
                    continue
                case _:
                    raise problem("SGLC212", f"`{op.mnemonic}` stands among the parameters", op)
            if key in names:
                raise problem("SGLC212", f"parameter `{op.name}` is given twice", op)
            names[key] = op

    def guard(self, op: Guard) -> None:
        """A fact is about arguments, and can be asked."""
        try:
            unknown = names_in(op.fact) - {
                param.name for param in self.program.params if isinstance(param, Arg)
            }
        except ValueError as error:
            raise problem("SGLC213", str(error), op) from None
        if unknown:
            raise problem("SGLC212", f"`{op.fact}` is about `{min(unknown)}`, which is no argument", op)

    def block(self, ops: Sequence[Op]) -> None:
        for op in ops:
            if isinstance(op, _PARAMETERS):
                raise problem(
                    "SGLC212", f"`{op.mnemonic}` stands in the body", op, hint="move it to the parameters"
                )
            if isinstance(op, HostCall):
                self.host_call(op, last=op is ops[-1])
            self.op(op)

    def op(self, op: Op) -> None:
        for value in inputs(op):
            if (known := self.visible.get(value.id)) is not value and known != value:
                raise self.undefined(value, op.mnemonic, op)
        for value, wanted in operand_types(op):
            if value.type not in wanted:
                raise self.wrong_type(value, wanted, op)
        check_fields(op)
        places = self.regions(op) if op.region_fields or isinstance(op, Call) else ()
        self.results(op)
        for value in op.results:
            self.define(value, op)
        if self.has_places:
            self.places.op(op)
            self.places.put(op.results, places)
        if isinstance(op, CONTINUING):
            for stream in continued(op):
                self.go_on(stream, op)
        if isinstance(op, SITED):
            self.unique(op)

    # -- values --------------------------------------------------------------------------------------

    def define(self, value: Value, op: Op) -> None:
        if value.id in self.visible or value.id in self.ended:
            raise problem("SGLC204", f"`{self.name(value)}` is defined twice", op)
        self.visible[value.id] = value
        if self.iterations and value.type is Type.STREAM:
            self.levels[value.id] = self.iterations

    def results(self, op: Op) -> None:
        found, wanted = _types(op.results), types_of(op, len(op.results))
        if isinstance(op, Fork):
            if not found or found != wanted:
                raise problem("SGLC206", "`fork` gives one or more streams", op, note=_gives(found))
        elif found != wanted:
            raise problem("SGLC206", f"`{op.mnemonic}` {_gives(wanted)}", op, note=f"here it {_gives(found)}")

    def go_on(self, stream: Value, op: Op) -> None:
        if self.levels.get(stream.id, 0) < self.iterations:
            raise problem(
                "SGLC209", f"`{op.mnemonic}` continues `{self.name(stream)}` in every iteration", op,
                note="the stream is made outside the loop",
                hint="`fork` it in the loop, and continue the branch",
            )  # fmt: skip
        if (earlier := self.continuing.get(stream.id)) is not None:
            raise problem(
                "SGLC209", f"two generations continue `{self.name(stream)}`", op,
                note=f"the first is at {earlier.loc}" if earlier.loc != NOWHERE else "",
                hint="`fork` the stream and give each generation a branch",
            )  # fmt: skip
        self.continuing[stream.id] = op

    def unique(self, op: Gen | Select | Join | Call) -> None:
        if (earlier := self.sites.get(op.site)) is not None:
            raise problem(
                "SGLC208", f"site `{op.site}` stands twice", op,
                note=f"the first is at {earlier.loc}" if earlier.loc != NOWHERE else "",
                hint="give the second another `occurrence`",
            )  # fmt: skip
        self.sites[op.site] = op

    # -- regions -------------------------------------------------------------------------------------

    def regions(self, op: Op) -> tuple[Place, ...]:
        """Check what the op holds; where its results stand, as far as that decides it."""
        match op:
            case Cond() | Switch():
                return self.arms(op)
            case Loop():
                return self.loop(op)
            case Map():
                self.region(op, op.body, (Type.TEXT if op.items.type is Type.LIST else Type.JSON,), again=True)
                for value in op.body.results:
                    if value.type is Type.STREAM:
                        raise self.unfit(
                            op.body, "the block of `map` yields data", f"`{self.name(value)}` is a {value.type}"
                        )
                return ()
            case Call():
                return self.call(op)
            case _:
                return ()

    def arms(self, op: Cond | Switch) -> tuple[Place, ...]:
        if isinstance(op, Switch) and len(op.cases) != len(op.arms):
            raise problem("SGLC215", f"`switch` has {len(op.cases)} cases for {len(op.arms)} blocks", op)
        if not arms_of(op):
            raise problem("SGLC215", "`switch` has no blocks", op)
        at_sites, at_streams = len(self.sites), len(self.continuing)
        in_arms: list[tuple[dict[Site, Op], dict[int, Op]]] = []  # an arm sees what came before, no other arm
        back: Region | None = None  # the first arm that comes back
        for arm in arms_of(op):
            self.region(op, arm, ())
            own = _taken(self.sites, at_sites), _taken(self.continuing, at_streams)
            if hands_over(arm):
                continue
            in_arms.append(own)
            if back is None:
                back = arm
            elif _types(arm.results) != _types(back.results):
                raise self.unfit(
                    arm, f"the blocks of `{op.mnemonic}` yield different types",
                    f"the first {_gives(_types(back.results))}, this one {_gives(_types(arm.results))}",
                )  # fmt: skip
            elif self.has_places:
                self.places.same(arm, back.results)
        for sites, streams in reversed(in_arms):  # of several the first is reported
            self.sites |= sites
            self.continuing |= streams
        return self.places.of(back.results) if back is not None else ()

    def loop(self, op: Loop) -> tuple[Place, ...]:
        carried = _types(op.init)
        self.region(op, op.body, carried, again=True, like=op.init)
        if _types(op.body.results) != (Type.BOOL, *carried):
            raise self.unfit(
                op.body, f"the block of `loop` must yield {', '.join((Type.BOOL, *carried))}",
                f"it {_gives(_types(op.body.results))}",
            )  # fmt: skip
        self.places.same(op.body, (None, *op.init))
        return self.places.of(op.init)

    def region(
        self,
        op: Op,
        region: Region,
        types: tuple[Type, ...],
        *,
        again: bool = False,
        like: Sequence[Value] = (),
    ) -> None:
        """Check a region that is given values of `types`, which stand where `like` does.

        `again`: it may run more than once, so no `host_call` to Python may stand in it.
        """
        if _types(region.params) != types:
            raise problem(
                "SGLC215", f"the block of `{op.mnemonic}` is given {', '.join(types) or 'nothing'}", op,
                note=f"it takes {', '.join(_types(region.params)) or 'nothing'}",
            )  # fmt: skip
        outside, before, no_python_in = len(self.visible), self.iterations, self.no_python_in
        if again:
            self.iterations += 1
            self.no_python_in = no_python_in or op.mnemonic
        for value in region.params:
            self.define(value, op)
        self.places.put(region.params, self.places.of(like))
        self.block(region.ops)
        for value in region.results:
            if self.visible.get(value.id) != value:
                raise self.undefined(value, "yield", region)
        if hands_over(region) and region.results:
            raise self.unfit(
                region, "a block that ends in `host_call` yields nothing", "its `yield` is never reached"
            )
        self.iterations, self.no_python_in = before, no_python_in
        self.ended.update(_taken(self.visible, outside))

    def call(self, op: Call) -> tuple[Place, ...]:
        called = op.program
        if len(op.args) != len(called.params):
            raise problem(
                "SGLC215", f"`call` gives `{called.name}` {len(op.args)} arguments", op,
                note=f"it takes {len(called.params)}",
            )  # fmt: skip
        inner = _Verifier(called, "call")
        inner.run()
        for item, param in zip(op.args, called.params, strict=True):
            wanted = param.results[0].type
            if isinstance(item, str):
                if wanted is not Type.TEXT:
                    raise problem("SGLC205", f"`call` takes a {wanted} here", op, note="a literal is a text")
            elif item.type is not wanted:
                raise self.wrong_type(item, (wanted,), op)
            elif isinstance(param, Resume) and (found := self.places.of((item,))[0].role) != param.role:
                raise problem(
                    "SGLC207", f"`{self.name(item)}` is no stream that `{called.name}` can go on from", op,
                    note=f"{is_open(found)}; it resumes where {is_open(param.role)}",
                )  # fmt: skip
        streams = [item for item in op.args if isinstance(item, Value)]
        return inner.places.returned(called, op, self.places.of(streams))

    def host_call(self, op: HostCall, *, last: bool) -> None:
        if self.no_python_in and not op.error:
            raise problem(
                "SGLC211", f"`host_call` stands inside a `{self.no_python_in}`", op,
                note="ordinary Python takes over at a `host_call`, and does not come back into the graph",
            )  # fmt: skip
        if not last:
            raise problem(
                "SGLC211", "`host_call` is not the last op", op,
                note="ordinary Python takes over at a `host_call`, so nothing of the graph follows it",
            )  # fmt: skip

    # -- reports -------------------------------------------------------------------------------------

    def undefined(self, value: Value, reader: str, at: Op | Region | None) -> VerifyError:
        if value.id in self.ended:
            note = "the block that defines it has ended; `yield` hands values out"
        elif any(value in other.results for other in walk(self.program.ops)):
            note = "it is defined further down"
        else:
            note = "nothing defines it"
        return VerifyError(
            "SGLC203", f"`{reader}` reads `{self.name(value)}`, which is not defined before it",
            place(at.loc) if at else None, note=note,
        )  # fmt: skip

    def wrong_type(self, value: Value, wanted: tuple[Type, ...], op: Op) -> VerifyError:
        message = f"`{op.mnemonic}` takes a {' or a '.join(wanted)} here"
        return problem("SGLC205", message, op, note=f"`{self.name(value)}` is a {value.type}")

    def unfit(self, region: Region, message: str, note: str) -> VerifyError:
        return VerifyError("SGLC215", message, place(region.loc), note=note)


def _name(program: Program, value: Value) -> str:
    return value_names(program).get(value.id, f"%{value.id}")


def _taken(entries: dict[_K, _V], before: int) -> dict[_K, _V]:
    """What was entered behind the first `before`, taken out."""
    return dict(entries.popitem() for _ in range(len(entries) - before))


def _types(values: Sequence[Value]) -> tuple[Type, ...]:
    return tuple([value.type for value in values])


def _gives(types: tuple[Type, ...]) -> str:
    return f"gives {', '.join(types) or 'nothing'}"
