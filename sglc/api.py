"""`@function`, and what a function can do: run, run over a batch, compile. Puts the layers together."""

from __future__ import annotations

import atexit
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from sglc.errors import SglcError, UsageError
from sglc.frontend import ahead
from sglc.frontend.expr import sampling_fields
from sglc.frontend.function import Definition, bind, define
from sglc.frontend.history import messages
from sglc.frontend.locate import here
from sglc.frontend.recorder import Recorder
from sglc.frontend.state import Gathered, GatheredVariables, Instance, State
from sglc.ir.core import Program, Site
from sglc.ir.sampling import Sampling
from sglc.result import Outcome, Result, report_unread

if TYPE_CHECKING:
    from sglc.compile import Compiled
    from sglc.executor import Run
    from sglc.ir.target import Backend

_ROWS_PER_CALL = 4  # rows kept live for each generation that the back end runs at once
_LEAST_ROWS = 64
_SAMPLING = {
    "max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens", "n": "n", "stop": "stop",
    "stop_token_ids": "stop_token_ids", "temperature": "temperature", "top_p": "top_p", "top_k": "top_k",
    "min_p": "min_p", "ignore_eos": "ignore_eos",
}  # fmt: skip

_default_backend: Backend | None = None
atexit.register(report_unread)


def set_default_backend(backend: Backend | str | None) -> None:
    """The back end of every run that names none. A text is a name as `--backend` takes it.

    Raises:
        UsageError: the name is unknown.
    """
    global _default_backend
    _default_backend = _backend(backend) if backend is not None else None


class Function:
    """A program: a Python function whose first parameter is the prompt state."""

    def __init__(self, definition: Definition) -> None:
        self.definition = definition
        self.__name__ = definition.name
        self.__doc__ = definition.call.__doc__
        self.__wrapped__ = definition.call

    def __repr__(self) -> str:
        return f"<sglc function {self.__name__} at {self.definition.loc}>"

    def run(
        self, *args: Any, backend: Backend | str | None = None, seed: int | None = None, **kwargs: Any
    ) -> Result:
        """Start one run; returns at once. Reading the result waits.

        Keywords that are no parameter of the program set defaults for every `gen` in it:
        max_new_tokens, min_new_tokens, n, stop, stop_token_ids, temperature, top_p, top_k, min_p,
        ignore_eos.

        Args:
            seed: of all samples; drawn and reported (`result.seed`) if not given.

        Raises:
            UsageError: the arguments do not fit the function, or the back end is unknown.
        """
        arguments, sampling = self._arguments(args, kwargs)
        return self._start(arguments, sampling, _backend(backend), seed, None)

    def start(
        self,
        arguments: Mapping[str, Any],
        backend: Backend,
        seed: int | None = None,
        on_text: Callable[[Site, str | None], None] | None = None,
    ) -> Result:
        """`run`, with a function that gets every piece of generated text as it comes, None at its end."""
        fitting, sampling = self._arguments((), arguments)
        return self._start(fitting, sampling, backend, seed, on_text)

    def _start(
        self,
        arguments: dict[str, Any],
        sampling: Sampling,
        backend: Backend,
        seed: int | None,
        on_text: Callable[[Site, str | None], None] | None,
    ) -> Result:
        backend.start()
        result = Result(self.__name__, _seed(seed))
        job = _Job(self.definition, arguments, sampling, backend, result, on_text)
        threading.Thread(target=job.run, name=f"sglc-{self.__name__}", daemon=True).start()
        return result

    def run_batch(
        self,
        rows: Sequence[Mapping[str, Any] | Sequence[Any]],
        *,
        backend: Backend | str | None = None,
        seed: int | None = None,
        num_threads: int | str = "auto",
        progress_bar: bool = False,
        **kwargs: Any,
    ) -> list[Result]:
        """Run every row (its arguments as a dict, or as a tuple in order); gives results in row order.

        A row that fails keeps its error in its own result. Waits until all rows have ended.

        Args:
            num_threads: rows live at once; "auto" follows the back end's concurrency.

        Raises:
            UsageError: a row's arguments do not fit the function; nothing has run then.
        """
        from sglc.progress import bar

        results = self.stream_batch(rows, backend=backend, seed=seed, num_threads=num_threads, **kwargs)
        return list(bar(results, total=len(rows), label=self.__name__) if progress_bar else results)

    def stream_batch(
        self,
        rows: Sequence[Mapping[str, Any] | Sequence[Any]],
        *,
        backend: Backend | str | None = None,
        seed: int | None = None,
        num_threads: int | str = "auto",
        **kwargs: Any,
    ) -> Iterator[Result]:
        """`run_batch` that yields each result, in row order, as soon as it and all before it ended."""
        if not isinstance(rows, Sequence) or isinstance(rows, str):
            raise UsageError("SGLC017", f"a batch is a list of rows, not `{type(rows).__name__}`", here())
        chosen, run_seed = _backend(backend), _seed(seed)
        jobs = []
        for number, row in enumerate(rows):
            try:
                if isinstance(row, Mapping):
                    arguments, sampling = self._arguments((), {**kwargs, **row})
                else:
                    arguments, sampling = self._arguments(row, kwargs)
            except SglcError as error:
                note = f"row {number} of the batch; {error.note}"
                raise type(error)(error.code, error.message, error.loc, note=note, hint=error.hint) from None
            result = Result(self.__name__, run_seed, number)
            jobs.append(_Job(self.definition, arguments, sampling, chosen, result))
        if isinstance(num_threads, int):
            window = max(1, num_threads)
        else:
            window = max(_ROWS_PER_CALL * chosen.target.concurrency, _LEAST_ROWS) if jobs else 1
        chosen.start()
        waiting = iter(jobs)
        lock = threading.Lock()

        def work() -> None:
            while True:
                with lock:
                    job = next(waiting, None)
                if job is None:
                    return
                job.run()

        for _ in range(min(window, len(jobs))):
            threading.Thread(target=work, name=f"sglc-{self.__name__}", daemon=True).start()
        for job in jobs:
            yield job.result.sync()

    def trace(self, **kwargs: Any) -> Program:
        """The program, recorded ahead of time with symbolic arguments.

        Raises:
            SglcError: the function misuses the language or raises.
        """
        _, sampling = _split(self.definition, kwargs)
        return ahead.record(self.definition, sampling)

    def compile(self, target: Backend | str | None = None, **kwargs: Any) -> Compiled:
        """The program, lowered for a back end (by name or as an object) to a plan."""
        from sglc.compile import compile_program

        return compile_program(self.trace(**kwargs), _backend(target).target)

    def __call__(self, *args: Any, **kwargs: Any) -> Result:
        """`run`."""
        return self.run(*args, **kwargs)

    def _arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], Sampling]:
        own, sampling = _split(self.definition, kwargs)
        return bind(self.definition, args, own), sampling


class _Job:
    """One row: its arguments, and the result that it fills."""

    def __init__(
        self,
        definition: Definition,
        arguments: dict[str, Any],
        sampling: Sampling,
        backend: Backend,
        result: Result,
        on_text: Callable[[Site, str | None], None] | None = None,
    ) -> None:
        self.definition = definition
        self.arguments = arguments
        self.sampling = sampling
        self.backend = backend
        self.result = result
        self.on_text = on_text

    def run(self) -> None:
        """Run the body to its end, wait for everything that it started, and fill the result."""
        from sglc.executor import Run

        run = Run(self.backend, self.result.seed, self.result.row, self.on_text)
        recorder = Recorder(self.definition.name, self.sampling, symbolic=False)
        instance = Instance(recorder, run)
        state = State(instance, recorder.new_stream(self.definition.loc))
        value, error = None, None
        try:
            value = self.definition.call(state, **self.arguments)
            run.launch(recorder.take(final=True))
        except BaseException as problem:
            error = problem
            recorder.ops.clear()  # what was recorded and not launched yet never runs
        failed = run.wait()
        self.result.finish(_outcome(run, instance, state, value, error or failed))
        if error is not None:
            run.close()


def _outcome(run: Run, instance: Instance, state: State, value: Any, error: BaseException | None) -> Outcome:
    variables: dict[str, Any] = {}
    errors: dict[str, BaseException] = {}
    for name, variable in state._variables.items():
        try:
            variables[name] = _read(instance, variable)
        except Exception as problem:
            errors[name] = problem
    text, turns = "", []
    try:
        value = _plain(value)
        text = run.text_of_stream(state._stream.handle) if state._stream.handle else ""
        turns = messages(state._history, lambda made: instance.read(made, "`messages()`", here()))
    except Exception as problem:
        error = error or problem
    return Outcome(value, error, variables, errors, text, turns, tuple(run.calls), run.elapsed_s)


def _read(instance: Instance, variable: Any) -> Any:
    """A variable's value; in a joined list, a branch that failed leaves None."""
    if not isinstance(variable, Gathered):
        return instance.read(variable, "the end", here())
    entries: list[Any] = []
    for entry in variable.entries:
        try:
            entries.append(_read(instance, entry))
        except SglcError:
            entries.append(None)
    return entries


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


def _split(definition: Definition, kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], Sampling]:
    """Keywords for the program, and those that are defaults of its generations."""
    parameters = {parameter.name for parameter in definition.parameters}
    own = {key: value for key, value in kwargs.items() if key in parameters or key not in _SAMPLING}
    given = {_SAMPLING[key]: value for key, value in kwargs.items() if key not in own}
    return own, Sampling(**sampling_fields(given, definition.loc))


def _backend(backend: Backend | str | None) -> Backend:
    from sglc.backends.registry import connect

    if backend is None and _default_backend is not None:
        return _default_backend
    if backend is None or isinstance(backend, str):
        return connect(backend)
    return backend


def _seed(seed: int | None) -> int:
    return secrets.randbits(53) if seed is None else seed  # 53 bits survive JSON


@overload
def function(call: Callable[..., Any]) -> Function: ...


@overload
def function() -> Callable[[Callable[..., Any]], Function]: ...


def function(call: Callable[..., Any] | None = None) -> Function | Callable[[Callable[..., Any]], Function]:
    """Make a program of a function whose first parameter is the prompt state.

    Raises:
        TraceError: SGLC101, if it is no plain function with such a parameter.
    """
    if call is None:
        return lambda inner: Function(define(inner))
    return Function(define(call))
