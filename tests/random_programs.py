"""Random programs for property tests: valid, with whatever the IR has, the same for one seed everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from random import Random

from sglc.ir.core import Op, Program, Region, Site, Tree, Type, Value
from sglc.ir.ops import (
    Append,
    Arg,
    Call,
    Concat,
    Cond,
    Eq,
    Fork,
    Format,
    Gen,
    HostCall,
    Image,
    In,
    Join,
    Loop,
    Lower,
    Map,
    Not,
    Pack,
    ParseJson,
    PureCall,
    Resume,
    RoleClose,
    RoleOpen,
    Root,
    ScopeBegin,
    ScopeEnd,
    Select,
    Strip,
    Switch,
    Tool,
    types_of,
)
from sglc.ir.sampling import Sampling

ARGS = {"a": "alpha", "b": "", "s0": " s zero\n"}  # `s0` is also what the printer would call a stream
STREAMS = {"k0": "kept text. "}
_LITERALS = ("", "x", "You are a judge.\n", "You are a judge.\n", "<|im_end|>", 'l\'été \\ "q" \u2028\t', "y ")
_ASCII = ("", "x", "You are a judge.\n", "You are a judge.\n", "<|im_end|>", 'l\'ete \\ "q"', "y ")
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
    sections: tuple[str, ...] = ()


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
    regions: bool = False
    bools: list[Value] = field(default_factory=list)
    jsons: list[Value] = field(default_factory=list)
    flat_lists: list[Value] = field(default_factory=list)  # of texts only: what `map` can run over
    closed: list[tuple[Value, tuple[str, ...]]] = field(default_factory=list)  # texts that are one of a few
    depth: int = 0
    chat: bool = False
    images: bool = True
    literals: tuple[str, ...] = _LITERALS
    python: bool = True  # a `host_call` may stand here
    yielded_roles: list[str] = field(default_factory=list)  # of the arms that were built last

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

    @contextmanager
    def block(self, *, again: bool) -> Iterator[None]:
        """Build the ops of a region; `again`: it may run more than once, so nothing outside is continued."""
        names = (
            "ops",
            "streams",
            "texts",
            "choices",
            "lists",
            "bools",
            "jsons",
            "flat_lists",
            "closed",
            "python",
            "depth",
        )
        outside = {name: getattr(self, name) for name in names}
        copies = [replace(stream, used=stream.used or again) for stream in self.streams]
        self.ops, self.streams, self.depth = [], list(copies), self.depth + 1
        self.python = self.python and not again
        for name in names[2:9]:
            setattr(self, name, list(outside[name]))
        yield
        for name in names:
            setattr(self, name, outside[name])
        for stream, copy in zip(self.streams, copies, strict=True):
            stream.used = stream.used or (copy.used and not again)

    def text(self) -> Value | str:
        if self.texts and self.random.random() < 0.4:
            return self.random.choice(self.texts)
        return self.random.choice(self.literals)


def random_program(
    seed: int, *, chat: bool = False, regions: bool = False, images: bool = True, ascii_only: bool = False,
    python: bool = True, resumed: bool = True, length: int = 30,
) -> Program:  # fmt: skip
    """A verified program of about `length` ops.

    `chat`: text and generations stand inside turns only (system first, then user and assistant in
    turn), so that any chat template can render it; without it, roles come and go anywhere.
    `regions`: with control flow, operations on texts, functions and calls of other programs, and
    with `images` pictures, with `python` places where ordinary Python takes over. `resumed`: a stream of
    an earlier run is a parameter.
    """
    literals = _ASCII if ascii_only else _LITERALS
    b = _Builder(Random(seed), regions=regions, chat=chat, images=images, literals=literals, python=python)
    for name in ARGS:
        value = b.value(Type.TEXT)
        b.params.append(Arg(name, results=(value,)))
        b.texts.append(value)
        b.choices.append(value)
    if resumed and not chat:
        value = b.value(Type.STREAM)
        b.params.append(Resume("k0", results=(value,)))
        b.streams.append(_Stream(value))
    for _ in range(length):
        _step(b)
    streams = b.random.sample(b.streams, min(2, len(b.streams)))
    texts: list[Tree] = [*b.random.sample(b.texts, min(3, len(b.texts))), *b.lists[-1:]]
    kept = tuple(stream.value for stream in streams)
    returns: Tree = {"streams": kept, "texts": tuple(texts), "constants": (1, -0.5, None, True, "it's")}
    if regions:
        assert isinstance(returns, dict)
        returns |= {"values": (*b.bools[-2:], *b.jsons[-1:])}
        if python and b.random.random() < 0.1:
            b.ops.append(_host_call(b))
    return Program("f", tuple(b.params), tuple(b.ops), returns)


def _step(b: _Builder) -> None:
    if b.regions and b.random.random() < 0.45:
        b.random.choice(_WITH_REGIONS)(b)
        return
    choice = b.random.random()
    if not b.streams or choice < 0.08:
        (value,) = b.emit(Root(), Type.STREAM)
        b.streams.append(_Stream(value))
        return
    stream = b.random.choice(b.streams)
    if b.chat and not stream.role:
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
    if stream.used or (b.chat and not stream.role):
        return
    stream.used = True
    name = b.random.choice(("x", "y", "long name"))
    if b.random.random() < 0.3:
        choices = tuple(b.random.choice([*b.choices, "yes", "no"]) for _ in range(b.random.randrange(1, 4)))
        op: Op = Select(stream.value, b.site(stream.path, name), choices)
    else:
        op = Gen(stream.value, b.site(stream.path, name), b.random.choice(_SAMPLING))
    after, text = b.emit(op, Type.STREAM, Type.TEXT)
    if isinstance(op, Select) and all(isinstance(choice, str) for choice in op.choices):
        b.closed.append((text, tuple(str(choice) for choice in op.choices)))
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


# -- control flow ------------------------------------------------------------------------------------


def _value(b: _Builder) -> None:
    """An operation on texts."""
    match b.random.randrange(7):
        case 0:
            b.texts += b.emit(Strip(b.text()), Type.TEXT)
        case 1:
            b.texts += b.emit(Lower(b.text()), Type.TEXT)
        case 2:
            b.bools += b.emit(Eq(b.text(), b.text()), Type.BOOL)
        case 3:
            b.bools += b.emit(In(b.random.choice(("7", "a", "")), b.text()), Type.BOOL)
        case 4 if b.bools:
            b.bools += b.emit(Not(b.random.choice(b.bools)), Type.BOOL)
        case 5:
            spelled = b.random.choice(('{"a": [1, null]}', " -0.5e3 ", '"\\u00e9"', "[]"))
            b.jsons += b.emit(ParseJson(spelled), Type.JSON)
        case _:
            _flat_list(b)


def _twins(b: _Builder) -> None:
    """Equal prompts that both go on: with generations here, or in whatever comes."""
    stream, text = b.random.choice(b.streams or [None]), b.random.choice(("", "x", *b.texts[-1:]))
    if stream is None or (b.chat and not stream.role):
        return
    for _ in range(2):
        (value,) = b.emit(Append(stream.value, text), Type.STREAM)
        b.streams.append(replace(stream, value=value, used=False))
        if b.random.random() < 0.5:
            _generate(b, b.streams[-1])


def _flat_list(b: _Builder) -> Value:
    items = tuple(b.text() for _ in range(b.random.randrange(3)))
    if b.flat_lists and b.random.random() < 0.5:
        items = (*items, b.random.choice(b.flat_lists))
    (made,) = b.emit(Concat(items), Type.LIST)
    b.lists.append(made)
    b.flat_lists.append(made)
    return made


def _bool(b: _Builder) -> Value:
    if not b.bools or b.random.random() < 0.5:
        b.bools += b.emit(In(b.random.choice(("7", "a", "3")), b.text()), Type.BOOL)
    return b.random.choice(b.bools)


def _cond(b: _Builder) -> None:
    if b.depth < 3:
        pred = _bool(b)
        then, orelse = _arms(b, 2)
        _give(b, Cond(pred, then, orelse))


def _switch(b: _Builder) -> None:
    if b.depth < 3:
        if b.closed and b.random.random() < 0.5:
            value, choices = b.random.choice(b.closed)
            cases = tuple(dict.fromkeys(choices))
            _give(b, Switch(value, cases, tuple(_arms(b, len(cases)))))
            return
        cases = tuple(b.random.sample(["alpha", "", "x", "it's", " no "], b.random.randrange(3)))
        value = b.random.choice(b.texts)
        *arms, default = _arms(b, len(cases) + 1)
        _give(b, Switch(value, cases, tuple(arms), default))


def _give(b: _Builder, op: Op) -> None:
    """Emit the op, and put what its arms yield into play."""
    roles = b.yielded_roles
    results = b.emit(op, *types_of(op, 0))
    for value, role in zip(results, roles, strict=False):
        _play(b, value, role)


def _play(b: _Builder, value: Value, role: str = "") -> None:
    match value.type:
        case Type.STREAM:
            b.streams.append(_Stream(value, role=role))
        case Type.TEXT:
            b.texts.append(value)
        case Type.BOOL:
            b.bools.append(value)
        case Type.LIST:
            b.lists.append(value)
        case Type.JSON:
            b.jsons.append(value)


def _arms(b: _Builder, number: int) -> list[Region]:
    """Arms that yield the same types; a few hand over to Python instead."""
    kinds = [kind for kind in (Type.STREAM, Type.TEXT, Type.BOOL, Type.LIST) if b.random.random() < 0.4]
    roles = [b.random.choice(("", "", "user")) for _ in kinds]
    counts, after = dict(b.counts), dict(b.counts)
    used = [stream.used for stream in b.streams]
    ever = list(used)
    arms = []
    for _ in range(number):
        b.counts = dict(counts)  # exclusive arms may use the same sites
        for stream, before in zip(b.streams, used, strict=True):
            stream.used = before
        with b.block(again=False):
            _steps(b)
            if b.python and b.random.random() < 0.04:
                b.ops.append(_host_call(b))
                results: tuple[Value, ...] = ()
            else:
                results = tuple(_of(b, kind, role) for kind, role in zip(kinds, roles, strict=True))
            ops = tuple(b.ops)
        arms.append(Region((), ops, results))
        ever = [before or stream.used for before, stream in zip(ever, b.streams, strict=True)]
        for key, count in b.counts.items():
            after[key] = max(count, after.get(key, 0))
    for stream, before in zip(b.streams, ever, strict=True):
        stream.used = before
    b.counts, b.yielded_roles = after, roles
    return arms


def _steps(b: _Builder) -> None:
    for _ in range(b.random.randrange(5)):
        _step(b)


def _of(b: _Builder, kind: Type, role: str = "") -> Value:
    """A value of a kind, made if there is none; a stream in a turn of `role`."""
    match kind:
        case Type.STREAM:
            return _in_role(b, role)
        case Type.TEXT:
            return b.random.choice(b.texts)
        case Type.BOOL:
            return _bool(b)
        case Type.LIST:
            return b.random.choice(b.lists) if b.lists else _flat_list(b)
        case Type.JSON:
            raise AssertionError(kind)


def _in_role(b: _Builder, role: str, sections: tuple[str, ...] = ()) -> Value:
    """Any stream, brought to where a turn of `role` and `sections` are open."""
    if b.streams:
        stream = b.random.choice(b.streams)
        value, inside = _out_of_sections(b, stream), stream.role
    else:
        (value,) = b.emit(Root(), Type.STREAM)
        inside = ""
    if inside not in ("", role):
        (value,) = b.emit(RoleClose(value, inside), Type.STREAM)
        inside = ""
    if inside != role:
        (value,) = b.emit(RoleOpen(value, role), Type.STREAM)
    for name in sections:
        (value,) = b.emit(ScopeBegin(value, name), Type.STREAM)
    return value


def _out_of_sections(b: _Builder, stream: _Stream) -> Value:
    value = stream.value
    for name in reversed(stream.sections):
        (value,) = b.emit(ScopeEnd(value, name), Type.STREAM)
    return value


def _host_call(b: _Builder) -> HostCall:
    reads = [*b.random.sample(b.texts, 1), *(stream.value for stream in b.streams[-1:])]
    return HostCall("`open(...)` is ordinary Python", tuple(reads))


def _unused(b: _Builder, number: int) -> list[_Stream]:
    """Streams that may be continued; they count as continued from here on."""
    free = [stream for stream in b.streams if not stream.used]
    chosen = b.random.sample(free, min(number, len(free)))
    for stream in chosen:
        stream.used = True
    return chosen


def _loop(b: _Builder) -> None:
    if b.depth >= 3:
        return
    streams = _unused(b, b.random.randrange(3))
    texts = b.random.sample(b.texts, b.random.randrange(2))
    init = (*(stream.value for stream in streams), *texts)
    with b.block(again=True):
        params = tuple(b.value(value.type) for value in init)
        for param, stream in zip(params, streams, strict=False):
            b.streams.append(replace(stream, value=param, used=False))
        b.texts += params[len(streams) :]
        b.texts = b.texts[-4:]  # what the loop carries is read more often
        _steps(b)
        again = _bool(b)
        carried = (
            *(_in_role(b, stream.role, stream.sections) for stream in streams),
            *(_of(b, Type.TEXT) for _ in texts),
        )
        body = Region(params, tuple(b.ops), (again, *carried))
    op = Loop(init, b.random.randrange(1, 5), body)
    results = b.emit(op, *types_of(op, 0))
    for value, stream in zip(results, [*streams, *(None for _ in texts)], strict=True):  # type: ignore[assignment]
        if stream is None:
            _play(b, value)
        else:
            b.streams.append(_Stream(value, role=stream.role, sections=stream.sections))


def _map(b: _Builder) -> None:
    if b.depth >= 3:
        return
    items = _flat_list(b)
    with b.block(again=True):
        item = b.value(Type.TEXT)
        b.texts += [item, item]
        _steps(b)
        kinds = [b.random.choice((Type.TEXT, Type.TEXT, Type.LIST)) for _ in range(b.random.randrange(3))]
        body = Region((item,), (), tuple(_of(b, kind) for kind in kinds))
        body = replace(body, ops=tuple(b.ops))
    for kind, value in zip(kinds, b.emit(Map(items, body), *[Type.LIST] * len(kinds)), strict=True):
        b.lists.append(value)
        if kind is Type.TEXT:
            b.flat_lists.append(value)


def _call(b: _Builder) -> None:
    """Call a program of a few ops, which sometimes calls another one."""
    if b.depth >= 3:
        return
    streams = [stream for stream in _unused(b, b.random.randrange(2)) if not stream.sections]
    inner = _Builder(
        b.random,
        regions=True,
        depth=b.depth + 1,
        python=False,
        chat=b.chat,
        images=b.images,
        literals=b.literals,
    )
    text = inner.value(Type.TEXT)
    inner.params.append(Arg("p", results=(text,)))
    inner.texts.append(text)
    inner.choices.append(text)
    for stream in streams:
        resumed = inner.value(Type.STREAM)
        inner.params.append(Resume("q", role=stream.role, results=(resumed,)))
        inner.streams.append(_Stream(resumed, role=stream.role, turns=stream.turns))
    _steps(inner)
    kept = inner.random.sample(inner.streams, min(1, len(inner.streams)))
    ends = [_out_of_sections(inner, stream) for stream in kept]
    returned: Tree = {"text": inner.texts[-1], "more": (1, *ends)}
    called = Program("g", tuple(inner.params), tuple(inner.ops), returned)
    args = (b.text(), *(stream.value for stream in streams))
    op = Call(b.site((), "g"), args, called)
    results = b.emit(op, *types_of(op, 0))
    for value, role in zip(results, ["", *(stream.role for stream in kept)], strict=True):
        _play(b, value, role)


def _section(b: _Builder) -> None:
    """A named section begins or ends."""
    if not b.streams:
        return
    stream = b.random.choice(b.streams)
    if stream.sections and b.random.random() < 0.6:
        (value,) = b.emit(ScopeEnd(stream.value, stream.sections[-1]), Type.STREAM)
        sections = stream.sections[:-1]
    else:
        name = b.random.choice(("notes", "it's"))
        (value,) = b.emit(ScopeBegin(stream.value, name, b.random.random() < 0.5), Type.STREAM)
        sections = (*stream.sections, name)
    _move(b, stream, value)
    next(s for s in b.streams if s.value == value).sections = sections


def _movable(b: _Builder) -> None:
    """Sections beside each other, most of which may move; now and then something else reads between them."""
    stream = b.random.choice(b.streams or [None])
    if stream is None or b.random.random() < 0.6:
        (value,) = b.emit(Root(), Type.STREAM)
        if b.chat:
            (value,) = b.emit(RoleOpen(value, "user"), Type.STREAM)
        stream = _Stream(value, role="user" if b.chat else "", turns=1)
        b.streams.append(stream)
    if stream.used or (b.chat and not stream.role):
        return
    value = stream.value
    for _ in range(b.random.randrange(2, 5)):
        name = b.random.choice(("notes", "rules"))
        (value,) = b.emit(ScopeBegin(value, name, b.random.random() < 0.8), Type.STREAM)
        for _ in range(b.random.randrange(1, 3)):
            (value,) = b.emit(Append(value, b.text()), Type.STREAM)
        (value,) = b.emit(ScopeEnd(value, name), Type.STREAM)
        if b.random.random() < 0.15:
            (beside,) = b.emit(Append(value, b.text()), Type.STREAM)
            b.streams.append(replace(stream, value=beside, used=False))
        if b.random.random() < 0.1:
            (value,) = b.emit(Append(value, b.text()), Type.STREAM)
    _move(b, stream, value)


def _image(b: _Builder) -> None:
    if b.images and b.streams and not b.chat:
        stream = b.random.choice(b.streams)
        (value,) = b.emit(Image(stream.value, b.random.choice(("data:,x", *b.texts[-1:]))), Type.STREAM)
        _move(b, stream, value)


def _function(b: _Builder) -> None:
    """A tool, in program order or free, or a pure function; tests/soak_ir.py answers them by their names."""
    gives = b.random.choice(("text", "bool", "list", "json"))
    args = tuple(_data(b) for _ in range(b.random.randrange(3)))
    named = {"key": _data(b)} if b.random.random() < 0.4 else {}
    make = b.random.choice((Tool, PureCall))
    op: Op = make(f"{make.mnemonic} {gives}", args, named, gives)
    if isinstance(op, Tool) and b.values % 2:
        op = replace(op, name=f"free {gives}", order="free")
    (value,) = b.emit(op, Type(gives))
    _play(b, value)
    if gives == "list":
        b.flat_lists.append(value)


def _pack(b: _Builder) -> None:
    b.jsons += b.emit(Pack(_data(b)), Type.JSON)


def _data(b: _Builder) -> Tree:
    """Plain data with a few values in it."""
    values = [*b.texts[-2:], *b.bools[-1:], *b.lists[-1:], *b.jsons[-1:]]
    leaves: list[Tree] = [*values, *values, 1, True, 1.0, None, "it's", -0.0]
    match b.random.randrange(4):
        case 0:
            return (b.random.choice(leaves), b.random.choice(leaves))
        case 1:
            return {"a": b.random.choice(leaves), "b": (b.random.choice(leaves), {})}
        case _:
            return b.random.choice(leaves)


_WITH_REGIONS = (
    _value, _value, _twins, _cond, _switch, _loop, _map, _call, _section, _image, _function, _pack,
    _movable, _movable,
)  # fmt: skip
