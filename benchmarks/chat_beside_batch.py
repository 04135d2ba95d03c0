"""A chat beside a batch of 1,000 rows: how much later its first text comes than on a calm server, and what the
batch loses by it.

`sglc serve` with the default model on this CPU, over HTTP. Four connections ask for a quarter of the rows each;
a chat comes at a steady pace, with a `priority` that the batch does not have, as a stream. The batch runs alone
before and behind those beside chats, and so do chats without it, since a machine drifts. What a chat waits for
is the step that runs when it comes, so rows and tokens of a step are few; what chats compute is what the batch
loses, so they are few, too.

    python -m benchmarks.chat_beside_batch              # 1,000 rows, some three and a half minutes
    python -m benchmarks.chat_beside_batch --rows 100   # a short one; nothing is stored

Writes benchmarks/results/chat-beside-batch-<cpu>.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from benchmarks.http_path import Server, started
from benchmarks.machine import result_path, setting, store

ROWS, CONNECTIONS = 1_000, 4
ROW_TOKENS, CHAT_TOKENS = 8, 2
PACE_S, CALM_PACE_S = 4.0, 0.5  # from one chat to the next
CALM = 20  # chats alone, twice
TURNS = 2  # of the batch beside chats
QUESTION = (
    "we are four people in a small town by the sea, two of us eat no meat, and one can have no nuts. Where "
    "could we eat tonight, at about eight, without a car, and what would it cost us? If it rains we would "
    "rather stay at home, so what could we cook, with what the shops near the harbour have?"
)
GOALS = {"p99, of calm": 3.0, "batch, of alone": 1.05}


@contextmanager
def connected(server: Server) -> Iterator[HTTPConnection]:
    """A connection that stays."""
    connection = HTTPConnection("127.0.0.1", server.port, timeout=600)
    try:
        yield connection
    finally:
        connection.close()


def asked(connection: HTTPConnection, path: str, body: dict[str, Any]) -> Any:
    """The answer to a request, whose body is not read yet."""
    connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    return answer


def batch_s(server: Server, name: str, rows: int) -> float:
    """Seconds until all rows of a batch have their texts. Prompts of another `name` share nothing."""

    def part(first: int) -> int:
        numbers = range(first, rows, CONNECTIONS)
        prompts = [f"{name} {number}: a line about rivers, please." for number in numbers]
        body = {
            "prompt": prompts,
            "max_tokens": ROW_TOKENS,
            "ignore_eos": True,
            "temperature": 0.7,
            "seed": first,
        }
        with connected(server) as connection:
            return int(json.load(asked(connection, "/v1/completions", body))["usage"]["completion_tokens"])

    began_s = time.perf_counter()
    with ThreadPoolExecutor(CONNECTIONS) as threads:
        made = sum(threads.map(part, range(CONNECTIONS)))
    assert made == rows * ROW_TOKENS, made
    return time.perf_counter() - began_s


def first_text_ms(connection: HTTPConnection, name: str) -> float:
    """Milliseconds from asking for a chat to its first text; it is read to its end."""
    question = (
        f"Chat {name}: I am in a town by the sea. Where could I eat fish tonight, and what would it cost?"
    )
    body = {
        "messages": [{"role": "user", "content": question}],
        "max_tokens": CHAT_TOKENS, "temperature": 0, "stream": True, "priority": 1, "ignore_eos": True,
    }  # fmt: skip
    began_s = time.perf_counter()
    first_s: float | None = None
    for line in asked(connection, "/v1/chat/completions", body):
        if (
            first_s is None
            and line.startswith(b"data: {")
            and json.loads(line[6:])["choices"][0]["delta"].get("content")
        ):
            first_s = time.perf_counter() - began_s
    assert first_s is not None
    return 1e3 * first_s


def chats(server: Server, name: str, most: int, pace_s: float, over: threading.Event) -> list[float]:
    """The first texts of so many chats, one each `pace_s`, unless it is `over` before."""
    found: list[float] = []
    with connected(server) as connection:
        begin_s = time.perf_counter()
        while len(found) < most and not over.wait(begin_s + (0.5 + len(found)) * pace_s - time.perf_counter()):
            found.append(first_text_ms(connection, f"{name} {len(found)}"))
    return found


def both(server: Server, name: str, rows: int) -> tuple[float, list[float]]:
    """Seconds of a batch beside chats, and their first texts."""
    over = threading.Event()
    with ThreadPoolExecutor(1) as thread:
        beside = thread.submit(chats, server, name, rows, PACE_S, over)
        seconds = batch_s(server, name, rows)
        over.set()
        return seconds, beside.result()


def figures(found: list[float]) -> dict[str, float]:
    """Of times to the first text."""
    found = sorted(found)
    p99 = found[int(0.99 * len(found))]
    return {"chats": len(found), "p50_ms": round(statistics.median(found), 1), "p99_ms": round(p99, 1)}


def measure(server: Server, rows: int, calm_chats: int, turns: int) -> dict[str, Any]:
    """All parts."""
    never = threading.Event()
    batch_s(server, "Warm", CONNECTIONS)
    chats(server, "warm", 2, 0.0, never)
    calm = chats(server, "calm", calm_chats, CALM_PACE_S, never)
    alone, beside, firsts = [batch_s(server, "Alone", rows)], list[float](), list[float]()
    for turn in range(turns):
        seconds, found = both(server, f"Both {turn}", rows)
        beside.append(seconds)
        firsts += found
    alone.append(batch_s(server, "Alone again", rows))
    calm += chats(server, "calm again", calm_chats, CALM_PACE_S, never)
    told, told_calm = figures(firsts), figures(calm)
    return {
        "first text of a chat, calm": told_calm,
        "first text of a chat, beside the batch": told,
        "batch alone, s": [round(seconds, 2) for seconds in alone],
        "batch beside chats, s": [round(seconds, 2) for seconds in beside],
        "p99, of calm": round(told["p99_ms"] / told_calm["p99_ms"], 2),
        "batch, of alone": round(statistics.mean(beside) / statistics.mean(alone), 3),
        "goals": GOALS,
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS, help="of the batch; others than 1,000 are not stored")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--max-rows", default="8")
    parser.add_argument("--token-budget", default="64")
    parser.add_argument("--out", type=Path, default=result_path("chat-beside-batch"))
    arguments = parser.parse_args()
    options = (
        "--max-rows",
        arguments.max_rows,
        "--token-budget",
        arguments.token_budget,
        "--max-priority",
        "1",
    )
    cli = ("sglc.cli", "serve", "--port", "0", "--device", "cpu", "--model", arguments.model, *options)
    with started(*cli) as server:
        stored = arguments.rows == ROWS
        measured = measure(server, arguments.rows, CALM if stored else 6, TURNS if stored else 1)
    report = {
        "what": __doc__.split("\n\n")[0],
        "model": arguments.model,
        "options": " ".join(options),
        "rows": arguments.rows,
        "tokens_a_row": ROW_TOKENS,
        "seconds_between_chats": PACE_S,
        **measured,
        **setting(),
    }
    print(json.dumps(report, indent=1))
    if stored:
        store(arguments.out, report)


if __name__ == "__main__":
    main()
