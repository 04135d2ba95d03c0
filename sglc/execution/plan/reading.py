"""Names and trees of a plan as functions of a run: what a name stands for is found by a number, not looked up.

The names of a block are numbered. A run of the block has a list of values under these numbers, and stands in
the run of the block that holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sglc.execution.plan.meter import Meter
from sglc.execution.plan.values import Kept, Value, text
from sglc.ir.plan.plan import Joined, OutputTree
from sglc.ir.plan.segment import Held, Slot
from sglc.ir.plan.uses import Name, names_in

MISSING: Any = object()  # stands for what has not come


class Failed:
    """Stands for what a failed step should have given."""

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error


class Environment:
    """The values of one run of a block, by the numbers of its names, inside those of the block around."""

    __slots__ = ("meter", "outer", "values")
    values: list[Any]
    outer: Environment | None
    meter: Meter | None


Read = Callable[[Environment], Value]


class Names:
    """The numbers of a block's names, inside those of the block around."""

    def __init__(self, own: Iterable[Name], outer: Names | None = None) -> None:
        self.own = {name: number for number, name in enumerate(dict.fromkeys(own))}
        self.outer = outer

    def reader(self, tree: OutputTree) -> Read:
        """What reads a tree in a run, when all that it names is there."""
        match tree:
            case Held(None):
                return _constant(Kept(None))
            case Slot() | Held():
                return self._value(tree)
            case Joined(parts):
                return _joined([part if isinstance(part, str) else self._place(part) for part in parts])
            case tuple() if any(names_in(tree)):
                items = [self.reader(part) for part in tree]
                return lambda run: tuple([read(run) for read in items])
            case Mapping() if any(names_in(tree)):
                named = {key: self.reader(part) for key, part in tree.items()}
                return lambda run: {key: read(run) for key, read in named.items()}
            case _:
                return _constant(tree)  # type: ignore[arg-type]  # it holds no names

    def known(self, names: Iterable[Name], run: Environment) -> dict[Name, Value] | None:
        """What names stand for as far as it is there, None for the others; None if nothing is there."""
        found: dict[Name, Value] = {}
        missing = 0
        for name in dict.fromkeys(names):
            value: Any = self._value(name)(run)
            there = value is not MISSING and not isinstance(value, Failed)
            found[name] = value if there else None
            missing += not there
        return None if found and missing == len(found) else found

    def _place(self, name: Name) -> int | Read:
        """The number of a name of the block itself, or else what reads it."""
        return self.own[name] if name in self.own else self._value(name)

    def _value(self, name: Name) -> Read:
        depth, around = 0, self
        while name not in around.own:
            if around.outer is None:
                return _constant(Kept(None))  # nothing was kept under that name
            depth, around = depth + 1, around.outer
        number = around.own[name]
        if depth == 0:
            return lambda run: run.values[number]
        if depth == 1:
            return lambda run: run.outer.values[number]  # type: ignore[union-attr]

        def far(run: Environment) -> Value:
            at: Any = run
            for _ in range(depth):
                at = at.outer
            return at.values[number]  # type: ignore[no-any-return]

        return far


def _constant(value: Value) -> Read:
    return lambda run: value


def _joined(parts: list[str | int | Read]) -> Read:
    def read(run: Environment) -> str:
        values = run.values
        found = [
            part if type(part) is str else values[part] if type(part) is int else part(run)  # type: ignore[operator]
            for part in parts
        ]
        texts = [value if type(value) is str else text(value) for value in found]
        if run.meter is not None:
            run.meter.take(texts)
        return "".join(texts)

    return read
