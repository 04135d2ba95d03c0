"""What an executor keeps of its rows beyond their KV: automata and what is added to logits, in plain Python.

It turns a batch into one whose masks and biases are written out, so that executors without automata can run it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from sglc.ir.grammar.pushdown import MOST_LEFT, MOST_PUT
from sglc.runtime.step import I32, Batch, Bool, ByteAutomaton, Step, pack_masks


@dataclass(slots=True)
class KeptRow:
    """One row: its automaton, or None, and where that is; and what is added to logits, or None."""

    automaton: ByteAutomaton | None
    state: int
    stack: tuple[int, ...]  # what lies on it, the last one on top
    added: dict[int, float] | None
    seen: set[int]
    penalties: tuple[float, float]
    repeated: dict[int, float] = field(default_factory=dict)  # ids that are there, with the row's penalty


@dataclass(slots=True)
class KeptRows:
    """The rows of one executor, over a vocabulary whose ids spell `token_bytes`."""

    token_bytes: Sequence[bytes]
    eos_ids: Sequence[int]
    rows: dict[int, KeptRow] = field(default_factory=dict)
    held: dict[int, tuple[ByteAutomaton, int]] = field(default_factory=dict)  # with how many hold it

    def hold(self, automaton: ByteAutomaton) -> int:
        for number, (one, users) in self.held.items():
            if one is automaton:
                self.held[number] = one, users + 1
                return number
        number = max(self.held, default=6) + 1
        self.held[number] = automaton, 1
        return number

    def release(self, automaton: ByteAutomaton) -> None:
        (number,) = (number for number, (one, _) in self.held.items() if one is automaton)
        users = self.held[number][1] - 1
        self.held[number] = automaton, users
        if not users:
            del self.held[number]

    def behind(
        self, automaton: ByteAutomaton, state: int, stack: tuple[int, ...], token: int
    ) -> tuple[int, tuple[int, ...]]:
        """The state behind a token, -1 if it leads nowhere; and what lies on the stack then."""
        more = automaton.stack
        least, begun = len(stack), len(stack)
        for byte in self.token_bytes[token]:
            while state >= 0:
                move = int(automaton.moves[state, automaton.classes[byte]])
                if move >= -1:
                    state = move
                    break
                assert more is not None
                if move in (-2, -3):
                    if not stack or begun - len(stack) == MOST_LEFT:
                        return -1, ()
                    *below, state = stack
                    stack = (*below,)
                    least = min(least, len(stack))
                    if move == -2:
                        break
                    continue
                put, state = more.calls[-4 - move].tolist()
                if put >= 0:
                    if len(stack) - least == MOST_PUT or len(stack) > more.room[put]:
                        return -1, ()
                    stack = (*stack, put)
                if len(stack) > more.room[state]:
                    return -1, ()
        if state < 0 or (more is not None and len(stack) > more.room[state]):
            return -1, ()
        return state, stack

    def allowed(self, automaton: ByteAutomaton, state: int, stack: tuple[int, ...]) -> Bool:
        """The ids that spell something a state goes on with, bool [V]."""
        column = automaton.masks[:, automaton.mask_of[state]]
        mask = np.zeros(len(self.token_bytes), np.bool_)
        first = state if automaton.stack is not None else int(column[0])
        for token, data in enumerate(self.token_bytes):
            after = self.behind(automaton, first, stack, token)[0] if data else -1
            mask[token] = after >= 0 and automaton.is_open[after]
        if column[2] >= 0:
            assert mask[column[2]], "the one token that is allowed leads nowhere"
            mask[:] = False
            mask[column[2]] = True
        return mask

    def may_end(self, automaton: ByteAutomaton, state: int, stack: tuple[int, ...]) -> bool:
        """Whether the text may end there."""
        more = automaton.stack
        if more is None:
            return bool(automaton.masks[1, automaton.mask_of[state]])
        while more.ends[state] == 2 and stack:
            *below, state = stack
            stack = (*below,)
        return bool(more.ends[state] == 1)

    def written(self, step: Step, batch: Batch) -> Batch:
        """`batch` with what its rows keep; `step` is the same as it came."""
        opened = step.opened
        for at, row in enumerate(opened.rows.tolist()):
            number = int(opened.automaton[at])
            added: dict[int, float] | None = {} if opened.adjusted[at] else None
            seen: set[int] = set()
            for i in np.flatnonzero(opened.added[0] == at).tolist():
                assert added is not None
                added[int(opened.added[1, i])] = float(opened.values[i])
                if opened.added[2, i]:
                    seen.add(int(opened.added[1, i]))
            automaton = None if number < 0 else self.held[number][0]
            self.rows[row] = KeptRow(
                automaton,
                *_place(automaton, int(opened.state[at])),
                added,
                seen,
                (float(opened.frequency[at]), float(opened.presence[at])),
            )
        for row, state in step.states.tolist():
            kept = self.rows[row]
            kept.state, kept.stack = _place(kept.automaton, state)
        for at in np.unique(batch.repeated_at).tolist():
            those = batch.repeated_at == at
            pairs = zip(batch.repeated_ids[those].tolist(), batch.repetition[those].tolist(), strict=True)
            self.rows[int(batch.rows[at])].repeated = dict(pairs)
        masked, masks, biases, repeated = [*batch.masked.tolist()], [*batch.masks], [], []
        for at, row in enumerate(batch.rows.tolist()):
            kept = self.rows[row]
            if not batch.sample[at]:
                continue
            if kept.automaton is not None and kept.state >= 0:
                assert at not in masked, "a row has two masks"
                mask = self.allowed(kept.automaton, kept.state, kept.stack)
                if self.may_end(kept.automaton, kept.state, kept.stack) and not batch.no_eos[at]:
                    mask[[token for token in self.eos_ids if token < mask.size]] = True
                masked.append(at)
                # Nobody looks at what follows a text that had to end.
                masks.append(pack_masks(mask if mask.any() else np.ones_like(mask)))
            if kept.added is not None:
                biases += [(at, token, value) for token, value in kept.added.items()]
            repeated += [(at, token, value) for token, value in kept.repeated.items()]
        for at, token, value in zip(batch.bias_at, batch.bias_ids, batch.bias, strict=True):
            assert self.rows[int(batch.rows[at])].added == {}, "a bias for a row that keeps other ones"
            biases.append((int(at), int(token), float(value)))
        columns = [*zip(*biases, strict=True)] or [(), (), ()]
        others = [*zip(*repeated, strict=True)] or [(), (), ()]
        order = np.argsort(masked)
        return replace(
            batch,
            masked=np.array(masked, np.int32)[order],
            masks=np.array(masks)[order] if masked else batch.masks,
            bias_at=np.array(columns[0], np.int32),
            bias_ids=np.array(columns[1], np.int32),
            bias=np.array(columns[2], np.float32),
            repeated_at=np.array(others[0], np.int32),
            repeated_ids=np.array(others[1], np.int32),
            repetition=np.array(others[2], np.float32),
        )

    def sampled(self, rows: I32, tokens: I32) -> I32:
        """Rows have sampled `tokens`, -1 where they have not; how many ids may follow in each, 2 at most."""
        follows: I32 = np.full(rows.size, 2, np.int32)
        for at, (row, token) in enumerate(zip(rows.tolist(), tokens.tolist(), strict=True)):
            kept = self.rows[row]
            if token < 0:
                continue
            if kept.automaton is not None and kept.state >= 0:
                kept.state, kept.stack = self.behind(kept.automaton, kept.state, kept.stack, token)
                if kept.state >= 0:
                    follows[at] = min(2, int(self.allowed(kept.automaton, kept.state, kept.stack).sum()))
            if kept.repeated:
                kept.repeated[token] = next(iter(kept.repeated.values()))
            if kept.added is not None:
                frequency, presence = kept.penalties
                if frequency or presence:
                    less = frequency + presence * (token not in kept.seen)
                    kept.added[token] = kept.added.get(token, 0.0) - less
                    kept.seen.add(token)
        return follows


def _place(automaton: ByteAutomaton | None, state: int) -> tuple[int, tuple[int, ...]]:
    """A state as it comes with a step: where a stack is, it stands for that too."""
    if automaton is None or automaton.stack is None:
        return state, ()
    return automaton.stack.places[state]
