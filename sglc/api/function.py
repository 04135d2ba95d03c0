"""`@function`, and what a function can do: run, stream, run over a batch, bind, compile."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property, partial, update_wrapper
from itertools import compress
from operator import is_not
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from sglc.api.ahead import AheadOfTime
from sglc.errors import SglcError, UsageError
from sglc.execution.bind import Fitting, Row, Rows, check_names, count_of, fitted, fitted_rows, split
from sglc.execution.context import RUN_CONTEXT, RunContext, resolve, set_default_backend
from sglc.execution.options import (
    LIMITS,
    NOTHING,
    OPTIONS,
    WATCHES,
    Mode,
    NumberedRows,
    check_mode,
    given_of,
    parted,
    watches_of,
)
from sglc.frontend.language.function import Definition, define, describe
from sglc.frontend.locate import here
from sglc.frontend.values.symbolic import TRACING
from sglc.ir.core import Program, Site
from sglc.ir.sampling import Sampling

# What only a run or a compilation needs is imported when one begins: `import sglc` is quick.
if TYPE_CHECKING:
    from sglc.api.ahead import Recording
    from sglc.api.plan_tree import PlanTree
    from sglc.execution.batch.runner import BatchControl, Make
    from sglc.execution.context import CallPlace
    from sglc.execution.function_run import PythonPart
    from sglc.execution.lifecycle import CallSetup, Limits, Run, RunSetup
    from sglc.execution.plan.prepare import Prepared
    from sglc.execution.result import Result
    from sglc.execution.served import Served
    from sglc.explain.explanation import Explanation
    from sglc.frontend.tracing.guards import Memo
    from sglc.frontend.values.graph_breaks import BreakPlace
    from sglc.ir.plan.backend import Backend
    from sglc.ir.plan.plan import Plan
    from sglc.ir.remark import Remark
    from sglc.observe.replay.remote_journal import RemoteJournal
    from sglc.passes.compile import Compiled

__all__ = ["Function", "function", "set_default_backend"]

_DEEPEST = 200  # programs that run in programs as Python
_RUNS = "sglc.api.start"  # what a run needs is imported with it
_Begin = Callable[..., Any]  # gives a result, and None only where it is to begin at once or not at all


class Function:
    """A program: a Python function whose first parameter is the prompt state.

    `bound` are arguments that are fixed: they win over those of a call.
    """

    __name__: str
    __qualname__: str
    __wrapped__: Callable[..., Any]

    def __init__(self, definition: Definition, bound: Mapping[str, Any] | None = None) -> None:
        self.definition = definition
        self.bound = dict(bound or {})
        self._ahead = AheadOfTime(definition, self.bound)
        update_wrapper(self, definition.call, updated=())  # `help` and `doctest` find it

    def __repr__(self) -> str:
        return f"<sglc function {self.__name__} at {self.definition.loc}>"

    def __call__(self, /, *args: Any, **kwargs: Any) -> Result:
        """`run`."""
        return self.run(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        """For `pickle`: by reference, as a function is.

        Raises:
            pickle.PicklingError: its module does not have it under its name.
        """
        from sglc.api.reference import function_at, reference

        return function_at, (*reference(self.definition), self.bound)

    def __copy__(self) -> Function:
        """Itself, as of a function: nothing of it changes."""
        return self

    def __deepcopy__(self, memo: object) -> Function:
        return self

    # -- one run ---------------------------------------------------------------------------------

    def run(
        self,
        /,
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
        cache: str | None = None,
        resume: bool = False,
        retry_failed: bool = False,
        redo: str | Sequence[str] = (),
        answers: Mapping[Any, Any] | None = None,
        mode: Mode | None = None,
        passes: str | Sequence[str] | None = None,
        outputs: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> Result:
        """Start one run; returns at once. Reading the result waits.

        Keywords set defaults for every `gen` of the program: max_new_tokens, min_new_tokens, n, stop,
        stop_token_ids, stop_regex, temperature, top_p, top_k, min_p, frequency_penalty, presence_penalty,
        ignore_eos, return_logprob, logprob_start_len, top_logprobs_num, return_text_in_logprobs.

        A keyword of any of these names belongs to the program if it has such a parameter, and if no
        argument by position gave it a value.

        The program's plan runs where its body can be traced for the arguments, and its code is not entered:
        `mode` says what else is to be done, and `mode` and `why_python` of the result what was done.

        An `async def` program runs on an event loop of its own, in a thread of its own: reading
        `s["x"]` there blocks that loop until `x` has come.

        Args:
            mode: "auto", or "plan" (SGLC058 where there is none, or what is wrong as Python too; an arm that
                only Python can run is left to it), or "python".
            seed: of all samples; drawn and reported (`result.seed`) if not given.
            stream: the result's iterators give pieces as the model makes them.
            use_thread: False runs the program's Python in this thread, before `run` returns; there Ctrl-C stops
                the run, and is raised.
            max_calls, max_tokens: a budget of generations begun and of tokens generated
                (`sglc.execution.budget`); passing it fails the run with SGLC408.
            timeout: seconds; a run that has not ended then ends with SGLC411 at the line that it waits in,
                and keeps what was computed. Python that blocks in its body is abandoned.
            record: a new folder for every answer of the run, from which `replay` repeats it without a model.
            trace: a file for the run's time line, in the form that Perfetto and Chrome open.
            resume: go on with what `record` holds: that is not done again, and the rest is recorded behind it.
            retry_failed: a run that ended with an error goes on, too, and what failed is asked again.
            redo: functions (or "all") that are called again where it is not known how a call of them ended.
            answers: what a person said, by the names of pauses (`sglc.pause`).
            cache: a folder of answers that models gave before, to any program: greedy ones, and with `seed`
                samples. Only what is not there is asked for, and then it is there.
            passes: other passes than the back end's: a text as of `sglc run --passes`, or a list of names.
            outputs: the variables that will be read. A plan makes no generation that neither they nor the
                return value, a tool or a decision depends on. Others, and the prompt, cannot be read (SGLC083).

        Raises:
            UsageError: the arguments do not fit the function, the back end is unknown, or `record` or `replay`
                is no folder for that.
        """
        own = (
            backend, seed, stream, use_thread, max_calls, max_tokens, timeout, mode, passes, outputs,
            record, replay, trace, cache, resume, retry_failed, redo, answers,
        )  # fmt: skip
        # What is not as usual, without a step of Python for each that is.
        given = dict(compress(zip(OPTIONS, own, strict=True), map(is_not, own, OPTIONS.values())))
        if not given.keys().isdisjoint(WATCHES):
            given = given_of(given.items())
        begin, _ = self._beginning(args, given, kwargs)
        result: Result = begin()
        return result

    def _beginning(
        self, args: Sequence[Any], options: Mapping[str, Any], own: Mapping[str, Any], *, live: bool = False
    ) -> tuple[_Begin, Limits | None]:
        """What begins a run, and what that may take. Arguments that do not fit are refused here."""
        if not options.keys().isdisjoint(self.definition.names):  # the program has such parameters
            names = self.definition.names[len(args) :]
            own = {**{name: value for name, value in options.items() if name in names}, **own}
            options = {name: value for name, value in options.items() if name not in names}
        arguments, sampling = fitted(self.definition, self.bound, args, own)
        if TRACING.get() is not None:
            from sglc.frontend.tracing import trace as ahead
            from sglc.frontend.tracing.tracer import current

            tracer = current()
            assert tracer is not None
            tracer.outside.call_program(self)
            ordered = tuple([name for name in OPTIONS if name in options])
            called: Any = ahead.call(tracer, self.definition, arguments, sampling, ordered)
            return lambda **_: called, None  # what a recorded body can read of a result
        from sglc.api.start import called_at, limits_of_run

        backend, seed, place = called_at(self.__name__, options.get("backend"), options.get("seed"))
        limits = limits_of_run(*map(options.get, LIMITS))
        live = live or bool(options.get("stream"))
        return partial(self._begin, arguments, sampling, options, backend, seed, place, limits, live), limits

    def _begin(
        self, arguments: dict[str, Any], sampling: Sampling, options: Mapping[str, Any],
        backend: Backend | str | None, seed: int | None, place: CallPlace | None, limits: Limits, live: bool,
        given_up: Callable[[], bool] | None = None, *, at_once: bool = False,
    ) -> Result | None:  # fmt: skip
        """A run with these options; None if it is to begin at once or not at all, and is not there."""
        in_thread = options.get("use_thread") is not False
        mode = options.get("mode", "auto" if in_thread else "python")
        if at_once and in_thread and not self._is_there(arguments, sampling, backend, options, mode):
            return None
        from sglc.api.start import set_up

        chosen = self._chosen(backend, options.get("passes"))
        watches = NOTHING
        if not options.keys().isdisjoint(WATCHES):
            watches = {name: value for name, value in options.items() if name in WATCHES}
        outputs = self._ahead.outputs(options["outputs"], sampling) if "outputs" in options else None
        if "mode" in options:
            check_mode(mode)
        call = set_up(self.__name__, chosen, seed, None, limits, watches, place, outputs)
        return self._start((arguments, sampling), call, mode, None, live, in_thread, given_up)

    def _is_there(
        self, arguments: Mapping[str, Any], sampling: Sampling, backend: Backend | str | None,
        options: Mapping[str, Any], mode: Mode,
    ) -> bool:  # fmt: skip
        """Whether such a run has a plan that has run on this back end: it begins at once."""
        if mode == "python" or not options.keys().isdisjoint(("passes", "outputs")):
            return False
        from sglc.ir.plan.backend import knows_target

        chosen = resolve(backend, self.definition.loc)
        return knows_target(chosen) and self._plans.is_there(arguments, sampling, chosen.target)

    async def arun(self, /, *args: Any, **kwargs: Any) -> Result:
        """`run`, and its result when it has ended, well or not. Cancelling stops the run.

        It waits for nothing but in `await`. What takes time before a run begins, as to ask a server what it has
        or to compile the program, is done in a thread, but for a call in the body of another program.
        """
        alone = RUN_CONTEXT.get() is None and TRACING.get() is None
        if alone and _RUNS not in sys.modules:
            import asyncio

            await asyncio.to_thread(importlib.import_module, _RUNS)
        begin, limits = self._beginning(args, *parted(given_of(kwargs.items())))
        result: Result | None = begin(at_once=alone)
        if result is None:
            assert limits is not None
            from sglc.api.start import begun_beside

            result = await begun_beside(begin, self.__name__, limits, self.definition.loc)
        return await result.sync_async()

    def stream(self, /, *args: Any, **kwargs: Any) -> Iterator[tuple[Site, str]]:
        """`run`, and (site, text) of every generation as it comes, those of branches too.

        `site.name` is the variable and `site.fork` the branch. Closing the iterator stops the run.

        Raises:
            the run's error, after the last piece.
        """
        begin, _ = self._beginning(args, *parted(kwargs), live=True)
        result: Result = begin()

        def pieces() -> Iterator[Any]:
            try:
                yield None  # only what has been entered does anything when it is closed
                yield from result.pieces()
            finally:
                result.stop()

        entered = pieces()
        next(entered)
        return entered

    def start(
        self,
        arguments: Mapping[str, Any],
        backend: Backend,
        seed: int | None = None,
        on_text: Callable[[Site, str | None], None] | None = None,
        limits: Limits | None = None,
        watches: Mapping[str, Any] = NOTHING,
        mode: Mode = "auto",
        outputs: Sequence[str] | None = None,
    ) -> Result:
        """`run`, with a function that gets every piece of generated text as it comes, None at its end."""
        from sglc.api.start import set_up
        from sglc.execution.lifecycle import NO_LIMITS

        fitting = fitted(self.definition, self.bound, (), arguments)
        asked = self._ahead.outputs(outputs, fitting[1])
        check_mode(mode)
        call = set_up(self.__name__, backend, seed, None, limits or NO_LIMITS, watches, outputs=asked)
        return self._start(fitting, call, mode, on_text)

    def _start(
        self, fitting: Fitting, call: CallSetup, mode: Mode, on_text: Callable[[Site, str | None], None] | None,
        live: bool = False, in_thread: bool = True, given_up: Callable[[], bool] | None = None,
    ) -> Result:  # fmt: skip
        try:
            call.backend.start()
            run = self._made(fitting, call.alone(on_text, live), mode)
        except BaseException as error:
            call.failed(error)
            raise
        assert run is not None
        if given_up is not None and given_up():
            run.result.stop()
        part = run.part
        if part.needs_thread and in_thread:
            threading.Thread(target=part.start, name=f"sglc-{self.__name__}", daemon=True).start()
        else:
            part.start()
        run.take_turn()
        return run.result

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
        from sglc.execution.progress import watched

        results = self.stream_batch(rows, **kwargs)
        if progress_bar:
            results = watched(results, total=count_of(rows), label=self.__name__)
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
        cache: str | None = None,
        resume: bool = False,
        retry_failed: bool = False,
        redo: str | Sequence[str] = (),
        answers: Mapping[Any, Any] | None = None,
        mode: Mode = "auto",
        passes: str | Sequence[str] | None = None,
        outputs: Sequence[str] | None = None,
        ordered: bool = True,
        skip: Container[int] = (),
        control: BatchControl | None = None,
        journal: str | RemoteJournal | None = None,
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
            record, replay, trace, cache, resume, retry_failed, redo: as of `run`, of all rows.
            answers: as of `run`, of every row; or such dicts by the numbers of rows.
            mode, passes, outputs: as of `run`.
            ordered: each result when it and all before it ended; else each as it ends, whatever its row, which
                `result.row` tells: no row waits for another one.
            skip: numbers of rows that do not run, and have no results.
            control: ends the batch early, from another thread; only of one that is not ordered.
            journal: as `record`, but the folder gets no more than a row needs to go on inside, with `resume`:
                nothing of rows that make one call, and no prompts. For results that are kept as they come. In
                place of a folder, who keeps the journal somewhere else.
            kwargs: sampling defaults, and arguments that rows given as dicts share.

        Raises:
            UsageError: SGLC017, SGLC023, SGLC011, SGLC041, SGLC079, a row or option that does not fit; nothing
                has run then.
        """
        from sglc.api.start import called_at, limits_of_batch, run_rows, set_up
        from sglc.execution.batch.runner import delivery_of

        delivery = delivery_of(ordered, skip, control)
        limits = limits_of_batch(num_threads, max_calls, max_tokens, timeout, row_timeout)
        fitting = fitted_rows(self.definition, self.bound, rows, kwargs, skip)
        backend, seed, place = called_at(self.__name__, backend, seed)
        chosen = self._chosen(backend, passes)
        asked = self._ahead.outputs(outputs, split(self.definition, kwargs, ())[1])
        # Behind all that can be refused: a recording begins with its folder.
        watches = watches_of(
            record=record, journal=journal, replay=replay, trace=trace, cache=cache, resume=resume,
            retry_failed=retry_failed, redo=redo or None, answers=answers, skip=skip if resume else None,
        )  # fmt: skip
        call = set_up(self.__name__, chosen, seed, count_of(rows), limits, watches, place, asked)

        def order(ahead: Sequence[Fitting]) -> Iterable[int]:
            if call.duplicates is not None:
                call.duplicates.look([arguments for arguments, _ in ahead])
            from sglc.execution.batch.order import computes, zero_first
            from sglc.passes.pipelines import hoists

            if not (hoist_prefix and hoists(call.backend.target) and computes(call.backend)):
                return range(len(ahead))
            from sglc.execution.batch.prefixes import batch_order

            return zero_first(lambda: batch_order([self._ahead.beginnings(ahead)], call.backend))

        return run_rows(call, self._maker(call, mode), fitting, order, delivery)

    def prompts_begin(self, rows: NumberedRows) -> list[tuple[str, ...]]:
        """How the prompts of each row begin, as far as that is known before it runs.

        Raises:
            UsageError: SGLC017, SGLC011, a row does not fit.
        """
        fitting = fitted_rows(self.definition, self.bound, rows, {})
        return [*self._ahead.beginnings([row for _, row in fitting]).rows]

    def _maker(self, call: CallSetup, mode: Mode = "auto") -> Make[Fitting]:
        """What makes the run of each row when its turn has come."""
        from sglc.api.start import maker

        check_mode(mode)
        return maker(call, lambda row, setup, at_once: self._made(row, setup, mode, at_once=at_once))

    # -- the program itself ----------------------------------------------------------------------

    def bind(self, /, **kwargs: Any) -> Function:
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
        made._ahead = AheadOfTime(self.definition, made.bound, self.memo)
        made.__dict__["_plans"] = self._plans  # what is bound is an argument like any other
        return made

    def cache(self, backend: Backend | str | None = None) -> None:
        """Compute what the prompt begins with whatever the arguments are, so that runs find it done.

        Waits until it is there; does nothing for a program that begins with an argument.

        Raises:
            SglcError: the program cannot be traced, or the back end cannot run it.
        """
        from sglc.execution.plan.precache import precache

        precache(self.trace(), resolve(backend, self.definition.loc))

    def trace(
        self, *, max_paths: int | None = None, args: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> Program:
        """The program, recorded ahead of time with symbolic arguments (bound ones as they are).

        It is recorded once, and again when something has changed that its body reads (`memo`).

        Args:
            max_paths: where branches would make more paths than these (64), ordinary Python takes over.
            args: examples of arguments, by name. They stay data; where Python needs one itself, the program is
                for arguments that are the same in just that.

        Raises:
            SglcError: the function misuses the language or raises; of a `fullgraph` program also where
                ordinary Python would have to take over.
        """
        return self._recording(max_paths, args, kwargs).program

    def _recording(
        self, max_paths: int | None, args: Mapping[str, Any] | None, kwargs: Mapping[str, Any]
    ) -> Recording:
        own, sampling = split(self.definition, kwargs, ())
        # What it compiles to may be run in each of these ways.
        ways = (Function.run, Function.stream_batch, Function.run_batch)
        options = {name for way in ways for name in way.__kwdefaults__ or ()}
        check_names(self.definition, own.keys() - options)
        return self._ahead.recording(sampling, max_paths, self._examples(args))

    @property
    def memo(self) -> Memo[Recording]:
        """What was recorded, and what that depends on."""
        return self._ahead.memo

    def compile(
        self,
        target: Backend | str | None = None,
        *,
        backend: Backend | str | None = None,
        args: Mapping[str, Any] | None = None,
        passes: str | Sequence[str] | None = None,
        outputs: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> CompiledFunction:
        """The program, lowered for a back end (by name or as an object) to a plan.

        A second call compiles nothing, as long as nothing changed that the program's body reads.

        Args:
            backend: another name for `target`.
            args: as of `trace`.
            passes, outputs: as of `run`; those of the runs of what is given, too.
            kwargs: sampling defaults, for the plan and for the runs of what is given.

        Raises:
            SglcError: as of `trace`, or the back end cannot do it; UsageError: SGLC011, an unknown keyword.
        """
        chosen = self._chosen(backend if target is None else target, passes)
        goal = chosen.target
        recording = self._recording(None, args, kwargs)
        asked = self._ahead.outputs(outputs, split(self.definition, kwargs, ())[1])
        compiled = self._ahead.compiled(recording.program, goal, asked)
        defaults = kwargs if asked is None else {**kwargs, "outputs": asked}
        return CompiledFunction(self, chosen, compiled, defaults, recording.breaks)

    def explain(
        self,
        target: Backend | str | None = None,
        /,
        *,
        backend: Backend | str | None = None,
        rows: Sequence[Row] | None = None,
        passes: str | Sequence[str] | None = None,
        outputs: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> Explanation:
        """What the program will do on a back end, before it does: calls, prompts, bounds, sharing, remarks.

        A keyword of any of these names belongs to the program if it has such a parameter.

        Args:
            backend: another name for `target`.
            rows: an estimate for a batch: each row's arguments by name, or in order.
            passes, outputs: as of `run`.
            kwargs: arguments, as far as they are known, and sampling defaults.

        Raises:
            SglcError: as of `compile`; an argument that the program does not have.
        """
        parameters = self.definition.names
        named = {"backend": backend, "rows": rows, "passes": passes, "outputs": outputs}
        given = {name: value for name, value in named.items() if name in parameters and value is not None}
        options: dict[str, Any] = {name: None if name in given else value for name, value in named.items()}
        other = None if "target" in parameters else kwargs.pop("target", None)
        backends = (target, other, options.pop("backend"))
        target = next((one for one in backends if one is not None), None)
        return self.explain_for(target, {**kwargs, **given}, **options)

    def explain_for(
        self, target: Backend | str | None, kwargs: Mapping[str, Any], rows: Sequence[Row] | None,
        outputs: Sequence[str] | None, passes: str | Sequence[str] | None = None,
    ) -> Explanation:  # fmt: skip
        """`explain` with arguments of any names."""
        from sglc.explain.explanation import explained

        own, _ = split(self.definition, kwargs, self.definition.names)
        sampling = {key: kwargs[key] for key in kwargs if key not in own} | {"outputs": outputs}
        made = explained(self, self._chosen(target, passes), rows, own, sampling)
        return replace(made, leaves=self._plans.seen(), last_miss=self._plans.last_miss)

    # -- inside ----------------------------------------------------------------------------------

    def _chosen(self, backend: Backend | str | None, passes: str | Sequence[str] | None) -> Backend:
        """The back end that is meant, with its passes or others.

        Raises:
            UsageError: as of `resolve`; SGLC020, SGLC322, no such passes; SGLC023, what is no list of passes.
        """
        if isinstance(backend, str):
            from sglc.backends.registry import connect_for

            chosen = connect_for(backend, self.definition.loc)
        else:
            chosen = resolve(backend, self.definition.loc)
        if passes is None:
            return chosen
        from sglc.backends.with_passes import WithPasses
        from sglc.passes.pass_options import split_specs

        specs = split_specs(passes) if isinstance(passes, str) else passes
        if not isinstance(specs, Sequence) or not all(isinstance(spec, str) for spec in specs):
            raise UsageError("SGLC023", f"`passes` is a text or a list of texts, not `{passes!r}`", here())
        return WithPasses(chosen, specs)

    def _examples(self, args: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """Arguments to record the program with, by parameter.

        Raises:
            UsageError: SGLC021, the program has no such parameter.
        """
        names = self.definition.names
        more = {name: value for name, value in (args or {}).items() if name not in names}
        rest = next((p.name for p in self.definition.parameters if p.kind is p.VAR_KEYWORD), None)
        if more and rest is None:
            raise UsageError(
                "SGLC021", f"`{self.__name__}` has no parameter `{next(iter(more))}` to compile for", here(),
                note=f"its arguments are: {describe(self.definition) or 'none'}",
            )  # fmt: skip
        if args is None:
            return None
        own = {name: value for name, value in args.items() if name in names}
        return own if rest is None else {rest: more, **own}

    def _made(self, fitting: Fitting, setup: RunSetup, mode: Mode, *, at_once: bool = False) -> Run | None:
        """A run of these arguments: of the plan that is for them, or of the body.

        Args:
            at_once: only of a plan that is there; None if there is none.

        Raises:
            UsageError: SGLC058, there is no plan for them, and it is to be one.
            SglcError: it is to be one, and what keeps it from that is wrong as Python too.
            RecursionError: programs call each other without an end.
        """
        arguments, sampling = fitting
        wrong: SglcError | None = None
        call, outer, why = setup.call, setup.context.get(RUN_CONTEXT), "`mode` says so"
        before = None if call.observer is None else call.observer.mode(setup.number)
        if before == "python" and mode == "auto":
            mode, why = "python", "it began so"
        if outer is not None:
            if outer.depth > _DEEPEST:  # each waits in a thread
                raise RecursionError(f"programs call each other more than {_DEEPEST} deep")
            if outer.served is not None and not outer.served.over:
                mode, why = "python", "the program around goes on as Python"
        if mode != "python":
            now = "plan" in (mode, before)
            choice = self._plans.choose(
                arguments, sampling, call.backend, call.outputs, now=now, at_once=at_once
            )
            ready, why, wrong = choice.ready, choice.why, choice.error
            counted = mode == "auto" and (outer is not None or call.limits.budget is not None)
            if counted and ready is not None and not _affords(call.limits, outer, ready.prepared):
                ready, why = None, "its budget of calls may end before it does"
            if ready is not None:
                return ready.run(setup, arguments, partial(self._python_part, sampling))
        if at_once:
            return None
        if mode == "plan":
            from sglc.frontend.tracing.call_frame import has_source

            if wrong is not None and wrong.certain:
                raise copy(wrong)
            # Without a source another line may stand there now.
            loc = self.definition.loc if has_source(self.definition.code) else None
            message = f"`{self.__name__}` runs as Python: {why}"
            if wrong is None:
                raise UsageError("SGLC058", message, loc)
            raise UsageError("SGLC058", message, wrong.loc or loc, note=wrong.note, hint=wrong.hint)
        from sglc.execution.lifecycle import Run

        return Run(setup, arguments, lambda run: self._python_part(sampling, run), why_python=why)

    @cached_property
    def _plans(self) -> PlanTree:
        from sglc.api.plan_tree import PlanTree

        return PlanTree(self.definition)

    def _python_part(self, sampling: Sampling, run: Run, served: Served | None = None) -> PythonPart:
        from sglc.execution.function_run import PythonPart

        check = partial(self._ahead.cache_keys, sampling, run.session.backend)
        return PythonPart(run, self.definition, sampling, check, served)


@dataclass(frozen=True, slots=True)
class CompiledFunction:
    """A program with its plan for one back end. It runs there as the function does, from Python.

    `breaks` are the places where it is left to ordinary Python.
    """

    function: Function
    backend: Backend
    compiled: Compiled
    defaults: Mapping[str, Any]
    breaks: tuple[BreakPlace, ...] = ()

    @property
    def source(self) -> Program:
        """The program as it was recorded."""
        return self.compiled.source

    @property
    def lowered(self) -> Program:
        """What the passes made of it."""
        return self.compiled.lowered

    @property
    def plan(self) -> Plan:
        """What the back end would be handed."""
        return self.compiled.plan

    @property
    def remarks(self) -> tuple[Remark, ...]:
        """What the passes had to say."""
        return self.compiled.remarks

    def __reduce__(self) -> tuple[Any, ...]:
        """For `pickle`: its plan, as `sglc.load_plan` gives it; the back end stays here."""
        from sglc.api.plan import LoadedPlan
        from sglc.frontend.tracing.tools import tools_of

        return LoadedPlan(self.plan, tools_of(self.source)).__reduce__()

    def __copy__(self) -> CompiledFunction:
        """Itself, on its back end: nothing of it changes."""
        return self

    def __deepcopy__(self, memo: object) -> CompiledFunction:
        return self

    def save(self, path: str | Path) -> None:
        """Write the plan into a file, which `sglc.load_plan` and `sglc run` take.

        Raises:
            OSError: the file cannot be written.
        """
        from sglc.ir.plan.plan_file import plan_to_text

        Path(path).write_text(plan_to_text(self.plan) + "\n", encoding="utf-8")

    def run(self, /, *args: Any, **kwargs: Any) -> Result:
        """`Function.run` on this back end."""
        return self.function.run(*args, **{"backend": self.backend, **self.defaults, **kwargs})

    def run_batch(self, rows: Sequence[Any], **kwargs: Any) -> list[Result] | Iterator[Result]:
        """`Function.run_batch` on this back end."""
        given: dict[str, Any] = {"backend": self.backend, **self.defaults, **kwargs}
        results: list[Result] | Iterator[Result] = self.function.run_batch(rows, **given)
        return results


def _affords(limits: Limits, outer: RunContext | None, prepared: Prepared) -> bool:
    """Whether a budget of calls, or that of the run around, ends a plan where it ends Python: the order of the
    program shows then."""
    calls = None if limits.budget is None else limits.budget.calls
    left = None if outer is None else outer.calls_left
    return prepared.at_once or all(most is None or prepared.most_calls <= most for most in (calls, left))


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
