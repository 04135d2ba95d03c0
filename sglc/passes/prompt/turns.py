"""The chat turns of a program's prompt, written into its `prompt` ops while turns are still turns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sglc.ir.core import Op, Program, Tree, Type, Value, fresh_ids, kinds, walk
from sglc.ir.depth import with_room
from sglc.ir.made_often import replaced
from sglc.ir.ops import Append, Gen, Image, Prompt, RoleClose, RoleOpen, Select
from sglc.ir.plan.segment import joined
from sglc.passes.prompt.stream_parts import Parts, StreamParts


@with_room
def with_turns(program: Program) -> Program:
    """`prompt` ops with what their turns consist of: texts, and marks where a turn or a picture is.

        prompt(s4)  ->  prompt(s4, turns=({'open': 'user'}, t0, {'close': 'user'}))

    What a branch or a loop adds is one value in it, a list of the same kind.
    """
    if not kinds(program) >= {Prompt, RoleOpen}:
        return program
    ops = list(walk(program.ops))
    if not any(isinstance(op, RoleOpen) for op in ops):  # those of called programs are not of its prompt
        return program
    streams = StreamParts(program, _part, Type.JSON, fresh_ids(program))
    asked = [op.stream for op in ops if isinstance(op, Prompt) and not op.turns]
    turns = {stream: joined(_in_turns(streams.of(stream))) for stream in asked}

    def change(op: Op) -> Op:
        return replaced(op, turns=turns[op.stream]) if isinstance(op, Prompt) and op.stream in turns else op

    return replaced(program, ops=streams.rebuilt(change))


def _part(op: Op) -> Parts:
    match op:
        case RoleOpen(role=role):
            return ({"open": role},)
        case RoleClose(role=role):
            return ({"close": role},)
        case Image(data=data):
            return ({"image": data},)
        case Append(text=text):
            return (text,)
        case Gen() | Select():
            return (op.results[1],)
        case _:
            return ()


def _in_turns(parts: Parts) -> Iterator[Tree]:
    """Parts without those outside of turns, as far as that can be seen."""
    inside = False
    for part in parts:
        match part:
            case Mapping():
                inside = "open" in part or ("image" in part and inside)
                if inside or "close" in part:
                    yield part
            case Value(type=Type.JSON):
                inside = True  # perhaps
                yield part
            case _ if inside:
                yield part
