"""What a chat template writes around the contents of a conversation, found by rendering stand-ins.

Contents are replaced by stand-ins that occur nowhere else, so the text between them is markup.
Rendered texts with stand-ins in them are called views.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from threading import Lock
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from sglc.errors import SglcError
from sglc.ir.target import Tokenizer

ASSISTANT = "assistant"
_STAND_IN = re.compile("\ue0a1([0-9]+)\ue0a2")  # private use: no template and no tokenizer gives them a meaning
_PAD = " \n\t "
_MOST_TURNS = 200_000  # in all that is kept of a template: some 25 MB

_T = TypeVar("_T")
_Key = tuple[tuple[str, ...], bool | str]  # roles, and what is asked of their conversation


def stand_in(turn: int) -> str:
    """The text that stands for the content of turn `turn`."""
    return f"\ue0a1{turn}\ue0a2"


def pieces(view: str) -> list[str | int]:
    """A view cut into markup (never empty) and turn numbers, in order."""
    cut = _STAND_IN.split(view)
    return [int(part) if odd else part for i, part in enumerate(cut) if (odd := i % 2) or part]


@dataclass(slots=True)
class _Kept:
    """What a template says within a minute, as it may write the time; `turns` are those of all that is kept."""

    minute: datetime
    said: dict[_Key, Any] = field(default_factory=dict)
    turns: int = 0
    adding: Lock = field(default_factory=Lock)


_KEPT: WeakKeyDictionary[Tokenizer, _Kept] = WeakKeyDictionary()
"""Of every tokenizer: each launch of a program goes on behind the turns of those before it."""


class ChatMarkup:
    """The template of one tokenizer. Conversations are tuples of roles; answers are kept."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        kept, minute = _KEPT.get(tokenizer), datetime.now().replace(second=0, microsecond=0)
        if kept is None or kept.minute != minute:
            kept = _KEPT[tokenizer] = _Kept(minute)
        self._kept = kept

    def closed(self, roles: tuple[str, ...]) -> str | SglcError:
        """The view of whole turns; the template's error if it refuses such a conversation."""
        return self._view(roles, False)

    def opened(self, roles: tuple[str, ...]) -> str | SglcError | None:
        """The view up to where the last turn's content begins; None if the template does not show it yet."""
        *before, role = roles
        if role == ASSISTANT and before:
            return self._view(tuple(before), True)
        view = self.closed(roles)
        if isinstance(view, SglcError):
            return view
        head, mark, _ = view.partition(stand_in(len(before)))
        return head if mark else None

    def gap(self, roles: tuple[str, ...], view: str) -> str:
        """Markup that follows `view` where the last turn, the assistant's, begins with given text.

        Some templates write more before an answer in the history than when they ask for one. It
        counts only if it stays when the next turn follows.
        """
        closed, mark = self.closed(roles), stand_in(len(roles) - 1)
        if isinstance(closed, SglcError) or not closed.startswith(view):
            return ""
        gap, found, _ = closed[len(view) :].partition(mark)
        if not gap or not found or _STAND_IN.search(gap):
            return ""
        later = self.closed((*roles, "user"))
        return gap if isinstance(later, SglcError) or later.startswith(view + gap + mark) else ""

    def trims(self, roles: tuple[str, ...]) -> bool:
        """Whether the template strips white space round the last turn's content."""
        return not self._keeps(roles, _PAD, len(roles) - 1, _PAD)

    def drops_thinking(self, roles: tuple[str, ...]) -> bool:
        """Whether reasoning in the last turn, the assistant's, vanishes when a user turn follows."""
        return not self._keeps((*roles, "user"), "<think>\nso\n</think>\n\n", len(roles) - 1, "")

    def _keeps(self, roles: tuple[str, ...], before: str, turn: int, after: str) -> bool:
        """Whether a view shows `before` and `after` round a turn's content as they are."""
        plain = self.closed(roles)
        if isinstance(plain, SglcError):
            return True
        mark = stand_in(turn)
        wrapped, whole = before + mark + after, plain

        def shown() -> bool:
            contents = [wrapped if i == turn else stand_in(i) for i in range(len(roles))]
            return self._render(roles, contents, False) == whole.replace(mark, wrapped)

        return self.keep((roles, before), shown)

    def _view(self, roles: tuple[str, ...], generate: bool) -> str | SglcError:
        contents = map(stand_in, range(len(roles)))
        return self.keep((roles, generate), lambda: self._render(roles, contents, generate))

    def keep(self, key: _Key, make: Callable[[], _T]) -> _T:
        """What `make` gives of such turns, kept under them and a name for what it is."""
        found: _T | None = self.known(key)
        if found is None:
            found, kept = make(), self._kept
            with kept.adding:
                while kept.turns > _MOST_TURNS:
                    oldest = next(iter(kept.said))
                    del kept.said[oldest]
                    kept.turns -= len(oldest[0])
                if key not in kept.said:
                    kept.said[key] = found
                    kept.turns += len(key[0])
        return found

    def known(self, key: _Key) -> Any:
        """What is kept of such turns under a name; None: nothing."""
        return self._kept.said.get(key)

    def _render(self, roles: tuple[str, ...], contents: Iterable[str], generate: bool) -> str | SglcError:
        messages = [{"role": role, "content": text} for role, text in zip(roles, contents, strict=True)]
        try:
            return self._tokenizer.render(messages, generate=generate)
        except SglcError as error:
            error.__traceback__ = error.__context__ = None  # which hold the tokenizer
            return error
