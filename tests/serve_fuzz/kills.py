"""The runtime is ended at random moments under load: killed, or by an exception wherever it is."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.serve_fuzz.campaign import address_of
from tests.serve_fuzz.client import Answer, send
from tests.serve_fuzz.hostile import Hostile, posted
from tests.serving import Server
from tests.waiting import HANG_S, until

_LOAD = 6
_LIVES_S = 5.5  # behind three runtimes that live for less the next is begun later and later


@dataclass(slots=True)
class KillSummary:
    """What came of it: which runtimes were ended, and how often the next was asked for in vain."""

    killed: list[int] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """As it is stored."""
        return {"kills": len(self.killed), "wrong": self.wrong, "most_refused": max(self.refused, default=0)}


def kill_at_random(server: Server, times: int, seed: int) -> KillSummary:
    """End the runtime so many times, by turns with SIGKILL and SIGUSR1, which it was taught to raise at.

    All that ran has one end each, what is asked for meanwhile is answered, and behind SIGKILL another runtime
    is begun. An exception may come where it fails nothing but one request, or nothing at all.
    """
    summary, random, address = KillSummary(), Random(seed), address_of(server)
    for number in range(times):
        with ThreadPoolExecutor(_LOAD) as pool:
            asked = [_long(stream=i % 2 == 0) for i in range(_LOAD)]
            answers = [pool.submit(send, address, each, HANG_S) for each in asked]
            until(lambda: server.info()["running_rows"] == _LOAD, "they do not run")
            time.sleep(random.random() * 0.5)
            pid = server.runtime()
            assert pid is not None
            killed_s = time.monotonic()
            os.kill(pid, (signal.SIGKILL, signal.SIGUSR1)[number % 2])
            for each, answer in zip(asked, answers, strict=True):
                _take(summary, number, each, answer.result())
        meanwhile = _until_answered(address)
        for again in meanwhile:
            _take(summary, number, _short(), again)
        summary.killed.append(pid)
        if number % 2 == 0 and server.runtime() in (None, pid):
            summary.wrong.append(f"kill {number}: no other runtime answers")
        summary.refused.append(len(meanwhile) - 1)
        if number > 1:
            time.sleep(max(0.0, _LIVES_S - (time.monotonic() - killed_s)))
    try:
        until(server.idle)
    except AssertionError as error:
        summary.wrong.append(f"it is not idle afterwards: {error}")
    return summary


def _until_answered(address: tuple[str, int]) -> list[Answer]:
    """What comes of one request after the other, up to the first that is answered."""
    told: list[Answer] = []

    def answered() -> bool:
        told.append(send(address, _short(), HANG_S))
        return told[-1].status == 200

    until(answered, "none is answered again")
    return told


def _take(summary: KillSummary, number: int, asked: Hostile, answer: Answer) -> None:
    if wrong := answer.wrong(asked, HANG_S):
        summary.wrong.append(f"kill {number}: {wrong}")


def _long(*, stream: bool) -> Hostile:
    given = b'{"prompt": "once", "max_tokens": 3500, "ignore_eos": true, "stream": %s}'
    content = given % (b"true" if stream else b"false")
    return Hostile("killed", (posted("/v1/completions", content),), (200,))


def _short() -> Hostile:
    return Hostile("next", (posted("/v1/completions", b'{"prompt": "once", "max_tokens": 2}'),), (200,))
