"""Whether a program can go on as Python from its top: what it reads there once more has to be as it was."""

from __future__ import annotations

from collections.abc import Sequence

from sglc.execution.python_effects import EFFECTS
from sglc.frontend.tracing.reads import Reads
from sglc.ir.core import Op, Program, regions, walk
from sglc.ir.ops import Call, HostCall, Loop, Map, Tool


def why_not_again(program: Program, reads: Reads) -> str:
    """Why the plan of a program must not begin: it may go on as Python behind a tool that changed what it read.

    "" if it may.
    """
    if not reads.changeable and not reads.handed:
        return ""
    found, _ = _behind_tool(program.ops, "")
    if found is None:
        return ""
    tool, host_call = found
    what = f"`{reads.changeable}`" if reads.changeable else "what it is given"
    return f"`{tool}` may change {what} before it goes on as Python ({host_call.loc})"


def _behind_tool(ops: Sequence[Op], tool: str) -> tuple[tuple[str, HostCall] | None, str]:
    """The first place behind a tool where Python takes over, and the last tool that was called."""
    for op in ops:
        match op:
            case HostCall(error="") if tool:
                return (tool, op), tool
            case Tool() | Call():
                tool = _called(op) or tool
        if isinstance(op, Loop | Map):  # the next turn is behind this one
            tool = next((name for inner in walk([op]) if (name := _called(inner))), tool)
        behind = tool
        for region in regions(op):
            found, last = _behind_tool(region.ops, tool)
            if found is not None:
                return found, last
            behind = last or behind
        tool = behind
    return None, tool


def _called(op: Op) -> str:
    match op:
        case Tool(name=name) if name not in EFFECTS:
            return name.rpartition(".")[2]
        case Call(program=program):
            return next((name for inner in walk(program.ops) if (name := _called(inner))), "")
        case _:
            return ""
