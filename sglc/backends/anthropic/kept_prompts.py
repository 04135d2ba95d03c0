"""Which beginnings of prompts Anthropic's API keeps, and who has them written: writing costs more than reading.

A beginning that comes once stays as it is. The second request that has it has it written, those that come
meanwhile wait for its answer, and from there on all read it, as long as one comes every five minutes. Where
it is not written in two attempts, those that wait go on without.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from sglc.errors import BackendError

_KEPT_S = 270.0  # the API keeps it 300 s from its last use
_IN_VAIN = 2  # who waits for so many that fail waits no longer


@dataclass(slots=True)
class _Beginning:
    kept_until_s: float = 0.0
    failed: int = 0  # that were to write it, one after the other
    writing: asyncio.Event | None = None


@dataclass(slots=True)
class KeptPrompts:
    """What is known of the beginnings of one back end, by their keys. `clock` gives seconds."""

    clock: Callable[[], float] = time.monotonic
    _known: dict[str, _Beginning] = field(default_factory=dict)

    @asynccontextmanager
    async def asked(self, key: str) -> AsyncIterator[bool]:
        """A request with the beginning `key` goes on in the block: whether it is to be marked there."""
        if key not in self._known:
            self._known[key] = _Beginning()
            yield False
            return
        one = self._known[key]
        while one.writing is not None:
            await one.writing.wait()
            if one.failed >= _IN_VAIN:  # else all would fail in a row
                yield False
                return
        if self.clock() < one.kept_until_s:
            yield True
            one.kept_until_s = self.clock() + _KEPT_S
            return
        one.writing, written = asyncio.Event(), False
        try:
            yield True
            written = True
        except BackendError as error:
            written = error.usage is not None and error.usage.prompt > 0  # answered, if not as it was to be
            raise
        finally:
            one.failed = 0 if written else one.failed + 1
            if written:
                one.kept_until_s = self.clock() + _KEPT_S
            one.writing.set()
            one.writing = None
