"""The segments of a running plan: bound to the run, submitted, told of, and their streams given back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from sglc.execution.bind import Own
from sglc.execution.event_loop import start
from sglc.execution.outputs import PendingOutput
from sglc.execution.plan.frame import Frame
from sglc.execution.plan.prepared_segment import PreparedSegment
from sglc.execution.plan.values import Kept, Samples, Value, text
from sglc.execution.session import HANDLES, Session
from sglc.ir.plan.segment import ReleaseNode, Segment
from sglc.ir.plan.stream_text import stream_pieces

Give = Callable[[Frame, int, Value], None]
End = Callable[[Frame, int, Exception | None], None]


class Segments:
    """What a plan's run has to do with its back end. Used in the loop's thread only.

    Args:
        traced: the text of kept streams is wanted (`text`), so what they are made of is remembered.
        give: enters what a number of a frame's names is; `end` is told the end of a step, `go_on` that there is
            something to do.
    """

    def __init__(
        self, session: Session, give: Give, end: End, go_on: Callable[[], None], *, traced: bool
    ) -> None:
        self.session = session
        self.give = give
        self.end = end
        self.go_on = go_on
        self.kept: dict[int, None] = {}  # handles that the back end may hold for this run
        self._free: list[int] = []  # those among them that nobody needs any more
        self._traced: dict[int, tuple[Segment, int]] | None = {} if traced else None

    def submit(self, frame: Frame, number: int, prepared: PreparedSegment) -> None:
        """Submit a segment, which is step `number`.

        What it gives is given as soon as it is there: a text when its generation has ended, a stream when all
        generations before it have. The step ends with the last one, with the first failure in its order.

        Raises:
            SglcError: it does not begin.
        """
        if prepared.empty:
            self.end(frame, number, None)
            return
        at = frame.at
        numbers = {keep.handle: next(HANDLES) for keep, _, _ in prepared.keeps}
        own = Own(
            {name: text(value(frame)) for name, value in prepared.texts},
            {name: self._number(value(frame)) for name, value, _ in prepared.opened},
            numbers, self.session.seeds, call=at.call, iterations=at.iterations,
        )  # fmt: skip
        bound = prepared.template(placed=not at.nowhere).bind(own)
        # What ends it tells whether the back end has done all of it.
        over = [*self._last_read(frame, prepared), *self._free] if prepared.asked else []
        running = RunningSegment(self, frame, number, prepared, over)
        if self._traced is not None:
            for keep, _, _ in prepared.keeps:
                self._traced[numbers[keep.handle]] = (bound, keep.stream)
        for keep, name, waits in prepared.keeps:
            running.keeps.append((name, Kept(numbers[keep.handle], self._release)))
            running.left.append(waits)
        asked = {index: bound.nodes[index] for index in prepared.asked}
        whole = Segment((*bound.nodes, *map(ReleaseNode, over))) if over else bound
        if over:
            self._free = []
        self.session.submit(whole, asked, running.told)  # type: ignore[arg-type]  # they are what was asked
        self.kept.update(dict.fromkeys(numbers.values()))
        for place, waits in enumerate(running.left):
            if not waits:
                self.give(frame, *running.keeps[place])
        if not asked:
            self.end(frame, number, None)

    def give_back(self, then: Callable[[], None]) -> None:
        """Release every stream that is still kept, when everything submitted has ended; then call `then`."""
        nodes = tuple(map(ReleaseNode, self.kept))
        self.kept.clear()
        self._free.clear()
        if not nodes:
            then()
            return

        async def release() -> None:
            with suppress(Exception):  # a back end that has broken down keeps nothing; the run has its error
                async for _ in self.session.backend.submit(Segment(nodes)):
                    pass
            then()

        start(release)

    def text(self, kept: Kept) -> str:
        """The text of a stream, markup included, when all generations in it have ended."""
        assert self._traced is not None
        at = None if kept.number is None else self._traced[kept.number]
        pieces = stream_pieces(at, self._traced.__getitem__)
        made = self.session.outputs.generations
        return "".join([piece if isinstance(piece, str) else text(value_of(made[piece])) for piece in pieces])

    # -- inside ----------------------------------------------------------------------------------

    def _last_read(self, frame: Frame, prepared: PreparedSegment) -> list[int]:
        """The streams that a segment is the last to read: it releases them itself."""
        found = []
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
            self._free.append(number)

    def _number(self, value: Value) -> int | None:
        assert isinstance(value, Kept)
        return value.number


class RunningSegment:
    """A segment that was submitted. By place among what it keeps: `keeps` has the number of its name and the
    stream, `left` how many generations it waits for.

    Args:
        over: handles that it releases.
    """

    __slots__ = (
        "_frame",
        "_number",
        "_over",
        "_prepared",
        "_segments",
        "_unfinished",
        "failed",
        "keeps",
        "left",
    )

    def __init__(
        self, segments: Segments, frame: Frame, number: int, prepared: PreparedSegment, over: list[int]
    ) -> None:
        self._segments = segments
        self._frame = frame
        self._number = number
        self._prepared = prepared
        self._over = over
        self._unfinished = len(prepared.asked)
        self.failed: dict[int, BaseException] = {}
        self.keeps: list[tuple[int, Kept]] = []
        self.left: list[int] = []

    def told(self, output: PendingOutput) -> None:
        """A generation of it has ended."""
        segments, frame, prepared, place = self._segments, self._frame, self._prepared, output.place
        if output.error is not None:
            self.failed[place] = output.error
        else:
            value = value_of(output)
            for name in prepared.gives.get(place, ()):
                segments.give(frame, name, value)
            for kept in prepared.ends.get(place, ()):
                self.left[kept] -= 1
                if not self.left[kept]:
                    segments.give(frame, *self.keeps[kept])
        self._unfinished -= 1
        if not self._unfinished:
            error = self.failed[min(self.failed)] if self.failed else None
            if error is None:
                for handle in self._over:
                    segments.kept.pop(handle, None)
            segments.end(frame, self._number, error)  # type: ignore[arg-type]  # nobody else raises there
        segments.go_on()


def value_of(output: PendingOutput) -> Value:
    """What a generation gave."""
    assert output.text is not None
    return Samples(tuple(output.text)) if isinstance(output.text, list) else output.text
