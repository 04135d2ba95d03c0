"""What called programs generate and nothing reads is not generated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from sglc.ir.core import Op, Program, Region, Value, inputs, values_in, walk, with_regions
from sglc.ir.depth import with_room
from sglc.ir.ops import Call, Gen, HostCall, Join, Map, ParseJson, Prompt, Select, Store, Switch, Tool
from sglc.ir.remark import Remark, place
from sglc.ir.target import Target
from sglc.passes.base import Exactness, Rewrite, register


@register("dead_code", Exactness.AGGRESSIVE, "what called programs generate and nothing reads is not generated")
@with_room
def dead_code(program: Program, _: Target) -> Rewrite:
    """Take away generations of inlined programs that feed nothing, and all that feeds only those.

        s3, t1 = gen(s2, 'reason', function='f.judge#0/judge')
        s5, t2 = gen(s4, 'score', function='f.judge#0/judge')     ->  s5, t2 = gen(s4, 'score', ...)
        return t2

    A program names its own generations, so those are outputs and stay, whoever reads them. Names of a
    called program are seen by its caller alone. Everything that stays keeps its prompt, its site and its
    answer, and so do results and calls of tools. What goes can neither fail nor be streamed, and counts for no
    usage and no budget: that is a difference that only the user can want, so only the user asks for this
    pass. What can fail by itself (`parse_json`, `map` of a list, `switch` without a default) stays. Ops that
    feed nothing and generate nothing need no pass: no plan has them (`lower_plan`).
    """
    if not any(_droppable(op) for op in walk(program.ops)):
        return program
    sweep = _Sweep()
    kept = replace(program, ops=sweep.block(program.ops, set(values_in(program.returns))))
    return (kept, tuple(reversed(list(sweep.remarks())))) if sweep.dropped else program


def _droppable(op: Op) -> bool:
    return isinstance(op, Gen | Select) and op.site.called


def _stays(op: Op) -> bool:
    """Whether leaving the op itself out would be noticed, even if nothing reads what it gives."""
    match op:
        case Gen() | Select() | Join():
            return not op.site.called
        case Tool() | Store() | Prompt() | HostCall() | ParseJson() | Map() | Call():
            return True
        case Switch():
            return op.default is None
        case _:
            return False


class _Sweep:
    """Goes through blocks from their ends, with what is read behind."""

    def __init__(self) -> None:
        self.dropped: list[Op] = []

    def block(self, ops: Sequence[Op], live: set[Value]) -> tuple[Op, ...]:
        """The ops of a block that stay; what they read is added to `live`."""
        kept: list[Op] = []
        for op in reversed(ops):
            before = len(self.dropped)
            after, read = self.inside(op, live) if op.region_fields else (op, live)
            if any(value in live for value in op.results) or any(_stays(inner) for inner in walk((after,))):
                kept.append(after)
                live.update(read, inputs(op))
            else:
                del self.dropped[before:]
                self.dropped += [inner for inner in walk((op,)) if _droppable(inner)][::-1]
        return tuple(reversed(kept))

    def inside(self, op: Op, live: set[Value]) -> tuple[Op, set[Value]]:
        """An op with blocks, as if its results were read, and what its blocks read."""
        read = set(live)

        def region(held: Region) -> Region:
            read.update(held.results)
            return replace(held, ops=self.block(held.ops, read))

        return with_regions(op, region), read

    def remarks(self) -> Iterator[Remark]:
        for op in self.dropped:
            assert isinstance(op, Gen | Select)
            said = f"`{op.site}` is not generated: nothing reads it"
            yield Remark("dead_code", said, place(op.loc))
