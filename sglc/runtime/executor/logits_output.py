"""From hidden states to what a step gives: samples, log-probabilities, likeliest ids. In torch, but for an
executor's own kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sglc.runtime.step import F32, I32, U64, Batch, Bool, StepResult, always, unpack_masks

_HEAD_ROWS = 256  # positions whose logits exist at one time

I64 = NDArray[np.int64]
Head = Callable[[Tensor], Tensor]  # hidden states [W, hidden] -> logits [W, vocab]
_NO_PLACES, _NO_FLOATS, _NO_MASKS = np.empty(0, np.int64), np.empty(0, np.float32), np.empty((0, 0), np.bool_)


@dataclass(frozen=True, slots=True)
class SamplerInput:
    """How R rows choose: arrays [R] as in `Step`, and `keys` uint64 [R], which make the noise.

    `masked` [M] are the rows, counted from 0, that choose only what `masks` bool [M, V] allow. To the
    logits of the ids `bias_ids` [B] in the rows `bias_at` [B] the values `bias` [B] are added; no pair
    occurs twice. Before that, those of `repeated_ids` [P] in `repeated_at` [P] are less by `repetition` [P].
    """

    temperature: F32
    top_k: I32
    top_p: F32
    min_p: F32
    no_eos: Bool
    keys: U64
    masked: NDArray[np.integer] = field(default_factory=always(_NO_PLACES))
    masks: Bool = field(default_factory=always(_NO_MASKS))
    bias_at: NDArray[np.integer] = field(default_factory=always(_NO_PLACES))
    bias_ids: NDArray[np.integer] = field(default_factory=always(_NO_PLACES))
    bias: F32 = field(default_factory=always(_NO_FLOATS))
    repeated_at: NDArray[np.integer] = field(default_factory=always(_NO_PLACES))
    repeated_ids: NDArray[np.integer] = field(default_factory=always(_NO_PLACES))
    repetition: F32 = field(default_factory=always(_NO_FLOATS))


# Next tokens int64 [R] and their log-probabilities float32 [R]: of logits [R, V], what of them is allowed, and
# how rows choose.
Draw = Callable[[Tensor, Tensor, SamplerInput], tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True)
class LogitsKernels:
    """What is made of rows of float32 logits: torch's functions, or such as an executor has of its own."""

    draw: Draw
    log_probabilities: Callable[[Tensor, Tensor, Tensor], Tensor]
    likeliest: Callable[[Tensor, int], tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True)
class LogitsOutput:
    """A `StepResult` as tensors, ids int64, the others float32. `done` is behind them (None: no wait)."""

    index: int
    tokens: Tensor
    logprobs: Tensor
    scores: Tensor
    top_ids: Tensor
    top_logprobs: Tensor
    done: torch.Event | None = None

    def result(self) -> StepResult:
        """The same as arrays; waits for a device."""
        if self.done is not None:
            self.done.synchronize()
        return StepResult(
            self.index,
            self.tokens.numpy().astype(np.int32),
            self.logprobs.numpy(),
            self.scores.numpy(),
            self.top_ids.numpy().astype(np.int32),
            self.top_logprobs.numpy(),
        )

    def on_host(self) -> LogitsOutput:
        """A copy in pinned memory, queued behind what the device still does."""

        def pinned(here: Tensor) -> Tensor:
            there = torch.empty(here.shape, dtype=here.dtype, pin_memory=here.numel() > 0)
            return there.copy_(here, non_blocking=True)

        tokens, logprobs, scores = pinned(self.tokens), pinned(self.logprobs), pinned(self.scores)
        top_ids, top_logprobs = pinned(self.top_ids), pinned(self.top_logprobs)
        done = torch.Event(self.tokens.device)
        done.record()
        return LogitsOutput(self.index, tokens, logprobs, scores, top_ids, top_logprobs, done)


def wanted_tokens(batch: Batch) -> I64:
    """The tokens whose logits a step needs, ascending: those sampled from, and those scored."""
    last = batch.starts[1:] - 1
    return np.unique(np.concatenate((last[batch.sample], batch.score_at))).astype(np.int64)


def outcome(
    batch: Batch, wanted: I64, hidden: Tensor, head: Head, eos_ids: Tensor, kernels: LogitsKernels
) -> LogitsOutput:
    """What `batch` gives.

    Args:
        wanted: `wanted_tokens(batch)`. hidden: [W, hidden] of these.
        eos_ids: int64 [E], what rows with `no_eos` may not sample.
        kernels: what logits go through.
    """
    made = _BatchOutput(batch, wanted, hidden, head, eos_ids, kernels)
    if len(batch.score_at):
        made.score()
    made.sample()
    return LogitsOutput(batch.index, made.tokens, made.logprobs, made.scores, *made.tops)


class _BatchOutput:
    """The outcome of a batch while it is filled in."""

    def __init__(
        self, batch: Batch, places: I64, hidden: Tensor, head: Head, eos_ids: Tensor, kernels: LogitsKernels
    ) -> None:
        self._batch, self._hidden, self._head, self._eos_ids = batch, hidden, head, eos_ids
        self._places, self._kernels = places, kernels
        self._device = device = hidden.device
        wanted = len(batch.top_rows) + len(batch.top_scores)
        self.tokens = torch.full((len(batch.rows),), -1, dtype=torch.int64, device=device)
        self.logprobs = torch.zeros(len(batch.rows), device=device)
        self.scores = torch.zeros(len(batch.score_at), device=device)
        self.tops = (
            torch.zeros((wanted, batch.tops), dtype=torch.int64, device=device),
            torch.zeros((wanted, batch.tops), device=device),
        )

    def score(self) -> None:
        batch = self._batch
        owner = np.searchsorted(self._places, batch.score_at)
        for begin, end in _blocks(len(self._places)):
            inside = np.flatnonzero((owner >= begin) & (owner < end))
            if len(inside):
                logits = self._head(self._hidden[begin:end])
                rows = owner[inside] - begin
                ids = self._put(batch.score_ids[inside].astype(np.int64))
                self.scores[self._put(inside)] = self._kernels.log_probabilities(
                    logits.float(), ids, self._put(rows)
                )
                wanted = np.isin(inside, batch.top_scores)
                at = np.searchsorted(batch.top_scores, inside[wanted]) + len(batch.top_rows)
                self._keep_tops(logits, rows[wanted], at)

    def sample(self) -> None:
        batch = self._batch
        sampled = batch.sample.nonzero()[0]
        last = batch.starts[1:] - 1
        for begin, end in _blocks(len(sampled)):
            rows = sampled[begin:end]
            logits = self._head(self._hidden[self._put(np.searchsorted(self._places, last[rows]))])
            choice = self._plain(rows, batch.positions[last[rows]] + 1)
            if len(batch.masked) or len(batch.bias_at) or len(batch.repeated_at):
                choice = self._steered(choice, rows, logits.shape[1])
            target = self._put(rows)
            logits = logits.float()
            chosen = self._kernels.draw(logits, allowed_logits(logits, choice, self._eos_ids), choice)
            self.tokens[target], self.logprobs[target] = chosen
            if len(batch.top_rows):
                wanted = np.isin(rows, batch.top_rows)
                at = np.searchsorted(batch.top_rows, rows[wanted])
                self._keep_tops(logits, np.flatnonzero(wanted), at)

    def _plain(self, rows: NDArray[np.intp], positions: I32) -> SamplerInput:
        """How the rows `rows` choose what comes to `positions`, without masks, biases and penalties."""
        batch = self._batch
        temperature, seeds = batch.temperature[rows], batch.seeds[rows]
        return SamplerInput(
            temperature,
            batch.top_k[rows],
            batch.top_p[rows],
            batch.min_p[rows],
            batch.no_eos[rows],
            noise_keys(seeds, positions) if temperature.any() else seeds,  # without one, nobody looks at them
        )

    def _steered(self, plain: SamplerInput, rows: NDArray[np.intp], vocab: int) -> SamplerInput:
        """The choice of `rows` with what the step brings for them."""
        batch = self._batch
        mask_of = np.full(len(batch.rows), -1)
        mask_of[batch.masked] = np.arange(len(batch.masked))
        masked = np.flatnonzero(mask_of[rows] >= 0)
        biased, repeated = np.isin(batch.bias_at, rows), np.isin(batch.repeated_at, rows)
        return replace(
            plain,
            masked=masked,
            masks=unpack_masks(batch.masks[mask_of[rows[masked]]], vocab) if len(masked) else plain.masks,
            bias_at=np.searchsorted(rows, batch.bias_at[biased]),
            bias_ids=batch.bias_ids[biased],
            bias=batch.bias[biased],
            repeated_at=np.searchsorted(rows, batch.repeated_at[repeated]),
            repeated_ids=batch.repeated_ids[repeated],
            repetition=batch.repetition[repeated],
        )

    def _keep_tops(self, logits: Tensor, rows: NDArray[np.intp], at: NDArray[np.intp]) -> None:
        """The likeliest ids of the rows `rows` of `logits` become the rows `at` of `tops`."""
        if not len(rows):
            return
        target, count = self._put(at), self.tops[0].shape[1]
        found = self._kernels.likeliest(logits[self._put(rows)].float(), count)
        self.tops[0][target], self.tops[1][target] = found

    def _put(self, values: NDArray[np.integer]) -> Tensor:
        return torch.from_numpy(values).to(self._device, non_blocking=True)


def noise_keys(seeds: U64, positions: I32) -> U64:
    """What a row's noise is made of, a function of (seed, position) alone: uint64 [R]."""
    with np.errstate(over="ignore"):
        return _mix(seeds + _mix(positions.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)))


def _mix(x: U64) -> U64:
    """The finaliser of splitmix64: every input bit flips about half of the output bits."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def allowed_logits(logits: Tensor, choice: SamplerInput, eos_ids: Tensor) -> Tensor:
    """What of `logits` rows sample from, before temperature and filters; -inf where they may not.

    A penalty on repetition comes first, then a bias; then what is banned or masked falls away.

    Args:
        eos_ids: int64 [E], what rows with `no_eos` may not choose.
    """
    allowed = logits
    bans = bool(choice.no_eos.any()) and len(eos_ids) > 0
    if bans or len(choice.masked) or len(choice.bias_at) or len(choice.repeated_at):
        allowed = logits.clone()
    # No pair occurs twice in either, so the order within them does not matter.
    if len(choice.repeated_at):
        at, ids = _places(choice.repeated_at, choice.repeated_ids, logits.device)
        values, penalty = allowed[at, ids], torch.from_numpy(choice.repetition).to(logits.device)
        allowed[at, ids] = torch.where(values > 0, values / penalty, values * penalty)
    if len(choice.bias_at):
        at, ids = _places(choice.bias_at, choice.bias_ids, logits.device)
        allowed[at, ids] += torch.from_numpy(choice.bias).to(logits.device)
    if bans:
        banned = torch.from_numpy(np.flatnonzero(choice.no_eos)).to(logits.device)
        allowed[banned[:, None], eos_ids[None, :]] = -torch.inf
    if len(choice.masked):
        masked = torch.from_numpy(choice.masked).to(logits.device)
        masks = torch.from_numpy(choice.masks).to(logits.device)
        allowed[masked] = torch.where(masks, allowed[masked], -torch.inf)
    return allowed


def _places(at: NDArray[np.integer], ids: NDArray[np.integer], device: torch.device) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(at.astype(np.int64)).to(device), torch.from_numpy(ids.astype(np.int64)).to(device)


def _blocks(count: int) -> Iterator[tuple[int, int]]:
    for begin in range(0, count, _HEAD_ROWS):
        yield begin, min(begin + _HEAD_ROWS, count)
