"""What every program must obey; checked before the first pass and after each one.

A program that passes here can be printed, interpreted and lowered without further checks. Ops
stand in one flat order, so "defined earlier" is dominance.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from sglc.errors import Loc, VerifyError
from sglc.ir.core import NOWHERE, Op, Program, Site, Type, Value, operands, values_in
from sglc.ir.ops import (
    SELECT_METHODS,
    Append,
    Arg,
    Control,
    Fork,
    Format,
    Gen,
    HostCall,
    Join,
    Resume,
    RoleClose,
    RoleOpen,
    Select,
)
from sglc.ir.sampling import Sampling
from sglc.ir.text import value_names


def verify(program: Program) -> None:
    """Check every invariant of the IR, in time linear in the ops.

    Raises:
        VerifyError: SGLC203 a value that is not defined before its use; SGLC204 a value defined
            twice; SGLC205 an operand of the wrong type; SGLC206 wrong results; SGLC207 a chat turn
            opened or closed out of turn; SGLC208 two generations of one site; SGLC209 a stream that
            two generations continue without a fork; SGLC210 labels that do not fit a fork; SGLC211
            an op behind `host_call`; SGLC212 a parameter out of place or twice; SGLC213 a field
            out of range.
    """
    defined: dict[int, Value] = {}
    roles: dict[int, str] = {}  # stream id -> the role whose turn is open, "" outside
    sites: dict[Site, Op] = {}
    consumers: dict[int, Op] = {}  # stream id -> the generation that continues it
    _params(program)
    for position, op in enumerate((*program.params, *program.ops)):
        for value in operands(op):
            if defined.get(value.id) != value:
                raise _undefined(program, value, op)
        for value, wanted in _operand_types(op):
            if value.type not in wanted:
                raise _wrong_type(program, value, wanted, op)
        _results(op)
        for value in op.results:
            if value.id in defined:
                raise _error("SGLC204", f"`{_name(program, value)}` is defined twice", op)
            defined[value.id] = value
        _fields(op)
        _turns(op, roles)
        match op:
            case Gen() | Select():
                _consume(program, op, consumers)
                _unique(op, op.site, sites)
            case Join():
                _unique(op, op.site, sites)
            case HostCall() if position < len(program.params) + len(program.ops) - 1:
                raise _error(
                    "SGLC211", "`host_call` is not the last op", op,
                    note="ordinary Python takes over at a `host_call`, so nothing of the graph follows it",
                )  # fmt: skip
    for value in values_in(program.returns):
        if defined.get(value.id) != value:
            raise _undefined(program, value, None)


def _params(program: Program) -> None:
    names: dict[tuple[str, str], Op] = {}
    for op in program.params:
        match op:
            case Arg() | Resume():
                key = (op.mnemonic, op.name)
            case _:
                raise _error("SGLC212", f"`{op.mnemonic}` stands among the parameters", op)
        if key in names:
            raise _error("SGLC212", f"parameter `{op.name}` is given twice", op)
        names[key] = op
    for op in program.ops:
        if isinstance(op, Arg | Resume):
            raise _error("SGLC212", f"`{op.mnemonic}` stands in the body", op, hint="move it to the parameters")


def _operand_types(op: Op) -> Iterator[tuple[Value, tuple[Type, ...]]]:
    """Each operand with the types it may have."""
    stream, text = (Type.STREAM,), (Type.TEXT,)
    match op:
        case Append():
            yield op.stream, stream
            if isinstance(op.text, Value):
                yield op.text, text
        case Control() | RoleOpen() | RoleClose() | Gen() | Fork():
            yield op.stream, stream
        case Select():
            yield op.stream, stream
            for value in values_in(op.choices):
                yield value, text
        case Format():
            for value in values_in(op.parts):
                yield value, text
        case Join():
            for value in values_in(op.values):
                yield value, (Type.TEXT, Type.LIST)  # a list where the branches joined something themselves
        case _:
            return


def _results(op: Op) -> None:
    found = tuple(value.type for value in op.results)
    if op.result_types is None:
        if not found or any(kind is not Type.STREAM for kind in found):
            raise _error("SGLC206", f"`{op.mnemonic}` gives one or more streams", op, note=_gives(found))
    elif found != op.result_types:
        raise _error(
            "SGLC206", f"`{op.mnemonic}` {_gives(op.result_types)}", op, note=f"here it {_gives(found)}"
        )


def _gives(types: tuple[Type, ...]) -> str:
    return f"gives {', '.join(types) or 'nothing'}"


def _fields(op: Op) -> None:
    match op:
        case Fork() if op.labels and len(op.labels) != len(op.results):
            raise _error(
                "SGLC210", f"`fork` has {len(op.labels)} labels for {len(op.results)} branches", op,
                hint="give one label a branch, or none",
            )  # fmt: skip
        case Select() if not op.choices:
            raise _error("SGLC213", "`select` has no choices", op)
        case Select() if op.method not in SELECT_METHODS:
            raise _error(
                "SGLC213",
                f"`select` knows no method `{op.method}`",
                op,
                note=f"known: {', '.join(SELECT_METHODS)}",
            )
        case Gen():
            problem = sampling_problem(op.sampling)
            if problem:
                raise _error("SGLC213", problem, op)
        case Control() if not op.ids:
            raise _error("SGLC213", "`control` has no ids", op)


def sampling_problem(sampling: Sampling) -> str:
    """The first field that is out of range, as a message; nothing if all are in range."""
    s = sampling
    bad = {
        "max_tokens": s.max_tokens < 1,
        "min_tokens": s.min_tokens < 0,
        "n": s.n < 1,
        "stop": "" in s.stop,
        "stop_token_ids": any(i < 0 for i in s.stop_token_ids),
        "temperature": not 0 <= s.temperature < math.inf,
        "top_p": not 0 < s.top_p <= 1,
        "top_k": s.top_k != -1 and s.top_k < 1,
        "min_p": not 0 <= s.min_p <= 1,
        "seed": s.seed is not None and not 0 <= s.seed < 2**64,
    }
    return next((f"`{name}` is `{getattr(s, name)!r}`, out of range" for name, out in bad.items() if out), "")


def _turns(op: Op, roles: dict[int, str]) -> None:
    """Carry the open role along every stream; a turn is closed by its own role and never nested."""
    match op:
        case Resume():
            roles[op.results[0].id] = op.role
            return
        case RoleOpen():
            inside = roles.get(op.stream.id, "")
            if inside:
                raise _error(
                    "SGLC207", f"a turn of `{op.role}` begins inside a turn of `{inside}`", op,
                    hint=f"end the turn of `{inside}` first",
                )  # fmt: skip
            after = op.role
        case RoleClose():
            inside = roles.get(op.stream.id, "")
            if inside != op.role:
                note = f"the open turn is `{inside}`'s" if inside else "no turn is open"
                raise _error("SGLC207", f"a turn of `{op.role}` ends, which is not open", op, note=note)
            after = ""
        case Append() | Control() | Gen() | Select() | Fork():
            after = roles.get(op.stream.id, "")
        case _:
            return
    if after:
        for value in op.results:
            if value.type is Type.STREAM:
                roles[value.id] = after


def _consume(program: Program, op: Gen | Select, consumers: dict[int, Op]) -> None:
    earlier = consumers.setdefault(op.stream.id, op)
    if earlier is not op:
        raise _error(
            "SGLC209", f"two generations continue `{_name(program, op.stream)}`", op,
            note=f"the first is at {earlier.loc}" if earlier.loc != NOWHERE else "",
            hint="`fork` the stream and give each generation a branch",
        )  # fmt: skip


def _unique(op: Op, site: Site, sites: dict[Site, Op]) -> None:
    earlier = sites.setdefault(site, op)
    if earlier is not op:
        raise _error(
            "SGLC208", f"site `{site}` stands twice", op,
            note=f"the first is at {earlier.loc}" if earlier.loc != NOWHERE else "",
            hint="give the second another `occurrence`",
        )  # fmt: skip


def _undefined(program: Program, value: Value, op: Op | None) -> VerifyError:
    where = f"`{op.mnemonic}`" if op else "`return`"
    late = any(value in other.results for other in program.ops)
    return VerifyError(
        "SGLC203", f"{where} reads `{_name(program, value)}`, which is not defined before it", _at(op),
        note="it is defined further down" if late else "nothing defines it",
    )  # fmt: skip


def _wrong_type(program: Program, value: Value, wanted: tuple[Type, ...], op: Op) -> VerifyError:
    return _error(
        "SGLC205",
        f"`{op.mnemonic}` takes a {' or a '.join(wanted)} here",
        op,
        note=f"`{_name(program, value)}` is a {value.type}",
    )


def _name(program: Program, value: Value) -> str:
    return value_names(program).get(value.id, f"%{value.id}")


def _at(op: Op | None) -> Loc | None:
    return None if op is None or op.loc == NOWHERE else op.loc


def _error(code: str, message: str, op: Op, *, note: str = "", hint: str = "") -> VerifyError:
    return VerifyError(code, message, _at(op), note=note, hint=hint)
