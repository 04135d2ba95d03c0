"""Requests above an API's rate: one that is refused has the others wait, and each comes to its turn."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from sglc.backends import retry
from sglc.backends.retry import (
    Limit,
    Patience,
    Places,
    Trouble,
    asked_wait_s,
    counts,
    patiently,
    status_trouble,
)
from sglc.errors import BackendError


class _Skipping(selectors.DefaultSelector):
    """Waits for nothing: what it is told to wait has passed."""

    skipped_s = 0.0

    def select(self, timeout: float | None = None) -> Any:
        self.skipped_s += timeout or 0.0
        return super().select(0)


class _Loop(asyncio.SelectorEventLoop):
    """A loop whose time passes where it would wait."""

    def __init__(self) -> None:
        self._skipping = _Skipping()
        super().__init__(self._skipping)

    def time(self) -> float:
        return self._skipping.skipped_s


class Asked:
    """What came of so many requests side by side, and when they came."""

    def __init__(self) -> None:
        self.times: list[tuple[float, int]] = []
        self.results: list[Any] = []

    def notes(self) -> list[str]:
        return [error.note for error in self.results if isinstance(error, BackendError)]


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Asked]:
    """Asks an API, which is given the number of who asks and the time, for so many answers."""

    def asked(api: Callable[[int, float], None], count: int, shared: Places, **patience: Any) -> Asked:
        made = Asked()

        async def all_of_them() -> None:
            loop = asyncio.get_running_loop()
            monkeypatch.setattr(retry, "time", SimpleNamespace(monotonic=loop.time))

            async def attempt(number: int) -> int:
                made.times.append((loop.time(), number))
                await asyncio.sleep(0.01)
                api(number, loop.time())
                return number

            waiting = [
                patiently(partial(attempt, number), Patience(**patience), shared, itself, seed=number, name="x")
                for number in range(count)
            ]
            made.results = await asyncio.gather(*waiting, return_exceptions=True)

        with asyncio.Runner(loop_factory=_Loop) as runner:
            runner.run(all_of_them())
        return made

    return asked


def itself(error: Exception) -> Exception:
    return error


def refusal(wait: str) -> Trouble:
    return status_trouble(429, "slow down", {"retry-after": wait})


def test_a_batch_above_a_rate_loses_nothing(ask: Callable[..., Asked]) -> None:
    last_s = -1.0

    def ten_a_second(number: int, now: float) -> None:
        nonlocal last_s
        if now - last_s < 0.1:
            raise refusal("1")
        last_s = now

    made = ask(ten_a_second, 300, Places(16))
    assert made.notes() == []
    assert sorted(number for number, _ in made.results) == list(range(300))
    assert len(made.times) < 4 * 300
    assert made.times[-1][0] < 120


def test_what_one_is_told_to_wait_all_wait(ask: Callable[..., Asked]) -> None:
    left = [refusal("30")]

    def once(number: int, now: float) -> None:
        if left:
            raise left.pop()

    made = ask(once, 6, Places(1))
    assert made.notes() == []
    before = [now for now, _ in made.times if now < 30]
    assert (len(made.times), len(before)) == (7, 1)
    assert made.times[-1][0] < 30 + 6 * retry._SPREAD_S


def test_where_nobody_is_let_through_each_has_its_attempts(ask: Callable[..., Asked]) -> None:
    def never(number: int, now: float) -> None:
        raise refusal("1")

    made = ask(never, 4, Places(4), attempts=3)
    assert made.notes() == ["3 attempts"] * 4
    assert len(made.times) == 12


def test_who_never_has_a_turn_waits_so_long_in_all(ask: Callable[..., Asked]) -> None:
    places = Places(1)

    def others_first(number: int, now: float) -> None:
        places.limit.answered += 1
        raise refusal("10")

    made = ask(others_first, 1, places, total_s=100.0)
    assert "it would be too late" in made.notes()[0]
    assert 5 < len(made.times) <= 10


def test_a_wait_of_another_that_is_too_long_is_not_waited_for(ask: Callable[..., Asked]) -> None:
    def later(number: int, now: float) -> None:
        raise Trouble("busy", wait_s=20.0 + 10 * number) if now < 1 else refusal("39.5")

    made = ask(later, 2, Places(2), attempts=2, total_s=60.0)
    assert made.notes() == ["2 attempts", "1 attempt; in 34 s it would be too late"]
    assert [number for _, number in made.times] == [0, 1, 0]


def test_what_counts_as_an_attempt() -> None:
    limited, failed = refusal("1"), status_trouble(503, "busy", {"retry-after": "1"})
    assert [counts(trouble, others) for trouble in (limited, failed) for others in (0, 3)] == [
        *(True, False),
        *(True, True),
    ]
    unknown = status_trouble(429, "for how long nobody knows", {})
    assert not unknown.limited
    unknown.wait_s = 1.0  # found elsewhere, as LiteLLM's errors have it
    assert not counts(unknown, 3)


@pytest.mark.parametrize("date", ["Wed, 21 Oct 999999 07:28:00 GMT", "Wed, 99 Foo 1 07:28:00 GMT", "soon"])
def test_a_date_that_is_none_asks_for_no_wait(date: str) -> None:
    assert asked_wait_s({"retry-after": date}) is None


@pytest.mark.parametrize("number", ["inf", "-inf", "nan", "1e400", "9" * 400])
def test_a_number_that_is_no_time_asks_for_no_wait(number: str) -> None:
    assert asked_wait_s({"retry-after": number}) is None
    assert asked_wait_s({"retry-after-ms": number, "retry-after": "2"}) == 2.0


def test_a_limit_is_over_for_each_at_another_time() -> None:
    limit = Limit()
    limit.wait(100.0, 60.0)
    limit.wait(110.0, 1.0)  # shorter than what was said before
    waits = [limit.left_s(120.0) for _ in range(8)]
    assert len(set(waits)) == 8
    assert 40.0 <= min(waits) <= max(waits) <= 45.0
    assert limit.left_s(161.0) == 0.0
