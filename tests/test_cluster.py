"""Batches on a Ray cluster of two nodes on this machine: `make cluster`, where Ray is installed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from sglc.serve.server import bound_socket
from tests.depth import at_depth
from tests.serving import ROOT, Server, running
from tests.soak_spread import ON_RAY, check, nodes
from tests.waiting import HANG_S, until

pytestmark = [
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: `make cluster`"),
    pytest.mark.slow,
]
PROGRAM = """
import sglc as sgl

@sgl.function
def ask(s, rules, q):
    s += rules + q + sgl.gen("a", max_tokens=8, temperature=1)
"""
SERVER = ("tests.oracle_server", "quick", "16")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with nodes() as cluster:
        yield cluster.address


@pytest.fixture(scope="module")
def servers() -> Iterator[list[Server]]:
    with ExitStack() as stack:
        yield [stack.enter_context(running(*SERVER)) for _ in range(2)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    draw = random.Random(2)
    beginnings = ["".join(draw.choices("abcdefgh ", k=300)) for _ in range(10)]
    rows = [{"rules": rules, "q": f" {number:030}?"} for number in range(20) for rules in beginnings]
    draw.shuffle(rows)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "prog.py").write_text(PROGRAM)
    (tmp_path / "script.json").write_text('[{"text": " yes"}]')
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(out: str, *more: str, address: str = "", code: int = 0) -> str:
    """What a run says."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_ADDRESS": address}
    words = ["run", "prog.py", "--batch", "rows.jsonl", "--seed", "1", "-o", out, *more]
    made = subprocess.run(
        [sys.executable, "-m", "sglc.cli", *words], env=env, stderr=subprocess.PIPE, timeout=HANG_S, text=True
    )
    assert made.returncode == code, made.stderr
    assert "Traceback" not in made.stderr, made.stderr
    return made.stderr


def results(path: str) -> list[Any]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def kept(path: str) -> list[Any]:
    return sorted((row["index"], row["vars"], row["text"], row["error"]) for row in results(path))


def flush(servers: list[Server]) -> None:
    for server in servers:
        assert server.ask("POST", "/flush_cache")[0] == 200


# Before there is another one, which it would join.
def test_a_cluster_that_begins_here(folder: Path) -> None:
    run("out.jsonl", "--cluster", "ray", "--replicas", "1", "--backend", "scripted:script.json")
    assert [row[1] for row in kept("out.jsonl")] == [{"a": " yes"}] * 200


def test_two_nodes_give_and_compute_what_one_machine_does(
    folder: Path, address: str, servers: list[Server]
) -> None:
    first, second = (server.url for server in servers)
    run("one.jsonl", "--backend", first)
    flush(servers)
    said = run("two.jsonl", "--backend", f"{first},{second}", "--cluster", "ray", address=address)
    assert said.count(" rows; tokens") == 2
    assert kept("two.jsonl") == kept("one.jsonl")
    one, two = (sum(row["usage"]["computed"] for row in results(path)) for path in ("one.jsonl", "two.jsonl"))
    assert two <= 1.05 * one


def test_a_replica_runs_a_command(folder: Path, address: str, servers: list[Server]) -> None:
    """Its server ends with it; results are in the order of the rows."""
    run("one.jsonl", "--backend", servers[0].url)
    command = f"env PYTHONPATH={ROOT} {sys.executable} -m tests.oracle_server quick 16 {{port}}"
    run("two.jsonl", "--cluster", f"ray://{address}", "--replica-command", command, "--ordered")
    assert kept("two.jsonl") == kept("one.jsonl")
    assert [row["index"] for row in results("two.jsonl")] == [*range(200)]


@pytest.mark.parametrize("kind", ON_RAY)
def test_what_is_killed_loses_nothing(kind: str, tmp_path: Path) -> None:
    check(kind, at_depth(1, 2, 8), 7, tmp_path)


def test_mistakes(folder: Path, address: str) -> None:
    said = run("out.jsonl", "--cluster", "ray://127.0.0.1:1", code=2)
    assert said.startswith("error[SGLC086]: there is no Ray cluster at `127.0.0.1:1`")
    said = run("out.jsonl", "--cluster", "ray", "--replica-command", "false {port}", address=address, code=1)
    assert said.startswith("error[SGLC550]: `false {port}` serves nothing")
    assert not Path("out.jsonl.manifest").exists()


def test_programs_behind_ray_serve(folder: Path, address: str) -> None:
    """The example, whose two replicas have the default model, gives what its program gives here."""
    example = ROOT / "examples"
    rows = (example / "essays.jsonl").read_text().splitlines()[:4]
    Path("essays.jsonl").write_text("\n".join(rows))
    with bound_socket("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}/"

    def serve(*words: str) -> list[str]:
        return [sys.executable, "-m", "ray.serve.scripts", words[0], "--address", address, *words[1:]]

    def asked(row: str) -> Any:
        with urlopen(url, row.encode(), timeout=HANG_S) as answer:
            return json.load(answer)

    subprocess.run(serve("start", "--http-port", str(port)), check=True, timeout=HANG_S)
    with Path("serve.log").open("wb") as log:
        words = serve("run", "--working-dir", ".", "ray_serve:app")
        served = subprocess.Popen(words, stdout=log, stderr=log, cwd=example)
    try:
        until(lambda: b"is ready" in Path("serve.log").read_bytes() or served.poll() is not None)
        assert served.poll() is None, Path("serve.log").read_text()
        with ThreadPoolExecutor() as threads:
            answers = [*threads.map(asked, rows)]
    finally:
        served.send_signal(signal.SIGINT)
        served.wait(HANG_S)
    words = ["run", str(example / "judge.py"), "--batch", "essays.jsonl", "-o", "here.jsonl", "--ordered"]
    subprocess.run([sys.executable, "-m", "sglc.cli", *words], check=True, timeout=HANG_S)
    here = [{"verdict": row["vars"]["verdict"], "text": row["text"]} for row in results("here.jsonl")]
    assert answers == here, Path("serve.log").read_text()
