"""What a run gives: texts by name, pieces as they come, counts, times, and the error if there was one.

A result is there at once; reading waits for what it needs and no longer. A failure keeps what was
computed. Interrupting a wait (Ctrl-C) stops the run.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Callable, Container, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NoReturn, TypeVar

from sglc.errors import Loc, MissingVariable, SglcError, UsageError
from sglc.execution.call_record import CallRecord, meta_info
from sglc.execution.context import RUN_CONTEXT
from sglc.execution.outputs import Change, Failure, Ready, RunOutputs
from sglc.execution.readers import (
    PieceReader,
    TextReader,
    VariableReader,
    read,
    read_async,
    read_with_meta,
)
from sglc.execution.unread import RUNNING, UNREAD, report
from sglc.frontend.locate import here, of_error
from sglc.frontend.outputs.typed import plain
from sglc.frontend.program.instance import Variable
from sglc.frontend.values.no_text import CallText
from sglc.ir.core import Site
from sglc.ir.made_often import made_often
from sglc.ir.plan.events import Usage

__all__ = ["CallRecord", "Failure", "Result", "RunOutcome", "error_json"]

_T = TypeVar("_T")


@made_often
@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The end of a run."""

    value: Any
    error: BaseException | None
    variables: Mapping[str, Any]
    unspelled: Mapping[str, Sequence[Failure]]  # by variable: texts that spell no value
    text: str
    messages: Callable[[], list[dict[str, Any]]]  # most are never asked for
    total_s: float
    told: Container[Site] = ()  # of those texts: the program has read them, and caught the error


class Result(CallText):
    """A run of a program, finished or not.

    `seed` is the run's seed and `row` its place in a batch: both together repeat the run. `why_python` says
    why the program's code ran as Python, at least from some line on; "" where its plan was all that ran.
    `asked` are the variables that can be read, beside the return value; None: all, and the prompt.
    """

    raised_at: Loc | None = None  # where its error came from: who reads it raises it again
    in_batch = False
    asked: Sequence[str] | None = None
    why_python = ""
    _outcome: RunOutcome | None = None
    _stop: Callable[[], None] | None = None
    _seen = False

    def __init__(self, name: str, seed: int, row: int = 0, *, live: bool = False) -> None:
        self.seed = seed
        self.row = row
        self.outputs = RunOutputs(live=live)
        self.name = name

    # -- one variable ----------------------------------------------------------------------------

    def __reduce__(self) -> NoReturn:
        """A result belongs to its run, which is in this process.

        Raises:
            TypeError: always.
        """
        raise TypeError(
            "a result cannot be pickled or copied: take what it holds, such as `dict(result.variables)`, "
            "`result.text()`, `result.ret_value` or `result.as_json()`"
        )

    __iter__ = None  # else Python would ask for the variables 0, 1, 2, ...

    def __getitem__(self, name: str) -> Any:
        """The newest value of `name`; waits for it, not for the run, whose body may wait for who reads.

        Before the end that is the newest one that a Python body has come to, and of a plan the last one.

        Raises:
            the error of the generation that should have made it.
            the run's error, if that is why nothing is stored.
            MissingVariable: SGLC110 (a `KeyError`), the run went well and stored nothing under `name`; SGLC083,
                `name` is none of the `outputs` that were asked for.
        """
        ready = self._ready(name)
        if ready.error is not None:
            self._seen = True
            raise ready.error
        return ready.value

    def __setitem__(self, name: str, value: Any) -> None:
        """Store a value over what the run made; waits for the run, which reads nothing of it."""
        outcome = self._wait()
        self.asked = None if self.asked is None else (*self.asked, name)
        with self.outputs.change:
            self.outputs.variables[name] = value
            self._outcome = replace(
                outcome, variables={**outcome.variables, name: value},
                unspelled={other: found for other, found in outcome.unspelled.items() if other != name},
            )  # fmt: skip

    def set_var(self, name: str, value: Any) -> None:
        """`result[name] = value` under its older name."""
        self[name] = value

    def __str__(self) -> str:
        """The prompt as far as it came, in SGLang's form; waits for the run, and never raises."""
        return f"ProgramState({self.partial_text})"

    def __format__(self, spec: str) -> str:
        if RUN_CONTEXT.get() is not None:  # in the body of another program, whose prompt it may go into
            self.refuse_as_text()
        return format(str(self), spec)

    def __contains__(self, name: str) -> bool:
        """Whether the run makes `name`; waits until that is known, and never raises."""
        return self._ready(name).error is None

    def get_var(self, name: str) -> Any:
        """`result[name]` under its older name."""
        return self[name]

    def get_meta_info(self, name: str) -> dict[str, Any] | None:
        """Counts, finish reason, scores and ids of the newest call that stored `name`; waits for it.

        The keys are SGLang's (`prompt_tokens`, `finish_reason`, ...) and the fields of `CallRecord`. None if no
        call stored `name`, or if it failed.
        """
        self._check_asked(name)
        self._ready(name)
        call = self.outputs.call_of(name)
        return None if call is None else meta_info(call)

    # -- while it goes on ------------------------------------------------------------------------

    def text_iter(self, var_name: str | None = None) -> Iterator[Any]:
        """The pieces of `var_name`, or of the whole prompt, as they come; ends with what it reads.

        A run that was started with `stream=True` gives pieces of a generation as the model makes them,
        any other run gives each generation whole. A choice, a list and what the program set itself come
        as one value. Nothing is lost, whenever the reading begins and however slow it is.

        Raises:
            what `result[var_name]` or `text()` raises, after everything that came before.
        """
        self._check_asked(var_name)
        reader = TextReader(self.outputs) if var_name is None else VariableReader(self.outputs, var_name)
        return self._noticing(read(self._until, reader))

    async def text_async_iter(
        self, var_name: str | None = None, return_meta_data: bool = False
    ) -> AsyncIterator[Any]:
        """`text_iter` for coroutines; with `return_meta_data`, pairs of a piece and its call's meta data.

        The last pair has the whole meta data (see `get_meta_info`), perhaps with an empty piece. A cancelled
        wait stops the run, as of `sync_async`.

        Raises:
            UsageError: SGLC024, meta data without a variable.
        """
        if return_meta_data and var_name is None:
            raise UsageError(
                "SGLC024", "`return_meta_data` needs a variable: the whole prompt has several calls", here(),
                hint='`text_async_iter("answer", return_meta_data=True)`',
            )  # fmt: skip
        self._check_asked(var_name)
        pieces: AsyncIterator[Any]
        if var_name is None:
            pieces = read_async(self.outputs, TextReader(self.outputs))
        elif return_meta_data:
            pieces = read_with_meta(self.outputs, var_name)
        else:
            pieces = read_async(self.outputs, VariableReader(self.outputs, var_name))
        try:
            async for piece in pieces:
                yield piece
        except asyncio.CancelledError:
            self.stop()
            raise
        except Exception:
            self._seen = True
            raise

    def pieces(self) -> Iterator[tuple[Site, str]]:
        """(site, text) of every generation, those of branches too, in the order in which they come.

        Raises:
            the run's error, after the last piece.
        """
        return self._noticing(read(self._until, PieceReader(self.outputs)))

    # -- the whole run ---------------------------------------------------------------------------

    def text(self) -> str:
        """The whole prompt with everything generated.

        Raises:
            the run's error, if it failed.
            MissingVariable: SGLC083, other `outputs` were asked for.
        """
        self._check_asked(None)
        return self._good().text

    def messages(self) -> list[dict[str, Any]]:
        """The chat turns as `{"role", "content"}`; with pictures the content is a list of parts.

        Raises:
            the run's error, if it failed.
            MissingVariable: SGLC083, other `outputs` were asked for.
        """
        self._check_asked(None)
        return self._good().messages()

    @property
    def ret_value(self) -> Any:
        """What the function returned.

        Raises:
            the run's error, if it failed.
        """
        return self._good().value

    @property
    def mode(self) -> str:
        """What ran: the `plan` of the program, or its code as `python`. Does not wait."""
        return "python" if self.why_python else "plan"

    @property
    def ended(self) -> bool:
        """Whether the run is over, well or not. Does not wait."""
        return self._outcome is not None

    def error(self) -> BaseException | None:
        """The error that ended the run, or None. Waits; never raises."""
        self._seen = True
        return self._wait().error

    @property
    def failed(self) -> bool:
        """Whether the run ended with an error, which counts as unread. Waits; never raises."""
        return self._wait().error is not None

    @property
    def failures(self) -> tuple[Failure, ...]:
        """The generations that failed, those of called programs among them. Waits; never raises.

        With them are those whose texts spell no value for the variables that they are. A run has gone well
        whose program caught them all, or read none of these: `error()` is then None.
        """
        unspelled = tuple(self._unspelled())  # which waits
        found = (*self.outputs.failures, *unspelled)
        self._seen = self._seen or bool(found)
        return found

    def error_if_read(self) -> BaseException | None:
        """The error of who reads all variables: the run's, or that of a value which the program did not read.

        Waits; never raises.
        """
        error, told = self.error(), self._wait().told
        return error or next((one.error for one in self._unspelled() if one.site not in told), None)

    def as_data(self) -> str:
        """The prompt as far as it came: what another program returns with it."""
        return self.partial_text

    def sync(self) -> Result:
        """Wait until the run has ended, well or not."""
        self._wait()
        return self

    async def sync_async(self) -> Result:
        """`sync` without blocking the event loop. A cancelled wait stops the run."""
        if self._outcome is not None:
            return self
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        self.outputs.when_over(lambda: loop.call_soon_threadsafe(over.set))
        try:
            await over.wait()
        except asyncio.CancelledError:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop the run: generations at once, the program where it next launches or reads one.

        What was computed is kept, and everything else fails with SGLC407. Ignored after the end.
        """
        stop = self._stop
        if stop is not None:
            self._seen = True
            self._stop = None
            RUNNING.discard(self)  # the process need not wait for what it cannot end
            stop()

    @property
    def variables(self) -> Mapping[str, Any]:
        """Everything that was stored, of a failed run too."""
        return self._wait().variables

    @property
    def partial_text(self) -> str:
        """The prompt as far as it came, of a failed run too."""
        return self._wait().text

    @property
    def calls(self) -> tuple[CallRecord, ...]:
        """The generations and choices that were completed, in order of completion."""
        self._wait()
        return self.outputs.calls

    @property
    def usage(self) -> Usage:
        """Token counts of the run, those of generations that failed among them."""
        self._wait()
        return self.outputs.usage

    def as_json(self) -> dict[str, Any]:
        """`index` (the row), `text`, `vars`, `value`, `usage`, `error` and `timing` as plain data.

        It reads all variables: `error` is that of `error_if_read`.
        """
        outcome, error = self._wait(), self.error_if_read()
        first_s = min((call.first_s for call in self.calls), default=outcome.total_s)
        return {
            "index": self.row,
            "text": outcome.text if self.asked is None else None,
            "vars": plain(dict(outcome.variables)),
            "value": plain(outcome.value),
            "usage": asdict(self.usage),
            "error": None if error is None else error_json(error, self.raised_at),
            "failures": [{"site": str(one.site), **error_json(one.error)} for one in self.failures],
            "timing": {"total_s": round(outcome.total_s, 4), "first_text_s": round(first_s, 4)},
            "seed": self.seed,
            "mode": self.mode,
        }

    # -- writing (the row that runs) -------------------------------------------------------------

    def begin(self, stop: Callable[[], None]) -> None:
        """A row will fill this result; `stop` stops it. Called once."""
        self._stop = stop
        RUNNING.add(self)

    def finish(self, outcome: RunOutcome) -> None:
        """The run has ended; called once."""
        assert self._outcome is None
        if self.asked is not None:
            made = {name: value for name, value in outcome.variables.items() if name in self.asked}
            unspelled = {name: found for name, found in outcome.unspelled.items() if name in self.asked}
            outcome = replace(outcome, variables=made, unspelled=unspelled, text="", messages=list)
        with self.outputs.change:
            self._outcome = outcome
            self._stop = None
            self.outputs.end(outcome.error)
        RUNNING.discard(self)
        if outcome.error is not None:
            UNREAD.add(self)

    def left_behind(self, error: BaseException) -> None:
        """It goes on in the process that this one was forked from, and is over here."""
        if self.ended:
            return
        self._seen = True
        outputs = self.outputs
        outputs.change = outputs.variables.change = Change()  # a thread that is not here may hold the other one
        outputs.at_end = ()  # who waits is not here either
        outputs.give_up(outputs.generations.values(), error)
        self.finish(RunOutcome(None, error, {}, {}, "", list, 0.0))

    # -- inside ----------------------------------------------------------------------------------

    def _until(self, look: Callable[[], _T | None]) -> _T:
        try:
            return self.outputs.wait(look)
        except KeyboardInterrupt:
            self.stop()
            raise

    def _ready(self, name: str) -> Ready:
        refused = self._unasked(name)
        found: tuple[Variable, ...] = () if refused else self._until(lambda: self.outputs.find(name))
        if not found:
            return Ready(None, refused or self.outputs.missing(name))
        return self._until(lambda: self.outputs.value(found[0]))

    def _noticing(self, pieces: Iterator[_T]) -> Iterator[_T]:
        """`pieces`; an error that it raises has been seen."""
        try:
            yield from pieces
        except Exception:
            self._seen = True
            raise

    def _wait(self) -> RunOutcome:
        if self._outcome is None:
            over = threading.Lock()
            over.acquire()
            try:
                self.outputs.when_over(over.release)
                over.acquire()
            except KeyboardInterrupt:
                self.stop()
                raise
        assert self._outcome is not None
        return self._outcome

    def _unspelled(self) -> Iterator[Failure]:
        for found in self._wait().unspelled.values():
            yield from found

    def _unasked(self, name: str | None) -> MissingVariable | None:
        """Why a variable, or (None) the prompt, cannot be read: the run was asked for others; None: it can."""
        if self.asked is None or name in self.asked:
            return None
        what = "the prompt" if name is None else f"`{name}`"
        return MissingVariable(
            "SGLC083", f"{what} is none of the `outputs` that the run was asked for", here(),
            note=f"outputs: [{', '.join(map(repr, self.asked))}]",
            hint="run without `outputs`" if name is None else f"add `{name}` to `outputs`",
        )  # fmt: skip

    def _check_asked(self, name: str | None) -> None:
        if (refused := self._unasked(name)) is not None:
            raise refused

    def _good(self) -> RunOutcome:
        outcome = self._wait()
        if outcome.error is not None:
            self._seen = True
            raise outcome.error
        return outcome

    # -- nobody reads it -------------------------------------------------------------------------

    def unread_error(self) -> BaseException | None:
        """Its error, if it has one that nobody has looked at; asked once more, there is none."""
        seen, self._seen = self._seen or self._outcome is None, True
        return None if seen or self._outcome is None else self._outcome.error

    @property
    def unread(self) -> bool:
        """Whether nobody has looked at its error."""
        return not self._seen

    def __del__(self) -> None:
        failed = self._outcome is not None and self._outcome.error is not None
        # Once it has been read, nothing is asked of modules: they may be gone at the end of the interpreter.
        if failed and not self._seen and not sys.is_finalizing():
            report(self)


def error_json(error: BaseException, raised_at: Loc | None = None) -> dict[str, Any]:
    """An error as plain data."""
    if isinstance(error, SglcError):
        return {
            "code": error.code,
            "message": error.message,
            "loc": str(error.loc) if error.loc and error.loc.line else None,
            "note": error.note,
            "hint": error.hint,
        }
    loc = raised_at or of_error(error)
    return {
        "code": type(error).__name__, "message": str(error), "loc": None if loc is None else str(loc),
        "note": "", "hint": "",
    }  # fmt: skip
