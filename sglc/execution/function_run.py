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
from sglc.execution.call_record import CallRecord, meta_info
from sglc.execution.deadline import Deadline
from sglc.execution.lifecycle import Part, Run
from sglc.execution.observer import Observer
from sglc.execution.outputs import stopped, values
from sglc.execution.readers import TextReader
from sglc.execution.result import RunOutcome
from sglc.execution.served import Served
from sglc.execution.session import Session
from sglc.execution.tasks import numbered, task_path
from sglc.frontend.language.function import Definition
from sglc.frontend.locate import here, of_coroutine, of_error, of_thread
from sglc.frontend.program.history import messages
from sglc.frontend.program.instance import GatheredVariables, Instance
from sglc.frontend.program.state import State
from sglc.frontend.recorder.form import BODY, Body
from sglc.frontend.recorder.recorder import OpRecorder
from sglc.frontend.tracing.tools import AROUND, EQUAL_CALL, codes_of_functions
from sglc.frontend.values.recorded import NO_TURNS, Generated, Recorded, RecordedStream
from sglc.frontend.values.symbolic import END_RUN
from sglc.ir import ops
from sglc.ir.core import Site
from sglc.ir.sampling import Sampling

_BY_NAME = {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}


class PythonPart(Part):
    """The body of a function, with its arguments. It sees the variables of the run's context.

    At its deadline the run ends whatever the body does. A coroutine is cancelled where it waits. A body that
    goes on in its thread is abandoned: what it stores is seen by nobody, and it can begin nothing.

    Args:
        check: called before the body, for the session's `cache_keys`; what it raises ends the run.
        served: what a plan of the function has had; the run has begun then.
    """

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
        launcher = _Shown(self._session, stream, self._run.observer)
        self._inside.reserve = partial(recorder.reserve, ())
        instance = Instance(recorder, launcher)
        if self._inside.calls_left is not None:
            self._inside.launch = partial(_launch, instance, self._definition.loc)
        END_RUN.set(partial(self._end_with, instance))
        state = State(instance, stream)
        state._variables = self._run.result.outputs.variables
        self._running = _RunningBody(instance, state, threading.get_ident())
        value, error = None, None
        try:
            if self._session.stopped:
                raise self._session.why_over or stopped()
            observer = self._run.observer
            if observer is not None and self._served is None:
                self._session.backend = observer.begin(self._session.backend, self._session.began_s, "python")
            AROUND.set(None if observer is None else observer.call)
            BODY.set(Body(recorder, task_path))
            EQUAL_CALL.set(None)  # of the plan that called what runs this
            if self._inside.served is not None:
                AROUND.set(self._inside.served.around(AROUND.get()))
            if self._check is not None:
                self._session.cache_keys = self._check()
            value = self._call(state)
            instance.settle()
            launcher.launch(recorder.take(final=True))
        except BaseException as problem:
            cancelled = isinstance(problem, asyncio.CancelledError) and self._session.stopped
            error = (self._session.why_over or stopped()) if cancelled else problem
            self._run.result.raised_at = of_error(error)
            self._leave(recorder, launcher)
        launcher.observer, instance.over = None, True  # from here on it is not the program that reads
        if self._first("body"):
            self._session.when_idle(
                lambda: self._inside.when_alone(lambda: self._all_ended(instance, state, value, error))
            )
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            result = self._run.result
            result.stop()
            result.unread_error()  # who called `run` is told now
            raise error

    def _end_with(self, instance: Instance, error: RunError) -> None:
        """The body may not go on: what stands before a pause is made, as in a plan."""
        if isinstance(error, Paused):
            _launch(instance, self._definition.loc)
        self._session.end_with(error)

    def _leave(self, recorder: OpRecorder, launcher: _Shown) -> None:
        """The body has failed: what it recorded and did not launch never runs, but for what a plan has made."""
        answers = {} if self._served is None or self._session.why_over else self._served.answers
        asked = [op.site for op in recorder.ops if isinstance(op, ops.Gen | ops.Select)]
        if asked and all(self._session.outputs.at(site) in answers for site in asked):
            with suppress(Exception):  # that of the body is the error of the run
                launcher.launch(recorder.take(final=True))
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
        self._run.lost = self._first("body")
        self.give_up(deadline.late(*self._where()))

    def give_up(self, error: RunError) -> None:
        """End the run with what is there."""
        if not self._first("run"):
            return
        self._run.stop(error)
        running, outputs = self._running, self._run.result.outputs
        with outputs.change:  # an abandoned body goes on with its own
            outputs.variables = outputs.variables.copied()
        if running is None:
            outcome = RunOutcome(None, error, {}, {}, "", list, self._session.elapsed_s)
        else:
            outcome = self._safe_outcome(running.instance, running.state, None, error)
        self._session.close()
        self._finish(outcome)
        self._session.when_idle(self._session.forget)

    def _where(self) -> tuple[Loc | None, str]:
        """The line that an unfinished run waits in, and for what."""
        if self._run.lost and self._running is not None:
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
        kinds = {parameter.kind for parameter in self._definition.parameters}
        if kinds <= _BY_NAME:
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
        portion = TextReader(outputs).take()
        text = "".join(portion.pieces).removesuffix(self._session.told_ahead) if portion else ""
        told = frozenset(map(outputs.at, instance.told))
        return RunOutcome(value, error, variables, unspelled, text, turns.copy, self._session.elapsed_s, told)


@dataclass(slots=True)
class _RunningBody:
    """A body that runs: in which thread, and as which coroutine."""

    instance: Instance
    state: State
    thread: int
    coroutine: Any = None


class _Shown:
    """The launcher of a run: after every launch the outputs have the row's own stream as far as it came."""

    def __init__(self, session: Session, stream: RecordedStream, observer: Observer | None) -> None:
        self._session = session
        self._stream = stream
        self.observer = observer

    def launch(self, recorded: Recorded) -> None:
        self._session.launch(recorded)
        self._session.show(self._stream.handle)

    def wait(self) -> BaseException | None:
        return self._session.wait()

    def launch_on(self, backend: Any, recorded: Recorded, loc: Loc) -> None:
        self._session.launch_on(backend, recorded, loc)

    def text_of_site(self, site: Site) -> str | list[str]:
        if self.observer is None:
            return self._session.text_of_site(site)
        with self.observer.waiting(str(site)):
            return self._session.text_of_site(site)

    def made_again(self, site: Site) -> None:
        self._session.made_again(site)

    def text_in_prompt(self, site: Site) -> str:
        return self._session.text_in_prompt(site)

    def text_of_stream(self, handle: str) -> str:
        return self._session.text_of_stream(handle)

    def text_of_program(self, recorded: Recorded) -> str:
        return self._session.text_of_program(recorded)

    def call_of_site(self, site: Site) -> CallRecord:
        return self._session.call_of_site(site)

    def meta_of_site(self, site: Site) -> dict[str, Any]:
        return meta_info(self._session.call_of_site(site))


def _launch(instance: Instance, loc: Loc) -> None:
    """Launch all that the body has appended; does not wait for it."""
    for state in instance.waiting:
        state.begin_pending()
    instance.observe("a called program", loc)


def _plain(value: Any, instance: Instance) -> Any:
    """A returned value with gathered variables as ordinary dicts."""
    match value:
        case GatheredVariables():
            return {name: instance.read(made, "`return`", here()) for name, made in value.variables.items()}
        case dict() if type(value) is dict:
            return {key: _plain(item, instance) for key, item in value.items()}
        case list() if type(value) is list:
            return [_plain(item, instance) for item in value]
        case tuple() if type(value) is tuple:
            return tuple([_plain(item, instance) for item in value])
        case _:
            return value
