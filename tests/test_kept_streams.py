"""Streams that segments keep for later ones."""

from __future__ import annotations

import pytest

from sglc.errors import RunError
from sglc.ir.plan.dataflow import KeptStreams


def kept() -> tuple[KeptStreams[str, int], list[str]]:
    dropped: list[str] = []
    return KeptStreams(dropped.append), dropped


def test_what_opens_a_promise_waits_and_goes_on_before_it_is_released() -> None:
    streams, dropped = kept()
    streams.promise(7)
    assert streams.open(7, 1) is None
    assert streams.open(7, 2) is None
    streams.release(7)
    gone: list[int] = []

    def go_on(waiter: int) -> None:
        assert not dropped
        gone.append(waiter)

    streams.keep(7, "a", go_on)
    assert (gone, dropped) == ([1, 2], ["a"])
    assert streams.empty
    with pytest.raises(RunError, match="not kept any more"):
        streams.open(7, 3)


def test_a_kept_stream_is_opened_as_often_as_wanted_and_dropped_once() -> None:
    streams, dropped = kept()
    streams.promise(7)
    streams.keep(7, "a", lambda _: None)
    assert not streams.empty
    assert [streams.open(7, 0), streams.open(7, 0)] == ["a", "a"]
    streams.release(7)
    streams.release(7)
    assert dropped == ["a"]


def test_a_promise_that_is_given_up_names_who_waits_and_leaves_nothing() -> None:
    streams, dropped = kept()
    streams.promise(7)
    streams.open(7, 1)
    streams.release(7)
    assert streams.give_up(7) == [1]
    assert streams.give_up(7) == []
    assert streams.empty
    streams.promise(7)
    streams.keep(7, "b", lambda _: None)
    assert (streams.open(7, 2), dropped) == ("b", [])
