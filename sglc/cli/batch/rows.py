"""The rows of a batch from a file or from stdin: JSON lines, CSV, TSV or Parquet, one at a time."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count, islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, TypeVar

from sglc.cli.argument_types import TEXT, Types
from sglc.cli.batch.manifest import digest
from sglc.cli.program_file import parse_json
from sglc.errors import Loc, SglcError, UsageError, shown

STDIN = "-"
_Error = TypeVar("_Error", bound=SglcError)
_COMPRESSED = (
    b"\x1f\x8b",
    b"\x28\xb5\x2f\xfd",
    b"\xfd7zXZ",
    b"BZh",
    b"PK\x03\x04",
)  # gzip, zstd, xz, bzip2, zip
_LARGEST_CELL = 1 << 30  # of CSV, characters; Python's own limit is shorter than many a document
LOOKED_AT = 100_000  # rows of a file that are read before one runs: a quarter of a second


@dataclass(frozen=True, slots=True)
class RowFile:
    """The rows of a file. It is iterated over as often as one likes, stdin but once.

    Attributes:
        count: of rows; -1 where that shows as they come.
        types: of arguments, for texts of CSV that stand for something else.
    """

    name: str
    count: int
    types: Types = field(default_factory=lambda: MappingProxyType({}))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Each row.

        Raises:
            UsageError: SGLC002, SGLC008, with its place, what is no row.
        """
        try:
            yield from (row for row, _ in self._with_lines())
        except OSError as error:
            raise UsageError("SGLC002", f"`{self.name}` cannot be read: {error.strerror or error}") from None

    def _with_lines(self) -> Iterator[tuple[dict[str, Any], int]]:
        """Each row and its line."""
        if self.name == STDIN:
            return _json_rows(_stdin(), "stdin")
        suffix = Path(self.name).suffix.lower()
        if suffix == ".parquet":
            return zip(_parquet_rows(self.name), count(1))
        if suffix in (".csv", ".tsv"):
            return _csv_rows(self.name, "\t" if suffix == ".tsv" else ",", self.types)
        return _json_file(self.name)

    def placed(self, error: _Error) -> _Error:
        """`error` with the place in this file, if it is that of a row of the batch."""
        row, is_row, _ = error.note.partition(" of the batch")
        path = self.path
        if not is_row or path is None or not path.is_file() or path.suffix.lower() == ".parquet":
            return error
        number = int(row.removeprefix("row "))
        line = next((line for _, line in islice(self._with_lines(), number, None)), 0)
        note = f"{Loc(self.name, line)}: {error.note}"
        return type(error)(error.code, error.message, error.loc, note=note, hint=error.hint)

    @property
    def digest(self) -> str:
        """What stands in the file, as a short text; "" if it can be read but once."""
        return "" if self.path is None else digest(self.path)

    @property
    def path(self) -> Path | None:
        """Where they stand; None: they come from stdin."""
        return None if self.name == STDIN else Path(self.name)


def open_rows(name: str, types: Types = MappingProxyType({})) -> RowFile:
    """The rows of `name`: a `.csv`, `.tsv` or `.parquet` file, else JSON lines; `-` is stdin.

    The first 100,000 rows are looked at now, and those behind them as they come.

    Raises:
        UsageError: SGLC002 no such file, or one that cannot be read; SGLC008 what is no row; SGLC071 Parquet
            without pyarrow.
    """
    if name == STDIN:
        return RowFile(name, -1, types)
    if not os.path.exists(name):
        raise UsageError("SGLC002", f"there is no file `{name}`")
    if os.path.isdir(name):
        raise UsageError("SGLC002", f"`{name}` is a folder", hint="name a file with rows")
    rows = RowFile(name, -1, types)
    if not os.path.isfile(name):  # a pipe is read but once
        return rows
    seen = sum(1 for _ in islice(rows, LOOKED_AT))
    return replace(rows, count=seen if seen < LOOKED_AT else _count(Path(name)))


def _stdin() -> BinaryIO:
    """Another buffer than Python's own: at its end Python waits for a thread that reads from that one."""
    try:
        return open(sys.stdin.fileno(), "rb", closefd=False)
    except io.UnsupportedOperation:  # somebody has put something else there
        return sys.stdin.buffer


def _count(path: Path) -> int:
    """The rows of a file that has many of them."""
    match path.suffix.lower():
        case ".parquet":
            count: int = _parquet(str(path)).metadata.num_rows
            return count
        case ".csv" | ".tsv":  # a cell may have several lines
            return -1
        case _:
            with open(path, "rb") as file:
                return sum(1 for line in file if not line.isspace())


def _json_file(name: str) -> Iterator[tuple[dict[str, Any], int]]:
    with open(name, "rb") as file:
        yield from _json_rows(file, name)


def _json_rows(file: BinaryIO, name: str) -> Iterator[tuple[dict[str, Any], int]]:
    """Lines end at line feeds alone: what else Unicode calls a line separator is text."""
    for number, line in enumerate(_decoded(file, name), 1):
        text = line.rstrip(" \t\r\n")
        if not text:
            continue
        row = (
            _no_nan(text, name, number)
            if "NaN" in text or "Infinity" in text
            else parse_json(text, name, number)
        )
        if not isinstance(row, dict):
            raise UsageError(
                "SGLC008", "a row is a JSON object", Loc(name, number), hint='one a line: `{"name": "text"}`'
            )
        yield row, number


def _no_nan(text: str, name: str, number: int) -> Any:
    """JSON that perhaps says `NaN` where a value stands, which is none."""

    def refuse(constant: str) -> None:
        column = text.find(constant) + 1
        raise UsageError(
            "SGLC008", f"this is no JSON: `{constant}`", Loc(name, number, column),
            hint='write `null`, or a text: `"NaN"`',
        )  # fmt: skip

    parse_json(text, name, number)  # what else is wrong with it
    return json.loads(text, parse_constant=refuse)


def _csv_rows(name: str, delimiter: str, types: Types) -> Iterator[tuple[dict[str, Any], int]]:
    csv.field_size_limit(_LARGEST_CELL)
    with open(name, "rb") as file:
        lines = csv.reader(_decoded(file, name), delimiter=delimiter, strict=True)
        header: list[str] | None = None
        while True:
            try:
                cells = next(lines)
            except StopIteration:
                return
            except csv.Error as error:
                raise UsageError("SGLC008", f"this is no CSV: {error}", Loc(name, lines.line_num)) from None
            loc = Loc(name, lines.line_num)
            if header is None:
                header = _header(cells, loc)
            elif cells:
                yield _csv_row(header, cells, types, loc), lines.line_num


def _decoded(file: BinaryIO, name: str) -> Iterator[str]:
    """The lines of a file of texts. They end at line feeds alone.

    Raises:
        UsageError: SGLC008, one is no UTF-8, or all of it is compressed.
    """
    for number, line in enumerate(file, 1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            if number == 1 and line.startswith(_COMPRESSED):
                raise UsageError(
                    "SGLC008", f"`{name}` is compressed", hint="unpack it, and give it as `--batch -`",
                ) from None  # fmt: skip
            raise UsageError(
                "SGLC008", f"this is no UTF-8: {error.reason}", Loc(name, number, error.start + 1),
                hint="save the file as UTF-8",
            ) from None  # fmt: skip


def _header(cells: list[str], loc: Loc) -> list[str]:
    twice = next((cell for place, cell in enumerate(cells) if cell in cells[:place]), None)
    if twice is not None or "" in cells:
        what = "a column has no name" if twice is None or not twice else f"two columns are called `{twice}`"
        raise UsageError("SGLC008", what, loc, hint="the first line names the arguments")
    return cells


def _csv_row(header: list[str], cells: list[str], types: Types, loc: Loc) -> dict[str, Any]:
    if len(cells) != len(header):
        raise UsageError(
            "SGLC008", f"this row has {len(cells)} cells, and the first line has {len(header)}", loc
        )
    row: dict[str, Any] = {}
    for column, cell in zip(header, cells, strict=True):
        try:
            row[column] = types.get(column, TEXT).of_text(cell)
        except (ValueError, KeyError) as error:
            raise UsageError(
                "SGLC008", f"`{column}` is of type `{types[column].name}`, and this row has `{cell}`", loc,
                note="" if types[column].read is None else shown(str(error)),
            ) from None  # fmt: skip
    return row


def _parquet_rows(name: str) -> Iterator[dict[str, Any]]:
    try:
        for batch in _parquet(name).iter_batches(1024):
            yield from batch.to_pylist()
    except ValueError as error:  # pyarrow's own error is one
        raise UsageError("SGLC008", f"this is no Parquet: {error}", Loc(name, 1)) from None


def _parquet(name: str) -> Any:
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise UsageError(
            "SGLC071", "Parquet files are read with pyarrow, which is not here",
            hint="pip install 'sglc[parquet]'",
        ) from None  # fmt: skip
    try:
        made: Callable[[str], Any] = parquet.ParquetFile
        return made(name)
    except ValueError as error:  # pyarrow's own error is one
        raise UsageError("SGLC008", f"this is no Parquet: {error}", Loc(name, 1)) from None
