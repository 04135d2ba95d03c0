"""`@function`, and what a function can do: run, stream, run over a batch, bind, compile."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, cast, overload

from sglc.errors import SglcError, UsageError
from sglc.execution.context import ENCLOSING, resolve, set_default_backend
from sglc.execution.options import (
    DEFAULTS,
    NOTHING,
    OPTIONS,
    WATCHES,
    Rows,
    check_rows,
    in_row,
    split,
    watch_of,
    watches_of,
)
from sglc.frontend.language.function import Definition, bind, define, describe
from sglc.frontend.locate import here
from sglc.frontend.values.symbolic import TRACING, SymbolicText
from sglc.ir.core import Program, Site
from sglc.ir.sampling import Sampling

# What only a run or a compilation needs is imported when one begins: `import sglc` is quick.
if TYPE_CHECKING:
    from sglc.api.compiled import CompiledFunction
    from sglc.execution.batch.prefixes import Beginnings
    from sglc.execution.budget import Budget
    from sglc.execution.deadline import Clock
    from sglc.execution.function_run import Row
    from sglc.execution.result import Result
    from sglc.explain.explanation import Explanation
    from sglc.frontend.recorder.replay_cache import ReplayCache
    from sglc.frontend.tracing.guards import Memo
    from sglc.ir.plan.backend import Backend
    from sglc.ir.target import Target
    from sglc.observe.observer import RowWatch, Watch
    from sglc.passes.compile import Compiled

__all__ = ["Function", "function", "set_default_backend"]

_MOST_REPLAY_CACHES = 64

Fitting = tuple[dict[str, Any], Sampling]  # a row's arguments, and defaults of its generations


class Function:
    """A program: a Python function whose first parameter is the prompt state.

    `bound` are arguments that are fixed: they win over those of a call.
    """

    def __init__(self, definition: Definition, bound: Mapping[str, Any] | None = None) -> None:
        self.definition = definition
        self.bound = dict(bound or {})
        self._replay_caches: dict[Sampling, ReplayCache] = {}  # by the sampling defaults of its runs
        self._compiled: dict[Any, Compiled] = {}  # of the newest recording, by target
        self._checking = threading.Lock()  # one recording at a time
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
        stream: bool | None = None,
        use_thread: bool | None = None,
        max_calls: int | None = None,
        max_tokens: int | None = None,
        timeout: float | None = None,
        record: str | None = None,
        replay: str | None = None,
        trace: str | None = None,
        **kwargs: Any,
    ) -> Result:
        """Start one run; returns at once. Reading the result waits.

        Keywords set defaults for every `gen` of the program: max_new_tokens, min_new_tokens, n, stop,
        stop_token_ids, stop_regex, temperature, top_p, top_k, min_p, frequency_penalty, presence_penalty,
        ignore_eos, return_logprob, logprob_start_len, top_logprobs_num, return_text_in_logprobs.

        A keyword of any of these names belongs to the program if it has such a parameter, and if no
        argument by position gave it a value.

        An `async def` program runs on an event loop of its own, in a thread of its own: reading
        `s["x"]` there blocks that loop until `x` has come.

        Args:
            seed: of all samples; drawn and reported (`result.seed`) if not given.
            stream: the result's iterators give pieces as the model makes them.
            use_thread: False runs the program's Python in this thread, before `run` returns.
            max_calls, max_tokens: a budget of generations begun and of tokens generated
                (`sglc.execution.budget`); passing it fails the run with SGLC408.
            timeout: seconds; a run that has not ended then ends with SGLC411 at the line that it waits in,
                and keeps what was computed. Python that blocks in its body is abandoned.
            record: a new folder for every answer of the run, from which `replay` repeats it without a model.
            trace: a file for the run's time line, in the form that Perfetto and Chrome open.

        Raises:
            UsageError: the arguments do not fit the function, the back end is unknown, or `record` or `replay`
                is no folder for that.
        """
        own = (backend, seed, stream, use_thread, max_calls, max_tokens, timeout, record, replay, trace)
        given = dict(zip(OPTIONS, own, strict=True))
        given = {name: value for name, value in given.items() if value is not None}
        return self._run(args, {**given, **kwargs})

    def _run(self, args: Sequence[Any], keywords: Mapping[str, Any], *, live: bool = False) -> Result:
        parameters = self._not_by_position(args)
        options = {name: keywords[name] for name in OPTIONS if name in keywords and name not in parameters}
        own = {name: value for name, value in keywords.items() if name not in options}
        arguments, sampling = self._arguments(args, own)
        if TRACING.get() is not None:
            from sglc.frontend.tracing import trace as ahead
            from sglc.frontend.tracing.tracer import current

            tracer = current()
            assert tracer is not None
            called: Any = ahead.call(tracer, self.definition, arguments, sampling, tuple(options))
            return cast("Result", called)  # what a recorded body can read of a result
        from sglc.execution.budget import budget_of
        from sglc.execution.deadline import clock_of_run

        backend, seed = options.get("backend"), options.get("seed")
        enclosing = ENCLOSING.get()
        if enclosing is not None:  # a program that another one calls
            backend = enclosing.backend if backend is None else backend
            seed = enclosing.seed_of(self.__name__) if seed is None else seed
        return self._start(
            arguments,
            sampling,
            resolve(backend, self.definition.loc),
            seed,
            live or bool(options.get("stream")),
            None,
            budget_of(options.get("max_calls"), options.get("max_tokens")),
            clock_of_run(options.get("timeout")),
            in_thread=options.get("use_thread") is not False,
            watches={name: options[name] for name in WATCHES if name in options},
        )

    async def arun(self, *args: Any, **kwargs: Any) -> Result:
        """`run`, and its result when it has ended, well or not. Cancelling stops the run."""
        return await self.run(*args, **kwargs).sync_async()

    def stream(self, *args: Any, **kwargs: Any) -> Iterator[tuple[Site, str]]:
        """`run`, and (site, text) of every generation as it comes, those of branches too.

        `site.name` is the variable and `site.fork` the branch. Closing the iterator stops the run.

        Raises:
            the run's error, after the last piece.
        """
        result = self._run(args, kwargs, live=True)

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
        budget: Budget | None = None,
        clock: Clock | None = None,
        watches: Mapping[str, Any] = NOTHING,
    ) -> Result:
        """`run`, with a function that gets every piece of generated text as it comes, None at its end."""
        fitting, sampling = self._arguments((), arguments)
        return self._start(fitting, sampling, backend, seed, False, on_text, budget, clock, watches=watches)

    def _start(
        self,
        arguments: dict[str, Any],
        sampling: Sampling,
        backend: Backend,
        seed: int | None,
        live: bool,
        on_text: Callable[[Site, str | None], None] | None,
        budget: Budget | None = None,
        clock: Clock | None = None,
        in_thread: bool = True,
        watches: Mapping[str, Any] = NOTHING,
    ) -> Result:
        from sglc.execution.result import Result

        watch, seed = watch_of(self.__name__, seed, None, watches)
        if watch is not None:
            backend = watch.backend(backend)
        backend.start()
        result = Result(self.__name__, seed, live=live)
        own = None if watch is None else watch.row(0, arguments)
        row = self._row(arguments, sampling, backend, result, on_text, budget=budget, clock=clock, watch=own)
        if in_thread:
            threading.Thread(target=row.run, name=f"sglc-{self.__name__}", daemon=True).start()
        else:
            row.run()
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
        from sglc.execution.progress import bar

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
        max_calls: int | None = None,
        max_tokens: int | None = None,
        hoist_prefix: bool = True,
        timeout: float | None = None,
        row_timeout: float | None = None,
        record: str | None = None,
        replay: str | None = None,
        trace: str | None = None,
        **kwargs: Any,
    ) -> Iterator[Result]:
        """`run_batch` that yields each result, in row order, as soon as it and all before it ended.

        Rows begin with the first `next`; closing the iterator stops them.

        Args:
            num_threads: rows live at once, each with a thread; "auto" follows the back end's concurrency.
            max_calls, max_tokens: the budget of each row, as of `run`.
            hoist_prefix: rows whose prompts begin alike begin one behind the other, as far as that is known
                before they run (`sglc.execution.batch.order`); else in the order of the list.
            row_timeout: seconds of each row, as `timeout` of `run`.
            timeout: seconds of all rows together; then those that run end with SGLC411, and those that
                have not begun with SGLC412.
            record, replay, trace: as of `run`, of all rows.
            kwargs: sampling defaults, and arguments that rows given as dicts share.

        Raises:
            UsageError: SGLC017, SGLC023, SGLC011, SGLC041, a row or option that does not fit; nothing has
                run then.
        """
        from sglc.execution.batch.runner import run_batch, window_of
        from sglc.execution.budget import budget_of
        from sglc.execution.deadline import clock_of_batch

        window = window_of(num_threads)
        fitting = self._fitting(rows, kwargs)
        chosen = resolve(backend, self.definition.loc)
        budget, clock = budget_of(max_calls, max_tokens), clock_of_batch(timeout, row_timeout)
        # Behind all that can be refused: a recording begins with its folder.
        watch, run_seed = watch_of(self.__name__, seed, len(rows), watches_of(record, replay, trace))
        if watch is not None:
            chosen = watch.backend(chosen)
        make = self._maker(fitting, chosen, run_seed, budget, clock, watch)

        def order() -> Sequence[int]:
            from sglc.execution.batch.prefixes import batch_order

            return batch_order([self._begin(fitting)], chosen)

        hoisted = order if hoist_prefix else None
        results = run_batch(make, len(fitting), chosen, window, clock, self.__name__, order=hoisted)
        return results if watch is None else watch.over(results)

    def _fitting(self, rows: Rows, kwargs: Mapping[str, Any]) -> list[Fitting]:
        """The arguments of each row, which fit the function, and defaults of its generations."""
        check_rows(rows)
        return [self._row_arguments(number, row, kwargs) for number, row in enumerate(rows)]

    def _maker(
        self,
        fitting: Sequence[Fitting],
        backend: Backend,
        seed: int,
        budget: Budget | None,
        clock: Clock | None,
        watch: Watch | None,
    ) -> Callable[[int], Row]:
        """What makes each row of a batch when it is to run."""
        from sglc.execution.result import Result

        context = contextvars.copy_context()

        def make(number: int) -> Row:
            arguments, sampling = fitting[number]
            result = Result(self.__name__, seed, number)
            own = None if watch is None else watch.row(number, arguments)
            return self._row(
                arguments,
                sampling,
                backend,
                result,
                context=context.copy(),
                budget=budget,
                clock=clock,
                watch=own,
            )

        return make

    def _begin(self, fitting: Sequence[Fitting]) -> Beginnings:
        """How the prompts of rows begin."""
        from sglc.execution.batch.prefixes import beginnings

        with self._checking:
            return beginnings(self.definition, self._begun, [arguments for arguments, _ in fitting])

    def _row_arguments(
        self, number: int, row: Mapping[str, Any] | Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Fitting:
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
            raise in_row(number, error) from None

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
        made = Function(self.definition, {**self.bound, **kwargs})
        made.memo = self.memo
        return made

    def cache(self, backend: Backend | str | None = None) -> None:
        """Compute what the prompt begins with whatever the arguments are, so that runs find it done.

        Waits until it is there; does nothing for a program that begins with an argument.

        Raises:
            SglcError: the program cannot be traced, or the back end cannot run it.
        """
        from sglc.execution.plan.precache import warm

        warm(self.trace(), resolve(backend, self.definition.loc))

    def trace(self, *, max_paths: int | None = None, **kwargs: Any) -> Program:
        """The program, recorded ahead of time with symbolic arguments (bound ones as they are).

        It is recorded once, and again when something has changed that its body reads (`memo`).

        Args:
            max_paths: where branches would make more paths than these (64), ordinary Python takes over.

        Raises:
            SglcError: the function misuses the language or raises; of a `fullgraph` program also where
                ordinary Python would have to take over.
        """
        _, sampling = split(self.definition, kwargs, ())
        return self._recorded(sampling, max_paths)

    def _recorded(self, sampling: Sampling, max_paths: int | None = None) -> Program:
        from sglc.frontend.tracing.guards import frozen
        from sglc.frontend.tracing.paths import MOST_PATHS

        most = MOST_PATHS if max_paths is None else max_paths
        key = (frozen(self.bound), sampling, most)
        return self.memo.get(self.definition.call, key, lambda: self._record(sampling, most))

    @cached_property
    def memo(self) -> Memo[Program]:
        """What was recorded, and what that depends on."""
        from sglc.frontend.tracing.guards import Memo

        return Memo()

    @cached_property
    def _begun(self) -> Memo[Program]:
        """What was recorded to see how rows begin."""
        from sglc.frontend.tracing.guards import Memo

        return Memo()

    def _record(self, sampling: Sampling, max_paths: int) -> Program:
        from sglc.frontend.tracing import trace as ahead

        parameters = tuple(
            parameter.replace(default=_known(self.bound[parameter.name]))
            if parameter.name in self.bound
            else parameter
            for parameter in self.definition.parameters
        )
        return ahead.record(replace(self.definition, parameters=parameters), sampling, max_paths=max_paths)

    def compile(
        self, target: Backend | str | None = None, *, backend: Backend | str | None = None, **kwargs: Any
    ) -> CompiledFunction:
        """The program, lowered for a back end (by name or as an object) to a plan.

        A second call compiles nothing, as long as nothing changed that the program's body reads.

        Args:
            backend: another name for `target`.
            kwargs: sampling defaults, for the plan and for the runs of what is given.

        Raises:
            SglcError: as of `trace`, or the back end cannot do it.
        """
        from sglc.api.compiled import CompiledFunction
        from sglc.passes.compile import compile_program

        chosen = resolve(backend if target is None else target, self.definition.loc)
        goal = chosen.target
        program = self.trace(**kwargs)
        tokenizer = goal.tokenizer.hash if goal.tokenizer else ""
        key = (replace(goal, tokenizer=None), tokenizer)
        made = self._compiled.get(key)
        if made is None or made.source is not program:
            made = self._compiled[key] = self._remarked(compile_program(program, goal), goal)
        return CompiledFunction(self, chosen, made, kwargs)

    def _remarked(self, compiled: Compiled, target: Target) -> Compiled:
        """`compiled`, with what the decorator asks for and this target has no use for."""
        from sglc.ir.remark import Remark

        tokens = self.definition.num_api_spec_tokens
        if tokens is None or target.guesses:
            return compiled
        message = (
            f"`num_api_spec_tokens={tokens}` changes nothing on `{target.name}`: "
            "a generation there goes on from any text"
        )
        remark = Remark("speculate", message, self.definition.loc)
        return replace(compiled, remarks=(*compiled.remarks, remark))

    def explain(
        self, target: Backend | str | None = None, *, rows: Rows | None = None, **kwargs: Any
    ) -> Explanation:
        """What the program will do on a back end, before it does: calls, prompts, bounds, sharing, remarks.

        Args:
            rows: an estimate for a batch: each row's arguments by name, or in order.
            kwargs: arguments, as far as they are known, and sampling defaults.

        Raises:
            SglcError: as of `compile`; an argument that the program does not have.
        """
        from sglc.explain.explanation import explained

        own, _ = split(self.definition, kwargs, self._not_by_position(()))
        return explained(self, target, rows, own, {key: kwargs[key] for key in kwargs if key not in own})

    # -- inside ----------------------------------------------------------------------------------

    def _arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], Sampling]:
        parameters = self._not_by_position(args)
        own, sampling = split(self.definition, kwargs, parameters)
        own.update((name, value) for name, value in self.bound.items() if name in parameters)
        return {**bind(self.definition, args, own), **self.bound}, sampling

    def _not_by_position(self, args: Sequence[Any]) -> tuple[str, ...]:
        """Names of the parameters that arguments by position leave open."""
        return tuple([parameter.name for parameter in self.definition.parameters[len(args) :]])

    @cached_property
    def _replay_cache(self) -> ReplayCache:
        """What its runs recorded that set no sampling defaults."""
        from sglc.frontend.recorder.replay_cache import ReplayCache

        return ReplayCache()

    def _row(
        self,
        arguments: dict[str, Any],
        sampling: Sampling,
        backend: Backend,
        result: Result,
        on_text: Callable[[Site, str | None], None] | None = None,
        context: contextvars.Context | None = None,
        budget: Budget | None = None,
        clock: Clock | None = None,
        watch: RowWatch | None = None,
    ) -> Row:
        from sglc.execution.function_run import Row
        from sglc.frontend.recorder.replay_cache import ReplayCache

        cache = self._replay_cache if sampling is DEFAULTS else self._replay_caches.get(sampling)
        if cache is None and len(self._replay_caches) < _MOST_REPLAY_CACHES:
            cache = self._replay_caches.setdefault(sampling, ReplayCache())
        row = Row(
            self.definition, arguments, sampling, backend, result, on_text, cache, context, budget, clock, watch
        )
        row.check = lambda: self._check(sampling, backend)
        return row

    def _check(self, sampling: Sampling, backend: Backend) -> Mapping[Site, str]:
        """Refuse what an API cannot do before its first call, as far as the program can be compiled ahead.

        Returns the cache keys of its generations: launches alone do not know what is the same in every row.

        Raises:
            LegalizeError: the target cannot do it.
        """
        from sglc.ir.target import EVERYTHING

        try:
            target = backend.target
            if target.takes is EVERYTHING:
                return {}
            with self._checking:
                program = self._recorded(sampling)
        except Exception:
            return {}  # whatever is wrong is met, and told, where the body itself comes to it
        if not program.ops:
            return {}
        from sglc.passes.compile import cached

        return cached(program, target).cache_keys


def _known(value: Any) -> Any:
    """A bound argument for tracing: a text is recorded as the constant that it is."""
    return SymbolicText((value,)) if isinstance(value, str) else value


@overload
def function(call: Callable[..., Any]) -> Function: ...


@overload
def function(
    *, num_api_spec_tokens: int | None = ..., fullgraph: bool = ...
) -> Callable[[Callable[..., Any]], Function]: ...


def function(
    call: Callable[..., Any] | None = None,
    *,
    num_api_spec_tokens: int | None = None,
    fullgraph: bool = False,
) -> Function | Callable[[Callable[..., Any]], Function]:
    """Make a program of a function whose first parameter is the prompt state.

    Args:
        num_api_spec_tokens: neighbouring generations of one turn may be asked for in one request of an API, of
            at most so many tokens; changes nothing on `local` and `http://`.
        fullgraph: compiling the program is an error where something is left to ordinary Python.

    Raises:
        TraceError: SGLC101, if it is no plain function with such a parameter.
        UsageError: SGLC028, `num_api_spec_tokens` is no number from 1.
    """
    tokens = num_api_spec_tokens
    if tokens is not None and (not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1):
        raise UsageError("SGLC028", f"`num_api_spec_tokens` is `{tokens!r}`: it is a number from 1", here())

    def made(inner: Callable[..., Any]) -> Function:
        return Function(replace(define(inner), num_api_spec_tokens=tokens, fullgraph=fullgraph))

    return made if call is None else made(call)
