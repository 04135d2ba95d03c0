"""The prompt so far as a program of its own: for one generation on another back end, or for its text alone.

Chat turns stay turns, so the other model reads them in its own template. What was generated before is
text there: its tokens belong to the model that made them.
"""

from __future__ import annotations

from collections.abc import Callable

from sglc.errors import Loc
from sglc.frontend.language.expr import GenExpr, SelectExpr
from sglc.frontend.program.history import History, since
from sglc.frontend.recorder.recorder import OpRecorder
from sglc.frontend.values.recorded import Generated, Recorded, RecordedStream
from sglc.ir.core import Site
from sglc.ir.sampling import Sampling

NO_LAUNCH = -1  # of a value that no launch of the run's own recorder makes


def program_of(
    function: str,
    defaults: Sampling,
    history: History | None,
    read: Callable[[Generated], str],
    site: Site,
    expr: GenExpr | SelectExpr,
) -> Recorded:
    """A program that writes `history` and then generates at `site`.

    Args:
        read: gives the text of an earlier generation.
    """
    recorder = _AtSite(function, defaults, site)
    stream = write(recorder, history, read, expr.loc)
    recorder.generate(stream, site.fork, expr)
    stream.live = False  # nothing goes on behind it there
    return recorder.take(final=True)


def write(
    recorder: OpRecorder, history: History | None, read: Callable[[Generated], str], loc: Loc
) -> RecordedStream:
    """Record `history` as a stream of its own; `read` as of `program_of`."""
    stream = recorder.new_stream(loc)
    for part in since(history, None):
        match part.kind, part.item:
            case "open", str(role):
                recorder.role_open(stream, role, loc)
            case "close", _:
                recorder.role_close(stream, loc)
            case "image", str(data):
                recorder.image(stream, data, loc)
            case "generated", Generated() as made:
                recorder.append(stream, read(made), loc)
            case "text", str(text):
                recorder.append(stream, text, loc)
            case _:
                raise AssertionError(part)
    return stream


class _AtSite(OpRecorder):
    """A recorder whose one generation has a site that is given."""

    __slots__ = ("_given",)

    def __init__(self, function: str, defaults: Sampling, site: Site) -> None:
        super().__init__(function, defaults, symbolic=False)
        self._given = site

    def reserve(self, path: tuple[int, ...], name: str) -> Site:
        return self._given
