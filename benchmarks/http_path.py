"""The server's own work on a request and on an event, beside that of a bare FastAPI application.

Requests on 8 and on 200 connections that stay, whole answers and streams of one event a word, in turns. The
answers are scripted, or come from the runtime's process with the oracle as its model. Each answer of the bare
application has as many events, of the same size, and it waits for nothing. The script's words are there at
once, so they are sent together, each an event; the oracle's come step by step. CPU time is that of the process
that speaks HTTP: it holds still while wall time depends on who else uses the cores.

    python -m benchmarks.http_path

Writes benchmarks/results/http-<cpu>.json.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.machine import ROOT, medians, result_path, setting, store

WORDS = {"whole": 4, "stream": 64}  # of an answer
REQUESTS = {"whole": 4_000, "stream": 400}  # of a round
CONNECTIONS = (8, 200)
GOAL = 0.6  # of what the bare application does
_TICKS = os.sysconf("SC_CLK_TCK")
_PACKAGES = ("fastapi", "starlette", "uvicorn", "uvloop", "httptools", "h11", "msgspec", "pydantic", "pyzmq")
_PORTS = re.compile(r"(grpc|http)://127\.0\.0\.1:(\d+)")


@dataclass(frozen=True, slots=True)
class Server:
    """A server in a process of its own."""

    pid: int
    port: int
    grpc_port: int = 0

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.port}"

    def cpu_s(self) -> float:
        """CPU time so far, that of the processes it began apart."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS


@contextmanager
def started(*module: str, **env: str) -> Iterator[Server]:
    """`python -m MODULE ...`, which says its addresses as soon as it listens, that of HTTP last."""
    with tempfile.NamedTemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *module], cwd=ROOT, stderr=log, env={**os.environ, **env}
        )
        try:
            while "http" not in (found := dict(_PORTS.findall(Path(log.name).read_text()))):
                assert process.poll() is None, Path(log.name).read_text()
                time.sleep(0.05)
            yield Server(process.pid, int(found["http"]), int(found.get("grpc", 0)))
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


def asked(server: Server, connections: int, requests: int, bodies: Sequence[str]) -> dict[str, Any]:
    """What `benchmarks.http_client` says of it."""
    numbers = (str(server.port), str(connections), str(requests))
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.http_client", *numbers],
        cwd=ROOT, input="\n".join(bodies), stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def load(server: Server, connections: int, requests: int, body: dict[str, Any]) -> dict[str, float]:
    """One round: rates, and CPU time of the server for each request and event."""
    before_s = server.cpu_s()
    said = asked(server, connections, requests, [json.dumps(body)])
    spent_s = server.cpu_s() - before_s
    count = said["events"] or said["requests"]
    return {
        "events_a_request": said["events"] / said["requests"],
        "per_s": count / said["seconds"],
        "cpu_us": 1e6 * spent_s / count,
        "client_busy": said["client_cpu_s"] / said["seconds"],
    }


def measure(
    requests: int, connections: int, rounds: int, servers: dict[str, Server], bodies: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """Medians over the rounds, the servers in turns."""
    made: dict[str, list[dict[str, float]]] = {name: [] for name in servers}
    for name, server in servers.items():
        load(server, connections, connections, bodies[name])  # warm
    for _ in range(rounds):
        for name, server in servers.items():
            made[name].append(load(server, connections, requests, bodies[name]))
    found: dict[str, Any] = {name: medians(each, 3) for name, each in made.items()}
    bare = found["bare"]
    for name, figures in found.items():
        if name == "bare":
            continue
        assert figures["events_a_request"] == bare["events_a_request"], "events are missing"
        figures["per_s, of bare"] = round(
            statistics.median(
                one["per_s"] / other["per_s"] for one, other in zip(made[name], made["bare"], strict=True)
            ),
            3,
        )
        figures["per CPU second, of bare"] = round(bare["cpu_us"] / figures["cpu_us"], 3)
    return found


def versions() -> dict[str, str]:
    """Of the packages that have a part in it."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not there"
    return found


def run(kinds: Sequence[str], rounds: int, share: float = 1.0) -> dict[str, Any]:
    """All cases of these kinds, with this share of the requests of a round."""
    cases: dict[str, Any] = {}
    for kind in kinds:
        words, streams = WORDS[kind], kind == "stream"
        # The oracle's answer to this has no token without a text, for which there would be no event.
        body = {"prompt": "Count to 1", "temperature": 0, "max_tokens": words, "stream": streams}
        bodies = {"bare": body, "scripted": body, "oracle": {**body, "ignore_eos": True}}
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            script = {"rules": [{"text": " word" * words}], "word_s": 1e-9 if streams else 0.0}
            (folder / "script.json").write_text(json.dumps(script))
            cli = ("sglc.cli", "serve", "--port", "0", "--model", f"scripted:{folder / 'script.json'}")
            servers = {
                "bare": stack.enter_context(started("benchmarks.bare_app", str(words))),
                "scripted": stack.enter_context(started(*cli)),
                "oracle": stack.enter_context(started("tests.oracle_server", "quick", "256")),
            }
            for connections in CONNECTIONS:
                name = f"{kind}, {connections} connections"
                cases[name] = measure(
                    max(round(share * REQUESTS[kind]), connections), connections, rounds, servers, bodies
                )
                print(name, json.dumps(cases[name], indent=1), flush=True)
    return cases


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kind", choices=tuple(WORDS), help="only these answers; nothing is stored")
    parser.add_argument(
        "--share", type=float, default=1.0, help="of the requests of a round; nothing is stored"
    )
    arguments = parser.parse_args()
    kinds = (arguments.kind,) if arguments.kind else tuple(WORDS)
    cases = run(kinds, arguments.rounds, arguments.share)
    if arguments.kind or arguments.share != 1:
        return
    report = {
        "what": __doc__.split("\n\n")[0],
        "words_an_answer": WORDS,
        "requests_a_round": REQUESTS,
        "rounds": arguments.rounds,
        "goal, of bare": GOAL,
        "cases": cases,
        "versions": versions(),
        **setting(),
    }
    store(result_path("http"), report)


if __name__ == "__main__":
    main()
