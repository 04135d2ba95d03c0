"""Many rows: at most a window of them at once, results in order, nothing left running.

Every thread of the window takes the next row when its own has ended, so a row that waits (for a tool,
a lock, its caller) keeps one place of the window and delays no row that has another.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from sglc.result import Result
from sglc.row import Row


class Interrupted(KeyboardInterrupt):
    """Ctrl-C while a batch ran. `results` are those of the rows that had ended, in row order."""

    def __init__(self, results: Sequence[Result]) -> None:
        super().__init__(f"{len(results)} rows had ended")
        self.results = list(results)


def run_rows(rows: Sequence[Row], window: int, name: str) -> Iterator[Result]:
    """Run all rows, `window` of them at once; yields each result when it and all before it have ended.

    Closing the iterator stops what still runs, and what has not begun never does.

    Raises:
        Interrupted: Ctrl-C, when everything has been stopped.
    """
    waiting = iter(rows)
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                row = next(waiting, None)
            if row is None:
                return
            row.run()

    for _ in range(min(window, len(rows))):
        threading.Thread(target=work, name=f"sglc-{name}", daemon=True).start()
    try:
        for row in rows:
            yield row.result.sync()
    except KeyboardInterrupt:
        raise Interrupted([row.result for row in rows if row.result.ended]) from None
    finally:
        for row in rows:
            row.result.stop()
