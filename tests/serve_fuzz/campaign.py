"""Many hostile requests to one server beside a free stream, and what has to be so meanwhile and afterwards."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import numpy as np

from tests.runtime.tiny_model import save_tiny_model
from tests.serve_fuzz.client import Answer, send
from tests.serve_fuzz.hostile import Hostile, request
from tests.serving import ROOT, Server, serving
from tests.waiting import until

MEMORY_BYTES = 7_000_000 << 10  # of addresses, for each process
COMPILE_S = 1.0
TIMEOUT_S = 3.0  # of a request
MOST_S = TIMEOUT_S + 5.0  # until its connection is closed, on a machine that has more to do
_CLIENTS = 4
_CALM = 100  # events of the free stream before anybody else asks; with the first ones it is known to go on
_MARK = "SGLC_FUZZ"
_STALL_S = 4.0  # that the free stream may wait, however busy the machine is
_GROWTH_BYTES = 200 << 20  # of a process behind the first third of the requests


@dataclass(slots=True)
class Summary:
    """What came of a campaign."""

    requests: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    longest: tuple[float, str] = (0.0, "")
    rss_mib: dict[str, list[int]] = field(default_factory=dict)
    gaps_ms: dict[str, Any] = field(default_factory=dict)
    beside: list[str] = field(default_factory=list)  # the largest gaps, and the requests that ran meanwhile
    spans: list[tuple[float, float, str]] = field(default_factory=list)  # begin, end, which request

    def take(self, number: int, asked: Hostile, answer: Answer) -> None:
        """Count an answer."""
        self.requests += 1
        now_s = answer.began_s + answer.seconds
        self.spans.append((answer.began_s, now_s, f"{number} {asked.kind}"))
        status = "left" if answer.left else "closed" if answer.status is None else str(answer.status)
        self.statuses[f"{asked.kind}: {status}"] += 1
        self.longest = max(self.longest, (round(answer.seconds, 2), f"{number} ({asked.kind})"))
        if wrong := answer.wrong(asked, MOST_S):
            self.wrong.append(f"request {number} ({asked.kind}): {wrong}")

    def as_json(self) -> dict[str, Any]:
        """As it is stored."""
        return {
            "requests": self.requests,
            "statuses": dict(sorted(self.statuses.items())),
            "wrong": self.wrong,
            "longest_s": self.longest[0],
            "longest": self.longest[1],
            "rss_mib": self.rss_mib,
            "gaps_ms": self.gaps_ms,
            "largest_gaps": self.beside,
        }


@contextmanager
def limited_server(*options: str, model: str = "tiny", root: Path = ROOT) -> Iterator[Server]:
    """A server of a model, or of a tiny one, that has little memory and has compiled nothing yet. When it has
    ended, nothing of it may be left."""
    mark = uuid.uuid4().hex
    before = os.environ.get("SGLC_CACHE")
    models = Path(before or Path.home() / ".cache" / "sglc") / "models"
    with TemporaryDirectory() as name:
        folder = Path(name)
        if model == "tiny":
            save_tiny_model(folder, max_position_embeddings=4096)
            (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m['content'] }}{% endfor %}")
            options = ("--model", name, "--name", "tiny", "--kv-mib", "64", *options)
        else:
            (folder / "cache").mkdir()
            (folder / "cache" / "models").symlink_to(models)
            options = ("--model", model, *options)
        os.environ[_MARK], os.environ["SGLC_CACHE"] = mark, str(folder / "cache")
        try:
            with serving(
                *("--device", "cpu", "--max-rows", "8", "--max-queue", "2048"),
                *("--compile-timeout", str(COMPILE_S)),
                *("--request-timeout", str(TIMEOUT_S)),
                *options,
                root=root,
            ) as server:
                runtime = server.runtime()
                assert runtime is not None
                for pid in (server.process.pid, runtime):  # and what they begin
                    resource.prlimit(pid, resource.RLIMIT_AS, (MEMORY_BYTES,) * 2)
                yield server
            until(lambda: not marked(mark), f"processes are left behind: {marked(mark)}")
        finally:
            for pid in marked(mark):  # that a planted fault has left
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            del os.environ[_MARK], os.environ["SGLC_CACHE"]
            if before is not None:
                os.environ["SGLC_CACHE"] = before


def marked(mark: str) -> list[int]:
    """The processes of that server."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"{_MARK}={mark}".encode() in path.read_bytes() and path.parent.name != str(os.getpid()):
                found.append(int(path.parent.name))
    return found


def run(
    server: Server,
    numbers: Sequence[int],
    seed: int,
    *,
    first_wrong: bool = False,
    calm_events: int = _CALM,
    niceness: int = 0,
    controlled: bool = False,
) -> Summary:
    """Send the requests of these numbers, a few side by side; or only until something is wrong.

    Args:
        calm_events: of the free stream before anybody else asks. Where gaps are measured those of a whole text:
            the longer it gets the longer its steps take, and the machine has its own bad moments.
        niceness: of the threads of clients; the least priority where gaps are measured, for a stranger has a
            processor of its own.
        controlled: also tell gaps in the time of a process beside them that always computes the same: where the
            machine runs at half its speed for a moment, that moment is half as long.
    """
    summary, address = Summary(), address_of(server)
    some = max(len(numbers) // 12, 2 * _CLIENTS)  # behind which memory is looked at
    control = Noting("tests.serve_fuzz.control") if controlled else nullcontext()
    with FreeStream(address) as stream, control as beside_it:
        for count in range(_CALM, calm_events + _CALM, _CALM):
            until(partial(stream.has, count), "the free stream gets no events")
        began_s = time.monotonic()
        with ThreadPoolExecutor(_CLIENTS, initializer=os.nice, initargs=(niceness,)) as pool:
            for first in range(0, len(numbers), some):
                chosen = numbers[first : first + some]
                asked = list(pool.map(lambda number: request(seed, number), chosen))
                for number, each, answer in zip(
                    chosen, asked, pool.map(lambda each: send(address, each, MOST_S), asked), strict=True
                ):
                    summary.take(number, each, answer)
                _sample(server, summary)
                if first_wrong and summary.wrong:
                    return summary
        gaps = stream.end()
        amounts = None if beside_it is None else beside_it.end()
    if not (gaps and gaps[0][0] < began_s < gaps[-1][0]):
        summary.wrong.append("the free stream got no events")
    else:
        summary.gaps_ms = _told(gaps, began_s)
        if amounts is not None:
            summary.gaps_ms["control"] = _told(amounts, began_s)
            summary.gaps_ms["in the control's time"] = _told(_in_time_of(amounts, gaps), began_s)
        if max(gap for at, gap in gaps if at >= began_s) > _STALL_S:
            summary.wrong.append(f"the free stream waited for {summary.gaps_ms['largest']:.0f} ms")
        for at, gap in sorted((gap for gap in gaps if gap[0] >= began_s), key=lambda gap: -gap[1])[:8]:
            ran = [which for begin, end, which in summary.spans if begin < at and end > at - gap]
            summary.beside.append(f"{1e3 * gap:.0f} ms: {', '.join(ran)}")
    _check_afterwards(server, summary)
    return summary


def _told(gaps: Sequence[tuple[float, float]], began_s: float) -> dict[str, Any]:
    """Gaps in ms, of the time before anybody else asks and of that from then on."""
    calm, beside = (
        np.array([1e3 * gap for at, gap in gaps if (at < began_s) == early]) for early in (True, False)
    )
    calm_p99 = float(np.percentile(calm, 99))
    return {
        "calm median": round(float(np.median(calm)), 2),
        "calm P99": round(calm_p99, 2),
        "calm largest": round(calm.max(), 2),
        "median": round(float(np.median(beside)), 2),
        "P99": round(float(np.percentile(beside, 99)), 2),
        "largest": round(beside.max(), 2),
        "events": len(beside),
        "over 3 x calm P99": int((beside > 3 * calm_p99).sum()),
        "times calm P99": round(beside.max() / calm_p99, 2),
    }


def _in_time_of(
    control: Sequence[tuple[float, float]], gaps: Sequence[tuple[float, float]]
) -> list[tuple[float, float]]:
    """The gaps as a clock tells them that the control's amounts move on, each by what most of them take."""
    ends = np.array([at for at, _ in control])
    usual = float(np.median([took for _, took in control]))
    told = usual * np.arange(len(ends))
    return [
        (at, float(np.interp(at, ends, told) - np.interp(at - gap, ends, told)))
        for at, gap in gaps
        if ends[0] < at - gap and at < ends[-1]
    ]


def _check_afterwards(server: Server, summary: Summary) -> None:
    def idle() -> bool:
        try:
            return server.idle()
        except AssertionError as error:  # a step of the last long prompt takes longer than an answer may
            if "timed_out" not in str(error):
                raise
            return False

    try:
        until(idle)
    except AssertionError as error:
        summary.wrong.append(f"it is not idle afterwards: {error}")
    for process, samples in summary.rss_mib.items():
        settled = samples[len(samples) // 3 :]
        if settled and settled[-1] - settled[0] > _GROWTH_BYTES >> 20:
            summary.wrong.append(f"the memory of the {process} grows: {samples} MiB")
    said = [line for line in server.log.read_text().splitlines()[1:] if "Invalid HTTP request" not in line]
    if said:
        summary.wrong.append("the server said: " + "\n".join(said)[-2_000:])
    if server.process.poll() is not None:
        summary.wrong.append(f"the server has ended with {server.process.returncode}")


def _sample(server: Server, summary: Summary) -> None:
    for name, pid in (("server", server.process.pid), ("runtime", server.runtime())):
        with suppress(OSError):
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            summary.rss_mib.setdefault(name, []).append(pages * resource.getpagesize() >> 20)


class Noting:
    """A process that notes when something came, and how long after what came before."""

    def __init__(self, module: str, *arguments: str) -> None:
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        env.pop(_MARK, None)
        self._out = TemporaryDirectory()
        self._file = (Path(self._out.name) / "gaps").open("w+")
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=self._file,
            env=env,
        )

    def __enter__(self) -> Self:
        return self

    def has(self, events: int) -> bool:
        """Whether it has noted so much so far, or little more."""
        return Path(self._file.name).read_bytes().count(b"\n") >= events

    def end(self) -> list[tuple[float, float]]:
        """What it has noted."""
        self._stop()
        self._process.wait(60)
        lines = (Path(self._out.name) / "gaps").read_text().splitlines()
        return [(float(at), float(gap)) for at, gap in (line.split() for line in lines)]

    def _stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    def __exit__(self, *_: object) -> None:
        self._stop()
        self._process.kill()
        self._process.wait()
        self._file.close()
        self._out.cleanup()


class FreeStream(Noting):
    """The free stream in a process of its own."""

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__("tests.serve_fuzz.free_stream", address[0], str(address[1]))


def address_of(server: Server) -> tuple[str, int]:
    """Host and port."""
    host, _, port = server.url.removeprefix("http://").partition(":")
    return host, int(port)
