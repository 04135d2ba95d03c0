"""Called programs become a part of the program that calls them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from sglc.ir.core import (
    Op,
    Program,
    Region,
    Type,
    Value,
    definitions,
    fresh_ids,
    kinds,
    reading,
    renamed,
    substitute,
    values_in,
    walk,
    with_regions,
)
from sglc.ir.made_often import replaced
from sglc.ir.ops import Call, Fork, Format, Gen, Join, Loop, Map, Prompt, Select, Store, continued
from sglc.ir.remark import Remark, place
from sglc.ir.rewrite import rewritten
from sglc.ir.target import Target
from sglc.passes.base import Exactness, Rewrite, register
from sglc.passes.pass_options import Count

MOST_OPS = 20_000  # of a program behind it: calls in calls can double a program twenty times


@register("inline_calls", Exactness.TOKENS, "called programs become a part of the one that calls them")
def inline_calls(program: Program, _: Target, *, max_ops: Count = MOST_OPS) -> Rewrite:
    """Put the ops of a called program where the call stood.

        t1 = call('g', (t0,)):                       s1 = append(s0, t0)
            def judge(a):                        ->  s2, t1 = gen(s1, 'x', function='f.g#0/judge')
                s0 = root(); s1 = append(s0, a)
                s2, t0 = gen(s1, 'x'); return t0

    A generation keeps the site that it has at run time, and so its seed, its row of `explain` and its
    answer; `Site.called` says that its name is no variable of this program. What ran as a step of its own
    is then handed over together with what stands around it, and meets it in `share_prefixes`.

    A call inside a `loop` or `map` stays: its iteration stands inside the path of its sites, where no op
    of the loop's own program can have it. So does one that would make the program longer than `max_ops`.
    Calls in a program that stays a call are put into that one.
    """
    if Call not in kinds(program):
        return program
    inlining = _Inlining(program, max_ops)
    return inlining.program(), tuple(dict.fromkeys(inlining.remarks))


class _Inlining:
    """One program; `left` is how many ops it may still grow by."""

    def __init__(self, program: Program, max_ops: int) -> None:
        self.before = program
        self.max_ops = max_ops
        self.fresh = fresh_ids(program)
        self.left = max_ops - sum(1 for _ in walk(program.ops))
        self.rename: dict[Value, Value] = {}
        self.remarks: list[Remark] = []

    def program(self) -> Program:
        ops = self.block(self.before.ops, "")
        return replaced(self.before, ops=ops, returns=substitute(self.before.returns, self.rename))

    def block(self, before: Sequence[Op], repeated: str) -> tuple[Op, ...]:
        """The ops of a block; `repeated` is the `loop` or `map` around it, "" outside."""

        def region(held: Region) -> Region:
            inside = op.mnemonic if isinstance(op, Loop | Map) else repeated
            ops = self.block(held.ops, inside)
            return replaced(held, ops=ops, results=substitute(held.results, self.rename))

        made: list[Op] = []
        for op in before:
            op = reading(op, self.rename)
            if isinstance(op, Call):
                made += self.call(op, repeated)
            else:
                made.append(with_regions(op, region))
        return tuple(made)

    def call(self, op: Call, repeated: str) -> Iterator[Op]:
        inner = _Inlining(op.program, self.max_ops)
        op = replaced(op, program=inner.program())
        self.remarks += inner.remarks
        name, length = op.program.name, sum(1 for _ in walk(op.program.ops))
        why = f"its sites name the iteration of the `{repeated}` around it" if repeated else ""
        if length > self.left:
            why = f"with its {length} ops the program would have more than {self.max_ops}"
        if why:
            self.remarks.append(Remark("inline_calls", f"`{name}` stays a call: {why}", place(op.loc)))
            yield op
            return
        self.left -= length
        said = f"`{name}` runs as a part of `{self.before.name}`"
        self.remarks.append(Remark("inline_calls", said, place(op.loc)))
        yield from self.spliced(op)

    def spliced(self, op: Call) -> Iterator[Op]:
        """The ops of the called program, under names of their own and with the sites that they run under."""
        called, own = op.program, dict[Value, Value]()
        for param, arg in zip(called.params, op.args, strict=True):
            (value,) = param.results
            if isinstance(arg, str):
                text = self.value(Type.TEXT)
                yield Format((arg,), results=(text,), loc=op.loc)
                own[value] = text
            else:
                own[value] = arg
        own.update((value, self.value(value.type)) for value in definitions(called.ops))
        inside = rewritten(called.ops, partial(_under, call=str(op.site)), calls=False)
        yield from (renamed(inner, own) for inner in inside)
        # Two generations must not meet in a stream that the called program goes on from, or gives twice.
        taken = dict.fromkeys(stream for inner in walk(called.ops) for stream in continued(inner))
        for result, value in zip(op.results, values_in(called.returns), strict=True):
            made = own[value]
            if value.type is Type.STREAM:
                if value in taken:
                    branch = self.value(Type.STREAM)
                    yield Fork(made, results=(branch,), loc=op.loc)
                    made = branch
                taken[value] = None
            self.rename[result] = made

    def value(self, kind: Type) -> Value:
        return Value(next(self.fresh), kind)


def _under(op: Op, call: str) -> Op | None:
    """The op of a called program as it is under `call`, where its own variables and prompt have no names."""
    match op:
        case Store() | Prompt():
            return None
        case Gen() | Select() | Join() | Call():
            return replaced(op, site=op.site.inside(call, ()))
        case _:
            return op
