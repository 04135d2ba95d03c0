"""What a prompt state went through: the parts that `messages()`, scopes and joins read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sglc.frontend.recorder import Generated
from sglc.frontend.symbolic import SymbolicText


@dataclass(frozen=True, slots=True)
class History:
    """One part, and everything before it."""

    before: History | None
    kind: str  # "text", "generated", "open" or "close"
    item: str | SymbolicText | Generated


def since(history: History | None, start: History | None) -> list[History]:
    """The parts behind `start`, which is `history` itself or before it, in order."""
    parts: list[History] = []
    while history is not start:
        assert history is not None, "not an earlier part of the same history"
        parts.append(history)
        history = history.before
    return parts[::-1]


def messages(history: History | None, read: Callable[[Generated], object]) -> list[dict[str, str]]:
    """The chat turns as `{"role", "content"}`; a turn that is still open comes last.

    Args:
        read: gives the text of a generation (a list for several samples; the first one counts).
    """
    turns: list[dict[str, str]] = []
    inside = False
    for part in since(history, None):
        match part.kind, part.item:
            case "open", role:
                turns.append({"role": str(role), "content": ""})
                inside = True
            case "close", _:
                inside = False
            case _, Generated() as made if inside:
                text = read(made)
                turns[-1]["content"] += str(text[0] if isinstance(text, list) else text)
            case _, text if inside:
                turns[-1]["content"] += str(text)
    return turns
