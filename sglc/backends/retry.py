"""When an API is asked again: the one policy of all back ends that go over HTTP.

The vendors' SDKs are told to try once. What is tried again: 408, 409, 429 and 5xx answers, connections
that fail or break, and attempts that take too long, unless text of the attempt was handed on already.
A 429 that says how long to wait has all requests of its back end wait so long.
"""

from __future__ import annotations

import asyncio
import email.utils
import math
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from sglc.errors import BackendError, SglcError
from sglc.ir.plan.events import Usage

_T = TypeVar("_T")
_AGAIN = (408, 409, 429)
KEY_HINT = "check the API key in the environment"
_SPREAD_S = 5.0  # at most: over so long those go on that have waited for one limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How often and how long one request is tried. Seconds; the waits double, and are jittered by the seed."""

    attempts: int = 5  # without those that a limit refused while it let others through
    first_wait_s: float = 0.5
    longest_wait_s: float = 20.0  # what the server asks for (Retry-After) may be longer
    attempt_s: float = 600.0  # one attempt, its answer included
    total_s: float = 900.0  # all attempts and waits


class Trouble(Exception):
    """An attempt failed. `again`: another one may do better; `wait_s` is what the server asks for.

    `limited`: there were too many requests, whoever asked with the same key.
    """

    def __init__(
        self, message: str, *, again: bool = True, wait_s: float | None = None, hint: str = "",
        limited: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.message = message
        self.again = again
        self.wait_s = wait_s
        self.hint = hint
        self._limited = limited

    @property
    def limited(self) -> bool:
        """Whether all who ask with the same key are to wait, and how long is known."""
        return self._limited and self.wait_s is not None


class Paid:
    """What fails inside has taken so much before."""

    __slots__ = ("_usage",)

    def __init__(self, usage: Usage) -> None:
        self._usage = usage

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, BackendError):
            error.usage = self._usage + (error.usage or Usage())


def status_trouble(status: int, message: str, headers: Mapping[str, str], *, final: bool = False) -> Trouble:
    """What an answer that is no success means. `final`: whatever the status, it will be the same again."""
    asked = headers.get("x-should-retry", "").lower()
    again = asked == "true" or (asked != "false" and (status in _AGAIN or status >= 500))
    hints = {
        401: KEY_HINT, 403: "check what the API key may do",
        404: "check the model's name and the base URL",
    }  # fmt: skip
    hint = "check the base URL" if 300 <= status < 400 else hints.get(status, "")
    text = f"HTTP {status}" + (f": {message}" if message else "")
    return Trouble(
        text, again=again and not final, wait_s=asked_wait_s(headers), hint=hint, limited=status == 429,
    )  # fmt: skip


def asked_wait_s(headers: Mapping[str, str]) -> float | None:
    """Seconds of `retry-after-ms` or `retry-after`, which may be a date."""
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        raw = headers.get(name)
        if raw is None:
            continue
        try:
            wait_s = float(raw) * unit
        except ValueError:
            if (when := _moment(raw)) is not None:
                return max(0.0, when - time.time())
        else:
            if math.isfinite(wait_s):  # more digits than a float has are `inf`
                return max(0.0, wait_s)
    return None


def _moment(date: str) -> float | None:
    """The time that a header says; None if it says none, or one that no clock has."""
    when = email.utils.parsedate_tz(date)
    try:
        return None if when is None else float(email.utils.mktime_tz(when))
    except (ValueError, OverflowError):
        return None


def unexpected(error: Exception) -> BackendError:
    """The error of what no back end should raise."""
    return BackendError("SGLC502", f"the back end failed: `{type(error).__name__}`: {error}")


class Limit:
    """Until when an API wants no requests, and how many it has answered. Times are of `time.monotonic`."""

    __slots__ = ("_jitter", "_over", "_spread_s", "answered")

    def __init__(self) -> None:
        self.answered = 0
        self._over, self._spread_s = 0.0, 0.0
        self._jitter = random.Random(0)

    def wait(self, now: float, asked_s: float) -> None:
        """It wants none for so long."""
        if now + asked_s > self._over:
            self._over, self._spread_s = now + asked_s, min(asked_s, _SPREAD_S)

    def left_s(self, now: float) -> float:
        """How long who comes now is to wait: not all until the same moment, or all but one come too early."""
        left_s = self._over - now
        return left_s + self._spread_s * self._jitter.random() if left_s > 0 else 0.0


def counts(trouble: Trouble, others: int) -> bool:
    """Whether an attempt is one of so many. Where a limit lets others through, waiting for one's turn is none.

    Args:
        others: requests that were answered since the attempt before.
    """
    return not (trouble.limited and others)


class TimeLimitError(Exception):
    """An attempt took too long."""


class Places:
    """Room for so many attempts at once on one event loop, each with a time limit.

    As of `asyncio.timeout`, but with one timer for all of them: attempts have minutes, and end much earlier.
    `limit` is the one that all of them have.
    """

    def __init__(self, count: int) -> None:
        self.free = asyncio.Semaphore(count)
        self.limit = Limit()
        self._due: dict[asyncio.Task[Any], float] = {}  # by the loop's clock
        self._late: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None

    async def within(self, seconds: float, attempt: Awaitable[_T]) -> _T:
        """What `attempt` gives.

        Raises:
            TimeLimitError: it takes longer.
        """
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        before, due = task.cancelling(), loop.time() + seconds
        self._due[task] = due
        if self._timer is None or due < self._timer.when():
            self._ring(loop, due)
        try:
            return await attempt
        except asyncio.CancelledError:
            if task in self._late and task.uncancel() <= before:
                raise TimeLimitError from None
            raise
        finally:
            del self._due[task]
            self._late.discard(task)

    def _ring(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(due, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """End what is late, and come back for the next."""
        self._timer = None
        for task, due in self._due.items():
            if due <= loop.time() and task not in self._late:
                self._late.add(task)
                task.cancel()
        if waiting := [due for task, due in self._due.items() if task not in self._late]:
            self._ring(loop, min(waiting))


async def patiently(
    attempt: Callable[[], Awaitable[_T]],
    patience: Patience,
    places: Places,
    meaning: Callable[[Exception], Exception],
    *,
    seed: int,
    name: str,
    told: Callable[[], bool] = lambda: False,
) -> tuple[_T, int]:
    """What `attempt` gives, and how many attempts that took.

    Args:
        attempt: begins one request.
        meaning: what an attempt's failure is: a `Trouble`, or what ends it all.
        places: one is held while an attempt goes on. Time in its queue is not counted.
        seed: of the jitter.
        name: of the generation, for errors.
        told: whether text of an attempt was handed on: then there is no other.

    Raises:
        BackendError: SGLC542, the API refuses the request; SGLC543, it could not be had in as many attempts,
            or in as much time, as `patience` has.
        what `meaning` makes of a failure, if that is no `Trouble`; SGLC502, if it is no error of sglc's.
    """
    jitter: random.Random | None = None  # seeding one takes longer than most of what is done here
    left_s, limit = patience.total_s, places.limit
    number, tried, answered = 0, 0, limit.answered
    trouble: Exception = Trouble("there are too many requests")
    while True:
        async with places.free:
            if pause_s := limit.left_s(time.monotonic()):
                if pause_s >= left_s:
                    with Paid(Usage(calls=number)):
                        raise _too_late(name, trouble, number, pause_s)
                await asyncio.sleep(pause_s)
                left_s -= pause_s
            began, number = time.monotonic(), number + 1
            try:
                made = await places.within(min(patience.attempt_s, left_s), attempt())
                limit.answered += 1
                return made, number
            except TimeLimitError:
                trouble = Trouble("no answer in time")
            except Exception as error:
                trouble = error if isinstance(error, Trouble) else meaning(error)
            left_s -= time.monotonic() - began
        with Paid(Usage(calls=number)):
            if not isinstance(trouble, Trouble):
                raise trouble if isinstance(trouble, SglcError) else unexpected(trouble) from None
            if not trouble.again:
                raise _given_up("SGLC542", "refuses", name, trouble, number)
            if told():
                raise _given_up("SGLC543", "broke off its answer for", name, trouble, number)
        counted = counts(trouble, limit.answered - answered)
        tried, answered = tried + counted, limit.answered
        jitter = jitter or random.Random(seed)
        wait_s = min(patience.longest_wait_s, patience.first_wait_s * 2 ** max(0, tried - 1))
        wait_s = max(wait_s * jitter.uniform(0.5, 1.0), trouble.wait_s or 0.0)
        if trouble.limited and wait_s < left_s:
            limit.wait(time.monotonic(), trouble.wait_s or 0.0)
        with Paid(Usage(calls=number)):
            if tried == patience.attempts:
                raise _given_up("SGLC543", "does not answer", name, trouble, number)
            if wait_s >= left_s:
                raise _too_late(name, trouble, number, wait_s)
        if counted or wait_s > (trouble.wait_s or 0.0):  # else its turn comes behind those that have not asked
            await asyncio.sleep(wait_s)
            left_s -= wait_s


def _too_late(name: str, trouble: Exception, attempts: int, wait_s: float) -> BackendError:
    assert isinstance(trouble, Trouble)
    late = f"; in {wait_s:.0f} s it would be too late"
    return _given_up("SGLC543", "does not answer", name, trouble, attempts, late)


def _given_up(code: str, does: str, name: str, trouble: Trouble, attempts: int, late: str = "") -> BackendError:
    tries = "1 attempt" if attempts == 1 else f"{attempts} attempts"
    return BackendError(
        code, f"the API {does} `{name}`: {trouble.message}", note=f"{tries}{late}", hint=trouble.hint
    )
