"""The life of a run, whatever runs it: what it is given, its deadline, and its end."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sglc.errors import Loc, RunError, ends_run
from sglc.execution import context
from sglc.execution.answers.duplicates import Duplicates
from sglc.execution.budget import Budget, BudgetTracker
from sglc.execution.context import RUN_CONTEXT, CallPlace, RunContext, enter
from sglc.execution.deadline import Alarm, Clock, Deadline
from sglc.execution.observer import CallObserver
from sglc.execution.result import Result, RunOutcome
from sglc.execution.session import Session
from sglc.ir.core import Site
from sglc.ir.made_often import made_often
from sglc.ir.plan.asked import NOTHING_ASKED, Asked
from sglc.ir.plan.backend import Backend


@dataclass(frozen=True, slots=True)
class Limits:
    """What the runs of one call may take: the budget of each, their time, how many of them at once."""

    budget: Budget | None = None
    clock: Clock | None = None
    window: int | None = None  # None: as many as fit the back end


NO_LIMITS = Limits()


@made_often
@dataclass(frozen=True, slots=True)
class CallSetup:
    """What all runs have in common that one call of `run` or `run_batch` starts."""

    name: str
    backend: Backend
    seed: int
    limits: Limits = NO_LIMITS
    observer: CallObserver | None = None
    duplicates: Duplicates | None = None  # of several runs
    unified: bool = False  # the back end itself answers once what is asked for twice
    place: CallPlace | None = None  # where it stands in another run's body
    outputs: tuple[str, ...] | None = None  # the variables that are asked for; None: all, and the prompt
    drawn: bool = False  # nobody asked for the seed

    def backend_for(self, asked: Asked | None, arguments: Mapping[str, Any]) -> Backend:
        """The one for a run: of a plan that asks for so much, or of Python (None), of which nobody knows."""
        alone = self.duplicates is None and asked is not None and not asked.repeats
        if self.unified or alone or asked is NOTHING_ASKED:
            return self.backend
        return (self.duplicates or Duplicates(self.backend)).backend(asked, arguments)

    def alone(self, on_text: Callable[[Site, str | None], None] | None, live: bool) -> RunSetup:
        """What its only run is given, whose Python sees the variables of here."""
        return RunSetup(self, 0, contextvars.copy_context(), on_text, live)

    def failed(self, error: BaseException) -> None:
        """None of them begins, and who observes it is told."""
        if self.observer is not None:
            self.observer.close(error)


@made_often
@dataclass(frozen=True, slots=True)
class RunSetup:
    """What one of them is given besides. Its Python sees the variables of `context`, and changes none."""

    call: CallSetup
    number: int
    context: contextvars.Context
    on_text: Callable[[Site, str | None], None] | None = None
    live: bool = False
    in_batch: bool = False


class Run:
    """A run, one of a batch or alone: what it is given, its deadline, and its end.

    `part` runs it: a plan, or the program's Python, or one and then the other.

    Attributes:
        ended: called when the result is there.
        cancel: called when it is stopped, in whatever thread, while its body is a coroutine.
    """

    ended: Callable[[], None] | None = None
    cancel: Callable[[], None] | None = None
    _alarm: Alarm | None = None

    def __init__(
        self, setup: RunSetup, arguments: Mapping[str, Any], make: Callable[[Run], Part],
        asked: Asked | None = None, single_call: bool = False, why_python: str = "",
    ) -> None:  # fmt: skip
        """Of a plan that runs it: what that `asked` for, and whether it makes one call at most, of a model."""
        call = setup.call
        self.result = result = Result(call.name, call.seed, setup.number, live=setup.live)
        result.asked, result.in_batch = call.outputs, setup.in_batch
        result.why_python = why_python
        self.arguments = arguments
        self.observer = (
            None if call.observer is None else call.observer.row(setup.number, arguments, single_call)
        )
        self._outer = outer = setup.context.get(RUN_CONTEXT)
        place, budget = call.place, call.limits.budget
        row, tracker, on_text = setup.number, None, setup.on_text
        if outer is not None:
            tracker = outer.tracker
            if place is not None:
                row, on_text = place.row, outer.on_text
        if budget is not None:
            tracker = BudgetTracker(budget, tracker)
        self.session = session = Session(
            call.backend_for(asked, arguments), call.seed, row, on_text, result.outputs, tracker,
            own_budget=budget is not None, observer=self.observer, drawn=call.drawn, context=setup.context,
        )  # fmt: skip
        if place is not None:
            result.outputs.call, result.outputs.outer = place.site, place.outputs
            session.served = None if outer is None else outer.served
        self._setup = setup
        self.part = make(self)
        result.begin(self.stop)
        if outer is not None:
            outer.begin(self, part=place is not None)

    @cached_property
    def inside(self) -> RunContext:
        """This run, for Python that runs in it: most plans have none."""
        call, session, outer = self._setup.call, self.session, self._outer
        return RunContext(
            call.backend if call.unified else session.backend, call.seed, session.row,
            lambda: session.why_over,  # and not of the run, which would hold itself
            observer=self.observer, call=session.outputs.call, outputs=session.outputs,
            on_text=session.on_text, tracker=session.tracker, served=session.served,
            end_with=session.end_with, depth=1 if outer is None else outer.depth + 1,
        )  # fmt: skip

    @cached_property
    def context(self) -> contextvars.Context:
        """The variables that this Python sees."""
        context = self._setup.context.copy()
        context.run(enter, self.inside)
        return context

    @property
    def needs_thread(self) -> bool:
        """Whether `start` runs the user's Python, which may wait."""
        return self.part.needs_thread

    def start(self) -> None:
        """Run it, at least up to where nothing in this thread has to be done for it."""
        self.part.start()

    def take_turn(self) -> None:
        """Where it is a call of a program that goes on as Python: wait until the tools that the plan has called
        in it are behind it. Where a program counts calls, wait for its end."""
        outer, served = self._outer, self.session.served
        if outer is None:
            return
        if served is not None:
            served.wait(lambda: id(self) not in outer.inner)
        if outer.calls_left is not None:
            self.result.sync()

    def stop(self, reason: RunError | None = None) -> None:
        """Stop what runs, and the runs of programs that it called; let nothing begin any more."""
        self.session.stop(reason)
        cancel = self.cancel
        if cancel is not None:
            cancel()
        if "inside" in vars(self):
            self.inside.stop_inner(reason)

    def begin(self) -> bool:
        """Its time begins; gives whether there is any."""
        self.session.begin()
        clock = self._setup.call.limits.clock
        deadline = None if clock is None else clock.deadline()
        if deadline is None:
            return True
        if deadline.passed:
            self.part.give_up(deadline.not_begun(self.part.loc))
            return False
        self._alarm = Alarm(deadline.at_s, lambda: self.part.late(deadline))
        return True

    def waits(self) -> tuple[Loc | None, str]:
        """Where an unfinished run waits for a generation, and for which."""
        waiting = next((one for one in tuple(self.result.outputs.generations.values()) if not one.ready), None)
        if waiting is None:
            return self.part.loc, "for the back end"
        return waiting.node.loc, f"for `{waiting.site.name}`"

    def leave(self, error: BaseException | None, total_s: float) -> tuple[BaseException | None, float]:
        """Nothing rings any more, and those around know; gives error and time as who observes it has them."""
        if self._alarm is not None:
            self._alarm.off()
        if self._outer is not None:
            if ends_run(error) and not (self.observer is not None and self.observer.unrecorded):
                self._outer.end_with(error)
            own = self._setup.call.place
            is_call = own is not None and not own.batch
            self._outer.end(self, (self.result, error) if is_call and error is not None else None)
        if self.observer is None:
            return error, total_s
        try:
            return self.observer.end(self.result.outputs, error, total_s)
        except Exception as problem:  # what it writes to may be gone
            return error or problem, total_s

    def fill(self, outcome: RunOutcome) -> None:
        """The result is there."""
        if context.defaults.verbosity >= 2:
            print(outcome.text)
        self.result.finish(outcome)
        outer = self._outer
        if outer is not None and (ends_run(outcome.error) or (self.session.stopped and outer.why_over())):
            self.result.unread_error()  # it is told as that of the run around
        self.part = OVER  # the part holds this run: no cycle is left to the garbage collector
        if self.ended is not None:
            self.ended()


class Part:
    """What runs a run. This one does nothing, as what stands there when the run is over.

    `loc` is where it is if it does not say where it waits.
    """

    needs_thread = False
    loc: Loc | None = None

    def start(self) -> None:
        """See `Run.start`."""

    def late(self, deadline: Deadline) -> None:
        """The deadline has come. In the loop's thread, which must not wait for the back end either."""

    def give_up(self, error: RunError) -> None:
        """End the run with what is there."""


OVER = Part()
