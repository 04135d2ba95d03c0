"""A compiled program in words: its decisions with what stands in them, and where it ends as one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sglc.frontend.values.graph_breaks import BreakPlace
from sglc.ir.core import Op, Program, Region, Value, inputs, regions, walk
from sglc.ir.ops import (
    Call,
    Cond,
    Gen,
    HostCall,
    Loop,
    Lower,
    Map,
    PureCall,
    Select,
    Strip,
    Switch,
    Tool,
)
from sglc.ir.text.graph import waves
from sglc.passes.compile import Compiled

_Row = tuple[str, str, str, str, str]


def structure(compiled: Compiled) -> Iterator[str]:
    """The program's decisions and what stands in them, if it has any."""
    if any(not isinstance(op, Gen | Select) and _shown(op) for op in walk(compiled.lowered.ops)):
        yield from table(compiled.lowered)


def graph_breaks(breaks: Sequence[BreakPlace]) -> Iterator[str]:
    """Where ordinary Python takes over, why, and what to write instead."""
    for place in breaks:
        yield f"graph break at {place.loc}: {place.reason}"
        if place.hint:
            yield f"  {place.hint}"


def table(program: Program) -> Iterator[str]:
    """One row a generation, by what must be done before it; blocks are indented below what they belong to."""
    rows = [("wave", "op", "site", "new", "from")]
    arms = _arms(program)
    for number, wave in enumerate(waves(program), 1):
        for op in wave:
            rows += _rows(op, arms, str(number), "")
    if len(rows) > 1:
        yield from aligned(rows)


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows with their cells one below the other."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        yield "  ".join([*cells, row[-1]]).rstrip()


def _rows(op: Op, arms: dict[Value, str], wave: str, indent: str) -> Iterator[_Row]:
    """An op's row and, indented, those of what is in its blocks."""

    def row(name: str, site: str = "", new: str = "") -> _Row:
        return wave, indent + name, site, new, str(op.loc)

    match op:
        case Gen():
            most = op.sampling.max_tokens * op.sampling.n
            new = arms.get(op.results[1]) or ("" if op.limit else f"<={most}")
            yield row("gen", str(op.site), new)
        case Select():
            yield row("select", str(op.site), arms.get(op.results[1]) or f"1 of {len(op.choices)}")
        case Tool() | PureCall():
            yield row("tool" if isinstance(op, Tool) else "pure", op.name)
        case HostCall():
            yield row("raise", op.error) if op.error else row("python", "ordinary Python from here")
        case Call():
            yield row("call", str(op.site))
            yield from _inner(op.program.ops, _arms(op.program), indent)
        case Switch():
            yield row("switch")
            for case, arm in zip(op.cases, op.arms, strict=True):
                yield from _block(f"case {case!r}", arm, arms, indent)
            if op.default is not None:
                yield from _block("else", op.default, arms, indent)
        case Cond():
            yield row("cond")
            yield from _block("then", op.then, arms, indent)
            yield from _block("else", op.orelse, arms, indent)
        case Loop():
            yield row("loop", f"at most {op.max_iters} times")
            yield from _inner(op.body.ops, arms, indent)
        case Map():
            yield row("map", "each item")
            yield from _inner(op.body.ops, arms, indent)
        case _:
            yield row(op.mnemonic)
            for region in regions(op):
                yield from _inner(region.ops, arms, indent)


def _block(title: str, region: Region, arms: dict[Value, str], indent: str) -> Iterator[_Row]:
    yield "", f"{indent}  {title}", "", "", ""
    yield from _inner(region.ops, arms, indent + "  ")


def _inner(ops: Sequence[Op], arms: dict[Value, str], indent: str) -> Iterator[_Row]:
    for op in ops:
        if _shown(op):
            yield from _rows(op, arms, "", indent + "  ")


def _shown(op: Op) -> bool:
    """Whether an op, or what is in it, has a row of its own."""
    kinds = (Gen, Select, Tool, PureCall, HostCall, Call)
    return any(isinstance(inner, kinds) for inner in walk((op,)))


def _arms(program: Program) -> dict[Value, str]:
    """For each text that a `switch` branches on, how many of its values the program has an arm for."""
    made: dict[Value, Op] = {}
    found: dict[Value, str] = {}
    for op in walk(program.ops):
        made.update((result, op) for result in op.results)
        if not isinstance(op, Switch):
            continue
        value = op.value
        # Of a constant there is nothing before it.
        while isinstance(maker := made.get(value), Strip | Lower):
            if (before := next(iter(inputs(maker)), None)) is None:
                break
            value = before
        whole = [arm for arm in op.arms if not any(isinstance(inner, HostCall) for inner in walk(arm.ops))]
        total = len(maker.choices) if isinstance(maker, Select) else len(op.arms)
        found[value] = f"{len(whole)} of {total} arms"
    return found
