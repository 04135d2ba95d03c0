"""What is no text, and would be its Python representation in a prompt: formatting it is refused.

`repr` stays, for debugging.
"""

from __future__ import annotations

from collections.abc import Generator
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


def refuse_not_awaited(name: str) -> NoReturn:
    """What the coroutine function `name` gives is put where only a text can stand.

    Raises:
        TraceError: SGLC156, always.
    """
    hint = f"await it: `await {name}(...)`, in an `async def`"
    refuse_text(f"what `{name}(...)` gives before it is awaited", hint)


class NotAwaited(NoText):
    """What a call of the coroutine function `name` gives: nothing of it happens before it is awaited."""

    __slots__ = ()

    name: str

    def __add__(self, other: Any) -> Any:
        self.refuse_as_text()

    def __str__(self) -> str:
        self.refuse_as_text()

    def refuse_as_text(self) -> NoReturn:
        refuse_not_awaited(self.name)


class ToolCoroutine(NotAwaited):
    """The coroutine of a declared function; to Python, and to event loops, it is one."""

    __slots__ = ("_coroutine", "name")

    def __init__(self, coroutine: Any, name: str) -> None:
        self._coroutine = coroutine
        self.name = name

    def refuse_as_text(self) -> NoReturn:
        self.close()  # nobody will await it now
        super().refuse_as_text()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._coroutine.__await__()  # type: ignore[no-any-return]

    def send(self, value: Any) -> Any:
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._coroutine.close()


class CallText(NoText):
    """What a program gives that was called in a body."""

    __slots__ = ()

    name: str

    def __add__(self, other: Any) -> Any:
        self.refuse_as_text()

    def refuse_as_text(self) -> NoReturn:
        hint = f'read a variable of it, `{self.name}(...)["name"]`, or `{self.name}(...).ret_value`'
        refuse_text(f"what `{self.name}(...)` gives", hint)
