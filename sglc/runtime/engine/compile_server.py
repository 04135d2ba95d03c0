"""Constraints are compiled by `python -m sglc.runtime.engine.compile_server FD FOLDER S BYTES`.

`FOLDER` has the model; a form may take `S` seconds of a processor, and `BYTES` of memory beside what this
process has. A pattern, schema or grammar may ask for more than there is, so nobody waits for it but who sent
it. This process loads the tokenizer and the libraries once, xgrammar with the first grammar (`wire.EBNF`): that
takes seconds. What comes through the socket `FD` are sockets, one for each form: for each it forks a process
that reads the form, compiles it into the cache directory, where the runtime finds it, and answers. The kernel
ends that one when it takes too much, or when the other end of its socket is closed. This process ends when
`FD` is closed.
"""

from __future__ import annotations

import fcntl
import gc
import math
import os
import resource
import select
import signal
import socket
import sys
import time
import traceback
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from sglc.errors import SglcError
from sglc.ir.sampling import Sampling
from sglc.runtime.constraints.constraint import Constraints
from sglc.runtime.engine import wire
from sglc.runtime.engine.kept_constraints import kept_constraints
from sglc.runtime.engine.own_process import spare_transformers
from sglc.runtime.model.config import load_config
from sglc.runtime.tokenizer.tokenizer import load_tokenizer

_BEGUN = b"\0"  # what comes before the work; behind it comes a `Problem`, or null
_MOST = 2  # processes at once
_NICE = 10  # who is answered meanwhile comes first
_IDLE_S = 2.0  # that a form has only what nobody else wants of the processors: who wakes up then waits for none
_PLAIN = os.sched_param(0)
_LOOK_S = 0.01  # how often it looks for one that has ended


def main(arguments: Sequence[str]) -> int:
    """Compile what is asked for until nobody asks any more; gives the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the program's
    os.nice(_NICE)
    spare_transformers()
    control, folder = socket.socket(fileno=int(arguments[0])), Path(arguments[1])
    seconds, memory = float(arguments[2]), int(arguments[3])
    constraints = kept_constraints(load_tokenizer(folder), load_config(folder).vocab_size)
    constraints.prepare(ebnf=False)
    _keep_loaded()
    waiting: deque[int] = deque()
    running: dict[int, float] = {}  # and when they are to have their turn among the others
    idles = _may_idle()
    while True:
        if select.select([control], [], [], _LOOK_S if running else None)[0]:
            data, sockets, _, _ = socket.recv_fds(control, 1, 1)
            waiting += sockets
            if data == wire.EBNF:
                constraints.prepare(ebnf=True)
                _keep_loaded()
            if not data:
                return 0  # the kernel closes the sockets, which ends who runs
        while running and (pid := os.waitpid(-1, os.WNOHANG)[0]):
            running.pop(pid)
        for pid in [pid for pid, end_s in running.items() if end_s <= time.monotonic()]:
            running[pid] = math.inf
            for thread in Path(f"/proc/{pid}/task").iterdir():
                with suppress(ProcessLookupError):
                    os.sched_setscheduler(int(thread.name), os.SCHED_OTHER, _PLAIN)
        while waiting and len(running) < _MOST:
            asked = waiting.popleft()
            pid = os.fork()
            if pid == 0:
                control.close()
                for other in waiting:
                    os.close(other)
                if idles:
                    os.sched_setscheduler(0, os.SCHED_IDLE, _PLAIN)
                status = 1
                try:
                    status = _compile(socket.socket(fileno=asked), constraints, seconds, memory)
                except (ConnectionError, msgspec.DecodeError):
                    pass  # who asked has gone
                except Exception as error:
                    traceback.print_exception(error)
                finally:
                    os._exit(status)
            running[pid] = time.monotonic() + _IDLE_S if idles else math.inf
            os.close(asked)


def _keep_loaded() -> None:
    """What is loaded is no garbage: each process for a form would look through all of it, a tenth of a second
    of a processor, and by that make a copy of it."""
    gc.collect()
    gc.freeze()


def _may_idle() -> bool:
    """Whether who has only idle processors may have its turn again: that takes a right, or `RLIMIT_NICE`."""
    pid = os.fork()
    if pid == 0:
        try:
            os.sched_setscheduler(0, os.SCHED_IDLE, _PLAIN)
            os.sched_setscheduler(0, os.SCHED_OTHER, _PLAIN)
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1] == 0


def _compile(asked: socket.socket, constraints: Constraints, seconds: float, memory: int) -> int:
    """One form, in a process for it."""
    with asked, asked.makefile("rb") as form:
        sampling = msgspec.msgpack.decode(form.read(int.from_bytes(form.read(8), "big")), type=Sampling)
        asked.sendall(_BEGUN)
        # From now on anything that comes is the end of it; without a handler the signal ends the process.
        fcntl.fcntl(asked, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(asked, fcntl.F_SETFL, fcntl.fcntl(asked, fcntl.F_GETFL) | os.O_ASYNC)
        if select.select([asked], [], [], 0)[0]:
            return 1
        signal.setitimer(signal.ITIMER_PROF, seconds)  # of its own work: a busy machine refuses nothing more
        now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        allowed = resource.getrlimit(resource.RLIMIT_AS)[1]
        most = now + memory if allowed == resource.RLIM_INFINITY else min(now + memory, allowed)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        problem: SglcError | None = None
        try:
            constraints.of(sampling)
        except SglcError as error:
            problem = error
        except (MemoryError, RecursionError):
            return 1
        signal.setitimer(signal.ITIMER_PROF, 0)
        told = msgspec.msgpack.encode(None if problem is None else wire.problem_of(problem))
        asked.sendall(told)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
