"""A model on an executor, ready for rounds: each has a fresh engine, so no prefix is cached when it begins."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglc import knobs
from sglc.bench.floor import Cost, Device, cost, known_device
from sglc.bench.options import Options
from sglc.bench.setting import model_setting
from sglc.bench.shapes import SHAPES, shape
from sglc.bench.work import IDS
from sglc.errors import UsageError
from sglc.runtime.engine.loading import LocalOptions, cpu_executor, limits, placed, pool_pages
from sglc.runtime.model.config import ModelConfig, load_config
from sglc.runtime.model.registry import prepare

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from sglc.runtime.engine.engine import Engine
    from sglc.runtime.step import StepCost

PAGE_SIZE = 16  # tokens
_CPU_POOL_BYTES = 1 << 30
_MOST_ROWS = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a workload asks of a rig. None: as the runtime has it for the device.

    `longest`: tokens of the longest sequence. `side_by_side`: rows that have to run together. `pool`: KV
    tokens of the pool. `patient`: nobody reads tokens as they come, so prompts may keep rows that decode
    waiting. `token_bytes`: of every id, for forms that the executor follows by itself.
    """

    longest: int
    side_by_side: int = 1
    rows: int | None = None
    token_budget: int | None = None
    pool: int | None = None
    patient: bool = False
    token_bytes: tuple[bytes, ...] = ()
    model: str = "qwen3-0.6b"  # on CUDA, where none is asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Rig:
    """An executor that is warmed up, and the limits of the engines on it.

    `ceilings`: None if nobody has measured what the device can do in the type that the model computes in.
    """

    model: str
    config: ModelConfig
    executor: Any
    rows: int
    token_budget: int
    longest: int
    step_cost: StepCost | None
    cost: Cost
    ceilings: Device | None
    setting: Mapping[str, object]

    def engine(self) -> Engine:
        """An engine with an empty prefix tree."""
        from sglc.runtime.engine.engine import Engine, EngineConfig

        return Engine(
            self.executor,
            EngineConfig(
                token_budget=self.token_budget, max_rows=self.rows, max_len=self.longest, cost=self.step_cost
            ),
        )


def place(options: Options) -> str:
    """`cpu` or `cuda`, as `options` mean on this machine.

    Raises:
        BackendError: SGLC503, SGLC509, the device is not there, or cannot do it.
        UsageError: SGLC037, an option that means nothing on the device.
    """
    device, _ = placed(_local(options))
    if device == "cpu":
        for wrong, name in ((not options.cascade, "--no-cascade"), (options.profile, "--profile")):
            if wrong:
                raise UsageError("SGLC037", f"`{name}` is for CUDA devices", hint="leave it out, or use one")
    return device


def make_rig(options: Options, needs: Needs) -> Rig:
    """Load or make the model, and have everything compiled and captured that can be before the first step.

    Raises:
        SglcError: what `place` raises; a model that is not there (SGLC510 and others of `models.prepare`), that
            the work does not fit (SGLC037), or that does not fit into the device's memory (SGLC530).
    """
    import torch

    device = place(options)
    model = options.model or (needs.model if device == "cuda" else knobs.model())
    rows, token_budget = checked_limits(options, needs, device)
    dtype: torch.dtype = getattr(torch, placed(_local(options))[1])
    kv_dtype = torch.float8_e4m3fn if options.kv_dtype == "fp8" else dtype
    config = _config(model)
    _check_fit(model, config, needs)
    pages = None if needs.pool is None else -(-needs.pool // PAGE_SIZE)
    if device == "cuda":
        gc.collect()  # the memory of a rig before is this one's
        torch.cuda.empty_cache()
        weights = _weights(model, config, dtype, device)
        executor, step_cost = _on_cuda(options, needs, config, weights, kv_dtype, pages, rows, token_budget)
    else:
        executor, step_cost = _on_cpu(options, config, model, dtype, pages)
    setting = {
        **model_setting(device),
        "executor": type(executor).__name__,
        "dtype": str(dtype).removeprefix("torch."),
        "kv_dtype": str(kv_dtype).removeprefix("torch."),
        "rows": rows,
        "token_budget": token_budget,
        "pages": executor.pages,
        "page_size": PAGE_SIZE,
        "cascade": options.cascade,
        "seed": options.seed,
    }
    return Rig(
        model=model, config=config, executor=executor, rows=rows, token_budget=token_budget,
        longest=needs.longest, step_cost=None if needs.patient else step_cost,
        cost=cost(config, dtype.itemsize, kv_dtype.itemsize),
        # What is known is the rate of products of 16 bits.
        ceilings=known_device(str(setting["device"])) if dtype.itemsize == 2 else None,
        setting=setting,
    )  # fmt: skip


def _local(options: Options) -> LocalOptions:
    return LocalOptions("", options.device, options.dtype, options.kv_dtype)


def checked_limits(options: Options, needs: Needs, device: str) -> tuple[int, int]:
    """Rows in flight, and tokens of a step.

    Raises:
        UsageError: SGLC037, the work does not run with them.
    """
    rows, token_budget = limits(
        LocalOptions(
            "", max_rows=options.rows or needs.rows, token_budget=options.token_budget or needs.token_budget
        ),
        device,
    )
    if rows > _MOST_ROWS:
        raise UsageError(
            "SGLC037", f"the work does not run with {rows} rows", note="each row holds memory of its own",
            hint=f"give `--rows` of at most {_MOST_ROWS}",
        )  # fmt: skip
    if not needs.side_by_side <= rows <= token_budget:
        few = rows < needs.side_by_side
        raise UsageError(
            "SGLC037", f"the work does not run with {rows} rows and {token_budget} tokens a step",
            note=f"it has {needs.side_by_side} rows side by side" if few
            else "each row takes a token of a step",
            hint=f"give `--rows` of at least {needs.side_by_side}, or leave it out" if few
            else f"give `--rows` of at most {token_budget}, or a `--token-budget` of at least {rows}",
        )  # fmt: skip
    return rows, token_budget


def _on_cuda(
    options: Options, needs: Needs, config: ModelConfig, weights: dict[str, Tensor], kv_dtype: torch.dtype,
    pages: int | None, rows: int, token_budget: int,
) -> tuple[Any, StepCost | None]:  # fmt: skip
    """The executor, warmed up, and what its steps cost if it can tell."""
    from sglc.runtime.executor.cuda_executor import CudaExecutor

    executor = CudaExecutor(
        config, weights, kv_dtype=kv_dtype, page_size=PAGE_SIZE, pages=pages, max_rows=rows,
        max_tokens=token_budget, max_len=needs.longest, eos_ids=(), cascade=options.cascade,
        token_bytes=needs.token_bytes,
    )  # fmt: skip
    return executor, executor.warm_up(rows)


def _on_cpu(
    options: Options, config: ModelConfig, model: str, dtype: torch.dtype, pages: int | None
) -> tuple[Any, StepCost | None]:
    """The executor that `local:` takes here, and what its steps cost."""
    pages = pages or pool_pages(_CPU_POOL_BYTES, PAGE_SIZE, config, dtype)
    folder = None if model in SHAPES else _folder(model)
    executor = cpu_executor(folder, config, dtype, PAGE_SIZE, pages, (), options.dtype != "auto")
    return executor, executor.measure()


def _config(model: str) -> ModelConfig:
    return shape(model) if model in SHAPES else load_config(_folder(model))


def _folder(model: str) -> Path:
    return prepare(model.removeprefix("local:"))


def _weights(model: str, config: ModelConfig, dtype: torch.dtype, device: str) -> dict[str, Tensor]:
    from sglc.runtime.model.weights import dummy_weights, load_weights

    if model in SHAPES:
        return dummy_weights(config, dtype, device)
    return load_weights(_folder(model), config, dtype, device)


def _check_fit(model: str, config: ModelConfig, needs: Needs) -> None:
    shapes = ", ".join(f"`{name}`" for name in SHAPES)
    hint = f"take another model; shapes with random weights: {shapes}"
    if config.vocab_size <= IDS:
        raise UsageError(
            "SGLC037", f"`{model}` has {config.vocab_size} ids, and prompts are of {IDS + 1}", hint=hint
        )
    if config.max_len < needs.longest:
        raise UsageError(
            "SGLC037",
            f"`{model}` takes {config.max_len} tokens, and the work has {needs.longest} in a row",
            hint=hint,
        )
