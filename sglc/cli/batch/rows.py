"""The rows of a batch from a file or from stdin: JSON lines, CSV, TSV or Parquet, one at a time."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

from sglc.cli.batch.manifest import digest
from sglc.cli.options import typed
from sglc.cli.program_file import parse_json
from sglc.errors import Loc, UsageError

STDIN = "-"
LOOKED_AT = 100_000  # rows of a file that are read before one runs: a quarter of a second


@dataclass(frozen=True, slots=True)
class RowFile:
    """The rows of a file. It is iterated over as often as one likes, stdin but once.

    Attributes:
        count: of rows; -1 where that shows as they come.
        kinds: the types of arguments, for texts of CSV that stand for numbers and truth values.
    """

    name: str
    count: int
    kinds: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Each row.

        Raises:
            UsageError: SGLC002, SGLC008, with its place, what is no row.
        """
        if self.name == STDIN:
            return _json_rows(sys.stdin.buffer, "stdin")
        suffix = Path(self.name).suffix.lower()
        if suffix == ".parquet":
            return _parquet_rows(self.name)
        if suffix in (".csv", ".tsv"):
            return _csv_rows(self.name, "\t" if suffix == ".tsv" else ",", self.kinds)
        return _json_file(self.name)

    @property
    def digest(self) -> str:
        """What stands in the file, as a short text; "" if it can be read but once."""
        return "" if self.path is None else digest(self.path)

    @property
    def path(self) -> Path | None:
        """Where they stand; None: they come from stdin."""
        return None if self.name == STDIN else Path(self.name)


def open_rows(name: str, kinds: Mapping[str, str] = MappingProxyType({})) -> RowFile:
    """The rows of `name`: a `.csv`, `.tsv` or `.parquet` file, else JSON lines; `-` is stdin.

    The first 100,000 rows are looked at now, and those behind them as they come.

    Raises:
        UsageError: SGLC002 no such file, or one that cannot be read; SGLC008 what is no row; SGLC071 Parquet
            without pyarrow.
    """
    if name == STDIN:
        return RowFile(name, -1, kinds)
    path = Path(name)
    if not path.exists():
        raise UsageError("SGLC002", f"there is no file `{path}`")
    rows = RowFile(name, -1, kinds)
    try:
        if not path.is_file():  # a pipe is read but once
            return rows
        seen = sum(1 for _ in islice(rows, LOOKED_AT))
        return replace(rows, count=seen if seen < LOOKED_AT else _count(path))
    except OSError as error:
        raise UsageError("SGLC002", f"`{path}` cannot be read: {error.strerror or error}") from None


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


def _json_file(name: str) -> Iterator[dict[str, Any]]:
    with open(name, "rb") as file:
        yield from _json_rows(file, name)


def _json_rows(file: BinaryIO, name: str) -> Iterator[dict[str, Any]]:
    """Lines end at line feeds alone: what else Unicode calls a line separator is text."""
    for number, line in enumerate(file, 1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise UsageError(
                "SGLC008", f"this is no UTF-8: {error.reason}", Loc(name, number, error.start + 1)
            ) from None
        text = text.rstrip(" \t\r\n")
        if not text:
            continue
        row = (
            _no_nan(text, name, number)
            if "NaN" in text or "Infinity" in text
            else parse_json(text, name, number)
        )
        if not isinstance(row, dict):
            raise UsageError("SGLC008", "a row is a JSON object", Loc(name, number))
        yield row


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


def _csv_rows(name: str, delimiter: str, kinds: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    with open(name, encoding="utf-8-sig", newline="") as file:
        lines = csv.reader(file, delimiter=delimiter, strict=True)
        header: list[str] | None = None
        while True:
            try:
                cells = next(lines)
            except StopIteration:
                return
            except (csv.Error, UnicodeDecodeError) as error:
                raise UsageError("SGLC008", f"this is no CSV: {error}", Loc(name, lines.line_num + 1)) from None
            loc = Loc(name, lines.line_num)
            if header is None:
                header = _header(cells, loc)
            elif cells:
                yield _csv_row(header, cells, kinds, loc)


def _header(cells: list[str], loc: Loc) -> list[str]:
    twice = next((cell for place, cell in enumerate(cells) if cell in cells[:place]), None)
    if twice is not None or "" in cells:
        what = "a column has no name" if twice is None or not twice else f"two columns are called `{twice}`"
        raise UsageError("SGLC008", what, loc, hint="the first line names the arguments")
    return cells


def _csv_row(header: list[str], cells: list[str], kinds: Mapping[str, str], loc: Loc) -> dict[str, Any]:
    if len(cells) != len(header):
        raise UsageError(
            "SGLC008", f"this row has {len(cells)} cells, and the first line has {len(header)}", loc
        )
    row: dict[str, Any] = {}
    for column, cell in zip(header, cells, strict=True):
        try:
            row[column] = typed(cell, kinds.get(column, "str"))
        except (ValueError, KeyError):
            raise UsageError(
                "SGLC008", f"`{column}` is of type `{kinds[column]}`, and this row has `{cell}`", loc
            ) from None
    return row


def _parquet_rows(name: str) -> Iterator[dict[str, Any]]:
    for batch in _parquet(name).iter_batches(1024):
        yield from batch.to_pylist()


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
