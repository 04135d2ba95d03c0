"""Where in the user's source something happens: the innermost frame outside this package and Python's own."""

from __future__ import annotations

import linecache
import os
import re
import sys
from collections.abc import Callable, Container
from contextvars import ContextVar
from functools import lru_cache
from itertools import islice
from pathlib import Path
from threading import Lock
from types import CodeType, FrameType, TracebackType
from typing import Any

from sglc.errors import Loc
from sglc.ir.core import NOWHERE

# While a body is interpreted: where that stands.
PLACE: ContextVar[Callable[[], Loc] | None] = ContextVar("sglc_place", default=None)

_PACKAGE = str(Path(__file__).resolve().parent.parent) + os.sep
_STANDARD = os.path.dirname(os.__file__) + os.sep  # what threads and event loops begin in
_INSTALLED = tuple(_STANDARD + folder + os.sep for folder in ("site-packages", "dist-packages"))
_DEFINITION = re.compile(r"\s*((?:async +)?def +\w+)")
_MOST_DECORATOR_LINES = 50
# Calls come from few places many times (batches, loops), and decoding positions is slow. By the id of
# a code object: itself, so that it stays alive, and its places (None: it is this package's, or Python's own).
_CODES: dict[int, tuple[CodeType, dict[int, Loc] | None]] = {}
_ADDING = Lock()
_MOST_CODES = 1 << 14


def here() -> Loc:
    """The span of the expression that the user's code is evaluating now.

    The same place is the same object each time in a run.
    """
    place = PLACE.get()
    if place is not None:
        return place()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        places = (_CODES.get(id(code)) or _seen(code))[1]
        if places is not None:
            found = places.get(frame.f_lasti)
            return _loc(code, frame.f_lasti) if found is None else found
        frame = frame.f_back
    return NOWHERE


def _seen(code: CodeType) -> tuple[CodeType, dict[int, Loc] | None]:
    known = _CODES.get(id(code))
    if known is None:
        with _ADDING:
            while len(_CODES) >= _MOST_CODES:
                del _CODES[next(iter(_CODES))]  # the oldest
            known = _CODES.setdefault(id(code), (code, {} if _is_users(code.co_filename) else None))
    return known


def _is_users(file: str) -> bool:
    """Whether what happens in a file happens in the user's code."""
    return not file.startswith(_PACKAGE) and (not file.startswith(_STANDARD) or file.startswith(_INSTALLED))


def of_thread(ident: int, body: CodeType, functions: Container[CodeType]) -> Loc | None:
    """Where the `body` is that runs in a thread: the innermost frame of its file, outside of these functions
    that it calls; None if it is in none."""
    found: Loc | None = None
    frame: FrameType | None = sys._current_frames().get(ident)
    while frame is not None:
        if frame.f_code in functions:
            found = None
        elif found is None and os.path.abspath(frame.f_code.co_filename) == os.path.abspath(body.co_filename):
            found = _loc(frame.f_code, frame.f_lasti)
        frame = None if frame.f_code is body else frame.f_back
    return found


def of_coroutine(coroutine: Any, body: CodeType, functions: Container[CodeType]) -> Loc | None:
    """Where the coroutine of a `body` waits: the innermost one of its file among those that it awaits, outside
    of these functions; None if in none."""
    found: Loc | None = None
    while (frame := getattr(coroutine, "cr_frame", None)) is not None and frame.f_code not in functions:
        if os.path.abspath(frame.f_code.co_filename) == os.path.abspath(body.co_filename):
            found = _loc(frame.f_code, frame.f_lasti)
        coroutine = coroutine.cr_await
    return found


def of_exception(error: BaseException, file: str) -> Loc | None:
    """Where in `file` an exception came from: the innermost frame of that file, else of any user code."""
    found: Loc | None = None
    inside_file = False
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        is_file = os.path.abspath(code.co_filename) == os.path.abspath(file)
        if not code.co_filename.startswith(_PACKAGE) and (is_file or not inside_file):
            found = _loc(code, trace.tb_lasti)
            inside_file = inside_file or is_file
        trace = trace.tb_next
    return found


def of_error(error: BaseException) -> Loc | None:
    """Where an exception came from: the innermost frame of the first file outside that it went through."""
    trace = error.__traceback__
    while trace is not None and not _is_users(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return None if trace is None else of_exception(error, trace.tb_frame.f_code.co_filename)


def of_code(code: CodeType) -> Loc:
    """The line of a function's definition, behind its decorators."""
    first = code.co_firstlineno
    for line in range(first, first + _MOST_DECORATOR_LINES):
        found = _DEFINITION.match(linecache.getline(code.co_filename, line))
        if found:
            return Loc(shown_path(code.co_filename), line, found.start(1) + 1, found.end(1) + 1)
    return Loc(shown_path(code.co_filename), first)


def shown_path(path: str) -> str:
    """`path` as a user would write it: relative to the working directory where it lies below it."""
    return _shown_from(path, os.getcwd())


@lru_cache(maxsize=1024)
def _shown_from(path: str, folder: str) -> str:
    try:
        return str(Path(path).resolve().relative_to(folder))
    except ValueError:
        return path


def _loc(code: CodeType, lasti: int) -> Loc:
    places = _seen(code)[1]
    if places is None:
        return _decoded(code, lasti)
    if lasti not in places:
        places[lasti] = _decoded(code, lasti)
    return places[lasti]


def _decoded(code: CodeType, lasti: int) -> Loc:
    line, end_line, column, end_column = next(
        islice(code.co_positions(), lasti // 2, None), (None, None, None, None)
    )
    file = shown_path(code.co_filename)
    if line is None:
        return Loc(file, code.co_firstlineno)
    if column is None or end_column is None:
        return Loc(file, line)
    return _span(code.co_filename, line, column, end_column if end_line == line else None)


def of_node(node: Any, path: str, shown: str = "") -> Loc:
    """The span of an expression or a statement of a file's tree, which is `shown` as its `shown_path`."""
    end = node.end_col_offset if node.end_lineno == node.lineno else None
    return _span(path, node.lineno, node.col_offset, end, shown)


def _span(path: str, line: int, begin: int, end: int | None, shown: str = "") -> Loc:
    """A place that Python gives in bytes of a line, as sglc shows places: in characters.

    A span over several lines is shown by its first line: from the start to the line's end, with `end` None.
    """
    source = linecache.getline(path, line)
    if not source.isascii():
        begin, end = _characters(source, begin), None if end is None else _characters(source, end)
    return Loc(shown or shown_path(path), line, begin + 1, 0 if end is None else end + 1)


def _characters(source: str, size: int) -> int:
    """How many characters of a line are in its first bytes."""
    return len(source.encode("utf-8", "replace")[:size].decode("utf-8", "replace"))
