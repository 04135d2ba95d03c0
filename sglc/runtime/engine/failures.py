"""What is said of a runtime that cannot run segments, and how a segment that it will not run is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sglc.errors import BackendError, SglcError
from sglc.ir.plan.events import Event, NodeFailed


def unloadable(model: str, error: Exception) -> BackendError:
    """SGLC501: loading met what it did not expect."""
    return BackendError("SGLC501", f"`{model}` cannot be loaded: {error}")


def broken(error: Exception) -> BackendError:
    """SGLC504: a step failed, which is a bug of ours; `error` is its cause."""
    problem = BackendError("SGLC504", f"the runtime failed: `{type(error).__name__}`: {error}")
    problem.__cause__ = error
    return problem


def closed() -> BackendError:
    """SGLC505: the fate of what still runs when a back end is closed."""
    return BackendError("SGLC505", "the back end was closed while this ran")


def refuse(
    nodes: Iterable[int], error: SglcError, emit: Callable[[Event], None], done: Callable[[], None]
) -> None:
    """Fail these nodes of a segment, and end it."""
    for node in nodes:
        emit(NodeFailed(node, error))
    done()
