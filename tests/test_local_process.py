"""The runtime in a process of its own: the same answers as in a thread, and an end to every failure."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zmq

import sglc as sgl
from sglc.backends.local import LocalBackend, LocalOptions, local_backend
from sglc.backends.local.mail import Inbox, Mail
from sglc.backends.local.process import RuntimeProcess
from sglc.backends.local.restarts import Breakdown, Restarts
from sglc.backends.local.thread import RuntimeThread
from sglc.errors import BackendError, Loc, SglcError
from sglc.ir.core import Site
from sglc.ir.plan.events import Delta, Event, GenDone, NodeFailed
from sglc.ir.plan.segment import (
    ExtendNode,
    ForkNode,
    GenNode,
    KeepNode,
    NodeResult,
    OpenNode,
    ReleaseNode,
    Segment,
    SelectNode,
)
from sglc.ir.sampling import Sampling
from sglc.runtime.engine import wire
from sglc.runtime.engine import worker as runtime_service
from sglc.runtime.engine.worker import Link, Worker
from tests.processes import alive
from tests.runtime.tiny_model import save_tiny_model
from tests.waiting import HANG_S, until

ROOT = Path(__file__).parent.parent
LOC = Loc("program.py", 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny_model(folder, max_position_embeddings=4096)
    return folder


def options(folder: Path, **changes: Any) -> LocalOptions:
    given: dict[str, Any] = {"device": "cpu", "kv_bytes": 1 << 22, "process": True, **changes}
    return LocalOptions(str(folder), **given)


@pytest.fixture(scope="module")
def shared(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBackend]:
    """A process that tests use which leave it as it was."""
    backend = LocalBackend(options(folder))
    place = tmp_path_factory.mktemp("sockets")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(place))
        backend.start()
        backend.server_info()
    assert list(place.iterdir()) == []  # no socket is in the file system, not even while it runs
    yield backend
    backend.close()


@pytest.fixture(scope="module")
def frail(folder: Path) -> Iterator[LocalBackend]:
    """A back end whose process tests may break, because the next one gets another."""
    backend = LocalBackend(options(folder))
    yield backend
    backend.close()


def gen(stream: int, name: str = "x", **sampling: Any) -> GenNode:
    return GenNode(stream, Site("f", (), name), Sampling(**{"max_tokens": 6, **sampling}), LOC, 7)


def asks(text: str, **sampling: Any) -> Segment:
    return Segment((OpenNode(), ExtendNode(0, (text,)), gen(1, **sampling)))


async def events(backend: LocalBackend, segment: Segment) -> list[Event]:
    return [event async for event in backend.submit(segment)]


def run(backend: LocalBackend, segment: Segment) -> list[Event]:
    return asyncio.run(events(backend, segment))


def codes(of: list[Event]) -> list[str]:
    """One for each node, all of which failed."""
    assert all(isinstance(event, NodeFailed) for event in of)
    return [event.error.code for event in of if isinstance(event, NodeFailed)]


def process_of(backend: LocalBackend) -> RuntimeProcess:
    assert isinstance(backend._runtime, RuntimeProcess)
    return backend._runtime


def pid_of(backend: LocalBackend) -> int:
    """The process, with the model loaded."""
    backend.server_info()
    pid = process_of(backend).pid
    assert pid is not None
    return pid


def reaped(pid: int) -> bool:
    """Whether the process has ended, and its parent has asked how."""
    return not Path(f"/proc/{pid}").exists()


async def long_run(backend: LocalBackend) -> AsyncIterator[Event]:
    """A generation that goes on for long, seen up to its first text."""
    segment = asks("once upon", max_tokens=3_000, ignore_eos=True, temperature=0.0)
    async for event in backend.submit(segment):
        yield event


# -- the same as in a thread -----------------------------------------------------------------------


def everything() -> list[Segment]:
    """Segments that use every node, in an order in which they may run."""
    trunk = (OpenNode(), ExtendNode(0, ("The", " the question")), ForkNode(1, 2))
    first = gen(2, "a", n=2, temperature=1.0, top_p=0.9, logprobs_from=0, top_logprobs=2, logprob_text=True)
    return [
        Segment((*trunk, first, gen(2, "b", regex="[0-9]{2,4}"), KeepNode(3, 1), KeepNode(4, 2))),
        Segment(
            (
                OpenNode(1),
                ExtendNode(0, ("more",)),
                gen(1, stop=("e",)),
                ExtendNode(2, (NodeResult(2), "!")),
                gen(3),
            )
        ),
        Segment(
            (OpenNode(2), SelectNode(0, Site("f", (), "s"), ("yes", "no"), "token_length_normalized", LOC))
        ),
        Segment((ReleaseNode(1), ReleaseNode(2))),
        Segment((OpenNode(1), gen(0))),  # it is not kept any more
        asks("half a pair \ud800"),
        asks("too long " * 2_000),
        Segment(()),
    ]


def told(of: list[Event]) -> list[object]:
    return [
        (
            event.node,
            type(event.error),
            event.error.code,
            event.error.message,
            event.error.loc,
            event.error.hint,
        )
        if isinstance(event, NodeFailed)
        else event
        for event in of
    ]


def test_the_answers_are_those_of_a_thread(shared: LocalBackend, folder: Path) -> None:
    thread = LocalBackend(options(folder, process=False))
    try:
        for backend in (thread, shared):  # what is compiled apart has its turn when it is compiled
            run(backend, asks("a", regex="[0-9]{2,4}"))
            backend.flush_cache()
        for segment in everything():
            expected = told(run(thread, segment))
            assert told(run(shared, segment)) == expected
            assert bool(expected) == any(isinstance(n, GenNode | SelectNode) for n in segment.nodes)
        there, here = shared.server_info(), thread.server_info()
        assert isinstance(thread._runtime, RuntimeThread)
        assert thread.machine is not None
        assert shared.machine is None
        for info in (there, here):
            assert info.pop("submits") >= len(everything())
            assert info.pop("steps") >= len(everything())
            assert info.pop("rested_us") > 0
            for name in ("step_seconds", "queue_seconds", "compile_seconds"):
                assert info.pop(name)["sum"] > 0 or name == "compile_seconds"
            assert info.pop("free_pages") + info.pop("cached_pages") == info["pages"]
        assert there == here
    finally:
        thread.close()


def test_programs_run_there(shared: LocalBackend) -> None:
    @sgl.function
    def program(s: Any, number: int) -> None:
        s += f"number {number}: " + sgl.gen("x", max_tokens=5, regex="[a-z]{1,3}")
        forks = s.fork(2)
        for fork in forks:
            fork += "and" + sgl.gen("y", max_tokens=4)
        forks.join()

    rows = [{"number": number} for number in range(20)]
    results = program.run_batch(rows, backend=shared, seed=1)
    assert all(result.error() is None for result in results)
    assert len({result["x"] for result in results}) > 1
    again = program.run_batch(rows, backend=shared, seed=1)
    assert [result.text() for result in again] == [result.text() for result in results]


def test_segments_of_one_turn_arrive_as_one_message(
    shared: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared.server_info()
    process = process_of(shared)
    frames: list[list[bytes]] = []

    class Watched:
        def send(self, message: bytes, flags: int) -> None:
            frames.append(wire.frames_of(message))
            socket.send(message, flags)

    socket: Any = process._commands
    monkeypatch.setattr(process, "_commands", Watched())

    async def rows() -> list[list[Event]]:
        return await asyncio.gather(*[events(shared, asks(f"row {number}")) for number in range(16)])

    assert all(isinstance(answer[-1], GenDone) for answer in asyncio.run(rows()))
    assert [len(parts) for parts in frames] == [16]


def test_rows_of_a_batch_arrive_as_they_are_made(shared: LocalBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few in a message: the runtime begins with them while the others are made."""

    @sgl.function
    def program(s: Any, number: int) -> None:
        s += f"number {number}: " + sgl.gen("x", max_tokens=1)

    shared.server_info()
    process = process_of(shared)
    frames: list[int] = []

    class Watched:
        def send(self, message: bytes, flags: int) -> None:
            frames.append(len(wire.frames_of(message)))
            socket.send(message, flags)

    socket: Any = process._commands
    rows = [{"number": number} for number in range(50)]
    program.run_batch(rows[:2], backend=shared)  # compiled
    monkeypatch.setattr(process, "_commands", Watched())
    program.run_batch(rows, backend=shared)
    assert max(frames) <= 1 + 8  # the first one is made before it is known that none needs a thread
    assert len(frames) < sum(frames) / 2


def test_event_loops_do_not_wait_for_each_other(shared: LocalBackend) -> None:
    """One that does not come back to send what it was given holds up nobody else's segment."""
    shared.server_info()
    submitted, answered = threading.Event(), threading.Event()

    async def held_up() -> None:
        coming = asyncio.ensure_future(anext(shared.submit(asks("a"))))
        await asyncio.sleep(0)  # it is submitted, and is to be sent in the next turn
        submitted.set()
        assert answered.wait(30)
        await coming

    thread = threading.Thread(target=lambda: asyncio.run(held_up()))
    thread.start()
    assert submitted.wait(30)
    assert isinstance(run(shared, asks("b"))[-1], GenDone)
    answered.set()
    thread.join()


def test_without_streams_there_are_no_deltas(shared: LocalBackend) -> None:
    async def quiet() -> list[Event]:
        return [event async for event in shared.submit(asks("abc", ignore_eos=True), streams=False)]

    shared.flush_cache()
    (event,) = asyncio.run(quiet())
    shared.flush_cache()
    said = run(shared, asks("abc", ignore_eos=True))
    assert event == said[-1]
    assert any(isinstance(event, Delta) for event in said)


def test_the_cache_is_emptied_there(shared: LocalBackend) -> None:
    run(shared, asks("a long beginning, long enough for some pages of its own"))
    assert shared.server_info()["cached_pages"] > 0
    shared.flush_cache()
    assert shared.server_info()["cached_pages"] == 0


@pytest.mark.parametrize(
    ("device", "process", "cuda", "apart"),
    [
        ("auto", None, True, True),
        ("auto", None, False, False),
        ("cuda", None, True, True),
        ("cpu", None, True, False),
        ("cpu", True, False, True),
        ("cuda", False, True, False),
    ],
)
def test_where_the_runtime_goes(
    device: str, process: bool | None, cuda: bool, apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_backend, "gpus", lambda: ["0"] * cuda)
    assert local_backend._apart(LocalOptions("m", device=device, process=process)) is apart


@pytest.mark.parametrize(
    ("seen", "found"),
    [(None, ["0", "1"]), ("1", ["1"]), ("GPU-4, 0", ["GPU-4", "0"]), ("", []), ("-1", [])],
    ids=str,
)
def test_the_gpus_that_a_program_may_see(
    seen: str | None, found: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_backend, "_DEVICES", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if seen is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", seen)
    assert local_backend.gpus() == []
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        (tmp_path / name).touch()
    assert local_backend.gpus() == found


# -- one run that stops, others that go on ---------------------------------------------------------


def test_a_run_is_stopped_in_the_middle_and_others_go_on(shared: LocalBackend) -> None:
    async def main() -> list[Event]:
        other = asyncio.create_task(events(shared, asks("go on", max_tokens=60, ignore_eos=True)))
        async with aclosing(shared.submit(asks("stop", max_tokens=3_000, ignore_eos=True))) as stopped:  # type: ignore[type-var]
            async for event in stopped:
                assert isinstance(event, Delta)
                break
        return await other

    done = asyncio.run(main())[-1]
    assert isinstance(done, GenDone)
    assert len(done.samples[0].ids) == 60
    until(lambda: shared.server_info()["running_rows"] == 0, "a stopped row still runs")
    assert not process_of(shared)._runs


@pytest.mark.slow
def test_while_it_works_it_tells_its_state_without_being_asked(
    shared: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shared.recent_info() is None  # nobody waits for one that rests: it is asked

    async def main() -> dict[str, Any]:
        async with aclosing(shared.submit(asks("work", max_tokens=3_000, ignore_eos=True))) as working:  # type: ignore[type-var]
            async for _ in working:
                if (told := shared.recent_info()) is not None:
                    return told
        raise AssertionError("it has told nothing")

    with monkeypatch.context() as patch:
        patch.setattr(RuntimeProcess, "info", lambda self: pytest.fail("it was asked"))
        told = asyncio.run(main())
    until(lambda: shared.server_info()["running_rows"] == 0, "a stopped row still runs")
    after = shared.server_info()
    assert shared.recent_info() is None
    assert told["running_rows"] == 1
    assert told.keys() == after.keys()
    assert 0 < told["steps"] <= after["steps"]


def test_a_state_that_is_old_counts_no_more(shared: LocalBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    process = process_of(shared)
    monkeypatch.setattr(process, "_runs", {0: None})
    monkeypatch.setattr(process, "_state", (time.monotonic() - 0.1, {"steps": 1}))
    assert process.recent_info() == {"steps": 1}
    monkeypatch.setattr(process, "_state", (time.monotonic() - 1.5, {"steps": 1}))  # its step hangs
    assert process.recent_info() is None


def test_a_run_that_is_stopped_before_it_begins_never_begins(shared: LocalBackend) -> None:
    before = shared.server_info()["submits"]

    async def main() -> None:
        tasks = [asyncio.create_task(events(shared, asks(f"row {number}"))) for number in range(5)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())
    until(lambda: shared.server_info()["running_rows"] == 0, "a stopped row still runs")
    assert shared.server_info()["submits"] <= before + 5
    assert isinstance(run(shared, asks("and on"))[-1], GenDone)


def test_events_for_a_loop_that_is_gone_are_dropped(shared: LocalBackend) -> None:
    loop = asyncio.new_event_loop()
    gone = loop.run_until_complete(_begun(shared))
    loop.close()
    assert isinstance(run(shared, asks("next", max_tokens=10, ignore_eos=True))[-1], GenDone)
    process_of(shared).abort(gone)


async def _begun(backend: LocalBackend) -> object:
    loop = asyncio.get_running_loop()
    to, inbox = backend._mail_to(loop), Inbox(loop)
    segment = asks("nobody listens", max_tokens=300, ignore_eos=True)
    token = process_of(backend).submit(segment, lambda event: to.put(inbox, event), lambda: None)
    await taken(inbox)
    return token


async def taken(inbox: Inbox) -> list[Event]:
    if (coming := inbox.coming()) is not None:
        await coming
    return inbox.take()


def test_few_readers_go_on_in_one_turn_of_the_loop() -> None:
    """Who has a request between them waits for few; each gets what has come meanwhile at once, in order."""

    async def turns() -> list[list[tuple[int, int]]]:
        loop = asyncio.get_running_loop()
        mail, inboxes = Mail(loop), [Inbox(loop) for _ in range(40)]
        woken: list[tuple[int, int]] = []

        async def read(number: int) -> None:
            while events := await taken(inboxes[number]):
                woken.append((number, len(events)))

        readers = [asyncio.create_task(read(number)) for number in range(40)]
        await asyncio.sleep(0)
        event = Delta(0, "a")
        for inbox in inboxes:
            mail.put(inbox, event)
        seen = []
        while len(woken) < 40:
            before = len(woken)
            await asyncio.sleep(0)
            if len(woken) > before:
                seen.append(woken[before:])
            if len(seen) == 1 and not before:
                mail.put(inboxes[39], event)
        for inbox in inboxes:
            mail.put(inbox, None)
        await asyncio.gather(*readers)
        return seen

    seen = asyncio.run(turns())
    assert [len(each) for each in seen] == [16, 16, 8]
    assert [pair for each in seen for pair in each] == [(number, 1 + (number == 39)) for number in range(40)]


# -- rubbish -----------------------------------------------------------------------------------------


RUBBISH = (b"\xc1", b"", wire.encode(wire.WorkerReady(4096)))


def test_a_malformed_command_is_refused_and_the_process_lives(shared: LocalBackend) -> None:
    pid = pid_of(shared)
    process = process_of(shared)
    process._outbox += [*RUBBISH, wire.encode(wire.Abort(10**6))]
    process._send()
    assert isinstance(run(shared, asks("still here"))[-1], GenDone)
    assert pid_of(shared) == pid


def test_what_was_malformed_is_told_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    nothing: Any = None
    service = Worker(nothing, LocalOptions("m"), nothing)
    for frame in RUBBISH:
        service._obey(frame)
    assert not service._closing
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(RUBBISH)
    assert all(line.startswith("sglc: a message of the runtime's process is malformed: ") for line in lines)


def test_a_malformed_segment_fails_and_the_process_lives(shared: LocalBackend) -> None:
    assert codes(run(shared, Segment((OpenNode(), ExtendNode(5, ("a",)), gen(1))))) == ["SGLC507"] * 3
    assert codes(run(shared, asks("a", max_tokens=10**30))) == ["SGLC508"] * 3
    unseeded = asks("a")
    nodes = [replace(node, seed=None) if isinstance(node, GenNode) else node for node in unseeded.nodes]
    assert codes(run(shared, replace(unseeded, nodes=tuple(nodes)))) == ["SGLC507"] * 3
    assert isinstance(run(shared, asks("still here"))[-1], GenDone)


def replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str) -> None:
    """Have `code` run instead of the runtime's process."""
    (tmp_path / "fake.py").write_text(code)
    start = tmp_path / "python"
    start.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{tmp_path}/fake.py" "$@"\n')
    start.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(start))


SAYS = """
import sys, time, zmq
context = zmq.Context()
reports, commands = context.socket(zmq.PUSH), context.socket(zmq.PULL)
reports.connect(f"ipc://{sys.argv[4]}/reports")
commands.connect(f"ipc://{sys.argv[4]}/commands")
for report in REPORTS:
    reports.send(report)
time.sleep(60)
"""


def test_a_process_that_talks_rubbish_is_ended(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced(monkeypatch, tmp_path, SAYS.replace("REPORTS", repr([b"\xc1"])))
    backend = LocalBackend(options(folder))
    assert codes(run(backend, asks("a"))) == ["SGLC507"] * 3
    pid = process_of(backend).pid
    assert pid is not None
    assert not alive(pid)
    backend.close()


# -- a process that does not begin -------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["no weights", "no device", "no model"])
def test_a_model_that_does_not_load_fails_as_in_a_thread(folder: Path, tmp_path: Path, kind: str) -> None:
    changes: dict[str, Any] = {"device": "cuda"} if kind == "no device" else {}
    place = tmp_path / "missing" if kind == "no model" else folder
    if kind == "no weights":
        place = tmp_path
        for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
            (place / name).write_bytes((folder / name).read_bytes())
    seen = []
    for process in (True, False):
        backend = LocalBackend(options(place, process=process, **changes))
        backend.start()
        first, second = run(backend, asks("a")), run(backend, asks("b"))
        assert told(first) == told(second)  # it stays so, and is not tried again
        with pytest.raises(SglcError) as caught:
            backend.server_info()
        assert caught.value.code == codes(first)[0]
        with pytest.raises(SglcError):
            backend.flush_cache()
        backend.close()
        seen.append(told(first))
    assert seen[0] == seen[1]
    expected = {"no weights": "SGLC518", "no device": "SGLC503", "no model": "SGLC510"}[kind]
    assert [item[2] for item in seen[0] if isinstance(item, tuple)] == [expected] * 3


@pytest.mark.parametrize(
    ("code", "how"),
    [
        ("raise SystemExit(3)", "with exit status 3"),
        ("import os; os.kill(os.getpid(), 9)", "by signal SIGKILL"),
    ],
)
def test_a_process_that_ends_at_once_is_an_error(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, how: str
) -> None:
    replaced(monkeypatch, tmp_path, code)
    backend = LocalBackend(options(folder))
    for _ in range(2):  # the reason stays, and no further process is begun
        (*_, last) = run(backend, asks("a"))
        assert isinstance(last, NodeFailed)
        assert last.error.code == "SGLC506"
        assert last.error.message == f"the runtime's process ended {how} before the model was loaded"
        monkeypatch.setattr(sys, "executable", "/no/such/python")
    backend.close()


def test_no_python_to_begin_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    backend = LocalBackend(options(folder))
    assert codes(run(backend, asks("a"))) == ["SGLC501"] * 3
    backend.close()


# -- a process that dies -----------------------------------------------------------------------------


@pytest.mark.slow
def test_a_process_that_dies_fails_what_ran_and_the_next_run_has_another(frail: LocalBackend) -> None:
    pid = pid_of(frail)
    question: list[BaseException] = []

    async def main() -> list[list[Event]]:
        runs = [
            asyncio.create_task(events(frail, asks(f"{i}", max_tokens=3_000, ignore_eos=True)))
            for i in range(4)
        ]
        async for event in long_run(frail):
            if isinstance(event, Delta):
                os.kill(pid, signal.SIGKILL)
                break
        try:
            await asyncio.to_thread(process_of(frail).info)
        except SglcError as error:
            question.append(error)
        return await asyncio.gather(*runs)

    for answer in asyncio.run(main()):
        last = answer[-1]
        assert isinstance(last, NodeFailed)
        assert last.node == 2
        assert last.error.code == "SGLC506"
        assert "by signal SIGKILL while this ran" in last.error.message
        assert last.error.hint == "it may have been ended for want of memory"
    assert [error.code for error in question if isinstance(error, SglcError)] == ["SGLC506"]
    assert reaped(pid)
    assert isinstance(run(frail, asks("again"))[-1], GenDone)
    assert pid_of(frail) != pid
    failed = run(frail, Segment((OpenNode(1), gen(0))))[-1]  # what the first one kept is gone
    assert isinstance(failed, NodeFailed)
    assert failed.error.code == "SGLC403"


@pytest.mark.slow
def test_a_row_of_a_dead_process_fails_and_the_program_goes_on(frail: LocalBackend) -> None:
    pid = pid_of(frail)

    @sgl.function
    def program(s: Any, tokens: int) -> None:
        s += "a" + sgl.gen("x", max_tokens=tokens, ignore_eos=True)

    results = [program.run(3_000, backend=frail, seed=1) for _ in range(3)]
    until(lambda: len(process_of(frail)._runs) == 3, "not all were submitted")
    os.kill(pid, signal.SIGTERM)
    for result in results:
        error = result.error()
        assert isinstance(error, BackendError)
        assert error.code == "SGLC506"
        assert "SIGTERM" in error.message
    assert program.run(3, backend=frail, seed=1).error() is None


FAULTY = """
import sys
from pathlib import Path
from sglc.runtime.engine import machine, worker
step = machine.Machine.step
def faulty(self, *arguments):
    if Path({fault!r}).exists():
        raise ZeroDivisionError("a fault of the runtime")
    step(self, *arguments)
machine.Machine.step = faulty
sys.exit(worker.main(sys.argv[4:]))
"""


@pytest.mark.slow
def test_a_runtime_that_fails_by_an_exception_is_begun_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    fault = tmp_path / "fault"
    replaced(monkeypatch, tmp_path, FAULTY.format(fault=str(fault)))
    backend = LocalBackend(options(folder))
    first = pid_of(backend)
    for _ in range(2):
        assert isinstance(run(backend, asks("well"))[-1], GenDone)
        fault.touch()
        (failed,) = {event.error.code for event in run(backend, asks("a")) if isinstance(event, NodeFailed)}
        assert failed == "SGLC504"
        until(lambda: process_of(backend).breakdown is not None, "it does not end")
        fault.unlink()
    assert isinstance(run(backend, asks("well"))[-1], GenDone)
    assert pid_of(backend) != first
    assert "a fault of the runtime; the runtime is begun again" in capfd.readouterr().err.replace("`", "")
    backend.close()


def test_a_runtime_that_breaks_down_again_and_again_is_begun_later_and_later() -> None:
    restarts, error = Restarts(), BackendError("SGLC506", "it ended")
    now_s = time.monotonic()

    def broke_down(lived_s: float, ended_s: float = now_s - 1_000.0) -> Breakdown:
        return Breakdown(error, ended_s - lived_s, ended_s)

    late = broke_down(1.0, now_s + 1_000.0)  # as if it were still to come, so that the clock is no matter
    for _ in range(3):
        restarts.allow(broke_down(1.0))
    for _ in range(2):  # who asks twice is told the same
        with pytest.raises(BackendError, match=r"it ended; this was the breakdown number 4 in a row") as told:
            restarts.allow(late)
        assert told.value.code == "SGLC506"
        assert re.fullmatch(r"the runtime is begun again in (1000|1001) s", told.value.hint)
    for _ in range(20):
        with pytest.raises(BackendError) as told:
            restarts.allow(broke_down(1.0, now_s + 1_000.0))
    assert re.fullmatch(r"the runtime is begun again in 10(29|30) s", told.value.hint)
    restarts.allow(broke_down(6.0))  # this one did well
    for _ in range(2):
        restarts.allow(broke_down(0.0))
    with pytest.raises(BackendError, match="number 4 in a row"):
        restarts.allow(Breakdown(error, None, now_s + 1_000.0))
    never = Restarts()
    with pytest.raises(BackendError) as told:  # it would not load the next time either
        never.allow(Breakdown(error, None, 0.0))
    assert told.value is error


# -- closing -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_runs_when_it_is_closed_fails(frail: LocalBackend) -> None:
    pid = pid_of(frail)

    async def main() -> list[Event]:
        answer: list[Event] = []
        async for event in long_run(frail):
            if not answer:
                closing = asyncio.create_task(asyncio.to_thread(frail.close))
            answer.append(event)
        await closing
        return answer

    last = asyncio.run(main())[-1]
    assert isinstance(last, NodeFailed)
    assert last.error.code == "SGLC505"
    assert reaped(pid)
    frail.close()  # once more does nothing


def test_closing_ends_a_process_that_is_loading(folder: Path) -> None:
    backend = LocalBackend(options(folder))
    backend.start()
    process = process_of(backend)
    until(lambda: process.pid is not None, "no process was begun")
    backend.close()
    assert process.pid is not None
    assert not alive(process.pid)
    assert process.breakdown is None


def test_closing_ends_a_process_that_hangs(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sglc.backends.local.process._CLOSE_S", 0.1)
    says = [wire.encode(wire.Hello()), wire.encode(wire.WorkerReady(4096))]
    replaced(monkeypatch, tmp_path, SAYS.replace("REPORTS", repr(says)))
    backend = LocalBackend(options(folder))
    backend.start()
    process = process_of(backend)
    until(lambda: process._loaded_s is not None, "the process says nothing")
    backend.close()
    assert process.pid is not None
    assert reaped(process.pid)


# -- signals, and a program that ends ----------------------------------------------------------------


def test_threads_of_torch_sleep_where_they_wait(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Those that spin take the core from the one that they wait for; OpenMP says how often they look."""
    monkeypatch.setenv("OMP_DISPLAY_ENV", "VERBOSE")
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    backend = LocalBackend(options(folder))
    backend.server_info()
    backend.close()
    assert "GOMP_SPINCOUNT = '0'" in capfd.readouterr().err


def test_an_interrupt_is_the_program_s(shared: LocalBackend) -> None:
    pid = pid_of(shared)
    assert os.getpgid(pid) != os.getpgid(0)  # the terminal's Ctrl-C does not reach it
    for _ in range(3):
        os.kill(pid, signal.SIGINT)
    assert isinstance(run(shared, asks("go on"))[-1], GenDone)
    assert pid_of(shared) == pid


PROGRAM = """
import os, sys, time
from sglc.backends.local import LocalBackend, LocalOptions
backend = LocalBackend(LocalOptions(sys.argv[1], device="cpu", kv_bytes=1 << 22, process=True))
backend.start()
while backend._runtime.pid is None:
    time.sleep(0.005)
if sys.argv[2] in ("serving", "forked"):
    backend.server_info()
if sys.argv[2] == "forked" and os.fork() == 0:
    time.sleep(60)  # with everything open that its parent had
print(backend._runtime.pid, flush=True)
if sys.argv[2] != "ends":
    time.sleep(60)
backend.target
print(*sorted({"torch", "xgrammar", "sglc.runtime.engine.engine"} & sys.modules.keys()))
"""


def program(folder: Path, stage: str, tmp_path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", PROGRAM, str(folder), stage],
        cwd=ROOT, env={**os.environ, "TMPDIR": str(tmp_path)}, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["loading", "forked"])
def test_the_process_ends_with_the_program(folder: Path, tmp_path: Path, stage: str) -> None:
    with program(folder, stage, tmp_path) as running:
        assert running.stdout is not None
        pid = int(running.stdout.readline())
        assert alive(pid)
        running.kill()
        until(lambda: not alive(pid), "the process outlives the program")
        os.killpg(running.pid, signal.SIGKILL)  # the fork
    until(lambda: list(tmp_path.iterdir()) == [], "a socket outlives the program")


def test_a_program_that_ends_without_closing_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    with program(folder, "ends", tmp_path) as running:
        out, err = running.communicate(timeout=HANG_S)
    assert (running.returncode, err) == (0, "")
    pid, heavy = out.splitlines()
    assert not alive(int(pid))
    assert heavy == ""  # what only the process needs was not loaded here
    assert list(tmp_path.iterdir()) == []


IN_A_THREAD = """
import atexit, sys, threading
atexit.register(lambda: print("alive", "sglc-local" in [thread.name for thread in threading.enumerate()]))
import sglc as sgl
engine = sgl.Engine(model_path=sys.argv[1], device="cpu")
given = {"max_new_tokens": 4_000, "ignore_eos": True}

def generate():
    try:
        engine.generate("once", given)
    except sgl.SglcError:  # it was closed
        pass

threading.Thread(target=generate, daemon=True).start()
while not engine.server_info()["steps"]:
    pass
"""


def test_a_program_may_end_while_the_runtime_s_thread_runs(folder: Path) -> None:
    command = [sys.executable, "-c", IN_A_THREAD, str(folder)]
    ended = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, timeout=HANG_S, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "alive False\n", "")


@pytest.mark.slow
def test_ctrl_c_shows_the_program_s_trace_and_no_other(folder: Path, tmp_path: Path) -> None:
    with program(folder, "serving", tmp_path) as running:
        assert running.stdout is not None
        pid = int(running.stdout.readline())
        os.kill(pid, signal.SIGINT)  # first: it ends with the program
        os.killpg(running.pid, signal.SIGINT)
        _, err = running.communicate(timeout=HANG_S)
    assert err.count("Traceback") == 1
    assert err.rstrip().endswith("KeyboardInterrupt")
    until(lambda: not alive(pid), "the process outlives the program")


def test_what_ends_in_this_process_gives_its_memory_back(folder: Path) -> None:
    """At once, and not when Python comes to look for what refers to itself."""
    thread = LocalBackend(options(folder, process=False))
    run(thread, asks("a"))
    assert thread.machine is not None
    executor = weakref.ref(thread.machine.engine.executor)
    gc.disable()
    try:
        thread.close()
        assert executor() is None
    finally:
        gc.enable()


class _Steps:
    """In the place of a machine: what was submitted when each step began. Idle without rows."""

    def __init__(self, *, waits: bool = False) -> None:
        self.waits = waits  # for its steps, for as long as there are commands
        self.engine = SimpleNamespace(most_commands=5, starves=False, undisturbed=nullcontext, step_s=1.0)
        self.rows = 0
        self.before_steps: list[int] = []

    @property
    def idle(self) -> bool:
        return self.rows == 0 or len(self.before_steps) == (1 if self.waits else 4)

    def submit(self, *_: object, **__: object) -> object:
        self.rows += 1
        return None

    def step(self, meanwhile: Callable[[], bool]) -> None:
        self.before_steps.append(self.rows)
        while self.waits and meanwhile():
            pass

    def fail_all(self, error: SglcError) -> None:
        pass


@pytest.mark.parametrize(
    ("streams", "waits", "before_steps"),
    [(False, False, [5, 10]), (True, False, [2, 4, 6, 8]), (False, True, [5])],
)
def test_a_step_is_not_put_off_for_commands_that_go_on_coming(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, streams: bool, waits: bool, before_steps: list[int]
) -> None:
    """Rows of one message start together, as far as a step may be put off: for as long as one takes, where
    texts are read as they come. No command is lost, not the last one either that comes while a step is waited
    for."""
    monkeypatch.setattr(runtime_service, "describe", lambda machine, _: {"rows": machine.rows})
    clock = SimpleNamespace(perf_counter=iter(range(1, 99)).__next__, monotonic=time.monotonic)
    monkeypatch.setattr(runtime_service, "time", clock)  # a step takes a second, and so does a command
    submits = [wire.encode_submit(number, asks("abc"), streams=streams) for number in range(12)]
    with zmq.Context() as context:
        commands, reports = context.socket(zmq.PUSH), context.socket(zmq.PULL)
        commands.bind(f"ipc://{tmp_path / wire.COMMANDS}")
        reports.bind(f"ipc://{tmp_path / wire.REPORTS}")
        link = Link(context, tmp_path)
        commands.send(wire.bundled([*submits, wire.encode(wire.Close())]))
        machine = _Steps(waits=waits)
        Worker(machine, LocalOptions("m"), link).serve()  # type: ignore[arg-type]
        context.destroy(linger=0)
    assert machine.rows == 12
    assert machine.before_steps == before_steps


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({}, ""),
        ({"max_len": 100}, ""),
        ({"max_len": 5000}, "may take 4096 tokens, and not 5000: the model has no more\n"),
        ({"kv_bytes": 1 << 15}, " tokens, and not 4096: keys and values of more have no memory\n"),
    ],
)
@pytest.mark.parametrize("process", [False, True])
def test_a_context_that_is_shorter_than_asked_for_is_said(
    folder: Path, asked: dict[str, int], said: str, process: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    backend = LocalBackend(options(folder, process=process, **{"kv_bytes": 1 << 24, **asked}))
    try:
        length = backend.server_info()["max_len"]
    finally:
        backend.close()
    told = capfd.readouterr().err
    assert told.endswith(said)
    assert (f"sglc: a prompt and its answer may take {length} tokens" in told) == bool(said)
