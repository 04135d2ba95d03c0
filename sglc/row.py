"""One row: a function's body with its arguments, everything that it starts, and the result that it fills."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from sglc.calls import Call
from sglc.executor import Run
from sglc.feed import stopped, values
from sglc.frontend.function import Definition
from sglc.frontend.history import messages
from sglc.frontend.instance import GatheredVariables, Instance
from sglc.frontend.locate import here
from sglc.frontend.recorder import Generated, Recorded, Recorder, Stream
from sglc.frontend.state import State
from sglc.ir.core import Site
from sglc.ir.sampling import Sampling
from sglc.ir.target import Backend
from sglc.result import Outcome, Result
from sglc.streams import TextReader

_BY_NAME = {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}


class Row:
    """A row to run. Its body sees the context variables of where the row was made."""

    def __init__(
        self,
        definition: Definition,
        arguments: Mapping[str, Any],
        sampling: Sampling,
        backend: Backend,
        result: Result,
        on_text: Callable[[Site, str | None], None] | None = None,
    ) -> None:
        self.result = result
        self._definition = definition
        self._arguments = arguments
        self._sampling = sampling
        self._run = Run(backend, result.seed, result.row, on_text, result.feed)
        self._context = contextvars.copy_context()
        result.begin(self._run.stop)

    def run(self) -> None:
        """Run the body to its end, wait for everything that it started, and fill the result."""
        self._run.begin()
        self._context.run(self._run_body)

    def _run_body(self) -> None:
        recorder = Recorder(self._definition.name, self._sampling, symbolic=False)
        stream = recorder.new_stream(self._definition.loc)
        launcher = _Shown(self._run, stream)
        instance = Instance(recorder, launcher)
        state = State(instance, stream)
        state._variables = self.result.feed.variables
        value, error = None, None
        try:
            if self._run.stopped:
                raise stopped()
            value = self._call(state)
            launcher.launch(recorder.take(final=True))
        except BaseException as problem:
            error = problem
            recorder.ops.clear()  # what was recorded and not launched yet never runs
        failed = self._run.wait()
        error = error or failed
        try:
            outcome = self._outcome(instance, state, value, error)
        except BaseException as problem:  # a bug of ours: nobody may be left waiting for it
            outcome = Outcome(None, error or problem, {}, {}, "", [], (), self._run.elapsed_s)
        if error is not None or self._run.stopped:
            self._run.close()
        self.result.finish(outcome)

    def _call(self, state: State) -> Any:
        """The function's value. A coroutine function runs on an event loop of its own, in this thread."""
        kinds = {parameter.kind for parameter in self._definition.parameters}
        if kinds <= _BY_NAME:
            value = self._definition.call(state, **self._arguments)
        else:
            signature = inspect.Signature(self._definition.parameters)
            bound = inspect.BoundArguments(signature, OrderedDict(self._arguments))
            value = self._definition.call(state, *bound.args, **bound.kwargs)
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
        turns: list[dict[str, str]] = []
        try:
            value = _plain(value)
            turns = messages(state._history, lambda made: instance.read(made, "`messages()`", here()))
        except Exception as problem:
            error = error or problem
        portion = TextReader(feed).take()
        text = "".join(portion.pieces) if portion else ""
        return Outcome(value, error, variables, errors, text, turns, tuple(feed.calls), self._run.elapsed_s)


class _Shown:
    """The launcher of a row: after every launch the feed has the row's own stream as far as it came."""

    def __init__(self, run: Run, stream: Stream) -> None:
        self._run = run
        self._stream = stream

    def launch(self, recorded: Recorded) -> None:
        self._run.launch(recorded)
        self._run.show(self._stream.handle)

    def text_of_site(self, site: Site) -> str | list[str]:
        return self._run.text_of_site(site)

    def text_of_stream(self, handle: str) -> str:
        return self._run.text_of_stream(handle)

    def call_of_site(self, site: Site) -> Call:
        return self._run.call_of_site(site)


def _plain(value: Any) -> Any:
    """A returned value with gathered variables as ordinary dicts."""
    match value:
        case GatheredVariables():
            return dict(value)
        case dict():
            return {key: _plain(item) for key, item in value.items()}
        case list():
            return [_plain(item) for item in value]
        case _:
            return value
