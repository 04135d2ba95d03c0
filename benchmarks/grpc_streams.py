"""What a token of a stream over gRPC costs the server, beside a bare stream of `grpc.aio` and one over HTTP.

64 streams at once, of the runtime's process with the oracle as its model, and of a server that writes as many
messages of the same kind and does nothing else, in turns. CPU time is that of the process that speaks gRPC, all
its threads; tokens that come together share a message, so messages are counted, too. Of steps that take a fifth
of a second each token has a message of its own, and wakes its stream; there streams of two lengths are
measured, so that what a request costs, however long its answer is, stands apart.

    python -m benchmarks.grpc_streams

Writes benchmarks/results/grpc-<cpu>.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from contextlib import ExitStack
from typing import Any

import grpc
from smg_grpc_proto import sglang_scheduler_pb2 as pb
from smg_grpc_proto import sglang_scheduler_pb2_grpc as rpc

from benchmarks.http_path import Server, load, started
from benchmarks.machine import medians, result_path, setting, store

STREAMS, TOKENS = 64, 200
STEP_S, SLOW_TOKENS = 0.2, (10, 90)  # of steps that are waited for, and tokens of a short and of a long stream
GOALS = {"one message a token": 70, "messages shared": 20}  # microseconds a token


class Bare:
    """Writes as many messages as there are tokens, and a last one; if `waits`, one to each stream a step."""

    def __init__(self, waits: bool) -> None:
        self._waits, self._step = waits, asyncio.Event()

    async def step(self) -> None:
        """Begin steps, without an end."""
        while True:
            await asyncio.sleep(STEP_S)
            over, self._step = self._step, asyncio.Event()
            over.set()

    async def Generate(self, request: Any, context: Any) -> None:
        """As of the service."""
        chunk = pb.GenerateStreamChunk(token_ids=[7], prompt_tokens=10, completion_tokens=100, cached_tokens=9)
        for _ in range(request.sampling_params.max_new_tokens):
            if self._waits:
                await self._step.wait()
            await context.write(pb.GenerateResponse(request_id=request.request_id, chunk=chunk))
        await context.write(pb.GenerateResponse(complete=pb.GenerateComplete(output_ids=[7])))

    def __getattr__(self, name: str) -> Any:
        return None  # the other calls of the service


async def serve_bare(waits: bool) -> None:
    """Until a signal."""
    server, bare = grpc.aio.server(), Bare(waits)
    rpc.add_SglangSchedulerServicer_to_server(bare, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"grpc://127.0.0.1:{port} http://127.0.0.1:0", file=sys.stderr, flush=True)
    await asyncio.gather(bare.step(), server.wait_for_termination())


async def streamed(port: int, tokens: int) -> tuple[int, int]:
    """Tokens and messages of all streams of so many tokens each, read by one client."""
    sampling = pb.SamplingParams(max_new_tokens=tokens, ignore_eos=True)
    request = pb.GenerateRequest(
        tokenized=pb.TokenizedInput(input_ids=[65] * 10), sampling_params=sampling, stream=True
    )
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = rpc.SglangSchedulerStub(channel)

        async def one() -> tuple[int, int]:
            messages = [each async for each in stub.Generate(request)]
            return sum(len(each.chunk.token_ids) for each in messages), len(messages)

        made = await asyncio.gather(*(one() for _ in range(STREAMS)))
    return sum(own for own, _ in made), sum(messages for _, messages in made)


def measured(server: Server, wanted: int = TOKENS) -> dict[str, float]:
    """One round over gRPC, of streams of so many tokens."""
    before_s = server.cpu_s()
    tokens, messages = asyncio.run(streamed(server.grpc_port, wanted))
    spent_s = server.cpu_s() - before_s
    assert tokens == STREAMS * wanted, "tokens are missing"
    return {
        "cpu_us_a_token": 1e6 * spent_s / tokens,
        "cpu_us_a_message": 1e6 * spent_s / messages,
        "tokens_a_message": tokens / messages,
    }


def of_slow_steps(server: Server) -> dict[str, float]:
    """One round of steps that are waited for."""
    short, long = (measured(server, wanted) for wanted in SLOW_TOKENS)
    spent_us = [made["cpu_us_a_token"] * count for made, count in zip((short, long), SLOW_TOKENS, strict=True)]
    a_token = (spent_us[1] - spent_us[0]) / (SLOW_TOKENS[1] - SLOW_TOKENS[0])
    return {
        "cpu_us_a_token": a_token,
        "cpu_us_a_request": spent_us[0] - SLOW_TOKENS[0] * a_token,
        "tokens_a_message": long["tokens_a_message"],
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    names = ("bare", "bare, slow steps", "oracle", "oracle, slow steps", "oracle, http")
    found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    body = {"prompt": "Count to 1", "temperature": 0, "max_tokens": TOKENS, "stream": True, "ignore_eos": True}
    with ExitStack() as stack:
        bare = stack.enter_context(started("benchmarks.grpc_streams", "bare"))
        waiting = stack.enter_context(started("benchmarks.grpc_streams", "bare", "waits"))
        oracle = stack.enter_context(started("tests.oracle_server", "quick", "256", "grpc"))
        slow = stack.enter_context(started("tests.oracle_server", "slow", "256", "grpc"))
        for number in range(rounds + 1):
            made = {"bare": measured(bare), "oracle": measured(oracle)}
            made |= {"bare, slow steps": of_slow_steps(waiting), "oracle, slow steps": of_slow_steps(slow)}
            made["oracle, http"] = load(oracle, STREAMS, STREAMS, body)
            if number:  # the first one is to get warm
                for name, figures in made.items():
                    found[name].append(figures)
    cases = {name: medians(each, 2) for name, each in found.items()}
    print(json.dumps(cases, indent=1))
    report = {
        "what": __doc__.split("\n\n")[0], "streams": STREAMS, "tokens_a_stream": TOKENS, "rounds": rounds,
        "goals, cpu_us_a_token": GOALS, "cases": cases, **setting(),
    }  # fmt: skip
    store(result_path("grpc"), report)


if __name__ == "__main__":
    if sys.argv[1:2] == ["bare"]:
        asyncio.run(serve_bare(waits=len(sys.argv) > 2))
    else:
        main()
