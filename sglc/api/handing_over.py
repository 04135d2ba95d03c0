"""Whether a program can go on as Python from its top: what it reads there once more has to be as it was, and
what was generated has to stand where Python looks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sglc.execution.python_effects import EFFECTS
from sglc.frontend.tracing.reads import Reads
from sglc.ir.core import Op, Program, in_comprehension, kinds, regions, walk
from sglc.ir.ops import Call, Gen, HostCall, Loop, Map, Select, Tool

_Mark = Callable[[Op], str]  # what of an op Python may not stand behind; "" of any other


def why_not_again(program: Program, reads: Reads) -> str:
    """Why the plan of a program must not begin: it may go on as Python behind a tool that changed what it read,
    or behind generations that Python would make again.

    "" if it may.
    """
    counts = not kinds(program).isdisjoint((Loop, Map)) and any(map(_counted, program.ops))
    if counts and (found := _behind(program.ops, _counted, "", raises=True)[0]) is not None:
        each, host_call = found
        place = f"{host_call.loc}: {host_call.reason or host_call.error}"
        return f"it may go on as Python ({place}) behind a comprehension that generates ({each})"
    if not reads.changeable and not reads.handed:
        return ""
    if (found := _behind(program.ops, _called, "", raises=False)[0]) is None:
        return ""
    tool, host_call = found
    what = f"`{reads.changeable}`" if reads.changeable else "what it is given"
    return f"`{tool}` may change {what} before it goes on as Python ({host_call.loc})"


def _behind(
    ops: Sequence[Op], mark: _Mark, before: str, *, raises: bool
) -> tuple[tuple[str, HostCall] | None, str]:
    """The first place behind a marked op where Python takes over, and the last marked op.

    Args:
        raises: the place may be one that raises.
    """
    for op in ops:
        if isinstance(op, HostCall) and before and (raises or not op.error):
            return (before, op), before
        marked = mark(op) or before
        # In a loop the next turn is behind this one.
        inside = marked if isinstance(op, Loop | Map) else before
        behind = marked
        for body in _bodies(op):
            found, last = _behind(body, mark, inside, raises=raises)
            if found is not None:
                return found, last
            behind = last or behind
        before = behind
    return None, before


def _bodies(op: Op) -> list[tuple[Op, ...]]:
    if isinstance(op, Call):
        return [op.program.ops]
    return [region.ops for region in regions(op)] if op.region_fields else []


def _called(op: Op) -> str:
    """The last tool that an op calls by itself, or in one of its turns."""
    match op:
        case Tool(name=name) if name not in EFFECTS:
            return name.rpartition(".")[2]
        case Call(program=program):
            return next((name for inner in walk(program.ops) if (name := _called(inner))), "")
        case Loop() | Map():
            return next((name for inner in walk(op.body.ops) if (name := _called(inner))), "")
        case _:
            return ""


def _counted(op: Op, turns: int = 0) -> str:
    """Where an op generates in a comprehension, whose plan counts turns and whose Python counts generations."""
    if not turns and not op.region_fields and not isinstance(op, Call):
        return ""
    if turns and isinstance(op, Gen | Select | Call) and in_comprehension(op.site.function, turns):
        return str(op.loc) if not isinstance(op, Call) or _generates(op.program) else ""
    turns = 0 if isinstance(op, Call) else turns + isinstance(op, Loop | Map)
    for body in _bodies(op):
        for inner in body:
            if loc := _counted(inner, turns):
                return loc
    return ""


def _generates(program: Program) -> bool:
    return any(
        isinstance(op, Gen | Select) or (isinstance(op, Call) and _generates(op.program))
        for op in walk(program.ops)
    )
