"""The time line of a run as Chrome's trace-event JSON, which Perfetto and `chrome://tracing` open.

A process is one call of `run` or `run_batch`. A row has one thread for its Python (with what it waited for,
and where) and one for each of its branches that generates. A generation reaches from its submission, or
from the end of the one before it in its branch, to its end. Arrows lead from a text to who waited for it.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sglc.errors import Loc, SglcError, UsageError
from sglc.execution.call_record import CallRecord
from sglc.execution.outputs import PendingOutput, RunOutputs
from sglc.frontend.locate import here
from sglc.ir.core import Site
from sglc.observe.whole_file import check_writable, write_whole

_PID = 1
_US = 1e6


@dataclass(frozen=True, slots=True)
class Slice:
    """Something that took time; seconds on the trace's own clock."""

    name: str
    category: str
    begin_s: float
    end_s: float
    args: dict[str, Any]
    first_s: float | None = None  # of a generation: its first text
    site: str = ""  # which generation it is, or which one it waited for


@dataclass(slots=True)
class RowTimeline:
    """What is known of one row. Written by the row's thread and by the executor's."""

    timeline: Timeline
    name: str
    number: int
    path: str
    base_s: float = 0.0  # where the row began
    end_s: float | None = None
    error: str = ""
    python: list[Slice] = field(default_factory=list)  # waits and declared functions
    made: list[tuple[Site, Slice]] = field(default_factory=list)
    known: set[Site] = field(default_factory=set)

    def begin(self, began_s: float) -> None:
        """The row began, at a time of `time.perf_counter`."""
        self.base_s = self.timeline.at(began_s)

    def done(self, output: PendingOutput) -> None:
        """A generation has ended well."""
        call = output.call
        assert call is not None
        self._generation(output, output.ended_s, _counts(call))

    def called(self, name: str, loc: Loc, began_s: float, error: BaseException | None) -> None:
        """A declared function was called at `loc` and has ended."""
        args = {"line": str(loc)} | ({} if error is None else {"error": _said(error)})
        self.python.append(Slice(name, "tool", self.timeline.at(began_s), self.timeline.now_s, args))

    def end(self, outputs: RunOutputs, error: BaseException | None) -> None:
        """The row has ended; what failed in it is known."""
        self.end_s = self.timeline.now_s
        self.error = "" if error is None else _said(error)
        for output in tuple(outputs.generations.values()):
            if output.error is not None and output.site not in self.known:
                self._generation(output, self.end_s - self.base_s, {"error": _said(output.error)})

    def _generation(self, output: PendingOutput, ended_s: float, args: dict[str, Any]) -> None:
        self.known.add(output.site)
        kind = "select" if not hasattr(output.node, "sampling") else "gen"
        about = {"site": str(output.site), "line": str(output.node.loc), **args}
        first = None if output.first_s is None else self.base_s + output.first_s
        begin_s, end_s = self.base_s + output.started_s, self.base_s + ended_s
        made = Slice(output.site.name, kind, begin_s, end_s, about, first, str(output.site))
        self.made.append((output.site, made))


class Wait:
    """A row's Python waits for a generation."""

    def __init__(self, row: RowTimeline, site: str) -> None:
        self._row = row
        self._site = site

    def __enter__(self) -> None:
        self._loc = here()
        self._began_s = self._row.timeline.now_s

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        args = {"line": str(self._loc), "site": self._site}
        name = f"wait for {self._site}"
        row = self._row
        row.python.append(Slice(name, "wait", self._began_s, row.timeline.now_s, args, None, self._site))


class Timeline:
    """The trace of one call of `run` or `run_batch`.

    Raises:
        UsageError: SGLC057, `path` cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            check_writable(self.path)
        except OSError as error:
            raise self._cannot_be_written(error) from None
        self._zero_s = time.perf_counter()
        self._rows: list[RowTimeline] = []
        self._lock = threading.Lock()
        self._written = False
        atexit.register(self.write)  # of a process that is interrupted

    @property
    def now_s(self) -> float:
        """Seconds since the trace began."""
        return self.at(time.perf_counter())

    def at(self, counter_s: float) -> float:
        """A time of `time.perf_counter` on the trace's clock."""
        return counter_s - self._zero_s

    def row(self, name: str, number: int, path: str) -> RowTimeline:
        """A row begins, or a program that it calls."""
        made = RowTimeline(self, name, number, path, self.now_s)
        with self._lock:
            self._rows.append(made)
        return made

    def failed(self, name: str, error: BaseException) -> None:
        """The call has failed; where no row began, that is told as of the first one."""
        if not self._rows:
            self.row(name, 0, "").end(RunOutputs(), error)

    def write(self) -> None:
        """Write the file, whatever has ended and whatever has not. Once.

        Raises:
            UsageError: SGLC057, it cannot be written.
        """
        with self._lock:  # until it is there: the end of the process waits for it
            if self._written:
                return
            data = {"traceEvents": list(events(self._rows, self.now_s)), "displayTimeUnit": "ms"}
            try:
                write_whole(self.path, json.dumps(data, ensure_ascii=False))
            except OSError as error:
                raise self._cannot_be_written(error) from None
            finally:
                self._written = True
                atexit.unregister(self.write)

    def _cannot_be_written(self, error: OSError) -> UsageError:
        why = error.strerror or error
        return UsageError("SGLC057", f"the trace `{self.path}` cannot be written: {why}")


def events(rows: Sequence[RowTimeline], now_s: float) -> Iterator[dict[str, Any]]:
    """The trace events of rows; those that have not ended reach to `now_s`."""
    threads = _Threads()
    if rows:
        yield _meta("process_name", 0, rows[0].name)
    arrows = 0
    for row in sorted(rows, key=lambda row: (row.number, row.path)):
        lane = f"row {row.number}" + (f" {row.path}" if row.path else "")
        end_s = now_s if row.end_s is None else row.end_s
        about = {"row": row.number} | ({"error": row.error} if row.error else {})
        whole = Slice(row.name if not row.path else row.path, "row", row.base_s, end_s, about)
        python = [whole, *sorted(row.python, key=lambda one: (one.begin_s, -one.end_s))]
        waited: dict[str, list[tuple[int, Slice]]] = {}
        for one, tid in threads.nested(f"{lane}: Python", python):
            yield _complete(one, tid)
            if one.category == "wait":
                waited.setdefault(one.site, []).append((tid, one))
        for branch, made in _branches(row.made):
            for one, tid in threads.sequential(f"{lane}{branch}", made):
                yield from _generated(one, tid)
                for to, wait in waited.get(one.site, ()):
                    if wait.end_s >= one.end_s:
                        arrows += 1
                        yield from _arrow(arrows, one, tid, wait, to)
    yield from threads.names()


class Lanes:
    """The generations of a branch by their ends, each begun when the one before it on its lane has ended."""

    def __init__(self) -> None:
        self._ends: list[float] = []  # of the last one of each

    def take(self, begin_s: float, end_s: float) -> tuple[int, float]:
        """The lane of the next one, submitted at `begin_s`, and when it has begun."""
        ends = self._ends
        lane = next((lane for lane, before_s in enumerate(ends) if before_s < end_s), len(ends))
        begin_s = max([begin_s, *ends[lane : lane + 1]])
        ends[lane : lane + 1] = [end_s]
        return lane, begin_s


class _Threads:
    """Numbers of threads: slices of one thread lie inside each other, or beside."""

    def __init__(self) -> None:
        self._names: list[str] = []

    def nested(self, name: str, slices: Sequence[Slice]) -> Iterator[tuple[Slice, int]]:
        """Slices in the order of their beginnings, each on the first thread of `name` that it fits."""
        open_: list[tuple[int, list[float]]] = []  # threads, and the ends of what is open on each
        for one in slices:
            for _, ends in open_:
                while ends and ends[-1] <= one.begin_s:
                    ends.pop()
            fitting = next((lane for lane in open_ if not lane[1] or one.end_s <= lane[1][-1]), None)
            if fitting is None:
                fitting = (self._new(name, len(open_)), [])
                open_.append(fitting)
            fitting[1].append(one.end_s)
            yield one, fitting[0]

    def sequential(self, name: str, slices: Sequence[Slice]) -> Iterator[tuple[Slice, int]]:
        """Slices by their ends, each begun when the one before it on its thread has ended."""
        lanes, tids = Lanes(), list[int]()
        for one in sorted(slices, key=lambda one: (one.end_s, one.begin_s)):
            lane, begin_s = lanes.take(one.begin_s, one.end_s)
            if lane == len(tids):
                tids.append(self._new(name, lane))
            first_s = None if one.first_s is None else min(max(one.first_s, begin_s), one.end_s)
            args = one.args | ({"submitted_us": _us(one.begin_s)} if begin_s > one.begin_s else {})
            yield Slice(one.name, one.category, begin_s, one.end_s, args, first_s, one.site), tids[lane]

    def names(self) -> Iterator[dict[str, Any]]:
        for place, name in enumerate(self._names):
            yield _meta("thread_name", place + 1, name)
            yield {**_meta("thread_sort_index", place + 1, ""), "args": {"sort_index": place}}

    def _new(self, name: str, others: int) -> int:
        self._names.append(f"{name} ({others + 1})" if others else name)
        return len(self._names)


def _branches(made: Sequence[tuple[Site, Slice]]) -> Iterator[tuple[str, list[Slice]]]:
    by_branch: dict[tuple[int, ...], list[Slice]] = {}
    for site, one in made:
        by_branch.setdefault(site.fork, []).append(one)
    for fork in sorted(by_branch):
        yield (f" branch {','.join(map(str, fork))}" if fork else ""), by_branch[fork]


def _generated(one: Slice, tid: int) -> Iterator[dict[str, Any]]:
    yield _complete(one, tid)
    if one.first_s is not None and one.begin_s < one.first_s < one.end_s:
        yield _complete(Slice("to the first text", one.category, one.begin_s, one.first_s, {}), tid)
        yield _complete(Slice("text", one.category, one.first_s, one.end_s, {}), tid)


def _complete(one: Slice, tid: int) -> dict[str, Any]:
    begin, end = _us(one.begin_s), _us(one.end_s)
    return {
        "name": one.name, "cat": one.category, "ph": "X", "ts": begin, "dur": max(0.0, round(end - begin, 3)),
        "pid": _PID, "tid": tid, "args": one.args,
    }  # fmt: skip


def _arrow(number: int, made: Slice, tid: int, wait: Slice, to: int) -> Iterator[dict[str, Any]]:
    shared = {"name": "text", "cat": "text", "id": number, "pid": _PID}
    yield {**shared, "ph": "s", "ts": _us(made.end_s), "tid": tid}
    yield {**shared, "ph": "f", "bp": "e", "ts": _us(wait.end_s), "tid": to}


def _meta(name: str, tid: int, value: str) -> dict[str, Any]:
    return {"name": name, "ph": "M", "ts": 0, "pid": _PID, "tid": tid, "args": {"name": value}}


def _us(seconds: float) -> float:
    return round(max(0.0, seconds) * _US, 3)


def _counts(call: CallRecord) -> dict[str, Any]:
    counts = {
        "prompt_tokens": call.usage.prompt,
        "cached_tokens": call.usage.cached,
        "computed_tokens": call.usage.computed,
        "completion_tokens": call.usage.completion,
    }
    if call.kind == "select":
        return {**counts, "scored_tokens": call.usage.scored, "decided": call.decided}
    return {**counts, "finish": [sample.finish for sample in call.samples]}


def _said(error: BaseException) -> str:
    return (
        f"{error.code}: {error.message}" if isinstance(error, SglcError) else f"{type(error).__name__}: {error}"
    )
