"""The runtime is ended at random moments under load: killed, or by an exception wherever it is."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.serve_fuzz.campaign import MOST_S, address_of
from tests.serve_fuzz.client import Answer, send
from tests.serve_fuzz.hostile import Hostile, posted
from tests.serving import Server
from tests.waiting import until

END_S, BACK_S = 5.0, 10.0  # in which what ran has an answer, and in which the next one is made
_LOAD = 6


@dataclass(slots=True)
class KillSummary:
    """What came of it: how long until every answer ended behind a kill, and until one was made again."""

    ended_s: list[float] = field(default_factory=list)
    back_s: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """As it is stored."""
        return {
            "kills": len(self.ended_s),
            "wrong": self.wrong,
            "until_all_ended_s": sorted(round(s, 2) for s in self.ended_s)[-3:],
            "until_answered_again_s": sorted(round(s, 2) for s in self.back_s)[-3:],
        }


def kill_at_random(server: Server, times: int, seed: int) -> KillSummary:
    """End the runtime so many times, by turns with SIGKILL and SIGUSR1, which it was taught to raise at."""
    summary, random, address = KillSummary(), Random(seed), address_of(server)
    for number in range(times):
        with ThreadPoolExecutor(_LOAD) as pool:
            asked = [_long(stream=i % 2 == 0) for i in range(_LOAD)]
            answers = [pool.submit(send, address, each, MOST_S) for each in asked]
            until(lambda: server.info()["running_rows"] == _LOAD, "they do not run")
            time.sleep(random.random() * 0.5)
            pid = server.runtime()
            assert pid is not None
            killed_s = time.monotonic()
            os.kill(pid, (signal.SIGKILL, signal.SIGUSR1)[number % 2])
            last_s = max(
                _end(summary, number, each, answer.result())
                for each, answer in zip(asked, answers, strict=True)
            )
        _take(summary.ended_s, last_s - killed_s, END_S, f"kill {number}: an answer ended", summary)
        again = Answer(None, b"", 0.0, 0.0)
        while again.status != 200 and time.monotonic() < killed_s + 2 * BACK_S:
            again = send(address, _short(), MOST_S)
        _take(summary.back_s, time.monotonic() - killed_s, BACK_S, f"kill {number}: one was answered", summary)
        # Behind three that live for less than that the next is begun later and later.
        if number > 1:
            time.sleep(max(0.0, 5.5 - (time.monotonic() - killed_s)))
    try:
        until(server.idle)
    except AssertionError as error:
        summary.wrong.append(f"it is not idle afterwards: {error}")
    return summary


def _take(into: list[float], seconds: float, most_s: float, what: str, summary: KillSummary) -> None:
    into.append(seconds)
    if seconds > most_s:
        summary.wrong.append(f"{what} after {seconds:.1f} s")


def _end(summary: KillSummary, number: int, asked: Hostile, answer: Answer) -> float:
    if wrong := answer.wrong(asked, MOST_S):
        summary.wrong.append(f"kill {number}: {wrong}")
    return answer.began_s + answer.seconds


def _long(*, stream: bool) -> Hostile:
    given = b'{"prompt": "once", "max_tokens": 3500, "ignore_eos": true, "stream": %s}'
    content = given % (b"true" if stream else b"false")
    return Hostile("killed", (posted("/v1/completions", content),), (200,))


def _short() -> Hostile:
    return Hostile("next", (posted("/v1/completions", b'{"prompt": "once", "max_tokens": 2}'),), (200,))
