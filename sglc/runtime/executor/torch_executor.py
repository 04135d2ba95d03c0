"""Runs steps with torch, on the CPU or on one CUDA device: copies, forward pass, sampling.

Owns the KV pool and the last sampled id of every row; a `ExecutorState` keeps the rest. On the CPU `launch`
does all the work. On CUDA it only queues work on the current stream, so the order of launches is the
order of effects.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sglc.errors import BackendError
from sglc.runtime.executor.executor_state import ExecutorState
from sglc.runtime.executor.logits_output import I64, LogitsOutput, outcome, wanted_tokens
from sglc.runtime.executor.pool_memory import PoolMemory
from sglc.runtime.executor.sampler import TORCH
from sglc.runtime.executor.torch_model import Llama
from sglc.runtime.executor.torch_threads import set_torch_threads
from sglc.runtime.model.config import ModelConfig
from sglc.runtime.step import I32, SAMPLED, Batch, ByteAutomaton, Opened, Step, StepCost, StepResult

_FAR, _FAR_BYTES = 2048, 64 << 20  # keys before the tokens whose attention is measured: few are lost in noise
_SOME = 16  # tokens of the largest step that is measured; what larger ones cost is taken from these
_SIZES = (1, 4, 8, 12, 16, 24, 32, 64, 128, 256)
_STRETCH = 2.0
_LONG_S = 0.3  # a pass that takes so long is made once
_SHORT_S = 0.02  # a pass of one token that takes longer has work for all threads


class Model(Protocol):
    """What a step goes through; how its KV lies in a pool is its own matter."""

    def pool_shape(self, pages: int, page_size: int) -> tuple[int, ...]: ...
    def copy(self, pool: Tensor, page_size: int, copies: I32) -> None: ...
    def forward(self, batch: Batch, ids: Tensor, pool: Tensor, page_size: int, wanted: I64) -> Tensor: ...
    def logits(self, hidden: Tensor) -> Tensor: ...


class TorchExecutor:
    """An `Executor` of a Llama-family model.

    Args:
        weights: as `Llama` takes them: on `device` and in `dtype`.
        page_size, pages: tokens of one KV page, and pages of the pool.
        eos_ids: ids that rows with `no_eos` may not sample.
        depth: steps that may be undrained; more than 1 is of use on CUDA alone.

    Raises:
        BackendError: the pool does not fit into the device's memory (SGLC530).
    """

    trees = True
    _kernels = TORCH
    keeps = False

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, Tensor],
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        page_size: int = 16,
        pages: int = 1024,
        eos_ids: Sequence[int] | None = None,
        depth: int = 1,
    ) -> None:
        self.config = config
        self.page_size = page_size
        self.pages = pages
        self.depth = depth
        self.vocab_size = config.vocab_size
        self._device = torch.device(device)
        self._mirror = ExecutorState(page_size)
        with torch.inference_mode():
            self._model = self._load(weights)
            shape = self._model.pool_shape(pages, page_size)
            self._pool = empty_pool(shape, pages * page_size, dtype, self._device)
            on_cpu = self._device.type == "cpu"
            self._memory = PoolMemory(self._pool.view(config.layers, pages, -1)) if on_cpu else None
            ids = config.eos_ids if eos_ids is None else eos_ids
            self._eos_ids = torch.tensor(list(ids), dtype=torch.int64, device=self._device)
            self._last = torch.zeros(64, dtype=torch.int64, device=self._device)

    def launch(self, step: Step) -> LogitsOutput:
        """Run `step` (CUDA: queue it)."""
        if self._memory is not None and len(step.pages):
            page = int(step.pages[:, 2].max())
            if page >= self._memory.due:
                self._memory.used(page)
        batch = self._mirror.expand(step)
        with torch.inference_mode():
            if len(batch.copies):
                self._model.copy(self._pool, self.page_size, batch.copies)
            if (rows := int(batch.rows.max()) + 1) > len(self._last):
                self._last = torch.cat((self._last, self._last.new_zeros(rows)))
            wanted = wanted_tokens(batch)
            hidden = self._forward(batch, wanted)
            made = outcome(batch, wanted, hidden, self._model.logits, self._eos_ids, self._kernels)
            if batch.sample.any():
                sampled = self._put(batch.sample.nonzero()[0])
                self._last[self._put(batch.rows[batch.sample].astype(np.int64))] = made.tokens[sampled]
            return made if self._device.type == "cpu" else made.on_host()

    def ready(self, ticket: LogitsOutput) -> bool:
        """Whether a step is over."""
        return ticket.done is None or ticket.done.query()

    def drain(self, ticket: LogitsOutput) -> StepResult:
        """The outcome of the oldest undrained step."""
        return ticket.result()

    def measure(self) -> StepCost | None:
        """What steps cost on this machine's CPU, by passes of a few tokens; before the first step only.

        In the thread that runs the steps: torch computes there with as many threads as they are quickest with.

        None for a model of so few tokens that no step with a prompt takes long.

        A token of a prompt costs a good part of a step here, so streams wait longer for prompts than on a GPU.
        Of sizes up to `_SOME` tokens each is measured: kernels for a few rows are others than those for more.
        """
        if self.config.max_len < 2 * _SOME:
            return None
        token_bytes = self._pool.nbytes // (self.pages * self.page_size)
        most = min(_FAR, _FAR_BYTES // token_bytes) + _SOME
        keys = max(min(most, self.config.max_len, self.pages * self.page_size) - _SOME, 0)
        pages = min(-(-(keys + _SOME) // self.page_size), self.pages)
        with torch.inference_mode():
            # What was never written is read as one page of the system.
            self._pool[:, : self._pool.shape[1] // self.pages * pages] = 0
            self._choose_threads()
            one, far_one, far_some = (
                self._seconds(tokens, position) for tokens, position in ((1, 0), (1, keys), (_SOME, keys))
            )
            near = [size for size in _SIZES if 1 < size <= _SOME] if one < _LONG_S else [_SOME]
            measured = {size: self._seconds(size, 0) for size in near}
        # In the middle of what each size says: another process may have taken some time of one.
        token_s = max(median((seconds - one) / (size - 1) for size, seconds in measured.items()), 0.0)
        products_s = tuple((size, measured.get(size, one + token_s * (size - 1))) for size in _SIZES)
        share = 1 / keys if keys else 0.0  # a pool of one page has room for none, and they are few
        seen_s = max(far_some - one - token_s * (_SOME - 1), 0.0)
        key_s, pair_s = max(far_one - one, 0.0) * share, seen_s * share / _SOME
        return StepCost(products_s, key_s, pair_s, _STRETCH)

    def _choose_threads(self) -> None:
        """One thread, if it is quicker with `_SOME` tokens, too: several wait for each other at each product,
        and for as long as one of them waits for a core."""
        self._seconds(1, 0)  # the first pass loads what all need
        threads = torch.get_num_threads()
        if threads == 1 or (one := self._seconds(1, 0)) > _SHORT_S:
            return
        some = self._seconds(_SOME, 0)
        set_torch_threads(1)
        if self._seconds(1, 0) > one or self._seconds(_SOME, 0) > some:
            set_torch_threads(threads)

    def _seconds(self, tokens: int, position: int) -> float:
        """What a step takes with so many tokens of one row, behind `position` others."""
        none, row = np.zeros(1, np.float32), np.zeros(1, np.int32)
        places = np.arange(-(-(position + tokens) // self.page_size), dtype=np.int32)
        step = Step(
            index=0, rows=row, decoding=0, sample=np.ones(1, np.bool_), lengths=np.array([tokens], np.int32),
            ids=np.zeros(tokens, np.int32), pages=np.stack([0 * places, places, places], 1),
            opened=Opened(
                rows=row, seq_len=row + position, temperature=none + 1, top_p=none + 1, top_k=row - 1,
                min_p=none, seeds=np.zeros(1, np.uint64), eos_from=row,
            ),
        )  # fmt: skip
        batch = ExecutorState(self.page_size).expand(step)
        times: list[float] = []
        while len(times) < 2 and sum(times) < _LONG_S:  # what another process takes of short ones is left out
            began_s = time.perf_counter()
            wanted = wanted_tokens(batch)
            hidden = self._forward(batch, wanted)
            outcome(batch, wanted, hidden, self._model.logits, self._eos_ids, self._kernels)
            times.append(time.perf_counter() - began_s)
        return min(times)

    def hold(self, automaton: ByteAutomaton) -> None:
        """Nothing is followed here: the host knows each id before the next step."""

    def release(self, automaton: ByteAutomaton) -> None:
        """Nothing was held."""

    def _load(self, weights: Mapping[str, Tensor]) -> Model:
        return Llama(self.config, weights)

    def _forward(self, batch: Batch, wanted: I64) -> Tensor:
        """Hidden states of the tokens that are sampled from or scored."""
        return self._model.forward(batch, self._ids(batch), self._pool, self.page_size, wanted)

    def _ids(self, batch: Batch) -> Tensor:
        """int64 [T], those that were sampled filled in."""
        ids = self._put(batch.tokens.astype(np.int64))
        if not (batch.tokens == SAMPLED).any():
            return ids
        rows = np.repeat(batch.rows.astype(np.int64), np.diff(batch.starts))
        return torch.where(ids == SAMPLED, self._last[self._put(rows)], ids)

    def _put(self, values: NDArray[np.integer]) -> Tensor:
        return torch.from_numpy(values).to(self._device, non_blocking=True)


def empty_pool(shape: tuple[int, ...], slots: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A KV pool of `shape` for `slots` tokens. Zeros, so that padding reads finite numbers.

    Raises:
        BackendError: it does not fit into the device's memory, or has no slot (SGLC530).
    """
    if slots < 1:
        message = "a KV pool has no room for a page of tokens"
        raise BackendError("SGLC530", message, hint="ask for a larger pool")
    size = dtype.itemsize * math.prod(shape)
    try:
        if device.type != "cpu":
            return torch.zeros(shape, dtype=dtype, device=device)
        # Torch would write all the zeros now, seconds for some gigabytes; numpy has the system give
        # pages of zeros when they are first used. Slots begin at cache lines.
        raw = np.zeros(size + 64, np.uint8)
        begin = -raw.ctypes.data % 64
        return torch.from_numpy(raw[begin : begin + size]).view(dtype).view(shape)
    except (RuntimeError, MemoryError, ValueError):
        raise BackendError(
            "SGLC530",
            f"a KV pool of {slots} tokens does not fit into the memory of `{device}`",
            note=f"it needs {size / 2**30:.1f} GiB",
            hint="ask for a smaller pool",
        ) from None
