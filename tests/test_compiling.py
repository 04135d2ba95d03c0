"""Constraints are compiled apart: within limits, given up with who asked, and nobody else waits."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sglc.backends.local import LocalBackend
from sglc.ir.plan.events import Event, GenDone, NodeFailed
from sglc.ir.plan.segment import ExtendNode, KeepNode, OpenNode, ReleaseNode, Segment
from tests.processes import alive, compilers
from tests.runtime.tiny_model import save_tiny_model
from tests.test_local_process import LOC, ROOT, asks, gen, options, run
from tests.waiting import HANG_S, until

pytestmark = pytest.mark.slow

TAG = """{"format": {"type": "tag", "begin": "<a>", "end": "</a>", "content": {"type": "json_schema",
"json_schema": {"enum": ["one", "two"]}}}}"""
# xgrammar takes time that grows with the square of what is written here: over ten seconds.
COSTLY = "root ::= " + " | ".join(f'[a-z]{{{i},{i + 900}}} "{i}"' for i in range(1, 500))


SHADOWED = """
import sys
import sglc as sgl

with sgl.Engine(model_path=sys.argv[1], device="cpu") as engine:
    print(engine.generate("a", {"json_schema": '{"enum": [12345]}', "max_new_tokens": 9})["text"])
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny_model(folder, max_position_embeddings=4096)
    return folder


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("SGLC_CACHE", str(folder))
        patch.setenv("OMP_NUM_THREADS", "2")  # as where users have it
        yield folder / "automata"


@pytest.fixture(scope="module")
def backend(folder: Path, cache: Path) -> Iterator[LocalBackend]:
    backend = LocalBackend(options(folder, compile_s=1.0, compile_bytes=1 << 30))
    backend.server_info()
    yield backend
    backend.close()


def server(backend: LocalBackend) -> int:
    """The process that compiles."""
    assert backend._compiler is not None
    backend._compiler.start()
    assert backend._compiler._process is not None
    return backend._compiler._process.pid


def compiling(backend: LocalBackend) -> list[int]:
    """The processes that compile a form."""
    if backend._compiler is None:
        return []
    return [*map(int, Path(f"/proc/{server(backend)}/task/{server(backend)}/children").read_text().split())]


def at_work(backend: LocalBackend) -> int:
    """How many forms are being compiled."""
    return len(compiling(backend))


def told(events: list[Event], node: int = 2) -> Any:
    (last,) = [event for event in events if isinstance(event, GenDone | NodeFailed) and event.node == node]
    return last.error.code if isinstance(last, NodeFailed) else last.samples[0].text


def test_what_was_compiled_apart_is_what_runs(backend: LocalBackend, folder: Path, cache: Path) -> None:
    here = LocalBackend(options(folder, process=False))
    for form in (
        {"ebnf": 'root ::= "a" [b-d]{3}'},
        {"json_schema": '{"enum": ["one", "two"]}'},
        {"json_schema": '{"enum": ["three"]}', "strict": True},
        {"regex": "(ab|cd){30,90}"},
        {"ebnf": 'root ::= "a" root'},
        {"json_schema": '{"not": {}}'},
        {"structural_tag": TAG},
        {"structural_tag": '{"format": {"type": "tag"}}'},
        {"regex": "(?=a)"},
    ):
        before = len(list(cache.glob("*")))
        segment = asks("a", max_tokens=200, seed=3, **form)
        assert told(run(backend, segment)) == told(run(here, segment))
        if "SGLC" not in told(run(backend, segment)):
            assert len(list(cache.glob("*"))) > before
    assert len(os.listdir(f"/proc/{server(backend)}/task")) == 1  # it forks
    here.close()


def test_one_generation_of_a_segment_is_refused_and_the_others_go_on(backend: LocalBackend) -> None:
    nodes = (
        OpenNode(), ExtendNode(0, ("a",)), gen(1, regex="x{3}"), gen(1, "y", ebnf='root ::= "b" root'),
        gen(1, "z"), gen(2, "w", ebnf='root ::= "later"', max_tokens=20),
    )  # fmt: skip
    events = run(backend, Segment(nodes))
    assert [told(events, node) for node in (2, 3, 5)] == ["xxx", "SGLC457", "later"]
    assert "SGLC" not in told(events, 4)
    (failed,) = [event for event in events if isinstance(event, NodeFailed)]
    assert failed.error.loc == LOC


def test_a_form_that_cannot_be_sent_fails_its_generation(folder: Path, cache: Path) -> None:
    here = LocalBackend(options(folder, process=False))
    held = (gen(1, ebnf='# \ud800\nroot ::= "a"'), gen(1, "y", regex="b{3}"))
    events = run(here, Segment((OpenNode(), ExtendNode(0, ("a",)), *held)))
    assert [told(events, node) for node in (2, 3)] == ["SGLC506", "bbb"]
    here.close()


def test_a_stream_is_gone_on_with_before_what_makes_it_is_compiled(backend: LocalBackend) -> None:
    async def main() -> tuple[list[Event], list[Event]]:
        first = Segment((OpenNode(), ExtendNode(0, ("a",)), gen(1, regex="[xy]{4}"), KeepNode(2, 7)))
        second = Segment((OpenNode(7), gen(0, "y"), ReleaseNode(7)))

        async def events(segment: Segment) -> list[Event]:
            return [event async for event in backend.submit(segment)]

        return await asyncio.gather(events(first), events(second))

    first, second = asyncio.run(main())
    assert told(first)
    assert "SGLC" not in told(second, 1)


def test_what_takes_too_much_is_refused_and_nobody_waits(backend: LocalBackend) -> None:
    async def main() -> tuple[list[Event], int]:
        async def events() -> list[Event]:
            return [event async for event in backend.submit(asks("a", ebnf=COSTLY))]

        costly, answered = asyncio.create_task(events()), 0
        while not at_work(backend):
            await asyncio.sleep(0.01)
        while not costly.done():
            free = [event async for event in backend.submit(asks("a", max_tokens=2))]
            other = [event async for event in backend.submit(asks("a", regex=f"a{{{answered % 50 + 1}}}"))]
            assert "SGLC" not in told(free) + told(other)
            answered += 1
        return await costly, answered

    events, answered = asyncio.run(main())
    assert told(events) == "SGLC457"
    (failed,) = [event for event in events if isinstance(event, NodeFailed)]
    assert failed.error.message == "the `ebnf` of this generation takes more than 1 s or 1024 MiB to compile"
    assert answered >= 2  # one would be answered behind it
    until(lambda: at_work(backend) == 0, "it goes on")


def test_in_a_thread_of_the_program_too(folder: Path, cache: Path) -> None:
    """A regex is small enough to be compiled where the runtime is."""
    here = LocalBackend(options(folder, process=False, compile_s=1.0))
    assert told(run(here, asks("a", json_schema='{"const": "apart"}', max_tokens=20))) == '"apart"'
    assert "libxgrammar" not in Path(f"/proc/{server(here)}/maps").read_text()  # it takes seconds
    nodes = (
        OpenNode(), ExtendNode(0, ("a",)), gen(1, ebnf=COSTLY), gen(1, "y", ebnf='root ::= "b" [x]{5}'),
        gen(1, "z"), gen(1, "w", regex="a{5}b{3}", max_tokens=20),
    )  # fmt: skip
    events = run(here, Segment(nodes))
    assert [told(events, node) for node in (2, 3, 5)] == ["SGLC457", "bxxxxx", "aaaaabbb"]
    assert "SGLC" not in told(events, 4)
    (failed,) = [event for event in events if isinstance(event, NodeFailed)]
    assert failed.error.loc == LOC
    libraries = Path(f"/proc/{server(here)}/maps").read_text()
    assert "libxgrammar" in libraries
    assert "/regex/" not in libraries  # transformers would load it, and nobody needs transformers
    assert len(os.listdir(f"/proc/{server(here)}/task")) == 1
    here.close()
    again = LocalBackend(options(folder, process=False))
    assert told(run(again, asks("a", ebnf='root ::= "b" [x]{5}'))) == "bxxxxx"
    assert again._compiler is not None
    assert again._compiler._process is None  # it is kept
    again.close()


# One token takes longer and longer to look behind: nobody can interrupt that.
LATE = (
    'root ::= ((([a-z]{0,50}){0,50}){0,50}){0,50} "."',
    'root ::= x{0,2000} "."\nx ::= y{0,2000}\ny ::= [a-z]?',
    "root ::= x0 x0 | x1 x7\n" + "\n".join(
        f'x{i} ::= "a" | x{(i + 1) % 40} x{i * 3 % 40} | x{i * 5 % 40} "a"' for i in range(40)
    ),
)  # fmt: skip


@pytest.mark.parametrize("grammar", LATE)
def test_what_would_take_long_at_some_token_is_found_where_it_is_compiled(
    backend: LocalBackend, cache: Path, grammar: str
) -> None:
    before = {*cache.glob("*")}
    assert "SGLC45" in told(run(backend, asks("a", ebnf=grammar, max_tokens=200)))
    assert {*cache.glob("*")} == before


def test_files_beside_a_program_may_have_the_names_of_python_s_own(folder: Path, tmp_path: Path) -> None:
    for name in ("enum", "resource"):  # one that Python begins with, and one that only the process imports
        (tmp_path / f"{name}.py").write_text("x = 1\n")
    (tmp_path / "program.py").write_text(SHADOWED)
    ended = subprocess.run(
        [sys.executable, "program.py", str(folder)], cwd=tmp_path, text=True, capture_output=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "SGLC_CACHE": str(tmp_path / "cache")}, timeout=HANG_S,
        check=False,
    )  # fmt: skip
    assert (ended.stdout, ended.stderr) == ("12345\n", "")


def test_what_is_too_large_to_be_read_is_not_kept(backend: LocalBackend) -> None:
    names = " | ".join(f'"{i:x}{"é" * 40}"' for i in range(9_000))
    assert told(run(backend, asks("a", ebnf=f"root ::= {names}"))) == "SGLC457"


def test_who_leaves_takes_the_compilation_along(backend: LocalBackend) -> None:
    async def main() -> None:
        task: asyncio.Future[Event] = asyncio.ensure_future(
            anext(backend.submit(asks("a", ebnf=COSTLY + ' | "x"')))
        )
        while not at_work(backend):
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait((task,))

    asyncio.run(main())
    until(lambda: at_work(backend) == 0, "it goes on")
    assert backend.server_info()["requests"] == 0


def test_a_form_has_what_nobody_else_wants_of_the_processors_and_later_its_turn(
    folder: Path, cache: Path
) -> None:
    asked = "from sglc.runtime.engine.compile_server import _may_idle; raise SystemExit(not _may_idle())"
    if subprocess.run([sys.executable, "-c", asked], check=False).returncode:
        pytest.skip("a process may not have its turn again here")
    backend = LocalBackend(options(folder, compile_s=100.0))

    async def main() -> None:
        task = asyncio.ensure_future(anext(backend.submit(asks("a", ebnf=COSTLY))))
        for policy in (os.SCHED_IDLE, os.SCHED_OTHER):
            while not (found := compiling(backend)) or os.sched_getscheduler(*found) != policy:
                await asyncio.sleep(0.01)
        assert os.getpriority(os.PRIO_PROCESS, *found) >= 10
        task.cancel()
        await asyncio.wait((task,))

    asyncio.run(asyncio.wait_for(main(), HANG_S))
    backend.close()


def test_a_compiling_process_that_dies_is_begun_again(backend: LocalBackend) -> None:
    pid = server(backend)
    os.kill(pid, signal.SIGKILL)
    until(lambda: not Path(f"/proc/{pid}").exists() or server(backend) != pid, "it is not noticed")
    assert told(run(backend, asks("a", regex="again"))) == "again"
    assert server(backend) != pid


def test_nothing_is_left_behind(backend: LocalBackend) -> None:
    pid = server(backend)
    backend.close()
    assert not Path(f"/proc/{pid}").exists()


PROGRAM = """
import sys
import sglc as sgl
from sglc.backends.local import LocalBackend, LocalOptions
folder, grammar = sys.argv[1:]
backend = LocalBackend(LocalOptions(folder, device="cpu", kv_bytes=1 << 22, process=True, compile_s=100.0))
@sgl.function
def held(s):
    s += sgl.gen("x", ebnf=grammar)
held.run(backend=backend)["x"]
"""


def test_what_is_being_compiled_ends_with_the_program(folder: Path, cache: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(folder), COSTLY]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as program:
        ours: set[int] = set()

        def compiles() -> bool:  # one that is looked at later may have ended
            ours.update(found := compilers(program.pid))
            return program.poll() is not None or len(found) >= 2

        until(compiles, "it is not compiled")
        program.kill()
        _, err = program.communicate(timeout=HANG_S)
        assert len(ours) >= 2, err
        until(lambda: not any(map(alive, ours)), "a process is left behind")
