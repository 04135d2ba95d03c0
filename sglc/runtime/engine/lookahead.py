"""What samples of slow constraints go on with: asked for when their last ids are known, there some time later.

Meanwhile their rows wait, and hold nobody back but for a moment: a mask that comes a little later than a step
would begin costs its row no step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import thread_time

from sglc.errors import SglcError
from sglc.runtime.engine.jump_forward import look_ahead
from sglc.runtime.engine.matcher_threads import MatcherThreads
from sglc.runtime.scheduler.requests import EngineRequest, RequestPart
from sglc.runtime.scheduler.samples import Lookahead

_MAY_TAKE_S = 0.5  # of a processor, for all calls behind one id
# Of rows that could go on: beside a step in flight what they wait is the device's time, if it is short. A row
# that is late waits for a step; what all wait for it is no large part of one.
_PATIENCE_S, _PATIENCE_IN_FLIGHT_S = 0.002, 0.0005
_OF_A_STEP = 0.25
_NO_HURRY_S = 0.02  # while there is nothing else to do
_SLICE_S = 0.002  # then others may have come


@dataclass(frozen=True, slots=True, eq=False)
class _Question:
    """What `samples` of a request go on with; of the `last` id that there may be, whether it ends the text."""

    request: EngineRequest
    samples: range
    last: bool


class Lookaheads:
    """The questions of one engine.

    Args:
        depth: steps that the executor may have in flight.
        found: is told what a sample goes on with, and whether its last id was the last one there may be.
        refused: is told what is wrong with a request.
    """

    def __init__(
        self,
        threads: MatcherThreads,
        depth: int,
        found: Callable[[EngineRequest, int, Lookahead, bool], None],
        refused: Callable[[EngineRequest, SglcError], None],
    ) -> None:
        self._threads = threads
        self._patience_s = _PATIENCE_S if depth == 1 else _PATIENCE_IN_FLIGHT_S
        self._found = found
        self._refused = refused

    def at_start(self, request: EngineRequest) -> None:
        """Ask what the samples of a new request begin with."""
        assert request.constraint is not None
        question = _Question(request, range(len(request.samples)), False)
        self._ask(question, request.constraint.start, None, 0)

    def behind(self, part: RequestPart, token: int, made: int, *, last: bool) -> None:
        """Ask what a sample goes on with behind `token`, the last of `made` ids."""
        state = part.request.samples[part.index].state
        self._ask(_Question(part.request, range(part.index, part.index + 1), last), state, token, made)

    def _ask(self, question: _Question, state: int, token: int | None, made: int) -> None:
        request = question.request
        for sample in question.samples:
            request.samples[sample].asked, request.samples[sample].ahead = question, None

        def work() -> tuple[Lookahead, float]:
            began_s = thread_time()
            return look_ahead(request, state, token, made, last=question.last), thread_time() - began_s

        self._threads.begin(
            request,
            work,
            lambda given: self._answer(question, given),
            may_take_s=_MAY_TAKE_S,
            awaited=request.patient,
            urgent=token is not None,  # who has a row, or had one, comes before who waits for one
        )

    def _answer(self, question: _Question, given: tuple[Lookahead, float] | SglcError) -> None:
        request = question.request
        if isinstance(given, SglcError):
            self._refused(request, given)
            return
        ahead, took_s = given
        request.patient = took_s < self._patience_s / 2
        for index in question.samples:
            sample = request.samples[index]
            if sample.asked is question and not sample.done and request.live:
                sample.asked, sample.ahead, sample.state = None, ahead, ahead.state
                self._found(request, index, ahead, question.last)

    def take(self, *, hurry: bool, step_s: float) -> None:
        """Tell what has been found out, and what will be soon; in a `hurry`, others could go on.

        The last step took `step_s`.
        """
        patience_s = min(self._patience_s, max(_OF_A_STEP * step_s, _PATIENCE_IN_FLIGHT_S))
        self._threads.wait(patience_s if hurry else _NO_HURRY_S, for_all=True)
        self._threads.deliver()

    def rest(self) -> None:
        """Wait for an answer, as there is nothing else to do; not for long, because others may come."""
        self._threads.wait(_SLICE_S, for_all=False)
