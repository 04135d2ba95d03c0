"""Where the interpreter stands in a program, and what it may not do there."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sglc.errors import Loc
from sglc.frontend.locate import of_node, shown_path
from sglc.frontend.tracing.outside import Frame, OutsideState, held_in, in_fields_of
from sglc.frontend.values.graph_breaks import ITERATION, OUTSIDE, TRIED, ArmsApart, GraphBreak
from sglc.frontend.values.symbolic import Symbolic, SymbolicBool, SymbolicJson, SymbolicList, SymbolicText
from sglc.ir.core import NOWHERE, Value

_PLAIN = (str, int, float, bool, type(None))
_MOST_STEPS = 50_000


@dataclass(frozen=True, slots=True)
class Handler:
    """An `except` clause: the classes that it catches, and whether it names the error."""

    kinds: tuple[type, ...]
    named: bool


@dataclass(frozen=True, slots=True, eq=False)
class Guarded:
    """A `try` around, in so many blocks of structured ops.

    Attributes:
        look_up: its handlers; None if they cannot be told before something has failed.
        final: it has a `finally:`, which sees every failure.
    """

    look_up: Callable[[], tuple[Handler, ...] | None]
    final: bool
    blocks: int

    def sees(self, error: type) -> bool:
        """Whether it would see an error of that class, or of one of its subclasses."""
        handlers = None if self.final else self.look_up()
        if handlers is None:
            return True
        return any(
            issubclass(error, kind) or issubclass(kind, error) for each in handlers for kind in each.kinds
        )


class Holder:
    """What holds values of the program, and is no container of Python's."""

    def held(self) -> Iterable[Any]:
        """These values."""
        raise NotImplementedError


@dataclass(eq=False, kw_only=True)
class Evaluation:
    """The part of a tracer that the interpreter keeps up."""

    at: Loc = NOWHERE  # of the function
    node: ast.AST | None = None  # what is evaluated, and its file
    node_file: str = ""
    changes: int = 0  # to containers, attributes, names of other functions, iterators
    trying: int = 0  # statements around that are tried as blocks
    steps: int = 0  # statements and turns of loops that were interpreted
    copies: dict[Callable[..., Any], Callable[..., Any]] = field(default_factory=dict)  # interpreted helpers
    bodies: list[Callable[..., Any]] = field(default_factory=list)  # of structured ops, outermost first
    outside: OutsideState = field(default_factory=OutsideState)
    calling: list[Frame] = field(default_factory=list)  # of interpreted functions, innermost last
    called_tool: str = ""  # the last tool on this path
    unchecked: dict[Value, None] = field(default_factory=dict)  # generations read since then
    guarded: tuple[Guarded, ...] = ()  # `try` statements around that could see a failure, innermost last
    handling: list[Exception] = field(default_factory=list)  # in `except` blocks, innermost last
    standing: list[frozenset[int]] = field(default_factory=list)  # per block: ids of what was made before it
    copied: dict[int, Any] = field(default_factory=dict)  # by their ids, kept alive
    _places: dict[int, tuple[BaseException, Loc]] = field(default_factory=dict)
    _locs: dict[int, tuple[ast.AST, Loc]] = field(default_factory=dict)  # arms and turns come again
    _shown: dict[str, str] = field(default_factory=dict)  # of files, their names in places

    def place(self) -> Loc:
        """Where the program stands."""
        if self.node is None:
            return self.at
        found = self._locs.get(id(self.node))
        if found is None:
            shown = self._shown.get(self.node_file) or shown_path(self.node_file)
            self._shown[self.node_file] = shown
            found = self._locs[id(self.node)] = self.node, of_node(self.node, self.node_file, shown)
        return found[1]

    def raised_at(self, error: Exception, loc: Loc) -> None:
        """An exception goes through the program; the first place is where it was raised."""
        self._places.setdefault(id(error), (error, loc))

    def place_of(self, error: BaseException) -> Loc | None:
        """Where the program raised it."""
        found = self._places.get(id(error))
        return None if found is None else found[1]

    def was_read(self, value: Any) -> None:
        """The program has read a variable: no tool is called behind it if that has failed.

        Raises:
            GraphBreak: a tool may have changed it.
        """
        self.outside.unchanged(self, value)
        if isinstance(value, SymbolicText):
            self.unchecked.update(dict.fromkeys(part for part in value.parts if isinstance(part, Value)))
        elif isinstance(value, SymbolicList | SymbolicJson | SymbolicBool):
            self.unchecked[value.value] = None
        elif isinstance(value, list | tuple | dict):
            for item in value.values() if isinstance(value, dict) else value:
                self.was_read(item)

    def step(self) -> None:
        """One more statement, or turn of a loop, is interpreted.

        Raises:
            GraphBreak: there were too many, on all paths together.
        """
        self.steps += 1
        if self.steps > _MOST_STEPS:
            raise GraphBreak(f"tracing takes more than {_MOST_STEPS:,} steps", self.place(), ITERATION)

    def may_fail(self, what: str, error: type = BaseException) -> None:
        """`what` can fail when the program runs, with an error of that class.

        Raises:
            GraphBreak: the program could catch that.
        """
        if self.guarded and any(guarded.sees(error) for guarded in self.guarded):
            raise GraphBreak(f"{what} can fail inside of a `try`", self.place(), TRIED)

    def about_to_change(self) -> None:
        """Something is about to be changed that recording a block does not put back.

        Raises:
            ArmsApart: it would be one that is only tried.
        """
        if self.trying:
            raise ArmsApart
        self.changes += 1

    def change(self, value: Any, what: str) -> None:
        """`value` is about to be changed.

        Raises:
            GraphBreak: the change could be seen behind the program, or behind the block that is recorded.
        """
        self.about_to_change()
        if not self.may_move(value):
            raise GraphBreak(f"{what} changes what outlives the program", self.place(), OUTSIDE)
        if id(value) in self.copied:
            raise GraphBreak(f"{what} changes what a plan has a copy of", self.place(), OUTSIDE)
        if isinstance(value, Symbolic):
            reason = f"{what} changes a value that only exists when the program runs"
            raise GraphBreak(reason, self.place(), OUTSIDE)
        known = isinstance(value, list | dict | set) or type(value).__module__ == "collections"
        if not known and not dataclasses.is_dataclass(value):
            reason = f"{what} of a `{type(value).__name__}` runs code of its own"
            raise GraphBreak(reason, self.place(), OUTSIDE)

    def copy(self, value: Any) -> None:
        """A plan gets what a value holds now: who changes it behind that would be seen by Python alone."""
        reachable([value], self.copied)

    def hand(self, values: Iterable[Any], name: str) -> None:
        """A tool is about to be given these, which it may change.

        Raises:
            GraphBreak: a plan has a copy of one.
        """
        found: dict[int, Any] = {}
        reachable(values, found)
        for item in (self.copied[key] for key in found.keys() & self.copied.keys()):
            data = (
                item.kind in (list, dict, set)
                if isinstance(item, SymbolicJson)
                else isinstance(item, SymbolicList)
            )
            if data or not isinstance(item, Symbolic | tuple):
                raise GraphBreak(f"`{name}` may change what a plan has a copy of", self.place(), OUTSIDE)

    def may_move(self, value: Any) -> bool:
        """Whether it was made in the program, and in the block that is recorded."""
        return not (self.outside.is_outside(value) or any(id(value) in ids for ids in self.standing))

    @contextmanager
    def inside_block(self, body: Callable[..., Any], stored: Iterable[Any]) -> Iterator[None]:
        """What is made from here on belongs to a block; what was there before is not changed in it.

        Args:
            stored: the variables of all states.
        """
        found: dict[int, Any] = {}
        reachable(stored, found)
        for frame in self.calling:
            outer: Frame | None = frame
            while outer is not None:
                reachable(outer.values.values(), found)
                outer = outer.outer
        self.bodies.append(body)
        self.standing.append(frozenset(found))
        try:
            yield
        finally:
            self.bodies.pop()
            self.standing.pop()


def reachable(items: Iterable[Any], found: dict[int, Any]) -> None:
    """Everything that could be changed in containers, by its id."""
    for item in items:
        if id(item) not in found and not isinstance(item, _PLAIN):
            found[id(item)] = item
            held = item.held() if isinstance(item, Holder) else (*held_in(item), *in_fields_of(item))
            reachable(held, found)
