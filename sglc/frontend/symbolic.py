"""Text that exists only when the program runs, for ahead-of-time compilation.

User code never sees a made-up value: whatever cannot be recorded raises `Boundary`, and the
compiled part of the program ends right before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn, SupportsIndex

from sglc.errors import Loc
from sglc.frontend.locate import here
from sglc.ir.core import Value


class Boundary(BaseException):
    """The recorded part of a program ends here. Not an `Exception`: user code must not catch it."""

    def __init__(self, reason: str, loc: Loc) -> None:
        super().__init__(reason)
        self.reason = reason
        self.loc = loc


@dataclass(frozen=True, slots=True, eq=False)
class SymbolicText:
    """A text made of literals and of values that are known at run time."""

    parts: tuple[Value | str, ...]

    def __add__(self, other: object) -> SymbolicText:
        if not isinstance(other, str | SymbolicText):
            return NotImplemented
        return joined((self, other))

    def __radd__(self, other: object) -> SymbolicText:
        if not isinstance(other, str):
            return NotImplemented
        return joined((other, self))

    def _observe(self, what: str) -> NoReturn:
        raise Boundary(f"{what} needs a text that only exists when the program runs", here())

    def __bool__(self) -> bool:
        self._observe("a condition")

    def __eq__(self, other: object) -> bool:
        self._observe("a comparison")

    def __lt__(self, other: Any) -> bool:
        self._observe("a comparison")

    __le__ = __gt__ = __ge__ = __lt__

    def __hash__(self) -> int:
        self._observe("a dictionary key or set member")

    def __len__(self) -> int:
        self._observe("`len(...)`")

    def __iter__(self) -> Any:
        self._observe("a loop")

    def __contains__(self, item: object) -> bool:
        self._observe("`in`")

    def __getitem__(self, index: SupportsIndex | slice) -> str:
        self._observe("an index")

    def __int__(self) -> int:
        self._observe("`int(...)`")

    def __float__(self) -> float:
        self._observe("`float(...)`")

    def __str__(self) -> str:
        self._observe("`str(...)`")

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        self._observe("formatting")

    def __mod__(self, other: object) -> str:
        self._observe("`%`")

    def __mul__(self, other: object) -> str:
        self._observe("`*`")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # protocols that Python merely probes for
            raise AttributeError(name)
        self._observe(f"`.{name}`")


def joined(items: tuple[str | SymbolicText, ...]) -> SymbolicText:
    """The concatenation of texts, as one."""
    parts: list[Value | str] = []
    for item in items:
        for part in (item,) if isinstance(item, str) else item.parts:
            if isinstance(part, str) and parts and isinstance(parts[-1], str):
                parts[-1] += part
            elif part != "":
                parts.append(part)
    return SymbolicText(tuple(parts))
