"""Which back end a call runs on, and what can be asked of a back end beside running programs."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from sglc.errors import UsageError
from sglc.frontend.locate import here
from sglc.ir.target import Backend

_default: Backend | None = None


@runtime_checkable
class Server(Protocol):
    """A back end that keeps a cache and can tell how it stands."""

    def flush_cache(self) -> None:
        """Forget every cached prefix that no run uses now. Waits until it is done."""

    def server_info(self) -> dict[str, Any]:
        """Model, device, sizes and counters, as plain data. Waits until the model is loaded."""


def set_default_backend(backend: Backend | str | None) -> None:
    """The back end of every run that names none. A text is a name as `--backend` takes it.

    Raises:
        UsageError: the name is unknown.
    """
    global _default
    _default = resolve(backend) if backend is not None else None


def resolve(backend: Backend | str | None) -> Backend:
    """The back end that is meant: itself, one by name, or the default one.

    Raises:
        UsageError: the name is unknown.
    """
    from sglc.backends.registry import connect

    if backend is None and _default is not None:
        return _default
    if backend is None or isinstance(backend, str):
        return connect(backend)
    return backend


def flush_cache(backend: Backend | str | None = None) -> None:
    """Forget every cached prefix of a back end that no run uses now.

    Raises:
        UsageError: SGLC022, the back end keeps no cache of its own.
    """
    _server(backend, "cache that can be emptied").flush_cache()


def get_server_info(backend: Backend | str | None = None) -> dict[str, Any]:
    """How a back end stands: model, device, dtype, pages and more, as plain data.

    Raises:
        UsageError: SGLC022, the back end does not say.
        SglcError: its model does not load.
    """
    return _server(backend, "figures of its own").server_info()


def _server(backend: Backend | str | None, what: str) -> Server:
    chosen = resolve(backend)
    if not isinstance(chosen, Server):
        raise UsageError("SGLC022", f"the back end `{chosen.target.name}` has no {what}", here())
    return chosen
