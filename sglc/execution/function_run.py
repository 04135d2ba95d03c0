"""A run of a function: its body with its arguments, everything that it starts, and the result that it fills."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from sglc.errors import Loc, Paused, RunError
from sglc.execution.budget import is_budget
from sglc.execution.deadline import Deadline
from sglc.execution.lifecycle import Part, Run
from sglc.execution.outputs import stopped, values
from sglc.execution.readers import TextReader
from sglc.execution.result import RunOutcome
from sglc.execution.served import Served
from sglc.execution.session import Session
from sglc.execution.tasks import numbered, task_path
from sglc.frontend.language.function import Definition
from sglc.frontend.locate import of_coroutine, of_error, of_thread
from sglc.frontend.program.history import messages
from sglc.frontend.program.instance import GatheredVariables, Instance
from sglc.frontend.program.state import State
from sglc.frontend.recorder.form import BODY, Body
from sglc.frontend.recorder.recorder import OpRecorder
from sglc.frontend.tracing.tools import AROUND, EQUAL_CALL, codes_of_functions
from sglc.frontend.values.recorded import NO_TURNS, Generated
from sglc.frontend.values.symbolic import END_RUN
from sglc.ir import ops
from sglc.ir.core import Site
from sglc.ir.sampling import Sampling


class PythonPart(Part):
    """The body of a function, with its arguments. It sees the variables of the run's context.

    At its deadline the run ends whatever the body does. A coroutine is cancelled where it waits. A body that
    goes on in its thread is abandoned: what it stores is seen by nobody, and it can begin nothing.

    Args:
        check: called before the body, for the session's `cache_keys`; what it raises ends the run.
        served: what a plan of the function has had; the run has begun then.
    """

    needs_thread = True

    def __init__(
        self,
        run: Run,
        definition: Definition,
        sampling: Sampling,
        check: Callable[[], Mapping[Site, str]] | None = None,
        served: Served | None = None,
    ) -> None:
        self.loc = definition.loc
        self._run = run
        self._session = run.session
        self._inside = run.inside
        self._check = check
        self._definition = definition
        self._sampling = sampling
        self._served = served
        self._turn = threading.Lock()
        self._lost = False  # whether the body is abandoned in its thread
        self._over: set[str] = set()  # what has ended: the `body`, the `run`; each once, inside `_turn`
        self._running: _RunningBody | None = None  # the body, while it may be asked where it is

    def start(self) -> None:
        """Run the body to its end. The result is filled when everything that it started has ended."""
        self._session.context = None
        if self._served is not None or self._run.begin():
            self._run.context.run(self._run_body)

    def _run_body(self) -> None:
        recorder = OpRecorder(
            self._definition.name, self._sampling, symbolic=False, ahead=self._definition.ahead
        )
        stream = recorder.new_stream(self._definition.loc)
        session, observer = self._session, self._run.observer
        session.stream, session.waiting = stream, None if observer is None else observer.waiting
        self._inside.reserve = partial(recorder.reserve, ())
        instance = Instance(recorder, session)
        if self._inside.calls_left is not None:
            self._inside.launch = partial(_launch, instance, self._definition.loc)
        # It holds nothing that holds this context: a cycle would keep each run until the next collection.
        END_RUN.set(partial(_end_with, session, instance, self._definition.loc))
        state = State(instance, stream)
        state._variables = self._run.result.outputs.variables
        self._running = _RunningBody(instance, state, threading.get_ident())
        value, error = None, None
        try:
            if session.stopped:
                raise session.why_over or stopped()
            if observer is not None and self._served is None:
                session.backend = observer.begin(session.backend, session.began_s, "python")
            AROUND.set(None if observer is None else observer.call)
            BODY.set(Body(recorder, task_path))
            EQUAL_CALL.set(None)  # of the plan that called what runs this
            if self._inside.served is not None:
                AROUND.set(self._inside.served.around(AROUND.get()))
            if self._check is not None:
                session.cache_keys = self._check()
            value = self._call(state)
            instance.settle()
            session.launch(recorder.take(final=True))
        except BaseException as problem:
            cancelled = isinstance(problem, asyncio.CancelledError) and session.stopped
            error = (session.why_over or stopped()) if cancelled else problem
            self._run.result.raised_at = of_error(error)
            self._leave(recorder)
        session.waiting, instance.over = None, True  # from here on it is not the program that reads
        if self._first("body"):
            session.when_idle(
                lambda: self._inside.when_alone(lambda: self._all_ended(instance, state, value, error))
            )
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            result = self._run.result
            result.stop()
            result.unread_error()  # who called `run` is told now
            raise error

    def _leave(self, recorder: OpRecorder) -> None:
        """The body has failed: what it recorded and did not launch never runs, but for what a plan has made."""
        answers = {} if self._served is None or self._session.why_over else self._served.answers
        asked = [op.site for op in recorder.ops if isinstance(op, ops.Gen | ops.Select)]
        if asked and all(self._session.outputs.at(site) in answers for site in asked):
            with suppress(Exception):  # that of the body is the error of the run
                self._session.launch(recorder.take(final=True))
        recorder.ops.clear()

    def _first(self, what: str) -> bool:
        """Whether the `body`, or the `run`, was not over before this; it is now."""
        with self._turn:
            new = what not in self._over
            self._over.add(what)
            return new

    # -- too late --------------------------------------------------------------------------------

    def late(self, deadline: Deadline) -> None:
        """The deadline has come. In the loop's thread, which must not wait for the back end either."""
        if "run" in self._over:
            return
        self._lost = self._first("body")
        self.give_up(deadline.late(*self._where()))

    def give_up(self, error: RunError) -> None:
        """End the run with what is there."""
        if not self._first("run"):
            return
        self._run.stop(error)
        running, outputs = self._running, self._run.result.outputs
        with outputs.change:  # an abandoned body goes on with its own
            outputs.variables = outputs.variables.copied()
            if running is not None:
                stored = [
                    pair for items in tuple(running.instance.maps) for pair in tuple(items.stored.items())
                ]
                outputs.variables |= {name: made for (state, name), made in stored if state is running.state}
        if running is None:
            outcome = RunOutcome(None, error, {}, {}, "", list, self._session.elapsed_s)
        else:
            outcome = self._safe_outcome(running.instance, running.state, None, error)
        self._session.close()
        self._finish(outcome)
        self._session.when_idle(self._session.forget)

    def _where(self) -> tuple[Loc | None, str]:
        """The line that an unfinished run waits in, and for what."""
        if self._lost and self._running is not None:
            running, body, functions = self._running, self._definition.code, codes_of_functions()
            inside_body = of_coroutine(running.coroutine, body, functions)
            inside_body = inside_body or of_thread(running.thread, body, functions)
            return inside_body or self._definition.loc, "here"
        return self._run.waits()

    # -- the end ---------------------------------------------------------------------------------

    def _all_ended(self, instance: Instance, state: State, value: Any, error: BaseException | None) -> None:
        """Nothing runs any more: give back what is kept, and fill the result."""
        if "run" in self._over:
            return
        if self._session.ended_by is not None:
            error = self._session.ended_by
        elif error is None or is_budget(error):  # whichever was read, the first that was not begun is told
            error = self._session.failure or error or self._inside.uncaught()
        outcome = self._safe_outcome(instance, state, value, error)
        if error is not None or self._session.stopped:
            self._session.close()
        self._session.when_idle(lambda: self._finish_whole(outcome))

    def _finish_whole(self, outcome: RunOutcome) -> None:
        if self._first("run"):
            self._session.forget()
            self._finish(outcome)

    def _finish(self, outcome: RunOutcome) -> None:
        self._running = None
        error, total_s = self._run.leave(outcome.error, outcome.total_s)
        self._run.fill(replace(outcome, error=error, total_s=total_s))

    def _call(self, state: State) -> Any:
        """The function's value. A coroutine function runs on an event loop of its own, in this thread."""
        if self._definition.by_name:
            value = self._definition.call(state, **self._run.arguments)
        else:
            signature = inspect.Signature(self._definition.parameters)
            bound = inspect.BoundArguments(signature, OrderedDict(self._run.arguments))
            value = self._definition.call(state, *bound.args, **bound.kwargs)
        if not inspect.iscoroutine(value):
            return value
        if self._running is not None:
            self._running.coroutine = value
        return asyncio.run(self._awaited(value))

    async def _awaited(self, body: Coroutine[Any, Any, Any]) -> Any:
        """What `body` gives. A run that is stopped cancels it, so that it leaves what it has entered."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        left = [task]

        def cancel_once() -> None:
            if left:  # else it is leaving, which takes its time
                left.pop().cancel()

        def cancel() -> None:
            with suppress(RuntimeError):  # its loop is closed: it has ended
                loop.call_soon_threadsafe(cancel_once)

        self._run.cancel = cancel
        if self._session.stopped:  # meanwhile
            cancel()
        try:
            return await numbered(body)
        finally:
            self._run.cancel = None

    def _safe_outcome(
        self, instance: Instance, state: State, value: Any, error: BaseException | None
    ) -> RunOutcome:
        try:
            return self._outcome(instance, state, value, error)
        except BaseException as problem:  # a bug of ours: nobody may be left waiting for it
            return RunOutcome(None, error or problem, {}, {}, "", list, self._session.elapsed_s)

    def _outcome(self, instance: Instance, state: State, value: Any, error: BaseException | None) -> RunOutcome:
        outputs = self._run.result.outputs
        outputs.error = error  # why a variable that was recorded and never launched has no value
        variables, unspelled = values(outputs, outputs.variables)
        # Those who read later need neither the launches nor the states that made a value.
        dict.update(
            outputs.variables,
            {n: v for n, v in variables.items() if not isinstance(outputs.variables[n], Generated)},
        )
        turns: list[dict[str, Any]] = []
        try:
            value = _plain(value, instance)
        except Exception as problem:
            value, error = None, error or problem
        try:
            if state.stream.turns != NO_TURNS:
                turns = messages(state._history, lambda made: self._session.text_in_prompt(made.site))
        except Exception as problem:
            error = error or problem
        text = "".join(TextReader(outputs).come()).removesuffix(self._session.told_ahead)
        told = frozenset(map(outputs.at, instance.told))
        return RunOutcome(value, error, variables, unspelled, text, turns.copy, self._session.elapsed_s, told)


@dataclass(slots=True)
class _RunningBody:
    """A body that runs: in which thread, and as which coroutine."""

    instance: Instance
    state: State
    thread: int
    coroutine: Any = None


def _end_with(session: Session, instance: Instance, loc: Loc, error: RunError) -> None:
    """The body may not go on: what stands before a pause is made, as in a plan."""
    if isinstance(error, Paused):
        _launch(instance, loc)
    session.end_with(error)


def _launch(instance: Instance, loc: Loc) -> None:
    """Launch all that the body has appended; does not wait for it."""
    for state in instance.waiting:
        state.begin_pending()
    instance.observe("a called program", loc)


def _plain(value: Any, instance: Instance) -> Any:
    """A returned value with gathered variables as ordinary dicts."""
    match value:
        case GatheredVariables():
            return {name: instance.read(made, "`return`") for name, made in value.variables.items()}
        case dict() if type(value) is dict:
            return {key: _plain(item, instance) for key, item in value.items()}
        case list() if type(value) is list:
            return [_plain(item, instance) for item in value]
        case tuple() if type(value) is tuple:
            return tuple([_plain(item, instance) for item in value])
        case _:
            return value
