"""Which texts an automaton accepts, where these are few, and whether it accepts all that another one does."""

from __future__ import annotations

from collections import deque

from sglc.ir.grammar.dfa import DEAD, ByteDfa, accepts
from sglc.ir.grammar.regex import compile_regex


def texts_of(dfa: ByteDfa, most: int) -> tuple[str, ...] | None:
    """Every text that `dfa` accepts, sorted by its bytes; None if there are more than `most`."""
    byte_of = [[b for b in range(256) if dfa.classes[b] == kind] for kind in range(max(dfa.classes) + 1)]
    found: list[bytes] = []
    # Every state leads to an accepting one, so a prefix as long as there are states has come round a loop.
    stack: list[tuple[int, bytes]] = [(0, b"")]
    while stack:
        state, text = stack.pop()
        if len(text) > len(dfa.moves) or len(found) > most or len(stack) > 256 * most:
            return None
        if dfa.accepting[state]:
            found.append(text)
        for kind, after in enumerate(dfa.moves[state]):
            if after != DEAD:
                stack += [(after, text + bytes([byte])) for byte in byte_of[kind]]
    return tuple(text.decode() for text in sorted(found)) if len(found) <= most else None


def includes(wider: ByteDfa, narrower: ByteDfa) -> bool:
    """Whether `wider` accepts every text that `narrower` accepts."""
    seen = {(0, 0)}
    queue = deque(seen)
    while queue:
        here, there = queue.popleft()
        if narrower.accepting[there] and (here == DEAD or not wider.accepting[here]):
            return False
        for byte in range(256):
            after = narrower.moves[there][narrower.classes[byte]]
            if after == DEAD:
                continue
            pair = (DEAD if here == DEAD else wider.moves[here][wider.classes[byte]], after)
            if pair[0] == DEAD:
                return False  # every state of `narrower` leads to a text that it accepts
            if pair not in seen:
                seen.add(pair)
                queue.append(pair)
    return True


def accepted(pattern: str, text: str) -> bool:
    """Whether all of `text` matches a `regex` as `Sampling` understands it."""
    return accepts(compile_regex(pattern), text.encode("utf-8", "replace"))
