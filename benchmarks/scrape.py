"""What `GET /metrics` costs: the server's CPU time for each, and how long it takes while 256 texts are made.

The runtime's process has the oracle as its model, and answers between two of its steps; each of 256 connections
reads a stream that is longer than the measurement.

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
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from benchmarks.http_client import request_of
from benchmarks.http_path import Server, started
from benchmarks.machine import result_path, setting

ROWS = 256
IDLE, BUSY = 300, 15  # scrapes


def page(server: Server, path: str = "/metrics") -> bytes:
    """What the server says."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}") as answer:
        content: bytes = answer.read()
    return content


def scraped(server: Server, count: int) -> dict[str, float]:
    """Milliseconds of one scrape, on the clock and of the server's processor."""
    walls, cpu_s = [], server.cpu_s()
    for _ in range(count):
        began_s = time.perf_counter()
        page(server)
        walls.append(1e3 * (time.perf_counter() - began_s))
    walls.sort()
    return {
        "p50_ms": round(statistics.median(walls), 2),
        "p99_ms": round(walls[int(0.99 * count)], 2),
        "server_cpu_ms": round(1e3 * (server.cpu_s() - cpu_s) / count, 2),
    }


def drained(connection: socket.socket) -> None:
    """Read whatever comes until the other end is closed."""
    with suppress(OSError):  # which may be this one
        while connection.recv(1 << 16):
            pass


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=result_path("scrape"))
    arguments = parser.parse_args()
    with started("tests.oracle_server", "quick", str(ROWS)) as server, ExitStack() as open_:
        idle = scraped(server, IDLE)
        body = json.dumps({"prompt": "a", "max_tokens": 1_200, "ignore_eos": True, "stream": True})
        for _ in range(ROWS):
            connection = open_.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            connection.sendall(request_of(body))
            threading.Thread(target=drained, args=(connection,), daemon=True).start()
        info: dict[str, Any] = {}
        ends_s = time.monotonic() + 30
        while info.get("running_rows") != ROWS:
            assert time.monotonic() < ends_s, info
            info = json.loads(page(server, "/get_server_info"))
        busy = scraped(server, BUSY)
        still = json.loads(page(server, "/get_server_info"))["running_rows"]
        assert still == ROWS, f"only {still} texts are still in the making"
        size = len(page(server))
        del busy["server_cpu_ms"]  # that of the streams, which come as fast as they can, is among it
        report = {
            "what": __doc__.split("\n\n")[0],
            "idle": idle,
            f"{ROWS} rows": busy,
            "bytes": size,
            **setting(),
        }
        print(json.dumps(report, indent=1))
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
