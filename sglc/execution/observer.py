"""What is told to whoever observes a run: by the run itself, its session, and the calls of its functions.

A run that nobody observes has no observer. Who there is comes from above (`api`); nothing here knows what
becomes of what it is told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from sglc.errors import Loc
from sglc.execution.outputs import PendingOutput, RunOutputs
from sglc.execution.tool_calls import Tools
from sglc.ir.core import Program
from sglc.ir.plan.backend import Backend
from sglc.ir.plan.plan import Plan


class Observer(Protocol):
    """Observes one run."""

    @property
    def unrecorded(self) -> bool:
        """Whether a replay knows nothing of this row: its error is one of the run around if it is read."""

    @property
    def wants_pieces(self) -> bool:
        """Whether the time of the first text is of interest."""

    def begin(self, backend: Backend, began_s: float, mode: str) -> Backend:
        """The run began at `began_s` (of `time.perf_counter`) on `backend`; gives the one to use.

        Args:
            mode: "plan" or "python".

        Raises:
            SglcError: the back end cannot be used.
        """

    def other(self, backend: Backend, program: Program, loc: Loc) -> Backend:
        """Another back end, which a call of the run names; gives the one to use."""

    def done(self, output: PendingOutput) -> None:
        """A generation has ended well."""

    def waiting(self, what: str) -> AbstractContextManager[None]:
        """The run's Python waits for the text of `what` (a site) inside."""

    def call(
        self, name: str, function: Callable[..., Any], pure: bool, args: Sequence[Any], named: Mapping[str, Any]
    ) -> Any:
        """Call a declared function for the run's Python, or do as it did."""

    def tools(self, tools: Tools, plan: Plan) -> Tools:
        """The functions that a plan calls, observed."""

    def end(
        self, outputs: RunOutputs, error: BaseException | None, total_s: float
    ) -> tuple[BaseException | None, float]:
        """The run has ended; gives its error, and how long it took."""


class CallObserver(Protocol):
    """Observes all runs that one call of `run` or `run_batch` starts."""

    def backend(self, backend: Backend) -> Backend:
        """The back end to run on."""

    def functions(self, tools: Tools, plan: Plan) -> Tools:
        """The functions that a plan finds here."""

    def mode(self, number: int) -> Any:
        """In which mode one of the runs is to run, because it did before: "plan" or "python"; else None."""

    @property
    def is_journal(self) -> bool:
        """Whether only some of the runs have an observer."""

    def row(self, number: int, arguments: Mapping[str, Any], single_call: bool) -> Observer | None:
        """Who observes one of the runs, if anybody does.

        Args:
            single_call: it makes one call at most, of a model, and no other.
        """

    def left(self) -> None:
        """Nobody reads the results that are left."""

    def close(self, error: BaseException | None = None) -> None:
        """All runs have ended, or will not begin, because of `error` if there is one. Idempotent."""
