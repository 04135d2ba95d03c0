"""A progress line on stderr, for batches and downloads; nothing where stderr is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

_T = TypeVar("_T")
_WIDTH = 30  # characters


def bar(items: Iterable[_T], *, total: int, label: str) -> Iterator[_T]:
    """`items`, with a line on stderr that shows how many of `total` (-1: nobody knows) have come."""
    for done, item in enumerate(items, 1):
        show(done, total, label)
        yield item


def show(done: int, total: int | None, label: str, unit: str = "") -> None:
    """Draw the line once; the last draw ends it. Without a `total` above 0 only the count is known."""
    if not sys.stderr.isatty():
        return
    if total is not None and total > 0:
        filled = _WIDTH * done // total
        line = f"\r{label} [{'#' * filled}{'.' * (_WIDTH - filled)}] {done}/{total}{unit}"
    else:
        line = f"\r{label} {done}{unit}"
    print(line, end="\n" if done == total else "", file=sys.stderr, flush=True)
