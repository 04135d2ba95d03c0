"""Frames of the runtime's process: every type goes there and back, and rubbish is refused."""

from __future__ import annotations

import pickle
import random
import types
from array import array
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from msgspec import Raw
from msgspec.structs import replace as replace_in

from sglc import errors
from sglc.errors import BackendError, Loc, SglcError
from sglc.ir.plan.events import Delta, Event, GenDone, NodeFailed, PackedIds, Sample, Usage
from sglc.ir.plan.segment import (
    EncodedText,
    ExtendNode,
    GenNode,
    Node,
    OpenNode,
    Part,
    Segment,
    SelectNode,
)
from sglc.ir.sampling import Sampling
from sglc.runtime.engine import wire
from tests.depth import at_depth

TEXTS = ("", "a", "Ärger\n", "\x00", "日本語", "🙂 <|im_end|>", "x" * 300)
INTS = (0, 1, -1, 127, 128, -(2**63), 2**31, 2**64 - 1)
FLOATS = (0.0, -0.0, 1.0, -1.5, 1e-300, 1e300, float("inf"), float("-inf"), 0.1)
BEFORE = 4  # nodes that a made-up node may read
EACH = at_depth(30, 80, 200)


def made(hint: Any, rng: random.Random, name: str = "") -> Any:
    """A value of the type `hint`."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return made(rng.choice(args), rng, name)
    if origin is tuple and args[-1] is Ellipsis:
        return tuple([made(args[0], rng, name) for _ in range(rng.choice((0, 1, 2, 20)))])
    if origin is tuple:
        return tuple([made(arg, rng) for arg in args])
    if origin is Sequence:
        return tuple([rng.choice((0, 1, 255, 65_536, 2**31 - 1)) for _ in range(rng.choice((0, 1, 20)))])
    if hint is SglcError:
        return made_error(rng.choice(list(wire.ERRORS.values())), rng)
    if is_dataclass(hint):
        hints = get_type_hints(hint)
        if hint is GenNode:
            hints["seed"] = int  # else it cannot be run
        return hint(**{field.name: made(hints[field.name], rng, field.name) for field in fields(hint)})
    if hint is int and name in ("stream", "node"):
        return rng.randrange(BEFORE)
    choices = {str: TEXTS, int: INTS, float: FLOATS, bool: (False, True), type(None): (None,)}
    return rng.choice(choices[hint])


def made_error(kind: type[SglcError], rng: random.Random) -> SglcError:
    note, hint = rng.choice(TEXTS), rng.choice(TEXTS)
    return kind(rng.choice(TEXTS), rng.choice(TEXTS), made(Loc | None, rng), note=note, hint=hint)


def seen(item: object) -> object:
    """`item` with errors as data, which are equal if all they say is."""
    if isinstance(item, NodeFailed):
        return item.node, seen(item.error)
    if isinstance(item, SglcError):
        return type(item), item.code, item.message, item.loc, item.note, item.hint
    return item


def members(union: Any) -> list[type]:
    return [kind for kind in get_args(union) if is_dataclass(kind)]  # type: ignore[misc]


def sent(segment: Segment, **given: Any) -> Segment:
    command = wire.decode_command(wire.encode_submit(7, segment, **given))
    assert isinstance(command, wire.Submit)
    assert command.run == 7
    return wire.decode_segment(command)


def reported(batch: list[tuple[int, Event | None]]) -> list[tuple[int, Event | None]]:
    report = wire.decode_report(wire.encode_events(batch))
    assert isinstance(report, wire.Events)
    return wire.decode_events(report)


def test_every_node_part_event_and_error_has_a_kind() -> None:
    assert set(wire.KINDS.values()) == {*members(Node), *members(Part), *members(Event)}
    assert all(
        is_dataclass(kind) or kind is str for kind in (*get_args(Node), *get_args(Part), *get_args(Event))
    )
    tree = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, SglcError)}
    assert set(wire.ERRORS.values()) == tree


@pytest.mark.parametrize("kind", members(Node))
def test_a_node_goes_there_and_comes_back_as_it_is(kind: type) -> None:
    rng = random.Random(kind.__name__)
    for _ in range(EACH):
        segment = Segment((*[OpenNode()] * BEFORE, made(kind, rng)), made(tuple[tuple[str, int], ...], rng))
        assert sent(segment) == segment
        assert repr(sent(segment)) == repr(segment)  # 1 is not 1.0, and 0.0 not -0.0


@pytest.mark.parametrize("part", members(Part))
def test_a_part_goes_there_and_comes_back_as_it_is(part: type) -> None:
    rng = random.Random(part.__name__)
    for _ in range(50):
        segment = Segment((*[OpenNode()] * BEFORE, ExtendNode(0, ("a", made(part, rng), made(part, rng)))))
        assert repr(sent(segment)) == repr(segment)


@pytest.mark.parametrize("kind", members(Event))
@pytest.mark.parametrize("short", [1 << 15, 0])
def test_an_event_goes_there_and_comes_back_as_it_is(
    kind: type, short: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "_LONG", short)
    rng = random.Random(kind.__name__)
    batch: list[tuple[int, Event | None]] = [(rng.randrange(10**6), made(kind, rng)) for _ in range(EACH)]
    batch.insert(EACH // 2, (5, None))
    assert [(run, seen(event)) for run, event in reported(batch)] == [
        (run, seen(event)) for run, event in batch
    ]
    if kind is not NodeFailed:
        assert repr(reported(batch)) == repr(batch)


@pytest.mark.parametrize("kind", wire.ERRORS.values())
def test_an_error_keeps_its_class(kind: type[SglcError]) -> None:
    rng = random.Random(kind.__name__)
    for _ in range(50):
        error = made_error(kind, rng)
        report = wire.decode_report(wire.encode(wire.WorkerEnded(wire.problem_of(error))))
        assert isinstance(report, wire.WorkerEnded)
        assert report.problem is not None
        assert seen(wire.error_of(report.problem)) == seen(error)


def test_the_ids_of_a_prompt_are_no_numbers_before_somebody_asks() -> None:
    ids = tuple(range(0, 150_000, 100))
    done = GenDone(
        1, PackedIds(array("i", ids).tobytes()), (Sample("a", (5,), "length"),), Usage(1500, calls=1)
    )
    ((_, came),) = reported([(0, done)])
    assert isinstance(came, GenDone)
    assert isinstance(came.prompt_ids, PackedIds)
    assert came == done == replace(done, prompt_ids=ids)
    assert (len(came.prompt_ids), came.prompt_ids[3], came.prompt_ids[-2:]) == (1500, 300, ids[-2:])
    assert hash(came.prompt_ids) == hash(ids)
    assert repr(came.prompt_ids) == repr(ids)
    assert pickle.loads(pickle.dumps(came)) == done
    with pytest.raises(BackendError, match="malformed"):
        reported([(0, replace(done, prompt_ids=PackedIds(b"abc")))])


def test_an_error_of_another_class_becomes_its_base() -> None:
    class Own(errors.RunError):
        pass

    back = wire.error_of(wire.problem_of(Own("SGLC400", "half a pair: \ud800")))
    assert type(back) is errors.RunError
    assert back.message == "half a pair: \\ud800"


@pytest.mark.parametrize(
    "command", [wire.Abort(2**40), wire.Flush(1), wire.Info(2), wire.Close()], ids=lambda c: type(c).__name__
)
def test_a_command_comes_as_it_was(command: wire.Command) -> None:
    assert wire.decode_command(wire.encode(command)) == command


@pytest.mark.parametrize(
    "report",
    [
        wire.Hello(),
        wire.WorkerReady(4096),
        wire.WorkerAnswer(3, {"pages": 2**40, "device": "cpu"}),
        wire.WorkerEnded(None),
    ],
    ids=lambda r: type(r).__name__,
)
def test_a_report_comes_as_it_was(report: wire.Report) -> None:
    assert wire.decode_report(wire.encode(report)) == report


@pytest.mark.parametrize("streams", [True, False])
def test_whether_text_is_streamed_is_said(streams: bool) -> None:
    command = wire.decode_command(wire.encode_submit(1, Segment(()), streams=streams))
    assert isinstance(command, wire.Submit)
    assert command.streams is streams


def test_half_a_surrogate_pair_in_a_prompt_arrives() -> None:
    """What to say of it is the tokenizer's, and only the node that needs it fails."""
    loc = Loc("f.py", 1)
    rng = random.Random(0)
    choose = SelectNode(1, made(get_type_hints(GenNode)["site"], rng), ("a", "\udfff"), "match", loc)
    segment = Segment((OpenNode(), ExtendNode(0, ("good", "bad \ud800", "日本")), choose))
    assert sent(segment) == segment


@pytest.mark.parametrize("change", [{"max_tokens": 10**30}, {"stop": ("\ud800",)}])
def test_what_cannot_be_written_is_refused(change: dict[str, Any]) -> None:
    hints = get_type_hints(GenNode)
    sampling = hints["sampling"](**change)
    node = GenNode(0, hints["site"]("f", (), "x"), sampling, Loc("f.py", 1), 1)
    with pytest.raises(BackendError) as caught:
        wire.encode_submit(1, Segment((OpenNode(), node)))
    assert caught.value.code == "SGLC508"


@pytest.mark.parametrize(
    "nodes",
    [
        (ExtendNode(0, ("a",)),),
        (OpenNode(), ExtendNode(1, ("a",))),
        (OpenNode(), ExtendNode(-1, ("a",))),
        ("text",),
        (Delta(0, "a"),),
    ],
)
def test_a_segment_that_reads_what_is_not_there_is_refused(nodes: Any) -> None:
    number = {kind: number for number, kind in wire.KINDS.items()}
    written = [
        (number.get(type(node), 99), {"stream": node.stream, "parts": node.parts})
        if isinstance(node, ExtendNode)
        else (number.get(type(node), 99), node)
        for node in nodes
    ]
    command = wire.decode_command(wire.encode(wire.Submit(1, written)))
    assert isinstance(command, wire.Submit)
    with pytest.raises(BackendError) as caught:
        wire.decode_segment(command)
    assert caught.value.code == "SGLC507"


def test_rows_differ_by_what_is_beside_their_nodes() -> None:
    gen = GenNode(1, get_type_hints(GenNode)["site"]("f", (), "x"), Sampling(), Loc("f.py", 1))
    rows = [
        Segment((OpenNode(), ExtendNode(0, (EncodedText(PackedIds.of((row, 7))),)), replace(gen, seed=row)))
        for row in (1, 2)
    ]
    one, two = (wire.decode_command(wire.encode_submit(1, row)) for row in rows)
    assert isinstance(one, wire.Submit)
    assert isinstance(two, wire.Submit)
    assert one.nodes == two.nodes
    assert [wire.decode_segment(one), wire.decode_segment(two)] == rows
    assert wire.nodes_in(one) == 3
    assert wire.decode_segment(one).waits is wire.decode_segment(two).waits
    assert (
        wire.decode_segment(replace_in(one, prompts=((b"abcd",), (b"abcd",)), seeds=(1, 2, 3))).nodes[0]
        == OpenNode()
    )
    for prompts in ((b"abc",),), ((b"abcd", b"a"),):
        with pytest.raises(BackendError, match="malformed"):
            wire.decode_segment(replace_in(one, prompts=prompts))
    bad = wire.decode_command(wire.encode(wire.Submit(1, Raw(b"\x07"))))
    assert isinstance(bad, wire.Submit)
    assert wire.nodes_in(bad) == 0
    with pytest.raises(BackendError, match="malformed"):
        wire.decode_segment(bad)


def test_commands_are_sent_together() -> None:
    frames = [wire.encode(wire.Flush(1)), b"", wire.encode(wire.Close())]
    assert wire.frames_of(wire.bundled(frames)) == frames
    nothing = wire.bundled([])  # who takes commands gets one, which is refused
    for message in (frames[0], b"", b"\xc1", nothing, wire.encode_submit(1, Segment((OpenNode(),)))):
        (frame,) = wire.frames_of(message)
        assert frame == message


@pytest.mark.parametrize("short", [1 << 15, 0])
def test_damaged_frames_are_refused_or_well_formed(short: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the bytes are: what comes out is of the right type, or SGLC507."""
    monkeypatch.setattr(wire, "_LONG", short)
    rng = random.Random(3)
    nodes = [made(kind, rng) for kind in members(Node)]
    nodes.append(ExtendNode(0, (EncodedText((1, 2, 3)), EncodedText((4,)))))
    frames = [wire.encode_submit(1, Segment((*[OpenNode()] * BEFORE, node))) for node in nodes]
    frames += [wire.encode_events([(1, made(kind, rng)), (1, None)]) for kind in members(Event)]
    frames += [b"", b"\xc1", b"\x91" * 5_000]
    codes: list[str] = []
    for _ in range(4_000):
        frame = bytearray(rng.choice(frames))
        for _ in range(rng.randint(1, 3)):
            if frame:
                frame[rng.randrange(len(frame))] = rng.randrange(256)
        try:
            command = wire.decode_command(bytes(frame))
            if isinstance(command, wire.Submit):
                assert all(isinstance(node, Node) for node in wire.decode_segment(command).nodes)
        except BackendError as error:
            codes.append(error.code)
        try:
            report = wire.decode_report(bytes(frame))
            if isinstance(report, wire.Events):
                assert all(event is None or isinstance(event, Event) for _, event in wire.decode_events(report))
        except BackendError as error:
            codes.append(error.code)
    assert set(codes) == {"SGLC507"}
    assert 4_000 < len(codes) < 8_000  # no frame is both, and some damage makes another good one
