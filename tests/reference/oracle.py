"""An executor without a model, which checks what a model would only suffer from.

Its "KV" of a token is (id, position, hash of the history up to it). A launch reads every row's
history back through the page table and refuses, with AssertionError, one that is not what was
written there; so it does with slots that a step in flight still touches. What is sampled is a
function of (history, sampling, seed, position, bias, mask): `Oracle.continuation` gives it without any
scheduler.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from sglc.ir.sampling import Sampling
from sglc.runtime.constraints.protocol import Constraint
from sglc.runtime.executor.executor_state import ExecutorState
from sglc.runtime.scheduler.samples import bias_of
from sglc.runtime.step import F32, I32, SAMPLED, U64, Batch, Bool, Step, StepResult, TokenTree, unpack_masks
from tests.reference.kept_rows import KeptRows

_ODD = np.uint64(0x9E3779B97F4A7C15)
_A = np.uint64(0xBF58476D1CE4E5B9)
_B = np.uint64(0x94D049BB133111EB)
_NO_SCORES: F32 = np.empty(0, np.float32)


def _mix(values: U64) -> U64:
    """A bijective scramble (the finaliser of splitmix64) of uint64 [n]."""
    values = (values ^ (values >> np.uint64(30))) * _A
    values = (values ^ (values >> np.uint64(27))) * _B
    return values ^ (values >> np.uint64(31))


def terms_of(tokens: I32, positions: I32) -> U64:
    """What a token adds to the hash of its history: uint64 [n]. Depends on the position, so order counts."""
    return _mix((tokens.astype(np.uint64) << np.uint64(32)) + positions.astype(np.uint64) + _ODD)


def _bias_hash(added: Mapping[int, float]) -> np.uint64:
    """What a bias adds to a row's hash; 0 without one. A penalty on repeated ids is one of those below 0."""
    ids = np.array(list(added), np.int32)
    values = np.array(list(added.values()), np.float32)
    terms = _mix((ids.astype(np.uint64) << np.uint64(32)) + values.view(np.uint32).astype(np.uint64) + _B)
    return np.uint64(terms.sum(dtype=np.uint64))


def _branched(tree: TokenTree, terms: U64) -> U64:
    """Hash of what each id behind a tree's base sees, uint64 [n], from the `terms` of all ids of its row."""
    assert tree.depths.size == tree.until.size, "a tree's arrays differ in length"
    places = np.arange(tree.until.size)
    sees = (places <= places[:, None]) & (tree.until > places[:, None])
    hashes: U64 = sees.astype(np.uint64) @ terms[tree.base :] + terms[: tree.base].sum(dtype=np.uint64)
    return hashes


def history_hashes(ids: Sequence[int]) -> U64:
    """Hash of the history up to and with each of `ids`, a sequence from its start: uint64 [n]."""
    tokens = np.array(ids, np.int32)
    return np.cumsum(terms_of(tokens, np.arange(tokens.size, dtype=np.int32)), dtype=np.uint64)


@dataclass(frozen=True, slots=True)
class _Noise:
    """What of a row's sampling its next token depends on, arrays of [n]."""

    seeds: U64
    temperature: F32
    top_p: F32
    top_k: I32
    min_p: F32


class Oracle:
    """Implements `Executor`.

    Args:
        depth: steps that may be launched before the oldest is drained.
        eos_ids: what `no_eos` rows may not sample.
        trees: rows may branch.
        token_bytes: given, it keeps automata and what is added to logits by itself.
    """

    def __init__(
        self,
        *,
        pages: int,
        page_size: int,
        depth: int = 1,
        vocab_size: int = 29,
        eos_ids: Sequence[int] = (),
        trees: bool = True,
        token_bytes: Sequence[bytes] = (),
    ) -> None:
        self.page_size = page_size
        self.pages = pages
        self.depth = depth
        self.vocab_size = vocab_size
        self.eos_ids = tuple(eos_ids)
        self.trees = trees
        self.kept_rows = KeptRows(token_bytes, self.eos_ids)
        self.keeps = bool(token_bytes)
        self.hold, self.release = self.kept_rows.hold, self.kept_rows.release
        self.mirror = ExecutorState(page_size)
        self.extended = 0  # tokens of all steps
        slots = pages * page_size
        self._ids: I32 = np.full(slots, -1, np.int32)
        self._at: I32 = np.full(slots, -1, np.int32)
        self._hash: U64 = np.zeros(slots, np.uint64)
        self._touched: I32 = np.full(slots, -1, np.int32)  # the last step that read or wrote the slot
        self._writer: I32 = np.full(slots, -1, np.int32)  # the last step that wrote it
        self._last: I32 = np.full(0, -1, np.int32)  # last sampled id by row number
        self._results: deque[StepResult] = deque()
        self._next = 0
        self._drained = -1

    def launch(self, step: Step) -> int:
        """Run `step`; the result is handed out by `drain`."""
        assert step.index == self._next, "a step is launched out of order"
        assert len(self._results) < self.depth, "more steps in flight than the depth allows"
        self._next += 1
        assert self.trees or not step.trees, "a row branches"
        batch = self.mirror.expand(step)
        self._check(batch)
        if self.keeps:
            batch = self.kept_rows.written(step, batch)
        self.extended += batch.tokens.size
        self._copy(batch)
        tokens = self._write(batch)
        hashes = self._read(batch, tokens)
        result = self._sample(batch, hashes)
        if self.keeps:
            result = replace(result, follows=self.kept_rows.sampled(batch.rows, result.tokens))
        self._results.append(result)
        return step.index

    def _check(self, step: Batch) -> None:
        assert step.rows.size == np.unique(step.rows).size, "a row occurs twice in a step"
        assert (np.diff(step.starts) > 0).all(), "a row without tokens"
        assert step.sample[step.masked].all(), "a mask for a row that does not sample"

    def ready(self, ticket: int) -> bool:
        """Every step is over."""
        return True

    def drain(self, ticket: int) -> StepResult:
        """The oldest step's result."""
        result = self._results.popleft()
        assert ticket == result.index, "steps are drained out of order"
        self._drained = ticket
        return result

    def _copy(self, step: Batch) -> None:
        size = self.page_size
        if not step.copies.size:
            return
        counts = step.copies[:, 2]
        assert counts.min() > 0, "a copy of nothing"
        assert counts.max() < size, "a copy of a whole page"
        offsets = np.concatenate([np.arange(count) for count in counts.tolist()])
        source = np.repeat(step.copies[:, 0], counts) * size + offsets
        target = np.repeat(step.copies[:, 1], counts) * size + offsets
        self._claim(step, target)
        assert (self._writer[source] < step.index).all(), "a copy of what the same step writes"
        for field in (self._ids, self._at, self._hash):
            field[target] = field[source]
        self._touched[source] = step.index
        self._writer[target] = step.index

    def _claim(self, step: Batch, slots: I32) -> None:
        assert slots.min() >= 0, "a token without a page"
        assert np.unique(slots).size == slots.size, "a slot is written twice in a step"
        assert (self._touched[slots] <= self._drained).all(), "a slot is written that a step in flight touches"
        self._touched[slots] = step.index

    def _write(self, step: Batch) -> I32:
        row_of = np.repeat(step.rows, np.diff(step.starts))
        if row_of.max() >= self._last.size:
            grown: I32 = np.full(int(row_of.max()) + 1, -1, np.int32)
            grown[: self._last.size] = self._last
            self._last = grown
        tokens = np.where(step.tokens == SAMPLED, self._last[row_of], step.tokens)
        assert tokens.min() >= 0, "a row's sampled id is used before it has one"
        assert tokens.max() < self.vocab_size, "a token outside the vocabulary"
        self._claim(step, step.slots)
        self._ids[step.slots] = tokens
        self._at[step.slots] = step.positions
        self._writer[step.slots] = step.index
        return tokens

    def _read(self, step: Batch, tokens: I32) -> U64:
        """Hash of the history of every token of the step, uint64 [T], after checking it."""
        hashes: U64 = np.zeros(step.tokens.size, np.uint64)
        starts = step.starts.tolist()
        bounds = list(pairwise(starts))
        trees = {tree.row: tree for tree in step.trees}
        lengths: list[int] = []
        for i, (first, last) in enumerate(bounds):
            tree = trees.get(i)
            length = int(step.positions[last - 1]) + 1 if tree is None else tree.base + tree.depths.size
            old = length - (last - first)
            lengths.append(length)
            assert length <= step.pages.shape[1] * self.page_size, "a row is longer than its page table"
            where = np.arange(length)
            pages = step.pages[i, where // self.page_size]
            assert pages.min() >= 0, "a row's page table has a hole"
            behind = step.pages[i, -(-length // self.page_size) :]
            assert (behind == -1).all(), "a row's page table goes on behind its end"
            slots = pages * self.page_size + where % self.page_size
            assert (slots[old:] == step.slots[first:last]).all(), "slots and page table differ"
            at = where.astype(np.int32)
            if tree is not None:
                at[tree.base :] = tree.base + tree.depths
            assert (self._at[slots] == at).all(), "a row reads a slot of another position"
            terms = terms_of(self._ids[slots], at)
            history = np.cumsum(terms, dtype=np.uint64)
            if tree is not None:
                history[tree.base :] = _branched(tree, terms)
            assert (history[:old] == self._hash[slots[:old]]).all(), "a row reads another history than its own"
            self._hash[slots[old:]] = history[old:]
            hashes[first:last] = history[old:]
            self._touched[slots] = step.index
        # A step's own tokens are for their row only: others may read them from the next step on.
        owner: I32 = np.full(self._ids.size, -1, np.int32)
        owner[step.slots] = np.repeat(step.rows, np.diff(step.starts))
        for i in range(step.rows.size):
            length = lengths[i]
            pages = step.pages[i, : -(-length // self.page_size)]
            slots = (pages[:, None] * self.page_size + np.arange(self.page_size)).ravel()[:length]
            other = (owner[slots] >= 0) & (owner[slots] != step.rows[i])
            assert not other.any(), "a row reads what another row writes in the same step"
        return hashes

    def _sample(self, step: Batch, hashes: U64) -> StepResult:
        ends = step.starts[1:] - 1
        noise = _Noise(step.seeds, step.temperature, step.top_p, step.top_k, step.min_p)
        assert step.masks.shape == (step.masked.size, -(-self.vocab_size // 32) if step.masked.size else 0)
        masks: list[tuple[int, Bool]] = []
        if step.masked.size:
            masks = list(zip(step.masked.tolist(), unpack_masks(step.masks, self.vocab_size), strict=True))
        histories = hashes[ends]
        biased = histories + self._biases(step)
        drawn = self._draw(biased, step.positions[ends], noise, step.no_eos, masks)
        tokens = np.where(step.sample, drawn, np.int32(-1))
        logprobs = np.where(step.sample, self._logprobs(histories, drawn), np.float32(0))
        self._last[step.rows[step.sample]] = tokens[step.sample]
        scores = _NO_SCORES
        if step.score_at.size:
            scores = self._logprobs(hashes[step.score_at], step.score_ids)
        if not step.tops:
            return StepResult(step.index, tokens, logprobs, scores)
        assert step.sample[step.top_rows].all(), "likeliest ids of a row that does not sample"
        places = np.concatenate((ends[step.top_rows], step.score_at[step.top_scores]))
        top_ids, top_logprobs = self._tops(hashes[places], step.tops)
        return StepResult(step.index, tokens, logprobs, scores, top_ids, top_logprobs)

    def _biases(self, step: Batch) -> U64:
        """What biases add to the rows' hashes: uint64 [R]."""
        assert step.bias_at.size == step.bias_ids.size == step.bias.size
        assert step.repeated_at.size == step.repeated_ids.size == step.repetition.size
        if not step.bias_at.size and not step.repeated_at.size:
            return np.zeros(step.rows.size, np.uint64)
        added: list[dict[int, float]] = [{} for _ in step.rows]
        for at, token, value in zip(
            step.bias_at.tolist(), step.bias_ids.tolist(), step.bias.tolist(), strict=True
        ):
            assert step.sample[at], "a bias for a row that does not sample"
            assert 0 <= token < self.vocab_size, "a bias outside the vocabulary"
            assert token not in added[at], "two biases for one id"
            added[at][token] = value
        for at, token, value in zip(
            step.repeated_at.tolist(), step.repeated_ids.tolist(), step.repetition.tolist(), strict=True
        ):
            assert step.sample[at], "a penalty for a row that does not sample"
            assert ~token not in added[at], "two penalties for one id"
            added[at][~token] = value
        return np.array([_bias_hash(values) for values in added], np.uint64)

    def _tops(self, hashes: U64, count: int) -> tuple[I32, F32]:
        """The likeliest ids int32 [n, count] after each history, and their log-probabilities."""
        ids = np.arange(self.vocab_size, dtype=np.int32)
        every: F32 = np.array([self._logprobs(value, ids) for value in hashes], np.float32)
        every = every.reshape(hashes.size, self.vocab_size)
        best = np.argsort(-every, axis=1, kind="stable")[:, :count].astype(np.int32)
        return best, np.take_along_axis(every, best, axis=1)

    def _draw(
        self, hashes: U64, positions: I32, noise: _Noise, no_eos: Bool, masks: Sequence[tuple[int, Bool]]
    ) -> I32:
        warm = noise.temperature > 0
        if warm.any():
            filters = noise.temperature.view(np.uint32).astype(np.uint64)
            filters = filters * _A + noise.top_p.view(np.uint32).astype(np.uint64)
            filters = filters * _A + noise.min_p.view(np.uint32).astype(np.uint64)
            filters = filters * _A + noise.top_k.astype(np.int64).view(np.uint64)
            key = _mix(noise.seeds + _ODD) ^ _mix(positions.astype(np.uint64) + _A) ^ filters
            hashes = hashes + np.where(warm, key, np.uint64(0))
        drawn = (_mix(hashes) % np.uint64(self.vocab_size)).astype(np.int32)
        for row, mask in masks:
            allowed = np.flatnonzero(mask & ~(no_eos[row] & np.isin(np.arange(mask.size), self.eos_ids)))
            assert allowed.size, "a row that may sample nothing"
            drawn[row] = allowed[drawn[row] % allowed.size]
        for _ in self.eos_ids if no_eos.any() else ():
            banned = no_eos & np.isin(drawn, self.eos_ids)
            drawn = np.where(banned, (drawn + 1) % self.vocab_size, drawn).astype(np.int32)
        return drawn

    def _logprobs(self, hashes: U64 | np.uint64, ids: I32) -> F32:
        mixed = _mix(hashes ^ _mix(ids.astype(np.uint64) + _B))
        return -((mixed % np.uint64(1000)).astype(np.float32) + np.float32(1)) / np.float32(100)

    # -- the truth, without pages and steps

    def scores(self, prompt: Sequence[int], choice: Sequence[int]) -> tuple[float, ...]:
        """What `score` has to give for `choice` after `prompt`."""
        ids = np.array([*prompt, *choice], np.int32)
        history = history_hashes([*prompt, *choice])
        return tuple(self._logprobs(history[len(prompt) - 1 : -1], ids[len(prompt) :]).tolist())

    def likeliest(self, ids: Sequence[int], count: int) -> list[tuple[int, float]]:
        """The `count` likeliest ids after `ids`."""
        top_ids, top_logprobs = self._tops(history_hashes(ids)[-1:], count)
        return [*zip(top_ids[0].tolist(), top_logprobs[0].tolist(), strict=True)]

    def continuation(
        self, prompt: Sequence[int], sampling: Sampling, seed: int, constraint: Constraint | None = None
    ) -> tuple[tuple[int, ...], tuple[float, ...], str]:
        """(ids, logprobs, finish) of a sample of `prompt`, stop strings aside."""
        stops = set(sampling.stop_token_ids) | (set() if sampling.ignore_eos else set(self.eos_ids))
        noise = _Noise(
            np.array([seed & 0xFFFF_FFFF_FFFF_FFFF], np.uint64),
            np.array([sampling.temperature], np.float32),
            np.array([sampling.top_p], np.float32),
            np.array([sampling.top_k], np.int32),
            np.array([sampling.min_p], np.float32),
        )
        ids = list(prompt)
        state = 0 if constraint is None else constraint.start
        history = history_hashes(ids)[-1:]
        made: list[int] = []
        logprobs: list[float] = []
        while len(made) < sampling.max_tokens:
            position = np.array([len(ids) - 1], np.int32)
            early = np.array([len(made) < sampling.min_tokens])
            masks: list[tuple[int, Bool]] = []
            if constraint is not None:
                mask = constraint.mask(state)
                if constraint.accepting(state) and not early[0]:
                    mask |= np.isin(np.arange(self.vocab_size), list(stops))
                masks = [(0, mask)]
            counts = {token: made.count(token) for token in made}
            repeated = set(ids) if sampling.repetition_penalty != 1 else ()
            biased = history + _bias_hash(
                {**bias_of(sampling, counts), **{~token: sampling.repetition_penalty for token in repeated}}
            )
            drawn = self._draw(biased, position, noise, early, masks)
            token = int(drawn[0])
            if token in stops and not early[0]:
                return tuple(made), tuple(logprobs), "stop"
            made.append(token)
            logprobs.append(float(self._logprobs(history, drawn)[0]))
            history = history + terms_of(drawn, np.array([len(ids)], np.int32))
            ids.append(token)
            if constraint is not None:
                state = constraint.advance(state, token)
                if constraint.done(state):
                    return tuple(made), tuple(logprobs), "stop"
        return tuple(made), tuple(logprobs), "length"
