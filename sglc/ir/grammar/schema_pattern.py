"""The regular expressions of JSON schemas, which are JavaScript's, in the syntax of llguidance: Rust's.

They are read with the flag `u`, so that a character is a code point; beside that, what JavaScript takes without
the flag is taken where it can mean one thing only: `\\-` outside of a class, a `{` that begins no repeat. A
pattern is searched for: `^` and `$` keep their meaning, and without them anything may stand around it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from sglc.errors import LegalizeError, shown
from sglc.ir.grammar.regex import DIGIT, WORD, Range, complement
from sglc.ir.remembered import remembered

_LAST = 0x10FFFF
_LINE_ENDS: list[Range] = [(10, 10), (13, 13), (0x2028, 0x2029)]
_SPACE: list[Range] = [
    (9, 13), (32, 32), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F),
    (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF),
]  # fmt: skip
_CLASSES = {"d": DIGIT, "w": WORD, "s": _SPACE}
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13}
_REPEAT = re.compile(r"(?:[*+?]|\{([0-9]+)(?:(,)([0-9]*))?\})\??")
_MOST_DIGITS = 9  # of a bound
_QUOTED = (ord('"'), ord("\\"))  # in JSON
_PROPERTY = re.compile(r"\{[\w=]+\}")
_ESCAPED = re.compile(r"x([0-9A-Fa-f]{2})|u\{([0-9A-Fa-f]+)\}|u([0-9A-Fa-f]{4})|c([A-Za-z])|0(?![0-9])")
_LOW = re.compile(r"\\u([Dd][C-Fc-f][0-9A-Fa-f]{2})")
_GROUP = re.compile(r"\(\?(?::|<[A-Za-z_$][\w$]*>)")
_LOOKAROUND = re.compile(r"\(\?<?[=!]")


@remembered(1024)
def rust_pattern(pattern: str) -> str:
    """`pattern` as llguidance reads it.

    Raises:
        LegalizeError: SGLC450 it is no regular expression; SGLC451 it has a part that no automaton can do.
    """
    return _Reader(pattern).whole()


class _Reader:
    """Reads a pattern from its start to its end, and writes it anew."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._open = 0

    def whole(self) -> str:
        made: list[str] = []
        repeatable = False  # whether what came last can be repeated
        while self._at < len(self._pattern):
            begun = self._at
            piece, repeatable = self._piece(repeatable)
            if piece == ")" and not self._open:
                raise self._wrong("`)` without `(`", begun)
            self._open += (piece[0] == "(" and piece[-1] in "(:") - (piece == ")")
            made.append(piece)
        if self._open:
            raise self._wrong("`(` without `)`", len(self._pattern))
        return "".join(made)

    def _piece(self, repeatable: bool) -> tuple[str, bool]:
        """The next piece, written anew, and whether a repeat may follow."""
        char = self._pattern[self._at]
        if char in "*+?{" and (repeat := _REPEAT.match(self._pattern, self._at)) is not None:
            if not repeatable:
                raise self._wrong("a repeat of nothing", self._at)
            self._at = repeat.end()
            least, _, most = repeat.groups()
            if max(len(least or ""), len(most or "")) > _MOST_DIGITS:
                raise self._refused("a repeat whose bounds are too large", repeat.start())
            if least and most and int(most) < int(least):
                raise self._wrong("a repeat whose bounds are in the wrong order", repeat.start())
            return repeat[0].removesuffix("?") if len(repeat[0]) > 1 else repeat[0], False
        match char:
            case "(":
                return self._group(), False
            case ")":
                self._at += 1
                return ")", True
            case "|" | "^" | "$":
                self._at += 1
                return char, False
            case "[":
                return self._class(), True
            case ".":
                self._at += 1
                return written(complement(_LINE_ENDS)), True
            case "\\":
                found = self._escape(inside=False)
                return found if isinstance(found, str) else written(found), True
            case _:
                self._at += 1
                return written([(ord(char), ord(char))]), True

    def _group(self) -> str:
        if _LOOKAROUND.match(self._pattern, self._at):
            raise self._refused("a lookahead or lookbehind")
        named = _GROUP.match(self._pattern, self._at)
        if named is None and self._pattern.startswith("(?", self._at):
            raise self._refused("a flag or a group of another language")
        self._at = named.end() if named is not None else self._at + 1
        return "(?:"

    def _escape(self, *, inside: bool) -> list[Range] | str:
        """What an escape stands for: code points, or a property that Rust knows by that name."""
        begun = self._at
        self._at += 2
        char = self._pattern[begun + 1 : begun + 2]
        if not char:
            raise self._wrong("a `\\` at the end", begun)
        if char.lower() in _CLASSES:
            found = _CLASSES[char.lower()]
            return found if char.islower() else complement(found)
        if char in _CONTROLS or (inside and char == "b"):
            code = _CONTROLS.get(char, 8)
            return [(code, code)]
        if char in "pP" and (name := _PROPERTY.match(self._pattern, self._at)) is not None:
            self._at = name.end()
            return f"\\{char}{name[0]}"
        coded = _ESCAPED.match(self._pattern, begun + 1)
        if coded is not None:
            self._at = coded.end()
            code = self._code(coded)
            return [(code, code)]
        if char in "bB":
            raise self._refused("`\\b` or `\\B`", begun)
        if char in "123456789k":
            raise self._refused("a reference to a group", begun)
        if char.isalnum():
            raise self._wrong(f"the escape `\\{char}`", begun)
        return [(ord(char), ord(char))]

    def _code(self, coded: re.Match[str]) -> int:
        hexadecimal, long, short, control = coded.groups()
        if control:
            return ord(control) % 32
        code = int(hexadecimal or long or short or "0", 16)
        if 0xD800 <= code < 0xDC00 and (low := _LOW.match(self._pattern, self._at)) is not None:
            self._at = low.end()
            code = 0x10000 + (code - 0xD800) * 0x400 + int(low[1], 16) - 0xDC00
        if code > _LAST or 0xD800 <= code < 0xE000:
            raise self._wrong("a code that is no character", coded.start())
        return code

    def _class(self) -> str:
        begun = self._at
        self._at += 1
        negated = self._pattern.startswith("^", self._at)
        self._at += negated
        ranges: list[Range] = []
        properties: list[str] = []
        while not self._pattern.startswith("]", self._at):
            first = self._member(begun)
            if isinstance(first, str):
                properties.append(first)
                continue
            dashed = self._pattern.startswith("-", self._at) and not self._pattern.startswith("-]", self._at)
            if not dashed:
                ranges += first
                continue
            self._at += 1
            last = self._member(begun)
            if isinstance(last, str) or not _is_one(first) or not _is_one(last) or last[0][0] < first[0][0]:
                raise self._wrong("a range of a class", begun)
            ranges.append((first[0][0], last[0][0]))
        self._at += 1
        if properties:
            if negated and any(_has(ranges, code) for code in _QUOTED):
                ranges.append((0, 0))  # as of `_sound`
            inside = "".join(properties) + _inside(ranges)
            return f"[{'^' * negated}{inside}]"
        return written(_sound(complement(ranges) if negated else ranges))

    def _member(self, begun: int) -> list[Range] | str:
        char = self._pattern[self._at : self._at + 1]
        if not char:
            raise self._wrong("a class without its end", begun)
        if char == "\\":
            if self._pattern.startswith("\\-", self._at):
                self._at += 2
                return [(45, 45)]
            return self._escape(inside=True)
        self._at += 1
        return [(ord(char), ord(char))]

    def _refused(self, what: str, at: int | None = None) -> LegalizeError:
        return LegalizeError(
            "SGLC451", f"`{shown(self._pattern)}` has {what}, which cannot constrain a generation",
            note=f"at position {self._at if at is None else at} of the pattern",
            hint="literals, classes, groups, `|`, repeats, `^` and `$` can",
        )  # fmt: skip

    def _wrong(self, what: str, at: int) -> LegalizeError:
        return LegalizeError(
            "SGLC450", f"`{shown(self._pattern)}` is no regular expression",
            note=f"at position {at} of the pattern: {what}", hint="mend the pattern",
        )  # fmt: skip


def _is_one(ranges: list[Range]) -> bool:
    return len(ranges) == 1 and ranges[0][0] == ranges[0][1]


def _has(ranges: Iterable[Range], code: int) -> bool:
    return any(first <= code <= last for first, last in ranges)


def _sound(ranges: list[Range]) -> list[Range]:
    """A class that llguidance does not take for a larger one; it may be without U+0000.

    Where a class has all control characters (U+000A or not), it lets every short escape of JSON through, those
    of `"` and the backslash too (seen in 1.9.1).
    """
    if all(_has(ranges, code) for code in _QUOTED):
        return ranges
    if not all(_has(ranges, code) for code in range(32) if code != ord("\n")):
        return ranges
    return [(max(first, 1), last) for first, last in ranges if last]


def written(ranges: list[Range]) -> str:
    """A class; a single character as itself where that is clear."""
    if _is_one(ranges):
        char = chr(ranges[0][0])
        return char if char.isascii() and char.isalnum() else f"\\x{{{ranges[0][0]:x}}}"
    return f"[{_inside(ranges)}]" if ranges else r"[^\x{0}-\x{10ffff}]"


def _inside(ranges: Iterable[Range]) -> str:
    return "".join(f"\\x{{{first:x}}}-\\x{{{last:x}}}" for first, last in ranges)
