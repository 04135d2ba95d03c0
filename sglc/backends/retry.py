"""When an API is asked again: the one policy of all back ends that go over HTTP.

The vendors' SDKs are told to try once. What is tried again: 408, 409, 429 and 5xx answers, connections
that fail or break, and attempts that take too long, unless text of the attempt was handed on already.
"""

from __future__ import annotations

import asyncio
import email.utils
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from sglc.errors import BackendError

_T = TypeVar("_T")
_AGAIN = (408, 409, 429)


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How often and how long one request is tried. Seconds; the waits double, and are jittered by the seed."""

    attempts: int = 5
    first_wait_s: float = 0.5
    longest_wait_s: float = 20.0  # what the server asks for (Retry-After) may be longer
    attempt_s: float = 600.0  # one attempt, its answer included
    total_s: float = 900.0  # all attempts and waits


class Trouble(Exception):
    """An attempt failed. `again`: another one may do better; `wait_s` is what the server asks for."""

    def __init__(
        self, message: str, *, again: bool = True, wait_s: float | None = None, hint: str = ""
    ) -> None:
        super().__init__(message)
        self.message = message
        self.again = again
        self.wait_s = wait_s
        self.hint = hint


def status_trouble(status: int, message: str, headers: Mapping[str, str], *, final: bool = False) -> Trouble:
    """What an answer that is no success means. `final`: whatever the status, it will be the same again."""
    asked = headers.get("x-should-retry", "").lower()
    again = asked == "true" or (asked != "false" and (status in _AGAIN or status >= 500))
    hints = {
        401: "check the API key in the environment", 403: "check what the API key may do",
        404: "check the model's name and the base URL",
    }  # fmt: skip
    text = f"HTTP {status}" + (f": {message}" if message else "")
    return Trouble(text, again=again and not final, wait_s=_asked_wait_s(headers), hint=hints.get(status, ""))


def _asked_wait_s(headers: Mapping[str, str]) -> float | None:
    """Seconds of `retry-after-ms` or `retry-after`, which may be a date."""
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        raw = headers.get(name)
        if raw is None:
            continue
        try:
            return max(0.0, float(raw) * unit)
        except ValueError:
            when = email.utils.parsedate_tz(raw)
            if when is not None:
                return max(0.0, email.utils.mktime_tz(when) - time.time())
    return None


async def patiently(
    attempt: Callable[[], Awaitable[_T]],
    patience: Patience,
    places: asyncio.Semaphore,
    *,
    seed: int,
    name: str,
    told: Callable[[], bool] = lambda: False,
) -> tuple[_T, int]:
    """What `attempt` gives, and how many attempts that took.

    Args:
        attempt: makes one request; raises `Trouble`.
        places: one is held while an attempt goes on. Time in its queue is not counted.
        seed: of the jitter.
        name: of the generation, for errors.
        told: whether text of an attempt was handed on: then there is no other.

    Raises:
        BackendError: SGLC542, the API refuses the request; SGLC543, it could not be had in as many attempts,
            or in as much time, as `patience` has.
    """
    jitter: random.Random | None = None  # seeding one takes longer than most of what is done here
    left_s = patience.total_s
    for number in range(1, patience.attempts + 1):
        async with places:
            began = time.monotonic()
            try:
                async with asyncio.timeout(min(patience.attempt_s, left_s)):
                    return await attempt(), number
            except Trouble as error:
                trouble = error
            except TimeoutError:
                trouble = Trouble("no answer in time")
            left_s -= time.monotonic() - began
        if not trouble.again:
            raise _given_up("SGLC542", "refuses", name, trouble, number)
        if told():
            raise _given_up("SGLC543", "broke off its answer for", name, trouble, number)
        wait_s = min(patience.longest_wait_s, patience.first_wait_s * 2 ** (number - 1))
        jitter = jitter or random.Random(seed)
        wait_s = max(wait_s * jitter.uniform(0.5, 1.0), trouble.wait_s or 0.0)
        if number == patience.attempts or wait_s >= left_s:
            late = "" if number == patience.attempts else f"; in {wait_s:.0f} s it would be too late"
            raise _given_up("SGLC543", "does not answer", name, trouble, number, late)
        await asyncio.sleep(wait_s)
        left_s -= wait_s
    raise AssertionError("the last attempt returns or raises")


def _given_up(code: str, does: str, name: str, trouble: Trouble, attempts: int, late: str = "") -> BackendError:
    tries = f"{attempts} attempts" if attempts > 1 else "1 attempt"
    return BackendError(
        code, f"the API {does} `{name}`: {trouble.message}", note=f"{tries}{late}", hint=trouble.hint
    )
