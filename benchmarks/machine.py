"""What benchmarks share: where results are stored, medians of rounds, and rounds in a process of their own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from sglc.bench.setting import ROOT, cpu_model
from sglc.bench.setting import setting as setting

RESULTS = ROOT / "benchmarks" / "results"


def result_path(kind: str) -> Path:
    """Where the results of `kind` on this processor are stored."""
    slug = re.sub(r"[^a-z0-9]+", "-", cpu_model().lower()).strip("-")
    return RESULTS / f"{kind}-{slug}.json"


def dated_setting() -> dict[str, object]:
    """`setting` behind the time."""
    return {"time": datetime.now(UTC).isoformat(timespec="seconds"), **setting()}


def store(path: Path, result: Mapping[str, Any]) -> None:
    """Keep a result, and say where."""
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"-> {os.path.relpath(path, ROOT)}")


def medians(rounds: Sequence[Mapping[str, float]], digits: int = 9) -> dict[str, float]:
    """Of each figure, over the rounds."""
    return {name: round(median(one[name] for one in rounds), digits) for name in rounds[0]}


def child(benchmark: str, *arguments: str) -> Any:
    """What a benchmark prints as JSON with these arguments, in a process of its own."""
    line = [sys.executable, "-m", f"benchmarks.{benchmark}", *arguments]
    return json.loads(subprocess.run(line, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT).stdout)


def rounds_told(rounds: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Medians, and every round's value behind them."""
    return {
        name: {"median": middle, "all": [round(one[name], 1) for one in rounds]}
        for name, middle in medians(rounds, 1).items()
    }
