"""Which reads of a run give lazy text, by the code that makes them.

What a code object's source allows (`dataflow`) is found out once; a run then looks its reads up.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

from sglc.frontend.source.dataflow import Dataflow, Read, analysis_of
from sglc.frontend.source.rewrite import (
    JOIN,
    PIECE,
    FunctionSource,
    code_of,
    keep_fields,
    matches,
    source_of,
    with_code,
)
from sglc.frontend.source.scopes import Outside
from sglc.frontend.values.lazy_text import join, piece

_PACKAGE = str(Path(__file__).resolve().parents[2])
_NESTED = 0x10  # of `co_flags`
_MOST_CODES = 4096
_MOST_VARIANTS = 4  # of one code object: functions of a factory whose names mean different things


@dataclass(slots=True)
class AnalyzedBody:
    """A function's body as runs see it. `code` is what runs instead of the function's own code."""

    flow: Dataflow
    code: CodeType
    _reads: dict[int, Read | None] = field(default_factory=dict)  # by instruction

    def read_at(self, lasti: int) -> Read | None:
        """The read that an instruction makes, if it may be deferred."""
        if lasti not in self._reads:
            span = next(islice(self.code.co_positions(), lasti // 2, None), None)
            self._reads[lasti] = self.flow.deferred.get(span) if span else None  # type: ignore[arg-type]
        return self._reads[lasti]


class LazyReads:
    """Which reads of one run stay deferred: those of its program's body, and of helpers that it calls.

    Args:
        body: of the program; None if nothing in it can be deferred.
        code: of the program as it was written.
        texts: the program's arguments that are texts.
    """

    def __init__(self, body: AnalyzedBody | None, code: CodeType, texts: Mapping[str, object]) -> None:
        self._body = body
        self._code = code
        self._texts = texts

    def here(self) -> Read | None:
        """The read that the user's code is making now, if it may be deferred."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
            frame = frame.f_back
        if frame is None:
            return None
        if self._body is not None and frame.f_code is self._body.code:
            read = self._body.read_at(frame.f_lasti)
            return read if read and all(name in self._texts for name in read.texts) else None
        if frame.f_code.co_flags & _NESTED or (self._body is None and frame.f_code is self._code):
            return None
        body = _helper(frame.f_code, frame.f_globals)
        return body.read_at(frame.f_lasti) if body is not None else None


# By code object: what its names meant, and the body; None where nothing can be deferred. Code objects are
# equal whose files and positions differ, so these are in the key.
_Key = tuple[CodeType, str, bytes, bool]
_BODIES: dict[_Key, list[tuple[Mapping[str, object], AnalyzedBody | None]]] = {}


def body_of(function: Any) -> AnalyzedBody | None:
    """The body of a program, if some read in it may be deferred; found out once for its code."""
    if type(function) is not FunctionType:
        return None
    return _cached(function, True, partial(_program_body, function))


def run_as(body: AnalyzedBody | None, function: Any) -> Any:
    """`function`, or a copy of it that runs `body`."""
    return function if body is None else with_code(function, body.code, {PIECE: piece, JOIN: join})


def _helper(code: CodeType, names: dict[str, Any]) -> AnalyzedBody | None:
    if code.co_freevars:
        return None
    function = FunctionType(code, names)
    return _cached(function, False, partial(_helper_body, function))


def _cached(
    function: FunctionType, program: bool, find: Callable[[], AnalyzedBody | None]
) -> AnalyzedBody | None:
    code = function.__code__
    key = (code, code.co_filename, code.co_linetable, program)
    variants = _BODIES.get(key)
    outside = Outside(function)
    for names, body in variants or ():
        if all(outside[name] is meant for name, meant in names.items()):
            return body
    if variants is None:
        if len(_BODIES) >= _MOST_CODES:
            del _BODIES[next(iter(_BODIES))]  # the oldest
        variants = _BODIES[key] = []
    if len(variants) >= _MOST_VARIANTS:
        return None
    try:
        body = find()
    except RecursionError:  # an expression of thousands of terms
        body = None
    variants.append((body.flow.relied_on if body is not None else {}, body))
    return body


def _program_body(function: FunctionType) -> AnalyzedBody | None:
    code = function.__code__
    source = _source(code)
    if source is None:
        return None
    flow = analysis_of(source, function, code.co_varnames[:1], program=True).flow()
    if flow.fields:
        try:
            keep_fields(source, flow.fields)
            return AnalyzedBody(flow, code_of(source, (PIECE, JOIN)))
        except (SyntaxError, ValueError, RecursionError):
            source = source_of(code)  # the f-strings stay as they are
            flow = analysis_of(source, function, code.co_varnames[:1], program=True, formats=False).flow()
    # A code object of its own: the same function called by user code is a helper, and returns to it.
    return AnalyzedBody(flow, code.replace()) if flow.deferred else None


def _helper_body(function: FunctionType) -> AnalyzedBody | None:
    code = function.__code__
    source = _source(code)
    if source is None:
        return None
    states = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    flow = analysis_of(source, function, states, program=False, formats=False).flow()
    return AnalyzedBody(flow, code) if flow.deferred else None


def _source(code: CodeType) -> FunctionSource | None:
    """None if the source is not available, or not certainly that of the code."""
    try:
        source = source_of(code)
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None
    return source if matches(source) else None
