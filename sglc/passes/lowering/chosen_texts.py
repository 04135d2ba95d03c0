"""What blocks append last is appended behind them: a segment that only appends would be one more to wait for.

s3 = cond(b0):                          t1 = cond(b0):
    s2 = append(s1, ' again')               yield ' again'
    yield s2                      ->    else:
else:                                       yield ''
    yield s1                            s3 = append(s1, t1)

s5 = switch(t0):                        s6, t4 = switch(t0):
    case 'a':                               case 'a':
        s2, t1 = gen(s1, 'x')                   s2, t1 = gen(s1, 'x')
        t2 = tool('f', (t1,))                   t2 = tool('f', (t1,))
        s3 = append(s2, t2)       ->            yield s2, t2
        yield s3                            case 'b':
    case 'b':                                   yield s1, 'none'
        s4 = append(s1, 'none')         s5 = append(s6, t4)
        yield s4

s5 = loop((s0,), 9) as s1:              s7, t4 = loop((s0, ''), 9) as s6, t3:
    s2, t1 = gen(s1, 'x')                   s1 = append(s6, t3)
    t2 = tool('f', (t1,))                   s2, t1 = gen(s1, 'x')
    s3 = append(s2, t2)           ->        t2 = tool('f', (t1,))
    yield b0, s3                            yield b0, s2, t2
                                        s5 = append(s7, t4)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from sglc.ir.core import Op, Program, Region, Type, Value, with_fields, with_regions
from sglc.ir.made_often import replaced
from sglc.ir.ops import ASKED, Append, Cond, Format, Loop, Switch, arms_of, hands_over


@dataclass(frozen=True, slots=True)
class _End:
    """How a block makes a prompt: what it appends last, and to which stream.

    `idle`: a segment would do nothing else. `late`: the text is not there when that stream is.
    """

    stream: Value
    parts: tuple[Value | str, ...]
    idle: bool
    late: bool

    @property
    def waits(self) -> bool:
        """Whether it would need a segment of its own."""
        return bool(self.parts) and (self.idle or self.late)


def with_chosen_texts(program: Program, ids: Iterator[int]) -> Program:
    """The program, in which no branch or loop needs a segment for what it appends last. `ids` are free."""
    return with_fields(program, ops=tuple(_changed(program.ops, ids)))


def _changed(ops: Iterable[Op], ids: Iterator[int]) -> Iterator[Op]:
    for op in ops:
        if not op.region_fields:
            yield op
            continue
        inner = with_regions(op, lambda region: with_fields(region, ops=tuple(_changed(region.ops, ids))))
        match inner:
            case Cond() | Switch():
                yield from _choosing(inner, ids)
            case Loop():
                yield from _carrying(inner, ids)
            case _:
                yield inner


def _choosing(op: Cond | Switch, ids: Iterator[int]) -> Iterator[Op]:
    for place, value in enumerate(op.results):
        if value.type is Type.STREAM:
            ends = [_end(arm, arm.results[place]) for arm in arms_of(op) if not hands_over(arm)]
            if any(end.waits for end in ends):
                yield from _split(op, place, ends, ids)
                return
    yield op


def _split(op: Cond | Switch, place: int, ends: Sequence[_End], ids: Iterator[int]) -> Iterator[Op]:
    """`op` that gives the text at its end, and what it is appended to if that is not the same in all arms."""
    text = Value(next(ids), Type.TEXT)
    same = len({end.stream for end in ends}) == 1 and ends[0].idle
    stream = ends[0].stream if same else Value(next(ids), Type.STREAM)
    left = iter(ends)

    def change(arm: Region) -> Region:
        if hands_over(arm):
            return arm
        end, made = next(left), Value(next(ids), Type.TEXT)
        streams = () if same else (end.stream,)
        results = (*arm.results[:place], *streams, *arm.results[place + 1 :], made)
        return replaced(arm, ops=(*arm.ops, Format(end.parts, results=(made,), loc=op.loc)), results=results)

    streams = () if same else (stream,)
    results = (*op.results[:place], *streams, *op.results[place + 1 :], text)
    yield from _choosing(with_regions(op, change, results=results), ids)  # type: ignore[arg-type]
    yield Append(stream, text, results=(op.results[place],), loc=op.loc)


def _carrying(op: Loop, ids: Iterator[int]) -> Iterator[Op]:
    for place, value in enumerate(op.init):
        if value.type is Type.STREAM:
            end = _end(op.body, op.body.results[place + 1])
            others = (*op.body.params[:place], *op.body.params[place + 1 :])
            if end.waits and end.stream not in others:
                yield from _carried(op, place, end, ids)
                return
    yield op


def _carried(op: Loop, place: int, end: _End, ids: Iterator[int]) -> Iterator[Op]:
    """`op` that carries the text at the end of a stream beside it."""
    nothing, before, made, text = (Value(next(ids), Type.TEXT) for _ in range(4))
    begun, stream = (Value(next(ids), Type.STREAM) for _ in range(2))
    own = op.body.params[place]
    again, *carried = op.body.results
    if end.stream == own:  # it does nothing else
        carried[place], parts = begun, (before, *end.parts)
    else:
        carried[place], parts = end.stream, end.parts
    body = replaced(
        op.body,
        params=(*_with(op.body.params, place, begun), before),
        ops=(
            Append(begun, before, results=(own,), loc=op.loc),
            *op.body.ops,
            Format(parts, results=(made,), loc=op.loc),
        ),
        results=(again, *carried, made),
    )
    results = (*_with(op.results, place, stream), text)
    yield Format((), results=(nothing,), loc=op.loc)
    yield from _carrying(replaced(op, init=(*op.init, nothing), body=body, results=results), ids)
    yield Append(stream, text, results=(op.results[place],), loc=op.loc)


def _with(values: Sequence[Value], place: int, other: Value) -> tuple[Value, ...]:
    return (*values[:place], other, *values[place + 1 :])


def _end(arm: Region, value: Value) -> _End:
    made = {result: op for op in arm.ops for result in op.results}
    parts: list[Value | str] = []
    while isinstance(op := made.get(value), Append):
        parts.append(op.text)
        value = op.stream
    late = any(map(partial(_is_late, made), parts))
    return _End(value, tuple(reversed(parts)), value not in made, late)


def _is_late(made: Mapping[Value, Op], part: Value | str) -> bool:
    """Whether an arm has to do more for a text than to generate."""
    op = made.get(part) if isinstance(part, Value) else None
    if isinstance(op, Format):
        return any(map(partial(_is_late, made), op.parts))
    return op is not None and not isinstance(op, ASKED)
