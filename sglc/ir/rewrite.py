"""Every op of a program, and the rewriting of each: those in blocks and in called programs included."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from sglc.ir.core import Op, walk, with_fields, with_regions
from sglc.ir.ops import Call


def everywhere(ops: Iterable[Op]) -> Iterator[Op]:
    """The ops and all ops in them; those inside come behind the op that holds them."""
    for op in walk(ops):
        yield op
        if isinstance(op, Call):
            yield from everywhere(op.program.ops)


def rewritten(ops: Iterable[Op], change: Callable[[Op], Op | None], *, calls: bool = True) -> tuple[Op, ...]:
    """The ops as `change` makes each; None takes it away. What stands in an op is changed before the op.

    Args:
        calls: called programs are rewritten too, as far as `change` may see their values beside the others.
    """

    def changed(op: Op) -> Op | None:
        if isinstance(op, Call) and calls:
            op = with_fields(op, program=with_fields(op.program, ops=rewritten(op.program.ops, change)))
        elif op.region_fields:
            op = with_regions(op, lambda held: with_fields(held, ops=rewritten(held.ops, change, calls=calls)))
        return change(op)

    return tuple([made for op in ops if (made := changed(op)) is not None])
