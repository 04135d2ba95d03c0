"""Random programs for property tests: valid, with whatever the IR has, the same for one seed everywhere."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

from sglc.ir.core import Op, Program, Site, Tree, Type, Value
from sglc.ir.ops import Append, Arg, Fork, Format, Gen, Join, Resume, RoleClose, RoleOpen, Root, Select
from sglc.ir.sampling import Sampling

ARGS = {"a": "alpha", "b": "", "s0": " s zero\n"}  # `s0` is also what the printer would call a stream
STREAMS = {"k0": "kept text. "}
_LITERALS = ("", "x", "You are a judge.\n", "You are a judge.\n", "<|im_end|>", 'l\'été \\ "q" \u2028\t', "y ")
_SAMPLING = (
    Sampling(),
    Sampling(max_tokens=4, temperature=0),
    Sampling(max_tokens=7, n=3, stop=("\n", "."), top_p=0.9, seed=2**64 - 1),
)


@dataclass
class _Stream:
    value: Value
    path: tuple[int, ...] = ()
    role: str = ""
    turns: int = 0
    used: bool = False  # a generation continues it: only pure ops may read it again


@dataclass
class _Builder:
    random: Random
    params: list[Op] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    streams: list[_Stream] = field(default_factory=list)
    texts: list[Value] = field(default_factory=list)
    choices: list[Value] = field(default_factory=list)  # texts that a plan's `select` can name
    lists: list[Value] = field(default_factory=list)
    counts: dict[tuple[tuple[int, ...], str], int] = field(default_factory=dict)
    values: int = 0

    def value(self, kind: Type) -> Value:
        self.values += 1
        return Value(self.values - 1, kind)

    def emit(self, op: Op, *kinds: Type) -> tuple[Value, ...]:
        results = tuple(self.value(kind) for kind in kinds)
        self.ops.append(replace(op, results=results))
        return results

    def site(self, path: tuple[int, ...], name: str) -> Site:
        count = self.counts.get((path, name), 0)
        self.counts[path, name] = count + 1
        return Site("other" if self.random.random() < 0.1 else "f", path, name, count)

    def text(self) -> Value | str:
        if self.texts and self.random.random() < 0.4:
            return self.random.choice(self.texts)
        return self.random.choice(_LITERALS)


def random_program(seed: int, *, chat: bool = False, length: int = 30) -> Program:
    """A verified program of about `length` ops.

    `chat`: text and generations stand inside turns only (system first, then user and assistant in
    turn), so that any chat template can render it; without it, roles come and go anywhere.
    """
    b = _Builder(Random(seed))
    for name in ARGS:
        value = b.value(Type.TEXT)
        b.params.append(Arg(name, results=(value,)))
        b.texts.append(value)
        b.choices.append(value)
    if not chat:
        value = b.value(Type.STREAM)
        b.params.append(Resume("k0", results=(value,)))
        b.streams.append(_Stream(value))
    for _ in range(length):
        _step(b, chat)
    streams = b.random.sample(b.streams, min(2, len(b.streams)))
    texts: list[Tree] = [*b.random.sample(b.texts, min(3, len(b.texts))), *b.lists[-1:]]
    kept = tuple(stream.value for stream in streams)
    returns: Tree = {"streams": kept, "texts": tuple(texts), "constants": (1, -0.5, None, True, "it's")}
    return Program("f", tuple(b.params), tuple(b.ops), returns)


def _step(b: _Builder, chat: bool) -> None:
    choice = b.random.random()
    if not b.streams or choice < 0.08:
        (value,) = b.emit(Root(), Type.STREAM)
        b.streams.append(_Stream(value))
        return
    stream = b.random.choice(b.streams)
    if chat and not stream.role:
        _turn(b, stream)
    elif choice < 0.40:
        (value,) = b.emit(Append(stream.value, b.text()), Type.STREAM)
        _move(b, stream, value)
    elif choice < 0.52:
        _turn(b, stream)
    elif choice < 0.72:
        _generate(b, stream)
    elif choice < 0.80:
        _fork(b, stream)
    elif choice < 0.90:
        parts = tuple(b.text() for _ in range(b.random.randrange(4)))
        b.texts += b.emit(Format(parts), Type.TEXT)
    else:
        values = tuple(b.random.choice([None, *b.texts, *b.lists]) for _ in range(b.random.randrange(1, 4)))
        b.lists += b.emit(Join(b.site(stream.path, "all"), values), Type.LIST)


def _move(b: _Builder, stream: _Stream, value: Value, *, role: str | None = None, turns: int = 0) -> None:
    """The stream goes on at `value`; now and then the old place stays in play, which shares its prefix."""
    moved = replace(stream, value=value, used=False, turns=stream.turns + turns)
    if role is not None:
        moved.role = role
    b.streams.append(moved)
    if b.random.random() < 0.8:
        b.streams.remove(stream)


def _turn(b: _Builder, stream: _Stream) -> None:
    if stream.role:
        (value,) = b.emit(RoleClose(stream.value, stream.role), Type.STREAM)
        _move(b, stream, value, role="")
        return
    order = ("user", "assistant")
    role = "system" if stream.turns == 0 and b.random.random() < 0.5 else order[stream.turns % 2]
    # A system turn is not counted among the alternating ones: -100 keeps `turns` even and above no other.
    (value,) = b.emit(RoleOpen(stream.value, role), Type.STREAM)
    _move(b, stream, value, role=role, turns=100 if role == "system" else 1)


def _generate(b: _Builder, stream: _Stream) -> None:
    if stream.used:
        return
    stream.used = True
    name = b.random.choice(("x", "y", "long name"))
    if b.random.random() < 0.3:
        choices = tuple(b.random.choice([*b.choices, "yes", "no"]) for _ in range(b.random.randrange(1, 4)))
        op: Op = Select(stream.value, b.site(stream.path, name), choices)
    else:
        op = Gen(stream.value, b.site(stream.path, name), b.random.choice(_SAMPLING))
    after, text = b.emit(op, Type.STREAM, Type.TEXT)
    b.texts.append(text)
    b.choices.append(text)
    b.streams.remove(stream)
    b.streams.append(replace(stream, value=after, used=False))


def _fork(b: _Builder, stream: _Stream) -> None:
    size = b.random.randrange(1, 4)
    labels = tuple(f"label {i}" for i in range(size)) if b.random.random() < 0.5 else ()
    values = b.emit(Fork(stream.value, labels), *[Type.STREAM] * size)
    for i, value in enumerate(values):
        b.streams.append(replace(stream, value=value, path=(*stream.path, i), used=False))
