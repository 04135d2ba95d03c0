"""Which chat turns stand in every stream, so that only streams with the same turns are brought together.

A template may write a turn differently by those before it: a prompt that continues streams with
different turns could not be written exactly.
"""

from __future__ import annotations

from collections.abc import Sequence

from sglc.ir.core import Op, Type, Value, regions
from sglc.ir.ops import Cond, Loop, RoleClose, RoleOpen, Switch, arms_of, hands_over

# Finished turns in order, and the open one. Behind a loop that adds turns a number stands for them.
TurnHistory = tuple[tuple[str | int, ...], str]


class StreamTurns:
    """The turns of the streams of one trace, from its ops."""

    def __init__(self) -> None:
        self._turns: dict[Value, TurnHistory] = {}  # of streams that have any

    def of(self, stream: Value) -> TurnHistory:
        return self._turns.get(stream, ((), ""))

    def same(self, stream: Value, like: Value) -> None:
        """A new stream has the turns of another."""
        if like in self._turns:
            self._turns[stream] = self._turns[like]

    def alike(self, streams: Sequence[Value]) -> bool:
        return all(self.of(stream) == self.of(streams[0]) for stream in streams)

    def add(self, op: Op) -> None:
        """An op, whose operands are known, makes streams."""
        match op:
            case RoleOpen():
                self._turns[op.results[0]] = (self.of(op.stream)[0], op.role)
            case RoleClose():
                self._turns[op.results[0]] = ((*self.of(op.stream)[0], op.role), "")
            case _ if not op.region_fields:
                if self._turns and hasattr(op, "stream"):
                    for result in op.results:
                        if result.type is Type.STREAM:
                            self.same(result, op.stream)
            case Cond() | Switch():
                self._inside(op)
                back = [arm for arm in arms_of(op) if not hands_over(arm)]
                for result, *values in zip(op.results, *(arm.results for arm in back), strict=True):
                    if result.type is Type.STREAM:
                        self._joined(result, values)
            case Loop():
                for param, init in zip(op.body.params, op.init, strict=True):
                    self.same(param, init)
                self._inside(op)
                for result, *values in zip(op.results, op.init, op.body.results[1:], strict=True):
                    if result.type is Type.STREAM:
                        self._joined(result, values)
            case _:
                self._inside(op)

    def _inside(self, op: Op) -> None:
        for region in regions(op):
            for inner in region.ops:
                self.add(inner)

    def _joined(self, result: Value, values: Sequence[Value]) -> None:
        if self.alike(values):
            self.same(result, values[0])
        else:
            self._turns[result] = ((result.id,), self.of(values[0])[1])
