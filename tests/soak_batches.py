"""Batches that are killed wherever it comes, and go on: in the end each row has its result, and has it once.

A run ends by `kill -9` at a random moment or at a call that changes a file (before it, behind it, or in the
middle of a write), by Ctrl-C, SIGTERM, or a disk that is full; then it goes on, until nothing ends it. What
it has made in the end is compared with what a run makes that nothing ends. Then a million rows.

python -m tests.soak_batches --kills 200 --rows 1000000 --seed 0
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from sglc.cli import main as sglc
from tests.waiting import until

PROGRAM = """
import sglc as sgl

@sgl.function
def ask(s, q):
    s += "Q: " + q + sgl.gen("a", max_tokens=64)
    s += " B:" + sgl.gen("b", max_tokens=8)

@sgl.function
def short(s, q):
    s += q + sgl.gen("a", max_tokens=4)
"""
ROWS = 60
FAIL = range(3, ROWS, 13)  # rows that fail as long as their answers are not in the script
CONCURRENCY = (1, 4, 64)
_CALLS = ("write", "replace", "ftruncate", "unlink", "fsync")  # of `os`, at which a process may be killed
_ENDED = os.WEXITED | os.WNOHANG | os.WNOWAIT
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def prepare(folder: Path, draw: random.Random) -> None:
    """Rows, and answers of random lengths: slow ones, instant ones, and some that are missing."""
    (folder / "prog.py").write_text(PROGRAM)
    answers = [{"text": " word" * draw.choice((1, 2, 3, 20)), "prompt": f"Q: r{n}$"} for n in range(ROWS)]
    rules = [*answers, {"text": " end", "prompt": "B:$"}]
    some = [rule for n, rule in enumerate(rules) if n not in FAIL]
    for name, chosen, word_s in (("slow", rules, 0.002), ("instant", rules, 0.0), ("some", some, 0.002)):
        (folder / f"{name}.json").write_text(json.dumps({"rules": chosen, "word_s": word_s}))
    (folder / "rows.jsonl").write_text("".join(f'{{"q": "r{n}"}}\n' for n in range(ROWS)))


def in_child(arguments: Sequence[str], first: Callable[[], None] = lambda: None) -> int:
    """`sglc` in a process of its own, forked: nothing here has threads. Gives its id."""
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        quiet = os.open(os.devnull, os.O_RDWR)
        told = os.open("told", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        for stream, to in enumerate((quiet, quiet, told)):
            os.dup2(to, stream)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored
        first()
        code = sglc(arguments)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def wait(child: int) -> int:
    """Its exit code; below 0 that of a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed_at(count: int, kind: str) -> Callable[[], None]:
    """Have this process killed at the call of such a number: "before", "behind", or "within" a write."""

    def patch() -> None:
        made = 0

        def watched(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
            def instead(*given: Any, **named: Any) -> Any:
                nonlocal made
                made += 1
                if made == count:
                    if name == "write" and kind == "within":
                        call(given[0], given[1][: len(given[1]) // 2])
                    elif kind == "behind":
                        call(*given, **named)
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(*given, **named)

            return instead

        for name in _CALLS:
            setattr(os, name, watched(name, getattr(os, name)))

    return patch


def interrupted(arguments: Sequence[str], draw: random.Random) -> str:
    """Run it and end it somehow; gives how, and its exit code."""
    how = draw.choice(("call", "call", "kill", "kill", "SIGINT", "SIGTERM", "disk"))
    if how == "call":
        kind = draw.choice(("before", "behind", "within"))
        code = wait(in_child(arguments, killed_at(draw.randrange(1, draw.choice((8, 80))), kind)))
        allowed: tuple[int, ...] = (-9, 0, 1)
    elif how == "disk":
        most = draw.randrange(200, 30_000)
        limit = (resource.RLIMIT_FSIZE, (most, most))
        code = wait(in_child(arguments, lambda: resource.setrlimit(*limit)))
        allowed = (0, 1, 2)
    else:
        number = signal.SIGKILL if how == "kill" else signal.Signals[how]
        child, before = in_child(arguments), _written()
        if draw.random() < 0.3:
            time.sleep(draw.random() * 0.3)
        else:
            more = draw.randrange(1, 20_000)
            while _written() < before + more and os.waitid(os.P_PID, child, _ENDED) is None:
                time.sleep(0.001)
        os.kill(child, number)
        code = wait(child)
        allowed = (0, 1, -number, 128 + number)
    if code not in allowed:
        raise AssertionError(f"{how}: exit {code} of {' '.join(arguments)}\n{Path('told').read_text()}")
    return f"{how} {code}"


def _written() -> int:
    """Bytes of results that are there."""
    return sum(os.path.getsize(path) for path in ("out.jsonl", "out.jsonl.waiting") if os.path.exists(path))


def results(path: Path) -> list[dict[str, Any]]:
    """What a run has made, without what takes time."""
    found = [json.loads(line) for line in path.read_bytes().splitlines()]
    for one in found:
        del one["timing"]
    return found


def soak(kills: int, seed: int) -> dict[str, int]:
    """So many ends of runs that go on; gives how many there were of each kind.

    Raises:
        AssertionError: a row is lost, comes twice, is another one, or is not in its place, or a call of a model
            whose answer was in the journal is made again.
    """
    draw, counts = random.Random(seed), Counter[str]()
    with tempfile.TemporaryDirectory() as name:
        folder, here = Path(name), Path.cwd()
        os.chdir(folder)
        try:
            while counts["ends"] < kills:
                prepare(folder, draw)
                _one(folder, draw, counts)
        finally:
            os.chdir(here)
    return dict(sorted(counts.items()))


def _one(folder: Path, draw: random.Random, counts: Counter[str]) -> None:
    """One batch, ended some times."""
    ordered, concurrency = draw.random() < 0.5, draw.choice(CONCURRENCY)
    again = draw.random() < 0.3  # rows fail first, and then run again
    out, journal = folder / "out.jsonl", folder / "out.jsonl.journal" / "recording.jsonl"
    journal.unlink(missing_ok=True)
    for path in folder.glob("*.jsonl*"):
        if path.name != "rows.jsonl" and path.is_file():
            path.unlink()

    def asked(to: str, script: str, *more: str) -> list[str]:
        return [
            "run", "prog.py:ask", "--backend", f"scripted:{script}.json", "--batch", "rows.jsonl",
            "--seed", "1", "-o", to, "--concurrency", str(concurrency),
            *(["--ordered"] if ordered else []), *more,
        ]  # fmt: skip

    if wait(in_child(asked("whole.jsonl", "instant"))):
        raise AssertionError("a run that nothing ends fails")
    if again:
        wait(in_child(asked("out.jsonl", "some")))
    more = ["--resume", *(["--retry-failed"] if again else [])]
    for _ in range(draw.randrange(1, 9)):
        counts[interrupted(asked("out.jsonl", draw.choice(("slow", "instant")), *more), draw)] += 1
        counts["ends"] += 1
    kept = journal.open("rb") if journal.exists() else None  # it goes when all rows are done
    if code := wait(in_child(asked("out.jsonl", "instant", *more))):
        raise AssertionError(f"it does not go on: exit {code}\n{Path('told').read_text()}")
    if kept is not None:
        with kept:
            counts["calls in journals"] += _calls(kept)
    assert not journal.exists()
    made, whole = results(out), results(folder / "whole.jsonl")
    order = [one["index"] for one in made]
    assert len(set(order)) == len(order) == ROWS, f"rows are lost or doubled: {sorted(order)}"
    assert not ordered or order == sorted(order), f"they are not in order: {order}"
    whole.sort(key=lambda one: int(one["index"]))
    assert sorted(made, key=lambda one: int(one["index"])) == whole, "a result is another one"
    assert not (folder / "out.jsonl.waiting").exists()
    counts["batches"] += 1
    counts["rows"] += ROWS
    counts["ordered"] += ordered
    counts["failed rows again"] += again


def _calls(journal: Iterable[bytes]) -> int:
    """How many calls were answered."""
    answered = Counter[tuple[int, str]]()
    for text in journal:
        line = json.loads(text)
        if line.get("is") == "answer" and "answer" in line:
            answered[line["row"], line["site"]] += 1
    twice = [call for call, times in answered.items() if times > 1]
    assert not twice, f"calls were made again: {twice}"
    return len(answered)


# -- a million rows --------------------------------------------------------------------------------


def many(rows: int, seed: int, program: str = "short") -> dict[str, Any]:
    """A batch of so many rows, killed in the middle, that goes on. Rows of `ask` keep a journal, too.

    Gives CPU seconds until the first line is there, the most memory, and the lines at each tenth of both runs.
    """
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "prog.py").write_text(PROGRAM)
        (folder / "script.json").write_text(json.dumps([{"text": " yes"}]))
        text = "r{} yes" if program == "short" else "Q: r{} yes B: yes"
        with (folder / "rows.jsonl").open("w") as file:
            file.writelines(f'{{"q": "r{n}"}}\n' for n in range(rows))
        cut = draw.randrange(rows // 3, rows // 2)
        first = _watched(folder, program, rows, [], cut)
        kept = (folder / "out.jsonl").read_bytes().count(b"\n")
        second = _watched(folder, program, rows, ["--resume"], None)
        seen = bytearray(rows)
        with (folder / "out.jsonl").open("rb") as lines:
            for line in lines:
                one = json.loads(line)
                assert one["text"] == text.format(one["index"])
                seen[one["index"]] += 1
        assert set(seen) == {1}, "rows are lost or doubled"
    return {"rows": rows, "killed_at": kept, "first_run": first, "resumed": second}


def _watched(folder: Path, program: str, rows: int, more: Sequence[str], kill_at: int | None) -> dict[str, Any]:
    command = [
        "run", f"prog.py:{program}", "--backend", "scripted:script.json", "--batch", "rows.jsonl",
        "--seed", "1", "-o", "out.jsonl", *more,
    ]  # fmt: skip
    out = folder / "out.jsonl"
    had = out.stat().st_size if out.exists() else 0
    process = subprocess.Popen(
        [sys.executable, "-m", "sglc.cli", *command], cwd=folder, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    stat, began = Path(f"/proc/{process.pid}/stat"), time.perf_counter()
    checkpoints: list[tuple[int, float, int]] = []

    def first_line() -> bool:
        # Who has ended stays to be looked at.
        ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return ended is not None or (out.exists() and out.stat().st_size > had)

    until(first_line)
    first_s = _cpu_s(stat)
    peak, lines, mark, read = 0.0, 0, rows // 10, out.open("rb")
    with read:
        while process.poll() is None:
            peak = max(peak, _peak_mb(process.pid))
            while piece := read.read(1 << 20):
                lines += piece.count(b"\n")
            if lines >= mark:
                mark = (10 * lines // rows + 1) * rows // 10
                checkpoints.append((lines, round(time.perf_counter() - began, 1), round(peak)))
                print(f"{lines} lines, {checkpoints[-1][1]} s, {peak:.0f} MB", flush=True)
            if kill_at is not None and lines >= kill_at:
                process.kill()
            time.sleep(0.005)
    told = (process.communicate()[1] or "").splitlines()
    assert process.returncode == (0 if kill_at is None else -9), told
    return {
        "first_line_cpu_s": round(first_s, 2), "peak_mb": round(peak),
        "lines_seconds_mb": checkpoints, "told": told[-1] if told else "",
    }  # fmt: skip


def _cpu_s(stat: Path) -> float:
    fields = stat.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_S


def _peak_mb(process: int) -> float:
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    found = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
    return int(found[0]) / 1024 if found else 0.0


def main() -> int:
    """1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--rows", type=int, default=1_000_000, help="0: none")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="a JSON file")
    given = parser.parse_args()
    began = time.perf_counter()
    found: dict[str, Any] = {"what": "batches that are ended and go on", "seed": given.seed}
    found["counts"] = soak(given.kills, given.seed)
    print(json.dumps(found["counts"], indent=1), flush=True)
    missed = False
    if given.rows:
        found["many"] = {}
        for name, rows in (("short", given.rows), ("ask", given.rows // 4)):
            found["many"][name] = made = many(rows, given.seed, name)
            print(json.dumps(made, indent=1))
            runs = (made["first_run"], made["resumed"])
            missed |= made["first_run"]["first_line_cpu_s"] > 2 or max(run["peak_mb"] for run in runs) > 300
    found |= {"seconds": round(time.perf_counter() - began, 1), "python": platform.python_version()}
    if given.output is not None:
        given.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
