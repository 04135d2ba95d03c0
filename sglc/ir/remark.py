"""What a pass says it did, with the place in the source."""

from __future__ import annotations

from dataclasses import dataclass

from sglc.errors import Loc


@dataclass(frozen=True, slots=True)
class Remark:
    """One thing that a pass did or could not do, and where."""

    source: str  # the pass
    message: str
    loc: Loc | None = None

    def __str__(self) -> str:
        return f"{self.source}: {self.message}" + (f" ({self.loc})" if self.loc else "")


def place(loc: Loc) -> Loc | None:
    """`loc` for a report; None where an op has no place in the user's source."""
    return loc if loc.line else None
