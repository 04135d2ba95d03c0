"""The offline workload as separate requests over HTTP and gRPC: whole answers, and streams.

Beside it the same work on an engine alone (`sglc bench offline`), in one session. Prompts are token ids; each
round begins with an empty cache. A stream over HTTP has one event a row and step; over gRPC tokens that come
together share a message.

    python -m benchmarks.http_offline --model qwen3-0.6b

Writes benchmarks/results/http-offline-<model>.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
from smg_grpc_proto import sglang_scheduler_pb2 as pb
from smg_grpc_proto import sglang_scheduler_pb2_grpc as rpc

from benchmarks.http_path import Server, asked, started, versions
from benchmarks.machine import RESULTS, ROOT, store
from sglc.bench import work
from sglc.bench.options import Options
from sglc.bench.programs.vocabulary import shape_folder
from sglc.bench.rig import place
from sglc.bench.session import TEMPERATURE
from sglc.bench.throughput import OFFLINE

BUDGET = 16_384  # tokens of a step, as `sglc bench offline` has it on CUDA
KINDS = ("whole", "stream", "whole, gRPC", "stream, gRPC")
GOALS = {"whole": 0.95, "stream": 0.85, "whole, gRPC": 0.97}  # of what comes out of the engine alone


def in_process(model: str, device: str, rounds: int) -> dict[str, Any]:
    """The result of `sglc bench offline`."""
    with tempfile.NamedTemporaryFile() as made:
        options = ("--model", model, "--device", device, "--rounds", str(rounds), "-o", made.name)
        subprocess.run([sys.executable, "-m", "sglc.cli", "bench", "offline", *options], cwd=ROOT, check=True)
        result: dict[str, Any] = json.loads(Path(made.name).read_text())
        return result


def over_http(server: Server, todo: work.Offline, stream: bool) -> dict[str, Any]:
    """One round: what it took, and what came."""
    options = {"temperature": TEMPERATURE, "ignore_eos": True, "stream": stream}
    bodies = [
        json.dumps({"prompt": prompt, "max_tokens": out, **options})
        for prompt, out in zip(todo.prompts, todo.outs, strict=True)
    ]
    said = asked(server, len(bodies), len(bodies), bodies)
    if stream:  # its events have no count of tokens, and a last one says the reason
        said |= {"events": said["events"] - said["requests"], "tokens": None}
    return said


async def over_grpc(port: int, todo: work.Offline, stream: bool) -> dict[str, Any]:
    """One round, all requests at once on one channel."""
    requests = [
        pb.GenerateRequest(
            tokenized=pb.TokenizedInput(input_ids=prompt),
            sampling_params=pb.SamplingParams(max_new_tokens=out, temperature=TEMPERATURE, ignore_eos=True),
            stream=stream,
        )
        for prompt, out in zip(todo.prompts, todo.outs, strict=True)
    ]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = rpc.SglangSchedulerStub(channel)

        async def one(request: Any) -> tuple[int, int]:
            messages = [message async for message in stub.Generate(request)]
            chunks = sum(message.HasField("chunk") for message in messages)
            return messages[-1].complete.completion_tokens, chunks

        begin_s, cpu_s = time.perf_counter(), time.process_time()
        made = await asyncio.gather(*map(one, requests))
        took_s, cpu_s = time.perf_counter() - begin_s, time.process_time() - cpu_s
    tokens, events = (sum(column) for column in zip(*made, strict=True))
    return {"tokens": tokens, "events": events, "seconds": took_s, "client_cpu_s": cpu_s}


def served(
    server: Server, todo: work.Offline, rounds: int, kinds: Sequence[str]
) -> dict[str, list[dict[str, Any]]]:
    """What each round took, the kinds of answers in turns; one more of each before them."""
    made: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}
    for _ in range(rounds + 1):
        for kind, found in made.items():
            flush = urllib.request.Request(f"{server.url}/flush_cache", method="POST")
            urllib.request.urlopen(flush).close()
            before_s, stream = server.cpu_s(), kind.startswith("stream")
            said = (
                asyncio.run(over_grpc(server.grpc_port, todo, stream))
                if kind.endswith("gRPC")
                else over_http(server, todo, stream)
            )
            found.append({**said, "server_cpu_s": server.cpu_s() - before_s})
    return {kind: found[1:] for kind, found in made.items()}


def figures(rounds: Sequence[dict[str, Any]], todo: work.Offline, alone: float) -> dict[str, Any]:
    """Of the rounds of one kind; `alone`: tokens a second without HTTP."""
    per_s = todo.tokens_out / statistics.median(one["seconds"] for one in rounds)
    assert all(one["tokens"] in (None, todo.tokens_out) for one in rounds), "tokens are missing"
    return {
        "out tok/s": round(per_s, 1),
        "of in-process": round(per_s / alone, 3),
        "seconds": [round(one["seconds"], 4) for one in rounds],
        "events of text": [one["events"] for one in rounds],
        "CPU seconds of the server": [round(one["server_cpu_s"], 2) for one in rounds],
        "CPU seconds of the client": [round(one["client_cpu_s"], 2) for one in rounds],
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="qwen3-0.6b", help="a shape with random weights")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=("http", "grpc"), help="only these answers")
    parser.add_argument("--out", type=Path, help="where the result is stored")
    arguments = parser.parse_args()
    kinds = [kind for kind in KINDS if arguments.only in (None, "grpc" if "gRPC" in kind else "http")]
    device = place(Options(device=arguments.device))
    todo = work.offline(0, **OFFLINE[device])
    alone = in_process(arguments.model, device, arguments.rounds)
    folder = shape_folder(arguments.model)
    options = ("--device", device, "--token-budget", str(BUDGET)) if device == "cuda" else ("--device", device)
    named = ("serve", "--port", "0", "--grpc-port", "0", "--model", f"dummy:{folder}", *options)
    with started("sglc.cli", *named) as server:
        rounds = served(server, todo, arguments.rounds, kinds)
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
    print(json.dumps(report, indent=1))
    store(arguments.out or RESULTS / f"http-offline-{arguments.model}.json", report)


if __name__ == "__main__":
    main()
