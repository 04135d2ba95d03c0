"""From options to a machine that runs segments, and what it says of itself. Torch comes in with `load`."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Any

from sglc.errors import BackendError
from sglc.ir.target import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch
    from torch import Tensor

    from sglc.runtime.engine.machine import Machine
    from sglc.runtime.executor.torch_executor import TorchExecutor
    from sglc.runtime.model.config import ModelConfig
    from sglc.runtime.step import Executor, StepCost

_KV_BYTES = 2 << 30  # on the CPU; a CUDA device gives what it has free
_PAGE_SIZE = 16  # tokens
_SOON_S = 8.0  # with compiled kernels a model is ready by then
_COMPILING = "sglc: compiling kernels for this model and GPU, which is done once and takes about a minute"


@dataclass(frozen=True, slots=True)
class LocalOptions:
    """How the runtime is set up. `device`: auto, cpu or cuda. `dtype`: auto, float32, bfloat16, float16;
    float32 multiplies in float32 on a CPU, too, where auto takes what is fastest.

    `kv_dtype`: auto (as `dtype`) or fp8 (CUDA only). `max_rows`, `token_budget`: rows in flight and tokens of
    a step; None means 64 and 2,048 on the CPU, 256 and 8,192 on CUDA. `process`: whether it
    runs in a process of its own; None means on CUDA only. Schemas and grammars, and then also regexes, are
    compiled apart, where one may take `compile_s` seconds and `compile_bytes` of memory. `max_len`: tokens of a
    prompt and its answer, if fewer than the model's. `with_constraints`: what constraints need is loaded with
    the model, and not with the first of them, when others wait for their next tokens.
    """

    model: str
    device: str = "auto"
    dtype: str = "auto"
    kv_dtype: str = "auto"
    kv_bytes: int | None = None
    max_rows: int | None = None
    token_budget: int | None = None
    cache: bool = True
    page_size: int = _PAGE_SIZE
    process: bool | None = None
    compile_s: float = 10.0
    compile_bytes: int = 2 << 30
    max_len: int | None = None
    with_constraints: bool = False


def load(options: LocalOptions, folder: Path, tokenizer: Tokenizer | None) -> Machine:
    """The model in `folder`, ready to run segments.

    Raises:
        BackendError: no such device, or files that are not what they should be.
    """
    # Torch takes over a second to import, so only a process that runs a model does it.
    import torch

    from sglc.runtime.engine.engine import Engine, EngineConfig
    from sglc.runtime.engine.machine import Machine
    from sglc.runtime.model.weights import load_config, load_weights

    assert tokenizer is not None
    device, name = placed(options)
    dtype: torch.dtype = getattr(torch, name)
    config = load_config(folder)
    max_rows, token_budget = limits(options, device)
    executor: Executor
    cost: StepCost | None
    if device == "cuda":
        executor, cost = _cuda_executor(options, config, load_weights(folder, config, dtype, device), tokenizer)
    else:
        pages = pool_pages(options.kv_bytes or _KV_BYTES, options.page_size, config, dtype)
        exact = options.dtype != "auto"
        bounded = _bounded(config, pages * options.page_size, options)
        executor = cpu_executor(folder, bounded, dtype, options.page_size, pages, tokenizer.eos_ids, exact)
        cost = executor.measure()
    engine_config = EngineConfig(
        token_budget=token_budget,
        max_rows=max_rows,
        cache=options.cache,
        max_len=_max_len(options, config, executor.pages),
        cost=cost,
    )
    return Machine(Engine(executor, engine_config), tokenizer)


def cpu_executor(
    folder: Path | None,
    config: ModelConfig,
    dtype: torch.dtype,
    page_size: int,
    pages: int,
    eos_ids: Sequence[int],
    exact: bool = True,
) -> TorchExecutor:
    """The fastest executor for this CPU: kernels compiled here, in float32, if they can be had; or torch.

    Args:
        folder: of the weights; None: random ones.
        exact: whether products of a quantized file are float32's, too; or of integers, where these are faster.
    """
    import torch

    from sglc.runtime.executor.cpu_choice import integers
    from sglc.runtime.executor.cpu_executor import CpuExecutor, free_cores
    from sglc.runtime.executor.cpu_model import fits
    from sglc.runtime.executor.torch_executor import TorchExecutor
    from sglc.runtime.kernels.cpu_build import library
    from sglc.runtime.model.packed_weights import read_packed
    from sglc.runtime.model.weights import dummy_weights, load_weights

    kernels = library() if dtype is torch.float32 and fits(config, page_size) else None
    if dtype is torch.float32 and fits(config, _PAGE_SIZE) and not fits(config, page_size):
        _say(f"the CPU's kernels take pages of {_PAGE_SIZE} tokens or a multiple, and not of {page_size}: "
             "torch computes, which is slower")  # fmt: skip
    if folder is None:
        weights = dummy_weights(config, dtype, "cpu")
    else:
        weights = load_weights(folder, config, dtype if kernels is None else None, "cpu")
    if kernels is None:
        return TorchExecutor(config, weights, dtype=dtype, page_size=page_size, pages=pages, eos_ids=eos_ids)
    packed = {} if folder is None else read_packed(folder)
    return CpuExecutor(
        kernels,
        config,
        weights,
        packed,
        page_size=page_size,
        pages=pages,
        eos_ids=eos_ids,
        integers=bool(packed) and not exact and integers(kernels, free_cores()),
    )


def _cuda_executor(
    options: LocalOptions, config: ModelConfig, weights: Mapping[str, Tensor], tokenizer: Tokenizer
) -> tuple[Executor, StepCost]:
    """The executor, its kernels compiled, and what its steps cost."""
    import torch

    from sglc.runtime.executor.cuda_executor import CudaExecutor

    max_rows, token_budget = limits(options, "cuda")
    kv_dtype = torch.float8_e4m3fn if options.kv_dtype == "fp8" else next(iter(weights.values())).dtype
    given, size = options.kv_bytes, options.page_size
    pages = None if given is None else pool_pages(given, size, config, kv_dtype)
    executor = CudaExecutor(
        _bounded(config, config.max_len, options),
        weights,
        kv_dtype=kv_dtype,
        page_size=options.page_size,
        pages=pages,
        max_rows=max_rows,
        max_tokens=token_budget,
        eos_ids=tokenizer.eos_ids,
        token_bytes=tokenizer.token_bytes(),
        depth=2,  # more would put off what follows the end of a sample
    )
    telling = Timer(_SOON_S, lambda: print(_COMPILING, file=sys.stderr, flush=True))
    telling.start()
    try:
        return executor, executor.warm_up(max_rows)
    finally:
        telling.cancel()


def pool_pages(kv_bytes: int, page_size: int, config: ModelConfig, dtype: torch.dtype) -> int:
    """Pages of `page_size` tokens that `kv_bytes` have room for, with keys and values of `dtype`."""
    token_bytes = 2 * config.layers * config.kv_heads * config.head_dim * dtype.itemsize
    return kv_bytes // (token_bytes * page_size)


def _bounded(config: ModelConfig, room: int, options: LocalOptions) -> ModelConfig:
    """`config` for an executor, which has a table with an entry for each position."""
    return replace(config, max_len=min(config.max_len, options.max_len or config.max_len, room))


def _max_len(options: LocalOptions, config: ModelConfig, pages: int) -> int:
    """Tokens of a prompt and its answer; where that is not what was asked for, a line on stderr says why."""
    asked, room = options.max_len or config.max_len, pages * options.page_size
    length = min(asked, config.max_len, room)
    if length < asked:
        why = "the model has no more" if length == config.max_len else "keys and values of more have no memory"
        _say(f"a prompt and its answer may take {length} tokens, and not {asked}: {why}")
    return length


def _say(what: str) -> None:
    with suppress(OSError):  # nobody reads it
        print(f"sglc: {what}", file=sys.stderr, flush=True)


def limits(options: LocalOptions, device: str) -> tuple[int, int]:
    """Rows in flight, and tokens of a step."""
    rows, tokens = (256, 8192) if device == "cuda" else (64, 2048)
    return options.max_rows or rows, options.token_budget or tokens


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
    if options.kv_dtype == "fp8" and device == "cpu":
        raise BackendError(
            "SGLC509",
            "keys and values of 8 bits need a CUDA device",
            hint="leave out `kv_dtype`, or use another device",
        )
    if options.dtype != "auto":
        return device, options.dtype
    return device, "bfloat16" if device == "cuda" else "float32"


def flush(machine: Machine) -> None:
    """Forget every cached prefix that no run uses now, and what texts were encoded to."""
    while machine.engine.tree.evictable:
        machine.engine.tree.evict()
    machine.forget_texts()


def cache_tokens(machine: Machine) -> int:
    """How many tokens the cache holds."""
    executor = machine.engine.executor
    return executor.pages * executor.page_size


def followed(machine: Machine, count: int | None) -> dict[str, Any]:
    """The `changes` of a machine's cache behind the first `count` of its log, and their number; see
    `RadixTree.follow`."""
    now, changes = machine.engine.tree.follow(count)
    return {"count": now, "changes": changes, "page_size": machine.engine.executor.page_size}


def describe(machine: Machine, options: LocalOptions) -> dict[str, Any]:
    """Device, sizes and counters of a machine that was made from `options`."""
    device, dtype = placed(options)
    engine = machine.engine
    pages, free, cached = engine.executor.pages, engine.allocator.pool.free, engine.tree.evictable
    return {
        "backend": "local",
        "model": options.model,
        "device": device,
        "dtype": dtype,
        "executor": type(engine.executor).__name__,
        "page_size": engine.executor.page_size,  # tokens
        "pages": pages,
        "free_pages": free,
        "cached_pages": cached,  # of prefixes that no run uses now
        "used_pages": pages - free - cached,  # of requests that run now
        "max_rows": engine.config.max_rows,
        "running_rows": len(engine.allocator.work),
        "waiting_rows": engine.queue.waiting,
        "requests": engine.requests,  # that run or wait
        "preempted_rows": engine.queue.preempted,  # so far
        "forced_tokens": engine.forced,  # so far: those that took no step of their own
        "token_budget": engine.config.token_budget,
        "max_len": engine.config.max_len,
        "vocab_size": engine.executor.vocab_size,
        "submits": machine.submits,
        "steps": machine.steps,
        "rested_us": round(1e6 * machine.rested_s),  # without any work
        "step_seconds": machine.step_times.told(),
        "queue_seconds": engine.queue.waits.told(),  # of requests until their first row
    }
