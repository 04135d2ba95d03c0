"""The values of a running plan: what stands under its names, and how trees of a plan are read.

Beside plain data there are kept streams, and the several texts of one generation (`n > 1`): as a text
these are the first one, as a variable all of them.

What a name stands for is found by a number, not looked up: the names of a block are numbered. A run of the
block has a list of values under these numbers, and stands in the run of the block that holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from sglc.ir.core import Site
from sglc.ir.plan.plan import Joined, OutputTree
from sglc.ir.plan.segment import Held, Slot
from sglc.ir.plan.uses import Name, names_in
from sglc.ir.values import Plain

# Under these names stand among the variables, which have no such names, the prompt's end, and what there is of
# the texts that a block would give, had it come to its end.
PROMPT, SO_FAR = "\0prompt", "\0so far"


@dataclass(frozen=True, slots=True)
class Samples:
    """All texts of one generation, at least one."""

    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Exact:
    """What one of Python's own functions gave: an object of any type, which reaches the user as it is."""

    item: Any


class Made:
    """A variable that is what a generation made, and where; nothing reads it before the end."""

    __slots__ = ("site", "value")

    def __init__(self, site: Site, value: Value) -> None:
        self.site = site
        self.value = value


class Kept:
    """A stream that the back end keeps under `number` (None: the empty stream), until nobody holds it.

    Args:
        free: is called with the number when the last holder lets go.
    """

    __slots__ = ("_free", "_holders", "number")

    def __init__(self, number: int | None, free: Callable[[int], None] | None = None) -> None:
        self.number = number
        self._free = free
        self._holders = 0

    @property
    def held_once(self) -> bool:
        """Whether just one needs it."""
        return self._holders == 1

    def hold(self) -> None:
        """One more needs it."""
        self._holders += 1

    def drop(self) -> None:
        """One needs it no more."""
        self._holders -= 1
        if not self._holders and self._free is not None and self.number is not None:
            self._free(self.number)


Value: TypeAlias = "Plain | Samples | Exact | Made | Kept | tuple[Value, ...] | Mapping[str, Value]"


def text(value: Value) -> str:
    """A value that is a text."""
    if isinstance(value, str):
        return value
    assert isinstance(value, Samples), value
    return value.texts[0]


def plain(value: Value) -> Plain:
    """A value without streams as plain data: of several texts the first."""
    if isinstance(value, str):
        return value
    match value:
        case Samples():
            return value.texts[0]
        case tuple():
            return tuple(plain(part) for part in value)
        case Mapping():
            return {key: plain(part) for key, part in value.items()}
        case Kept():
            raise AssertionError("a stream is no data")
        case _:
            return value  # type: ignore[return-value]  # an exact value is as good as plain data


def held_in(value: Value | Iterable[Value]) -> Iterator[Kept]:
    """Every stream in a value."""
    match value:
        case Kept():
            yield value
        case list() | tuple():
            for part in value:
                yield from held_in(part)
        case Mapping():
            for part in value.values():
                yield from held_in(part)
        case _:
            return


def as_python(value: Value, stream: Callable[[Kept], str] | None = None) -> Any:
    """A value for the user: lists as lists, all texts of a generation, and of a stream its text."""
    if type(value) is Made:
        value = value.value
    if value is None or isinstance(value, str):
        return value
    match value:
        case Samples():
            return list(value.texts)
        case Exact():
            return value.item
        case Kept():
            assert stream is not None
            return stream(value)
        case tuple():
            return [as_python(part, stream) for part in value]
        case Mapping():
            return {key: as_python(part, stream) for key, part in value.items()}
        case _:
            return value


def turn_parts(turns: Any) -> Iterator[tuple[str, str]]:
    """What `conversation` wants of what turns consist of: texts, marks, and lists of such."""
    match turns:
        case str():
            yield "text", turns
        case Mapping():
            for kind, said in turns.items():
                yield kind, str(said)
        case list() | tuple():
            for part in turns:
                yield from turn_parts(part)
        case _:
            raise AssertionError(turns)


# -- names and trees ------------------------------------------------------------------------

MISSING: Any = object()  # stands for what has not come


class Failed:
    """Stands for what a failed step should have given."""

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error


class Counter(Protocol):
    """Counts what is gone through, as `Meter` does."""

    def take(self, value: object) -> None: ...


class Environment:
    """The values of one run of a block, by the numbers of its names, inside those of the block around."""

    __slots__ = ("meter", "outer", "values")
    values: list[Any]
    outer: Environment | None
    meter: Counter | None


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
        number = self.own.get(name)
        return self._value(name) if number is None else number

    def _value(self, name: Name) -> Read:
        depth, around = 0, self
        while (number := around.own.get(name)) is None:
            if around.outer is None:
                return _constant(Kept(None))  # nothing was kept under that name
            depth, around = depth + 1, around.outer
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
    literals = [part if isinstance(part, str) else "" for part in parts]
    others = [(place, part) for place, part in enumerate(parts) if not isinstance(part, str)]

    def read(run: Environment) -> str:
        values, texts = run.values, literals.copy()
        for place, part in others:
            value = values[part] if type(part) is int else part(run)  # type: ignore[operator]
            texts[place] = value if type(value) is str else text(value)
        if run.meter is not None:
            run.meter.take(texts)
        return "".join(texts)

    return read


def read(tree: OutputTree, known: Mapping[Name, Value]) -> Value:
    """A tree of a plan, with what its names stand for; a text of which a part is not there is None."""
    match tree:
        case Held(None):
            return Kept(None)
        case Slot() | Held():
            return known[tree]
        case Joined():
            parts = [read(part, known) for part in tree.parts]
            return None if None in parts else "".join(map(text, parts))
        case tuple():
            return tuple(read(part, known) for part in tree)
        case Mapping():
            return {key: read(part, known) for key, part in tree.items()}
        case _:
            return tree
