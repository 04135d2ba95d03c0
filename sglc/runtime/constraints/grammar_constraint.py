"""A `Constraint` over a matcher that changes as it reads.

Its states do not change: a state is a number for the tokens that led to it, and a matcher stands at
some of the states. One that is needed further on moves along, one that is needed elsewhere is made anew. A
constraint belongs to one request, whose samples share it. A call of a matcher cannot be interrupted, so what it
takes is counted, and tried out before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from random import Random
from time import thread_time
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from sglc.errors import RunError
from sglc.runtime.constraints import give_way
from sglc.runtime.constraints.next_bytes import NextBytes
from sglc.runtime.constraints.token_automaton import only_one
from sglc.runtime.step import I32, Bool

_LOOKS = 64  # of states kept for each request: 0.4 MB for 49,152 tokens
# Texts up to here often begin alike; as many looks behind such ones are shared as a request has.
_SHARED_TOKENS = 16
_MATCHERS = 32  # kept for each request
# Processor time of what is held to one form: what is ambiguous takes more and more for each token.
_MAY_TAKE_S, _MAY_TAKE_EACH_S = 0.5, 0.005
_CALL_MAY_TAKE_S = 0.25  # that nothing else can go on in
_AHEAD = 256  # bytes that have to come next are looked for up to here: a grammar may have them without end
_TOKENS = 64  # of a text
_PICKS = 8  # tokens of which a text takes the shortest: what is read letter by letter is read in most ways


@dataclass(slots=True)
class Effort:
    """Processor time that generations held to one form have taken, in all and in one call, and their tokens."""

    taken_s: float = 0.0
    longest_s: float = 0.0
    tokens: int = 0

    def count(self, taken_s: float) -> None:
        """A call has taken so long."""
        self.taken_s += taken_s
        self.longest_s = max(self.longest_s, taken_s)

    @property
    def too_much(self) -> bool:
        """Whether others wait too long for it."""
        late = self.taken_s > _MAY_TAKE_S + _MAY_TAKE_EACH_S * self.tokens
        return late or self.longest_s > _CALL_MAY_TAKE_S


_T = TypeVar("_T")
Look = tuple[NDArray[np.uint8], bool]  # what a matcher says at a state


@dataclass(frozen=True, slots=True)
class Form:
    """What the requests that are held to one form share, by the tokens that led there."""

    effort: Effort = field(default_factory=Effort)
    looks: dict[tuple[int, ...], Look] = field(default_factory=dict)
    ahead: dict[tuple[int, ...], tuple[bytes, bool]] = field(default_factory=dict)


class Matcher(Protocol):
    """Reads a text token by token."""

    def take(self, token: int) -> None:
        """Read a token, which is allowed."""

    def look(self) -> Look:
        """The ids that may come next, packed, the lowest bit first; and whether the text may end here."""

    def push(self, byte: int) -> bool:
        """Read a byte, which is allowed; False if no token spells it."""

    def back(self, count: int) -> None:
        """Take back the last bytes that were pushed."""


class GrammarConstraint:
    """A `Constraint` of one request; its states are numbers of token sequences."""

    start = 0
    slow = True
    automaton = None

    def __init__(
        self,
        matcher: Callable[[], Matcher],
        token_bytes: Sequence[bytes],
        size: int,
        next_bytes: NextBytes,
        form: Form,
    ) -> None:
        """`matcher` makes one that stands at the start; the others as in `Grammars`."""
        self._effort = form.effort
        self._form = form
        self._token_bytes = token_bytes
        self._size = size
        self._next_bytes = next_bytes
        self._new_matcher = matcher
        self._came: list[tuple[int, int]] = [(-1, -1)]  # of a state: the one before, and the token
        self._after: dict[tuple[int, int], int] = {}
        self._matchers: dict[int, Matcher] = {}  # by where they stand, newest last
        self._look = lru_cache(maxsize=_LOOKS)(self._looked_at)
        self._ahead: dict[int, tuple[bytes, bool]] = {}  # of the newest states; whether it was cut off

    def mask(self, state: int) -> Bool:
        """Ids that may come next, bool [V], the caller's own."""
        packed, _ = self._look(state)
        return np.unpackbits(packed, count=self._size, bitorder="little").view(np.bool_)

    def bits(self, state: int) -> I32:
        """The same as `pack_masks` gives it, the caller's own."""
        words: I32 = np.zeros(-(-self._size // 32), np.int32)
        packed, _ = self._look(state)
        words.view(np.uint8)[: packed.size] = packed[: 4 * words.size]
        return words

    def accepting(self, state: int) -> bool:
        """Whether the text may end here."""
        return self._look(state)[1]

    def ahead(self, state: int) -> bytes:
        """Bytes that have to come next, up to some hundred."""
        if state not in self._ahead:
            self._ahead[state] = self._looked_ahead(state)
            if len(self._ahead) > _LOOKS:
                del self._ahead[next(iter(self._ahead))]
        return self._ahead[state][0]

    def only(self, state: int) -> int | None:
        """The id that has to come next; None if there are several, or none."""
        return only_one(self.bits(state))

    def advance(self, state: int, token: int) -> int:
        """The state behind `token`, which `state` allows."""
        after = self._after.setdefault((state, token), len(self._came))
        if after == len(self._came):
            self._came.append((state, token))
            self._effort.tokens += 1
        return after

    def local(self, state: int) -> int:
        """The state itself: what a parser remembers is its own."""
        return state

    def done(self, state: int) -> bool:
        """Whether the text has to end here.

        Raises:
            RunError: SGLC459, the text may not end here, and the model has no token to go on with; or its
                grammar takes too long.
        """
        packed, accepting = self._look(state)
        self.check_effort()
        if packed.any():
            return False
        if not accepting:
            raise RunError(
                "SGLC459", "the model has no token that its grammar allows here",
                note="its vocabulary has to spell the text",
                hint="keep what is asked for to characters that the model can write",
            )  # fmt: skip
        return True

    def check_effort(self) -> None:
        """Raises RunError: SGLC459, what it is held to takes too long."""
        if self._effort.too_much:
            raise self._too_long()

    def _too_long(self) -> RunError:
        return RunError(
            "SGLC459", f"what this generation is held to takes too long: {self._effort.taken_s:.1f} s so far",
            note="there may be many ways to read one text",
            hint="write the grammar so that a text can be read in one way",
        )  # fmt: skip

    def _looked_at(self, state: int) -> Look:
        """The mask of `state`, packed, and whether it accepts."""
        return self._shared(self._form.looks, state, lambda: self._counted(lambda: self._matcher(state).look()))

    def _shared(self, known: dict[tuple[int, ...], _T], state: int, find: Callable[[], _T]) -> _T:
        """What was found at `state` for another request of the form, or is now."""
        path = self._path(state)
        if path in known:
            return known[path]
        found = find()
        if len(path) <= _SHARED_TOKENS and len(known) < _LOOKS:
            known[path] = found
        return found

    def _counted(self, call: Callable[[], _T]) -> _T:
        began_s = thread_time()
        given = call()
        self._effort.count(thread_time() - began_s)
        return given

    def _path(self, state: int) -> tuple[int, ...]:
        """The tokens that lead to `state`, or more than are shared of them, the last one first."""
        path: list[int] = []
        while state and len(path) <= _SHARED_TOKENS:
            state, token = self._came[state]
            path.append(token)
        return tuple(path)

    def _looked_ahead(self, state: int) -> tuple[bytes, bool]:
        before, token = self._came[state]
        known, cut_off = self._ahead.get(before, (b"", False))
        taken = self._token_bytes[token] if known else b""
        if known.startswith(taken) and len(known) - len(taken) > (_AHEAD // 2 if cut_off else 0):
            return known[len(taken) :], cut_off
        return self._shared(self._form.ahead, state, lambda: self._forced(state))

    def _forced(self, state: int) -> tuple[bytes, bool]:
        """Bytes that have to come behind `state`, and whether there may be more.

        What libraries find by themselves knows no limit, and llguidance keeps Python's lock meanwhile.
        """
        byte = self._next_bytes.only(*self._look(state))
        if byte is None:
            return b"", False
        matcher = self._counted(lambda: self._matcher(state))
        found, too_much = bytearray(), False
        while byte is not None and len(found) < _AHEAD and matcher.push(byte):
            found.append(byte)
            give_way.pause()
            look = self._counted(matcher.look)
            too_much = self._effort.too_much  # others may have it allowed more behind this
            byte = None if too_much else self._next_bytes.only(*look)
        matcher.back(len(found))
        if too_much:
            raise self._too_long()
        return bytes(found), len(found) >= _AHEAD

    def _matcher(self, state: int) -> Matcher:
        """A matcher that stands at `state`."""
        before, token = self._came[state]
        if state in self._matchers:
            return self._matchers[state]
        matcher = self._matchers.pop(before, None)
        path = [token]
        if matcher is None:
            matcher = self._new_matcher()
            path = []
            at = state
            while at:
                at, token = self._came[at]
                path.append(token)
        for token in reversed(path):
            matcher.take(token)
        self._matchers[state] = matcher
        if len(self._matchers) > _MATCHERS:
            del self._matchers[next(iter(self._matchers))]
        return matcher


def rehearse(constraint: GrammarConstraint, token_bytes: Sequence[bytes]) -> None:
    """Read two texts, one of any tokens that are allowed and one of short ones; the same ones each time.

    Raises:
        RunError: SGLC459, that takes too long.
    """
    for picks in (1, _PICKS):
        random, state = Random(picks), constraint.start
        for _ in range(_TOKENS):
            allowed = np.flatnonzero(constraint.mask(state))
            constraint.check_effort()
            if not allowed.size:
                break
            few = [int(allowed[random.randrange(allowed.size)]) for _ in range(picks)]
            state = constraint.advance(state, min(few, key=lambda token: len(token_bytes[token])))
