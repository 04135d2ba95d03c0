"""One row: a function's body with its arguments, everything that it starts, and the result that it fills."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sglc.errors import Loc, RunError
from sglc.execution.budget import Budget
from sglc.execution.call_record import Call, meta_info
from sglc.execution.context import ENCLOSING, Enclosing, inside
from sglc.execution.deadline import Alarm, Clock, Deadline
from sglc.execution.outputs import stopped, values
from sglc.execution.readers import TextReader
from sglc.execution.result import Outcome, Result
from sglc.execution.session import Run
from sglc.frontend.language.function import Definition
from sglc.frontend.locate import here, of_coroutine, of_thread
from sglc.frontend.program.history import messages
from sglc.frontend.program.instance import GatheredVariables, Instance
from sglc.frontend.program.state import State
from sglc.frontend.recorder.replay_cache import CachingRecorder, ReplayCache
from sglc.frontend.source.lazy_reads import LazyReads, body_of, run_as
from sglc.frontend.tracing.tools import AROUND
from sglc.frontend.values.lazy_text import LazyText
from sglc.frontend.values.recorded import NO_TURNS, Generated, Recorded, RecordedStream
from sglc.ir.core import Site
from sglc.ir.plan.backend import Backend
from sglc.ir.sampling import Sampling
from sglc.lang.global_config import global_config

if TYPE_CHECKING:
    from sglc.observe.observer import RowWatch

_BY_NAME = {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}


class Row:
    """A row to run. Its body sees the variables of `context`, by default those of where the row is made.

    At its deadline it ends whatever its body does. A body that goes on in its thread is abandoned: what it
    stores is seen by nobody, and it can begin nothing.
    """

    def __init__(
        self,
        definition: Definition,
        arguments: Mapping[str, Any],
        sampling: Sampling,
        backend: Backend,
        result: Result,
        on_text: Callable[[Site, str | None], None] | None = None,
        replay_cache: ReplayCache | None = None,
        context: contextvars.Context | None = None,
        budget: Budget | None = None,
        clock: Clock | None = None,
        watch: RowWatch | None = None,
    ) -> None:
        self.result = result
        self.ended: Callable[[], None] | None = None  # called when the result is there
        # Called before the body, for the run's `cache_keys`; what it raises ends the run.
        self.check: Callable[[], Mapping[Site, str]] | None = None
        self.abandoned: Callable[[], None] | None = None  # called before, if the thread that runs it is lost
        self.lost = False  # whether it is
        self._replay_cache = replay_cache or ReplayCache()
        self._definition = definition
        self._arguments = arguments
        self._sampling = sampling
        self._run = Run(backend, result.seed, result.row, on_text, result.feed, budget=budget, watch=watch)
        self._watch = watch
        self._clock = clock
        self._alarm: Alarm | None = None
        self._turn = threading.Lock()
        self._over: set[str] = set()  # what has ended: the `body`, the `run`; each once, inside `_turn`
        self._going: _Going | None = None  # the body, while it may be asked where it is
        self._context = context or contextvars.copy_context()
        run = self._run  # and not the row, which would hold itself
        self._enclosing = Enclosing(backend, result.seed, result.row, lambda: run.why_over, watch=watch)
        self._outer = self._context.get(ENCLOSING)
        result.begin(self.stop)
        if self._outer is not None:
            self._outer.begin(self)

    def run(self) -> None:
        """Run the body to its end. The result is filled when everything that it started has ended."""
        self._run.begin()
        deadline = None if self._clock is None else self._clock.deadline()
        if deadline is not None:
            if deadline.passed:
                self._give_up(deadline.not_begun(self._definition.loc))
                return
            self._alarm = Alarm(deadline.at_s, lambda: self._late(deadline))
        self._context.run(inside, self._enclosing, self._run_body)

    def stop(self, reason: RunError | None = None) -> None:
        """Stop what runs, and the runs of programs that the body called; let nothing begin any more."""
        self._run.stop(reason)
        self._enclosing.stop_inner(reason)

    def _run_body(self) -> None:
        recorder = CachingRecorder(
            self._definition.name, self._sampling, self._replay_cache, self._definition.ahead
        )
        stream = recorder.new_stream(self._definition.loc)
        launcher = _Shown(self._run, stream, self._watch)
        body = body_of(self._definition.call)
        texts = {name: value for name, value in self._arguments.items() if type(value) is str}
        instance = Instance(recorder, launcher, LazyReads(body, self._definition.code, texts))
        state = State(instance, stream)
        state._variables = self.result.feed.variables
        self._going = _Going(instance, state, threading.get_ident())
        value, error = None, None
        try:
            if self._run.stopped:
                raise self._run.why_over or stopped()
            if self._watch is not None:
                self._run.backend = self._watch.begin(self._run.backend, self._run.began_s)
                AROUND.set(self._watch.call)
            if self.check is not None:
                self._run.cache_keys = self.check()
            value = self._call(run_as(body, self._definition.call), state)
            instance.settle()
            launcher.launch(recorder.take(final=True))
        except BaseException as problem:
            error = problem
            recorder.ops.clear()  # what was recorded and not launched yet never runs
        launcher.watch = None  # from here on it is not the program that reads
        if self._first("body"):
            self._run.when_idle(lambda: self._end(instance, state, value, error))

    def _first(self, what: str) -> bool:
        """Whether the `body`, or the `run`, was not over before this; it is now."""
        with self._turn:
            new = what not in self._over
            self._over.add(what)
            return new

    # -- too late --------------------------------------------------------------------------------

    def _late(self, deadline: Deadline) -> None:
        """The deadline has come. In the loop's thread, which must not wait for the back end either."""
        if "run" in self._over:
            return
        self.lost = self._first("body")
        self._give_up(deadline.late(*self._where()))

    def _give_up(self, error: RunError) -> None:
        """End the run with what is there."""
        if not self._first("run"):
            return
        self.stop(error)
        going, feed = self._going, self.result.feed
        with feed.change:  # an abandoned body goes on with its own
            feed.variables = feed.variables.copied()
        if going is None:
            outcome = Outcome(None, error, {}, {}, "", [], self._run.elapsed_s)
        else:
            outcome = self._ending(going.instance, going.state, None, error)
        self._run.close()
        self._finish(outcome)
        self._run.when_idle(self._run.forget)

    def _where(self) -> tuple[Loc, str]:
        """The line that an unfinished run waits in, and for what."""
        file = self._definition.code.co_filename
        if self.lost and self._going is not None:
            going = self._going
            inside_body = of_coroutine(going.coroutine, file) or of_thread(going.thread, file)
            return inside_body or self._definition.loc, "here"
        waiting = next((cell for cell in tuple(self.result.feed.cells.values()) if not cell.ready), None)
        if waiting is None:
            return self._definition.loc, "for the back end"
        return waiting.node.loc, f"for `{waiting.site.name}`"

    # -- the end ---------------------------------------------------------------------------------

    def _end(self, instance: Instance, state: State, value: Any, error: BaseException | None) -> None:
        """Nothing runs any more: give back what is kept, and fill the result."""
        if "run" in self._over:
            return
        error = error or self._run.failure
        outcome = self._ending(instance, state, value, error)
        if error is not None or self._run.stopped:
            self._run.close()
        self._run.when_idle(lambda: self._finish_whole(outcome))

    def _finish_whole(self, outcome: Outcome) -> None:
        if self._first("run"):
            self._run.forget()
            self._finish(outcome)

    def _watched(self, outcome: Outcome, watch: RowWatch) -> Outcome:
        """`outcome` as whoever watches the row has it."""
        try:
            error, total_s = watch.end(self.result.feed, outcome.error, outcome.total_s)
        except Exception as problem:
            error, total_s = outcome.error or problem, outcome.total_s
        return replace(outcome, error=error, total_s=total_s)

    def _finish(self, outcome: Outcome) -> None:
        if self._alarm is not None:
            self._alarm.off()
        self._going = None
        if self._outer is not None:
            self._outer.end(self)
        if self._watch is not None:
            outcome = self._watched(outcome, self._watch)
        if global_config.verbosity >= 2:
            print(outcome.text)
        self.result.finish(outcome)
        if self.lost and self.abandoned is not None:
            self.abandoned()
        if self.ended is not None:
            self.ended()

    def _call(self, function: Callable[..., Any], state: State) -> Any:
        """The function's value. A coroutine function runs on an event loop of its own, in this thread."""
        kinds = {parameter.kind for parameter in self._definition.parameters}
        if kinds <= _BY_NAME:
            value = function(state, **self._arguments)
        else:
            signature = inspect.Signature(self._definition.parameters)
            bound = inspect.BoundArguments(signature, OrderedDict(self._arguments))
            value = function(state, *bound.args, **bound.kwargs)
        if not inspect.iscoroutine(value):
            return value
        if self._going is not None:
            self._going.coroutine = value
        return asyncio.run(value)

    def _ending(self, instance: Instance, state: State, value: Any, error: BaseException | None) -> Outcome:
        try:
            return self._outcome(instance, state, value, error)
        except BaseException as problem:  # a bug of ours: nobody may be left waiting for it
            return Outcome(None, error or problem, {}, {}, "", [], self._run.elapsed_s)

    def _outcome(self, instance: Instance, state: State, value: Any, error: BaseException | None) -> Outcome:
        feed = self.result.feed
        feed.error = error  # why a variable that was recorded and never launched has no value
        variables, errors = values(feed, feed.variables)
        # Those who read later need neither the launches nor the states that made a value.
        dict.update(
            feed.variables,
            {n: v for n, v in variables.items() if not isinstance(feed.variables[n], Generated)},
        )
        turns: list[dict[str, Any]] = []
        try:
            value = _plain(value, instance)
        except Exception as problem:
            value, error = None, error or problem
        try:
            if state.stream.turns != NO_TURNS:
                turns = messages(state._history, lambda made: instance.read(made, "`messages()`", here()))
        except Exception as problem:
            error = error or problem
        portion = TextReader(feed).take()
        text = "".join(portion.pieces) if portion else ""
        return Outcome(value, error, variables, errors, text, turns, self._run.elapsed_s)


@dataclass(slots=True)
class _Going:
    """A body that runs: in which thread, and as which coroutine."""

    instance: Instance
    state: State
    thread: int
    coroutine: Any = None


class _Shown:
    """The launcher of a row: after every launch the feed has the row's own stream as far as it came."""

    def __init__(self, run: Run, stream: RecordedStream, watch: RowWatch | None) -> None:
        self._run = run
        self._stream = stream
        self.watch = watch

    def launch(self, recorded: Recorded) -> None:
        self._run.launch(recorded)
        self._run.show(self._stream.handle)

    def launch_on(self, backend: Any, recorded: Recorded, loc: Loc) -> None:
        self._run.launch_on(backend, recorded, loc)

    def text_of_site(self, site: Site) -> str | list[str]:
        if self.watch is None:
            return self._run.text_of_site(site)
        with self.watch.waiting(str(site)):
            return self._run.text_of_site(site)

    def text_of_stream(self, handle: str) -> str:
        return self._run.text_of_stream(handle)

    def call_of_site(self, site: Site) -> Call:
        return self._run.call_of_site(site)

    def meta_of_site(self, site: Site) -> dict[str, Any]:
        return meta_info(self._run.call_of_site(site))


def _plain(value: Any, instance: Instance) -> Any:
    """A returned value with gathered variables as ordinary dicts, and lazy texts as texts."""
    match value:
        case LazyText():
            return value.read(instance.known)
        case GatheredVariables():
            return {name: instance.read(made, "`return`", here()) for name, made in value.variables.items()}
        case dict():
            return {key: _plain(item, instance) for key, item in value.items()}
        case list():
            return [_plain(item, instance) for item in value]
        case tuple() if type(value) is tuple:
            return tuple([_plain(item, instance) for item in value])
        case _:
            return value
