"""The runtime as a process: `python -m sglc.runtime.engine.worker FOLDER MODEL_FOLDER OPTIONS`.

`FOLDER` has the program's two sockets, one for commands and one for reports (`sglc.runtime.engine.wire`);
`OPTIONS` is a `LocalOptions` as JSON. The other end of standard input is the program's: when it closes, the
program is gone, and so is this process. Everything that is printed goes to standard error.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import zmq

from sglc.errors import BackendError, SglcError
from sglc.ir.plan.events import Event
from sglc.runtime.engine import wire
from sglc.runtime.engine.failures import broken, closed, refuse, unloadable
from sglc.runtime.engine.loading import LocalOptions, cache_tokens, describe, flush, followed, load
from sglc.runtime.engine.own_process import (
    COLLECTIONS,
    LATE_COLLECTIONS,
    collect_if_due,
    end_with_parent,
    keep_answering,
    spare_transformers,
)
from sglc.runtime.scheduler.scheduler import NEW_ROWS
from sglc.runtime.tokenizer.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from sglc.runtime.engine.machine import Machine

_MOST_EVENTS = 64  # of a frame: the program reads them while the next ones are made
_TOLD_S = 0.25  # how often the state is told while there is work
_LINGER_MS = 2_000  # how long the last report may take to be read


class Link:
    """The program's end of the two sockets. Single-threaded; events leave in frames of many."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], folder: Path) -> None:
        self._commands = context.socket(zmq.PULL)
        self._reports = context.socket(zmq.PUSH)
        for socket, name in ((self._commands, wire.COMMANDS), (self._reports, wire.REPORTS)):
            socket.set_hwm(0)  # nothing is ever dropped, and nobody blocks
            socket.connect(f"ipc://{folder / name}")
        self._batch: list[tuple[int, Event | None]] = []
        self._come: deque[bytes] = deque()  # commands that nobody has taken yet

    def say(self, report: wire.Report) -> None:
        """Send a report, behind the events so far."""
        self.flush()
        self._reports.send(wire.encode(report))

    def put(self, run: int, event: Event | None) -> None:
        """Have an event of a run (None: there are no more) sent with the next `flush`, or before it."""
        self._batch.append((run, event))
        if len(self._batch) >= _MOST_EVENTS:
            self.flush()

    def flush(self) -> None:
        """Send the events that were put."""
        if self._batch:
            self._reports.send(wire.encode_events(self._batch))
            self._batch.clear()

    def commands(self, *, wait: bool) -> Iterator[bytes]:
        """What has come; with `wait`, at least one. Who stops in the middle finds the rest next time."""
        while self._come or self._take(wait=wait):
            wait = False
            yield self._come.popleft()

    def _take(self, *, wait: bool) -> bool:
        """Take the commands of a message; False if none has come. To ask first takes a call of the system."""
        try:
            message = self._commands.recv(0 if wait else zmq.NOBLOCK)
        except zmq.Again:
            return False
        self._come.extend(wire.frames_of(message))
        return True


class Worker:
    """A machine that does what comes over a link."""

    def __init__(self, machine: Machine, options: LocalOptions, link: Link) -> None:
        self._machine = machine
        self._options = options
        self._link = link
        self._runs: dict[int, object] = {}
        self._streams: set[int] = set()  # of these, the runs whose texts are read as they come
        self._closing = False
        self._tells_s = 0.0  # when the state is told again, of `time.monotonic`

    def serve(self) -> None:
        """Obey until a `Close`. What has come goes before a step, so rows that come together start together.

        But a step is not put off for long: commands may come as fast as they are obeyed. While there is other
        work as many are taken as rows may begin with it, so that programs of many calls, whose commands take
        longest, begin together too; but while texts are read as they come, for no longer than a step takes, and
        no more than some where a device that is done could go on. Others are taken while a step is waited for.

        Raises:
            SglcError: SGLC504, a step failed; everything that ran was failed with it.
        """
        try:
            while not self._closing:
                engine, began_s = self._machine.engine, 0.0
                most = engine.most_commands
                if self._machine.idle:
                    collect_if_due()
                for obeyed, frame in enumerate(self._link.commands(wait=self._machine.idle), 1):
                    began_s = began_s or time.perf_counter()
                    with engine.undisturbed():
                        self._obey(frame)
                    if self._closing:
                        break  # as a command that comes while a step is waited for may say, too
                    due = self._streams and time.perf_counter() - began_s > engine.step_s
                    enough = obeyed >= most or (obeyed >= NEW_ROWS and engine.starves)
                    if (enough or due) and not self._machine.idle:
                        break
                self._link.flush()
                if not (self._closing or self._machine.idle):
                    self._machine.step(self._meanwhile)
                    self._link.flush()
                    self._tell()
            self._machine.fail_all(closed())
        except Exception as error:  # a bug of ours: nobody may be left waiting for it
            traceback.print_exception(error)  # only its message goes to the program
            problem = broken(error)
            self._machine.fail_all(problem)
            raise problem from error

    def _tell(self) -> None:
        """Tell the state, if that is due: who wants to know it need not wait for a step."""
        now_s = time.monotonic()
        if now_s >= self._tells_s:
            self._tells_s = now_s + _TOLD_S
            self._link.say(wire.WorkerState(describe(self._machine, self._options)))

    def _meanwhile(self) -> bool:
        """Obey one command while the device computes; whether there was one."""
        frame = None if self._closing else next(self._link.commands(wait=False), None)
        if frame is None:
            collect_if_due()
        else:
            self._obey(frame)
        return frame is not None

    def _obey(self, frame: bytes) -> None:
        """Do what a frame says."""
        try:
            command = wire.decode_command(frame)
        except BackendError as error:
            print(f"sglc: {error.message}", file=sys.stderr, flush=True)
            return
        match command:
            case wire.Submit(run=run):
                self._submit(run, command)
            case wire.Abort(run) if run in self._runs:
                self._streams.discard(run)
                self._machine.abort(self._runs.pop(run))
            case wire.Abort():
                pass  # it ended meanwhile
            case wire.Compiled(run, node, problem) if run in self._runs:
                wrong = None if problem is None else wire.error_of(problem)
                self._machine.compiled(self._runs[run], node, wrong)
            case wire.Compiled():
                pass  # it has ended meanwhile
            case wire.Flush(question):
                flush(self._machine)
                self._link.say(wire.WorkerAnswer(question, {}))
            case wire.Follow(question, count):
                self._link.say(wire.WorkerAnswer(question, followed(self._machine, count)))
            case wire.Info(question):
                self._link.say(wire.WorkerAnswer(question, describe(self._machine, self._options)))
            case wire.Close():
                self._closing = True

    def _submit(self, run: int, command: wire.Submit) -> None:
        ended = False

        emit = partial(self._link.put, run)

        def done() -> None:
            nonlocal ended
            ended = True
            self._runs.pop(run, None)
            self._streams.discard(run)
            self._link.put(run, None)

        try:
            segment = wire.decode_segment(command)
        except BackendError as error:
            refuse(range(wire.nodes_in(command)), error, emit, done)
            return
        token = self._machine.submit(
            segment, emit, done,
            streams=command.streams, compiling=command.compiling, in_part=bool(self._streams),
        )  # fmt: skip
        if not ended:
            self._runs[run] = token
            if command.streams:
                self._streams.add(run)


def load_model(options: LocalOptions, folder: Path) -> Machine:
    """The machine that a model's files make."""
    return load(options, folder, load_tokenizer(folder))


def main(arguments: Sequence[str], made: Callable[[LocalOptions, Path], Machine] = load_model) -> int:
    """Serve the machine that is `made` of options and folder; gives the exit status."""
    parent = os.getppid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the program's, which says what to stop
    spare_transformers()
    folder, model_folder = Path(arguments[0]), Path(arguments[1])
    options = msgspec.json.decode(arguments[2], type=LocalOptions)
    threading.Thread(target=_end_with_the_program, args=(folder,), daemon=True).start()
    with zmq.Context() as context:
        context.linger = _LINGER_MS
        link = Link(context, folder)
        link.say(wire.Hello())
        problem: SglcError | None = None
        try:
            _run(lambda: made(options, model_folder), options, link, parent)
        except SglcError as error:
            problem = error
        link.say(wire.WorkerEnded(None if problem is None else wire.problem_of(problem)))
        context.destroy()
    return 0 if problem is None else 1


def _run(made: Callable[[], Machine], options: LocalOptions, link: Link, parent: int) -> None:
    gc.disable()  # what is loaded is no garbage, and to look for some took a tenth of the start
    try:
        machine = made()
        if options.with_constraints:
            machine.load_constraints()
    except SglcError:
        raise
    except Exception as error:
        raise unloadable(options.model, error) from None
    # While a device computes there is time for them.
    keep_answering(LATE_COLLECTIONS if machine.engine.executor.depth > 1 else COLLECTIONS)
    end_with_parent()  # for what standard input does not tell: a fork of the program may hold its other end
    if os.getppid() != parent:
        os._exit(1)
    link.say(wire.WorkerReady(cache_tokens(machine)))
    Worker(machine, options, link).serve()


def _end_with_the_program(folder: Path) -> None:
    """Wait for the end of standard input, and then end at once, in the middle of whatever runs."""
    while os.read(0, 1):
        pass
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


if __name__ == "__main__":
    ended = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(ended)  # at once, whatever threads still do
