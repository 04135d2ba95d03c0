"""State of the rows in flight as numpy arrays, and how a step is built from it.

Row numbers are reused; (row, generation) is not. `seq_len` counts tokens whose KV a launched step
writes; `tokens[row, seq_len]` is the next input: an id, or `SAMPLED` while only the executor has it.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from sglc.ir.sampling import Sampling
from sglc.runtime.step import F32, I32, SAMPLED, U64, Bool, Step

_NO_COPIES: I32 = np.empty((0, 3), np.int32)


@dataclass(frozen=True, slots=True)
class Chunk:
    """The next `tokens` ids of a row's prompt. `scored` are (position, id) pairs to score, if reached."""

    row: int
    tokens: int
    scored: tuple[tuple[int, int], ...] = ()


class Rows:
    """`count` rows of at most `max_len` tokens, all memory allocated at once."""

    def __init__(self, count: int, max_len: int, page_size: int) -> None:
        self.page_size = page_size
        self.tokens: I32 = np.zeros((count, max_len + 1), np.int32)
        self.table: I32 = np.full((count, -(-max_len // page_size)), -1, np.int32)
        self.generation: I32 = np.zeros(count, np.int32)
        self.active: Bool = np.zeros(count, np.bool_)
        self.samples: Bool = np.zeros(count, np.bool_)  # the row decodes after its prompt
        self.constrained: Bool = np.zeros(count, np.bool_)  # a mask says what may be sampled
        self.biased: Bool = np.zeros(count, np.bool_)  # something is added to some logits
        self.stepwise: Bool = np.zeros(count, np.bool_)  # each token has to be known before the next
        self.tops: I32 = np.zeros(count, np.int32)  # likeliest ids to report at every place with a score
        self.seq_len: I32 = np.zeros(count, np.int32)
        self.prompt_len: I32 = np.zeros(count, np.int32)
        self.end: I32 = np.zeros(count, np.int32)  # `seq_len` at which nothing is left to launch
        self.held: I32 = np.zeros(count, np.int32)  # pages in `table`
        self.owed: I32 = np.zeros(count, np.int32)  # pages reserved, not taken yet
        self.last_step: I32 = np.full(count, -1, np.int32)
        self.group: I32 = np.zeros(count, np.int32)
        self.min_tokens: I32 = np.zeros(count, np.int32)
        self.temperature: F32 = np.zeros(count, np.float32)
        self.top_p: F32 = np.ones(count, np.float32)
        self.top_k: I32 = np.full(count, -1, np.int32)
        self.min_p: F32 = np.zeros(count, np.float32)
        self.seeds: U64 = np.zeros(count, np.uint64)
        self._free = list(range(count))

    @property
    def free(self) -> int:
        """Rows nobody uses."""
        return len(self._free)

    def open(self, ids: I32, known: int, end: int, pages: I32, owed: int) -> int:
        """A row with prompt `ids` int32 [n], whose first `known` have KV, the full pages in `pages`."""
        row = heapq.heappop(self._free)
        self.active[row] = True
        self.samples[row] = False
        self.constrained[row] = False
        self.biased[row] = False
        self.stepwise[row] = False
        self.tops[row] = 0
        self.tokens[row, : ids.size] = ids
        self.seq_len[row] = known
        self.prompt_len[row] = ids.size
        self.end[row] = end
        self.held[row] = pages.size
        self.owed[row] = owed
        self.table[row, : pages.size] = pages
        self.last_step[row] = -1
        self.group[row] = -1
        self.min_tokens[row] = 0
        return row

    def sample_with(self, row: int, sampling: Sampling, seed: int, group: int, constrained: bool) -> None:
        """The row decodes after its prompt. Equal `group` numbers are kept side by side in a step."""
        penalised = bool(sampling.frequency_penalty or sampling.presence_penalty)
        self.samples[row] = True
        self.constrained[row] = constrained
        self.biased[row] = penalised or bool(sampling.logit_bias)
        self.stepwise[row] = constrained or penalised
        self.tops[row] = sampling.top_logprobs
        self.group[row] = group
        self.min_tokens[row] = sampling.min_tokens
        self.temperature[row] = sampling.temperature
        self.top_p[row] = sampling.top_p
        self.top_k[row] = sampling.top_k
        self.min_p[row] = sampling.min_p
        self.seeds[row] = np.uint64(seed & 0xFFFF_FFFF_FFFF_FFFF)

    def close(self, row: int) -> None:
        """Nobody uses the row any more; results that still arrive for it belong to an old generation."""
        assert self.active[row], f"row {row} is closed twice"
        self.active[row] = False
        self.generation[row] += 1
        self.table[row] = -1
        heapq.heappush(self._free, row)

    def decoding(self) -> I32:
        """Rows with a token to take next: int32 [n], members of a group side by side."""
        ready = self.active & self.samples & (self.seq_len >= self.prompt_len) & (self.seq_len < self.end)
        rows = np.flatnonzero(ready).astype(np.int32)
        return rows[np.argsort(self.group[rows], kind="stable")]

    def known(self, rows: I32) -> I32:
        """Those of `rows` int32 [n] that need not wait until the host knows their next input."""
        waits = self.stepwise[rows] & (self.tokens[rows, self.seq_len[rows]] == SAMPLED)
        known: I32 = rows[~waits]
        return known

    def add_pages(self, rows: I32, pages: I32) -> None:
        """One reserved page more for each of `rows` int32 [n] (a row may occur again, its pages in order)."""
        for row, page in zip(rows.tolist(), pages.tolist(), strict=True):
            self.table[row, self.held[row]] = page
            self.held[row] += 1
            self.owed[row] -= 1
            assert self.owed[row] >= 0, f"row {row} takes more pages than were reserved"

    def drop_last_page(self, row: int) -> None:
        """The row's last page is not its own any more; it takes another one when it goes on."""
        self.held[row] -= 1
        self.table[row, self.held[row]] = -1

    def advance(self, step: Step) -> None:
        """`step` is launched: its tokens count, and the next input of rows that sample is on the device."""
        self.seq_len[step.rows] += np.diff(step.starts)
        self.last_step[step.rows] = step.index
        sampled = step.rows[step.sample]
        self.tokens[sampled, self.seq_len[sampled]] = SAMPLED

    def build(self, index: int, decode: I32, chunks: list[Chunk], copies: I32) -> Step:
        """The step that decodes one token of each row of `decode` int32 [n] and passes `chunks` through.

        All pages are in `table`. `copies` int32 [c, 3] goes into the step as it is.
        """
        size = self.page_size
        rows, positions, lengths = decode, self.seq_len[decode], np.ones(decode.size, np.int32)
        owner = decode
        if chunks:
            chunk_rows = np.array([c.row for c in chunks], np.int32)
            chunk_lengths = np.array([c.tokens for c in chunks], np.int32)
            rows = np.concatenate((decode, chunk_rows))
            lengths = np.concatenate((lengths, chunk_lengths))
            owner = np.repeat(rows, lengths)
            spans = [np.arange(c.tokens, dtype=np.int32) + self.seq_len[c.row] for c in chunks]
            positions = np.concatenate((positions, *spans))
        starts = np.zeros(rows.size + 1, np.int32)
        np.cumsum(lengths, out=starts[1:])
        after = self.seq_len[rows] + lengths
        score_at, score_ids = self._scores(starts[decode.size :], chunks)
        return Step(
            index=index,
            rows=rows,
            starts=starts,
            tokens=self.tokens[owner, positions],
            positions=positions,
            slots=self.table[owner, positions // size] * size + positions % size,
            pages=self.table[rows, : -(-int(after.max()) // size)],
            copies=copies if copies.size else _NO_COPIES,
            sample=self.samples[rows] & (after >= self.prompt_len[rows]),
            temperature=self.temperature[rows],
            top_p=self.top_p[rows],
            top_k=self.top_k[rows],
            min_p=self.min_p[rows],
            seeds=self.seeds[rows],
            no_eos=after - self.prompt_len[rows] < self.min_tokens[rows],
            score_at=score_at,
            score_ids=score_ids,
        )

    def _scores(self, starts: I32, chunks: list[Chunk]) -> tuple[I32, I32]:
        at: list[int] = []
        ids: list[int] = []
        for chunk, start in zip(chunks, starts.tolist(), strict=False):
            if chunk.scored:
                first = int(self.seq_len[chunk.row])
                at += [start + position - first for position, _ in chunk.scored]
                ids += [token for _, token in chunk.scored]
        return np.array(at, np.int32), np.array(ids, np.int32)
