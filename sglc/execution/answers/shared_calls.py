"""The deterministic calls of one run or batch: those that go on, and the answers of those that have ended."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Protocol

from sglc.ir.plan.events import GenDone, SelectDone
from sglc.ir.plan.segment import ImagePart

_BYTES = 64 << 20  # of answers that are remembered
_BYTES_PER_ENTRY = 500
_BYTES_PER_TOKEN = 40  # its id, or its log-probability

Answer = GenDone | SelectDone


class Follower(Protocol):
    """Who waits for a call that another one makes."""

    def answered(self, index: int, done: Answer | None) -> None:
        """The answer to its generation `index` is there; None: it will never be, and is asked for once more."""


@dataclass(slots=True, eq=False)
class SharedCall:
    """A call that goes on, and who waits for it: each with the generation that does.

    `unwanted` is called when the last one has left.
    """

    key: Hashable
    unwanted: Callable[[], None]
    followers: list[tuple[Follower, int]] = field(default_factory=list)

    def leave(self, follower: Follower, index: int) -> None:
        """It does not wait any more."""
        self.followers.remove((follower, index))
        if not self.followers:
            self.unwanted()


class SharedCalls:
    """By what they ask for (`Followed.asked`). The answers that were used least recently are forgotten."""

    def __init__(self, limit: int = _BYTES) -> None:
        self.bytes = 0  # about, of what is remembered
        self._limit = limit
        self._going: dict[Hashable, SharedCall] = {}
        self._made: OrderedDict[Hashable, tuple[Answer, int]] = OrderedDict()

    def answer(self, key: Hashable) -> Answer | None:
        """The answer of a call that has ended, if it is remembered."""
        found = self._made.get(key)
        if found is None:
            return None
        self._made.move_to_end(key)
        return found[0]

    def knows(self, key: Hashable) -> bool:
        """Whether somebody has asked for it, and there is an answer or will be one."""
        return key in self._going or key in self._made

    def going(self, key: Hashable) -> SharedCall | None:
        """The call, if it goes on."""
        return self._going.get(key)

    def begin(self, key: Hashable, unwanted: Callable[[], None]) -> SharedCall:
        """It is made now; `end` will be called."""
        call = self._going[key] = SharedCall(key, unwanted)
        return call

    def end(self, call: SharedCall, done: Answer | None) -> None:
        """It has its answer, or will have none (None): all who wait are told."""
        del self._going[call.key]
        if done is not None:
            size = _size(call.key, done)
            self._made[call.key] = done, size
            self.bytes += size
            while self.bytes > self._limit:
                self.bytes -= self._made.popitem(last=False)[1][1]
        for follower, index in call.followers:
            follower.answered(index, done)


def _size(key: Hashable, done: Answer) -> int:
    """About the bytes that an answer takes with its key."""
    assert isinstance(key, tuple)
    size, tokens = _BYTES_PER_ENTRY, len(done.prompt_ids)
    for part in key:
        if isinstance(part, str):
            size += len(part)
        elif isinstance(part, ImagePart):
            size += len(str(part.data))
    if isinstance(done, GenDone):
        tokens += 4 * len(done.prompt_logprobs)
        for sample in done.samples:
            size += len(sample.text)
            tokens += 2 * len(sample.ids) + 4 * len(sample.texts)
            if sample.top_logprobs:
                tokens += 4 * sum(map(len, sample.top_logprobs))
    else:
        tokens += 2 * sum(map(len, done.choice_ids))
    return size + _BYTES_PER_TOKEN * tokens
