"""What a prompt state went through: the parts that `messages()`, scopes and joins read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
    parts: list[tuple[str, str]] = []
    for part in since(history, None):
        if isinstance(part.item, Generated):
            text = read(part.item)
            parts.append(("text", str(text[0] if isinstance(text, list) else text)))
        else:
            parts.append((part.kind, str(part.item)))
    return conversation(parts)


def conversation(parts: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
    """The chat turns of (kind, text), where the kinds are those of `History`."""
    turns: list[tuple[str, list[_Part]]] = []
    inside = False
    for kind, text in parts:
        match kind:
            case "open":
                turns.append((text, []))
                inside = True
            case "close":
                inside = False
            case "image" if inside:
                turns[-1][1].append({"type": "image_url", "image_url": {"url": text}})
            case "text" if inside:
                own = turns[-1][1]
                if own and own[-1]["type"] == "text":
                    own[-1]["text"] += text
                elif text:
                    own.append({"type": "text", "text": text})
    return [{"role": role, "content": _content(own)} for role, own in turns]


_Part = dict[str, Any]


def _content(parts: list[_Part]) -> str | list[_Part]:
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts
