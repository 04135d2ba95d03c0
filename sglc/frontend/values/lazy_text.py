"""Text that a program reads before it exists, where the program provably need not know it yet.

A lazy text is never a fake: at a place that was not foreseen it waits for the real text and behaves
like it. Which reads give one is the business of `source.lazy_reads`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any, SupportsIndex

from sglc.errors import Loc
from sglc.frontend.locate import here

if TYPE_CHECKING:
    from sglc.frontend.values.recorded import Generated


@dataclass(frozen=True, slots=True)
class Changed:
    """A text after `strip` or `lower`."""

    text: LazyText
    how: str

    def known(self, what: str, loc: Loc) -> str:
        """The real text, because `what` needs it."""
        changed: str = getattr(self.text.text(what, loc), self.how)()
        return changed


Known = Callable[["Generated", str, Loc], str]


class LazyText:
    """A text made of literals and of what generations make.

    Args:
        parts: in order.
        known: gives the text of a generation, waiting for it: (generation, what needs it, where).
    """

    __slots__ = ("_known", "_text", "parts")

    def __init__(self, parts: tuple[str | Generated | Changed, ...], known: Known) -> None:
        self.parts = parts
        self._known = known
        self._text: str | None = None

    def text(self, what: str, loc: Loc | None = None) -> str:
        """The real text, because `what` needs it: launches what is pending, and waits."""
        if self._text is not None:
            return self._text
        place = loc or here()
        return self.read(lambda made: self._known(made, what, place))

    def read(self, text_of: Callable[[Generated], str]) -> str:
        """The real text, with `text_of` for those of generations."""
        if self._text is None:
            texts: list[str] = []
            for part in self.parts:
                match part:
                    case str():
                        texts.append(part)
                    case Changed(text, how):
                        texts.append(getattr(text.read(text_of), how)())
                    case _:
                        texts.append(text_of(part))
            self._text = "".join(texts)
        return self._text

    # -- what stays deferred ---------------------------------------------------------------------

    def __add__(self, other: Any) -> Any:
        if type(other) is str:
            return LazyText((*self.parts, other), self._known)
        if isinstance(other, LazyText):
            return LazyText((*self.parts, *other.parts), self._known)
        if getattr(type(other), "__module__", "").startswith("sglc."):
            return NotImplemented  # an expression: the two are appended together
        return self.text("`+`") + other

    def __radd__(self, other: Any) -> Any:
        if type(other) is str:
            return LazyText((other, *self.parts), self._known)
        return other + self.text("`+`")

    def strip(self, *args: Any) -> Any:
        """Without the white space round it."""
        if args:
            return self.text("`.strip(...)`").strip(*args)
        return LazyText((Changed(self, "strip"),), self._known)

    def lower(self) -> LazyText:
        """In lower case."""
        return LazyText((Changed(self, "lower"),), self._known)

    # -- what needs the text ---------------------------------------------------------------------

    def __bool__(self) -> bool:
        return bool(self.text("a condition"))

    def __eq__(self, other: object) -> bool:
        return self.text("a comparison") == other

    def __lt__(self, other: Any) -> Any:
        return self.text("a comparison") < other

    def __le__(self, other: Any) -> Any:
        return self.text("a comparison") <= other

    def __gt__(self, other: Any) -> Any:
        return self.text("a comparison") > other

    def __ge__(self, other: Any) -> Any:
        return self.text("a comparison") >= other

    def __hash__(self) -> int:
        return hash(self.text("a dictionary key or set member"))

    def __len__(self) -> int:
        return len(self.text("`len(...)`"))

    def __iter__(self) -> Iterator[str]:
        return iter(self.text("a loop"))

    def __contains__(self, item: Any) -> bool:
        return item in self.text("`in`")

    def __getitem__(self, index: SupportsIndex | slice) -> str:
        return self.text("an index")[index]

    def __int__(self) -> int:
        return int(self.text("`int(...)`"))

    def __float__(self) -> float:
        return float(self.text("`float(...)`"))

    def __str__(self) -> str:
        return self.text("`str(...)`")

    def __repr__(self) -> str:
        return repr(self.text("`repr(...)`"))

    def __format__(self, spec: str) -> str:
        return format(self.text("formatting"), spec)

    def __fspath__(self) -> str:
        return self.text("a path")

    def __mod__(self, other: Any) -> Any:
        return self.text("`%`") % other

    def __rmod__(self, other: Any) -> Any:
        return other % self.text("`%`")

    def __mul__(self, other: Any) -> Any:
        return self.text("`*`") * other

    __rmul__ = __mul__

    def __copy__(self) -> str:
        return self.text("a copy")

    def __deepcopy__(self, memo: object) -> str:
        return self.text("a copy")

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        return str, (self.text("pickling"),)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.text(f"`.{name}`"), name)


def piece(value: Any) -> Any:
    """A value in an f-string: lazy text as it is, anything else formatted."""
    return value if isinstance(value, LazyText) else format(value, "")


def join(*pieces: Any) -> Any:
    """The pieces of an f-string as one text, deferred if one of them is."""
    if not any(isinstance(text, LazyText) for text in pieces):
        return "".join(pieces)
    return reduce(add, pieces)
