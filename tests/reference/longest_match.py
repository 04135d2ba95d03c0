"""A tokenizer out of its tokens alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence


def longest_match(tokens: Sequence[bytes]) -> Callable[[str], list[int]]:
    """Spells a text by the longest token that it goes on with, each time; of equal ones the first."""
    ids = {data: token for token, data in reversed([*enumerate(tokens)]) if data}
    most = max(map(len, ids))

    def encode(text: str) -> list[int]:
        data, found = text.encode(), []
        while data:
            size = max(n for n in range(1, most + 1) if data[:n] in ids)
            found.append(ids[data[:size]])
            data = data[size:]
        return found

    return encode
