"""Batches on several replicas: servers, processes, actors, nodes and drivers are killed (-9) wherever it comes.

`python -m tests.soak_spread --kills 40 --seed 0`; with Ray also `--kinds actor,node,driver-of-actors`. In the
end each row has its result, and has it once: the one of a run that nobody kills. Servers write down each
generation that they are asked for, and a tool of the program each row for which it is called, so what is done
again is counted, too.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.serving import ROOT, Server, running
from tests.waiting import HANG_S, until

PLAIN = ("server", "process", "driver")
ON_RAY = ("actor", "node", "driver-of-actors")
REPLICAS, LIVE = 2, 4  # rows that each has live at once
MOST_HELD = 2 * LIVE  # rows that a replica is handed
EACH = 6  # generations of a row: so many that one which begins anew repeats more than what may be on its way
SOURCE = """\
import json, os
import sglc as sgl

@sgl.tool(idempotent=True)
def note(row: str) -> str:
    file = os.open({log!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, (json.dumps([row, os.getpid()]) + "\\n").encode())
    os.close(file)
    return ""

@sgl.function
def ask(s, rules, q):
    s += rules + note(q) + q
    for name in "abcdef":
        s += " and" + sgl.gen(name, max_tokens=4)
"""


@dataclass
class Batch:
    """One batch in a folder of its own, and what is killed of it."""

    folder: Path
    rows: int
    backend: str = ""
    more: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    module: str = "sglc.cli"

    def prepare(self, seed: int) -> None:
        """Its program and rows."""
        draw = random.Random(seed)
        self.folder.mkdir(exist_ok=True)
        (self.folder / "prog.py").write_text(SOURCE.format(log=str(self.folder / "begun")))
        beginnings = ["".join(draw.choices("abcdefgh ", k=draw.randrange(40, 200))) for _ in range(6)]
        rows = [{"rules": draw.choice(beginnings), "q": f"question {number}"} for number in range(self.rows)]
        (self.folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def start(self) -> subprocess.Popen[bytes]:
        """The run, from its beginning or going on."""
        words = ["run", "prog.py", "--batch", "rows.jsonl", "--seed", "3", "-o", "out.jsonl", "--resume"]
        words += ["--concurrency", str(LIVE), "--backend", self.backend, *self.more]
        env = {**os.environ, "PYTHONPATH": str(ROOT), **self.env}
        return subprocess.Popen(
            [sys.executable, "-m", self.module, *words], cwd=self.folder, env=env, stderr=subprocess.PIPE
        )

    def finished(self) -> str:
        """What a run says that nobody kills."""
        run = self.start()
        _, told = run.communicate(timeout=HANG_S)
        assert run.returncode == 0, told.decode()
        return told.decode()

    def done(self) -> int:
        """How many rows have results."""
        out = self.folder / "out.jsonl"
        return out.read_bytes().count(b"\n") if out.exists() else 0

    def results(self) -> list[Any]:
        """Number and variables of each result."""
        lines = [json.loads(line) for line in (self.folder / "out.jsonl").read_text().splitlines()]
        return sorted([line["index"], line["vars"], line["error"]] for line in lines)

    def begun(self) -> list[tuple[str, int]]:
        """Each row that began, and the process in which it did."""
        log = self.folder / "begun"
        return [tuple(json.loads(line)) for line in log.read_bytes().splitlines()] if log.exists() else []


class Oracle:
    """A server that is there again at its address when it was killed."""

    def __init__(self, log: Path) -> None:
        self.stack = ExitStack()
        self.log = str(log)
        self.server = self._start("0")

    def _start(self, port: str) -> Server:
        words = ("tests.oracle_server", "quick", "16", port, "oracle", self.log)
        return self.stack.enter_context(running(*words, status=-signal.SIGKILL))

    def kill(self) -> None:
        """Kill it."""
        self.server.process.kill()
        self.server.process.wait()

    def again(self) -> None:
        """Start another one where it was."""
        self.server = self._start(self.server.url.rpartition(":")[2])

    def close(self) -> None:
        """End it."""
        self.kill()
        self.stack.close()


@contextmanager
def nodes() -> Iterator[Any]:
    """A Ray cluster of two nodes on this machine."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        yield cluster
    finally:
        cluster.shutdown()


def check(
    kind: str, kills: int, seed: int, folder: Path, rows: int = 200, module: str = "sglc.cli"
) -> int:  # fmt: skip
    """Kill again and again what a batch runs on, and look at its results; gives how many calls it repeated."""
    draw = random.Random(seed)
    asked = folder / "asked"
    with ExitStack() as stack:
        servers = [Oracle(asked) for _ in range(REPLICAS)]
        for one in servers:
            stack.callback(one.close)
        backend = ",".join(one.server.url for one in servers)
        whole, batch = (Batch(folder / name, rows, backend) for name in ("whole", "killed"))
        whole.prepare(seed)
        batch.prepare(seed)
        batch.module = module
        whole.finished()
        expected = whole.results()
        assert [row[0] for row in expected] == [*range(rows)]
        assert all(row[2] is None for row in expected)
        assert asked.stat().st_size == EACH * rows
        cluster = None
        if kind in ON_RAY:
            cluster = stack.enter_context(nodes())
            batch.more, batch.env = ("--cluster", "ray"), {"RAY_ADDRESS": cluster.address}
        run, killed = batch.start(), 0
        for point in sorted(draw.sample(range(1, rows - 2 * MOST_HELD), kills)):
            until(lambda: run.poll() is not None or batch.done() >= point)  # noqa: B023
            if run.poll() is not None:
                break
            killed += 1
            time.sleep(0.05 * draw.random())  # else always at the moment at which a result is written
            run = _kill(kind, batch, run, draw.choice(servers), cluster)
        _, told = run.communicate(timeout=HANG_S)
        assert run.returncode == 0, told.decode()
        assert batch.results() == expected
    begun = Counter(row for row, _ in batch.begun())
    assert len(begun) == rows
    again, called = asked.stat().st_size - 2 * EACH * rows, sum(begun.values()) - rows
    live = LIVE * (REPLICAS if kind.startswith("driver") else 1)
    if kind != "server":  # a row may be at its next call while its last answer is on its way to the journal
        live *= 2
    assert again <= killed * live, (again, killed)
    assert called <= killed * live, (called, killed)
    return again


def _kill(
    kind: str, batch: Batch, run: subprocess.Popen[bytes], server: Oracle, cluster: Any
) -> subprocess.Popen[bytes]:
    """Kill something; gives the run that goes on."""
    if kind == "server":
        server.kill()
        server.again()
    elif kind in ("process", "actor"):
        with suppress(ProcessLookupError):  # it was killed before, and none has begun since
            os.kill(batch.begun()[-1][1], signal.SIGKILL)
    elif kind == "node":
        cluster.remove_node(cluster.worker_nodes.copy().pop(), allow_graceful=False)
        cluster.add_node(num_cpus=1)
    else:
        run.kill()
        run.communicate()
        return batch.start()
    return run


def main() -> None:
    """Kill until it is enough."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", default=",".join(PLAIN))
    given = parser.parse_args()
    kinds = given.kinds.split(",")
    killed, seed, again = 0, given.seed, 0
    each = min(5, -(-given.kills // len(kinds)))
    while killed < given.kills:
        kind = kinds[seed % len(kinds)]
        began_s = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            made = check(kind, each, seed, Path(folder))
        killed, seed, again = killed + each, seed + 1, again + made
        print(
            f"{killed} kills; {kind}: {made} calls were repeated; {time.monotonic() - began_s:.0f} s",
            flush=True,
        )
    print(f"{killed} times something was killed, {again} calls were repeated, and no row was lost or doubled")


if __name__ == "__main__":
    main()
