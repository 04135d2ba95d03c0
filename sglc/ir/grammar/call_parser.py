"""From a text that comes in pieces to the calls of functions in it.

Invariants: however a text is cut into pieces, it has the same content and the same calls; what is no whole
call of a known tool is content, and nothing raises. A text with many that are none has no calls behind them.
Where a text that is held to calls ends inside one, what was written of it beside its arguments is no content.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass

from sglc.ir.grammar.call_format import CallFormat

_LONGEST = 256  # characters up to a call's arguments, and of what closes it
_MOST_READ_AGAIN = 64  # calls that turn out to be none, in one text; each is read once more, to the text's end


@dataclass(frozen=True, slots=True)
class CallPiece:
    """More of the call number `index`; its first piece has its name. The arguments add up to JSON."""

    index: int
    arguments: str
    name: str | None = None


@dataclass(slots=True)
class ToolCall:
    """A call as it was written; it is not `whole` where the text ended inside it."""

    name: str
    arguments: str
    whole: bool = False


class CallParser:
    """Reads one text. White space at its beginning or end is no content if a call is there.

    Args:
        names: of the tools; a call of another one is content.
        held: whether the text is held to the form of calls. Then arguments are told as they come, and a call
            may be cut where the text ends. Otherwise a call is told when it has turned out to be whole.
        alone: whether it is held to calls alone.
    """

    def __init__(self, how: CallFormat, names: Collection[str], *, held: bool, alone: bool = False) -> None:
        self._how = how
        self._names = names
        self._held = held
        self._alone = held and alone
        self.calls: list[ToolCall] = []
        self._rest = ""  # not read yet
        self._call = ""  # of the call that is being read, as it was written up to its arguments, and they
        self._name: str | None = None
        self._arguments = ""
        self._scan: _ObjectEnd | None = None
        self._blank = ""  # white space that is content if text follows
        self._read_again = 0
        self._shows = False  # whether there was content
        self._behind = False  # whether a call was the last, white space aside

    def feed(self, piece: str) -> tuple[str, list[CallPiece]]:
        """More text: what is now known to be content, and what of calls."""
        return self._read(piece, ended=False)

    def end(self) -> tuple[str, list[CallPiece]]:
        """No more text comes: what was held back."""
        content, calls = self._read("", ended=True)
        return content + ("" if self._behind else self._blank), calls

    @property
    def whole(self) -> bool:
        """Whether there are calls, and all of them are whole."""
        return bool(self.calls) and self.calls[-1].whole

    def _read(self, piece: str, *, ended: bool) -> tuple[str, list[CallPiece]]:
        self._rest += piece
        content: list[str] = []
        pieces: list[CallPiece] = []
        while self._step(content, pieces, ended=ended):
            pass
        return "".join(content), pieces

    def _step(self, content: list[str], pieces: list[CallPiece], *, ended: bool) -> bool:
        """Read on; whether there is more to be read now."""
        if self._name is None:
            return self._text(content, pieces, ended=ended)
        if self._scan is not None:
            return self._object(content, pieces, ended=ended)
        return self._close(content, pieces, ended=ended)

    def _text(self, content: list[str], pieces: list[CallPiece], *, ended: bool) -> bool:
        rest, marker = self._rest, self._how.marker
        at = rest.find(marker)
        if at < 0:
            kept = held_back(rest, marker)
            self._rest = rest[len(rest) - kept :]
            content.append(self._shown(rest[: len(rest) - kept]))
            # The beginning of a marker may be text as well, unless nothing but calls is to be expected here.
            if ended and not (self._alone or (self._held and self._behind)):
                content.append(self._shown(self._rest))
            return False
        content.append(self._shown(rest[:at]))
        self._rest = rest = rest[at:]
        found = self._how.before.match(rest[:_LONGEST])
        if found is None and len(rest) < _LONGEST and not ended:
            return False
        if found is None and self._held and any(self._how.begun(name).startswith(rest) for name in self._names):
            self._behind = True  # for the white space before it
            return False
        if found is None or found[1] not in self._names or self._read_again == _MOST_READ_AGAIN:
            content.append(self._shown(marker))
            self._rest = rest[len(marker) :]
            return True
        self._name, self._call, self._rest = found[1], found[0], rest[found.end() :]
        self._arguments, self._scan = "", _ObjectEnd()
        if self._held:
            self._tell(pieces, "")
        return True

    def _object(self, content: list[str], pieces: list[CallPiece], *, ended: bool) -> bool:
        """The arguments."""
        assert self._scan is not None
        length = self._scan.read(self._rest)
        part, self._rest = self._rest[:length], self._rest[length:]
        self._arguments += part
        if self._held and part:
            self.calls[-1].arguments += part
            pieces.append(CallPiece(len(self.calls) - 1, part))
        if self._scan.closed:
            self._scan = None
            return True
        return self._give_up(content) if ended else False

    def _close(self, content: list[str], pieces: list[CallPiece], *, ended: bool) -> bool:
        found = self._how.behind.match(self._rest[:_LONGEST])
        if found is None and ended and self._held and self._how.end.startswith(self._rest):
            return False  # cut in its end
        if found is None:
            return self._give_up(content) if ended or len(self._rest) >= _LONGEST else False
        if not self._held:
            if not _is_json(self._arguments):
                return self._give_up(content)
            self._tell(pieces, self._arguments)
        self.calls[-1].whole = True
        self._name, self._rest = None, self._rest[found.end() :]
        return True

    def _tell(self, pieces: list[CallPiece], arguments: str) -> None:
        assert self._name is not None
        self._behind = True
        self.calls.append(ToolCall(self._name, arguments))
        pieces.append(CallPiece(len(self.calls) - 1, arguments, self._name))

    def _give_up(self, content: list[str]) -> bool:
        """It is no whole call. What was told of it stays one; what was not is content, and read once more."""
        self._name = self._scan = None
        if not self._held:
            self._read_again += 1
            content.append(self._shown(self._how.marker))
            self._rest = (self._call + self._arguments)[len(self._how.marker) :] + self._rest
        return True

    def _shown(self, text: str) -> str:
        """Content, without the white space at its end, which may turn out to be none."""
        text = self._blank + text
        shown = text.rstrip()
        self._blank = text[len(shown) :]
        if shown and self._behind:
            shown, self._behind = shown if self._shows else shown.lstrip(), False
        self._shows = self._shows or bool(shown)
        return shown


class _ObjectEnd:
    """Finds where an object of JSON ends that comes in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._quoted = False
        self._escaped = False
        self.closed = False

    def read(self, text: str) -> int:
        """How many characters of `text` are its own."""
        for at, char in enumerate(text):
            if self._escaped:
                self._escaped = False
            elif char == '"':
                self._quoted = not self._quoted
            elif self._quoted:
                self._escaped = char == "\\"
            elif char == "{":
                self._depth += 1
            elif char == "}":
                self._depth -= 1
                if not self._depth:
                    self.closed = True
                    return at + 1
        return len(text)


def _is_json(text: str) -> bool:
    try:
        json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return False
    return True


def _no_constant(name: str) -> None:
    raise ValueError(f"`{name}` is no JSON")


def held_back(text: str, marker: str) -> int:
    """How many characters at the end of `text` may be the beginning of `marker`."""
    return next((n for n in range(min(len(marker) - 1, len(text)), 0, -1) if marker.startswith(text[-n:])), 0)
