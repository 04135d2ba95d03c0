"""A plan that was read from a file: it runs here without the program that it was made of."""

from __future__ import annotations

import importlib
import pickle
import re
import sys
import warnings
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglc.api.start import called_at, limits_of_batch, limits_of_run, maker, run_rows, set_up
from sglc.errors import SglcError, UsageError
from sglc.execution.batch.order import begins, plan_order, zero_first
from sglc.execution.batch.runner import BatchControl, delivery_of
from sglc.execution.bind import Rows, count_of, each_fitted, in_row
from sglc.execution.context import CallPlace, resolve
from sglc.execution.lifecycle import CallSetup, Limits, Run, RunSetup
from sglc.execution.options import NOTHING, NumberedRows, watches_of
from sglc.execution.plan.arguments import bound
from sglc.execution.plan.prepare import Prepared, check_plan_runs, function_steps, is_declared
from sglc.execution.plan.run import plan_run
from sglc.execution.progress import watched
from sglc.execution.result import Result
from sglc.execution.tool_calls import Tools
from sglc.frontend.locate import here
from sglc.frontend.tracing.makers import left_text, maker_named, type_named
from sglc.frontend.tracing.tools import tools_of
from sglc.ir.core import Site
from sglc.ir.plan.backend import Backend
from sglc.ir.plan.plan import Plan
from sglc.ir.plan.plan_file import plan_from_text, plan_hash, plan_to_text

if TYPE_CHECKING:
    from sglc.observe.replay.remote_journal import RemoteJournal

_MODULE = re.compile(r"([\w.]+)\.\w")  # that stands before the name of a type
Functions = Mapping[str, Callable[..., Any]] | Iterable[Callable[..., Any]]


class LoadedPlan:
    """A plan, and the declared Python functions that it calls."""

    def __init__(self, plan: Plan, tools: Functions = ()) -> None:
        self.plan = plan
        self.tools = tools_for(plan, tools)
        self._prepared = Prepared(plan)
        self.__name__ = plan.program

    def __repr__(self) -> str:
        return f"<sglc plan of {self.plan.program} for {self.plan.target}, {self.hash}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """For `pickle`: the text of the plan, and the modules of the functions that it calls, and of its types.

        Raises:
            pickle.PicklingError: one of them is not what is declared under its name in the plan.
        """
        declared = tools_of()
        modules: dict[str, None] = {}
        for name, tool in self.tools.items():
            if spelled := type_named(name):  # what reads its values is found by this name again
                modules.update((module, None) for module in _MODULE.findall(spelled) if module in sys.modules)
                continue
            if is_declared(name) and tool not in (declared.get(name), maker_named(name)):
                raise pickle.PicklingError(
                    f"the plan calls a `{name}` that is no declared function of that name"
                )
            modules[tool.__module__] = None
        return unpickled_plan, (plan_to_text(self.plan), tuple(modules))

    @property
    def left_texts(self) -> list[str]:
        """The types of variables that are not known here: these stay the texts that were generated."""
        return list(dict.fromkeys(type_named(name) for name, made in self.tools.items() if made is left_text))

    @property
    def hash(self) -> str:
        """What identifies it: equal plans have equal hashes."""
        return plan_hash(self.plan)

    def run(
        self,
        arguments: Mapping[str, Any] | None = None,
        /,
        *,
        backend: Backend | str | None = None,
        seed: int | None = None,
        stream: bool = False,
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
        **more: Any,
    ) -> Result:
        """Start one run; returns at once. Reading the result waits.

        The result shows what that of the function shows, but texts for values of types in `left_texts`.

        Args:
            arguments: by name; those whose names are no option may be given as keywords.
            seed, stream, max_calls, max_tokens, timeout, record, replay, trace, cache, resume, retry_failed,
                redo, answers: as of `Function.run`.

        Raises:
            UsageError: SGLC014 missing or unknown arguments, SGLC047 one of another type than the plan's,
                SGLC048 arguments that the plan is not for, SGLC015 another tokenizer than the plan's, SGLC016 a
                plan that goes on as ordinary Python, SGLC017 arguments that are no dict, SGLC025 a function
                that it calls is missing.
        """
        limits = limits_of_run(max_calls, max_tokens, timeout)
        watches = watches_of(
            record=record, replay=replay, trace=trace, cache=cache, resume=resume, retry_failed=retry_failed,
            redo=redo or None, answers=answers,
        )  # fmt: skip
        if arguments is not None and not isinstance(arguments, Mapping):
            raise UsageError(
                "SGLC017", f"the arguments of a plan are a dict, not `{type(arguments).__name__}`", here()
            )
        return self.start({**(arguments or {}), **more}, backend, seed, None, limits, watches, live=stream)

    def start(
        self,
        arguments: Mapping[str, Any],
        backend: Backend | str | None = None,
        seed: int | None = None,
        on_text: Callable[[Site, str | None], None] | None = None,
        limits: Limits | None = None,
        watches: Mapping[str, Any] = NOTHING,
        *,
        live: bool = False,
    ) -> Result:
        """`run`, with a function that gets every piece of generated text as it comes, None at its end."""
        given = bound(self.plan, arguments)
        backend, seed, place = called_at(self.__name__, backend, seed)
        call = self._set_up(backend, seed, None, limits or Limits(), watches, place)
        try:
            call.backend.start()
            run = plan_run(self._prepared, call.alone(on_text, live), given, self.tools)
        except BaseException as error:
            call.failed(error)
            raise
        run.start()
        run.take_turn()
        return run.result

    def run_batch(self, rows: Rows, *, progress_bar: bool = False, **options: Any) -> list[Result]:
        """Run every row (its arguments by name); gives results in row order, when all have ended.

        A row that fails keeps its error in its own result. Ctrl-C stops all rows, as of `Function.run_batch`.

        Args:
            options: as of `stream_batch`.
        """
        results = self.stream_batch(rows, **options)
        return list(watched(results, total=count_of(rows), label=self.__name__) if progress_bar else results)

    def stream_batch(
        self,
        rows: Rows,
        *,
        backend: Backend | str | None = None,
        seed: int | None = None,
        num_threads: int | str = "auto",
        max_calls: int | None = None,
        max_tokens: int | None = None,
        timeout: float | None = None,
        row_timeout: float | None = None,
        hoist_prefix: bool = True,
        record: str | None = None,
        replay: str | None = None,
        trace: str | None = None,
        cache: str | None = None,
        ordered: bool = True,
        skip: Container[int] = (),
        control: BatchControl | None = None,
        journal: str | RemoteJournal | None = None,
        resume: bool = False,
        retry_failed: bool = False,
        redo: str | Sequence[str] = (),
        answers: Mapping[Any, Any] | None = None,
    ) -> Iterator[Result]:
        """`run_batch` that yields each result, in row order, as soon as it and all before it ended.

        Args: as of `Function.stream_batch`; `num_threads` are the rows live at once, which have no threads.

        Raises:
            UsageError: SGLC017 no rows; SGLC023, SGLC026, SGLC041 an option that does not fit; as of `run`.
                Nothing has run then.
        """
        delivery = delivery_of(ordered, skip, control)
        limits = limits_of_batch(num_threads, max_calls, max_tokens, timeout, row_timeout)
        fitting: Iterable[dict[str, Any]] = each_fitted(rows, partial(self._row, skip))
        watches = watches_of(
            record=record, journal=journal, replay=replay, trace=trace, cache=cache, resume=resume,
            retry_failed=retry_failed, redo=redo or None, answers=answers, skip=skip if resume else None,
        )  # fmt: skip
        backend, seed, place = called_at(self.__name__, backend, seed)
        call = self._set_up(backend, seed, count_of(rows), limits, watches, place)

        def order(ahead: Sequence[dict[str, Any]]) -> Iterable[int]:
            if call.duplicates is not None:
                call.duplicates.look(ahead)
            return (
                zero_first(lambda: plan_order(self.plan, ahead, call.backend))
                if hoist_prefix
                else range(len(ahead))
            )

        def made(row: dict[str, Any], setup: RunSetup, _: bool) -> Run:
            return plan_run(self._prepared, setup, row, self.tools)

        return run_rows(call, maker(call, made), fitting, order, delivery)

    def prompts_begin(self, rows: NumberedRows) -> list[tuple[str, ...]]:
        """As of `Function.prompts_begin`."""
        return [begins(self.plan.leads, self._row((), number, row)) for number, row in rows]

    # -- inside ----------------------------------------------------------------------------------

    def _set_up(
        self, backend: Backend | str | None, seed: int | None, rows: int | None, limits: Limits,
        watches: Mapping[str, Any], place: CallPlace | None,
    ) -> CallSetup:  # fmt: skip
        outputs = self.plan.outputs
        call = set_up(self.__name__, resolve(backend), seed, rows, limits, watches, place, outputs)
        try:
            tools = self.tools if call.observer is None else call.observer.functions(self.tools, self.plan)
            check_plan_runs(self.plan, call.backend, tools)
        except BaseException as error:
            call.failed(error)
            raise
        return call

    def _row(self, skip: Container[int], number: int, row: Any) -> dict[str, Any]:
        if number in skip:
            return {}
        try:
            if not isinstance(row, Mapping):
                raise UsageError("SGLC017", f"a row of a plan is a dict, not `{type(row).__name__}`")
            return bound(self.plan, row)
        except SglcError as error:
            raise in_row(number, error) from None


def unpickled_plan(text: str, modules: Sequence[str]) -> LoadedPlan:
    """The plan that was pickled as `text`; the modules of the functions that it calls are imported."""
    for module in modules:
        importlib.import_module(module)
    return LoadedPlan(plan_from_text(text, "a pickled plan"))


def load_plan(path: str | Path, tools: Functions = ()) -> LoadedPlan:
    """The plan of a file that `sglc compile --emit json -o` or `fn.compile().save` wrote.

    Args:
        tools: the declared functions that it calls, or by their names. Those that are declared in this
            process under the plan's own names are found without.

    Warns where variables stay texts, because their types are not known in this process (`left_texts`).

    Raises:
        UsageError: SGLC002 no such file, SGLC008 no JSON, SGLC040 changed since it was written, SGLC042 two
            functions that it calls have the name of one that is given.
        VerifyError: SGLC220 a plan of another version, SGLC221 no plan.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError("SGLC002", f"`{path}` cannot be read: {why}", here()) from None
    plan = LoadedPlan(plan_from_text(text, str(path)), tools)
    if (said := texts_stay(plan)) is not None:
        warnings.warn(said, stacklevel=2)
    return plan


def texts_stay(plan: LoadedPlan) -> str | None:
    """What a plan leaves as texts, for people; None: nothing."""
    if not plan.left_texts:
        return None
    names = ", ".join(f"`{name}`" for name in plan.left_texts)
    return f"variables of these types stay texts, since what reads them is not here: {names}"


def tools_for(plan: Plan, given: Functions) -> Tools:
    """The functions that a plan calls, by its names for them, as far as they are known.

    A function is given under that name (`module.function`), or under its last part alone.

    Raises:
        UsageError: SGLC042, that part is the name of two functions of the plan.
    """
    known = tools_of()
    named = dict(given) if isinstance(given, Mapping) else {_name(function): function for function in given}
    wanted = dict.fromkeys(step.function for step in function_steps(plan))
    found: dict[str, Callable[..., Any]] = {}
    by_part: dict[str, str] = {}
    for name in wanted:
        part = name.rpartition(".")[2]
        short = {key.rpartition(".")[2]: function for key, function in named.items()}
        if name in named:
            found[name] = named[name]
        elif part in short:
            if part in by_part:
                raise UsageError(
                    "SGLC042", f"the plan calls `{by_part[part]}` and `{name}`: which one is `{part}`?",
                    hint="give both under these names: `tools={...}`",
                )  # fmt: skip
            by_part[part] = name
            found[name] = short[part]
        elif (made := maker_named(name) or known.get(name)) is not None:
            found[name] = made
    return found


def _name(function: Any) -> str:
    declared = getattr(function, "name", None)
    return declared if isinstance(declared, str) else f"{function.__module__}.{function.__qualname__}"
