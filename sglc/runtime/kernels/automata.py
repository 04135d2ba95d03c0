"""Byte automata on the device: what may follow each state, and the state behind a token.

A sampled token leads its row's automaton on without the host: the sampler's last kernel reads the token's bytes
one by one. What a state allows is a row of bits, made once for all states that allow the same. Of an automaton
that calls its rules again (`pushdown_masks`), each row has bits of its own.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from sglc.runtime.step import I32, ByteAutomaton, StackTables

# The words of an automaton: how many classes of bytes it has; where the mask of each state stands, behind the
# others; where what it has for its stack does, 0 without one; how many states; the class of every byte; of each
# state, and one more that nothing leads out of, the next one by class.
KINDS, _MASKS_AT, STACK_AT, STATES = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
CLASSES = tl.constexpr(4)
MOVES = tl.constexpr(4 + 256)
# Behind `STACK_AT`: where each of these begins, counted from there; and the depth from which all ids are tried.
# The others of a state that allows one id begin at -1.
ENDS_AT, ROOM_AT, OTHERS_AT, OTHERS_END_AT, CALLS_AT, IDS_AT, NEAR = (tl.constexpr(at) for at in range(7))
STACK_HEADER = tl.constexpr(7)
_WORDS = 32  # of a mask, that one program makes
_MOST_MASKS = 2048  # of one automaton


@triton.jit
def mask_at(automata, automaton, state, live):
    """The rows of the masks of `state`, as tensors or numbers; `live` says which of them there are."""
    masks = tl.load(automata + automaton + _MASKS_AT, mask=live, other=0)
    return tl.load(automata + automaton + masks + state, mask=live, other=0)


@triton.jit
def state_behind(automata, automaton, state, token, begins, spelled):
    """The state that `token` leads to."""
    at = tl.load(begins + token)
    end = tl.load(begins + token + 1)
    own = automata + automaton
    kinds = tl.load(own + KINDS)
    while at < end:
        kind = tl.load(own + CLASSES + tl.load(spelled + at).to(tl.int32))
        state = tl.load(own + MOVES + state * kinds + kind)
        at += 1
    return state


@triton.jit(do_not_specialize=["automaton", "first", "count", "dead"])
def _make_masks(
    automata, automaton, states, begins, spelled, eos, masks, follow,
    first, count, dead, eos_count, vocab, mask_stride, WORDS: tl.constexpr,
):  # fmt: skip
    """Bits of the mask `first` + m for each of the `states` int32 [3, count]: a state, whether a text may end
    there, and the one token that is allowed, or -1. follow [M]: how many ids may, besides those of `eos`."""
    m = tl.program_id(0)
    word = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    bit = tl.arange(0, 32)
    ids = word[:, None] * 32 + bit[None, :]
    inside = ids < vocab
    at = tl.load(begins + ids, mask=inside, other=0)
    end = tl.load(begins + ids + 1, mask=inside, other=0)
    own = automata + automaton
    kinds = tl.load(own + KINDS)
    state = at * 0 + tl.load(states + m)
    spells = at < end
    runs = spells
    while tl.max(tl.max(runs.to(tl.int32), 1), 0) > 0:
        byte = tl.load(spelled + at, mask=runs, other=0).to(tl.int32)
        kind = tl.load(own + CLASSES + byte, mask=runs, other=0)
        state = tl.where(runs, tl.load(own + MOVES + state * kinds + kind, mask=runs, other=0), state)
        at += runs.to(tl.int32)
        runs = (at < end) & (state != dead)
    opens = tl.load(states + 3 * count + state, mask=spells, other=0) != 0
    allowed = (spells & (at >= end) & opens).to(tl.int32)
    only = tl.load(states + 2 * count + m)
    if only >= 0:
        allowed = (ids == only).to(tl.int32)
    tl.atomic_add(follow + first + m, tl.sum(tl.sum(allowed, 1), 0))
    if tl.load(states + count + m) != 0:
        for each in range(eos_count):
            allowed = allowed | (ids == tl.load(eos + each)).to(tl.int32)
    bits = tl.sum(allowed << bit[None, :], 1)
    tl.store(masks + (first + m).to(tl.int64) * mask_stride + word, bits, mask=word * 32 < vocab)


@dataclass(frozen=True, slots=True)
class AutomataTables:
    """What kernels read of automata.

    words: int32, the tables of all of them. masks: int32 [M, ceil(V / 32)], token v is bit v % 32 of word
    v // 32. follow: int32 [M], how many ids a mask allows besides those that end a turn. begins: int32 [V + 1],
    and spelled: uint8, the bytes of every token, one after the other.
    """

    words: Tensor
    masks: Tensor
    follow: Tensor
    begins: Tensor
    spelled: Tensor


class _Room:
    """Which parts of a tensor are taken."""

    def __init__(self, first: int, size: int) -> None:
        self._free = [(first, size)]

    def take(self, count: int) -> int | None:
        """Where `count` places in a row begin that are now taken; None if there are none."""
        for i, (at, size) in enumerate(self._free):
            if size >= count:
                self._free[i : i + 1] = [(at + count, size - count)] if size > count else []
                return at
        return None

    def give_back(self, at: int, count: int) -> None:
        """What `take` gave is free again."""
        self._free = sorted([*self._free, (at, count)])
        joined = self._free[:1]
        for begin, size in self._free[1:]:
            last, had = joined[-1]
            if last + had == begin:
                joined[-1] = last, had + size
            else:
                joined.append((begin, size))
        self._free = joined


@dataclass(slots=True)
class _Resident:
    """An automaton on the device: its words and masks, and how many rows' requests use it."""

    automaton: ByteAutomaton  # whose identity stays its own while it is here
    at: int
    words: int
    first_mask: int
    masks: int
    mask_of: I32
    users: int = 0


class Automata:
    """The automata of one executor. Those that nobody uses stay until others need their room.

    Args:
        token_bytes: of every id, index = id; those behind them are padding.
        own_masks: rows of the masks that steps bring along, the first ones; and as many behind them, from
            `first_own` on, for rows whose masks depend on their stacks.
        words, masks: room for automata, in words and in masks.
    """

    def __init__(
        self, token_bytes: Sequence[bytes], vocab: int, eos_ids: Tensor, own_masks: int, words: int, masks: int
    ) -> None:
        device = eos_ids.device
        lengths = np.zeros(vocab, np.int64)
        lengths[: len(token_bytes)] = [len(data) for data in token_bytes[:vocab]]
        begins = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
        spelled = np.frombuffer(b"".join(token_bytes[:vocab]) or b"\0", np.uint8)
        row = (-(-vocab // 32) + 3) // 4 * 4  # rows begin at 16 bytes
        self.first_own, first = own_masks, 2 * own_masks
        self.tables = AutomataTables(
            torch.zeros(words, dtype=torch.int32, device=device),
            torch.zeros(first + masks, row, dtype=torch.int32, device=device),
            torch.full((first + masks,), 2, dtype=torch.int32, device=device),
            torch.from_numpy(begins).to(device),
            torch.from_numpy(spelled.copy()).to(device),
        )
        self._vocab = vocab
        self._eos_ids = eos_ids
        self._words, self._masks = _Room(0, words), _Room(first, masks)
        self._most_words = words // 4
        self._resident: OrderedDict[int, _Resident] = OrderedDict()  # by identity; the last used last
        self._placed: dict[int, _Resident] = {}  # by where their words begin

    def hold(self, automaton: ByteAutomaton) -> int | None:
        """Where the words of an automaton begin, until `release`; None: there is no room for it."""
        key = id(automaton)
        if key not in self._resident:
            made = self._load(automaton)
            if made is None:
                return None
            self._resident[key] = self._placed[made.at] = made
        self._resident.move_to_end(key)
        self._resident[key].users += 1
        return self._resident[key].at

    def release(self, automaton: ByteAutomaton) -> None:
        """Ends what one `hold` began."""
        self._resident[id(automaton)].users -= 1

    def mask_of(self, held: int, state: int) -> int:
        """The mask of a state of the automaton that `hold` gave `held` for."""
        return int(self._placed[held].mask_of[state])

    def stack_of(self, held: int) -> StackTables | None:
        """What that automaton has if it calls its rules again."""
        return self._placed[held].automaton.stack

    def _load(self, automaton: ByteAutomaton) -> _Resident | None:
        states, kinds = automaton.moves.shape
        stack = _stack_words(automaton)
        words = MOVES.value + (states + 1) * (kinds + 1) + stack.size
        masks = automaton.masks.shape[1]
        if words > self._most_words or masks > _MOST_MASKS:
            return None
        at, first = self._take(self._words, words), self._take(self._masks, masks)
        if at is None or first is None:
            for room, place, count in ((self._words, at, words), (self._masks, first, masks)):
                if place is not None:
                    room.give_back(place, count)
            return None
        mask_of = np.append(first + automaton.mask_of, first).astype(np.int32)  # what is dead is never asked
        dead = np.full((1, kinds), states, np.int32)
        moves = np.concatenate((np.where(automaton.moves == -1, np.int32(states), automaton.moves), dead))
        masks_at = MOVES.value + moves.size
        laid: I32 = np.concatenate(
            ([kinds, masks_at, masks_at + mask_of.size if stack.size else 0, states], automaton.classes,
             moves.ravel(), mask_of, stack)
        ).astype(np.int32)  # fmt: skip
        device = self.tables.words.device
        self.tables.words[at : at + words].copy_(torch.from_numpy(laid))
        made = _Resident(automaton, at, words, first, masks, mask_of)
        if automaton.stack is not None:
            base, counts = _base_masks(automaton, automaton.stack)
            self.tables.masks[first : first + masks, : base.shape[1]].copy_(torch.from_numpy(base))
            self.tables.follow[first : first + masks].copy_(torch.from_numpy(counts))
            return made
        opens = np.append(automaton.is_open, False)
        given = torch.from_numpy(np.concatenate((automaton.masks.ravel(), opens)).astype(np.int32)).to(device)
        self.tables.follow[first : first + masks] = 0
        tables = self.tables
        _make_masks[(masks, triton.cdiv(triton.cdiv(self._vocab, 32), _WORDS))](
            tables.words, at, given, tables.begins, tables.spelled, self._eos_ids, tables.masks, tables.follow,
            first, masks, states, len(self._eos_ids), self._vocab, tables.masks.stride(0),
            WORDS=_WORDS, num_warps=4,
        )  # fmt: skip
        return made

    def _take(self, room: _Room, count: int) -> int | None:
        """Room for `count`, if need be that of automata that nobody uses, the oldest first."""
        while (at := room.take(count)) is None:
            unused = next((key for key, one in self._resident.items() if not one.users), None)
            if unused is None:
                return None
            gone = self._resident.pop(unused)
            del self._placed[gone.at]
            self._words.give_back(gone.at, gone.words)
            self._masks.give_back(gone.first_mask, gone.masks)
        return at


def _stack_words(automaton: ByteAutomaton) -> I32:
    """What `pushdown_masks` reads of an automaton, the order of its `_AT`s; no words without a stack."""
    stack = automaton.stack
    if stack is None:
        return np.empty(0, np.int32)
    spelled = automaton.masks[2, automaton.mask_of] >= 0
    begins_of = np.cumsum([0, *[ids.size for ids in stack.others]])
    firsts, lasts = (np.where(spelled, -1, begins_of[stack.group_of + end]) for end in (0, 1))
    parts = [stack.ends, stack.room, firsts, lasts, stack.calls.ravel(), *stack.others]
    begins = np.cumsum([STACK_HEADER.value, *[part.size for part in parts[:5]]])
    return np.concatenate(([*begins, stack.near], *parts)).astype(np.int32)


def _base_masks(automaton: ByteAutomaton, stack: StackTables) -> tuple[I32, I32]:
    """The masks of an automaton as far as they do not depend on the stack, and how many ids they allow."""
    base = stack.base[stack.group_of[automaton.masks[0]]]  # a copy
    for mask in np.flatnonzero(automaton.masks[2] >= 0).tolist():
        token = int(automaton.masks[2, mask])
        base[mask] = 0
        base.view(np.uint32)[mask, token // 32] = 1 << token % 32
    counts = np.bitwise_count(base.view(np.uint32)).sum(1)
    return base, counts.astype(np.int32)
