"""Constraints are compiled apart, within limits of time and memory: the end of `compile_server` that asks."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from sglc.errors import BackendError, RunError, SglcError
from sglc.ir.plan.segment import GenNode, Segment
from sglc.ir.sampling import Sampling
from sglc.runtime.engine import wire
from sglc.runtime.engine.own_process import python_path
from sglc.runtime.histogram import Histogram

_KNOWN = 1024  # forms that have been compiled, and that nobody asks for again
_CHUNK = 1 << 16
_TIMES_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_TOO_MUCH = {"regex": "SGLC452", "json_schema": "SGLC456", "ebnf": "SGLC457", "structural_tag": "SGLC465"}


class ConstraintCompiler:
    """A process that compiles constraints; begun with the first, and again if it was ended.

    Args:
        folder: gives the model's files; may take long.
        seconds, memory: what compiling one form may take, in bytes beside what the process has before.
        kept: whether a form was compiled before, and need not be again; may take long.
        regexes: whether it compiles them, which are bounded by what they are.
    """

    def __init__(
        self,
        folder: Callable[[], Path],
        seconds: float,
        memory: int,
        kept: Callable[[Sampling], bool],
        *,
        regexes: bool,
    ) -> None:
        self._folder = folder
        self._seconds = seconds
        self._memory = memory
        self._kept = kept
        self._regexes = regexes
        self.times = Histogram(_TIMES_S)  # seconds that compiling a form took, however it ended
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        # By hash: a form may have megabytes, whose hash Python keeps, and nobody else goes on meanwhile.
        self._known: OrderedDict[int, None] = OrderedDict()

    def forms_of(self, segment: Segment) -> dict[int, Sampling]:
        """The nodes that have to wait for `compile_all`, and what each is held to."""
        return {
            index: form
            for index, node in enumerate(segment.nodes)
            if isinstance(node, GenNode)
            and (form := _form(node.sampling)) is not None
            and (self._regexes or form.regex is None)
            and hash(form) not in self._known
        }

    async def compile_all(
        self, forms: Mapping[int, Sampling], told: Callable[[int, SglcError | None], None]
    ) -> None:
        """Have what nodes are held to compiled; `told` is called for each, with what is wrong with it.

        Cancelling this ends the processes that do it.
        """
        nodes: dict[Sampling, list[int]] = {}
        for node, form in forms.items():
            nodes.setdefault(form, []).append(node)
        async with asyncio.TaskGroup() as group:
            for form in nodes:
                group.create_task(self._compile_for(form, nodes[form], told))

    async def _compile_for(
        self, form: Sampling, nodes: Sequence[int], told: Callable[[int, SglcError | None], None]
    ) -> None:
        try:
            error = None if await asyncio.to_thread(self._kept, form) else await self._compile(form)
        except Exception as failure:  # whatever comes: who is not told waits for ever
            error = BackendError("SGLC506", f"constraints cannot be compiled: {failure}")
        if error is None:
            self._known[hash(form)] = None
            if len(self._known) > _KNOWN:
                self._known.popitem(last=False)
        for node in nodes:
            told(node, error)

    async def _compile(self, form: Sampling) -> SglcError | None:
        """Have a form compiled; gives what is wrong with it."""
        loop, began_s, data = asyncio.get_running_loop(), time.perf_counter(), msgspec.msgpack.encode(form)
        ours, theirs = socket.socketpair()
        with ours:
            ours.setblocking(False)
            with theirs:
                await asyncio.to_thread(self._hand_over, theirs, form)
            told = b""
            try:
                await loop.sock_sendall(ours, len(data).to_bytes(8, "big") + data)
                while came := await loop.sock_recv(ours, _CHUNK):
                    told += came
            except ConnectionError:
                pass  # it has ended
        self.times.observe(time.perf_counter() - began_s)
        if not told:
            return BackendError(
                "SGLC506", "the process that compiles constraints has ended", hint="run it again"
            )
        if len(told) == 1:  # it has begun, and the kernel has ended it
            return self._too_much(form)
        problem = msgspec.msgpack.decode(told[1:], type=wire.Problem | None)
        return None if problem is None else wire.error_of(problem)

    def start(self) -> None:
        """Begin the process before it is needed."""
        with self._lock:
            self._started()

    def close(self) -> None:
        """End the process, and what it does. Idempotent."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        if self._process is not None and self._control is not None:
            self._control.close()
            self._process.kill()
            self._process.wait()
        self._process = self._control = None

    def _hand_over(self, theirs: socket.socket, form: Sampling) -> None:
        """Give a socket to the process."""
        kind = wire.NO_EBNF if form.ebnf is None else wire.EBNF
        with self._lock:
            socket.send_fds(self._started(), [kind], [theirs.fileno()])

    def _started(self) -> socket.socket:
        if self._process is not None and self._process.poll() is not None:
            self._end()
        if self._control is None:
            self._control, process_s = socket.socketpair()
            with process_s:
                self._process = self._begin(process_s)
        return self._control

    def _begin(self, control: socket.socket) -> subprocess.Popen[bytes]:
        limits = (str(self._seconds), str(self._memory))
        module = "sglc.runtime.engine.compile_server"
        return subprocess.Popen(
            [sys.executable, "-P", "-m", module, str(control.fileno()), str(self._folder()), *limits],
            stdin=subprocess.DEVNULL,
            stdout=2,  # results are the program's alone to print
            env={
                **os.environ,
                "PYTHONPATH": python_path(),
                # It forks, which only a process without other threads may; to look for a device, as xgrammar
                # does when it is loaded, begins one of CUDA's.
                "OMP_NUM_THREADS": "1",
                "CUDA_VISIBLE_DEVICES": "",
                "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
            },
            pass_fds=(control.fileno(),),
            process_group=0,  # Ctrl-C is not for it
        )

    def _too_much(self, form: Sampling) -> SglcError:
        kind = _kind(form)
        limit = f"{self._seconds:g} s or {self._memory >> 20} MiB"
        return RunError(
            _TOO_MUCH[kind], f"the `{kind}` of this generation takes more than {limit} to compile",
            hint="make it smaller",
        )  # fmt: skip


def _form(sampling: Sampling) -> Sampling | None:
    """What alone decides on a constraint; None if there is none."""
    if not sampling.constrained:
        return None
    return replace(
        _PLAIN, regex=sampling.regex, json_schema=sampling.json_schema, ebnf=sampling.ebnf,
        structural_tag=sampling.structural_tag, strict=sampling.strict, canonical=sampling.canonical,
    )  # fmt: skip


def _kind(form: Sampling) -> str:
    return next(kind for kind in _TOO_MUCH if getattr(form, kind) is not None)


_PLAIN = Sampling(max_tokens=1)
