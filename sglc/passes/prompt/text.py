"""What streams say becomes texts: `text_of` and `prompt` need no stream any more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from sglc.ir.core import (
    Op,
    Program,
    Region,
    Type,
    Value,
    inputs,
    values_in,
    walk,
    with_fields,
    with_regions,
)
from sglc.ir.effects import Effect, any_effect
from sglc.ir.ops import (
    Append,
    Cond,
    Control,
    Format,
    Gen,
    Prompt,
    RoleClose,
    RoleOpen,
    Select,
    Switch,
    TextOf,
    hands_over,
)
from sglc.ir.plan.segment import RoleMark
from sglc.passes.prompt.stream_parts import Parts, StreamParts

_READERS, _BRANCHES = (TextOf, Prompt), (Cond, Switch)
_NOTICED = ~Effect.DECIDES  # what an op that nothing reads has to be there for
PromptTexts = dict[Value, tuple[Value | str, ...]]  # by the stream that a `prompt` reads


def with_texts(program: Program, ids: Iterator[int], *, acts: bool) -> tuple[Program, PromptTexts]:
    """The program without `text_of`, and what its `prompt` ops say.

        s1 = append(s0, 'Q: '); s2, t0 = gen(s1, 'x'); t1 = text_of(s2)  ->  ...; t1 = format('Q: ', t0)

    What only streams needed that are read for their texts is gone (`with_needed`). `ids` are free. Where there
    are tools, or places where Python may take over (`acts`), a `prompt` op stands also before each op in which
    the program may end, in blocks that end with one.
    """
    asked = [op for op in walk(program.ops) if isinstance(op, _READERS)]
    if not asked:
        return program, {}
    if acts:
        program = with_fields(
            program, ops=_with_stood(program.ops, StreamParts(program, _part, Type.TEXT, ids))
        )
        asked = [op for op in walk(program.ops) if isinstance(op, _READERS)]
    streams = StreamParts(program, _part, Type.TEXT, ids)
    prompts: PromptTexts = {}
    texts: dict[Value, tuple[Value | str, ...]] = {}
    for op in asked:
        since = op.since if isinstance(op, TextOf) else None
        parts = tuple(part for part in streams.of(op.stream, since) if isinstance(part, Value | str))
        if isinstance(op, TextOf):
            texts[op.results[0]] = parts
        else:
            prompts[op.stream] = parts

    def change(op: Op) -> Op:
        if isinstance(op, TextOf):
            return Format(texts[op.results[0]], results=op.results, loc=op.loc)
        return op

    ops = streams.rebuilt(change) if texts or streams.widens else program.ops
    return with_needed(with_fields(program, ops=ops), prompts), prompts


def with_needed(program: Program, prompts: PromptTexts) -> Program:
    """The program without ops that need not run, and of which no needed one reads anything.

    Branches give only what is read behind them: streams that were read for their texts are no results any more.
    """
    return with_fields(program, ops=_needed(program.ops, {*values_in(program.returns)}, prompts))


def _with_stood(ops: Sequence[Op], streams: StreamParts) -> tuple[Op, ...]:
    """Ops with a `prompt` before each in which the program may end: as what its own prompt stands there."""
    end = next((op for op in reversed(ops) if isinstance(op, Prompt)), None)
    made = {value: place for place, op in enumerate(ops) for value in op.results}
    before = [] if end is None else [(made.get(value, -1), value) for value in streams.before(end.stream)]
    found: list[Op] = []
    for place, op in enumerate(ops):
        if any_effect(op, Effect.LEAVES):
            stood = next((value for at, value in before if at < place), None)
            if stood is not None:
                found.append(Prompt(stood, loc=op.loc))
            if op.region_fields:
                op = with_regions(op, lambda arm: with_fields(arm, ops=_with_stood(arm.ops, streams)))
        found.append(op)
    return tuple(found)


def _part(op: Op) -> Parts:
    match op:
        case Append(text=text):
            return (text,)
        case Control(text=text):
            return (text,)
        case RoleOpen() | RoleClose():
            return (RoleMark(op.role, isinstance(op, RoleOpen)).text,)
        case Gen() | Select():
            return (op.results[1],)
        case _:
            return ()  # a picture is no text


def _needed(ops: Sequence[Op], live: set[Value], prompts: PromptTexts) -> tuple[Op, ...]:
    """The ops that are needed where `live` values are, which grow by what they read."""
    kept: list[Op] = []
    for op in reversed(ops):
        if isinstance(op, Prompt):
            live.update(part for part in prompts[op.stream] if isinstance(part, Value))
            live.update(values_in(op.turns))
            kept.append(op)
            continue
        if live.isdisjoint(op.results) and not any_effect(op, _NOTICED):
            continue
        if isinstance(op, _BRANCHES):
            wanted = [number for number, value in enumerate(op.results) if value in live]
            results = tuple([op.results[number] for number in wanted])
            arm = partial(_arm, wanted=wanted, live=live, prompts=prompts)
            op = with_regions(op, arm, results=results)
        elif op.region_fields:
            op = with_regions(op, lambda region: _block(region, region.results, live, prompts))
        live.update(inputs(op))
        kept.append(op)
    return tuple(reversed(kept))


def _arm(region: Region, wanted: list[int], live: set[Value], prompts: PromptTexts) -> Region:
    results = () if hands_over(region) else tuple([region.results[number] for number in wanted])
    return _block(region, results, live, prompts)


def _block(region: Region, results: tuple[Value, ...], live: set[Value], prompts: PromptTexts) -> Region:
    live.update(results)
    return with_fields(region, ops=_needed(region.ops, live, prompts), results=results)
