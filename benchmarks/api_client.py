"""What a batch costs on an API beside the vendor's SDK: three generations a row, a server that waits 20 ms.

The same requests are made by a bare loop of the same SDK in the same process, in turns with ours; the server is
a process of its own. What is told is the processor's time of a generation beyond the loop's, how long the batch
takes beside it, and how many threads there were. A second loop calls the SDK's `post`, as we do, and not its
`create`, which makes types of what is asked and objects of what is answered: beyond that one is what is ours.
SGLang's frontend runs the program through its own OpenAI back end; tiktoken, which it loads and does not use
here, is a stand-in.

    python -m benchmarks.api_client [--rows N] [--rounds N]   # writes benchmarks/results/api_client-<cpu>.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
import types
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import sglc as sgl
from benchmarks.frontend import fetch, peak_threads, sglang_lang
from benchmarks.machine import ROOT, medians, result_path, setting, store

GOAL_US, GOAL_WALL = 100.0, 1.15
DELAY_S = 0.02
CONNECTIONS = (16, 64)
GENS = 3
SGLANG = ROOT / ".cache" / "sglang"
ANSWER = json.dumps({
    "id": "c", "object": "chat.completion", "created": 1, "model": "m",
    "choices": [
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "a fine answer"}},
    ],
    "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12},
}).encode()  # fmt: skip
_WHOLE = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (
    len(ANSWER),
    ANSWER,
)


def program(lang: Any) -> Any:
    """Three turns, each with an answer, written once for either package."""

    @lang.function
    def chain(s, question):
        s += lang.user("Question: " + question) + lang.assistant(lang.gen("answer", max_tokens=16))
        s += lang.user("Why?") + lang.assistant(lang.gen("reason", max_tokens=16))
        s += lang.user("A grade?") + lang.assistant(lang.gen("grade", max_tokens=16))

    return chain


# -- the server ----------------------------------------------------------------------------------------


async def serve() -> None:
    """Answer every request 20 ms later, until the input ends."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
                await reader.readexactly(length)
                await asyncio.sleep(DELAY_S)
                writer.write(_WHOLE)
        except asyncio.IncompleteReadError:
            writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)


# -- two clients ---------------------------------------------------------------------------------------


def bare(url: str, rows: int, connections: int, *, typed: bool = True) -> None:
    """The SDK alone: the requests that the batch makes, as many rows at once as there are connections."""
    import openai

    async def answer(client: Any, **asked: Any) -> str:
        if typed:
            made = await client.chat.completions.create(**asked)
            return str(made.choices[0].message.content)
        made = await client.post("/chat/completions", body=asked, cast_to=object)
        return str(made["choices"][0]["message"]["content"])

    async def ask() -> None:
        places = asyncio.Semaphore(connections)
        async with openai.AsyncOpenAI(base_url=url, api_key="k", max_retries=0) as client:

            async def row(number: int) -> None:
                turns: list[Any] = []
                for said in (f"Question: {number}", "Why?", "A grade?"):
                    turns.append({"role": "user", "content": said})
                    async with places:
                        text = await answer(client, model="m", messages=turns, max_tokens=16, seed=number)
                    turns.append({"role": "assistant", "content": text})

            async with asyncio.TaskGroup() as group:
                for number in range(rows):
                    group.create_task(row(number))

    asyncio.run(ask())


def ours(url: str, rows: int, connections: int) -> None:
    """The same as a batch of a program."""
    backend = sgl.OpenAI("m", base_url=url, api_key="k", concurrency=connections)
    batch = [{"question": str(number)} for number in range(rows)]
    results = program(sgl).run_batch(batch, backend=backend, num_threads=4 * connections)
    assert all(result["grade"] == "a fine answer" for result in results)
    backend.close()


def theirs(url: str, rows: int, connections: int) -> None:
    """The same by SGLang's frontend, a thread for each row that is live."""
    encoding = SimpleNamespace(_mergeable_ranks={}, _special_tokens={"<|endoftext|>": 0})
    sys.modules["tiktoken"] = types.ModuleType("tiktoken")
    sys.modules["tiktoken"].encoding_for_model = lambda name: encoding  # type: ignore[attr-defined]
    lang = sglang_lang(SGLANG)
    from sglang.lang.backend.openai import OpenAI

    backend = OpenAI("m", base_url=url, api_key="k", max_retries=0)
    batch = [{"question": str(number)} for number in range(rows)]
    results = program(lang).run_batch(batch, backend=backend, num_threads=connections)
    assert all(result["grade"] == "a fine answer" for result in results)
    backend.client.close()


def measured(run: Callable[[], None], generations: int) -> dict[str, float]:
    """Processor's time of a generation in microseconds, seconds, and the most threads."""
    with peak_threads(0.05) as threads:
        began_s, cpu_s = time.perf_counter(), time.process_time()
        run()
        took_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
    return {"cpu_us": cpu_s / generations * 1e6, "seconds": took_s, "threads": threads[0]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        asyncio.run(serve())
        return 0
    figures: dict[str, Any] = {}
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.api_client", "--serve"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as server:
        assert server.stdout is not None
        assert server.stdin is not None
        url = f"http://127.0.0.1:{int(server.stdout.readline())}/v1"
        ways: dict[str, Callable[[str, int, int], None]] = {
            "bare": bare, "post": partial(bare, typed=False), "sglc": ours, "sglang": theirs,
        }  # fmt: skip
        fetch(SGLANG)
        for way in ways.values():  # imports, first compilation
            way(url, 8, 8)
        for connections in CONNECTIONS:
            rounds: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
            for _ in range(asked.rounds):
                for name, way in ways.items():
                    made = measured(partial(way, url, asked.rows, connections), GENS * asked.rows)
                    rounds[name].append(made)
            found = {name: medians(made) for name, made in rounds.items()}
            more, own = (found["sglc"]["cpu_us"] - found[way]["cpu_us"] for way in ("bare", "post"))
            wall = found["sglc"]["seconds"] / found["bare"]["seconds"]
            figures[str(connections)] = {
                **found,
                "beyond_the_sdk_us": more,
                "beyond_post_us": own,
                "wall_ratio": wall,
            }
            sdk_us = found["bare"]["cpu_us"]
            threads = found["sglc"]["threads"]
            print(f"{connections} connections: {more:.0f} us beyond the SDK's {sdk_us:.0f}, {own:.0f} beyond "
                  f"its post, {wall:.2f} times its time, {threads:.0f} threads; SGLang "
                  f"{found['sglang']['cpu_us'] - sdk_us:.0f}", file=sys.stderr)  # fmt: skip
        server.stdin.close()
    result = {"rows": asked.rows, "goals": {"us": GOAL_US, "wall": GOAL_WALL}, "figures": figures, **setting()}
    store(result_path("api_client"), result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
