"""The runtime in a thread of the program's process: for the CPU, and for tests."""

from __future__ import annotations

import atexit
import os
import queue
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from sglc.backends.local.restarts import Breakdown
from sglc.errors import SglcError
from sglc.ir.plan.events import Event
from sglc.ir.plan.segment import Segment
from sglc.runtime.engine.failures import broken, closed, refuse, unloadable
from sglc.runtime.engine.loading import LocalOptions, cache_tokens, describe, flush, followed

if TYPE_CHECKING:
    from sglc.runtime.engine.machine import Machine

_T = TypeVar("_T")
_END_S = 5.0  # how long the end of the process waits for the thread


@dataclass(slots=True)
class _ThreadRun:
    segment: Segment
    emit: Callable[[Event], None]
    done: Callable[[], None]
    streams: bool
    compiling: tuple[int, ...]
    run: object = None
    aborted: bool = False


# What commands act on: a machine, or why there is none.
_Runner: TypeAlias = "Machine | SglcError"


class RuntimeThread:
    """The runtime in a thread of this process. `load` is called in it."""

    def __init__(self, load: Callable[[], Machine], options: LocalOptions) -> None:
        self.machine: Machine | None = None
        self.breakdown: Breakdown | None = None  # why it has ended without being told to
        self._options = options
        self._lock = threading.Lock()
        self._closed = False
        # The last entry is None.
        self._inbox: queue.SimpleQueue[Callable[[_Runner], None] | None] = queue.SimpleQueue()
        self._program = os.getpid()
        self._thread = threading.Thread(target=self._work, args=(load,), name="sglc-local", daemon=True)
        atexit.register(self._end)  # a thread that came back from compiled code behind that would abort
        self._thread.start()

    def submit(
        self,
        segment: Segment,
        emit: Callable[[Event], None],
        done: Callable[[], None],
        *,
        streams: bool = True,
        compiling: tuple[int, ...] = (),
    ) -> object:
        """Start a segment; gives a token for `abort`. Nodes that are `compiling` wait for `compiled`."""
        job = _ThreadRun(segment, emit, done, streams, compiling)
        self._tell(partial(_begin, job=job))
        return job

    def compiled(self, run: object, node: int, error: SglcError | None) -> None:
        """What a node is held to is compiled, or `error` is wrong with it."""
        assert isinstance(run, _ThreadRun)
        self._tell(lambda machine: _compiled(machine, run, node, error))

    def abort(self, run: object) -> None:
        """Stop what is left of a segment: no further events."""
        assert isinstance(run, _ThreadRun)
        run.aborted = True
        self._tell(lambda machine: _abort(machine, run))

    def flush(self) -> None:
        """Forget every cached prefix that no run uses now."""
        self._ask(flush)

    def info(self) -> dict[str, Any]:
        """What `describe` says of the machine."""
        return dict(self._ask(lambda machine: describe(machine, self._options)))

    @property
    def cache_tokens(self) -> int | None:
        """How many tokens the model's cache holds; None without one."""
        machine = self.machine
        return None if machine is None else cache_tokens(machine)

    def recent_info(self) -> None:
        """Nothing is known but what is asked for."""

    def follow_cache(self, count: int | None) -> dict[str, Any]:
        """What `followed` says of the machine."""
        return dict(self._ask(lambda machine: followed(machine, count)))

    def close(self) -> None:
        """End the thread after the commands it has; what still runs then fails with SGLC505."""
        self._close(None)
        atexit.unregister(self._end)

    def _end(self) -> None:
        """`close` with the process, which does not wait long for a model that is being loaded."""
        if os.getpid() == self._program:  # the thread is not in a fork of the program
            self._close(_END_S)

    def _close(self, timeout: float | None) -> None:
        with self._lock:
            self._closed = True
            self._inbox.put(None)
        self._thread.join(timeout)

    def _tell(self, command: Callable[[_Runner], None]) -> None:
        """Have a command done in the thread, or refused if that is ending."""
        with self._lock:
            if not self._closed:
                self._inbox.put(command)
                return
        command(closed())

    def _ask(self, question: Callable[[Machine], _T]) -> _T:
        """What `question` says in the thread, between two steps.

        Raises:
            SglcError: SGLC504, it failed, and the runtime with it; or there is no runtime.
        """
        answer: Future[_T] = Future()

        def command(machine: _Runner) -> None:
            if isinstance(machine, SglcError):
                answer.set_exception(machine)
                return
            try:
                answer.set_result(question(machine))
            except Exception as error:
                answer.set_exception(broken(error))
                raise

        self._tell(command)
        return answer.result()

    def _work(self, load: Callable[[], Machine]) -> None:
        try:
            machine = load()
        except SglcError as error:
            self._refuse(error, None)
            return
        except Exception as error:
            self._refuse(unloadable(self._options.model, error), None)
            return
        self.machine, loaded_s = machine, time.monotonic()
        try:
            while True:
                # What lies in the inbox goes first: rows that come together start together.
                while machine.idle or not self._inbox.empty():
                    command = self._inbox.get()
                    if command is None:
                        machine.fail_all(closed())
                        machine.engine.close()
                        return
                    command(machine)
                machine.step()
        except Exception as error:  # a bug of ours: nobody may be left waiting for it
            problem = broken(error)
            self.breakdown = Breakdown.now(problem, loaded_s)
            machine.fail_all(problem)
            machine.engine.close()
            self.machine = None
            del machine
            traceback.clear_frames(error.__traceback__)  # they hold the machine, and its model
            self._refuse(problem, loaded_s)
        finally:
            self.machine = None

    def _refuse(self, error: SglcError, loaded_s: float | None) -> None:
        """There is no machine: every segment fails with the reason, until the back end is closed."""
        self.breakdown = self.breakdown or Breakdown.now(error, loaded_s)
        while (command := self._inbox.get()) is not None:
            command(error)


def _begin(machine: _Runner, job: _ThreadRun) -> None:
    if job.aborted:
        return
    if isinstance(machine, SglcError):
        refuse(range(len(job.segment.nodes)), machine, job.emit, job.done)
    else:
        job.run = machine.submit(job.segment, job.emit, job.done, streams=job.streams, compiling=job.compiling)


def _compiled(machine: _Runner, job: _ThreadRun, node: int, error: SglcError | None) -> None:
    if not (job.run is None or job.aborted or isinstance(machine, SglcError)):
        machine.compiled(job.run, node, error)


def _abort(machine: _Runner, job: _ThreadRun) -> None:
    if not (job.run is None or isinstance(machine, SglcError)):
        machine.abort(job.run)
