"""`sglc` with a planted fault: a row that was cut begins anew on several replicas, whatever it had done."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from sglc.cli import main
from sglc.cli.batch.journal import SharedJournal
from sglc.observe.replay.tape import Tape


def nothing(journal: SharedJournal, rows: Iterable[int]) -> Tape:
    """What the journal says, without what rows did."""
    return Tape(journal._tape.header, {}, {})


if __name__ == "__main__":
    SharedJournal.of = nothing  # type: ignore[assignment, method-assign]
    sys.exit(main())
