"""Pictures that a model does not take, or not where they stand."""

from __future__ import annotations

from sglc.errors import LegalizeError, Loc
from sglc.ir.remark import place
from sglc.ir.target import Target


def refuse_picture(target: Target, data: str, role: str, loc: Loc) -> None:
    """Refuse a picture whose `data`, "" where only a run knows it, cannot stand in a turn of `role`.

    Raises:
        LegalizeError: SGLC308, it cannot.
    """
    said = target.takes.picture_refused(data, role)
    if said is not None:
        why, hint = said
        raise LegalizeError(
            "SGLC308", f"`{target.name}` cannot take this picture: {why}", place(loc), hint=hint
        )
