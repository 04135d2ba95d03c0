"""Automata with a stack on the device: a sampled token moves a row's stack, and gives it a mask of its own.

Most of what a state allows depends on the state alone: those bits are copied. The other tokens, that go back
behind the call of the state's rule, are tried one by one on the row's own stack, each by a thread. What such a
token puts on top itself is kept in a register: `MOST_PUT` states of 16 bits.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from sglc.ir.grammar.pushdown import CALL, LEAVE, MOST_LEFT, MOST_PUT, RETURN
from sglc.runtime.kernels.automata import (
    CALLS_AT,
    CLASSES,
    ENDS_AT,
    IDS_AT,
    KINDS,
    MOVES,
    NEAR,
    OTHERS_AT,
    OTHERS_END_AT,
    ROOM_AT,
    STACK_AT,
    STATES,
    AutomataTables,
    mask_at,
)
from sglc.runtime.kernels.rows import AUTOMATON, DEPTH, ROW, SAMPLES, STATE, BatchLists, RowState

_RETURN, _LEAVE, _CALL = tl.constexpr(RETURN), tl.constexpr(LEAVE), tl.constexpr(CALL)
_MOST_LEFT, _MOST_PUT = tl.constexpr(MOST_LEFT), tl.constexpr(MOST_PUT)
_PARTS = 16  # programs for each row
_BLOCK = 128  # tokens
_WORDS = 1024


@triton.jit
def stack_behind(own, stack, depth, state, token, begins, spelled):
    """The state that `token`, which is allowed, leads to, and how many states lie on the row's `stack` then."""
    at = tl.load(begins + token)
    end = tl.load(begins + token + 1)
    kinds = tl.load(own + KINDS)
    more = own + tl.load(own + STACK_AT)
    calls = more + tl.load(more + CALLS_AT)
    while at < end:
        kind = tl.load(own + CLASSES + tl.load(spelled + at).to(tl.int32))
        move = tl.load(own + MOVES + state * kinds + kind)
        if move <= _CALL:
            put = tl.load(calls + 2 * (_CALL - move))
            if put >= 0:
                tl.store(stack + depth, put)
                depth += 1
            state = tl.load(calls + 2 * (_CALL - move) + 1)
        else:
            if move >= 0:
                state = move
            else:
                depth -= 1
                state = tl.load(stack + depth)
            if move != _LEAVE:
                at += 1
        # What was put there is read again by the same thread.
        tl.debug_barrier()
    return state, depth


@triton.jit
def _allowed(own, stack, depth, first_state, ids, live, begins, spelled):
    """Which of `ids` may come next."""
    kinds = tl.load(own + KINDS)
    dead = tl.load(own + STATES)
    more = own + tl.load(own + STACK_AT)
    calls = more + tl.load(more + CALLS_AT)
    room = more + tl.load(more + ROOM_AT)
    bottom = tl.maximum(depth - _MOST_LEFT, 0)
    at = tl.load(begins + ids, mask=live, other=0)
    end = tl.load(begins + ids + 1, mask=live, other=0)
    good = live & (at < end)
    state = at * 0 + first_state
    floor = at * 0 + depth
    put = at * 0  # how many it has put on top, and which, the last one lowest
    top = put.to(tl.int64)
    runs = good
    while tl.max(runs.to(tl.int32), 0) > 0:
        byte = tl.load(spelled + at, mask=runs, other=0).to(tl.int32)
        kind = tl.load(own + CLASSES + byte, mask=runs, other=0)
        move = tl.load(own + MOVES + state * kinds + kind, mask=runs, other=0)
        plain = runs & (move >= 0)
        back = runs & ((move == _RETURN) | (move == _LEAVE))
        calling = runs & (move <= _CALL)
        own_top = put > 0
        good &= ~(back & ~own_top & (floor <= bottom))
        below = tl.load(stack + floor - 1, mask=back & ~own_top & (floor > 0), other=0)
        behind = tl.where(own_top, (top & 0xFFFF).to(tl.int32), below)
        floor -= (back & ~own_top).to(tl.int32)
        top = tl.where(back & own_top, top >> 16, top)
        put -= (back & own_top).to(tl.int32)
        placed = tl.load(calls + 2 * (_CALL - move), mask=calling, other=-1)
        target = tl.load(calls + 2 * (_CALL - move) + 1, mask=calling, other=0)
        puts = calling & (placed >= 0)
        lies = floor + put
        least = tl.load(room + placed, mask=puts, other=0)
        good &= ~(puts & ((put == _MOST_PUT) | (lies > least)))
        put += puts.to(tl.int32)
        top = tl.where(puts, (top << 16) | placed.to(tl.int64), top)
        good &= ~(calling & (lies + puts.to(tl.int32) > tl.load(room + target, mask=calling, other=0)))
        state = tl.where(plain, move, tl.where(back, behind, tl.where(calling, target, state)))
        at += (plain | (back & (move == _RETURN))).to(tl.int32)
        good &= state != dead
        runs = good & (at < end)
    return good & (floor + put <= tl.load(room + state, mask=good, other=0))


@triton.jit(do_not_specialize=["first_own"])
def _fill(
    rows, fields, stacks, automata, masks, follow, follows, begins, spelled, eos, first_own,
    row_stride, capacity, stack_stride, mask_stride, eos_count, vocab, chunk,
    LISTED: tl.constexpr, WORDS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Words `chunk` of a mask are made by each program; those of ids that end the text too."""
    r = tl.program_id(0)
    row = tl.load(rows + r)
    samples = 1
    if LISTED:
        row = tl.load(rows + ROW * row_stride + r)
        samples = tl.load(rows + SAMPLES * row_stride + r)
    automaton = tl.load(fields + AUTOMATON * capacity + row)
    if (samples == 0) | (automaton < 0):
        return
    own = automata + automaton
    if tl.load(own + STACK_AT) == 0:
        return
    more = own + tl.load(own + STACK_AT)
    state = tl.load(fields + STATE * capacity + row)
    depth = tl.load(fields + DEPTH * capacity + row)
    stack = stacks + row.to(tl.int64) * stack_stride
    base_row = mask_at(automata, automaton, state, state >= 0)
    base = masks + base_row.to(tl.int64) * mask_stride
    mask = masks + (first_own + row).to(tl.int64) * mask_stride
    at = tl.load(more + tl.load(more + OTHERS_AT) + state)
    near = ((depth >= tl.load(more + NEAR)) & (at >= 0)).to(tl.int32)
    first = tl.program_id(1) * chunk
    last = tl.minimum(first + chunk, tl.cdiv(vocab, 32))
    for begin in range(first, last, WORDS):
        word = begin + tl.arange(0, WORDS)
        bits = tl.load(base + word, mask=(word < last) & (near == 0), other=0)
        tl.store(mask + word, bits, mask=word < last)
    tl.debug_barrier()
    found = 0
    if (tl.program_id(1) == 0) & (near == 0):
        found += tl.load(follow + base_row)
    ids_at = more + tl.load(more + IDS_AT)
    end = tl.load(more + tl.load(more + OTHERS_END_AT) + state)
    if near != 0:  # every id of these words is tried
        at = first * 32
        end = tl.minimum(last * 32, vocab)
    for begin in range(at, end, BLOCK):
        place = begin + tl.arange(0, BLOCK)
        live = place < end
        ids = place
        if near == 0:
            ids = tl.load(ids_at + place, mask=live, other=0)
        live &= (ids >= first * 32) & (ids < last * 32)
        if tl.max(live.to(tl.int32), 0) > 0:
            good = _allowed(own, stack, depth, state, ids, live, begins, spelled)
            tl.atomic_or(mask + ids // 32, 1 << (ids % 32), mask=good)
            found += tl.sum(good.to(tl.int32), 0)
    if LISTED:
        tl.atomic_add(follows + r, found)
    ends_at = more + tl.load(more + ENDS_AT)
    ends = tl.load(ends_at + state)
    while (ends == 2) & (depth > 0):
        depth -= 1
        ends = tl.load(ends_at + tl.load(stack + depth))
    if ends == 1:
        for each in range(eos_count):
            token = tl.load(eos + each)
            if (token >= first * 32) & (token < last * 32):
                tl.atomic_or(mask + token // 32, 1 << (token % 32))


def pushdown_masks(
    lists: BatchLists | Tensor, state: RowState, automata: AutomataTables, first_own: int, eos_ids: Tensor,
    vocab: int, follows: Tensor | None = None,
) -> None:  # fmt: skip
    """Make the masks of rows whose automata have stacks; others are left as they are.

    Args:
        lists: the rows that sample; or int32 [R], those that begin or have moved on.
        first_own: where the rows' own masks begin.
        vocab: ids of the model.
        follows: int32 [R] of the lists' rows; 0 of these rows, it gets how many ids may follow.
    """
    listed = isinstance(lists, BatchLists)
    rows = lists.rows if isinstance(lists, BatchLists) else lists
    count = follows.shape[0] if follows is not None else rows.shape[0]
    chunk = triton.cdiv(triton.cdiv(vocab, 32), _PARTS)
    _fill[(count, _PARTS)](
        rows, state.fields, state.stacks, automata.words, automata.masks, automata.follow,
        follows if follows is not None else rows, automata.begins, automata.spelled, eos_ids, first_own,
        rows.stride(0), state.fields.shape[1], state.stacks.shape[1], automata.masks.stride(0), len(eos_ids),
        vocab, chunk, LISTED=listed, WORDS=_WORDS, BLOCK=_BLOCK, num_warps=4,
    )  # fmt: skip
