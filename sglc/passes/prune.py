"""What no output that is asked for depends on is not generated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from sglc.ir.core import Op, Program, Region, Value, inputs, values_in, with_regions
from sglc.ir.effects import Effect, any_effect, variable_of
from sglc.ir.made_often import replaced
from sglc.ir.ops import Call, Cond, Fork, Gen, Loop, Map, Select, Switch, hands_over
from sglc.ir.remark import Remark, place
from sglc.ir.rewrite import everywhere
from sglc.ir.target import Target
from sglc.passes.base import Exactness, Rewrite, register

_T = TypeVar("_T")
_ROOTS = Effect.ACTS | Effect.DECIDES | Effect.LEAVES


@register("prune", Exactness.TOKENS, "with `outputs`, what no asked output depends on is not generated")
def prune(program: Program, _: Target) -> Rewrite:
    """Take away generations that neither `outputs` nor anything that has to be done depends on.

        def f(a) -> ('score',):                      def f(a) -> ('score',):
            s1, s2 = fork(s0)                            s1 = fork(s0)
            s3, t0 = gen(s1, 'score')            ->      s2, t0 = gen(s1, 'score')
            s4, t1 = gen(s2, 'reason')

    Roots are the asked variables, each as it is at the end of the program, the return value, calls of
    tools, decisions (`cond`, `switch`, `loop`, `map`), and where Python takes over or the program raises.
    Without `outputs` every variable is one, and so is the prompt: nothing changes. What stays has the prompt,
    the site and the answer that it had. What goes can neither fail nor be streamed, counts for no usage and no
    budget, and may be of a called program.
    """
    if program.outputs is None:
        return program
    pruning = _Pruning()
    ops = pruning.block(program.ops, set(values_in(program.returns)), set(program.outputs))
    return replaced(program, ops=ops), tuple(map(_remark, reversed(pruning.dropped)))


class _Pruning:
    """Goes through blocks from their ends, with what is read behind, and the variables that are asked for."""

    def __init__(self) -> None:
        self.dropped: list[Gen | Select] = []

    def block(self, ops: Sequence[Op], live: set[Value], asked: set[str]) -> tuple[Op, ...]:
        """The ops of a block that stay. What they read becomes `live`; what they store is asked for no more."""
        kept: list[Op] = []
        for op in reversed(ops):
            name = variable_of(op)
            if name in asked or any_effect(op, _ROOTS) or not live.isdisjoint(op.results):
                kept.append(self.narrowed(op, live, asked))
                live.update(inputs(kept[-1]))
            else:
                self.dropped += [one for one in everywhere((op,)) if isinstance(one, Gen | Select)][::-1]
            asked.discard(name or "")
        return tuple(reversed(kept))

    def narrowed(self, op: Op, live: set[Value], asked: set[str]) -> Op:
        """An op without the results that nothing reads, and without what only those need."""
        read = [value in live for value in op.results]

        def region(held: Region) -> Region:
            results = held.results if hands_over(held) else _picked(held.results, read)
            live.update(results)
            return replaced(held, ops=self.block(held.ops, live, set(asked)), results=results)

        match op:
            case Cond() | Switch() | Map():
                return replaced(with_regions(op, region), results=_picked(op.results, read))
            case Fork():
                labels = _picked(op.labels, read) if op.labels else ()
                return replaced(op, labels=labels, results=_picked(op.results, read))
            case Loop():
                return self.loop(op, live, asked, read)
            case Call():
                called = self.block(op.program.ops, set(values_in(op.program.returns)), set())
                return replaced(op, program=replaced(op.program, ops=called))
            case _:
                return op

    def loop(self, op: Loop, live: set[Value], asked: set[str], read: list[bool]) -> Op:
        """A loop that carries what is read behind it, or by what is left of its body."""
        again, *carried = op.body.results
        before = len(self.dropped)
        while True:
            del self.dropped[before:]
            inner = {*live, again, *_picked(carried, read)}
            ops = self.block(op.body.ops, inner, set(asked))
            needed = [known or param in inner for known, param in zip(read, op.body.params, strict=True)]
            if needed == read:
                break
            read = needed
        live.update(inner)
        body = replaced(
            op.body, params=_picked(op.body.params, read), ops=ops, results=(again, *_picked(carried, read))
        )
        return replaced(op, init=_picked(op.init, read), body=body, results=_picked(op.results, read))


def _remark(op: Gen | Select) -> Remark:
    said = f"`{op.site}` is not generated: no output that is asked for depends on it"
    return Remark("prune", said, place(op.loc))


def _picked(items: Sequence[_T], chosen: Sequence[bool]) -> tuple[_T, ...]:
    return tuple(item for item, take in zip(items, chosen, strict=True) if take)
