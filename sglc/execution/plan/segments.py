"""The segments of a running plan: bound to the run, submitted, told of, and their streams given back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

from sglc.execution.bind import Own
from sglc.execution.event_loop import start
from sglc.execution.outputs import PendingOutput
from sglc.execution.plan.frame import Frame
from sglc.execution.plan.meter import Meter
from sglc.execution.plan.prepared_block import PreparedSegment
from sglc.execution.plan.values import Kept, Samples, Value, text
from sglc.execution.session import HANDLES, Session
from sglc.ir.plan.segment import ReleaseNode, Segment
from sglc.ir.plan.stream_text import stream_pieces


class Going(Protocol):
    """The run of a plan, as its segments see it."""

    def give(self, frame: Frame, number: int, value: Any) -> None:
        """Enter what a name is, once."""

    def end(self, frame: Frame, number: int, error: Exception | None) -> None:
        """A step has ended."""

    def go_on(self) -> None:
        """Begin what waits for nothing."""


class Segments:
    """What a plan's run has to do with its back end. Used in the loop's thread only.

    Args:
        traced: the text of kept streams is wanted (`text`), so what they are made of is remembered.
        meter: counts what is submitted.
    """

    def __init__(self, session: Session, *, traced: bool, meter: Meter | None = None) -> None:
        self.session = session
        self._meter = meter
        # Handles that the back end may hold, and whether they are needed; None: a segment in flight frees it.
        self.kept: dict[int, bool | None] = {}
        self._traced: dict[int, tuple[Segment, int]] | None = {} if traced else None

    def submit(self, run: Going, frame: Frame, number: int, prepared: PreparedSegment) -> None:
        """Submit a segment, which is step `number`.

        What it gives is given as soon as it is there: a text when its generation has ended, a stream when all
        generations before it have. The step ends with the last one, with the first failure in its order.

        Raises:
            SglcError: it does not begin.
        """
        if prepared.empty:
            run.end(frame, number, None)
            return
        at, keeps = frame.at, prepared.keeps
        numbers = dict(zip(prepared.handles, HANDLES, strict=False)) if keeps else {}
        own = Own(
            {name: text(value(frame)) for name, value in prepared.texts},
            {name: self._number(value(frame)) for name, value, _ in prepared.opened} if prepared.opened else {},
            numbers, self.session.seeds, call=at.call, iterations=at.iterations,
            drawn=self.session.drawn,
        )  # fmt: skip
        bound = (prepared.placed if at.call or at.iterations else prepared.template).bind(own)
        if self._meter is not None:
            _count(self._meter, bound, prepared)
        # What ends it tells whether the back end has done all of it.
        over = self._over(frame, prepared) if self.kept and prepared.asked else ()
        running = RunningSegment(run, self, frame, number, prepared, over)
        if keeps:
            if self._traced is not None:
                self._traced |= {numbers[keep.handle]: (bound, keep.stream) for keep in keeps}
            running.keeps = [Kept(number, self._release) for number in numbers.values()]
            running.left = prepared.left.copy()
        asked = dict(zip(prepared.asked, map(bound.nodes.__getitem__, prepared.asked), strict=True))
        whole = Segment((*bound.nodes, *map(ReleaseNode, over))) if over else bound
        self.session.submit(whole, asked, running.told)  # type: ignore[arg-type]  # they are what was asked
        if over:
            self.kept.update(dict.fromkeys(over))
        if keeps:
            self.kept.update(dict.fromkeys(numbers.values(), True))
            for place in prepared.there:
                run.give(frame, prepared.kept[place], running.keeps[place])
        if not asked:
            run.end(frame, number, None)

    def give_back(self, then: Callable[[], None]) -> None:
        """Release every stream that is still kept, when everything submitted has ended; then call `then`."""
        nodes = tuple(map(ReleaseNode, self.kept))
        self.kept.clear()
        if not nodes:
            then()
            return

        async def release() -> None:
            with suppress(Exception):  # a back end that has broken down keeps nothing; the run has its error
                async for _ in self.session.backend.submit(Segment(nodes)):
                    pass
            then()

        start(release, self.session.context)

    def text(self, kept: Kept) -> str:
        """The text of a stream, markup included, when all generations in it have ended."""
        if kept.number is None:
            return ""
        assert self._traced is not None
        pieces = stream_pieces(self._traced[kept.number], self._traced.__getitem__)
        made = self.session.outputs.generations
        return "".join([piece if isinstance(piece, str) else text(value_of(made[piece])) for piece in pieces])

    # -- inside ----------------------------------------------------------------------------------

    def _over(self, frame: Frame, prepared: PreparedSegment) -> Sequence[int]:
        """The streams that a segment releases: what nobody needs, and what it is the last to read."""
        found = [number for number, needed in self.kept.items() if needed is False]
        for _, value, number in prepared.opened:
            if number is None or frame.left[number] > 1:
                continue
            kept = value(frame)
            if isinstance(kept, Kept) and kept.number in self.kept and kept.held_once:
                found.append(kept.number)
        return found

    def _release(self, number: int) -> None:
        """Nobody needs a stream any more: the next segment says so to the back end."""
        if number in self.kept:
            self.kept[number] = False

    def _number(self, value: Value) -> int | None:
        assert isinstance(value, Kept)
        return value.number


class RunningSegment:
    """A segment that was submitted. By place among what it keeps: `keeps` has the stream, `left` how many
    generations it waits for.

    Args:
        over: handles that it releases.
    """

    __slots__ = (
        "_frame", "_number", "_over", "_prepared", "_run", "_segments", "_unfinished", "failed", "keeps",
        "left",
    )  # fmt: skip

    def __init__(
        self, run: Going, segments: Segments, frame: Frame, number: int, prepared: PreparedSegment,
        over: Sequence[int],
    ) -> None:  # fmt: skip
        self._run = run
        self._segments = segments
        self._frame = frame
        self._number = number
        self._prepared = prepared
        self._over = over
        self._unfinished = len(prepared.asked)
        self.failed: dict[int, BaseException] = {}
        self.keeps: Sequence[Kept] = ()
        self.left: list[int] = []

    def told(self, output: PendingOutput) -> None:
        """A generation of it has ended."""
        run, frame, prepared, place = self._run, self._frame, self._prepared, output.place
        if output.error is not None:
            self.failed[place] = output.error
        else:
            value = output.text if type(output.text) is str else value_of(output)
            for name in prepared.gives.get(place, ()):
                run.give(frame, name, value)
            for kept in prepared.ends.get(place, ()):
                self.left[kept] -= 1
                if not self.left[kept]:
                    run.give(frame, prepared.kept[kept], self.keeps[kept])
        self._unfinished -= 1
        if not self._unfinished:
            error = self.failed[min(self.failed)] if self.failed else None
            for handle in self._over:
                if error is None:
                    self._segments.kept.pop(handle, None)
                else:  # perhaps nothing of it was done
                    self._segments.kept[handle] = False
            run.end(frame, self._number, error)  # type: ignore[arg-type]  # nobody else raises there
        run.go_on()


def _count(meter: Meter, bound: Segment, prepared: PreparedSegment) -> None:
    """Raises RunError: SGLC414, the texts of a segment, or its generations, are too much."""
    for node in bound.nodes:
        meter.take(getattr(node, "parts", ()))
        meter.take(getattr(node, "choices", ()))
    if (error := meter.begin(len(prepared.asked))) is not None:
        raise error


def value_of(output: PendingOutput) -> Value:
    """What a generation gave."""
    assert output.text is not None
    return Samples(tuple(output.text)) if isinstance(output.text, list) else output.text
