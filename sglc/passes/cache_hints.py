"""What APIs that keep prompts are told of prompts that begin alike."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from sglc.ir.core import Op, Program, Value, with_regions
from sglc.ir.ops import (
    Append,
    Call,
    Fork,
    Format,
    Gen,
    Image,
    PureCall,
    RoleClose,
    RoleOpen,
    Root,
    ScopeBegin,
    ScopeEnd,
    Select,
)
from sglc.ir.pure import READ_PICTURE
from sglc.ir.remark import Remark, place
from sglc.ir.target import Target
from sglc.passes.base import Exactness, Kind, Rewrite, register
from sglc.passes.pass_options import Count

BYTES_PER_TOKEN = 4  # of English; there is no tokenizer of an API here, and a key too many costs nothing
PICTURE_BYTES = 1_000 * BYTES_PER_TOKEN  # as much as vendors count for a picture of usual size


@register("cache_hints", Exactness.TOKENS, "an API is told which prompts begin alike", Kind.ENABLING)
def cache_hints(program: Program, target: Target, *, min_tokens: Count = 0) -> Rewrite:
    """Name the stable prefix of every generation behind a long one, where the API wants to know it.

        s1 = role_open(s0, 'system'); s2 = append(s1, 'The manual: ...'); ...; s9, t0 = gen(s8, 'x')
            -> the same, with s9, t0 = gen(s8, 'x', cache_key='sglc-5f0c...')

    A stable prefix is what stands from the beginning of the prompt up to the first text that an argument
    or a model decides, pictures that the program names among it: it is the same in every row. Its hash is the
    key, so requests that begin alike, of one row or of many, of this run or the next, go where the prefix is
    kept. An API that keeps whole turns (`Takes.cache_turns`) has a key of those, which ends in their number:
    `sglc-5f0c...-2`. Prefixes that are sure to be too short to be kept, of less than `min_tokens` (0: of what
    the API keeps), get none. No prompt changes.
    """
    takes = target.takes
    if not takes.cache_key:
        return program
    remarks: dict[str, Remark] = {}
    least = _Least(min_tokens or takes.cache_least, takes.cache_turns)
    return _hinted(program, remarks, least), tuple(remarks.values())


@dataclass(frozen=True, slots=True)
class _Least:
    """What is kept: prefixes of so many tokens, or only the whole `turns` in them."""

    tokens: int
    turns: bool


@dataclass(slots=True)
class _Prefix:
    """What a stream begins with in every row. `open`: nothing else stands in it yet.

    `turns` have ended in it, and `whole` is it up to the end of the last one.
    """

    hash: hashlib._Hash
    length: int = 0  # bytes of text, and what pictures are counted for
    open: bool = True
    turns: int = 0
    whole: _Prefix | None = None

    def plus(self, text: str, mark: bytes = b"") -> _Prefix:
        """The prefix with more text, or with a `mark` that no text can be."""
        if not self.open:
            return self
        more = self.hash.copy()
        data = text.encode("utf-8", "surrogatepass")
        more.update(mark + data + mark)
        return replace(self, hash=more, length=self.length + len(data))

    def turned(self) -> _Prefix:
        """The prefix behind the end of a turn."""
        if not self.open:
            return self
        ended = replace(self, turns=self.turns + 1, whole=None)
        return replace(ended, whole=ended)

    def pictured(self, picture: str) -> _Prefix:
        """The prefix with a picture, that of a file by its path; "" if an argument or a model decides it."""
        if not (picture and self.open):
            return self.closed()
        return replace(self.plus(picture, b"\xfe"), length=self.length + PICTURE_BYTES)

    def closed(self) -> _Prefix:
        return replace(self, open=False)


def _hinted(program: Program, remarks: dict[str, Remark], least: _Least) -> Program:
    prefixes: dict[Value, _Prefix] = {}
    formats: dict[Value, Format] = {}
    files: dict[Value, str] = {}  # of pictures, by their paths

    def block(ops: Iterable[Op]) -> tuple[Op, ...]:
        return tuple([changed(op) for op in ops])

    def changed(op: Op) -> Op:
        match op:
            case Root():
                prefixes[op.results[0]] = _Prefix(hashlib.sha256())
            case Format():
                formats[op.results[0]] = op
            case Append() if op.stream in prefixes:
                prefixes[op.results[0]] = _appended(prefixes[op.stream], op.text, formats)
            case RoleOpen() | RoleClose() if op.stream in prefixes:
                made = prefixes[op.stream].plus(f"{op.mnemonic} {op.role}", b"\xff")
                prefixes[op.results[0]] = made.turned() if isinstance(op, RoleClose) else made
            case Fork() | ScopeBegin() | ScopeEnd() if op.stream in prefixes:
                prefixes.update(dict.fromkeys(op.results, prefixes[op.stream]))
            case PureCall(name=name, args=(str() as path,)) if name == READ_PICTURE:
                files[op.results[0]] = path
            case Image() if op.stream in prefixes:
                picture = op.data if isinstance(op.data, str) else files.get(op.data, "")
                prefixes[op.results[0]] = prefixes[op.stream].pictured(picture)
            case Gen() | Select() if op.stream in prefixes:
                prefixes[op.results[0]] = prefixes[op.stream].closed()
                return replace(op, cache_key=_key(prefixes[op.stream], op, remarks, least))
            case Call():
                return replace(op, program=_hinted(op.program, remarks, least))
        return with_regions(op, lambda held: replace(held, ops=block(held.ops)))

    return replace(program, ops=block(program.ops))


def _appended(prefix: _Prefix, text: Value | str, formats: Mapping[Value, Format]) -> _Prefix:
    parts = formats[text].parts if isinstance(text, Value) and text in formats else (text,)
    for part in parts:
        if isinstance(part, Value):
            return prefix.closed()
        prefix = prefix.plus(part)
    return prefix


def _key(prefix: _Prefix, op: Op, remarks: dict[str, Remark], least: _Least) -> str:
    """The key of a prefix; "" for one that is too short."""
    kept = prefix.whole if least.turns else prefix
    tokens = kept.length // BYTES_PER_TOKEN if kept is not None else 0
    if kept is None or tokens < least.tokens:
        return ""
    key = f"sglc-{kept.hash.hexdigest()[:24]}" + (f"-{kept.turns}" if least.turns else "")
    said = f"about {tokens} tokens stand before the first argument: they are kept under `{key}`"
    remarks.setdefault(key, Remark("cache_hints", said, place(op.loc)))
    return key
