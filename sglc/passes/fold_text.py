"""Adjacent texts become one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import count

from sglc.ir.core import Op, Program, Type, Value, attributes, operands, substitute, values_in
from sglc.ir.ops import Append, Format, Gen, Select
from sglc.ir.target import Target
from sglc.passes.base import Exactness, Rewrite, register

_Parts = tuple[Value | str, ...]


@register("fold_text", Exactness.TOKENS, "adjacent appends and nested formats become one")
def fold_text(program: Program, _: Target) -> Rewrite:
    """Merge texts that stand beside each other.

        s1 = append(s0, 'a'); s2 = append(s1, x); s3 = append(s2, 'b')
            -> t0 = format(('a', x, 'b')); s3 = append(s0, t0)     if s1 and s2 have no other use
        t1 = format(('a', format(('b', x)), ''))  ->  t1 = format(('ab', x))
        s1 = append(s0, '')                       ->  s0

    Exact in text, and in tokens too: the runtime encodes each run of literals between two
    generations as one string, wherever an append ends. Linear in the ops.
    """
    return _appends(_formats(program))


def _formats(program: Program) -> Program:
    """Flatten formats into the formats and appends that use them; drop those that nothing uses."""
    flat: dict[Value, _Parts] = {}
    rename: dict[Value, Value] = {}
    ops: list[Op] = []
    for op in program.ops:
        op = _renamed(op, rename)
        match op:
            case Format():
                parts = _merged(part for item in op.parts for part in _expand(item, flat))
                match parts:
                    case (Value() as only,):
                        rename[op.results[0]] = only
                        continue
                    case _:
                        flat[op.results[0]] = parts
                        ops.append(replace(op, parts=parts))
            case Append() if isinstance(op.text, Value):
                ops.append(replace(op, text=_literal(op.text, flat)))
            case Select():
                ops.append(replace(op, choices=tuple(_literal(choice, flat) for choice in op.choices)))
            case _:
                ops.append(op)
    made = replace(program, ops=tuple(ops), returns=substitute(program.returns, rename))
    return _without_unused_formats(made)


def _appends(program: Program) -> Program:
    """Merge chains of appends whose inner streams have no other use."""
    uses = Counter(value for op in program.ops for value in operands(op))
    uses.update(values_in(program.returns))
    generations = Counter(op.stream for op in program.ops if isinstance(op, Gen | Select))
    extended = {op.stream for op in program.ops if isinstance(op, Append)}
    flat = {op.results[0]: op.parts for op in program.ops if isinstance(op, Format)}
    fresh = count(1 + max((v.id for op in (*program.params, *program.ops) for v in op.results), default=-1))
    rename: dict[Value, Value] = {}
    chains: dict[
        Value, tuple[Value, list[Value | str]]
    ] = {}  # inner stream -> where its chain began, its texts
    ops: list[Op] = []
    for op in program.ops:
        op = _renamed(op, rename)
        if not isinstance(op, Append):
            ops.append(op)
            continue
        after = op.results[0]
        base, texts = chains.pop(op.stream, (op.stream, []))
        # The list moves along the chain instead of being copied, which keeps long chains linear.
        texts.append(op.text)
        if uses[after] == 1 and after in extended:
            chains[after] = (base, texts)
            continue
        match _merged(part for text in texts for part in _expand(text, flat)):
            # Two generations must not meet in one stream, so an empty append may stand between them.
            case () if generations[base] + generations[after] <= 1:
                rename[after] = base
                generations[base] += generations[after]
            case ():
                ops.append(replace(op, stream=base, text=""))
            case (only,):
                ops.append(replace(op, stream=base, text=only))
            case parts if len(texts) == 1:
                del parts
                ops.append(op)
            case parts:
                text = Value(next(fresh), Type.TEXT)
                ops.append(Format(parts, results=(text,), loc=op.loc))
                ops.append(replace(op, stream=base, text=text))
    made = replace(program, ops=tuple(ops), returns=substitute(program.returns, rename))
    return _without_unused_formats(made)


def _without_unused_formats(program: Program) -> Program:
    used = {value for op in program.ops for value in operands(op)} | set(values_in(program.returns))
    ops = tuple(op for op in program.ops if not (isinstance(op, Format) and op.results[0] not in used))
    return replace(program, ops=ops)


def _renamed(op: Op, rename: Mapping[Value, Value]) -> Op:
    if not any(value in rename for value in operands(op)):
        return op
    return replace(op, **{name: substitute(item, rename) for name, item in attributes(op)})


def _expand(item: Value | str, flat: Mapping[Value, _Parts]) -> Iterator[Value | str]:
    """The parts of a format, or the item itself. Formats in `flat` are flat already."""
    if isinstance(item, Value) and item in flat:
        yield from flat[item]
    else:
        yield item


def _literal(item: Value | str, flat: Mapping[Value, _Parts]) -> Value | str:
    """The text of a format that holds only a literal, else the item."""
    if isinstance(item, str) or item not in flat:
        return item
    match flat[item]:
        case ():
            return ""
        case (str() as text,):
            return text
        case _:
            return item


def _merged(parts: Iterable[Value | str]) -> _Parts:
    """Parts with neighbouring literals joined and empty ones left out."""
    out: list[Value | str] = []
    literal: list[str] = []
    for part in parts:
        if isinstance(part, str):
            literal.append(part)
            continue
        if text := "".join(literal):
            out.append(text)
        literal = []
        out.append(part)
    if text := "".join(literal):
        out.append(text)
    return tuple(out)
