"""The runtime in a process of its own, seen from the program: segments go there, events come back.

A thread begins the process, follows it, and is the last to leave: it reads the reports, notices the end of
the process whatever ended it, and fails what that leaves behind. So nobody waits for a process that is gone.
"""

from __future__ import annotations

import asyncio
import atexit
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import zmq

from sglc.backends.local.restarts import Breakdown
from sglc.errors import BackendError, SglcError
from sglc.ir.plan.events import Delta, Event
from sglc.ir.plan.segment import Segment
from sglc.runtime.engine import wire
from sglc.runtime.engine.failures import closed, refuse, unloadable
from sglc.runtime.engine.loading import LocalOptions
from sglc.runtime.engine.own_process import python_path

_CLOSE_S = 5.0  # how long a process may take to end when it is told to
_CONNECT_MS = 5_000  # how long its second socket may take behind the first
_RECENT_S = 1.0  # how old a state may be; one that is older comes of a step that hangs, or of earlier work
_LAST_WORDS_MS = 100  # what a process that died had sent may still be on its way

_Socket = zmq.Socket[bytes]


@dataclass(slots=True)
class _ProcessRun:
    """A segment in progress; `open` are the nodes whose last event has not come."""

    emit: Callable[[Event], None]
    done: Callable[[], None]
    open: set[int]


class RuntimeProcess:
    """A process with a model. What it is asked before it listens waits.

    Args:
        folder: gives the model's files; called in another thread, and may take long.
        worker: the module that the process runs.
    """

    def __init__(
        self, options: LocalOptions, folder: Callable[[], Path], worker: str = "sglc.runtime.engine.worker"
    ) -> None:
        self._options = options
        self._worker = worker
        self._folder = folder
        self._program = os.getpid()
        self._lock = threading.Lock()  # over all that follows
        self._runs: dict[int, _ProcessRun] = {}
        self._questions: dict[int, Future[dict[str, Any]]] = {}
        self._state: tuple[float, dict[str, Any]] | None = None  # that was told last, and when
        self._numbers = itertools.count()
        self._outbox: list[bytes] = []
        self._sender: asyncio.AbstractEventLoop | None = None  # the last one that is going to send them
        self._commands: _Socket | None = None  # while the process listens
        self._process: subprocess.Popen[bytes] | None = None
        self._loaded_s: float | None = None
        self.cache_tokens: int | None = None  # that the model's cache holds, once it is loaded
        self.breakdown: Breakdown | None = None  # why it has ended without being told to
        self._closing = False
        self._end: SglcError | None = None  # why nothing more is taken
        self._thread = threading.Thread(target=self._work, name="sglc-local-process", daemon=True)
        atexit.register(self.close)
        self._thread.start()

    @property
    def pid(self) -> int | None:
        """The process, if it was begun."""
        return None if self._process is None else self._process.pid

    def submit(
        self,
        segment: Segment,
        emit: Callable[[Event], None],
        done: Callable[[], None],
        *,
        streams: bool = True,
        compiling: tuple[int, ...] = (),
    ) -> object:
        """Start a segment, together with the others of this turn of the event loop; a token for `abort`.

        `emit` receives its events, and `done` is called once after the last; both in another thread, or
        before this returns. Nodes that are `compiling` wait for `compiled`.
        """
        run, loop = next(self._numbers), asyncio.get_running_loop()
        nodes = range(len(segment.nodes))
        try:
            command = wire.encode_submit(run, segment, streams=streams, compiling=compiling)
        except SglcError as error:
            refuse(nodes, error, emit, done)
            return run
        with self._lock:
            end = self._end
            if end is None:
                if not self._runs:
                    self._state = None  # of work that is over
                self._runs[run] = _ProcessRun(emit, done, set(nodes))
                self._outbox.append(command)
                if self._sender is not loop:
                    self._sender = loop
                    loop.call_soon(self._send)
        if end is not None:
            refuse(nodes, end, emit, done)
        return run

    def compiled(self, run: object, node: int, error: SglcError | None) -> None:
        """What a node is held to is compiled, or `error` is wrong with it."""
        assert isinstance(run, int)
        problem = None if error is None else wire.problem_of(error)
        with self._lock:
            if run in self._runs:
                self._outbox.append(wire.encode(wire.Compiled(run, node, problem)))
        self._send()

    def abort(self, run: object) -> None:
        """Stop what is left of a segment: no further events."""
        assert isinstance(run, int)
        with self._lock:
            if self._runs.pop(run, None) is not None:
                self._outbox.append(wire.encode(wire.Abort(run)))
        self._send()

    def flush(self) -> None:
        """Forget every cached prefix that no run uses now. Waits until it is done.

        Raises:
            SglcError: the model does not load, or the process died.
        """
        self._ask(wire.Flush)

    def info(self) -> dict[str, Any]:
        """What `describe` says of the machine there. Waits until the model is loaded.

        Raises:
            SglcError: the model does not load, or the process died.
        """
        return dict(self._ask(wire.Info))

    def recent_info(self) -> dict[str, Any] | None:
        """What `info` said a moment ago; None: without work nobody has to wait for it, or nothing was told."""
        with self._lock:
            told_s, state = self._state or (0.0, None)
            recent = self._runs and time.monotonic() - told_s < _RECENT_S
            return state if recent else None

    def follow_cache(self, count: int | None) -> dict[str, Any]:
        """What `followed` says of the machine there.

        Raises:
            SglcError: as of `info`.
        """
        return dict(self._ask(wire.Follow, count))

    def close(self) -> None:
        """End the process; what still runs fails with SGLC505. Idempotent."""
        if os.getpid() != self._program:
            return  # a fork of the program leaves its process alone
        with self._lock:
            self._closing = True
            self._outbox.append(wire.encode(wire.Close()))
            if self._process is not None and self._loaded_s is None:
                self._process.kill()  # it is loading, and has nothing to tell
        self._send()
        self._thread.join(_CLOSE_S)
        with self._lock:
            process = self._process
            if process is not None and self._end is None:
                process.kill()
        if process is not None:  # else the model is being fetched, and no process will follow
            self._thread.join()

    def _ask(self, question: type[wire.Flush | wire.Follow | wire.Info], *given: Any) -> dict[str, Any]:
        number = next(self._numbers)
        answer: Future[dict[str, Any]] = Future()
        with self._lock:
            if self._end is not None:
                raise self._end
            self._questions[number] = answer
            self._outbox.append(wire.encode(question(number, *given)))
        self._send()
        return answer.result()

    def _send(self) -> None:
        """Send what waits as one message; later, if nobody listens."""
        with self._lock:
            self._sender = None
            if self._commands is not None and self._outbox:
                try:
                    self._commands.send(wire.bundled(self._outbox), zmq.NOBLOCK)
                except zmq.Again:
                    return  # the process is gone, which the thread is about to find
                self._outbox.clear()

    # -- the thread --------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            end = self._live()
        except SglcError as error:
            end = error
        except Exception as error:
            end = unloadable(self._options.model, error)
        with self._lock:
            self._end = end
            if not self._closing:
                self.breakdown = Breakdown.now(end, self._loaded_s)
            runs, self._runs = self._runs, {}
            questions, self._questions = self._questions, {}
            self._outbox.clear()
        for run in runs.values():
            refuse(sorted(run.open), end, run.emit, run.done)
        for question in questions.values():
            question.set_exception(end)
        atexit.unregister(self.close)

    def _live(self) -> SglcError:
        """Begin the process, and follow it until it is gone; gives the reason."""
        model_folder = self._folder()
        folder = Path(tempfile.mkdtemp(prefix="sglc-"))  # nobody else may enter it
        try:
            with zmq.Context() as context:
                try:
                    commands = _bound(context, zmq.PUSH, folder / wire.COMMANDS)
                    reports = _bound(context, zmq.PULL, folder / wire.REPORTS)
                    process = self._begin(folder, model_folder)
                    return closed() if process is None else self._follow(process, commands, reports, folder)
                finally:
                    context.destroy(linger=0)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _begin(self, folder: Path, model_folder: Path) -> subprocess.Popen[bytes] | None:
        """Begin the process, unless it is not wanted any more.

        The kernel ends it with the thread that calls this.
        """
        options = msgspec.json.encode(self._options).decode()
        with self._lock:
            if self._closing:
                return None
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    self._worker,
                    str(folder),
                    str(model_folder),
                    options,
                ],
                stdin=subprocess.PIPE,  # which closes with the program
                stdout=2,  # results are the program's alone to print
                # It imports what the program would. Its threads share what memory was given back: otherwise
                # each keeps what it once had. Torch's sleep while they wait for one that has no core: where
                # others use the cores, too, those that spin keep it from one, and a step takes ten times as
                # long.
                env={
                    "MALLOC_ARENA_MAX": "2",
                    "OMP_WAIT_POLICY": "PASSIVE",
                    **os.environ,
                    "PYTHONPATH": python_path(),
                },
                process_group=0,  # Ctrl-C is not for it
            )
            return self._process

    def _follow(
        self, process: subprocess.Popen[bytes], commands: _Socket, reports: _Socket, folder: Path
    ) -> SglcError:
        assert process.stdin is not None
        poller = zmq.Poller()
        poller.register(reports, zmq.POLLIN)
        poller.register(process.stdin, zmq.POLLERR)  # the pipe breaks when the process ends
        try:
            while True:
                if reports not in dict(poller.poll()) and not reports.poll(_LAST_WORDS_MS):
                    return self._dead(process.wait())
                match wire.decode_report(reports.recv()):
                    case wire.Hello():
                        commands.poll(_CONNECT_MS, zmq.POLLOUT)
                        shutil.rmtree(folder)  # both are connected: no socket outlives the processes
                        with self._lock:
                            self._commands = commands
                        self._send()
                    case wire.WorkerReady(cache_tokens):
                        with self._lock:
                            self._loaded_s, self.cache_tokens = time.monotonic(), cache_tokens
                    case wire.Events() as events:
                        self._take(wire.decode_events(events))
                    case wire.WorkerState(content):
                        with self._lock:
                            self._state = time.monotonic(), content
                    case wire.WorkerAnswer(question, content):
                        self._questions.pop(question).set_result(content)
                    case wire.WorkerEnded(problem):
                        return closed() if problem is None else wire.error_of(problem)
        finally:
            with self._lock:
                self._commands = None
            process.kill()
            process.wait()
            process.stdin.close()

    def _take(self, events: Sequence[tuple[int, Event | None]]) -> None:
        for number, event in events:
            run = self._runs.get(number)
            if run is None:
                continue  # it was aborted
            if event is None:
                self._runs.pop(number, None)
                run.done()
                continue
            if not isinstance(event, Delta):
                run.open.discard(event.node)
            run.emit(event)

    def _dead(self, status: int) -> SglcError:
        if self._closing:
            return closed()
        how = f"by signal {signal.Signals(-status).name}" if status < 0 else f"with exit status {status}"
        when = "before the model was loaded" if self._loaded_s is None else "while this ran"
        hint = "it may have been ended for want of memory" if status == -signal.SIGKILL else "run it again"
        return BackendError("SGLC506", f"the runtime's process ended {how} {when}", hint=hint)


def _bound(context: zmq.Context[_Socket], kind: int, path: Path) -> _Socket:
    socket = context.socket(kind)
    socket.set_hwm(0)  # nothing is ever dropped, and nobody blocks
    socket.bind(f"ipc://{path}")
    return socket
