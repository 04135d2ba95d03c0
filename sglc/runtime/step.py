"""What the engine and an executor exchange: one forward pass, and its outcome.

The engine decides on the host with numpy; an executor owns the KV pool and the model. Steps are
launched in order and drained in the same order; an executor may have `depth` steps undrained.

A `Step` says only what changes: an executor keeps the length, the page table and the sampling of
every row, as `sglc.runtime.executor.executor_state.Mirror` defines them. A `Batch` is a step with every
array written out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Flag, auto
from itertools import repeat
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

I32 = NDArray[np.int32]
F32 = NDArray[np.float32]
U64 = NDArray[np.uint64]
Bool = NDArray[np.bool_]
_T = TypeVar("_T")

SAMPLED = -1  # in `Batch.tokens`: the id that the executor sampled last for the same row


_NO_INTEGERS: I32 = np.empty(0, np.int32)
_NO_PAIRS: I32 = np.empty((0, 2), np.int32)
NO_TRIPLES: I32 = np.empty((0, 3), np.int32)


class Filters(Flag):
    """What leaves samples of rows less than all tokens: top_k, top_p without it, min_p without both."""

    NONE = 0
    TOP_P = auto()
    TOP_K = auto()
    MIN_P = auto()
    ALL = TOP_P | TOP_K | MIN_P


_NO_MASKS: I32 = np.empty((0, 0), np.int32)
_NO_FLOATS: F32 = np.empty(0, np.float32)
_NO_TOPS: F32 = np.empty((0, 0), np.float32)


def always(value: _T) -> Callable[[], _T]:
    """Gives `value`, which nobody writes to, as a field's default: a step has a dozen of them."""
    return repeat(value).__next__


def pack_masks(masks: Bool) -> I32:
    """Bits of `masks` bool [..., V]: int32 [..., ceil(V / 32)], token v is bit v % 32 of word v // 32."""
    vocab = masks.shape[-1]
    packed = np.zeros((*masks.shape[:-1], 4 * -(-vocab // 32)), np.uint8)
    packed[..., : -(-vocab // 8)] = np.packbits(masks, axis=-1, bitorder="little")
    return packed.view("<i4")


def pack_ids(at: NDArray[np.integer], ids: I32, rows: int, vocab: int) -> I32:
    """`pack_masks` of `rows` masks, of which number `at` is true for the id beside it in `ids`, and so on."""
    words = np.zeros((rows, -(-vocab // 32)), np.uint32)
    np.bitwise_or.at(words, (at, ids >> 5), np.left_shift(1, ids & 31, dtype=np.uint32, casting="unsafe"))
    return words.view("<i4")


def unpack_masks(words: I32, vocab: int) -> Bool:
    """The masks bool [..., V] whose bits `pack_masks` gives."""
    return np.unpackbits(words.view(np.uint8), axis=-1, count=vocab, bitorder="little").view(np.bool_)


@dataclass(frozen=True, slots=True, eq=False)
class StackTables:
    """What a `ByteAutomaton` needs that calls its rules again (`sglc.ir.grammar.pushdown`).

    Its moves may then be `RETURN`, `LEAVE` and calls, and a row has a stack of states. A token may not go back
    by more than `MOST_LEFT` states, nor have put more than `MOST_PUT` on top of the lowest that it came to; and
    behind it no more than `room` may lie there. `base` and `others` are for stacks of less than `near`.

    Fields:
        calls: int32 [C, 2], what is put on the stack, or -1, and where the rule begins.
        ends: int32 [S], 1 where the text may end, 2 where a rule may that was called.
        room: int32 [S], the most that may lie on the stack there. near: the least that has to be looked at.
        base: int32 [G, ceil(V / 32)], ids that are allowed whatever lies on the stack, as `pack_masks`.
        others: of each of these masks int32 [N], ascending, ids that it depends on.
        group_of: int32 [S], of each state its row of `base`.
        places: what stands for a state, and what lies on its stack, the last one on top, by its number in
            `Opened.state` and `Step.states`; the first S numbers are the states with nothing on it.
    """

    calls: I32
    ends: I32
    room: I32
    near: int
    base: I32
    others: Sequence[I32]
    group_of: I32
    places: Sequence[tuple[int, tuple[int, ...]]]


@dataclass(frozen=True, slots=True, eq=False)
class ByteAutomaton:
    """What text a row's samples may be, for an executor to follow: an automaton over the bytes of tokens.

    Fields:
        classes: uint8 [256], the class of every byte. moves: int32 [S, K], from a state with a class of byte to
            the next state, or -1. Texts begin at state 0.
        is_open: bool [S], the states that a token may end in.
        mask_of: int32 [S], of each state what it allows: a column of `masks`.
        masks: int32 [3, M]: a state that allows just that; whether the text may end there; and the one token
            that is allowed, or -1 for all that lead to an open state.
        stack: what it has beyond that if it calls its rules again; whether texts may end is then said there.
    """

    classes: NDArray[np.uint8]
    moves: I32
    is_open: Bool
    mask_of: I32
    masks: I32
    stack: StackTables | None = None


@dataclass(frozen=True, slots=True)
class Opened:
    """Rows that begin, arrays of [O]. From then on an executor keeps their length, pages and sampling.

    Fields:
        rows: int32, distinct.
        seq_len: int32 tokens whose KV is there already, or will be when the step's copies are made.
        temperature, top_p, min_p: float32; top_k: int32, -1 off. Temperature 0 is greedy.
        seeds: uint64; the noise is a function of (seed, position) alone.
        eos_from: int32, the first position at which end-of-turn ids may be sampled.
        automaton, state: int32, what the executor's `hold` gave for the row's automaton, and where that begins;
            -1 without one. Samples then are what it allows.
        adjusted: int32, 1 if something is added to the row's logits: the values float32 of `added` (offset into
            `rows`, id, 1 if that was sampled before; int32 [3, A]), and from then on for each sample of an id
            -`frequency` float32, and for the first one -`presence` float32.
    """

    rows: I32
    seq_len: I32
    temperature: F32
    top_p: F32
    top_k: I32
    min_p: F32
    seeds: U64
    eos_from: I32
    automaton: I32 = field(default_factory=always(_NO_INTEGERS))
    state: I32 = field(default_factory=always(_NO_INTEGERS))
    adjusted: I32 = field(default_factory=always(_NO_INTEGERS))
    frequency: F32 = field(default_factory=always(_NO_FLOATS))
    presence: F32 = field(default_factory=always(_NO_FLOATS))
    added: I32 = field(default_factory=always(NO_TRIPLES.reshape(3, 0)))
    values: F32 = field(default_factory=always(_NO_FLOATS))


NONE_OPENED = Opened(
    rows=_NO_INTEGERS,
    seq_len=_NO_INTEGERS,
    temperature=_NO_FLOATS,
    top_p=_NO_FLOATS,
    top_k=_NO_INTEGERS,
    min_p=_NO_FLOATS,
    seeds=np.empty(0, np.uint64),
    eos_from=_NO_INTEGERS,
)


@dataclass(frozen=True, slots=True, eq=False)
class TokenTree:
    """Of a row whose ids branch behind its first `base`: the ids behind those that it has with this step.

    They have slots and places as in any row, one after the other, but id base + i stands at position
    base + depths[i], and is seen by the ids base + i .. base + until[i] - 1 alone (int32 [n] each).
    `row` is an offset into the step's rows. Such a row does not sample.
    """

    row: int
    base: int
    depths: I32
    until: I32


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOptions:
    """What rows ask for beyond plain samples; the same in a step and in its batch.

    Fields:
        trees: of the rows whose ids branch, in ascending order.
        score_at: int32 [S] token offsets (0 <= x < T) whose logits score `score_ids` int32 [S].
        masked: int32 [M] offsets into `rows`, of rows that sample only what `masks` allow, int32
            [M, ceil(V / 32)] as of `pack_masks`.
        bias_at: int32 [B] offsets into `rows`: `bias` float32 [B], finite, is added to the logits of the
            ids `bias_ids` int32 [B] before masks and filters. No id occurs twice in a row.
        repeated_at: int32 [P] offsets into `rows`: the logits of the ids `repeated_ids` int32 [P], those of
            prompt and text, are divided by `repetition` float32 [P], the row's penalty, where they are above 0,
            and multiplied where not, before a bias. Where an executor keeps what is added, they come when the
            row is opened, and it counts each sample in.
        tops: how many of the likeliest ids are reported for the samples of the rows `top_rows` int32 [A]
            (offsets into `rows`) and for the scores `top_scores` int32 [C] (offsets into `score_at`).

    Log-probabilities are those of the model's own distribution, whatever bias and masks say.
    """

    trees: tuple[TokenTree, ...] = ()
    score_at: I32 = field(default_factory=always(_NO_INTEGERS))
    score_ids: I32 = field(default_factory=always(_NO_INTEGERS))
    masked: I32 = field(default_factory=always(_NO_INTEGERS))
    masks: I32 = field(default_factory=always(_NO_MASKS))
    bias_at: I32 = field(default_factory=always(_NO_INTEGERS))
    bias_ids: I32 = field(default_factory=always(_NO_INTEGERS))
    bias: F32 = field(default_factory=always(_NO_FLOATS))
    repeated_at: I32 = field(default_factory=always(_NO_INTEGERS))
    repeated_ids: I32 = field(default_factory=always(_NO_INTEGERS))
    repetition: F32 = field(default_factory=always(_NO_FLOATS))
    tops: int = 0
    top_rows: I32 = field(default_factory=always(_NO_INTEGERS))
    top_scores: I32 = field(default_factory=always(_NO_INTEGERS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Step(StepOptions):
    """T tokens of R rows, and what changes with them. Arrays are never written after the launch.

    Order of effects:
        1. The length and the sampling of `opened` rows are set, their page tables emptied.
        2. `pages` are entered into the page tables.
        3. `copies` are made.
        4. Row r takes n tokens, at positions seq_len[r] .. seq_len[r] + n - 1, the KV of position p in
           slot table[r, p // page_size] * page_size + p % page_size. The first `decoding` rows take one
           token, the id sampled last for the row; the others the next ones of `ids`.
        5. Attention: a token sees every earlier token of its row, those of this step too; `trees` says
           where positions and sight differ from that. Where `sample`,
           an id is sampled from the row's last logits, for position seq_len[r] + n; it is no end-of-turn
           id before eos_from[r].
        6. seq_len[r] += n, and the sampled id is the row's last.

    Fields:
        index: counts launched steps from 0.
        rows: int32 [R] row numbers, distinct, those that decode first.
        decoding: how many rows decode.
        lengths: int32 [R - decoding] tokens of the other rows, at least one each.
        ids: int32 [sum(lengths)] their ids, row after row.
        opened: rows that begin with this step.
        pages: int32 [W, 3] (row, index in its page table, page), in the order of effect.
        copies: int32 [C, 3] (source page, destination page, tokens): KV of the first `tokens` slots.
        sample: bool [R] sample a next token.
        states: int32 [A, 2] (row, state): where the automata of rows are that took `ids` of their sample.
    """

    index: int
    rows: I32
    decoding: int
    sample: Bool
    lengths: I32 = field(default_factory=always(_NO_INTEGERS))
    ids: I32 = field(default_factory=always(_NO_INTEGERS))
    opened: Opened = NONE_OPENED
    pages: I32 = field(default_factory=always(NO_TRIPLES))
    copies: I32 = field(default_factory=always(NO_TRIPLES))
    states: I32 = field(default_factory=always(_NO_PAIRS))

    @property
    def starts(self) -> I32:
        """Offsets int32 [R + 1] into the step's tokens: row r has tokens starts[r] : starts[r + 1]."""
        starts = np.arange(self.rows.size + 1, dtype=np.int32)
        np.cumsum(self.lengths, out=starts[self.decoding + 1 :])
        starts[self.decoding + 1 :] += self.decoding
        return starts


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch(StepOptions):
    """A step written out: T tokens of R rows. Row r owns tokens starts[r] : starts[r + 1].

    They are the last ones of its sequence. Order of effects: copies, then the KV of all T tokens, then
    attention. So a token sees every earlier token of its row, those of this step too, but for `trees`. A
    page id p and an offset o name KV slot p * page_size + o.

    Fields:
        index: counts launched steps from 0.
        rows: int32 [R] row numbers, distinct; an executor keeps the last sampled id by row number.
        starts: int32 [R + 1] offsets into the token arrays.
        tokens: int32 [T] ids, or `SAMPLED`.
        positions: int32 [T] positions in the sequence, from 0.
        slots: int32 [T] where each token's KV is written.
        pages: int32 [R, K] page table: page of positions k * page_size and up; -1 behind the end.
        copies: int32 [C, 3] (source page, destination page, tokens): KV of the first `tokens`
            slots, copied before anything else.
        sample: bool [R] sample a next token from the row's last logits.
        temperature, top_p, min_p: float32 [R]; top_k: int32 [R], -1 off. Temperature 0 is greedy.
        seeds: uint64 [R] the noise is a function of (seed, position) alone.
        no_eos: bool [R] end-of-turn ids may not be sampled.
    """

    index: int
    rows: I32
    starts: I32
    tokens: I32
    positions: I32
    slots: I32
    pages: I32
    copies: I32
    sample: Bool
    temperature: F32
    top_p: F32
    top_k: I32
    min_p: F32
    seeds: U64
    no_eos: Bool


@dataclass(frozen=True, slots=True)
class StepResult:
    """tokens: int32 [R] sampled ids, -1 where `sample` is off. logprobs: float32 [R] of those ids
    (natural log, before temperature and filters, 0 where off). scores: float32 [S] log-probabilities.
    top_ids: int32 [A + C, tops] the likeliest ids, best first, of `top_rows`, then of `top_scores`;
    top_logprobs: float32 [A + C, tops] of those ids. follows: int32 [R], how many ids a row's automaton lets
    follow its sample, up to 2; 2 where the executor keeps none."""

    index: int
    tokens: I32
    logprobs: F32
    scores: F32
    top_ids: I32 = field(default_factory=always(_NO_MASKS))
    top_logprobs: F32 = field(default_factory=always(_NO_TOPS))
    follows: I32 | None = None


class Executor(Protocol):
    """Runs steps on one device."""

    page_size: int
    pages: int  # pages of the pool; ids 0 .. pages - 1
    depth: int  # steps that may be launched before the oldest is drained; 1 is synchronous
    vocab_size: int
    trees: bool  # whether rows may branch: else no step has `trees`
    keeps: bool  # whether it keeps automata, and what is added to logits: else no row is opened with them

    def hold(self, automaton: ByteAutomaton) -> int | None:
        """What rows are opened with that follow `automaton`, until `release`; None: it cannot."""

    def release(self, automaton: ByteAutomaton) -> None:
        """Ends what one `hold` began; no step from now on has such a row."""

    def launch(self, step: Step) -> Any:
        """Begin `step` behind all earlier ones; gives a ticket."""

    def ready(self, ticket: Any) -> bool:
        """Whether `drain` would not wait."""

    def drain(self, ticket: Any) -> StepResult:
        """Wait for the oldest undrained step, which `ticket` stands for."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds that a step takes: its products, by the number of tokens that it is padded to (ascending, and
    not in proportion: reading the weights takes its time, and tiles are full or not); key_s for each key that
    a decoding row reads; pair_s for each key that a token of a prompt sees.

    A step with prompts takes at most `stretch` times one of decode alone: 2, less what this model of costs
    misses. Programs that go on together are spread over some steps by that, and from then on stay spread.
    """

    products_s: tuple[tuple[int, float], ...]
    key_s: float
    pair_s: float
    stretch: float = 1.6
