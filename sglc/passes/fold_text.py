"""Adjacent texts become one."""

from __future__ import annotations

from bisect import bisect
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from sglc.ir.core import (
    Op,
    Program,
    Region,
    Type,
    Value,
    all_ops,
    fresh_ids,
    inputs,
    kinds,
    reading,
    regions,
    substitute,
    values_in,
    walk,
    with_fields,
    with_regions,
)
from sglc.ir.effects import Effect, any_effect
from sglc.ir.made_often import replaced
from sglc.ir.ops import CONTINUING, Append, Call, Format, HostCall, Select, Tool, continued
from sglc.ir.plan.segment import joined
from sglc.ir.target import Target
from sglc.passes.base import Exactness, Kind, Rewrite, register

_Parts = tuple[Value | str, ...]


@register("fold_text", Exactness.TOKENS, "adjacent appends and nested formats become one", Kind.ENABLING)
def fold_text(program: Program, _: Target) -> Rewrite:
    """Merge texts that stand beside each other.

        s1 = append(s0, 'a'); s2 = append(s1, x); s3 = append(s2, 'b')
            -> t0 = format(('a', x, 'b')); s3 = append(s0, t0)     if s1 and s2 have no other use
        t1 = format(('a', format(('b', x)), ''))  ->  t1 = format(('ab', x))
        s1 = append(s0, '')                       ->  s0

    Blocks and called programs are folded each by itself: an append never moves into a block, where
    it might run again. Exact in text, and in tokens too: the runtime encodes each run of literals
    between two generations as one string, wherever an append ends. Linear in the ops (times the
    depth of blocks).
    """
    return _Appends(program if _are_flat(program) else _formats(program)).program()


def _are_flat(program: Program) -> bool:
    """Whether no format stands in another text, or is less than two parts, so that there is none to flatten."""
    made = {op.results[0]: op.parts for op in all_ops(program) if isinstance(op, Format)}
    return Call not in kinds(program) and all(
        len(parts) > 1 and joined(parts) == parts and made.keys().isdisjoint(parts) for parts in made.values()
    )


def _formats(program: Program) -> Program:
    """Flatten formats into the formats and appends that use them."""
    flat: dict[Value, _Parts] = {}
    rename: dict[Value, Value] = {}

    def block(before: Iterable[Op]) -> tuple[Op, ...]:
        ops: list[Op] = []
        for op in before:
            op = reading(op, rename)
            match op:
                case Format():
                    parts = joined(part for item in op.parts for part in _expand(item, flat))
                    match parts:
                        case (Value() as only,):
                            rename[op.results[0]] = only
                            continue
                        case _:
                            flat[op.results[0]] = parts
                            ops.append(with_fields(op, parts=parts))
                case Append() if isinstance(op.text, Value):
                    ops.append(with_fields(op, text=_literal(op.text, flat)))
                case Select():
                    ops.append(
                        with_fields(op, choices=tuple([_literal(choice, flat) for choice in op.choices]))
                    )
                case Call():
                    ops.append(with_fields(op, program=_Appends(_formats(op.program)).program()))
                case _:
                    ops.append(with_regions(op, region))
        return tuple(ops)

    def region(before: Region) -> Region:
        ops = block(before.ops)
        return with_fields(before, ops=ops, results=substitute(before.results, rename))

    return with_fields(program, ops=block(program.ops), returns=substitute(program.returns, rename))


class _Appends:
    """Merges chains of appends whose inner streams have no other use; a chain stays in its block."""

    def __init__(self, program: Program) -> None:
        self.before = program
        self.flat: dict[Value, _Parts] = {}
        read, gone_on = [*values_in(program.returns)], list[Value]()
        for op in walk(program.ops):
            read += inputs(op)
            if op.region_fields:
                for region in regions(op):
                    read += region.results
            if isinstance(op, CONTINUING):
                gone_on += continued(op)
            elif isinstance(op, Format):
                self.flat[op.results[0]] = op.parts
        self.uses, self.continued = Counter(read), Counter(gone_on)
        self.acts = not kinds(program).isdisjoint((Tool, HostCall))
        self.fresh = fresh_ids(program)
        self.rename: dict[Value, Value] = {}

    def program(self) -> Program:
        ops = self.block(self.before.ops, (value for op in self.before.params for value in op.results))
        return with_fields(self.before, ops=ops, returns=substitute(self.before.returns, self.rename))

    def region(self, before: Region) -> Region:
        ops = self.block(before.ops, before.params)
        return with_fields(before, ops=ops, results=substitute(before.results, self.rename))

    def block(self, before: Iterable[Op], given: Iterable[Value]) -> tuple[Op, ...]:
        before = tuple(before)
        # By the stream that an append goes on from: how many ops stand before it in which the program may end.
        # A run that ends in one shows what stands before that op, and nothing of what stands behind it.
        acting = enumerate(before) if self.acts else ()
        leaves = [place for place, op in acting if any_effect(op, Effect.LEAVES)]
        extended = {
            op.stream: bisect(leaves, place) for place, op in enumerate(before) if isinstance(op, Append)
        }
        here: set[Value] = set()  # what the block makes, once that is asked
        # Of inner streams: where their chains began, and the texts.
        chains: dict[Value, tuple[Value, list[Value | str]]] = {}
        ops: list[Op] = []
        for place, op in enumerate(before):
            if self.rename:
                op = reading(op, self.rename)
            if not isinstance(op, Append):
                ops.append(with_regions(op, self.region) if op.region_fields else op)
                continue
            after = op.results[0]
            base, texts = chains.pop(op.stream, (op.stream, []))
            # The list moves along the chain instead of being copied, which keeps long chains linear.
            texts.append(op.text)
            if self.uses[after] == 1 and extended.get(after) == bisect(leaves, place):
                chains[after] = (base, texts)
                continue
            parts = joined(part for text in texts for part in _expand(text, self.flat))
            if not parts:
                here = here or {*given, *(value for op in before for value in op.results)}
            ops += self.merged(op, base, texts, parts, base in here)
        # What a block makes is read in it alone, so that by now it shows which formats nothing reads any more.
        return tuple(
            [
                op
                for op in ops
                if not isinstance(op, Format) or self.uses[op.results[0]] or op.results[0] not in self.flat
            ]
        )

    def merged(
        self, op: Append, base: Value, texts: list[Value | str], parts: _Parts, same_block: bool
    ) -> Iterator[Op]:
        """What is left of a chain that ends at `op`, of `texts` that consist of `parts`."""
        after = op.results[0]
        if len(parts) > 1 and len(texts) == 1:
            yield op
            return
        for text in texts:
            if isinstance(text, Value):
                self.uses[text] -= 1
        match parts:
            # Two generations must not meet in one stream, nor one in a loop continue a stream from
            # outside, so an empty append may stand between them.
            case () if self.continued[after] == 0 or (
                same_block and self.continued[base] + self.continued[after] <= 1
            ):
                self.rename[after] = base
                self.continued[base] += self.continued[after]
            case ():
                yield with_fields(op, stream=base, text="")
            case (only,):
                yield with_fields(op, stream=base, text=only)
            case _:
                text = Value(next(self.fresh), Type.TEXT)
                yield Format(parts, results=(text,), loc=op.loc)
                yield replaced(op, stream=base, text=text)


def _expand(item: Value | str, flat: Mapping[Value, _Parts]) -> _Parts:
    """The parts of a format, or the item itself. Formats in `flat` are flat already."""
    return flat[item] if isinstance(item, Value) and item in flat else (item,)


def _literal(item: Value | str, flat: Mapping[Value, _Parts]) -> Value | str:
    """The text of a format that holds only a literal, else the item."""
    match _expand(item, flat):
        case ():
            return ""
        case (str() as text,):
            return text
        case _:
            return item
