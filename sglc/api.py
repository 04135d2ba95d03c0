"""`@function`, and what a function can do: run, stream, run over a batch, bind, compile."""

from __future__ import annotations

import atexit
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, overload

from sglc.current import resolve, set_default_backend
from sglc.errors import SglcError, UsageError
from sglc.frontend import ahead
from sglc.frontend.expr import sampling_fields
from sglc.frontend.function import Definition, bind, define, describe
from sglc.frontend.locate import here
from sglc.frontend.symbolic import SymbolicText
from sglc.ir.core import Program, Site
from sglc.ir.sampling import Sampling
from sglc.result import Result, report_unread

if TYPE_CHECKING:
    from sglc.compile import Compiled
    from sglc.ir.target import Backend
    from sglc.row import Row

__all__ = ["Function", "function", "set_default_backend"]

Rows = Sequence[Mapping[str, Any] | Sequence[Any]]  # each: a call's arguments by name, or in order

_ROWS_PER_CALL = 4  # rows kept live for each generation that the back end runs at once
_LEAST_ROWS = 64
_SAMPLING = {
    "max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens", "n": "n", "stop": "stop",
    "stop_token_ids": "stop_token_ids", "temperature": "temperature", "top_p": "top_p", "top_k": "top_k",
    "min_p": "min_p", "ignore_eos": "ignore_eos",
}  # fmt: skip

atexit.register(report_unread)


class Function:
    """A program: a Python function whose first parameter is the prompt state.

    `bound` are arguments that are fixed: they win over those of a call.
    """

    def __init__(self, definition: Definition, bound: Mapping[str, Any] | None = None) -> None:
        self.definition = definition
        self.bound = dict(bound or {})
        self.__name__ = definition.name
        self.__doc__ = definition.call.__doc__
        self.__wrapped__ = definition.call

    def __repr__(self) -> str:
        return f"<sglc function {self.__name__} at {self.definition.loc}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Result:
        """`run`."""
        return self.run(*args, **kwargs)

    # -- one run ---------------------------------------------------------------------------------

    def run(
        self,
        *args: Any,
        backend: Backend | str | None = None,
        seed: int | None = None,
        stream: bool = False,
        **kwargs: Any,
    ) -> Result:
        """Start one run; returns at once. Reading the result waits.

        Keywords that are no parameter of the program set defaults for every `gen` in it:
        max_new_tokens, min_new_tokens, n, stop, stop_token_ids, temperature, top_p, top_k, min_p,
        ignore_eos. A parameter called `backend`, `seed` or `stream` is given by position.

        An `async def` program runs on an event loop of its own, in a thread of its own: reading
        `s["x"]` there blocks that loop until `x` has come.

        Args:
            seed: of all samples; drawn and reported (`result.seed`) if not given.
            stream: the result's iterators give pieces as the model makes them.

        Raises:
            UsageError: the arguments do not fit the function, or the back end is unknown.
        """
        arguments, sampling = self._arguments(args, kwargs)
        return self._start(arguments, sampling, resolve(backend), seed, stream, None)

    async def arun(self, *args: Any, **kwargs: Any) -> Result:
        """`run`, and its result when it has ended, well or not. Cancelling stops the run."""
        return await self.run(*args, **kwargs).sync_async()

    def stream(self, *args: Any, **kwargs: Any) -> Iterator[tuple[Site, str]]:
        """`run`, and (site, text) of every generation as it comes, those of branches too.

        `site.name` is the variable and `site.fork` the branch. Closing the iterator stops the run.

        Raises:
            the run's error, after the last piece.
        """
        result = self.run(*args, **kwargs, stream=True)

        def pieces() -> Iterator[tuple[Site, str]]:
            try:
                yield from result.pieces()
            finally:
                result.stop()

        return pieces()

    def start(
        self,
        arguments: Mapping[str, Any],
        backend: Backend,
        seed: int | None = None,
        on_text: Callable[[Site, str | None], None] | None = None,
    ) -> Result:
        """`run`, with a function that gets every piece of generated text as it comes, None at its end."""
        fitting, sampling = self._arguments((), arguments)
        return self._start(fitting, sampling, backend, seed, False, on_text)

    def _start(
        self,
        arguments: dict[str, Any],
        sampling: Sampling,
        backend: Backend,
        seed: int | None,
        live: bool,
        on_text: Callable[[Site, str | None], None] | None,
    ) -> Result:
        backend.start()
        result = Result(self.__name__, random_seed() if seed is None else seed, live=live)
        row = self._row(arguments, sampling, backend, result, on_text)
        threading.Thread(target=row.run, name=f"sglc-{self.__name__}", daemon=True).start()
        return result

    # -- many runs -------------------------------------------------------------------------------

    @overload
    def run_batch(
        self, rows: Rows, *, progress_bar: bool = ..., generator_style: Literal[False] = ..., **kwargs: Any
    ) -> list[Result]: ...

    @overload
    def run_batch(
        self, rows: Rows, *, progress_bar: bool = ..., generator_style: Literal[True], **kwargs: Any
    ) -> Iterator[Result]: ...

    def run_batch(
        self,
        rows: Rows,
        *,
        progress_bar: bool = False,
        generator_style: bool = False,
        **kwargs: Any,
    ) -> list[Result] | Iterator[Result]:
        """Run every row (its arguments as a dict, or as a tuple in order); gives results in row order.

        A row that fails keeps its error in its own result. Waits until all rows have ended; with
        `generator_style` gives the iterator of `stream_batch`. Ctrl-C stops all rows, and raises a
        `KeyboardInterrupt` whose `results` are those of the rows that had ended.

        Args:
            kwargs: as of `stream_batch`.

        Raises:
            UsageError: a row's arguments do not fit the function; nothing has run then.
        """
        from sglc.progress import bar

        results = self.stream_batch(rows, **kwargs)
        if progress_bar:
            results = bar(results, total=len(rows), label=self.__name__)
        return results if generator_style else list(results)

    def stream_batch(
        self,
        rows: Rows,
        *,
        backend: Backend | str | None = None,
        seed: int | None = None,
        num_threads: int | str = "auto",
        **kwargs: Any,
    ) -> Iterator[Result]:
        """`run_batch` that yields each result, in row order, as soon as it and all before it ended.

        Rows begin with the first `next`; closing the iterator stops them.

        Args:
            num_threads: rows live at once, each with a thread; "auto" follows the back end's concurrency.
            kwargs: sampling defaults, and arguments that rows given as dicts share.

        Raises:
            UsageError: SGLC017, SGLC023, SGLC011, a row or option that does not fit; nothing has run then.
        """
        if not isinstance(rows, Sequence) or isinstance(rows, str):
            raise UsageError("SGLC017", f"a batch is a list of rows, not `{type(rows).__name__}`", here())
        if num_threads != "auto" and (not isinstance(num_threads, int) or num_threads < 1):
            raise UsageError(
                "SGLC023", f'`num_threads` is a number from 1 or `"auto"`, not `{num_threads!r}`', here()
            )
        fitting = [self._row_arguments(number, row, kwargs) for number, row in enumerate(rows)]
        chosen, run_seed = resolve(backend), random_seed() if seed is None else seed
        made = [
            self._row(arguments, sampling, chosen, Result(self.__name__, run_seed, number))
            for number, (arguments, sampling) in enumerate(fitting)
        ]
        return self._run_rows(made, chosen, num_threads)

    def _run_rows(self, rows: Sequence[Row], backend: Backend, num_threads: int | str) -> Iterator[Result]:
        from sglc.batch import run_rows

        if not rows:
            return
        backend.start()
        if isinstance(num_threads, int):
            window = num_threads
        else:
            window = max(_ROWS_PER_CALL * backend.target.concurrency, _LEAST_ROWS)
        yield from run_rows(rows, window, self.__name__)

    def _row_arguments(
        self, number: int, row: Mapping[str, Any] | Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[dict[str, Any], Sampling]:
        try:
            match row:
                case Mapping():
                    return self._arguments((), {**kwargs, **row})
                case str() | bytes():
                    pass
                case Sequence():
                    return self._arguments(row, kwargs)
            raise UsageError("SGLC017", f"a row is a dict or a tuple of arguments, not `{type(row).__name__}`")
        except SglcError as error:
            note = f"row {number} of the batch" + (f"; {error.note}" if error.note else "")
            raise type(error)(error.code, error.message, error.loc, note=note, hint=error.hint) from None

    # -- the program itself ----------------------------------------------------------------------

    def bind(self, **kwargs: Any) -> Function:
        """The same program with some arguments fixed. They win over those of a call, and of a row.

        Raises:
            UsageError: SGLC021, the program has no such parameter.
        """
        names = [p.name for p in self.definition.parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        for name in kwargs:
            if name not in names:
                raise UsageError(
                    "SGLC021", f"`{self.__name__}` has no parameter `{name}` to bind", here(),
                    note=f"its arguments are: {describe(self.definition) or 'none'}",
                )  # fmt: skip
        return Function(self.definition, {**self.bound, **kwargs})

    def cache(self, backend: Backend | str | None = None) -> None:
        """Compute what the prompt begins with whatever the arguments are, so that runs find it done.

        Waits until it is there; does nothing for a program that begins with an argument.

        Raises:
            SglcError: the program cannot be traced, or the back end cannot run it.
        """
        from sglc.warm import warm

        warm(self.trace(), resolve(backend))

    def trace(self, **kwargs: Any) -> Program:
        """The program, recorded ahead of time with symbolic arguments (bound ones as they are).

        Raises:
            SglcError: the function misuses the language or raises.
        """
        _, sampling = _split(self.definition, kwargs)
        parameters = tuple(
            parameter.replace(default=_known(self.bound[parameter.name]))
            if parameter.name in self.bound
            else parameter
            for parameter in self.definition.parameters
        )
        return ahead.record(replace(self.definition, parameters=parameters), sampling)

    def compile(self, target: Backend | str | None = None, **kwargs: Any) -> Compiled:
        """The program, lowered for a back end (by name or as an object) to a plan."""
        from sglc.compile import compile_program

        return compile_program(self.trace(**kwargs), resolve(target).target)

    # -- inside ----------------------------------------------------------------------------------

    def _arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], Sampling]:
        own, sampling = _split(self.definition, kwargs)
        by_position = {p.name for p in self.definition.parameters[: len(args)]}
        own.update((name, value) for name, value in self.bound.items() if name not in by_position)
        return {**bind(self.definition, args, own), **self.bound}, sampling

    def _row(
        self,
        arguments: dict[str, Any],
        sampling: Sampling,
        backend: Backend,
        result: Result,
        on_text: Callable[[Site, str | None], None] | None = None,
    ) -> Row:
        from sglc.row import Row

        return Row(self.definition, arguments, sampling, backend, result, on_text)


def _known(value: Any) -> Any:
    """A bound argument for tracing: a text is recorded as the constant that it is."""
    return SymbolicText((value,)) if isinstance(value, str) else value


def _split(definition: Definition, kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], Sampling]:
    """Keywords for the program, and those that are defaults of its generations."""
    parameters = {parameter.name for parameter in definition.parameters}
    own = {key: value for key, value in kwargs.items() if key in parameters or key not in _SAMPLING}
    given = {_SAMPLING[key]: value for key, value in kwargs.items() if key not in own}
    return own, Sampling(**sampling_fields(given, definition.loc))


def random_seed() -> int:
    """A seed for a run that was given none."""
    return secrets.randbits(53)  # 53 bits survive JSON


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
