"""The offline workload as separate HTTP requests: whole answers, and streams of one event a row and step.

Beside it the same work on an engine alone (`sglc bench offline`), in one session. Prompts are token ids; each
round begins with an empty cache.

    python -m benchmarks.http_offline --model qwen3-0.6b

Writes benchmarks/results/http-offline-<model>.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.http_path import Server, asked, started, versions
from benchmarks.machine import ROOT
from sglc.bench import work
from sglc.bench.options import Options
from sglc.bench.programs.vocabulary import shape_folder
from sglc.bench.rig import place
from sglc.bench.session import TEMPERATURE
from sglc.bench.throughput import OFFLINE

BUDGET = 16_384  # tokens of a step, as `sglc bench offline` has it on CUDA
GOALS = {"whole": 0.95, "stream": 0.85}  # of what comes out of the engine alone


def in_process(model: str, device: str, rounds: int) -> dict[str, Any]:
    """The result of `sglc bench offline`."""
    with tempfile.NamedTemporaryFile() as made:
        options = ("--model", model, "--device", device, "--rounds", str(rounds), "-o", made.name)
        subprocess.run([sys.executable, "-m", "sglc.cli", "bench", "offline", *options], cwd=ROOT, check=True)
        result: dict[str, Any] = json.loads(Path(made.name).read_text())
        return result


def served(server: Server, todo: work.Offline, rounds: int) -> dict[str, list[dict[str, Any]]]:
    """What each round took, whole answers and streams in turns; one more of both before them."""
    made: dict[str, list[dict[str, Any]]] = {"whole": [], "stream": []}
    for _ in range(rounds + 1):
        for kind, found in made.items():
            bodies = [
                json.dumps(
                    {"prompt": prompt, "max_tokens": out, "temperature": TEMPERATURE, "ignore_eos": True,
                     "stream": kind == "stream"}
                )
                for prompt, out in zip(todo.prompts, todo.outs, strict=True)
            ]  # fmt: skip
            flush = urllib.request.Request(f"http://127.0.0.1:{server.port}/flush_cache", method="POST")
            urllib.request.urlopen(flush).close()
            before_s = server.cpu_s()
            said = asked(server, len(bodies), len(bodies), bodies)
            found.append({**said, "server_cpu_s": server.cpu_s() - before_s})
    return {kind: found[1:] for kind, found in made.items()}


def figures(rounds: Sequence[dict[str, Any]], todo: work.Offline, alone: float) -> dict[str, Any]:
    """Of the rounds of one kind; `alone`: tokens a second without HTTP."""
    per_s = todo.tokens_out / statistics.median(one["seconds"] for one in rounds)
    events = [one["events"] - one["requests"] for one in rounds if one["events"]]  # a last one says the reason
    assert all(one["tokens"] == todo.tokens_out for one in rounds if not one["events"]), "tokens are missing"
    return {
        "out tok/s": round(per_s, 1),
        "of in-process": round(per_s / alone, 3),
        "seconds": [round(one["seconds"], 4) for one in rounds],
        "events of text": events,
        "CPU seconds of the server": [round(one["server_cpu_s"], 2) for one in rounds],
        "CPU seconds of the client": [round(one["client_cpu_s"], 2) for one in rounds],
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="qwen3-0.6b", help="a shape with random weights")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="where the result is stored")
    arguments = parser.parse_args()
    device = place(Options(device=arguments.device))
    todo = work.offline(0, **OFFLINE[device])
    alone = in_process(arguments.model, device, arguments.rounds)
    folder = shape_folder(arguments.model)
    options = ("--device", device, "--token-budget", str(BUDGET)) if device == "cuda" else ("--device", device)
    with started("sglc.cli", "serve", "--port", "0", "--model", f"dummy:{folder}", *options) as server:
        rounds = served(server, todo, arguments.rounds)
    per_s = alone["cases"][0]["value"]
    found = {kind: figures(made, todo, per_s) for kind, made in rounds.items()}
    report = {
        "what": __doc__.split("\n\n")[0],
        "model": arguments.model,
        "work": {**alone["work"]},
        "in-process": {"out tok/s": per_s, "seconds": alone["cases"][0]["seconds"]},
        "served": found,
        "goals, of in-process": GOALS,
        "versions": versions(),
        "setting": alone["setting"],
    }
    path = arguments.out or ROOT / "benchmarks" / "results" / f"http-offline-{arguments.model}.json"
    path.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
