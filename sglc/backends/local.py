"""The local back end: the runtime in a thread of this process, loaded when the first segment comes."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from sglc.errors import BackendError, SglcError
from sglc.ir.plan import Event, NodeFailed, Segment
from sglc.ir.target import Target, Tokenizer
from sglc.runtime.models import prepare
from sglc.runtime.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from sglc.runtime.segments import Machine

_T = TypeVar("_T")
_KV_BYTES = {"cpu": 2 << 30, "cuda": 16 << 30}
_PAGE_SIZE = 16  # tokens


@dataclass(frozen=True, slots=True)
class LocalOptions:
    """How the runtime is set up. `device`: auto, cpu or cuda. `dtype`: auto, float32, bfloat16, float16."""

    model: str
    device: str = "auto"
    dtype: str = "auto"
    kv_bytes: int | None = None
    max_rows: int = 64
    token_budget: int = 2048
    cache: bool = True
    page_size: int = _PAGE_SIZE


@dataclass(slots=True)
class _Job:
    segment: Segment
    emit: Callable[[Event], None]
    done: Callable[[], None]
    run: object = None
    aborted: bool = False


_Inbox = queue.SimpleQueue["Callable[[_Segments], None] | None"]


class LocalBackend:
    """Runs segments on the model of `options.model`."""

    def __init__(self, options: LocalOptions) -> None:
        self.options = options
        # Every thread has an inbox of its own, whose last entry is None.
        self._inbox: _Inbox = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self.machine: Machine | None = None  # owned by the thread; others read counters only

    @cached_property
    def folder(self) -> Path:
        """The model's files, ready to load; fetched on first use."""
        return prepare(self.options.model)

    @cached_property
    def target(self) -> Target:
        """Capabilities, and the model's tokenizer."""
        return Target(
            name="local",
            tokenizer=load_tokenizer(self.folder),
            scores_tokens=True,
            continues_text=True,
            concurrency=self.options.max_rows,
        )

    def start(self) -> None:
        """Begin to load the model in the background. Idempotent."""
        with self._lock:
            self._start()

    def _start(self) -> None:
        if self._thread is None:
            self._inbox = queue.SimpleQueue()
            self._thread = threading.Thread(
                target=self._work, args=(self._inbox,), name="sglc-local", daemon=True
            )
            self._thread.start()

    def _tell(self, command: Callable[[_Segments], None]) -> _Inbox:
        """Have a command done; gives the inbox that it went to."""
        with self._lock:
            self._start()
            self._inbox.put(command)
            return self._inbox

    async def submit(self, segment: Segment) -> AsyncIterator[Event]:
        """Run `segment`; closing the iterator early aborts it."""
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[Event | None] = asyncio.Queue()

        def send(event: Event | None) -> None:
            loop.call_soon_threadsafe(events.put_nowait, event)

        job = _Job(segment, send, lambda: send(None))
        inbox = self._tell(lambda machine: _begin(machine, job))
        finished = False
        try:
            while (event := await events.get()) is not None:
                yield event
            finished = True
        finally:
            if not finished:
                job.aborted = True
                inbox.put(lambda machine: _abort(machine, job))

    def flush_cache(self) -> None:
        """Forget every cached prefix that no run uses now. Waits until it is done.

        Raises:
            SglcError: the model does not load.
        """
        if self._thread is not None:  # else there is nothing in it
            self._ask(_flush)

    def server_info(self) -> dict[str, Any]:
        """Model, device, sizes and counters, as plain data. Waits until the model is loaded.

        Raises:
            SglcError: the model does not load.
        """
        asked = self.options
        device, dtype = self._ask(lambda machine: placed(asked))
        return {
            "backend": "local",
            "model": asked.model,
            "device": device,
            "dtype": dtype,
            **self._ask(_counts),
        }

    def _ask(self, question: Callable[[Machine], _T]) -> _T:
        """What `question` says in the runtime's thread, between two steps."""
        answer: Future[_T] = Future()

        def command(machine: _Segments) -> None:
            if isinstance(machine, _Refusing):
                answer.set_exception(machine.error)
            else:
                answer.set_result(question(cast("Machine", machine)))

        self._tell(command)
        return answer.result()

    def close(self) -> None:
        """End the thread after the commands it has; the model's memory goes with it. Idempotent.

        What still runs then fails with SGLC505.
        """
        with self._lock:
            thread, self._thread = self._thread, None
            if thread is not None:
                self._inbox.put(None)
        if thread is not None:
            thread.join()

    def _work(self, inbox: _Inbox) -> None:
        try:
            machine = self._load()
        except SglcError as error:
            self._refuse(inbox, error)
            return
        except Exception as error:
            self._refuse(inbox, BackendError("SGLC501", f"`{self.options.model}` cannot be loaded: {error}"))
            return
        self.machine = machine
        try:
            while True:
                # What lies in the inbox goes first: rows that come together start together.
                while machine.idle or not inbox.empty():
                    command = inbox.get()
                    if command is None:
                        machine.fail_all(BackendError("SGLC505", "the back end was closed while this ran"))
                        return
                    command(machine)
                machine.step()
        except Exception as error:  # a bug of ours: nobody may be left waiting for it
            problem = BackendError("SGLC504", f"the runtime failed: `{type(error).__name__}`: {error}")
            problem.__cause__ = error
            machine.fail_all(problem)
            self._refuse(inbox, problem)
        finally:
            self.machine = None

    def _load(self) -> Machine:
        return load(self.options, self.folder, self.target.tokenizer)

    def _refuse(self, inbox: _Inbox, error: SglcError) -> None:
        """The model did not load: every segment fails with the reason."""
        while (command := inbox.get()) is not None:
            command(_Refusing(error))


def load(options: LocalOptions, folder: Path, tokenizer: Tokenizer | None) -> Machine:
    """The model in `folder`, ready to run segments.

    Raises:
        BackendError: no such device, or files that are not what they should be.
    """
    # Torch takes over a second to import, so only a process that runs a model does it.
    import torch

    from sglc.runtime.engine import Engine, EngineConfig
    from sglc.runtime.segments import Machine
    from sglc.runtime.torch_executor import TorchExecutor
    from sglc.runtime.weights import load_config, load_weights

    assert tokenizer is not None
    device, name = placed(options)
    dtype: torch.dtype = getattr(torch, name)
    config = load_config(folder)
    token_bytes = 2 * config.layers * config.kv_heads * config.head_dim * dtype.itemsize
    pages = (options.kv_bytes or _KV_BYTES[device]) // (token_bytes * options.page_size)
    max_len = min(config.max_len, pages * options.page_size)
    executor = TorchExecutor(
        config,
        load_weights(folder, config, dtype, device),
        device=device,
        dtype=dtype,
        page_size=options.page_size,
        pages=pages,
        eos_ids=tokenizer.eos_ids,
        depth=2 if device == "cuda" else 1,
    )
    limits = EngineConfig(
        token_budget=options.token_budget, max_rows=options.max_rows, cache=options.cache, max_len=max_len
    )
    return Machine(Engine(executor, limits), tokenizer)


def placed(options: LocalOptions) -> tuple[str, str]:
    """The device and the dtype that `options` mean on this machine.

    Raises:
        BackendError: SGLC503, no such device.
    """
    import torch

    device = options.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise BackendError("SGLC503", "there is no CUDA device here", hint="run with `--device cpu`")
    if options.dtype != "auto":
        return device, options.dtype
    return device, "bfloat16" if device == "cuda" else "float32"


class _Segments(Protocol):
    """What commands act on: a machine, or what stands in its place when there is none."""

    def submit(self, segment: Segment, emit: Callable[[Event], None], done: Callable[[], None]) -> object: ...

    def abort(self, run: object) -> None: ...


class _Refusing:
    """Fails every segment for the same reason."""

    def __init__(self, error: SglcError) -> None:
        self.error = error

    def submit(self, segment: Segment, emit: Callable[[Event], None], done: Callable[[], None]) -> object:
        for index in range(len(segment.nodes)):
            emit(NodeFailed(index, self.error))
        done()
        return None

    def abort(self, run: object) -> None:
        return


def _begin(machine: _Segments, job: _Job) -> None:
    if not job.aborted:
        job.run = machine.submit(job.segment, job.emit, job.done)


def _abort(machine: _Segments, job: _Job) -> None:
    if job.run is not None:
        machine.abort(job.run)


def _flush(machine: Machine) -> None:
    while machine.engine.tree.evictable:
        machine.engine.tree.evict()


def _counts(machine: Machine) -> dict[str, Any]:
    engine = machine.engine
    pool = engine.placement.pool
    return {
        "page_size": engine.executor.page_size,  # tokens
        "pages": engine.executor.pages,
        "free_pages": pool.free,
        "cached_pages": engine.tree.evictable,  # of prefixes that no run uses now
        "max_rows": engine.config.max_rows,
        "running_rows": len(engine.placement.work),
        "token_budget": engine.config.token_budget,
        "max_len": engine.config.max_len,
        "vocab_size": engine.executor.vocab_size,
        "submits": machine.submits,
    }
