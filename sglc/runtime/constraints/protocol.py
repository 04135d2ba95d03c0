"""What every constraint engine offers the sampler."""

from __future__ import annotations

from typing import Protocol

from sglc.runtime.step import I32, Bool, ByteAutomaton


class Constraint(Protocol):
    """Which token ids a generation may be made of. Ids that end it are the engine's to allow or not.

    A state is a number that stands for all that was read; the same one may be asked about again.
    """

    @property
    def slow(self) -> bool:
        """Whether a call may take long: then they are made one at a time, in another thread than the steps'."""

    @property
    def start(self) -> int:
        """The state before the first token. There is a token that it allows."""

    @property
    def automaton(self) -> ByteAutomaton | None:
        """The same for an executor that follows it by itself; None if it is none, or too large a one."""

    def mask(self, state: int) -> Bool:
        """Ids that may come next, bool [V], the caller's own."""

    def bits(self, state: int) -> I32:
        """The same as `pack_masks` gives it, the caller's own."""

    def accepting(self, state: int) -> bool:
        """Whether the text may end here. A state that does not accept allows some token, or `done` raises."""

    def ahead(self, state: int) -> bytes:
        """Bytes that have to come next, as many as are known; no text may end inside them."""

    def only(self, state: int) -> int | None:
        """The id that has to come next; None if there are several, or none."""

    def advance(self, state: int, token: int) -> int:
        """The state behind `token`, which `state` allows."""

    def local(self, state: int) -> int:
        """A state that depends on less, and allows no more: what has to come there has to come here too."""

    def done(self, state: int) -> bool:
        """Whether the text has to end here: it may, and no token is allowed.

        Raises:
            RunError: it may not, and no token is allowed either.
        """
