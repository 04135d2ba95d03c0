"""What a prompt state went through: the parts that `messages()`, scopes and joins read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sglc.frontend.values.recorded import Generated
from sglc.frontend.values.symbolic import SymbolicText


@dataclass(frozen=True, slots=True)
class History:
    """One part, and everything before it."""

    before: History | None
    kind: str  # "text", "generated", "open", "close" or "image"
    item: str | SymbolicText | Generated


def since(history: History | None, start: History | None) -> list[History]:
    """The parts behind `start`, which is `history` itself or before it, in order."""
    parts: list[History] = []
    while history is not start:
        assert history is not None, "not an earlier part of the same history"
        parts.append(history)
        history = history.before
    return parts[::-1]


def messages(history: History | None, read: Callable[[Generated], object]) -> list[dict[str, Any]]:
    """The chat turns as `{"role", "content"}`; a turn that is still open comes last.

    The content of a turn with pictures is a list of parts, as OpenAI's requests have it.

    Args:
        read: gives the text of a generation (a list for several samples; the first one counts).
    """
    turns: list[tuple[str, list[_Part]]] = []
    inside = False
    for part in since(history, None):
        match part.kind, part.item:
            case "open", role:
                turns.append((str(role), []))
                inside = True
            case "close", _:
                inside = False
            case "image", url if inside:
                turns[-1][1].append({"type": "image_url", "image_url": {"url": str(url)}})
            case "image", _:
                continue
            case _, Generated() as made if inside:
                text = read(made)
                _add_text(turns[-1][1], str(text[0] if isinstance(text, list) else text))
            case _, text if inside:
                _add_text(turns[-1][1], str(text))
    return [{"role": role, "content": _content(parts)} for role, parts in turns]


_Part = dict[str, Any]


def _add_text(parts: list[_Part], text: str) -> None:
    if parts and parts[-1]["type"] == "text":
        parts[-1]["text"] += text
    elif text:
        parts.append({"type": "text", "text": text})


def _content(parts: list[_Part]) -> str | list[_Part]:
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts
