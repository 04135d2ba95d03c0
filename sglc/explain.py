"""What a compiled program will do, in words: its calls, their order, what is shared, where it stops."""

from __future__ import annotations

from sglc.compile import Compiled
from sglc.ir.core import Op
from sglc.ir.graph import waves
from sglc.ir.ops import Arg, Gen, HostCall, Select


def explanation(compiled: Compiled) -> str:
    """Estimates, one row a generation, the passes' remarks, and the boundary if there is one."""
    program, plan = compiled.lowered, compiled.plan
    names = [param.name for param in program.params if isinstance(param, Arg)]
    cost = plan.estimate
    lines = [
        f"{program.name}({', '.join(names)}) on `{plan.target}`",
        f"  {cost.calls} calls, {cost.critical_path} one after another; "
        f"{cost.literal_tokens} literal tokens, at most {cost.max_new_tokens} new ones",
    ]
    rows = [("wave", "op", "site", "new", "from")]
    for number, wave in enumerate(waves(program)):
        rows += [_row(number, call) for call in wave]
    if len(rows) > 1:
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        for row in rows:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
            lines.append("  " + "  ".join([*cells, row[4]]))
    lines += [f"  {remark}" for remark in compiled.remarks]
    for op in program.ops:
        if isinstance(op, HostCall):
            lines.append(f"  from {op.loc} on as ordinary Python, launch by launch: {op.reason}")
    return "\n".join(lines)


def _row(wave: int, op: Op) -> tuple[str, str, str, str, str]:
    match op:
        case Gen():
            return str(wave), "gen", str(op.site), f"<={op.sampling.max_tokens * op.sampling.n}", str(op.loc)
        case Select():
            return str(wave), "select", str(op.site), f"1 of {len(op.choices)}", str(op.loc)
        case _:
            raise AssertionError(op)
