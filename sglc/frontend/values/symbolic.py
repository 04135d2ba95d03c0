"""Values that exist only when the program runs, for ahead-of-time compilation.

User code never sees a made-up value. What can be recorded is; where Python needs the value itself,
the tracer decides on one of finitely many (and comes back for the others), or raises `GraphBreak`.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Protocol

from sglc.errors import Loc, RunError
from sglc.frontend.locate import here
from sglc.frontend.outputs.output_form import OutputParser
from sglc.frontend.values.graph_breaks import (
    COMPARISON,
    CONDITION,
    FORMAT,
    ITERATION,
    KEY,
    METHOD,
    OTHER,
    RAISED,
    STR,
    TRIED,
    BreakKind,
    GraphBreak,
)
from sglc.frontend.values.known import HasKnown, Known, computed
from sglc.ir.core import Type, Value
from sglc.ir.facts import spell
from sglc.ir.pure import type_name


class Tracing(Protocol):
    """The tracer at work, as values see it."""

    def decidable(self, value: Value) -> bool:
        """Whether `decide` knows the value, or can choose one of finitely many."""

    def decide(self, value: Value, loc: Loc) -> str | bool:
        """What the value is on this path."""

    def name_of(self, value: Value) -> tuple[str, str]:
        """The variable or argument that the value is, and again if it is an argument."""

    def known(self, value: Value) -> str | bool | None:
        """What the value is on this path, if that is decided."""

    def ask_arms(self) -> None:
        """Something is asked for that the arms of a branch leave different."""

    def operand(self, text: str | SymbolicText, loc: Loc) -> Value | str:
        """A text as an operand."""

    def parsed(self, parser: OutputParser, text: SymbolicText, loc: Loc) -> Any:
        """The typed value of a generation, which only a run knows."""

    def store(self, name: str, value: Any, loc: Loc) -> None:
        """The program stores a variable in its own state."""

    def text_of(self, stream: Value, since: Value | None, loc: Loc) -> SymbolicText:
        """What a stream says behind an earlier one."""

    def picture(self, source: str | SymbolicText, loc: Loc) -> SymbolicText:
        """The data of a picture that a run reads: of the file of that path, if it is one."""

    def enter(self, function: Callable[..., Any], loc: Loc) -> Callable[..., Any]:
        """A function of the user's, so that calling it is recorded and has no effects."""

    def guard(self, fact: str, real: Any, loc: Loc) -> Any:
        """The program is for arguments of which a fact is `real`; gives that."""


TRACING: ContextVar[Tracing | None] = ContextVar("sglc_recording", default=None)
# Whether a declared function is running: what it does is no part of the program's body.
IN_FUNCTION: ContextVar[bool] = ContextVar("sglc_in_function", default=False)
# Called before a declared function is, in the body of a run; it raises if the run is over.
MAY_CALL: ContextVar[Callable[[], None] | None] = ContextVar("sglc_may_call", default=None)
# Told why nothing of the run whose body goes on here begins any more.
END_RUN: ContextVar[Callable[[RunError], None] | None] = ContextVar("sglc_end_run", default=None)


def _observing(function: Callable[..., Any], kind: BreakKind, what: str = "") -> Callable[..., Any]:
    """A method that Python calls for `function`: it needs the value itself, and those of other operands."""

    def observed(self: Symbolic, *others: Any) -> Any:
        return function(self.observe(kind, what), *(concrete(other, kind) for other in others))

    return observed


class Symbolic(HasKnown):
    """What every such value does: each way in which Python needs it observes it."""

    __slots__ = ()
    _noun: ClassVar[str] = "value"

    @property
    def kind(self) -> type:
        """Its type; `object` where nothing is known."""
        raise NotImplementedError

    def _known(self, loc: Loc) -> Any:
        """The value itself on this path; None if that cannot be known."""
        del loc
        return None

    def observe(self, kind: BreakKind, what: str = "") -> Any:
        """The value itself, because Python needs it for what `kind` says.

        Raises:
            GraphBreak: only a run can know it.
        """
        loc = here()
        if self.known is not None:
            return real(self.known, loc)
        known = self._known(loc)
        if known is None:
            name, argument = self._name()
            again = f'compile for its value: `compile(args={{"{argument}": ...}})`'
            hint = f"{again}; or {kind.hint}" if argument and kind.hint else ""
            reason = f"{what or kind.what} needs {name} only exists when the program runs"
            raise GraphBreak(reason, loc, kind, hint)
        return known

    def refuse_argument(self, kind: BreakKind, what: str) -> None:
        """What is no text's: an argument that nobody has given yet may be something else.

        Raises:
            GraphBreak: it is an argument.
        """
        if self._name()[1]:
            self.observe(kind, what)

    def _name(self) -> tuple[str, str]:
        """How a sentence names it, and the argument that it is."""
        tracing, parts = TRACING.get(), self._parts()
        if tracing is None or len(parts) != 1 or not isinstance(parts[0], Value):
            return f"a {self._noun} that", ""
        name, argument = tracing.name_of(parts[0])
        return (f"the {self._noun} `{name}`, which" if name else f"a {self._noun} that"), argument

    def _parts(self) -> tuple[Value | str, ...]:
        return ()

    def __bool__(self) -> bool:
        return bool(self.observe(CONDITION))

    def __eq__(self, other: object) -> bool:
        return bool(self.observe(COMPARISON) == concrete(other, COMPARISON))

    def __hash__(self) -> int:
        return hash(self.observe(KEY))

    def __str__(self) -> str:
        return str(self.observe(STR))

    def __repr__(self) -> str:
        return repr(self.observe(STR, "`repr(...)`"))

    def __format__(self, spec: str) -> str:
        return format(self.observe(FORMAT), spec)

    __len__ = _observing(len, ITERATION, "`len(...)`")
    __iter__ = _observing(iter, ITERATION)
    __contains__ = _observing(operator.contains, OTHER, "`in`")
    __getitem__ = _observing(operator.getitem, OTHER, "an index")
    __int__ = _observing(int, OTHER, "`int(...)`")
    __float__ = _observing(float, OTHER, "`float(...)`")
    __mod__ = _observing(operator.mod, OTHER, "`%`")
    __mul__ = __rmul__ = _observing(operator.mul, OTHER, "`*`")
    __lt__, __le__, __gt__, __ge__ = (
        _observing(order, COMPARISON, "an ordering")
        for order in (operator.lt, operator.le, operator.gt, operator.ge)
    )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # protocols that Python merely probes for
            raise AttributeError(name)
        return getattr(self.observe(METHOD, f"`.{name}`"), name)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SymbolicText(Symbolic):
    """A text made of literals and of values that are known at run time."""

    parts: tuple[Value | str, ...]
    known: Known | None = None
    kind: ClassVar[type] = str
    _noun: ClassVar[str] = "text"

    def _parts(self) -> tuple[Value | str, ...]:
        return self.parts

    def is_decidable(self) -> bool:
        """Whether it is one of finitely many texts, so that Python may have it."""
        tracing = TRACING.get()
        values = [part for part in self.parts if isinstance(part, Value)]
        return not values or (tracing is not None and all(map(tracing.decidable, values)))

    def _known(self, loc: Loc) -> str | None:
        if not self.is_decidable():
            return None
        tracing = TRACING.get()
        made = [tracing.decide(p, loc) if isinstance(p, Value) and tracing else p for p in self.parts]
        return "".join(map(str, made))

    def __bool__(self) -> bool:
        if any(isinstance(part, str) and part for part in self.parts):
            return True  # whatever the rest is
        return bool(self.observe(CONDITION))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, str | SymbolicText):
            return NotImplemented  # a text equals nothing else
        return Symbolic.__eq__(self, other)

    __hash__ = Symbolic.__hash__

    def settled(self) -> str | None:
        """The text, if all of it is decided on this path already."""
        tracing = TRACING.get()
        made = [tracing.known(p) if isinstance(p, Value) and tracing else p for p in self.parts]
        return "".join(map(str, made)) if all(isinstance(piece, str | bool) for piece in made) else None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SymbolicBool(Symbolic):
    """A truth value that is known at run time. Python may branch on it: both arms are recorded."""

    value: Value
    known: Known | None = None
    kind: ClassVar[type] = bool
    _noun: ClassVar[str] = "truth value"

    def _parts(self) -> tuple[Value | str, ...]:
        return (self.value,)

    def _known(self, loc: Loc) -> bool | None:
        tracing = TRACING.get()
        return None if tracing is None else bool(tracing.decide(self.value, loc))

    __and__ = __rand__ = _observing(operator.and_, CONDITION)
    __or__ = __ror__ = _observing(operator.or_, CONDITION)
    __index__ = _observing(int, OTHER, "an index")
    __add__ = __radd__ = _observing(operator.add, OTHER, "`+`")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SymbolicList(Symbolic):
    """A list of texts that is known at run time."""

    value: Value
    known: Known | None = None
    kind: ClassVar[type] = list
    _noun: ClassVar[str] = "list"

    __add__ = __radd__ = _observing(operator.add, ITERATION, "`+`")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SymbolicJson(Symbolic):
    """A JSON value that is known at run time; `kind` is its type, as far as that is known."""

    value: Value
    kind: type = object
    known: Known | None = None

    def _parts(self) -> tuple[Value | str, ...]:
        return (self.value,)

    __index__ = _observing(operator.index, OTHER, "an index")
    __add__ = __radd__ = _observing(operator.add, OTHER, "`+`")


class ReturnedState(Symbolic):
    """What a block returns that is, or holds, a state on some path: a plan has no such value."""

    __slots__ = ()
    known = None
    kind: ClassVar[type] = object

    def observe(self, kind: BreakKind, what: str = "") -> Any:
        """Raises GraphBreak."""
        raise GraphBreak(f"{what or kind.what} needs what a block returns, which may be a state", here(), kind)


class Failed(Symbolic, Exception):
    """What is raised in the arm in which a call fails: only a run makes the error.

    That is one of `_kinds` and none of `_others`; `_message` is its text.
    """

    known = None
    kind: ClassVar[type] = object

    def __init__(self, kinds: tuple[type, ...], others: tuple[type, ...], message: SymbolicText | None) -> None:
        self._kinds, self._others, self._message = kinds, others, message

    def is_one_of(self, kinds: Any) -> bool:
        """Whether a handler of these classes catches it.

        Raises:
            GraphBreak: only a run can tell.
        """
        if all(issubclass(kind, kinds) for kind in self._kinds):
            return True
        if all(issubclass(kind, self._others) for kind in classes_in(kinds) if is_pythons(kind)):
            return False
        raise GraphBreak("which class an error has shows when the program runs", here(), TRIED)

    def text(self) -> SymbolicText:
        """`str(error)`.

        Raises:
            GraphBreak: a plan would word it in another way.
        """
        if self._message is None:
            raise GraphBreak("what an error says shows when the program runs", here(), RAISED)
        return self._message


def classes_in(kinds: Any) -> tuple[Any, ...]:
    """Those of an `except` clause."""
    return kinds if isinstance(kinds, tuple) else (kinds,)


def is_pythons(kind: type) -> bool:
    """Whether Python's own functions may raise a class of errors, or a subclass of it."""
    python = kind.__module__.partition(".")[0] in sys.stdlib_module_names
    return python and (issubclass(kind, Exception) or kind is BaseException)


def symbol(value: Value, known: Known | None = None, kind: Any = None) -> Symbolic:
    """A recorded value as the program's code sees it; of JSON `kind` is the type, if that is known."""
    match value.type:
        case Type.TEXT:
            return SymbolicText((value,), known)
        case Type.BOOL:
            return SymbolicBool(value, known)
        case Type.LIST:
            return SymbolicList(value, known)
        case Type.JSON:
            if not isinstance(kind, type):
                kind = object if known is None else type(known.real)
            return SymbolicJson(value, kind, known)
        case Type.STREAM:
            raise AssertionError("a stream is a state")


def real(known: Known, loc: Loc) -> Any:
    """The real value, which the program is for from here on; a member of an enumeration by its own value.

    Raises:
        GraphBreak: it is an object that no guard can hold.
    """
    tracing = TRACING.get()
    assert tracing is not None
    if not isinstance(known.real, Enum):
        return tracing.guard(known.fact, known.real, loc)
    if not known.argument:
        tracing.guard(f"sglc.type({known.fact})", type_name(known.real), loc)
    by = "name" if spell(known.real._value_) is None else "value"
    tracing.guard(f"sglc.attribute({known.fact}, {by!r})", getattr(known.real, f"_{by}_"), loc)
    return known.real


def concrete(item: Any, kind: BreakKind) -> Any:
    """`item`, observed if it is symbolic."""
    return item.observe(kind) if isinstance(item, Symbolic) else item


def joined(items: tuple[str | SymbolicText, ...]) -> SymbolicText:
    """The concatenation of texts, as one."""
    parts: list[Value | str] = []
    for item in items:
        for part in (item,) if isinstance(item, str) else item.parts:
            if isinstance(part, str) and parts and isinstance(parts[-1], str):
                parts[-1] += part
            elif part != "":
                parts.append(part)
    if all(isinstance(item, str) or item.known is not None for item in items):
        return SymbolicText(tuple(parts), items[0].known if len(items) == 1 and not isinstance(items[0], str)
                            else computed("str.join", ("", list(items)), {}))  # fmt: skip
    return SymbolicText(tuple(parts))
