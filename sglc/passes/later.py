"""Ops that programs may hold already and plans cannot run yet."""

from __future__ import annotations

from sglc.errors import LegalizeError
from sglc.ir.core import Program
from sglc.ir.ops import Call, Concat, Eq, In, Lower, Not, ParseJson, Strip
from sglc.passes.base import place

_TEXT_OPS = Strip | Lower | Eq | In | Not | ParseJson | Concat


def refuse_later_ops(program: Program) -> None:
    """Refuse control flow and operations on texts.

    Raises:
        LegalizeError: SGLC307, with the place of the first one.
    """
    for op in program.ops:
        if op.region_fields or isinstance(op, Call | _TEXT_OPS):
            raise LegalizeError(
                "SGLC307", f"`{op.mnemonic}` runs from a later release", place(op.loc),
                note="this release checks, prints and optimizes it",
                hint="leave the decision to Python: a value that is read ends the recorded part",
            )  # fmt: skip
