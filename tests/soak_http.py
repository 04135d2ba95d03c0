"""Streams over HTTP, many of which are left: each token is the oracle's, and nothing of them stays.

The oracle's process is behind the server. It has no room for all that is asked for, so prefixes are forgotten
and rows are preempted meanwhile.

python -m tests.soak_http --seconds 600 --clients 200 --seed 0
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglc.ir.sampling import Sampling
from sglc.runtime.engine.generation import sample_seed
from sglc.serve.sampling import seed_of
from tests.oracle_backend import VOCAB_SIZE, Characters
from tests.reference.oracle import Oracle
from tests.serving import Server, running
from tests.waiting import until

ROWS = 128
_WARM = 0.25  # of the time, behind which memory may not grow
_GROWTH = 1.05
_LEAVES = 0.3  # of the requests
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: what is not sent yet is not


@dataclass(frozen=True)
class Ask:
    """A request for a stream, and the ids and the text of each of its samples."""

    path: str
    body: bytes
    expected: tuple[tuple[int, ...], ...]
    texts: tuple[str, ...]


class Left(Exception):
    """The client goes away."""


def asks(count: int, seed: int) -> list[Ask]:
    """Prompts that begin alike, or not."""
    draw, tokenizer = random.Random(seed), Characters()
    oracle = Oracle(pages=1, page_size=16, vocab_size=VOCAB_SIZE, eos_ids=tokenizer.eos_ids)
    stems = [_text(draw, 120) for _ in range(8)]
    made = []
    for _ in range(count):
        prompt = draw.choice(stems)[: draw.randrange(1, 120)] + _text(draw, draw.randrange(1, 120))
        own_seed, samples = draw.getrandbits(63), draw.choice((1, 1, 1, 2))
        given: dict[str, Any] = {"temperature": draw.choice((0.0, 0.7)), "ignore_eos": draw.random() < 0.8}
        most = draw.randrange(1, 120)
        sampling = Sampling(max_tokens=most, **given)
        expected = tuple(
            oracle.continuation(tokenizer.encode(prompt), sampling, sample_seed(seed_of(own_seed, number), 0))[
                0
            ]
            for number in range(samples)
        )
        if draw.random() < 0.5:
            path, body = "/v1/completions", {"prompt": prompt, "max_tokens": most, "seed": own_seed, **given}
            body["n"] = samples
        else:
            params = {"max_new_tokens": most, "sampling_seed": own_seed, "n": samples, **given}
            path, body = "/generate", {"text": prompt, "sampling_params": params, "return_logprob": True}
        texts = tuple(map(tokenizer.decode, expected))
        made.append(Ask(path, json.dumps({**body, "stream": True}).encode(), expected, texts))
    return made


def _text(draw: random.Random, length: int) -> str:
    return "".join(chr(draw.randrange(32, 127)) for _ in range(length))


class Client:
    """Asks for one stream after the other, on one connection until it leaves it."""

    def __init__(self, server: Server, draw: random.Random, told: Counter[str]) -> None:
        host, _, port = server.url.removeprefix("http://").partition(":")
        self._address = (host, int(port))
        self._draw = draw
        self._told = told
        self._reader: asyncio.StreamReader | None = None

    async def ask(self, ask: Ask) -> None:
        """One stream, or the begin of one.

        Raises:
            AssertionError: something of it is wrong.
        """
        if self._reader is None:
            self._reader, self._writer = await asyncio.open_connection(*self._address)
        head = f"POST {ask.path} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
        self._writer.write(f"{head}content-length: {len(ask.body)}\r\n\r\n".encode() + ask.body)
        leaves = self._draw.randrange(60) if self._draw.random() < _LEAVES else None
        try:
            await self._read(ask, self._reader, leaves)
        except Left:
            self._told["left"] += 1
            if self._draw.random() < 0.5:
                self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self.close()
        self._told["requests"] += 1

    async def _read(self, ask: Ask, reader: asyncio.StreamReader, leaves: int | None) -> None:
        if leaves == 0:
            raise Left
        status = await reader.readline()
        assert status.startswith(b"HTTP/1.1 200"), status
        while await reader.readline() != b"\r\n":
            pass
        ids: list[list[int]] = [[] for _ in ask.expected]
        texts, ended, events = [""] * len(ids), 0, 0
        async for content in _events(reader):
            assert "error" not in content, content
            events += 1
            choice = content if ask.path == "/generate" else content["choices"][0]
            number = choice.get("index", 0)
            about = content.get("meta_info", choice)
            if ask.path == "/generate":
                texts[number] = content["text"]
                ids[number] = [id_ for _, id_, _ in about["output_token_logprobs"]]
                self._check(ids[number], ask.expected[number])
            else:
                texts[number] += choice["text"]
            ended += about["finish_reason"] is not None
            assert ask.texts[number].startswith(texts[number]), "another text"
            if about["finish_reason"] is not None:
                assert texts[number] == ask.texts[number], "a part of the text is missing"
                assert ask.path != "/generate" or ids[number] == list(ask.expected[number]), (
                    "tokens are missing"
                )
                self._told["tokens"] += len(ask.expected[number])
            if events == leaves:
                raise Left
        assert ended == len(ids), "a sample has not ended"

    def _check(self, ids: list[int], expected: tuple[int, ...]) -> None:
        assert tuple(ids) == expected[: len(ids)], "other tokens"

    def close(self) -> None:
        """End its connection."""
        if self._reader is not None:
            self._writer.close()
            self._reader = None


async def _events(reader: asyncio.StreamReader) -> AsyncIterator[dict[str, Any]]:
    """The events of an answer in chunks, to its end."""
    data = b""
    while size := int(await reader.readline(), 16):
        data += await reader.readexactly(size)
        await reader.readexactly(2)
        *whole, data = data.split(b"\n\n")
        for event in whole:
            content = event.removeprefix(b"data: ")
            if content != b"[DONE]":
                yield json.loads(content)
    await reader.readexactly(2)
    assert not data, "a part of an event"


async def _all(server: Server, known: list[Ask], clients: int, ends: float, seed: int) -> Counter[str]:
    told = Counter[str]()

    async def work(number: int) -> None:
        draw = random.Random(f"{seed} {number}")
        client = Client(server, draw, told)
        try:
            while time.monotonic() < ends:
                await client.ask(draw.choice(known))
        finally:
            client.close()

    async with asyncio.TaskGroup() as group:
        for number in range(clients):
            group.create_task(work(number))
    return told


def _memory(server: Server) -> dict[str, int]:
    """Resident bytes of both processes."""
    runtime = server.runtime()
    assert runtime is not None
    pids = {"server": server.process.pid, "runtime": runtime}
    page = 4096
    return {name: page * int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for name, pid in pids.items()}


def soak(*, seconds: float, clients: int, seed: int, pool: int = 400) -> dict[str, Any]:
    """What was done, in two runs on one server: one that warms it up, and one that must leave no trace.

    Raises:
        AssertionError: a wrong token, a page that is held for nobody, memory that grows.
    """
    known = asks(pool, seed)
    total = Counter[str]()
    with running("tests.oracle_server", "oracle", str(ROWS)) as server:
        memory = []
        for part, share in enumerate((_WARM, 1 - _WARM)):
            ends = time.monotonic() + share * seconds
            total.update(asyncio.run(_all(server, known, clients, ends, 2 * seed + part)))
            until(server.idle, "something is held for nobody")
            memory.append(_memory(server))
        said = server.log.read_text()
    assert said.count("\n") == 1, said
    grown = {name: memory[1][name] / memory[0][name] for name in memory[0]}
    return {**total, "memory": memory, "grown": grown}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    found = soak(seconds=arguments.seconds, clients=arguments.clients, seed=arguments.seed)
    print(json.dumps(found, indent=1))
    assert max(found["grown"].values()) < _GROWTH, "memory grows"


if __name__ == "__main__":
    sys.exit(main())
