"""Which back end a call runs on, and what can be asked of a back end beside running programs."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from sglc.errors import Loc, RunError, UsageError
from sglc.execution.tasks import in_task
from sglc.frontend.locate import here
from sglc.frontend.program.instance import MAP_ITEMS
from sglc.frontend.recorder.form import BODY
from sglc.frontend.values.symbolic import END_RUN, IN_FUNCTION, MAY_CALL
from sglc.ir.core import Site

if TYPE_CHECKING:
    from sglc.execution.budget import BudgetTracker
    from sglc.execution.observer import Observer
    from sglc.execution.outputs import RunOutputs
    from sglc.execution.served import Served
    from sglc.ir.plan.backend import Backend


@dataclass(slots=True)
class RunDefaults:
    """What holds for every run of the process."""

    verbosity: int = 0  # 2 and more prints the final text of each
    default_backend: Any = None  # of a run that names none: a back end, or its name


defaults = RunDefaults()  # of this process


def keep_defaults_in(holder: RunDefaults) -> None:
    """From now on they are those of `holder`, which takes over what was set."""
    global defaults
    holder.verbosity, holder.default_backend = defaults.verbosity, defaults.default_backend
    defaults = holder


def nobody(_: RunError) -> None:
    """Ends no run."""


class Stoppable(Protocol):
    """A run that goes on."""

    def stop(self, reason: RunError | None = None) -> None:
        """End it."""


class ErrorHolder(Protocol):
    """The result of a run that has failed. `unread`: nobody has looked at its error."""

    @property
    def unread(self) -> bool: ...

    def unread_error(self) -> object:
        """Its error is told as that of the run around."""


@dataclass(frozen=True, slots=True)
class CallPlace:
    """A program's call in the body of a run: its samples, calls and pieces are those of that run.

    `site` stands before its own sites; `seed` and `row` are of the outermost run. A row of a `batch` keeps its
    error to itself.
    """

    site: str
    seed: int
    row: int
    outputs: RunOutputs  # of the run around
    batch: bool = False


@dataclass(slots=True)
class RunContext:
    """The run whose body is going on here: programs that it calls run where it runs, and stop when it does.

    `why_over` gives the error of a run that was stopped: it begins nothing any more. `end_with` has it begin
    nothing any more because of an error, which is then that of the run.
    """

    backend: Backend
    seed: int
    row: int
    why_over: Callable[[], RunError | None] = lambda: None
    called: dict[str, int] = field(default_factory=dict)  # how often each program was
    inner: dict[int, Stoppable] = field(default_factory=dict)  # runs of programs that it called, by their ids
    observer: Observer | None = None
    # Gives the site of a program's call in the body, while it runs.
    reserve: Callable[[str], Site] | None = None
    call: str = ""  # the site of the call that this run is
    outputs: RunOutputs | None = None
    on_text: Callable[[Site, str | None], None] | None = None  # is told every piece of text, as in `Session`
    tracker: BudgetTracker | None = None  # of what it may cost, with the runs in it
    parts: dict[int, int] = field(default_factory=dict)  # the order of runs that are calls of the body, by id
    begun: int = 0  # of these
    launch: Callable[[], None] = lambda: None  # what the body has appended, where calls are counted
    failed: dict[int, tuple[ErrorHolder, BaseException]] = field(default_factory=dict)  # calls, by their order
    served: Served | None = None  # what a plan has had before the body went on
    end_with: Callable[[RunError], None] = nobody
    then: Callable[[], None] | None = None  # to be called when none of these runs any more
    depth: int = 1  # of runs in runs
    lock: Lock = field(default_factory=Lock)

    @property
    def calls_left(self) -> int | None:
        """How many generations may still begin; None: nobody counts them. They are counted in the order of the
        program: who calls a program launches what is before it, and waits for it."""
        return None if self.tracker is None else self.tracker.calls_left

    def begin(self, run: Stoppable, *, part: bool = False) -> None:
        """A program is called: it stops when this one does, at once if that has happened.

        Args:
            part: its calls are calls of this run, which ends behind it.
        """
        with self.lock:
            self.inner[id(run)] = run
            if part:
                self.parts[id(run)] = self.begun
                self.begun += 1
        error = self.why_over()  # behind the entry, so that a stop meanwhile finds it
        if error is not None:
            run.stop(error)

    def end(self, run: Stoppable, failed: tuple[ErrorHolder, BaseException] | None = None) -> None:
        """It has ended; what has `failed` has an error that is this run's, if its body does not read it."""
        with self.lock:
            self.inner.pop(id(run), None)
            number = self.parts.pop(id(run), None)
            if failed is not None and number is not None:
                # Those that the body has read are not kept: it may call as many as it likes.
                unread = {own: (result, error) for own, (result, error) in self.failed.items() if result.unread}
                self.failed = {**unread, number: failed}
            then = self.then if not self.parts else None
            if then is not None:
                self.then = None
        if self.served is not None:
            self.served.tell()
        if then is not None:
            _in_turn(then)

    def when_alone(self, then: Callable[[], None]) -> None:
        """Call `then` when the programs that the body calls have ended: now, or where the last one ends."""
        with self.lock:
            if self.parts:
                self.then = then
                return
        then()

    def uncaught(self) -> BaseException | None:
        """The first error of a called program that the body has not read; all are told as this run's then."""
        unread = [self.failed[number] for number in sorted(self.failed) if self.failed[number][0].unread]
        for result, _ in unread:
            result.unread_error()
        return unread[0][1] if unread else None

    def stop_inner(self, reason: RunError | None) -> None:
        """Stop what was called."""
        for run in tuple(self.inner.values()):
            run.stop(reason)

    def may_call(self) -> None:
        """Called before a declared function is.

        Raises:
            RunError: the run was stopped.
        """
        error = self.why_over()
        if error is not None:
            raise error

    def place_of(self, name: str) -> CallPlace | None:
        """Where the next call of the program `name` stands; None if that is no part of the body itself."""
        if self.reserve is None or self.outputs is None or IN_FUNCTION.get():
            return None
        site = self.reserve(in_task(name)).inside(self.call, ())
        return CallPlace(str(site), self.seed, self.row, self.outputs)

    def seed_of(self, name: str) -> int:
        """The seed of the next run of `name` that has no place; the same in every run with this run's seed."""
        from sglc.execution.bind import site_seed  # what only a run needs

        name = in_task(name)
        count = self.called.get(name, 0)
        self.called[name] = count + 1
        return site_seed(self.seed, self.row, Site("call", (), name, count)) % 2**53


RUN_CONTEXT: ContextVar[RunContext | None] = ContextVar("sglc_run_context", default=None)


class _Ending(threading.local):
    """What is to be called in this thread behind what is called now."""

    waiting: deque[Callable[[], None]] | None = None


_ENDING = _Ending()


def _in_turn(then: Callable[[], None]) -> None:
    """Call `then` now, or behind the one that this is called in: runs in runs end one by one, not in each
    other, for which Python's stack is too short."""
    if _ENDING.waiting is not None:
        _ENDING.waiting.append(then)
        return
    _ENDING.waiting = waiting = deque([then])
    try:
        while waiting:
            waiting.popleft()()
    finally:
        _ENDING.waiting = None


def enter(context: RunContext) -> None:
    """What is done from here on is done in a run."""
    RUN_CONTEXT.set(context)
    BODY.set(None)
    MAP_ITEMS.set(None)
    MAY_CALL.set(context.may_call)
    END_RUN.set(context.end_with)


@runtime_checkable
class Server(Protocol):
    """A back end that keeps a cache and can tell how it stands."""

    def flush_cache(self) -> None:
        """Forget every cached prefix that no run uses now. Waits until it is done."""

    def server_info(self) -> dict[str, Any]:
        """Model, device, sizes and counters, as plain data. Waits until the model is loaded."""


def set_default_backend(backend: Backend | str | None) -> None:
    """The back end of every run that names none. A text is a name as `--backend` takes it.

    Raises:
        UsageError: the name is unknown.
    """
    defaults.default_backend = resolve(backend) if backend is not None else None


def resolve(backend: Backend | str | None, loc: Loc | None = None) -> Backend:
    """The back end that is meant: itself, one by name, or the default one.

    Args:
        loc: of the program, or of the generation, that needs it.

    Raises:
        UsageError: SGLC012, the name is unknown.
    """
    meant: Backend | str | None = defaults.default_backend if backend is None else backend
    if meant is not None and not isinstance(meant, str):
        return meant
    from sglc.backends.registry import connect_for

    return connect_for(meant, loc)


def flush_cache(backend: Backend | str | None = None) -> None:
    """Forget every cached prefix of a back end that no run uses now.

    Raises:
        UsageError: SGLC022, the back end keeps no cache of its own.
    """
    _server(backend, "cache that can be emptied").flush_cache()


def get_server_info(backend: Backend | str | None = None) -> dict[str, Any]:
    """How a back end stands: model, device, dtype, pages and more, as plain data.

    Raises:
        UsageError: SGLC022, the back end does not say.
        SglcError: its model does not load.
    """
    return _server(backend, "figures of its own").server_info()


def _server(backend: Backend | str | None, what: str) -> Server:
    chosen = resolve(backend, here())
    if not isinstance(chosen, Server):
        raise UsageError("SGLC022", f"the back end `{chosen.target.name}` has no {what}", here())
    return chosen
