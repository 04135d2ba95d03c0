"""Equal deterministic generations are made once."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping

from sglc.ir.core import Op, Program, Type, Value, all_ops, content, reading, regions, with_fields
from sglc.ir.ops import ASKED, Fork, Gen, ScopeBegin, ScopeEnd, Select
from sglc.ir.remark import Remark, place
from sglc.ir.rewrite import rewritten
from sglc.ir.target import Target
from sglc.passes.base import Exactness, Rewrite, register


@register("unify", Exactness.TOKENS, "equal deterministic generations are made once")
def unify(program: Program, target: Target) -> Rewrite:
    """Mark the generations and choices whose answer depends on nothing but what they ask for.

        s3, t0 = gen(s1, 'x', temperature=0.0); s4, t1 = gen(s2, 'y')
            -> s3, t0 = gen(s1, 'x', temperature=0.0, unify=True); s4, t1 = gen(s2, 'y')

    Greedy ones are marked, those with a seed of their own, and choices. Each keeps its op, its site and its
    entry in the results; but of all marked ones that turn out to have the same prompt and the same sampling, in
    a program and over the rows of a batch, the executor makes one (`execution.answers`). Only there is it
    known which texts stand in a prompt, so nothing is merged here; the remarks are of those that are the same
    whatever these texts are. Where one request asks for several generations (`ahead`), none is marked.
    """
    asked = [op for op in all_ops(program) if isinstance(op, ASKED)]
    together = any(op.fused or getattr(op, "ahead", 0) for op in asked)
    alone = () if together else asked
    marked = {id(op) for op in alone if target.is_deterministic(op.sampling if isinstance(op, Gen) else None)}

    def changed(op: Op) -> Op:
        return with_fields(op, unify=id(op) in marked) if isinstance(op, ASKED) else op

    if any(op.unify != (id(op) in marked) for op in asked):
        program = with_fields(program, ops=rewritten(program.ops, changed))
    # One alone asks for the same as no other.
    return program, tuple(_remarks(program.ops, {})) if len(marked) > 1 else ()


def _remarks(ops: Iterable[Op], around: Mapping[Value, Value]) -> Iterator[Remark]:
    """Which marked ones of a block ask for the same as one before; `around`: values that are another one."""
    same = dict(around)
    first: dict[Hashable, Op] = {}
    for op in ops:
        read = reading(op, same)
        match read:
            case Fork() | ScopeBegin() | ScopeEnd():
                same.update(dict.fromkeys(op.results, read.stream))
            case Gen(unify=True) | Select(unify=True):
                asked = (
                    (read.stream, read.sampling, read.limit)
                    if isinstance(read, Gen)
                    else (read.stream, read.choices, read.method)
                )
                twin = first.setdefault(asked, op)
                if twin is not op:
                    assert isinstance(twin, Gen | Select)
                    same.update(zip(op.results, twin.results, strict=True))
                    said = f"`{read.site.name}` has the answer of `{twin.site.name}`, which asks for the same"
                    yield Remark("unify", said, place(read.loc))
            case _ if read.pure and not read.tree_fields and any(v.type is Type.STREAM for v in op.results):
                twin = first.setdefault(content(read), op)
                same.update(zip(op.results, twin.results, strict=True))
        for region in regions(read):
            yield from _remarks(region.ops, same)
