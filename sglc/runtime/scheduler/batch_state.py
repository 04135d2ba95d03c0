"""State of the rows in flight as numpy arrays, and how a step is built from it.

Row numbers are reused; (row, generation) is not. `seq_len` counts tokens whose KV a launched step
writes, `made` the sampled ids that the host knows: it may be behind by the steps in flight. What a step
costs here does not depend on Python: no loop goes over the rows that decode.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np

from sglc.ir.made_often import made_often
from sglc.ir.sampling import Sampling
from sglc.runtime.choice_trie import ChoiceTrie
from sglc.runtime.step import F32, I32, NO_TRIPLES, NONE_OPENED, U64, Bool, Opened, Step, TokenTree

STOPS = 8  # stop ids that are looked for in all rows at once; of rows with more, one row after the other
_NEVER = 2**30  # steps
_NO_SCORES: tuple[I32, I32] = np.empty(0, np.int32), np.empty(0, np.int32)


@made_often
@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """The next `tokens` ids of a row's prompt. `scored` are (place, id) pairs to score, if reached.

    Behind `base`, they are those of `trie`, if there is one.
    """

    row: int
    tokens: int
    scored: tuple[tuple[int, int], ...] = ()
    trie: ChoiceTrie | None = None
    base: int = 0


# Of chunks, without a call for each of them.
ROW, TOKENS, SCORED, TRIE = map(attrgetter, ("row", "tokens", "scored", "trie"))


class BatchState:
    """`count` rows of at most `max_len` tokens, all memory allocated at once."""

    def __init__(self, count: int, max_len: int, page_size: int) -> None:
        self.page_size = page_size
        self.tokens: I32 = np.zeros((count, max_len + 1), np.int32)
        # Of sampled ids, where `tokens` has them.
        self.logprobs: F32 = np.zeros((count, max_len + 1), np.float32)
        self.table: I32 = np.full((count, -(-max_len // page_size)), -1, np.int32)
        self.generation: I32 = np.zeros(count, np.int32)
        self.active: Bool = np.zeros(count, np.bool_)
        self.samples: Bool = np.zeros(count, np.bool_)  # the row decodes after its prompt
        self.constrained: Bool = np.zeros(count, np.bool_)  # a mask says what may be sampled
        self.biased: Bool = np.zeros(count, np.bool_)  # something is added to some logits
        self.stepwise: Bool = np.zeros(count, np.bool_)  # each token has to be known before the next
        self.late: Bool = np.zeros(count, np.bool_)  # what may be sampled next is not known yet
        self.automaton: I32 = np.full(count, -1, np.int32)  # that the executor follows for the row
        self.state: I32 = np.full(count, -1, np.int32)  # where that is when the row begins
        self.adjusted: I32 = np.zeros(count, np.int32)  # something is added to the row's logits by the executor
        self.frequency: F32 = np.zeros(count, np.float32)  # taken off them for each sample of an id
        self.presence: F32 = np.zeros(count, np.float32)  # and for the first one
        self.repetition: F32 = np.ones(count, np.float32)  # what logits of ids that are there are divided by
        self.looked_at: Bool = np.zeros(count, np.bool_)  # somebody wants each token when it comes
        self.tops: I32 = np.zeros(count, np.int32)  # likeliest ids to report at every place with a score
        self.seq_len: I32 = np.zeros(count, np.int32)
        self.prompt_len: I32 = np.zeros(count, np.int32)
        self.begun: I32 = np.zeros(count, np.int32)  # where the sampled ids begin
        self.made: I32 = np.zeros(count, np.int32)  # sampled ids that are known and kept
        self.forced: Bool = np.zeros(count, np.bool_)  # the last ids of the row's prompt are a run, see `force`
        self.least: I32 = np.zeros(count, np.int32)  # `seq_len` that the row surely comes to
        self.end: I32 = np.zeros(count, np.int32)  # `seq_len` at which nothing is left to launch
        self.held: I32 = np.zeros(count, np.int32)  # pages in `table`
        self.reserved: I32 = np.zeros(count, np.int32)  # pages reserved, not taken yet
        self.shared_pages: I32 = np.zeros(count, np.int32)  # first pages of the row that others hold too
        self.last_step: I32 = np.full(count, -1, np.int32)
        self.min_tokens: I32 = np.zeros(count, np.int32)
        self.max_tokens: I32 = np.zeros(count, np.int32)
        self.stops: I32 = np.full((count, STOPS), -1, np.int32)  # ids that end the row, -1 behind them
        self.temperature: F32 = np.zeros(count, np.float32)
        self.top_p: F32 = np.ones(count, np.float32)
        self.top_k: I32 = np.full(count, -1, np.int32)
        self.min_p: F32 = np.zeros(count, np.float32)
        self.seeds: U64 = np.zeros(count, np.uint64)
        self.watched = 0  # rows that are looked at
        self.guided = 0  # rows whose samples are held to a constraint: no other is `forced` or `late`
        self._many_stops: dict[int, frozenset[int]] = {}  # of rows with more than `STOPS` of them
        self._free = list(range(count))
        self._all: Bool = np.ones(count, np.bool_)
        self._numbers: I32 = np.arange(self.table.shape[1], dtype=np.int32)
        self._opened: list[int] = []  # since the last step
        self._added: dict[int, tuple[Mapping[int, float], Collection[int]]] = {}  # of those, see `adjust`
        self._begun_with: list[tuple[int, I32]] = []  # rows that opened since the last step, and their pages
        self._entries: list[I32] = []  # into the table behind those, since the last step
        self._order: I32 | None = None  # the rows that decode; None: to be found anew
        self.steering = False  # some of them are constrained, biased or have likeliest ids to report
        self._waiting = False  # some of them are stepwise
        self._steps_left = 0  # until the first of them has nothing left to launch, at least
        self.steps_paged = 0  # until the first of them needs a page, at least

    @property
    def free(self) -> int:
        """Rows nobody uses."""
        return len(self._free)

    # -- a row

    def open(self, ids: I32, known: int, end: int, pages: I32, reserved: int) -> int:
        """A row with prompt `ids` int32 [n], whose first `known` have KV, the full pages in `pages`."""
        row = heapq.heappop(self._free)
        self.active[row] = True
        self.samples[row] = False
        self.constrained[row] = False
        self.biased[row] = False
        self.stepwise[row] = False
        self.forced[row] = False
        self.late[row] = False
        self.automaton[row] = -1
        self.adjusted[row] = 0
        self.repetition[row] = 1
        self.tops[row] = 0
        self.tokens[row, : ids.size] = ids
        self.seq_len[row] = known
        self.prompt_len[row] = ids.size
        self.begun[row] = ids.size
        self.made[row] = 0
        self.least[row] = end
        self.end[row] = end
        self.held[row] = pages.size
        self.reserved[row] = reserved
        self.shared_pages[row] = 0
        self.last_step[row] = -1
        self.min_tokens[row] = 0
        self._opened.append(row)
        if pages.size:
            self.table[row, : pages.size] = pages
            self._begun_with.append((row, pages))
        return row

    def sample_with(
        self,
        row: int,
        sampling: Sampling,
        seed: int,
        *,
        stops: Collection[int],
        constrained: bool,
        biased: bool,
        watched: bool,
    ) -> None:
        """The row decodes after its prompt, up to an id of `stops`.

        `constrained` or `biased`: by what steps bring.
        """
        penalised = biased and sampling.penalised
        self.samples[row] = True
        self.constrained[row] = constrained
        self.biased[row] = biased
        self.stepwise[row] = constrained or penalised
        self.tops[row] = sampling.top_logprobs
        self.repetition[row] = sampling.repetition_penalty
        self.min_tokens[row] = sampling.min_tokens
        self.max_tokens[row] = sampling.max_tokens
        self.stops[row] = -1
        if len(stops) > STOPS:
            self._many_stops[row] = frozenset(stops)
        elif stops:
            self.stops[row, : len(stops)] = sorted(stops)
        self.temperature[row] = sampling.temperature
        self.top_p[row] = sampling.top_p
        self.top_k[row] = sampling.top_k
        self.min_p[row] = sampling.min_p
        self.seeds[row] = np.uint64(seed & 0xFFFF_FFFF_FFFF_FFFF)
        if watched or constrained or penalised:
            self.looked_at[row] = True
            self.watched += 1
        if constrained:
            self.guided += 1

    def follow(self, row: int, automaton: int, state: int) -> None:
        """The executor holds the row's samples to an automaton, which begins at `state`."""
        self.automaton[row], self.state[row] = automaton, state
        self.guided += 1

    def adjust(
        self, row: int, added: Mapping[int, float], seen: Collection[int], penalties: tuple[float, float]
    ) -> None:
        """The executor adds `added` to the logits of ids, and takes off penalties as `Opened` says.

        `seen` are the ids that were sampled before.
        """
        self.adjusted[row] = 1
        self.frequency[row], self.presence[row] = penalties
        self._added[row] = added, seen

    def hold_back(self, row: int) -> None:
        """The row takes no token until it is not `late` any more."""
        self.late[row] = self._waiting = True

    def resume(self, row: int, logprobs: tuple[float, ...]) -> None:
        """The last ids of the row's prompt are those that its sample has so far, with their `logprobs`."""
        begun = int(self.prompt_len[row]) - len(logprobs)
        self.logprobs[row, begun : begun + len(logprobs)] = logprobs
        self.begun[row] = begun
        self.made[row] = len(logprobs)

    def force(self, row: int, ids: Sequence[int], length: int, *, ends: bool) -> None:
        """The row goes on with `ids` behind those it has, as with a prompt of `length` ids.

        If they end the row, nothing is sampled behind them.
        """
        first = int(self.begun[row] + self.made[row])
        self.tokens[row, first : first + len(ids)] = ids
        self.prompt_len[row] = length
        self.forced[row] = True
        if ends:
            self.samples[row] = False
            self.end[row] = length
        self._order = None

    def enter(self, row: int, logprobs: Sequence[float]) -> None:
        """The ids that the row was forced to go on with are known and kept, with their `logprobs`."""
        first = int(self.begun[row] + self.made[row])
        self.logprobs[row, first : first + len(logprobs)] = logprobs
        self.made[row] += len(logprobs)
        self.forced[row] = False

    def close(self, row: int) -> None:
        """Nobody uses the row any more; results that still arrive for it belong to an old generation."""
        assert self.active[row], f"row {row} is closed twice"
        self.active[row] = False
        self.generation[row] += 1
        self.table[row] = -1
        self.watched -= int(self.looked_at[row])
        self.looked_at[row] = False
        if self.guided and (self.constrained[row] or self.automaton[row] >= 0):
            self.guided -= 1
        self._many_stops.pop(row, None)
        self._order = None
        heapq.heappush(self._free, row)

    def sampled(self, row: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """The sampled ids that are known and kept, and their log-probabilities."""
        first = int(self.begun[row])
        last = first + int(self.made[row])
        return tuple(self.tokens[row, first:last].tolist()), tuple(self.logprobs[row, first:last].tolist())

    def take(self, rows: I32, tokens: I32, logprobs: F32) -> tuple[Bool, Bool]:
        """Enter the next sampled ids int32 [n] and their log-probabilities float32 [n] of `rows` int32 [n].

        Gives bool [n] twice: the id ends the row and is not kept; the row has its `max_tokens`.
        """
        made = self.made[rows]
        stopped: Bool = (self.stops[rows] == tokens[:, None]).any(axis=1)
        if self._many_stops:
            for i in [i for i, row in enumerate(rows.tolist()) if row in self._many_stops]:
                stopped[i] = int(tokens[i]) in self._many_stops[int(rows[i])]
        stopped &= made >= self.min_tokens[rows]
        # An id that ends a row is written too, behind those that count.
        at = self.begun[rows] + made
        self.tokens[rows, at] = tokens
        self.logprobs[rows, at] = logprobs
        made += ~stopped
        self.made[rows] = made
        return stopped, made == self.max_tokens[rows]

    # -- pages

    def add_pages(self, rows: I32, counts: I32, pages: I32) -> None:
        """The next `counts` int32 [n] of `pages` go to each of the distinct `rows` int32 [n]."""
        owner = np.repeat(rows, counts)
        before = np.repeat(np.cumsum(counts, dtype=np.int32) - counts, counts)
        index = self.held[owner] + np.arange(owner.size, dtype=np.int32) - before
        self.table[owner, index] = pages
        self.held[rows] += counts
        self.reserved[rows] -= counts
        assert (self.reserved[rows] >= 0).all(), "a row takes more pages than were reserved"
        self._entries.append(np.stack((owner, index, pages), axis=1))

    def drop_last_page(self, row: int) -> None:
        """The row's last page is not its own any more; it takes another one when it goes on."""
        self.held[row] -= 1
        self.table[row, self.held[row]] = -1

    def short(self, decode: I32) -> I32:
        """Those of `decode` int32 [n] that have no page for their next token."""
        return decode[self.seq_len[decode] >= self.held[decode] * self.page_size]

    # -- a step

    def decoding(self) -> I32:
        """Rows with a token to take next: int32 [n], ascending. Not to be written."""
        if self._order is not None:
            return self._order
        ready = self.active & self.samples & (self.seq_len >= self.prompt_len) & (self.seq_len < self.end)
        rows = np.flatnonzero(ready).astype(np.int32)
        self._order = rows
        self.steering = bool((self.constrained[rows] | self.biased[rows] | (self.tops[rows] > 0)).any())
        self._waiting = bool((self.stepwise[rows] | self.late[rows]).any())
        self._steps_left = int((self.end[rows] - self.seq_len[rows]).min(initial=_NEVER))
        self.steps_paged = self._steps_of(rows)
        return rows

    def _steps_of(self, rows: I32) -> int:
        """Steps of `rows` that their pages are enough for."""
        return int((self.held[rows] * self.page_size - self.seq_len[rows]).min(initial=_NEVER))

    def known(self, rows: I32) -> I32:
        """Those of `rows`, from `decoding`, whose next input, and mask, need not be waited for."""
        if not self._waiting:
            return rows
        waits = self.stepwise[rows] & (self.seq_len[rows] >= self.begun[rows] + self.made[rows])
        return rows[~(waits | self.late[rows])]

    def build(self, index: int, decode: I32, chunks: list[PrefillChunk], copies: I32) -> Step:
        """The step that decodes one token of each row of `decode` int32 [n] and passes `chunks` through.

        All pages are in `table`. `copies` int32 [c, 3] goes into the step as it is.
        """
        if self.steps_paged <= 0 and self._order is not None:
            self.steps_paged = self._steps_of(self._order)
        pages = self._take_entries()
        if not chunks:
            return Step(
                index=index, rows=decode, decoding=decode.size, sample=self._all[: decode.size],
                pages=pages, copies=copies,
            )  # fmt: skip
        chunk_rows = np.array([*map(ROW, chunks)], np.int32)
        lengths = np.array([*map(TOKENS, chunks)], np.int32)
        first = self.seq_len[chunk_rows]
        spans = zip(chunk_rows.tolist(), first.tolist(), (first + lengths).tolist(), strict=True)
        ends = self.samples[chunk_rows] & (first + lengths >= self.prompt_len[chunk_rows])
        score_at, score_ids = self._scores(decode.size, chunks) if any(map(SCORED, chunks)) else _NO_SCORES
        return Step(
            index=index,
            rows=np.concatenate((decode, chunk_rows)),
            decoding=decode.size,
            sample=np.concatenate((self._all[: decode.size], ends)),
            lengths=lengths,
            ids=np.concatenate([self.tokens[row, begin:end] for row, begin, end in spans]),
            opened=self._take_opened() if self._opened else NONE_OPENED,
            pages=pages,
            copies=copies,
            trees=self._trees(decode.size, chunks) if any(map(TRIE, chunks)) else (),
            score_at=score_at,
            score_ids=score_ids,
        )

    def advance(self, step: Step) -> None:
        """`step` is launched: its tokens count."""
        self.seq_len[step.rows[: step.decoding]] += 1
        self.last_step[step.rows] = step.index
        self._steps_left -= 1
        self.steps_paged -= 1
        if self._steps_left <= 0:
            self._order = None
        if step.lengths.size:
            rows = step.rows[step.decoding :]
            self.seq_len[rows] += step.lengths
            if (self.seq_len[rows] >= self.prompt_len[rows]).any():
                self._order = None

    def forget_changes(self) -> None:
        """What no step has told the executor yet will never be told: all rows are closed."""
        assert not self.active.any()
        self._opened.clear()
        self._begun_with.clear()
        self._entries.clear()
        self._added.clear()

    def _take_entries(self) -> I32:
        """What is new in the table: int32 [n, 3], rows, places and pages."""
        entries = [*self._entries]
        if self._begun_with:
            rows, paths = zip(*self._begun_with, strict=True)
            sizes = [path.size for path in paths]
            places = np.concatenate([self._numbers[:size] for size in sizes])
            owners = np.repeat(np.array(rows, np.int32), sizes)
            entries.insert(0, np.stack((owners, places, np.concatenate(paths)), axis=1))
        self._begun_with.clear()
        self._entries.clear()
        return np.concatenate(entries) if entries else NO_TRIPLES

    def _take_opened(self) -> Opened:
        rows = np.array(self._opened, np.int32)
        self._opened.clear()
        begin = self.begun[rows] + self.min_tokens[rows]
        automaton = np.where(self.samples[rows], self.automaton[rows], np.int32(-1))
        # Held to an automaton, and without an id that ends it, a row may not end its turn.
        endless = (automaton >= 0) & (self.stops[rows, 0] < 0)
        return Opened(
            rows=rows,
            seq_len=self.seq_len[rows],
            temperature=self.temperature[rows],
            top_p=self.top_p[rows],
            top_k=self.top_k[rows],
            min_p=self.min_p[rows],
            seeds=self.seeds[rows],
            eos_from=np.where(endless, np.int32(_NEVER), begin),
            automaton=automaton,
            state=self.state[rows],
            adjusted=self.adjusted[rows],
            frequency=self.frequency[rows],
            presence=self.presence[rows],
            **(self._take_added(rows.tolist()) if self._added else {}),
        )

    def _take_added(self, rows: list[int]) -> dict[str, Any]:
        """What is added from the start to the logits of those of `rows` that say so."""
        columns: list[tuple[int, int, int]] = []
        values: list[float] = []
        for at, row in enumerate(rows):
            added, seen = self._added.pop(row, ({}, ()))
            known = set(seen)
            columns += [(at, token, token in known) for token in added]
            values += added.values()
        added_to = np.array(columns, np.int32).reshape(-1, 3).T.copy()
        return {"added": added_to, "values": np.array(values, np.float32)}

    def _trees(self, before: int, chunks: list[PrefillChunk]) -> tuple[TokenTree, ...]:
        """The rows of `chunks` that branch, behind `before` other rows."""
        trees = []
        for row, chunk in enumerate(chunks, before):
            if chunk.trie is None or not chunk.trie.branches:
                continue
            count = int(self.seq_len[chunk.row]) + chunk.tokens - chunk.base
            if count > 0:
                trees.append(TokenTree(row, chunk.base, chunk.trie.depths[:count], chunk.trie.until[:count]))
        return tuple(trees)

    def _scores(self, before: int, chunks: list[PrefillChunk]) -> tuple[I32, I32]:
        """What `chunks` score, their tokens behind `before` others."""
        at: list[int] = []
        ids: list[int] = []
        for chunk in chunks:
            if chunk.scored:
                first = int(self.seq_len[chunk.row])
                at += [before + place - first for place, _ in chunk.scored]
                ids += [token for _, token in chunk.scored]
            before += chunk.tokens
        return np.array(at, np.int32), np.array(ids, np.int32)
