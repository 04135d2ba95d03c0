"""What `GET /metrics` costs: CPU time of server and runtime for each, and how long it takes, beside 256 texts.

The runtime's process has the oracle as its model; each of 256 connections reads a stream that is longer than
the measurement. Slow steps take a fifth of a second and next to no CPU, so the machine has room; the cost is
the CPU time of windows with scrapes less that of windows without, which take turns. Quick steps and their
streams go as fast as they can: a scrape waits for the processor like everybody.

    python -m benchmarks.scrape

Writes benchmarks/results/scrape-<cpu>.json.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.http_client import request_of
from benchmarks.http_path import Server, started
from benchmarks.machine import result_path, setting, store
from tests.processes import descendants

ROWS = 256
SCRAPES = {"idle": 300, "slow": 80, "quick": 15}  # of a measurement, or of a window
WINDOWS, APART_S = 3, 0.1


def page(server: Server, path: str = "/metrics") -> bytes:
    """What the server says."""
    with urllib.request.urlopen(f"{server.url}{path}") as answer:
        content: bytes = answer.read()
    return content


def cpu_s(server: Server) -> tuple[float, float]:
    """CPU time so far of the process that speaks HTTP, and of the runtime's."""
    (runtime,) = descendants(server.pid, "tests.oracle_worker")
    return server.cpu_s(), Server(runtime, 0).cpu_s()


def walls(server: Server, count: int, apart_s: float = 0.0) -> list[float]:
    """Milliseconds of each scrape, which begin so far apart."""
    found = []
    begin_s = time.perf_counter()
    for number in range(count):
        time.sleep(max(0.0, begin_s + number * apart_s - time.perf_counter()))
        began_s = time.perf_counter()
        page(server)
        found.append(1e3 * (time.perf_counter() - began_s))
    return sorted(found)


def figures(found: list[float], spent_s: tuple[float, float] | None = None) -> dict[str, float]:
    """Of the times, and of the CPU time of all these scrapes."""
    count = len(found)
    told = {"p50_ms": round(statistics.median(found), 2), "p99_ms": round(found[int(0.99 * count)], 2)}
    if spent_s is not None:
        told |= {
            name: round(1e3 * spent / count, 2)
            for name, spent in zip(("server_cpu_ms", "runtime_cpu_ms"), spent_s, strict=True)
        }
    return told


def idle(server: Server) -> dict[str, float]:
    """Beside no text."""
    before = cpu_s(server)
    found = walls(server, SCRAPES["idle"])
    return figures(found, tuple(now - then for now, then in zip(cpu_s(server), before, strict=True)))  # type: ignore[arg-type]


def beside_slow(server: Server) -> dict[str, float]:
    """Beside texts whose steps take long and cost little."""
    found: list[float] = []
    spent = [0.0, 0.0]
    for window in range(2 * WINDOWS):
        with_scrapes, before = window % 2, cpu_s(server)
        began_s = time.perf_counter()
        if with_scrapes:
            found += walls(server, SCRAPES["slow"], APART_S)
        time.sleep(max(0.0, began_s + SCRAPES["slow"] * APART_S - time.perf_counter()))
        for number, (now, then) in enumerate(zip(cpu_s(server), before, strict=True)):
            spent[number] += now - then if with_scrapes else then - now
    return figures(sorted(found), (spent[0], spent[1]))


def drained(connection: socket.socket) -> None:
    """Read whatever comes until the other end is closed."""
    with suppress(OSError):  # which may be this one
        while connection.recv(1 << 16):
            pass


@contextmanager
def texts(server: Server) -> Iterator[None]:
    """All rows are being made inside."""
    with ExitStack() as open_:
        body = json.dumps({"prompt": "a", "max_tokens": 1_200, "ignore_eos": True, "stream": True})
        for _ in range(ROWS):
            connection = open_.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            connection.sendall(request_of(body))
            threading.Thread(target=drained, args=(connection,), daemon=True).start()
        ends_s = time.monotonic() + 60
        while (running := rows(server)) != ROWS:
            assert time.monotonic() < ends_s, running
        yield
        assert rows(server) == ROWS, "the texts came to their end"


def rows(server: Server) -> Any:
    """Texts in the making."""
    return json.loads(page(server, "/get_server_info"))["running_rows"]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=result_path("scrape"))
    arguments = parser.parse_args()
    report: dict[str, Any] = {"what": __doc__.split("\n\n")[0]}
    with started("tests.oracle_server", "slow", str(ROWS)) as server:
        report["idle"] = idle(server)
        with texts(server):
            report[f"{ROWS} rows, slow steps"] = beside_slow(server)
            report["bytes"] = len(page(server))
    with started("tests.oracle_server", "quick", str(ROWS)) as server, texts(server):
        report[f"{ROWS} rows, quick steps"] = figures(walls(server, SCRAPES["quick"]))
    report |= setting()
    print(json.dumps(report, indent=1))
    store(arguments.out, report)


if __name__ == "__main__":
    main()
