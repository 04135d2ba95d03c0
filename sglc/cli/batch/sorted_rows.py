"""The rows of a batch in the order of their beginnings, sorted on the disk: memory does not grow with them."""

from __future__ import annotations

import pickle
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from sglc.cli.argument_types import made_row, types_of
from sglc.errors import RunError
from sglc.execution.batch.order import common, key, key_columns
from sglc.execution.options import NumberedRows

if TYPE_CHECKING:
    from sglc.api.function import Function
    from sglc.api.plan import LoadedPlan

_AT_ONCE = 4096  # rows that are read together
_CACHE_KIB = 32_768  # of the sorted file, in memory
NumberedRow = tuple[int, bytes]  # pickled: tables have dates and bytes, too


class SortedRows:
    """Rows with their numbers, by how the prompts of `function` begin with them and the arguments `given`.

    They lie in a file without a name, which ends with the process, where temporary files go (`SQLITE_TMPDIR`).

    Raises:
        UsageError: SGLC017, SGLC011, a row does not fit; what reading `rows` raises.
        RunError: SGLC427, there is no room for them.
    """

    def __init__(
        self, function: Function | LoadedPlan, given: Mapping[str, Any],
        rows: Iterable[tuple[int, Mapping[str, Any]]],
    ) -> None:  # fmt: skip
        # Whoever takes rows holds the lock of the batch.
        self._db = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._db.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        self._db.execute("PRAGMA temp_store = FILE")
        try:
            self._db.execute("CREATE TABLE given (number INTEGER, row BLOB, key BLOB)")
            self._db.execute("BEGIN")
            self._db.executemany("INSERT INTO given VALUES (?, ?, ?)", _keyed(function, given, iter(rows)))
            self._db.execute("CREATE TABLE sorted AS SELECT * FROM given ORDER BY key, number")
            self._db.execute("DROP TABLE given")
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            raise RunError(
                "SGLC427", f"the rows cannot be sorted on the disk: {error}",
                hint="have `SQLITE_TMPDIR` name a folder with room for them",
            ) from None  # fmt: skip
        self.count: int = self._db.execute("SELECT count(*) FROM sorted").fetchone()[0]

    def shared(self) -> Iterator[int]:
        """Of each row, how many bytes of its beginning are that of the row before."""
        before = b""
        for (own,) in self._db.execute("SELECT key FROM sorted ORDER BY rowid"):
            yield common(before, own)
            before = own

    def at(self, places: range) -> list[NumberedRow]:
        """The rows in these places of the order, which count from 0."""
        asked = "SELECT number, row FROM sorted WHERE rowid > ? AND rowid <= ? ORDER BY rowid"
        return self._db.execute(asked, (places.start, places.stop)).fetchall()


def _keyed(
    function: Function | LoadedPlan, given: Mapping[str, Any], rows: Iterator[tuple[int, Mapping[str, Any]]]
) -> Iterator[tuple[int, bytes, bytes]]:
    columns: Sequence[int] | None = None
    types = types_of(function)
    while some := [*islice(rows, _AT_ONCE)]:
        begun = function.prompts_begin(
            NumberedRows([(number, made_row(number, {**given, **row}, types)) for number, row in some])
        )
        if columns is None:
            columns = key_columns(begun)
        for (number, row), prompts in zip(some, begun, strict=True):
            # UTF-8 has the order of its characters.
            yield number, pickle.dumps(row), key(prompts, columns).encode(errors="surrogatepass")
