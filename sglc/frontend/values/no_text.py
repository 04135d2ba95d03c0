"""What is no text, and would be its Python representation in a prompt: formatting it is refused.

`repr` stays, for debugging.
"""

from __future__ import annotations

from typing import Any, NoReturn

from sglc.errors import TraceError
from sglc.frontend.locate import here


def refuse_text(what: str, hint: str) -> NoReturn:
    """`what` is formatted, or put together with a text.

    Raises:
        TraceError: SGLC156, always.
    """
    raise TraceError(
        "SGLC156", f"{what} is no text", here(),
        note="a prompt would hold how Python writes the object, and nothing of what it stands for",
        hint=hint,
    )  # fmt: skip


def append_instead(shown: str) -> str:
    """The hint for what can be appended as it is."""
    return f'append it, for example `s += "a" + {shown}`'


class NoText:
    """An object of the language that stands beside texts, and is none itself."""

    __slots__ = ()

    def refuse_as_text(self) -> NoReturn:
        """It is put where only a text can stand.

        Raises:
            TraceError: SGLC156, always.
        """
        raise NotImplementedError

    def as_data(self) -> Any:
        """What JSON has of it, where a program returns it."""
        return str(self)

    def __radd__(self, other: Any) -> Any:
        if isinstance(other, list):  # `states += s.fork(2)`: Python asks here before it extends the list
            return NotImplemented
        return self.refuse_as_text()

    def __format__(self, spec: str) -> str:
        self.refuse_as_text()


class CallText(NoText):
    """What a program gives that was called in a body."""

    __slots__ = ()

    name: str

    def __add__(self, other: Any) -> Any:
        self.refuse_as_text()

    def refuse_as_text(self) -> NoReturn:
        hint = f'read a variable of it, `{self.name}(...)["name"]`, or `{self.name}(...).ret_value`'
        refuse_text(f"what `{self.name}(...)` gives", hint)
