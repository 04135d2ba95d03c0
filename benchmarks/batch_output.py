"""What it costs to keep results: CPU of a row with `-o`, beside `--json` into `/dev/null`.

Rows of three calls keep a journal beside the results, rows of one call need none.

Scripted answers that come at once, so all the time is sglc's own. That of a run of one row is taken off: what
a process needs to begin. Each round runs all ways in turns.

Writes benchmarks/results/batch-output-<cpu>.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.machine import ROOT, result_path, setting, store

ROUNDS = 5
ROWS = 20_000
WAYS = {
    "json to /dev/null": ["prog.py:ask", "--json"],
    "-o": ["prog.py:ask", "-o", "out.jsonl", "--force"],
    "-o --ordered": ["prog.py:ask", "-o", "out.jsonl", "--force", "--ordered"],
    "three calls, json to /dev/null": ["prog.py:three", "--json"],
    "three calls, -o": ["prog.py:three", "-o", "out.jsonl", "--force"],
}
PROGRAM = """
import sglc as sgl

@sgl.function
def ask(s, question):
    s += "Question: " + question + "\\n"
    s += "Answer:" + sgl.gen("answer", max_tokens=16, stop="\\n")

@sgl.function
def three(s, question):
    s += "Question: " + question + "\\n"
    for name in ("a", "b", "c"):
        s += "Answer:" + sgl.gen(name, max_tokens=16, stop="\\n")
"""


def cpu_s(folder: Path, rows: str, way: list[str]) -> float:
    """CPU seconds of one process."""
    command = ["run", *way, "--backend", "scripted:script.json", "--batch", rows, "--seed", "1"]
    with open(os.devnull, "w") as nowhere:
        process = subprocess.Popen(
            [sys.executable, "-m", "sglc.cli", *command], cwd=folder, stdout=nowhere, stderr=nowhere,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--dry", action="store_true", help="write no file")
    given = parser.parse_args()
    rounds: dict[str, list[float]] = {name: [] for name in WAYS}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "prog.py").write_text(PROGRAM)
        (folder / "script.json").write_text(json.dumps([{"text": " a fine answer"}]))
        lines = [json.dumps({"question": f"What is {number}?"}) + "\n" for number in range(given.rows)]
        (folder / "rows.jsonl").write_text("".join(lines))
        (folder / "one.jsonl").write_text(lines[0])
        for _ in range(ROUNDS):
            for way, options in WAYS.items():
                taken_s = cpu_s(folder, "rows.jsonl", options) - cpu_s(folder, "one.jsonl", options)
                rounds[way].append(round(1e6 * taken_s / (given.rows - 1), 1))
    median = {way: statistics.median(taken) for way, taken in rounds.items()}
    found = {**setting(), "rows": given.rows, "cpu_us_per_row": median, "rounds": rounds}
    print(json.dumps(found, indent=1))
    if not given.dry:
        store(result_path("batch-output"), found)


if __name__ == "__main__":
    main()
