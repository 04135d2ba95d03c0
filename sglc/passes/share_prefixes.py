"""Equal prompts become one prompt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import count

from sglc.ir.core import Op, Program, Type, Value, attributes, operands, substitute
from sglc.ir.ops import Append, Control, Fork, Gen, Select
from sglc.ir.target import Target
from sglc.passes.base import Exactness, Remark, Rewrite, place, register

_Merged = tuple[Op, ...]


@register("share_prefixes", Exactness.TOKENS, "equal prompts become one, computed once")
def share_prefixes(program: Program, _: Target) -> Rewrite:
    """Merge pure ops with equal operands, and fork where two generations then meet in one stream.

        s1 = append(s0, 'a'); s2 = append(s0, 'a'); s3, t0 = gen(s1, 'x'); s4, t1 = gen(s2, 'y')
            -> s1 = append(s0, 'a'); s2, s5 = fork(s1); s3, t0 = gen(s2, 'x'); s4, t1 = gen(s5, 'y')

    `gen` and `select` sample or rank at a site of their own, so they never merge. A `fork` never
    merges either: each result is a branch of its own, and the equal branch of another fork is a
    second sample of it, not the same one. Nothing is lost, as a fork costs nothing.
    """
    shared, merged = _merge(program)
    remarks = tuple(_remarks(merged))
    return _fork_meetings(shared), remarks


def _merge(program: Program) -> tuple[Program, _Merged]:
    """The program with equal pure ops merged, and the ops that fell away."""
    first: dict[Op, Op] = {}
    rename: dict[Value, Value] = {}
    ops: list[Op] = []
    merged: list[Op] = []
    for op in program.ops:
        if any(value in rename for value in operands(op)):
            op = replace(op, **{name: substitute(item, rename) for name, item in attributes(op)})
        twin = op
        if op.pure and not isinstance(op, Fork):
            twin = first.setdefault(replace(op, results=()), op)
        if twin is op:
            ops.append(op)
        else:
            merged.append(op)
            rename.update(zip(op.results, twin.results, strict=True))
    made = replace(program, ops=tuple(ops), returns=substitute(program.returns, rename))
    return made, tuple(merged)


def _fork_meetings(program: Program) -> Program:
    """A fork before the first of several generations that continue one stream."""
    meetings = Counter(op.stream for op in program.ops if isinstance(op, Gen | Select))
    fresh = count(1 + max((v.id for op in (*program.params, *program.ops) for v in op.results), default=-1))
    branches: dict[Value, Iterator[Value]] = {}
    ops: list[Op] = []
    for op in program.ops:
        if isinstance(op, Gen | Select) and meetings[op.stream] > 1:
            if op.stream not in branches:
                results = tuple(Value(next(fresh), Type.STREAM) for _ in range(meetings[op.stream]))
                ops.append(Fork(op.stream, results=results, loc=op.loc))
                branches[op.stream] = iter(results)
            op = replace(op, stream=next(branches[op.stream]))
        ops.append(op)
    return replace(program, ops=tuple(ops))


def _remarks(merged: _Merged) -> Iterator[Remark]:
    """One remark for all that fell away, at the first place."""
    literals = [op.text for op in merged if isinstance(op, Append | Control) and isinstance(op.text, str)]
    if not literals:
        return
    first = next(op for op in merged if isinstance(op, Append | Control) and isinstance(op.text, str))
    characters = sum(map(len, literals))
    yield Remark(
        "share_prefixes",
        f"merged {len(merged)} equal ops, {characters} characters of literals among them",
        place(first.loc),
    )
