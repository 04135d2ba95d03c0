"""Sections that the author lets move stand where more of the prompt is the same from row to row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from sglc.ir.core import (
    Op,
    Program,
    Region,
    Type,
    Value,
    fresh_ids,
    inputs,
    regions,
    values_in,
    walk,
    with_regions,
)
from sglc.ir.ops import Append, Arg, Call, Format, Image, ScopeBegin, ScopeEnd
from sglc.ir.remark import Remark, place
from sglc.ir.rewrite import everywhere
from sglc.ir.target import Target
from sglc.passes.base import Exactness, Rewrite, register

# How much a text changes: it is the same in every row, in rows of equal arguments, or in no other.
LITERAL, ARGUMENT, GENERATED = range(3)
_Part = Append | Image | ScopeBegin | ScopeEnd


@register(
    "reorder", Exactness.AGGRESSIVE, "movable sections that stand together: what changes least comes first"
)
def reorder(program: Program, target: Target) -> Rewrite:
    """Put movable sections that stand next to each other in another order: literals, arguments, the rest.

        s += section(question, movable=True)         s += section(RULES, movable=True)
        s += section(RULES, movable=True)        ->  s += section(question, movable=True)

    What follows a text that changes from row to row is computed anew in each; what stands before it is
    computed once. Only neighbours change places: a section never passes a generation, the border of a turn,
    text that is in no movable section, or a place from which something else goes on. Sections of one kind
    stay in their order. Where all that stands before the sections changes as much as they do, nothing
    is gained and nothing moves. The model reads the same sections in another order, and may answer
    differently: only the author can allow that, and only the user asks for this pass.
    """
    if not any(isinstance(op, ScopeBegin) and op.movable for op in everywhere(program.ops)):
        return program
    remarks: list[Remark] = []
    return _Reordering(program, target, remarks).program(), tuple(dict.fromkeys(remarks))


@dataclass(frozen=True, slots=True)
class _Section:
    """A whole section: its ops from `scope_begin` to `scope_end`, and how much its texts change."""

    ops: tuple[_Part, ...]
    rank: int

    @property
    def name(self) -> str:
        """How remarks call it: sections need no names of their own."""
        begin = self.ops[0]
        assert isinstance(begin, ScopeBegin)
        return f"`{begin.name}`" + (f" of line {begin.loc.line}" if begin.loc.line else "")


class _Reordering:
    """One program. `uses` counts the readers of each stream, `ranks` says how much each value changes."""

    def __init__(self, program: Program, target: Target, remarks: list[Remark]) -> None:
        self.before = program
        self.target = target
        self.remarks = remarks
        self.fresh = fresh_ids(program)
        self.uses = Counter(values_in(program.returns))
        self.formats: dict[Value, Format] = {}
        self.ranks: dict[Value, int] = {}
        for op in (*program.params, *walk(program.ops)):
            self.uses.update(inputs(op))
            self.uses.update(value for region in regions(op) for value in region.results)
            self.ranks.update(dict.fromkeys(op.results, self.rank(op)))
            if isinstance(op, Format):
                self.formats[op.results[0]] = op

    def program(self) -> Program:
        return replace(self.before, ops=self.block(self.before.ops))

    def rank(self, op: Op) -> int:
        """How much an op's results change. What a block is given, or a block gives, may change everywhere."""
        if isinstance(op, Arg):
            return ARGUMENT
        if not op.pure:
            return GENERATED
        return max((self.ranks.get(value, GENERATED) for value in inputs(op)), default=LITERAL)

    def block(self, before: Sequence[Op]) -> tuple[Op, ...]:
        readers: dict[Value, _Part] = {op.stream: op for op in before if isinstance(op, _Part)}
        moved: dict[Value, tuple[Op, ...]] = {}  # by the last stream of a run: what stands there instead
        gone: dict[Value, None] = {}  # streams of ops that stand elsewhere now
        for op in before:
            if isinstance(op, ScopeBegin) and op.movable and op.results[0] not in gone:
                run = list(self.run(op, readers))
                if (order := self.order(run)) != run:
                    gone.update(dict.fromkeys(part.results[0] for section in run for part in section.ops))
                    moved[run[-1].ops[-1].results[0]] = tuple(self.rewritten(run, order))
        made: list[Op] = []
        for op in before:
            if isinstance(op, _Part) and op.results[0] in gone:
                made += moved.get(op.results[0], ())
            elif isinstance(op, Call):
                inner = _Reordering(op.program, self.target, self.remarks)
                made.append(replace(op, program=inner.program()))
            else:
                made.append(with_regions(op, self.region))
        return tuple(made)

    def region(self, region: Region) -> Region:
        return replace(region, ops=self.block(region.ops))

    def run(self, begin: ScopeBegin, readers: Mapping[Value, _Part]) -> Iterator[_Section]:
        """The movable sections from `begin` on that stand next to each other, each as a whole."""
        op: _Part | None = begin
        while isinstance(op, ScopeBegin) and op.movable and (ops := self.section(op, readers)):
            texts = [self.content(part) for part in ops]
            yield _Section(ops, max(self.text_rank(text) for text in texts))
            op = self.next(ops[-1], readers)

    def section(self, begin: ScopeBegin, readers: Mapping[Value, _Part]) -> tuple[_Part, ...]:
        """The ops of a section; none if something else than texts and pictures stands in it, or reads in it."""
        ops: list[_Part] = []
        op: _Part | None = begin
        depth = 0
        while op is not None:
            ops.append(op)
            depth += isinstance(op, ScopeBegin) - isinstance(op, ScopeEnd)
            if not depth:
                return tuple(ops)
            op = self.next(op, readers)
        return ()

    def next(self, op: _Part, readers: Mapping[Value, _Part]) -> _Part | None:
        """What goes on from `op` in its block, if nothing else does."""
        return readers.get(op.results[0]) if self.uses[op.results[0]] == 1 else None

    def content(self, op: _Part) -> Value | str:
        match op:
            case Append():
                return op.text
            case Image():
                return op.data
            case _:
                return ""

    def text_rank(self, text: Value | str) -> int:
        return LITERAL if isinstance(text, str) else self.ranks.get(text, GENERATED)

    def base(self, run: Sequence[_Section]) -> int:
        """How much changes before a run."""
        return self.ranks.get(run[0].ops[0].stream, GENERATED)

    def order(self, run: Sequence[_Section]) -> list[_Section]:
        """The sections, those that change least first; nothing changes less than what stands before it."""
        return sorted(run, key=lambda section: max(section.rank, self.base(run))) if run else []

    def rewritten(self, run: Sequence[_Section], order: Sequence[_Section]) -> Iterator[Op]:
        """The ops of a run in their new order, from the same stream to the same stream."""
        stream, last = run[0].ops[0].stream, run[-1].ops[-1].results[0]
        parts = [op for section in order for op in section.ops]
        for number, op in enumerate(parts, 1):
            after = last if number == len(parts) else Value(next(self.fresh), Type.STREAM)
            yield replace(op, stream=stream, results=(after,))
            stream = after
        self.remark(run, order)

    def remark(self, run: Sequence[_Section], order: Sequence[_Section]) -> None:
        gained = [section for section in _reach(order, LITERAL) if section not in _reach(run, LITERAL)]
        if self.base(run) == LITERAL and gained:
            why = f"{self.amount(gained)} more stand before the first text that changes from row to row"
        else:
            why = "more stands before the first text that a model makes"
        said = f"the order is {', '.join(section.name for section in order)}: {why}"
        self.remarks.append(Remark("reorder", said, place(run[0].ops[0].loc)))

    def amount(self, sections: Iterable[_Section]) -> str:
        """The literals of sections, in tokens where there is a tokenizer."""
        texts = [self.content(op) for section in sections for op in section.ops]
        parts = [part for text in texts for part in self.parts(text) if isinstance(part, str)]
        if self.target.tokenizer is None:
            return f"{sum(map(len, parts))} characters of literals"
        return f"{sum(len(self.target.tokenizer.encode(part)) for part in parts)} tokens of literals"

    def parts(self, text: Value | str) -> Sequence[Value | str]:
        if isinstance(text, Value) and text in self.formats:
            return self.formats[text].parts
        return (text,)


def _reach(sections: Sequence[_Section], rank: int) -> Sequence[_Section]:
    """The sections before the first one that changes more than `rank` says."""
    return list(takewhile(lambda section: section.rank <= rank, sections))
