"""Token masks of pushdown automata: what a token may do depends on the states that lie on the stack.

A mask is made by walking the trie of the vocabulary, each node with the state and stack that its bytes lead to,
of which there are few. Few tokens look far down the stack, so masks are kept by the part that was looked at.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sglc.errors import RunError, shown
from sglc.ir.grammar.dfa import DEAD, only_classes
from sglc.ir.grammar.pushdown import CALL, LEAVE, MOST_LEFT, MOST_NESTED, MOST_PUT, RETURN, Pushdown
from sglc.runtime.constraints.token_automaton import FEW, Level, TokenTrie, Vocabulary, only_one, token_trie
from sglc.runtime.step import I32, Bool, ByteAutomaton, StackTables, pack_masks

_MOST_PLACES = 100_000  # states with their stacks that are told apart; for more an automaton is made anew
_MOST_STACKED = 2_000_000  # or for more states on these stacks
_MOST_SPOTS = 20_000  # of a walk that are remembered
_PLACE_BYTES = 250  # of a place, or a spot, and its number
_MOST_MASKED = 512  # states of one that executors follow
_UNKNOWN = -1
_NO_SPOTS: NDArray[np.int64] = np.empty(0, np.int64)

# Where a walk is: a state or `DEAD`, the stack, the least that lay there, and what has to stay there.
Spot = tuple[int, tuple[int, ...], int, int]
_Kept = tuple[int, bool, bool]  # a state, whether its stack is near its bound, whether it is a `local` one
# Of a walk above a stack that is not known: behind a rule r that the token did not call it is at `_BACK` - r,
# and further on at `_BEYOND`.
_BACK, _BEYOND = -2, -(1 << 30)


class PushdownAutomaton:
    """A `Constraint`: the tokens of a vocabulary along a pushdown automaton.

    Its states are numbers of places: a state of the automaton and what lies on the stack.
    """

    start = 0
    slow = False

    def __init__(self, form: Pushdown, vocabulary: Vocabulary, text: str) -> None:
        """Raises RunError: SGLC454, the vocabulary lacks bytes, or no text but the empty one can be written."""
        self._form = form
        self._vocabulary = vocabulary
        self._size = vocabulary.node_of.size
        self._trie = trie = token_trie(form.classes, form.moves, vocabulary)
        self._class_of = trie.nodes(self._size)
        self._levels = trie.by_depth()
        self._walk = _Walk(trie, self._levels, len(form.moves[0]), self._read)
        self._masks: dict[tuple[_Kept, tuple[int, ...]], tuple[I32, int | None]] = {}
        self._depths: dict[_Kept, set[int]] = {}  # of a state: how much of the stack its masks depend on
        self._places: list[tuple[int, tuple[int, ...]]] = [(state, ()) for state in range(len(form.moves))]
        self._numbers = {place: number for number, place in enumerate(self._places)}
        self._stacked = 0  # states on the stacks of all places
        self._after: dict[tuple[int, int], int] = {}  # of a place and a token
        self._only_class = only_classes(form.classes, form.moves)
        self._lock = threading.Lock()  # of all that is kept
        # Where each class of bytes has a token of one byte, there is a way on behind all that is allowed.
        single = {form.classes[byte] for byte in vocabulary.single}
        moving = {kind for row in form.moves for kind, move in enumerate(row) if move != DEAD}
        if moving - single or not self.bits(self.start).any():
            raise RunError(
                "SGLC454",
                f"the model cannot write any text that matches `{shown(text)}`",
                note="its vocabulary has to spell the text; the empty text does not count",
            )

    @property
    def size_bytes(self) -> int:
        """What it takes to keep it, without masks, which a `MaskRoom` bounds: its nodes and tokens, the places
        that were come to, and what executors follow."""
        nodes = self._trie.parent.size
        places = _PLACE_BYTES * (len(self._places) + len(self._after)) + 8 * self._stacked
        followed = self.__dict__.get("automaton")  # if anybody asked for it
        masks = 0 if followed is None else followed.stack.base.nbytes
        return 76 * nodes + 12 * self._size + places + self._walk.remembered_bytes + masks

    @property
    def worn(self) -> bool:
        """Whether so many places were come to that those who begin should have a new one."""
        return len(self._places) > _MOST_PLACES or self._stacked > _MOST_STACKED

    def bits(self, state: int) -> I32:
        """Ids that may come next, as `pack_masks` gives it, the caller's own."""
        at, stack = self._places[state]
        with self._lock:
            return self._kept(at, stack)[0].copy()

    def mask(self, state: int) -> Bool:
        """The same as bool [V], the caller's own."""
        packed = self.bits(state).view(np.uint8)
        return np.unpackbits(packed, count=self._size, bitorder="little").view(np.bool_)

    def accepting(self, state: int) -> bool:
        """Whether the text may end here."""
        at, stack = self._places[state]
        form, left = self._form, len(stack)
        while form.ends[at] and form.rule_of[at] and left:
            left -= 1
            at = stack[left]
        return form.ends[at] and not form.rule_of[at]

    def ahead(self, state: int) -> bytes:
        """Bytes that have to come next, but for those behind which it depends on the stack what does."""
        form, at = self._form, self._places[state][0]
        spot: Spot = (at, (), 0, 0)
        forced = bytearray()
        while len(forced) < MOST_NESTED and not form.ends[spot[0]]:
            if (kind := self._only_class(spot[0])) is None:
                break
            # What it put on the stack itself is not a part of what it may take from there.
            spot = self._read((spot[0], spot[1][-MOST_PUT + 1 :], 0, 0), kind)
            if spot[0] == DEAD:
                break
            forced.append(form.classes.index(kind))
        return bytes(forced)

    def only(self, state: int) -> int | None:
        """The id that has to come next; None if there are several, or none."""
        with self._lock:
            return self._kept(*self._places[state])[1]

    def advance(self, state: int, token: int) -> int:
        """The state behind `token`, which `state` allows."""
        if (known := self._after.get((state, token))) is not None:  # another thread may clear it meanwhile
            return known
        at, stack = self._places[state]
        spot: Spot = (at, stack, len(stack), max(0, len(stack) - MOST_LEFT))
        for byte in self._vocabulary.token_bytes[token]:
            spot = self._read(spot, self._form.classes[byte])
        assert spot[0] != DEAD, "a token that the mask does not allow"
        place = spot[0], spot[1]
        with self._lock:
            if place not in self._numbers:
                self._places.append(place)
                self._stacked += len(spot[1])
                self._numbers[place] = len(self._places) - 1
            if len(self._after) > _MOST_PLACES:
                self._after.clear()
            self._after[state, token] = self._numbers[place]
            return self._numbers[place]

    def local(self, state: int) -> int:
        """The state with nothing on its stack: what goes back from there is not allowed."""
        return self._places[state][0]

    def done(self, state: int) -> bool:
        """Whether the text has to end here."""
        return self.accepting(state) and not self.bits(state).any()

    @cached_property
    def automaton(self) -> ByteAutomaton | None:
        """The same for an executor that follows it by itself; None if it is too large for that."""
        form = self._form
        states = len(form.moves)
        if states > _MOST_MASKED:
            return None
        walk = _Walk(self._trie, self._levels, len(form.moves[0]), self._read_open)
        groups: dict[tuple[bytes, bytes], int] = {}
        base: list[I32] = []
        others: list[I32] = []
        group_of: list[int] = []
        for state in range(states):
            behind = walk.behind((state, (), 0, 0))
            at = np.array([spot[0] for spot in walk.spots])
            depends = np.flatnonzero((at == _BEYOND)[behind][self._class_of]).astype(np.int32)
            allowed = pack_masks(((at != _BEYOND) & (at != DEAD))[behind][self._class_of])
            key = allowed.tobytes(), depends.tobytes()
            if key not in groups:
                groups[key] = len(base)
                base.append(allowed)
                others.append(depends)
            group_of.append(groups[key])
        ends = [(1 + (rule > 0)) * ends for ends, rule in zip(form.ends, form.rule_of, strict=True)]
        column_of: I32 = np.array(group_of, np.int32)
        firsts = np.array([group_of.index(group) for group in range(len(base))], np.int32)
        return ByteAutomaton(
            classes=np.frombuffer(form.classes, np.uint8),
            moves=np.array(form.moves, np.int32),
            is_open=np.ones(states, np.bool_),
            mask_of=column_of,
            masks=np.stack((firsts, np.zeros_like(firsts), np.full_like(firsts, -1))),
            stack=StackTables(
                calls=np.array(form.calls, np.int32).reshape(-1, 2),
                ends=np.array(ends, np.int32),
                room=np.array(form.room, np.int32),
                near=min(form.room) - MOST_PUT,
                base=np.stack(base),
                others=tuple(others),
                group_of=column_of,
                places=self._places,
            ),
        )

    def _kept(self, state: int, stack: tuple[int, ...]) -> tuple[I32, int | None]:
        """The mask of a place, and the one id that it allows, if it is one."""
        # Far below the bound nothing depends on how much lies there, and no token goes back further than this.
        near = len(stack) > MOST_NESTED // 2
        seen = stack if near else stack[-MOST_LEFT:]
        # Where the lowest may go back, and has nothing to go back to, is no part of a text (`local`).
        kept = state, near, bool(self._form.rule_of[stack[0] if stack else state])
        depths = self._depths.setdefault(kept, set())
        for depth in depths:
            key = kept, seen[len(seen) - depth :]
            if depth <= len(seen) and (known := self._masks.get(key)) is not None:
                return known
        start: Spot = (state, seen, len(seen), max(0, len(seen) - MOST_LEFT))
        live = self._walk.live(start)
        behind = self._walk.behind(start) if live is None else _NO_SPOTS
        spots, room = self._walk.spots, self._form.room
        reached = np.flatnonzero(np.bincount(behind)).tolist() if live is None else live[1]
        depth = len(seen) if near else len(seen) - min(spots[at][2] for at in reached)
        lives = np.zeros(len(spots), np.bool_)
        lives[reached] = [spots[at][0] != DEAD and len(spots[at][1]) <= room[spots[at][0]] for at in reached]
        if live is None:
            allowed = lives[behind][self._class_of]
        else:
            allowed = np.zeros(self._size, np.bool_)
            allowed[self._trie.ids_of([node for node, at in live[0] if lives[at]])] = True
        mask = pack_masks(allowed)
        depths.add(depth)
        key = kept, seen[len(seen) - depth :]
        made = self._masks[key] = mask, only_one(mask)
        self._vocabulary.mask_room.take(self._masks, key, mask.nbytes)
        return made

    def _read(self, spot: Spot, kind: int, *, is_open: bool = False) -> Spot:
        """Where a byte of a class leads; with `is_open`, above a stack that is not known."""
        form, (state, stack, floor, bottom) = self._form, spot
        while True:
            move = form.moves[state][kind]
            if move >= 0:
                return move, stack, floor, bottom
            if move in (RETURN, LEAVE) and len(stack) > bottom:
                state, stack = stack[-1], stack[:-1]
                floor = min(floor, len(stack))
                if move == RETURN:
                    return state, stack, floor, bottom
                continue
            if move > CALL:
                if is_open and move != DEAD:
                    return (_BEYOND if move == LEAVE else _BACK - form.rule_of[state]), (), 0, 0
                return DEAD, (), floor, 0
            put, state = form.calls[CALL - move]
            if put != DEAD:
                if len(stack) - floor == MOST_PUT or len(stack) > form.room[put]:
                    return DEAD, (), floor, 0
                stack = (*stack, put)
            if len(stack) > form.room[state]:
                return DEAD, (), floor, 0

    def _read_open(self, spot: Spot, kind: int) -> Spot:
        """As `_read`, also where a rule was gone back from that the token did not call."""
        state = spot[0]
        if state == _BEYOND:
            return spot
        if state < DEAD:  # just back from a rule
            return (_BEYOND if kind in self._form.follows[_BACK - state] else DEAD), (), 0, 0
        return self._read(spot, kind, is_open=True)


class _Walk:
    """Walks the trie of a vocabulary, with what `read` says of spots and classes of bytes.

    `spots` are numbered as they are met; what is dead stays where it is.
    """

    def __init__(
        self, trie: TokenTrie, levels: list[Level], kinds: int, read: Callable[[Spot, int], Spot]
    ) -> None:
        self._first_child = trie.first_children().tolist()
        self._kind = trie.kind.astype(np.int64)
        self._levels = levels
        self._kinds = kinds
        self._read = read
        self._forget()

    def _forget(self) -> None:
        self.spots: list[Spot] = []
        self._numbers: dict[Spot, int] = {}
        self._moves: NDArray[np.int64] = np.zeros((0, self._kinds), np.int64)  # between spots, by class

    @property
    def remembered_bytes(self) -> int:
        """About what the spots take that are remembered."""
        return self._moves.nbytes + _PLACE_BYTES * len(self.spots)

    def live(self, start: Spot) -> tuple[list[tuple[int, int]], list[int]] | None:
        """The nodes that the root at `start` leads to alive, each with its spot, and all spots on the way, dead
        ones too; None if they are not few."""
        if len(self.spots) > _MOST_SPOTS:
            self._forget()
        live = [(0, self._number(start))]
        met = {live[0][1]}
        for node, spot in live:  # grows while it is walked
            first, last = self._first_child[node : node + 2]
            after = self._after(spot * self._kinds + self._kind[first:last]).tolist()
            met.update(after)
            live += [(at, to) for at, to in enumerate(after, first) if self.spots[to][0] != DEAD]
            if len(live) > FEW:
                return None
        return live[1:], sorted(met)

    def _after(self, at: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where moves lead, given by spots and classes of bytes."""
        reached = self._moves.ravel()[at]
        unknown = reached == _UNKNOWN
        if not unknown.any():
            return reached
        for pair in np.unique(at[unknown]).tolist():
            number = self._number(self._read(self.spots[pair // self._kinds], pair % self._kinds))
            self._moves[pair // self._kinds, pair % self._kinds] = number
        return self._moves.ravel()[at]

    def behind(self, start: Spot) -> NDArray[np.int64]:
        """The spot behind every node if the root is at `start`: int64 [N + 1], a dead one at the end."""
        if len(self.spots) > _MOST_SPOTS:
            self._forget()
        dead = self._number((DEAD, (), start[2], 0))
        behind: NDArray[np.int64] = np.full(self._levels[-1][1] + 1 if self._levels else 2, dead, np.int64)
        behind[0] = self._number(start)
        for depth, (first, last, parent, kind) in enumerate(self._levels, 1):
            reached = behind[first:last] = self._after(behind[parent] * self._kinds + kind)
            # Few tokens are long: below a level where all are dead there is nothing.
            if depth & (depth - 1) == 0 and all(
                self.spots[at][0] == DEAD for at in np.flatnonzero(np.bincount(reached)).tolist()
            ):
                behind[last:] = reached[0]
                break
        behind[-1] = dead
        return behind

    def _number(self, spot: Spot) -> int:
        if spot not in self._numbers:
            number = self._numbers[spot] = len(self.spots)
            self.spots.append(spot)
            if number == len(self._moves):
                more = np.full((max(64, number), self._kinds), _UNKNOWN, np.int64)
                self._moves = np.concatenate((self._moves, more))
            if spot[0] == DEAD:
                self._moves[number] = number
        return self._numbers[spot]
