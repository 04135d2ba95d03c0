"""What goes between a program and the runtime's process: commands there, reports back, as msgpack.

msgspec writes and checks the plan's dataclasses by their annotations. It has no unions of dataclasses, so
a member of a union is written as `[kind, fields]`, and text as itself. `KINDS` numbers the members: a new
node, part or event needs an entry. Nothing is ever unpickled.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import lru_cache
from operator import attrgetter
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Raw, Struct

from sglc import errors
from sglc.errors import BackendError, Loc, SglcError
from sglc.ir.plan.events import Delta, Event, GenDone, NodeFailed, PackedIds, Sample, SelectDone, TokenLogprob
from sglc.ir.plan.hints import Hints
from sglc.ir.plan.segment import (
    EncodedText,
    ExtendNode,
    ForkNode,
    GenNode,
    ImagePart,
    KeepNode,
    Made,
    Node,
    NodeResult,
    OpenNode,
    ReleaseNode,
    RoleMark,
    Segment,
    SelectNode,
    Slot,
    Waits,
    reads,
    waits_of,
)
from sglc.ir.target import ControlText

COMMANDS, REPORTS = "commands", "reports"  # names of the two sockets in their folder
EBNF, NO_EBNF = b"e", b"\0"  # what comes with a form for `compile_server`: whether it is a grammar
_RUN_DONE = 0  # instead of an event: no more will come
_HALF_PAIRS = 0  # instead of a part: text that is no UTF-8
KINDS: Mapping[int, type] = {
    1: OpenNode,
    2: ExtendNode,
    3: GenNode,
    4: SelectNode,
    5: ForkNode,
    6: KeepNode,
    7: ReleaseNode,
    20: ControlText,
    21: Slot,
    22: NodeResult,
    23: ImagePart,
    24: RoleMark,
    25: Made,
    26: EncodedText,
    40: Delta,
    41: GenDone,
    42: SelectDone,
    43: NodeFailed,
}
_NUMBERS = {kind: number for number, kind in KINDS.items()}
_ENCODED = _NUMBERS[EncodedText]  # which is written as the bytes of its ids
ERRORS: Mapping[str, type[SglcError]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, SglcError)
}

_T = TypeVar("_T")
_NODES = frozenset(get_args(Node))
_NOT_IT = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)  # of bytes that are not what is read
_Tagged = tuple[int, Raw]


# -- frames ----------------------------------------------------------------------------------------


class Problem(Struct, array_like=True, frozen=True):
    """An error of `SglcError`'s tree; `kind` is its class."""

    kind: str
    code: str
    message: str
    loc: Loc | None
    note: str
    hint: str


class Submit(Struct, tag=True, array_like=True, frozen=True):
    """Start a segment; `run` names it from now on. Without `streams` no deltas are wanted.

    Its `nodes` are those of many rows, which differ by what comes apart: `prompts`, of the `ExtendNode`s that
    have no parts, and `seeds`, of the generations. Nodes that are `compiling` wait for `Compiled`.
    """

    run: int
    nodes: Raw
    gives: tuple[tuple[str, int], ...] = ()
    streams: bool = True
    compiling: tuple[int, ...] = ()
    priority: int = 0
    share: str = ""
    namespace: str = ""
    hints: Hints | None = None
    room: int = 0
    prompts: tuple[tuple[bytes, ...], ...] = ()  # ids, part by part
    seeds: tuple[int | None, ...] = ()


class Compiled(Struct, tag=True, array_like=True, frozen=True):
    """What a node of a run is held to is compiled, or there is a `problem` with it."""

    run: int
    node: int
    problem: Problem | None


class Abort(Struct, tag=True, array_like=True, frozen=True):
    """Stop what is left of a run: no further events are wanted."""

    run: int


class Flush(Struct, tag=True, array_like=True, frozen=True):
    """Forget every cached prefix that no run uses; an `WorkerAnswer` without content says when."""

    question: int


class Follow(Struct, tag=True, array_like=True, frozen=True):
    """Tell in a `WorkerAnswer` what has changed in the cache, as `RadixTree.follow`."""

    question: int
    count: int | None = None


class Info(Struct, tag=True, array_like=True, frozen=True):
    """Tell device, sizes and counters in an `WorkerAnswer`."""

    question: int


class Close(Struct, tag=True, array_like=True, frozen=True):
    """Fail what runs, and end."""


Command = Submit | Compiled | Abort | Flush | Follow | Info | Close


class Hello(Struct, tag=True, array_like=True, frozen=True):
    """The process listens; the model is being loaded."""


class WorkerReady(Struct, tag=True, array_like=True, frozen=True):
    """The model is loaded, and has room for so many tokens in its cache."""

    cache_tokens: int


class Events(Struct, tag=True, array_like=True, frozen=True):
    """What one step brought, in order: (run, kind, event)."""

    batch: Sequence[tuple[int, int, Raw]]


class WorkerAnswer(Struct, tag=True, array_like=True, frozen=True):
    """To `Flush`, `Follow` or `Info`."""

    question: int
    content: dict[str, Any]


class WorkerState(Struct, tag=True, array_like=True, frozen=True):
    """What an answer to `Info` would have, told now and then while there is work."""

    content: dict[str, Any]


class WorkerEnded(Struct, tag=True, array_like=True, frozen=True):
    """The last frame: the process ends, for `problem` if it was not told to."""

    problem: Problem | None


Report = Hello | WorkerReady | Events | WorkerAnswer | WorkerState | WorkerEnded

_ENCODER = msgspec.msgpack.Encoder()
_COMMANDS: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
_BUNDLES = msgspec.msgpack.Decoder(list[bytes])
_REPORTS: msgspec.msgpack.Decoder[Report] = msgspec.msgpack.Decoder(Report)


def encode(frame: Command | Report) -> bytes:
    """A frame as msgpack."""
    return _ENCODER.encode(frame)


def decode_command(frame: bytes) -> Command:
    """What the program says.

    Raises:
        BackendError: SGLC507, these bytes are no command.
    """
    return _decoded(_COMMANDS, frame)


def bundled(frames: Sequence[bytes]) -> bytes:
    """Commands as one message."""
    return _ENCODER.encode(frames)


def frames_of(message: bytes) -> list[bytes]:
    """The commands that `bundled` took; what it did not make is one that `decode_command` refuses."""
    with suppress(*_NOT_IT):
        if frames := _BUNDLES.decode(message):
            return frames
    return [message]


def decode_report(frame: bytes) -> Report:
    """What the runtime's process says.

    Raises:
        BackendError: SGLC507, these bytes are no report.
    """
    return _decoded(_REPORTS, frame)


# -- segments --------------------------------------------------------------------------------------


def encode_submit(
    run: int, segment: Segment, *, streams: bool = True, compiling: tuple[int, ...] = ()
) -> bytes:
    """The command that starts `segment`.

    Raises:
        BackendError: SGLC508, it holds what cannot be written.
    """
    told = (
        segment.gives, streams, compiling, segment.priority, segment.share, segment.namespace, segment.hints,
        segment.room,
    )  # fmt: skip
    try:
        try:
            return _ENCODER.encode(Submit(run, *_apart(segment.nodes, told)))
        except UnicodeEncodeError:
            # Half of a surrogate pair in a prompt: which node fails for it is the runtime's to say.
            return _ENCODER.encode(Submit(run, *_apart(segment.nodes, told, half_pairs=True)))
    except (UnicodeEncodeError, OverflowError) as error:
        raise BackendError("SGLC508", f"the runtime's process cannot be told this: {error}") from None


def _apart(nodes: Sequence[Node], told: tuple[Any, ...], *, half_pairs: bool = False) -> tuple[Any, ...]:
    """The fields of a command behind `run`: the nodes, what is `told` of the segment, and what comes apart."""
    shared: list[Any] = []
    prompts: list[list[bytes]] = []
    seeds: list[int | None] = []
    for node in nodes:
        if type(node) is GenNode:
            number, written = _tagged(node)
            written[_SEED] = None
            shared.append((number, written))
            seeds.append(node.seed)
        elif type(node) is ExtendNode and _IDS_ALONE.issuperset(map(type, node.parts)):
            shared.append((_EXTENDS, (node.stream, ())))
            parts = cast(tuple[EncodedText, ...], node.parts)
            prompts.append([PackedIds.of(part.ids).packed for part in parts])
        else:
            shared.append(_tagged(node, half_pairs=half_pairs))
    return (shared, *told, prompts, seeds)


def decode_segment(command: Submit) -> Segment:
    """The segment of a command, fit to be run.

    Raises:
        BackendError: SGLC507, not a node, or one that reads what is not before it, or lacks its prompt or seed.
    """
    written = bytes(command.nodes)
    shared = _kept_nodes(written) if len(written) <= _MOST_KEPT else _shared_nodes(written)
    nodes = list(shared.nodes)
    if len(command.prompts) < len(shared.prompts) or len(command.seeds) < len(shared.gens):
        raise _malformed("how many prompts and seeds a segment has")
    for (place, stream), parts in zip(shared.prompts, command.prompts, strict=False):
        nodes[place] = ExtendNode(stream, tuple([EncodedText(_ids(packed)) for packed in parts]))
    for (place, before, behind), seed in zip(shared.gens, command.seeds, strict=False):
        if seed is None and before[_SAMPLING].seed is None:
            raise _malformed(f"the seed of node {place}")
        nodes[place] = GenNode(*before, seed, *behind)  # type: ignore[call-arg]  # they are as many as it has
    return Segment(
        tuple(nodes), command.gives, command.priority, command.share, command.namespace, command.hints,
        command.room, shared.waits,
    )  # fmt: skip


def nodes_in(command: Submit) -> int:
    """How many nodes the segment of a command has; of one that is malformed none, if nobody can say."""
    with suppress(*_NOT_IT):
        return len(_LISTS.decode(command.nodes))
    return 0


@dataclass(frozen=True, slots=True)
class _SharedNodes:
    """The nodes of many segments. Of those without parts the places and streams; of generations the places, and
    the fields before the seed and behind it."""

    nodes: tuple[Node, ...]
    waits: Waits
    prompts: tuple[tuple[int, int], ...]
    gens: tuple[tuple[int, tuple[Any, ...], tuple[Any, ...]], ...]


def _shared_nodes(written: bytes) -> _SharedNodes:
    nodes: list[Node] = []
    sources: list[tuple[int, ...]] = []
    try:
        for number, raw in _TAGGED.decode(written):
            alike = number in _ALIKE and len(node_bytes := bytes(raw)) <= _MOST_KEPT
            node = _kept_node(number, node_bytes) if alike else _node(number, raw)
            read = tuple(reads(node))
            if read and not 0 <= min(read) <= max(read) < len(nodes):
                raise _malformed(f"what node {len(nodes)} of a segment reads")
            sources.append(read)
            nodes.append(node)
    except _NOT_IT as error:
        raise _malformed(str(error)) from None
    prompts = [
        (at, node.stream) for at, node in enumerate(nodes) if type(node) is ExtendNode and not node.parts
    ]
    given = [(at, _GEN_FIELDS(node)) for at, node in enumerate(nodes) if type(node) is GenNode]
    gens = [(at, held[:_SEED], held[_SEED + 1 :]) for at, held in given]
    waits = (_waits if sum(map(len, sources)) <= _MOST_ALIKE else waits_of)(tuple(sources))
    return _SharedNodes(tuple(nodes), waits, tuple(prompts), tuple(gens))


def _node(number: int, raw: Raw) -> Node:
    node = _untagged(number, raw)
    if type(node) not in _NODES:
        raise _malformed(f"kind {number} of a node")
    return cast(Node, node)


@lru_cache(256)
def _kept_node(number: int, written: bytes) -> Node:
    """One of segments that differ in others, by their texts or by the streams that they go on with."""
    return _node(number, Raw(written))


_waits = lru_cache(256)(waits_of)
_MOST_ALIKE = 128  # streams and texts that the nodes of a segment read
_kept_nodes = lru_cache(256)(_shared_nodes)
_MOST_KEPT = 4096  # bytes of nodes


# -- events ----------------------------------------------------------------------------------------


def encode_events(batch: Iterable[tuple[int, Event | None]]) -> bytes:
    """A frame of (run, event); None is said last of a run."""
    written = [(run, _RUN_DONE, None) if event is None else (run, *_tagged(event)) for run, event in batch]
    return _ENCODER.encode(Events(cast(Any, written)))


def decode_events(frame: Events) -> list[tuple[int, Event | None]]:
    """The (run, event) that `encode_events` took.

    Raises:
        BackendError: SGLC507, not an event.
    """
    try:
        return [
            (run, _DELTAS.decode(raw) if number == _DELTA else _event(number, raw))
            for run, number, raw in frame.batch
        ]
    except _NOT_IT as error:
        raise _malformed(str(error)) from None


def _event(number: int, raw: Raw) -> Event | None:
    if number == _RUN_DONE:
        return None
    event = _untagged(number, raw)
    if not isinstance(event, Event):
        raise _malformed("an event")
    return event


def problem_of(error: SglcError) -> Problem:
    """An error as data; one of a class that is not in `ERRORS` becomes its nearest base."""
    kind = next(base for base in type(error).__mro__ if ERRORS.get(base.__name__) is base)
    message, note, hint = (
        text.encode("utf-8", "backslashreplace").decode() for text in (error.message, error.note, error.hint)
    )
    return Problem(kind.__name__, error.code, message, error.loc, note, hint)


def error_of(problem: Problem) -> SglcError:
    """The error that `problem_of` took.

    Raises:
        BackendError: SGLC507, there is no such class.
    """
    kind = ERRORS.get(problem.kind)
    if kind is None:
        raise _malformed("an error")
    return kind(problem.code, problem.message, problem.loc, note=problem.note, hint=problem.hint)


# -- members of unions -----------------------------------------------------------------------------


class _WireFailed(Struct, array_like=True, frozen=True):
    node: int
    problem: Problem


@dataclass(frozen=True, slots=True)
class _Layout:
    """How a kind is written: as msgspec does, or as the list of its fields, where some are written otherwise.

    `fields` reads that list; `unions` are the places of those that are tagged values, `packed` of ids that are
    bytes, and `items` of lists whose items are decoded one by one: other threads have their turn in between.
    """

    decoder: msgspec.msgpack.Decoder[Any]
    fields: Callable[[Any], tuple[Any, ...]] | None = None
    unions: tuple[int, ...] = ()
    packed: tuple[int, ...] = ()
    items: tuple[tuple[int, msgspec.msgpack.Decoder[Any]], ...] = ()


def _tagged(item: object, *, half_pairs: bool = False) -> Any:
    """[kind, fields], for msgspec to write."""
    kind = type(item)
    layout = _LAYOUTS[kind]
    if isinstance(item, NodeFailed):
        return _NUMBERS[kind], _WireFailed(item.node, problem_of(item.error))
    if layout.fields is None:
        return _NUMBERS[kind], item
    written = list(layout.fields(item))
    for at in layout.unions:
        written[at] = _parts(written[at], half_pairs)
    for at in layout.packed:
        written[at] = PackedIds.of(written[at]).packed
    return _NUMBERS[kind], written


def _parts(value: Any, half_pairs: bool) -> Any:
    if isinstance(value, tuple):
        return [_parts(part, half_pairs) for part in value]
    if type(value) is EncodedText:  # of every prompt
        return _ENCODED, PackedIds.of(value.ids).packed
    if not isinstance(value, str):
        return _tagged(value, half_pairs=half_pairs)
    return (_HALF_PAIRS, value.encode("utf-8", "surrogatepass")) if half_pairs else value


def _untagged(number: int, raw: Raw) -> Any:
    """Raises one of `_NOT_IT`, or BackendError."""
    kind = KINDS.get(number)
    if kind is None:
        raise _malformed(f"kind {number}")
    layout = _LAYOUTS[kind] if kind is not GenDone or memoryview(raw).nbytes <= _LONG else _LONG_DONE
    made = layout.decoder.decode(raw)
    if isinstance(made, _WireFailed):
        return NodeFailed(made.node, error_of(made.problem))
    if layout.fields is None:
        return made
    values = list(msgspec.structs.astuple(made))
    for at in layout.unions:
        values[at] = _unparted(values[at])
    for at in layout.packed:
        values[at] = _ids(values[at])
    for at, item in layout.items:
        values[at] = tuple([item.decode(each) for each in values[at]])
    return kind(*values)


def _ids(packed: bytes) -> PackedIds:
    if len(packed) % 4:
        raise _malformed("the ids of a prompt")
    return PackedIds(packed)


def _unparted(value: Any) -> Any:
    if type(value) is not tuple:
        return value
    if len(value) != 2 or type(value[1]) is not Raw:
        return tuple([part if type(part) is str else _unparted(part) for part in value])
    number, raw = value
    if number == _ENCODED:
        return EncodedText(_ids(_BYTES.decode(raw)))
    if number == _HALF_PAIRS:
        return _BYTES.decode(raw).decode("utf-8", "surrogatepass")
    return _untagged(number, raw)


def _layout(kind: type, **items: Any) -> _Layout:
    """The layout of a kind; `items` are the fields whose items are decoded one by one, and what these are."""
    if kind is NodeFailed:
        return _Layout(msgspec.msgpack.Decoder(_WireFailed))
    hints = get_type_hints(kind)
    written = {name: _written_type(hint) for name, hint in hints.items()}
    unions = tuple([at for at, (name, hint) in enumerate(hints.items()) if written[name] != hint])
    written.update(dict.fromkeys(items, tuple[Raw, ...]))
    packed = tuple([at for at, hint in enumerate(hints.values()) if hint == Sequence[int]])
    if not (unions or packed or kind is GenNode):  # whose seed comes apart
        return _Layout(msgspec.msgpack.Decoder(kind))
    twin = msgspec.defstruct(
        kind.__name__,
        [(name, bytes if at in packed else written[name]) for at, name in enumerate(hints)],
        array_like=True,
    )
    names = tuple(hints)
    read = attrgetter(*names) if len(names) > 1 else lambda item: (getattr(item, names[0]),)
    apart = [(names.index(name), msgspec.msgpack.Decoder(item)) for name, item in items.items()]
    return _Layout(msgspec.msgpack.Decoder(twin), read, unions, packed, tuple(apart))


def _written_type(hint: Any) -> Any:
    """`hint` with tagged values where it has a union of ours."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType) and _NUMBERS.keys() & set(args):
        return str | _Tagged
    if origin is tuple and args[-1] is Ellipsis:
        return types.GenericAlias(tuple, (_written_type(args[0]), ...))
    return hint


def _decoded(decoder: msgspec.msgpack.Decoder[_T], frame: bytes | Raw) -> _T:
    try:
        return decoder.decode(frame)
    except _NOT_IT as error:
        raise _malformed(str(error)) from None


def _malformed(what: str) -> BackendError:
    return BackendError("SGLC507", f"a message of the runtime's process is malformed: {what}")


_LAYOUTS = {kind: _layout(kind) for kind in KINDS.values()}
_ALIKE = {_NUMBERS[kind] for kind in (GenNode, SelectNode)}
_EXTENDS = _NUMBERS[ExtendNode]
_SAMPLING, _SEED = map([one.name for one in fields(GenNode)].index, ("sampling", "seed"))
_GEN_FIELDS = attrgetter(*[one.name for one in fields(GenNode)])
_TAGGED = msgspec.msgpack.Decoder(list[_Tagged])
_LISTS = msgspec.msgpack.Decoder(list[Raw])
_IDS_ALONE = frozenset((EncodedText,))
_BYTES = msgspec.msgpack.Decoder(bytes)
_DELTA, _DELTAS = _NUMBERS[Delta], msgspec.msgpack.Decoder(Delta)  # most events are
_LONG = 1 << 15  # bytes of an event
_LONG_DONE = _layout(GenDone, samples=Sample, prompt_top_logprobs=tuple[TokenLogprob, ...] | None)
