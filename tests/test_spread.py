"""Batches on several servers: the results of one, each beginning computed once, and whatever is killed."""

from __future__ import annotations

import argparse
import json
import os
import pickle
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from sglc.api.function import Function
from sglc.cli import main
from sglc.cli.batch.replica import LocalReplica, Lost, Work, _before_failures
from sglc.cli.batch.sorted_rows import SortedRows
from sglc.cli.program_file import open_function
from sglc.execution.batch.order import common
from sglc.execution.batch.shards import Schedule, cuts, share_of
from sglc.observe.replay.tape import Json, Tape
from tests.depth import at_depth
from tests.serving import ROOT, Server, running, serving
from tests.soak_spread import PLAIN, check
from tests.waiting import HANG_S, until

PROGRAM = """
import time
import sglc as sgl

@sgl.function
def ask(s, rules, q):
    s += rules + q + sgl.gen("a", max_tokens=8)

@sgl.function
def sampled(s, rules, q):
    s += rules + q + sgl.gen("a", max_tokens=8, temperature=1)
    s += " so " + sgl.gen("b", max_tokens=8, temperature=1)

@sgl.tool
def send(q: str) -> str:
    with open("sent.txt", "a") as file:
        file.write(q + "\\n")
    return "ok"

@sgl.tool
def slow(q: str) -> str:
    time.sleep(0.4)
    return "ok"

@sgl.function
def waits(s, rules, q):
    s += rules + q + slow(q) + sgl.gen("a", max_tokens=8)

@sgl.function
def approved(s, rules, q):
    s += rules + q + sgl.gen("a", max_tokens=8)
    s += send(q) + sgl.gen("b", max_tokens=8)
    s += str(sgl.pause("approve", "Send it?"))
"""
LETTERS = "abcdefghijklmnopqrstuvwxyz "
SERVER = ("tests.oracle_server", "quick", "16")


def text(draw: random.Random, length: int) -> str:
    return "".join(draw.choices(LETTERS, k=length))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "prog.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_rows(beginnings: int, each: int, seed: int = 1) -> int:
    """`rows.jsonl`, shuffled; gives the tokens of their trie."""
    draw = random.Random(seed)
    begun = [text(draw, 300) for _ in range(beginnings)]
    rows = [{"rules": rules, "q": text(draw, 30)} for rules in begun for _ in range(each)]
    draw.shuffle(rows)
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return beginnings * 300 + beginnings * each * 30


def run(out: str, backend: str, *more: str, program: str = "ask") -> int:
    words = ["run", f"prog.py:{program}", "--batch", "rows.jsonl", "--seed", "1", "-o", out]
    return main([*words, "--backend", backend, *more])


def results(path: str) -> list[Any]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def kept(path: str) -> list[Any]:
    """What a row gives, by its number."""
    return sorted((row["index"], row["vars"], row["text"], row["error"]) for row in results(path))


def computed(path: str) -> int:
    return sum(row["usage"]["computed"] for row in results(path))


@pytest.fixture(scope="module")
def servers() -> Iterator[list[Server]]:
    with ExitStack() as stack:
        yield [stack.enter_context(running(*SERVER)) for _ in range(2)]


@pytest.fixture
def urls(servers: list[Server]) -> list[str]:
    flush(servers)
    return [server.url for server in servers]


def flush(servers: list[Server]) -> None:
    for server in servers:
        assert server.ask("POST", "/flush_cache")[0] == 200


# -- shards ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(at_depth(20, 200, 2_000)))
def test_what_fits_into_a_shard_is_not_split(seed: int) -> None:
    """`share` rows or fewer that have more in common than with their neighbours are together."""
    draw = random.Random(seed)
    keys = sorted(text(draw, draw.randrange(4)) + draw.choice("xyz") for _ in range(draw.randrange(1, 120)))
    shared = [common(a, b) for a, b in pairwise(["", *keys])]
    share = draw.randrange(1, 30)
    sizes = [*cuts(shared, share)]
    assert sum(sizes) == len(keys)
    assert all(0 < size <= share for size in sizes)
    ends = {sum(sizes[:place]) for place in range(1, len(sizes))}
    for begin in range(len(keys)):
        for end in range(begin + 2, min(begin + share, len(keys)) + 1):
            least = min(shared[begin + 1 : end])
            outside = max(shared[begin] if begin else -1, shared[end] if end < len(keys) else -1)
            if least > outside:
                assert not ends & {*range(begin + 1, end)}, (begin, end, sizes)


@pytest.mark.parametrize("seed", range(at_depth(5, 50, 500)))
def test_every_shard_is_given_to_one_replica(seed: int) -> None:
    draw = random.Random(seed)
    sizes = [draw.randrange(1, 9) for _ in range(draw.randrange(0, 60))]
    replicas = draw.randrange(1, 6)
    schedule = Schedule(sizes, replicas)
    given: list[range] = []
    everybody = range(replicas)
    while (shard := schedule.next(draw.randrange(replicas), everybody)) is not None:
        given.append(shard)
        assert bool(schedule) == (sum(map(len, given)) < sum(sizes))
    assert sorted(place for shard in given for place in shard) == [*range(sum(sizes))]
    assert [schedule.next(replica, everybody) for replica in everybody] == [None] * replicas


def test_a_replica_has_shards_in_their_order_until_it_helps_others() -> None:
    schedule = Schedule([10] * 8, 2)
    assert [schedule.next(0, {1}) for _ in range(5)] == [
        range(10), range(10, 20), range(20, 30), range(30, 40), range(70, 80)
    ]  # fmt: skip
    assert schedule.next(1, {0}) == range(40, 50)
    assert schedule.next(0, ()) is None


def test_a_part_that_ends_in_a_long_shard_has_no_more_than_is_its_own() -> None:
    schedule = Schedule([30, 28, 6], 2)
    assert [schedule.next(1, ()), schedule.next(1, ())] == [range(30, 58), range(58, 64)]


def test_shares() -> None:
    assert [share_of(rows, 2) for rows in (0, 1, 40, 200, 5_000, 10**6)] == [1, 1, 20, 64, 156, 4096]


def function(name: str = "ask") -> Function:
    return open_function(f"prog.py:{name}")


@pytest.mark.slow
def test_rows_are_sorted_by_how_their_prompts_begin(folder: Path) -> None:
    draw = random.Random(3)
    begun = [text(draw, 20) for _ in range(9)] + ["\ud800 half", "é", "z" * 20]
    rows = [{"rules": draw.choice(begun), "q": text(draw, 5)} for _ in range(10_000)]
    in_order = SortedRows(function(), {}, enumerate(rows))
    assert in_order.count == len(rows)
    numbers = [number for number, _ in in_order.at(range(in_order.count))]
    assert sorted(numbers) == [*range(len(rows))]
    prompts = [rows[number]["rules"] + rows[number]["q"] for number in numbers]
    assert prompts == sorted(prompts)
    whole = [prompt.encode(errors="surrogatepass") for prompt in prompts]
    assert [*in_order.shared()] == [common(a, b) for a, b in pairwise([b"", *whole])]


# -- servers ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_servers_give_and_compute_what_one_does(
    folder: Path, servers: list[Server], urls: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Round robin beside it: each server computes each beginning."""
    trie = write_rows(10, at_depth(10, 20, 100))
    assert run("one.jsonl", urls[0]) == 0
    flush(servers)
    assert run("two.jsonl", ",".join(urls)) == 0
    assert kept("two.jsonl") == kept("one.jsonl")
    assert computed("two.jsonl") <= 1.05 * computed("one.jsonl")
    assert computed("two.jsonl") <= 1.05 * trie
    said = capsys.readouterr().err
    rows = [int(line.split(": ")[2].split()[0]) for line in said.splitlines() if " rows; tokens" in line]
    assert len(rows) == 2
    assert min(rows) > 0
    assert sum(rows) == len(results("one.jsonl"))
    lines = Path("rows.jsonl").read_text().splitlines(keepends=True)
    flush(servers)
    for place, url in enumerate(urls):
        Path("rows.jsonl").write_text("".join(lines[place::2]))
        assert run(f"half{place}.jsonl", url) == 0
    assert computed("half0.jsonl") + computed("half1.jsonl") > computed("two.jsonl") + 0.9 * 10 * 300


@pytest.mark.slow
@pytest.mark.parametrize("count", [8, 40])
def test_a_batch_that_one_server_has_room_for_is_shared(
    folder: Path, urls: list[str], capsys: pytest.CaptureFixture[str], count: int
) -> None:
    """A server of these is handed 128 rows at once: none takes what another one has places for."""
    write_rows(count, 1)
    assert run("two.jsonl", ",".join(urls)) == 0
    said = capsys.readouterr().err
    rows = [int(line.split(": ")[2].split()[0]) for line in said.splitlines() if " rows; tokens" in line]
    assert sum(rows) == count
    assert min(rows) >= count // 4


@pytest.mark.slow
def test_samples_are_those_of_one_machine_and_go_on(folder: Path, urls: list[str]) -> None:
    """Also several steps, a budget, results in the order of the rows, and rows that were done before."""
    write_rows(4, 10)
    both = ",".join(urls)
    assert run("one.jsonl", urls[0], program="sampled") == 0
    assert run("two.jsonl", both, "--max-calls-total", "30", "--concurrency", "2", program="sampled") == 1
    assert 10 <= len(results("two.jsonl")) < 40
    assert run("two.jsonl", both, "--resume", "--ordered", "--progress", "json", program="sampled") == 0
    assert kept("two.jsonl") == kept("one.jsonl")
    assert [row["index"] for row in results("two.jsonl")] == [*range(40)]


@pytest.mark.slow
@pytest.mark.model
def test_two_servers_of_the_default_model_say_what_one_does(folder: Path, smollm2: Path) -> None:
    write_rows(3, 4)
    with ExitStack() as stack:
        real = [stack.enter_context(serving("--model", "smollm2")).url for _ in range(2)]
        assert run("one.jsonl", real[0], program="sampled") == 0
        assert run("two.jsonl", ",".join(real), program="sampled") == 0
    assert kept("two.jsonl") == kept("one.jsonl")


@pytest.mark.slow
@pytest.mark.parametrize("kind", PLAIN)
def test_what_is_killed_loses_nothing(kind: str, tmp_path: Path) -> None:
    check(kind, at_depth(1, 2, 8), 7, tmp_path)


@pytest.mark.nightly
def test_rows_that_begin_anew_are_noticed(tmp_path: Path) -> None:
    """A planted fault."""
    with pytest.raises(AssertionError, match=r"\(\d+, 5\)"):
        check("driver", 5, 7, tmp_path, module="tests.forgetful_batch")


def test_of_a_replica_that_was_lost_nothing_counts_behind_a_failure() -> None:
    lines: list[Json] = [
        {"target": "t", "described": {}},
        {"row": 1, "site": "a", "answer": {}},
        {"row": 2, "site": "a", "error": {"code": "SGLC547"}},
        {"row": 1, "is": "end", "error": None},
        {"row": 2, "site": "b", "answer": {}},
    ]
    assert [*_before_failures(lines)] == [lines[0], lines[1], lines[3]]


@pytest.mark.slow
def test_rows_go_on_inside(folder: Path, servers: list[Server], urls: list[str]) -> None:
    """A tool that was called is not called again, what was answered not asked; a person's word is taken."""
    write_rows(2, 5)
    both = ",".join(urls)
    assert run("out.jsonl", both, program="approved") == 1
    assert {row["error"]["code"] for row in results("out.jsonl")} == {"SGLC413"}
    sent = Path("sent.txt").read_text().splitlines()
    assert len({*sent}) == len(sent) == 10
    asked = sum(server.info()["submits"] for server in servers)
    assert run("out.jsonl", both, "--resume", "--answer", 'approve="yes"', program="approved") == 0
    assert Path("sent.txt").read_text().splitlines() == sent
    assert all(row["text"].endswith("yes") for row in results("out.jsonl"))
    assert sum(server.info()["submits"] for server in servers) == asked + 10  # for `b`, which a person held up
    assert not Path("out.jsonl.journal").exists()


@pytest.mark.slow
def test_a_tool_may_end_behind_its_row(folder: Path, urls: list[str]) -> None:
    """The row has failed by then, and the next one of its replica runs."""
    write_rows(2, 6)
    both, limits = ",".join(urls), ("--row-timeout", "0.2", "--concurrency", "1")
    assert run("out.jsonl", both, *limits, program="waits") == 1
    assert {row["error"]["code"] for row in results("out.jsonl")} == {"SGLC411"}
    assert len(results("out.jsonl")) == 12
    lines = [json.loads(line) for line in Path("out.jsonl.journal/recording.jsonl").read_text().splitlines()]
    assert any(line.get("is") == "called" for line in lines)
    assert run("out.jsonl", both, "--resume", "--retry-failed", "--redo", "slow", program="waits") == 0
    assert all(row["error"] is None for row in results("out.jsonl"))


@pytest.mark.slow
def test_a_replica_that_nobody_asks_goes_no_further(
    folder: Path, servers: list[Server], urls: list[str]
) -> None:
    """An actor lives on when its driver is killed: what it did then would be done again."""
    options = argparse.Namespace(
        program="prog.py:sampled", tools=None, device="cpu", dtype=None, concurrency=2, output="o", json=False
    )
    replica = LocalReplica(Work(options, {}, {"seed": 1}), urls[0])
    replica.open()
    before = servers[0].info()["submits"]
    rows = [(number, pickle.dumps({"rules": "a", "q": f"{number}"})) for number in range(40)]
    made = replica.step(rows, Tape({"seed": 1}, {}, {}))
    assert made.lines or made.ended
    time.sleep(1.0)
    assert servers[0].info()["submits"] - before < 40
    count = len(made.ended)
    while count < 40:  # it goes on when somebody asks
        count += len(replica.step((), Tape({"seed": 1}, {}, {})).ended)
    replica.close()


def test_rows_for_a_replica_that_was_started_again_are_given_to_another() -> None:
    """Ray starts an actor anew that died between two calls, and the next call is the new one's."""
    replica = LocalReplica(Work(argparse.Namespace(), {}, {}), "http://127.0.0.1:1")
    with pytest.raises(Lost):
        replica.step([(0, b"")], Tape({}, {}, {}))
    replica.close()


@pytest.mark.slow
def test_a_batch_ends_where_no_server_is_left(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sglc.cli.batch.fleet._ALL_LOST_S", 0.5)
    write_rows(4, 100)
    with ExitStack() as stack:
        mortal = [stack.enter_context(running(*SERVER, status=-9)) for _ in range(2)]

        def kill() -> None:
            out = Path("out.jsonl")
            until(lambda: out.exists() and out.stat().st_size)
            for server in mortal:
                server.process.kill()

        killer = threading.Thread(target=kill)
        killer.start()
        assert run("out.jsonl", ",".join(server.url for server in mortal), "--concurrency", "2") == 1
        killer.join()
    said = capsys.readouterr().err
    assert "was lost: the server at" in said
    assert "error[SGLC547]: there is no server at" in said
    assert "sglc: go on with: sglc" in said


@pytest.mark.slow
def test_a_server_that_drains_fails_no_row(
    folder: Path, urls: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """It listens, and refuses every request, as long as one goes on that came before."""
    write_rows(4, 20)
    with running(*SERVER) as server:
        where = urlsplit(server.url)
        with socket.create_connection((where.hostname or "", where.port or 0)) as other:
            other.sendall(b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n")

            def end() -> None:
                out = Path("out.jsonl")
                until(lambda: out.exists() and out.stat().st_size)
                server.process.terminate()

            ender = threading.Thread(target=end)
            ender.start()
            code = run("out.jsonl", f"{server.url},{urls[0]}", "--concurrency", "2", program="sampled")
            ender.join()
            assert server.process.poll() is None
        server.process.wait(HANG_S)
    said = capsys.readouterr().err
    assert code == 0, said
    assert f"replica {server.url} was lost" in said
    assert [(row[0], row[3]) for row in kept("out.jsonl")] == [(number, None) for number in range(80)]


@pytest.mark.slow
def test_ctrl_c_ends_a_batch_in_good_order(folder: Path, urls: list[str]) -> None:
    write_rows(4, 100)
    words = ["run", "prog.py:sampled", "--batch", "rows.jsonl", "--seed", "1", "-o", "out.jsonl"]
    words += ["--concurrency", "2", "--backend", ",".join(urls)]
    batch = subprocess.Popen(
        [sys.executable, "-m", "sglc.cli", *words], stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    out = Path("out.jsonl")
    until(lambda: batch.poll() is not None or (out.exists() and out.stat().st_size))
    batch.send_signal(signal.SIGINT)
    _, said = batch.communicate(timeout=HANG_S)
    assert batch.returncode == 130, said
    assert "sglc: go on with: sglc run" in said
    assert "Traceback" not in said
    assert 0 < len(results("out.jsonl")) < 400
    assert run("out.jsonl", ",".join(urls), "--resume", program="sampled") == 0
    assert [row[0] for row in kept("out.jsonl")] == [*range(400)]


# -- mistakes --------------------------------------------------------------------------------------


def refused(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(words) == 2
    return capsys.readouterr().err


@pytest.mark.slow
def test_servers_of_two_models_are_refused(
    folder: Path, urls: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    write_rows(1, 2)
    words = ["run", "prog.py:ask", "--batch", "rows.jsonl", "-o", "o"]
    with running(*SERVER, "0", "another") as other:
        said = refused([*words, "--backend", f"{urls[0]},{other.url}"], capsys)
    assert "error[SGLC085]: " in said
    assert "has another model than the other replicas" in said
    assert not Path("o.manifest").exists()


@pytest.mark.slow
def test_a_server_that_is_not_there_is_told_of_at_once(
    folder: Path, urls: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    write_rows(1, 2)
    words = ["run", "prog.py:ask", "--batch", "rows.jsonl", "-o", "o"]
    assert main([*words, "--backend", f"{urls[0]},http://127.0.0.1:1"]) == 1
    said = capsys.readouterr().err
    assert "error[SGLC547]: there is no server at `http://127.0.0.1:1`" in said
    assert not Path("o.manifest").exists()


@pytest.mark.slow
def test_a_row_that_does_not_fit_has_its_place(
    folder: Path, urls: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    write_rows(1, 2)
    with open("rows.jsonl", "a") as file:
        file.write('{"rules": "", "question": ""}\n')
    said = refused(
        ["run", "prog.py:ask", "--batch", "rows.jsonl", "-o", "o", "--backend", ",".join(urls)], capsys
    )
    assert "error[SGLC011]: " in said
    assert "rows.jsonl:3: row 2 of the batch" in said


@pytest.mark.slow
def test_without_ray_the_package_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    write_rows(1, 2)
    said = refused(["run", "prog.py:ask", "--batch", "rows.jsonl", "-o", "o", "--cluster", "ray"], capsys)
    assert said.startswith("error[SGLC071]: ")
    assert "pip install 'sglc[ray]'" in said
