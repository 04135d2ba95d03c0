"""The local back end: the runtime in a thread of this process, or in a process of its own on CUDA.

A model is loaded with the first segment, or before it by `start`.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from sglc.backends.local.prompt_encoding import PackingTokenizer, PromptEncoder
from sglc.backends.local.restarts import Restarts
from sglc.backends.local.thread import RuntimeThread
from sglc.errors import BackendError, SglcError
from sglc.ir.plan.events import Event, EventBatches, NodeFailed
from sglc.ir.plan.segment import GenNode, Segment
from sglc.ir.sampling import Sampling
from sglc.ir.target import Target
from sglc.runtime.engine.loading import LocalOptions as LocalOptions
from sglc.runtime.engine.loading import limits, load
from sglc.runtime.model.config import load_config
from sglc.runtime.model.registry import prepare
from sglc.runtime.tokenizer.tokenizer import load_tokenizer

if TYPE_CHECKING:
    import asyncio

    from sglc.backends.local.compiling import ConstraintCompiler
    from sglc.backends.local.mail import Mail
    from sglc.backends.local.process import RuntimeProcess
    from sglc.runtime.constraints.constraint import Constraints
    from sglc.runtime.engine.machine import Machine

_DEVICES = Path("/dev")


class LocalBackend:
    """Runs segments on the model of `options.model`."""

    def __init__(self, options: LocalOptions) -> None:
        self.options = options
        self._lock = threading.Lock()
        self._runtime: RuntimeThread | RuntimeProcess | None = None
        self._program = os.getpid()  # which has begun it
        self._restarts = Restarts()
        self._compiler: ConstraintCompiler | None = None
        # A server's requests come from one loop, and the plans that it runs from another.
        self._mail: dict[asyncio.AbstractEventLoop, Mail] = {}

    @property
    def machine(self) -> Machine | None:
        """The machine, where it is in this process. Its thread owns it; others read counters only."""
        return self._runtime.machine if isinstance(self._runtime, RuntimeThread) else None

    @cached_property
    def folder(self) -> Path:
        """The model's files, ready to load; fetched on first use."""
        return prepare(self.options.model)

    @cached_property
    def target(self) -> Target:
        """Capabilities, and the model's tokenizer."""
        return Target(
            name="local",
            model=self.options.model,
            tokenizer=load_tokenizer(self.folder),
            scores_tokens=True,
            continues_text=True,
            whole_answers=True,  # the engine need not report each token, nor send it
            concurrency=limits(self.options, "cuda" if _on_cuda(self.options) else "cpu")[0],
        )

    @cached_property
    def identity(self) -> str:
        """The model by its files, and how it is computed."""
        files = sorted((path.name, path.stat()) for path in self.folder.iterdir() if path.is_file())
        told = [(name, known.st_size, known.st_mtime_ns) for name, known in files]
        digest, options = sha256(repr(told).encode()).hexdigest()[:12], self.options
        device = "cuda" if _on_cuda(options) else "cpu"
        return f"{options.model} {digest} {device} {options.dtype} {options.kv_dtype}"

    def start(self) -> None:
        """Begin to load the model in the background. Idempotent.

        Raises:
            BackendError: SGLC501, a package is missing.
        """
        self._started()
        if self.options.with_constraints and self._compiler is not None:  # while the model is loaded
            self._compiler.start()
            self._constraints  # noqa: B018

    def _started(self) -> RuntimeThread | RuntimeProcess:
        """The runtime. One that broke down makes place for another.

        Raises:
            SglcError: that is not to be yet, or not at all.
        """
        with self._lock:
            if self._runtime is not None and self._program != os.getpid():
                raise BackendError(
                    "SGLC523", "the model was loaded by a process of which this one is a fork, and is not here",
                    hint='begin processes with multiprocessing\'s "spawn", or before the first run',
                )  # fmt: skip
            if self._runtime is not None and (breakdown := self._runtime.breakdown) is not None:
                self._restarts.allow(breakdown)
                self._runtime.close()
                self._runtime = None
            if self._runtime is None:
                self._program = os.getpid()
                self._runtime = self._begin()
            return self._runtime

    def _begin(self) -> RuntimeThread | RuntimeProcess:
        apart = _apart(self.options)
        try:
            from sglc.backends.local.compiling import ConstraintCompiler

            if apart:
                from sglc.backends.local.process import RuntimeProcess
        except ImportError as error:
            raise BackendError(
                "SGLC501", f"`{self.options.model}` cannot be loaded: {error}", hint="install `sglc[local]`"
            ) from None
        if self._compiler is None:
            limits = (self.options.compile_s, self.options.compile_bytes)
            self._compiler = ConstraintCompiler(lambda: self.folder, *limits, self._is_kept, regexes=apart)
        return (
            RuntimeProcess(self.options, lambda: self.folder)
            if apart
            else RuntimeThread(self._load, self.options)
        )

    @cached_property
    def _prompts(self) -> PromptEncoder:
        return PromptEncoder(cast(PackingTokenizer, self.target.tokenizer))

    def _is_kept(self, form: Sampling) -> bool:
        return self._constraints.is_kept(form)

    @cached_property
    def _constraints(self) -> Constraints:
        assert self.target.tokenizer is not None
        # It takes numpy, and with that half of what compiling takes.
        from sglc.runtime.engine.kept_constraints import kept_constraints

        return kept_constraints(self.target.tokenizer, load_config(self.folder).vocab_size)

    def _load(self) -> Machine:
        return load(self.options, self.folder, self.target.tokenizer)

    def submit(self, segment: Segment, *, streams: bool = True) -> AsyncIterator[Event]:
        """Run `segment`, without deltas if not `streams`; closing the iterator early aborts it.

        Its batches are of the events that are there already.
        """
        return EventBatches(self._run(segment, streams))

    async def _run(self, segment: Segment, streams: bool) -> AsyncGenerator[Sequence[Event], None]:
        import asyncio  # what compiles has no event loop

        from sglc.backends.local.mail import Inbox

        loop = asyncio.get_running_loop()
        mail, inbox = self._mail_to(loop), Inbox(loop)
        try:
            runtime = self._started()
        except SglcError as error:
            yield [NodeFailed(node, error) for node in range(len(segment.nodes))]
            return
        emit, done = functools.partial(mail.put, inbox), functools.partial(mail.put, inbox, None)
        compiling: asyncio.Task[None] | None = None
        compiler = self._compiler
        forms = compiler.forms_of(segment) if compiler is not None and _has_constraints(segment) else {}
        # Whoever has not asked for the target leaves it to the runtime to say what is wrong with the model.
        known = self._prompts.encoded(segment) if "target" in self.__dict__ else segment
        run = runtime.submit(known, emit, done, streams=streams, compiling=tuple(forms))
        if compiler is not None and forms:
            told = functools.partial(runtime.compiled, run)
            compiling = asyncio.create_task(compiler.compile_all(forms, told))
        finished = False
        try:
            while True:
                if (coming := inbox.coming()) is not None:
                    await coming
                if not (events := inbox.take()):
                    break
                yield events
            finished = True
        finally:
            if compiling is not None:
                compiling.cancel()
            if not finished:
                runtime.abort(run)

    def _mail_to(self, loop: asyncio.AbstractEventLoop) -> Mail:
        from sglc.backends.local.mail import Mail

        mail = self._mail.get(loop)
        if mail is None:
            self._mail = {loop: mail for loop, mail in self._mail.items() if not loop.is_closed()}
            mail = self._mail[loop] = Mail(loop)
        return mail

    def flush_cache(self) -> None:
        """Forget every cached prefix that no run uses now. Waits until it is done.

        Raises:
            SglcError: the model does not load.
        """
        if self._runtime is not None:  # else there is nothing in it
            self._prompts.clear()
            self._started().flush()

    def server_info(self) -> dict[str, Any]:
        """Model, device, sizes and counters, as plain data. Waits until the model is loaded.

        Raises:
            SglcError: the model does not load.
        """
        return self._with_compiling(self._started().info())

    def recent_info(self) -> dict[str, Any] | None:
        """What `server_info` said less than a second ago, without waiting for a step; None: ask it."""
        runtime = self._runtime  # without the lock, which is held while one ends
        info = None if runtime is None else runtime.recent_info()
        return None if info is None else self._with_compiling(info)

    @property
    def cache_tokens(self) -> int | None:
        """How many tokens its cache holds; None as long as no model is loaded."""
        runtime = self._runtime
        return None if runtime is None else runtime.cache_tokens

    def _with_compiling(self, info: dict[str, Any]) -> dict[str, Any]:
        compiler = self._compiler
        return info if compiler is None else {**info, "compile_seconds": compiler.times.told()}

    def follow_cache(self, count: int | None) -> dict[str, Any]:
        """What has changed in the cache, as `followed` of the runtime. Waits until the model is loaded.

        Raises:
            SglcError: the model does not load.
        """
        return self._started().follow_cache(count)

    def close(self) -> None:
        """End the runtime after the commands it has; the model's memory goes with it. Idempotent.

        What still runs then fails with SGLC505.
        """
        with self._lock:
            runtime, self._runtime = self._runtime, None
            compiler, self._compiler = self._compiler, None
        if compiler is not None:
            compiler.close()
        if runtime is not None:
            runtime.close()


def _apart(options: LocalOptions) -> bool:
    """Whether the runtime gets a process of its own, decided without torch, which takes long to import.

    Steps for a GPU are short: a thread that waited for the program's Python would leave it idle.
    """
    return _on_cuda(options) if options.process is None else options.process


def _on_cuda(options: LocalOptions) -> bool:
    return options.device != "cpu" and bool(gpus())


def gpus() -> list[str]:
    """What `CUDA_VISIBLE_DEVICES` may name of the GPUs here, found without torch."""
    count = len(list(_DEVICES.glob("nvidia[0-9]*"))) or int((_DEVICES / "dxg").exists())
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if seen is None or not count:
        return [str(number) for number in range(count)]
    names = [name.strip() for name in seen.split(",")]
    return [] if names[0] in ("", "-1") else names


def _has_constraints(segment: Segment) -> bool:
    return any(node.sampling.constrained for node in segment.nodes if isinstance(node, GenNode))
