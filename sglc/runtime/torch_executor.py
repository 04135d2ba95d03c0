"""Runs steps with torch, on the CPU or on one CUDA device: copies, forward pass, sampling.

Owns the KV pool and the last sampled id of every row. On the CPU `launch` does all the work. On CUDA
it only queues work on the current stream, so the order of launches is the order of effects.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sglc.errors import BackendError
from sglc.runtime.attention import PagedAttention
from sglc.runtime.attention_plan import plan_attention
from sglc.runtime.model import Llama
from sglc.runtime.model_config import ModelConfig
from sglc.runtime.sampler import Choice, choose, likeliest, log_probabilities, noise_keys
from sglc.runtime.step import I32, SAMPLED, Step, StepResult

_HEAD_ROWS = 256  # positions whose logits exist at one time


@dataclass(frozen=True, slots=True)
class Ticket:
    """A launched step: what it will give, and the event behind it (None: done already)."""

    index: int
    tokens: Tensor
    logprobs: Tensor
    scores: Tensor
    top_ids: Tensor
    top_logprobs: Tensor
    done: torch.Event | None


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
        with torch.inference_mode():
            self._model = Llama(config, weights)
            self._pool = _pool(config, pages * page_size, dtype, self._device)
            ids = config.eos_ids if eos_ids is None else eos_ids
            self._eos_ids = torch.tensor(list(ids), dtype=torch.int64, device=self._device)
            self._last = torch.zeros(64, dtype=torch.int64, device=self._device)

    @property
    def kv_bytes(self) -> int:
        """Size of the KV pool."""
        return self._pool.numel() * self._pool.element_size()

    def launch(self, step: Step) -> Ticket:
        """Run `step` (CUDA: queue it)."""
        with torch.inference_mode():
            if len(step.copies):
                self._copy(step.copies)
            hidden, places = self._forward(step)
            wanted = len(step.top_rows) + len(step.top_scores)
            top_ids = torch.zeros((wanted, step.tops), dtype=torch.int64, device=self._device)
            tops = top_ids, torch.zeros((wanted, step.tops), device=self._device)
            scores = self._score(hidden, step, places, tops)
            tokens, logprobs = self._sample(hidden, step, places, tops)
            return self._ticket(step.index, (tokens, logprobs, scores, *tops))

    def drain(self, ticket: Ticket) -> StepResult:
        """The outcome of the oldest undrained step."""
        if ticket.done is not None:
            ticket.done.synchronize()
        return StepResult(
            ticket.index,
            ticket.tokens.numpy().astype(np.int32),
            ticket.logprobs.numpy(),
            ticket.scores.numpy(),
            ticket.top_ids.numpy().astype(np.int32),
            ticket.top_logprobs.numpy(),
        )

    def _copy(self, copies: I32) -> None:
        counts = copies[:, 2].astype(np.int64)
        offsets = np.concatenate([np.arange(n) for n in counts])
        source, target = (
            self._put(np.repeat(copies[:, column].astype(np.int64) * self.page_size, counts) + offsets)
            for column in (0, 1)
        )
        self._pool.index_copy_(1, target, self._pool.index_select(1, source))

    def _forward(self, step: Step) -> tuple[Tensor, NDArray[np.int64]]:
        """Hidden states of the distinct tokens that are sampled from or scored, and those tokens' offsets."""
        last = step.starts[1:] - 1
        wanted = np.unique(np.concatenate((last[step.sample], step.score_at))).astype(np.int64)
        c = self.config
        plan = plan_attention(step.starts, step.positions, step.pages, self.page_size)
        attention = PagedAttention(plan, c.heads, c.kv_heads, c.head_dim, self.page_size, self._model.like)
        arrays = [step.tokens.astype(np.int64), step.positions.astype(np.int64), step.slots.astype(np.int64)]
        rows = np.repeat(step.rows.astype(np.int64), np.diff(step.starts))
        places = wanted
        if plan.order is not None:
            arrays = [values[plan.order] for values in arrays]
            rows = rows[plan.order]
            place_of = np.empty_like(plan.order)
            place_of[plan.order] = np.arange(len(plan.order))
            places = place_of[wanted]
        tokens, positions, slots = (self._put(values) for values in arrays)
        if (step.tokens == SAMPLED).any():
            self._reserve(int(step.rows.max()))
            tokens = torch.where(tokens == SAMPLED, self._last[self._put(rows)], tokens)
        hidden = self._model.forward(tokens, positions, slots, self._pool, attention, self._put(places))
        return hidden, wanted

    def _score(
        self, hidden: Tensor, step: Step, places: NDArray[np.int64], tops: tuple[Tensor, Tensor]
    ) -> Tensor:
        """float32 [S]. The likeliest ids of scores go into their part of `tops`."""
        scores = torch.zeros(len(step.score_at), device=self._device)
        if not len(step.score_at):
            return scores
        owner = np.searchsorted(places, step.score_at)
        for begin, end in _blocks(len(places)):
            inside = np.flatnonzero((owner >= begin) & (owner < end))
            if len(inside):
                logits = self._model.logits(hidden[begin:end])
                of_score = logits[self._put(owner[inside] - begin)]
                ids = self._put(step.score_ids[inside].astype(np.int64))
                scores[self._put(inside)] = log_probabilities(of_score, ids)
                wanted = np.isin(inside, step.top_scores)
                at = np.searchsorted(step.top_scores, inside[wanted]) + len(step.top_rows)
                self._keep_tops(of_score, np.flatnonzero(wanted), at, tops)
        return scores

    def _keep_tops(
        self, logits: Tensor, rows: NDArray[np.intp], at: NDArray[np.intp], tops: tuple[Tensor, Tensor]
    ) -> None:
        """The likeliest ids of the rows `rows` of `logits` become the rows `at` of `tops`."""
        if not len(rows):
            return
        target = self._put(at)
        tops[0][target], tops[1][target] = likeliest(logits[self._put(rows)], tops[0].shape[1])

    def _sample(
        self, hidden: Tensor, step: Step, places: NDArray[np.int64], tops: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """int64 [R] and float32 [R]; -1 and 0 where nothing is sampled. `tops` as in `_score`."""
        tokens = torch.full((len(step.rows),), -1, dtype=torch.int64, device=self._device)
        logprobs = torch.zeros(len(step.rows), device=self._device)
        sampled = np.flatnonzero(step.sample)
        last = step.starts[1:] - 1
        mask_of = np.full(len(step.rows), -1)
        mask_of[step.masked] = np.arange(len(step.masked))
        self._reserve(int(step.rows.max(initial=0)))
        for begin, end in _blocks(len(sampled)):
            rows = sampled[begin:end]
            logits = self._model.logits(hidden[self._put(np.searchsorted(places, last[rows]))])
            masked = np.flatnonzero(mask_of[rows] >= 0)
            biased = np.isin(step.bias_at, rows)
            choice = Choice(
                step.temperature[rows],
                step.top_k[rows],
                step.top_p[rows],
                step.min_p[rows],
                step.no_eos[rows],
                noise_keys(step.seeds[rows], step.positions[last[rows]] + 1),
                masked,
                step.masks[mask_of[rows[masked]]],
                np.searchsorted(rows, step.bias_at[biased]),
                step.bias_ids[biased],
                step.bias[biased],
            )
            target = self._put(rows)
            tokens[target], logprobs[target] = choose(logits, choice, self._eos_ids)
            wanted = np.isin(rows, step.top_rows)
            at = np.searchsorted(step.top_rows, rows[wanted])
            self._keep_tops(logits, np.flatnonzero(wanted), at, tops)
            self._last[self._put(step.rows[rows].astype(np.int64))] = tokens[target]
        return tokens, logprobs

    def _ticket(self, index: int, made: tuple[Tensor, Tensor, Tensor, Tensor, Tensor]) -> Ticket:
        if self._device.type == "cpu":
            return Ticket(index, *made, None)
        host = []
        for here in made:
            host.append(torch.empty(here.shape, dtype=here.dtype, pin_memory=here.numel() > 0))
            host[-1].copy_(here, non_blocking=True)
        done = torch.Event(self._device)
        done.record()
        return Ticket(index, host[0], host[1], host[2], host[3], host[4], done)

    def _reserve(self, row: int) -> None:
        if row >= len(self._last):
            self._last = torch.cat((self._last, self._last.new_zeros(row + 1)))

    def _put(self, values: NDArray[np.integer]) -> Tensor:
        return torch.from_numpy(values).to(self._device, non_blocking=True)


def _pool(config: ModelConfig, slots: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[layers, slots, 2 * kv_heads, head_dim]. Zeros, so that padding reads finite numbers."""
    shape = (config.layers, slots, 2 * config.kv_heads, config.head_dim)
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


def _blocks(count: int) -> Iterator[tuple[int, int]]:
    for begin in range(0, count, _HEAD_ROWS):
        yield begin, min(begin + _HEAD_ROWS, count)
