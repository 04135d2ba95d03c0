"""One row: a function's body with its arguments, everything that it starts, and the result that it fills."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sglc.budget import Budget
from sglc.calls import Call, meta_info
from sglc.current import Enclosing, inside
from sglc.errors import Loc
from sglc.executor import Run
from sglc.feed import stopped, values
from sglc.frontend.deferred import DeferredText
from sglc.frontend.function import Definition
from sglc.frontend.history import messages
from sglc.frontend.instance import GatheredVariables, Instance
from sglc.frontend.locate import here
from sglc.frontend.places import Places, body_of, run_as
from sglc.frontend.recorder import NO_TURNS, Generated, Recorded, Stream
from sglc.frontend.state import State
from sglc.frontend.tools import AROUND
from sglc.frontend.trail import TrailRecorder, Tree
from sglc.ir.core import Site
from sglc.ir.sampling import Sampling
from sglc.ir.target import Backend
from sglc.result import Outcome, Result
from sglc.settings import global_config
from sglc.streams import TextReader

if TYPE_CHECKING:
    from sglc.watch import RowWatch

_BY_NAME = {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}


class Row:
    """A row to run. Its body sees the variables of `context`, by default those of where the row is made."""

    def __init__(
        self,
        definition: Definition,
        arguments: Mapping[str, Any],
        sampling: Sampling,
        backend: Backend,
        result: Result,
        on_text: Callable[[Site, str | None], None] | None = None,
        tree: Tree | None = None,
        context: contextvars.Context | None = None,
        budget: Budget | None = None,
        watch: RowWatch | None = None,
    ) -> None:
        self.result = result
        self.ended: Callable[[], None] | None = None  # called when the result is there
        self.check: Callable[[], None] | None = None  # called before the body; what it raises ends the run
        self._tree = tree or Tree()
        self._definition = definition
        self._arguments = arguments
        self._sampling = sampling
        self._run = Run(backend, result.seed, result.row, on_text, result.feed, budget=budget, watch=watch)
        self._watch = watch
        self._context = context or contextvars.copy_context()
        result.begin(self._run.stop)

    def run(self) -> None:
        """Run the body to its end. The result is filled when everything that it started has ended."""
        self._run.begin()
        enclosing = Enclosing(self._run.backend, self.result.seed, self.result.row, watch=self._watch)
        self._context.run(inside, enclosing, self._run_body)

    def _run_body(self) -> None:
        recorder = TrailRecorder(self._definition.name, self._sampling, self._tree, self._definition.ahead)
        stream = recorder.new_stream(self._definition.loc)
        launcher = _Shown(self._run, stream, self._watch)
        body = body_of(self._definition.call)
        texts = {name: value for name, value in self._arguments.items() if type(value) is str}
        instance = Instance(recorder, launcher, Places(body, self._definition.code, texts))
        state = State(instance, stream)
        state._variables = self.result.feed.variables
        value, error = None, None
        try:
            if self._run.stopped:
                raise stopped()
            if self._watch is not None:
                self._run.backend = self._watch.begin(self._run.backend, self._run.began_s)
                AROUND.set(self._watch.call)
            if self.check is not None:
                self.check()
            value = self._call(run_as(body, self._definition.call), state)
            instance.settle()
            launcher.launch(recorder.take(final=True))
        except BaseException as problem:
            error = problem
            recorder.ops.clear()  # what was recorded and not launched yet never runs
        launcher.watch = None  # from here on it is not the program that reads
        self._run.when_idle(lambda: self._end(instance, state, value, error))

    def _end(self, instance: Instance, state: State, value: Any, error: BaseException | None) -> None:
        """Nothing runs any more: give back what is kept, and fill the result."""
        failed = self._run.failure
        error = error or failed
        try:
            outcome = self._outcome(instance, state, value, error)
        except BaseException as problem:  # a bug of ours: nobody may be left waiting for it
            outcome = Outcome(None, error or problem, {}, {}, "", [], self._run.elapsed_s)
        if self._watch is not None:
            outcome = self._watched(outcome, self._watch)
        if error is not None or self._run.stopped:
            self._run.close()
        self._run.when_idle(lambda: self._finish(outcome))

    def _watched(self, outcome: Outcome, watch: RowWatch) -> Outcome:
        """`outcome` as whoever watches the row has it."""
        try:
            error, total_s = watch.end(self.result.feed, outcome.error, outcome.total_s)
        except Exception as problem:
            error, total_s = outcome.error or problem, outcome.total_s
        return replace(outcome, error=error, total_s=total_s)

    def _finish(self, outcome: Outcome) -> None:
        self._run.forget()
        if global_config.verbosity >= 2:
            print(outcome.text)
        self.result.finish(outcome)
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
        return asyncio.run(value) if inspect.iscoroutine(value) else value

    def _outcome(self, instance: Instance, state: State, value: Any, error: BaseException | None) -> Outcome:
        feed = self.result.feed
        feed.error = error  # why a variable that was recorded and never launched has no value
        variables, errors = values(feed, state._variables)
        # Those who read later need neither the launches nor the states that made a value.
        dict.update(
            state._variables,
            {n: v for n, v in variables.items() if not isinstance(state._variables[n], Generated)},
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


class _Shown:
    """The launcher of a row: after every launch the feed has the row's own stream as far as it came."""

    def __init__(self, run: Run, stream: Stream, watch: RowWatch | None) -> None:
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
    """A returned value with gathered variables as ordinary dicts, and deferred texts as texts."""
    match value:
        case DeferredText():
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
