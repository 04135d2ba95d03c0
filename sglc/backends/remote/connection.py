"""What a back end that goes over HTTP holds of the event loop that it runs in."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from sglc.backends.retry import Patience, Places
from sglc.errors import BackendError, UsageError

_CLOSING_S = 5.0
_KEY_FORM = "a key is of printable ASCII characters; see that no line end stands behind it"


@dataclass(frozen=True, slots=True)
class Connection:
    """A client, which belongs to one event loop, and its places for requests. `end` closes the client."""

    loop: asyncio.AbstractEventLoop
    client: Any
    places: Places
    end: Callable[[], Coroutine[Any, Any, None]]

    def is_here(self) -> bool:
        """Whether it belongs to the loop that runs now."""
        return self.loop is asyncio.get_running_loop()

    def close(self) -> None:
        """Close the client; from outside of its loop."""
        if self.loop.is_running():
            closing = asyncio.run_coroutine_threadsafe(self.end(), self.loop)
            with suppress(Exception):
                closing.result(_CLOSING_S)


def see_keys(name: str, *keys: object) -> None:
    """See that the keys of a client, as far as it has them as texts, can stand in a header.

    Else the client shows them in its errors.

    Raises:
        BackendError: SGLC541, one cannot.
    """
    given = [key for key in keys if isinstance(key, str)]
    if not all(key.isascii() and key.isprintable() and key == key.strip() for key in given):
        raise unreachable(name, ValueError("the key cannot be sent"), _KEY_FORM)


def see_options(name: str, client: Callable[..., Any], given: Iterable[str]) -> None:
    """See that the SDK's `client` knows the arguments by name that were given for it.

    Raises:
        UsageError: SGLC027, it takes no such argument.
    """
    known = inspect.signature(client).parameters
    if unknown := next((each for each in given if each not in known), None):
        takes = ", ".join(each for each in known if not each.startswith("_"))
        raise UsageError("SGLC027", f"`{name}` takes no `{unknown}`", note=f"its client takes: {takes}")


def timeouts(sdk: ModuleType, patience: Patience) -> Any:
    """An attempt's time for the SDK, and to connect no more of it than it takes by itself."""
    return sdk.Timeout(patience.attempt_s, connect=min(patience.attempt_s, sdk.DEFAULT_TIMEOUT.connect))


def unreachable(name: str, error: Exception, hint: str) -> BackendError:
    """There is no key, no address, or nothing that the client can go through."""
    said = str(error) or type(error).__name__
    if "proxy" in said.lower():
        hint = "look at the environment's `ALL_PROXY`, `HTTP_PROXY` and `HTTPS_PROXY`"
    return BackendError("SGLC541", f"`{name}` cannot be reached: {said.splitlines()[0]}", hint=hint)
