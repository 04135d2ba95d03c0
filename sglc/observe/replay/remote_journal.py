"""The journal of a batch whose file another process keeps: this one only runs some of its rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sglc.observe.replay.tape import Json, Tape
from sglc.observe.replay.writer import NO_HEADER, When


@dataclass(slots=True)
class RemoteJournal:
    """In place of a folder and its `Writer`: lines are handed over as they come.

    All of its rows run on copies of one model, wherever they began.

    Args:
        tape: what rows have done that were cut elsewhere; it has them when they begin.
        hand_over: is given every line, from any thread.
    """

    tape: Tape
    hand_over: Callable[[Json], None]
    header: Mapping[str, Any] = field(default_factory=lambda: NO_HEADER)

    def write(self, line: Json, when: When = "now") -> bool:
        """As of `Writer`, but whether it is kept is not known yet."""
        self.hand_over(line)
        return True

    def close(self) -> None:
        """Nothing is held."""
