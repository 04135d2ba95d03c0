"""Tools that need no order are called as soon as what they are given is there."""

from __future__ import annotations

from sglc.ir.core import Op, Program, kinds
from sglc.ir.made_often import replaced
from sglc.ir.ops import Tool
from sglc.ir.remark import Remark, place
from sglc.ir.rewrite import everywhere, rewritten
from sglc.ir.target import Target
from sglc.passes.base import Exactness, Rewrite, register


@register("overlap_tools", Exactness.TOKENS, "tools that are declared without an order run side by side")
def overlap_tools(program: Program, _: Target) -> Rewrite:
    """Let calls of tools that are declared with `ordered=False` wait for nothing but their arguments.

        t0 = tool('f', (a,), order='free')               t0 = tool('f', (a,), order='overlap')
        t1 = tool('f', (b,), order='free')           ->  t1 = tool('f', (b,), order='overlap')
        t2 = tool('g', (a,))                             t2 = tool('g', (a,))

    A call still waits for what decides whether the program comes to it: conditions and loops around it, and
    places before it where the program may raise or go on as Python. Calls in program order wait for all that
    stands before them, these too.
    """
    if Tool not in kinds(program):
        return program
    free = [op for op in everywhere(program.ops) if isinstance(op, Tool) and op.order == "free"]
    if not free:
        return program

    def changed(op: Op) -> Op:
        return replaced(op, order="overlap") if isinstance(op, Tool) and op.order == "free" else op

    said = [(f"`{op.name}` is called as soon as its arguments are there", place(op.loc)) for op in free]
    remarks = tuple(Remark("overlap_tools", text, loc) for text, loc in said)
    return replaced(program, ops=rewritten(program.ops, changed)), remarks
