"""What a constrained generation may go on with: automata over token ids.

A token is allowed where its bytes lead to a state from which the model can still write a match.
Masks are computed when a state is first met, over all tokens at once, and kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sglc.errors import RunError
from sglc.ir.fsm import DEAD, ByteDfa, run
from sglc.ir.regex import compile_regex
from sglc.ir.sampling import Sampling
from sglc.runtime.grammar import Grammars
from sglc.runtime.step import I32, Bool

_MASKS = 512  # kept for each automaton: 3 MB for 49,152 tokens
_AUTOMATA = 64  # kept for each tokenizer


class Constraint(Protocol):
    """Which token ids a generation may be made of. Ids that end it are the engine's to allow or not.

    A state is a number that stands for all that was read; the same one may be asked about again.
    """

    @property
    def start(self) -> int:
        """The state before the first token. There is a token that it allows."""

    def mask(self, state: int) -> Bool:
        """Ids that may come next, bool [V], the caller's own."""

    def accepting(self, state: int) -> bool:
        """Whether the text may end here. A state that does not accept allows some token, or `done` raises."""

    def only(self, state: int) -> int | None:
        """The id that has to come next; None if there are several, or none."""

    def advance(self, state: int, token: int) -> int:
        """The state behind `token`, which `state` allows."""

    def done(self, state: int) -> bool:
        """Whether the text has to end here: it may, and no token is allowed.

        Raises:
            RunError: it may not, and no token is allowed either.
        """


class Vocabulary:
    """The bytes of all tokens as a trie, in arrays ordered by depth. Node 0 is the root.

    Args:
        token_bytes: bytes of every id, index = id; ids without bytes are no text and never allowed.
        size: ids of the model; those behind `token_bytes` are padding.
    """

    def __init__(self, token_bytes: Sequence[bytes], size: int) -> None:
        self.token_bytes = token_bytes[:size]
        lengths = np.array([len(data) for data in self.token_bytes], np.int64)
        begins = np.cumsum(lengths) - lengths
        flat = np.frombuffer(b"".join(self.token_bytes), np.uint8)
        self.node_of: I32 = np.zeros(size, np.int32)  # where a token's bytes end; 0 without bytes
        parents, values, self.levels = [np.zeros(1, np.int64)], [np.zeros(1, np.int64)], [1]
        for depth in range(int(lengths.max(initial=0))):
            tokens = np.flatnonzero(lengths > depth)
            keys = self.node_of[tokens].astype(np.int64) * 256 + flat[begins[tokens] + depth]
            nodes, which = np.unique(keys, return_inverse=True)
            self.node_of[tokens] = self.levels[-1] + which
            parents.append(nodes // 256)
            values.append(nodes % 256)
            self.levels.append(self.levels[-1] + nodes.size)  # level d + 1: levels[d] up to levels[d + 1]
        self.parent = np.concatenate(parents).astype(np.int32)
        self.value = np.concatenate(values).astype(np.uint8)
        self.single = sorted({data[0] for data in self.token_bytes if len(data) == 1})
        # Whether every byte of every token is a token of its own, as in a byte-level BPE.
        self.closed = set(np.unique(flat).tolist()) <= set(self.single)


class TokenAutomaton:
    """A `Constraint`: the tokens of a vocabulary along a byte automaton.

    A vocabulary may lack some bytes, so not every text can be written. A state is open if tokens lead
    from it to a match. Only tokens that end in an open state are allowed: there are no dead ends.
    """

    start = 0

    def __init__(self, dfa: ByteDfa, vocabulary: Vocabulary, pattern: str) -> None:
        """Raises RunError: SGLC454, nothing but the empty text can be written."""
        self._dfa = dfa
        self._vocabulary = vocabulary
        states, kinds = len(dfa.moves), len(dfa.moves[0])
        table = np.array([*dfa.moves, (DEAD,) * kinds], np.int32)
        self._table: I32 = np.where(table == DEAD, states, table).ravel()  # the last row stands for `DEAD`
        self._kinds = kinds
        self._classes: NDArray[np.intp] = np.frombuffer(dfa.classes, np.uint8).astype(np.intp)
        self._open = self._open_states()
        self._packed = lru_cache(maxsize=_MASKS)(self._compute)
        if not self._open[0] or self.done(0):
            raise RunError(
                "SGLC454",
                f"the model cannot write any text that matches `{pattern}`",
                note="its vocabulary has to spell the text; the empty text does not count",
            )

    def _open_states(self) -> Bool:
        """bool [states + 1]: the states from which tokens lead to a match."""
        dfa, trie = self._dfa, self._vocabulary
        kinds = sorted({dfa.classes[byte] for byte in trie.single})
        origins: list[list[int]] = [[] for _ in range(len(dfa.moves) + 1)]
        for state, row in enumerate(dfa.moves):
            if trie.closed:  # a byte at a time leads wherever tokens do
                reached = [row[kind] for kind in kinds]
            else:
                reached = np.unique(self._behind(state)[trie.node_of[trie.node_of > 0]]).tolist()
            for to in reached:
                origins[to].append(state)
        is_open = np.array([*dfa.accepting, False])
        stack = np.flatnonzero(is_open).tolist()
        while stack:
            for before in origins[stack.pop()]:
                if not is_open[before]:
                    is_open[before] = True
                    stack.append(before)
        return is_open

    def mask(self, state: int) -> Bool:
        """Ids that may come next, bool [V], the caller's own."""
        packed = self._packed(state)
        return np.unpackbits(packed, count=self._vocabulary.node_of.size).view(np.bool_)

    def accepting(self, state: int) -> bool:
        """Whether the text may end here."""
        return self._dfa.accepting[state]

    def only(self, state: int) -> int | None:
        """The id that has to come next; None if there are several, or none."""
        allowed = np.flatnonzero(self.mask(state))
        return int(allowed[0]) if allowed.size == 1 else None

    def advance(self, state: int, token: int) -> int:
        """The state behind `token`, which `state` allows."""
        return run(self._dfa, self._vocabulary.token_bytes[token], state)

    def done(self, state: int) -> bool:
        """Whether the text has to end here."""
        return self._dfa.accepting[state] and not self._packed(state).any()

    def _compute(self, state: int) -> NDArray[np.uint8]:
        """The mask of `state`, packed."""
        node_of = self._vocabulary.node_of
        return np.packbits(self._open[self._behind(state)[node_of]] & (node_of > 0))

    def _behind(self, state: int) -> I32:
        """The state behind every node of the trie, level by level, if the root is at `state`."""
        trie = self._vocabulary
        behind: I32 = np.full(trie.parent.size, len(self._dfa.moves), np.int32)
        behind[0] = state
        for first, last in zip(trie.levels, trie.levels[1:], strict=False):
            before = behind[trie.parent[first:last]]
            behind[first:last] = self._table[before * self._kinds + self._classes[trie.value[first:last]]]
        return behind


class Constraints:
    """Constraints of one tokenizer; what is compiled for them is kept."""

    def __init__(self, token_bytes: Sequence[bytes], size: int) -> None:
        """As `Vocabulary`, which is built with the first constraint."""
        self._vocabulary = lru_cache(lambda: Vocabulary(token_bytes, size))
        self._grammars = Grammars(token_bytes, size)
        self.regex = lru_cache(maxsize=_AUTOMATA)(self._regex)

    def of(self, sampling: Sampling) -> Constraint | None:
        """What a generation with `sampling` is held to, if to anything.

        Raises:
            LegalizeError: as `compile_regex`, `enforceable`, `check_gbnf`.
            RunError: this model cannot do it: SGLC454, SGLC456 to SGLC459.
        """
        match sampling:
            case Sampling(regex=str(pattern)):
                return self.regex(pattern)
            case Sampling(json_schema=str(schema)):
                return self._grammars.json_schema(schema)
            case Sampling(ebnf=str(grammar)):
                return self._grammars.ebnf(grammar)
            case _:
                return None

    def _regex(self, pattern: str) -> TokenAutomaton:
        """Raises LegalizeError as `compile_regex`; RunError: the vocabulary cannot spell it (SGLC454)."""
        return TokenAutomaton(compile_regex(pattern), self._vocabulary(), pattern)
