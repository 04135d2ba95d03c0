"""Runs that are ended at random points (mostly by kill -9) and go on end as those that nothing ended.

`python -m tests.soak_resume --kills 200 --seed 0`. Each run is a process of its own; how long its recording is
says when it is killed, so kills fall on every part of it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglc.observe.replay.tape import FILE

ROOT = Path(__file__).parent.parent
ROWS = 6
MOST_AT_ONCE = 3  # generations of one row
SOURCE = """\
import asyncio, json, os, sys
import sglc as sgl
from sglc.backends.scripted import ScriptedBackend

def log(file, *what):
    number = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(number, (json.dumps(what) + "\\n").encode())
    os.close(number)

@sgl.tool
def note(row: str, text: str) -> str:
    log("effects", "note", row, text)
    return "noted " + text

@sgl.tool(idempotent=True)
def put(row: str, text: str) -> None:
    log("effects", "put", row, text)

@sgl.tool
async def later(row: str, text: str) -> str:
    await asyncio.sleep(0.001 * (len(text) % 3))
    log("effects", "later", row, text)
    return text + "!"

@sgl.function
def branches(s, row):
    s += "row " + row + sgl.gen("a")
    forks = s.fork(3)
    for number, branch in enumerate(forks):
        branch += note(row, f"tip {number // 2}") + sgl.gen("tip")
        branch += note(row, branch["tip"]) + sgl.gen("why")
    forks.join()
    put(row, s["a"])
    s += sgl.select("best", ["one", "three"]) + sgl.gen("end")
    return s["best"] + str(s["why"])

@sgl.function
async def tasks(s, row):
    s += "row " + row + sgl.gen("a")
    async def one(number):
        first = await later(row, "x" * number)
        return await later(row, first) + note(row, "same")
    s += "".join(await asyncio.gather(one(0), one(1), one(2))) + sgl.gen("b")
    put(row, s["b"])
    s += sgl.gen("c")

def answer(asked):
    log("asked", str(asked.site), asked.prompt)
    if asked.choices:
        return asked.choices[len(asked.prompt) % 2]
    return f"{asked.site.name} of {len(asked.prompt)} {sum(map(ord, asked.prompt)) % 997}"

if __name__ == "__main__":
    program, mode, threads, rows, redo = sys.argv[1:]
    results = globals()[program].run_batch(
        [{"row": f"{number}"} for number in range(int(rows))], seed=1, mode=mode, num_threads=int(threads),
        backend=ScriptedBackend(answer, word_s=0.002), record="r", resume=True, redo=redo,
    )
    shown = [{key: value for key, value in one.as_json().items() if key != "timing"} for one in results]
    with open("results.json", "w") as file:
        json.dump(shown, file)
"""


@dataclass(frozen=True)
class Setting:
    program: str
    mode: str
    threads: int

    def start(self, folder: Path, redo: str = "") -> subprocess.Popen[bytes]:
        """The run in `folder`, from its beginning or going on."""
        folder.mkdir(exist_ok=True)
        (folder / "run.py").write_text(SOURCE)
        (folder / "results.json").unlink(missing_ok=True)
        arguments = (self.program, self.mode, str(self.threads), str(ROWS), redo)
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.Popen(
            [sys.executable, "run.py", *arguments], cwd=folder, env=env, stderr=subprocess.PIPE
        )


SETTINGS = [
    Setting("branches", "auto", 1), Setting("branches", "auto", 8), Setting("branches", "python", 8),
    Setting("tasks", "auto", 1), Setting("tasks", "auto", 8),
]  # fmt: skip


def lines_of(path: Path) -> list[Any]:
    """The whole lines of a file of JSON lines."""
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]] if path.exists() else []


def finished(run: subprocess.Popen[bytes], folder: Path) -> Any:
    """The results of a run that nobody kills."""
    _, told = run.communicate(timeout=120)
    assert run.returncode == 0, told.decode()
    return json.loads((folder / "results.json").read_text())


def kill_at(run: subprocess.Popen[bytes], recording: Path, length: int, number: int = signal.SIGKILL) -> bool:
    """Send a run a signal as soon as its recording is so long; whether that ended it."""
    while run.poll() is None:
        if recording.exists() and recording.stat().st_size >= length:
            run.send_signal(number)
            break
        time.sleep(0.0005)
    run.communicate()
    return run.returncode != 0


def check(setting: Setting, kills: int, seed: int, folder: Path) -> int:
    """Kill one run again and again, and look at what it has done in the end; gives how often it was killed."""
    chance = random.Random(seed)
    whole = folder / "whole"
    expected = finished(setting.start(whole), whole)
    assert all(row["error"] is None for row in expected)
    length = (whole / "r" / FILE).stat().st_size
    killed_folder, recording, killed = folder / "killed", folder / "killed" / "r" / FILE, 0
    points = sorted(chance.randrange(1, length) for _ in range(kills))
    for point in points:
        number = chance.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGINT, signal.SIGTERM))
        killed += kill_at(setting.start(killed_folder, chance.choice(("", "all"))), recording, point, number)
    results = finished(setting.start(killed_folder), killed_folder)
    for row, known in zip(results, expected, strict=True):  # what may be done is not done again unasked
        assert row == known or row["error"]["code"] == "SGLC426", row
    assert finished(setting.start(killed_folder, "all"), killed_folder) == expected
    _look(setting, killed_folder, whole, killed)
    return killed


def _look(setting: Setting, folder: Path, whole: Path, killed: int) -> None:
    """Nothing that was journalled was done again, and no more was lost than was going on."""
    lines = lines_of(folder / "r" / FILE)

    def key(line: Any) -> tuple[Any, ...]:
        return line["row"], line["within"], line["function"], line.get("task", ""), line["occurrence"]

    begun = Counter(key(line) for line in lines if line.get("is") == "call")
    ended = Counter(key(line) for line in lines if line.get("is") == "called")
    answers = Counter((line["row"], line["site"]) for line in lines if "answer" in line)
    assert set(ended.values()) == set(answers.values()) == {1}
    assert ended.keys() == begun.keys()
    done = Counter(map(tuple, lines_of(folder / "effects")))
    once = Counter(map(tuple, lines_of(whole / "effects")))
    assert done.keys() == once.keys()
    repeated = sum(begun.values()) - len(begun)
    assert sum(done.values()) - sum(once.values()) <= repeated
    assert repeated <= killed * min(setting.threads, ROWS) * MOST_AT_ONCE
    asked = len(lines_of(folder / "asked"))
    assert asked - len(answers) <= killed * min(setting.threads, ROWS) * MOST_AT_ONCE


def main() -> None:
    """Kill runs of every setting."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    killed, seed = 0, options.seed
    while killed < options.kills:
        for setting in SETTINGS:
            with tempfile.TemporaryDirectory() as folder:
                killed += check(setting, 8, seed, Path(folder))
            seed += 1
            print(f"{killed} kills; {setting}")
    print(f"{killed} runs were killed, and every one went on to the same end")


if __name__ == "__main__":
    main()
