"""Where results are stored, and what they say of the machine and the code (`sglc.bench.setting`)."""

from __future__ import annotations

import re
from pathlib import Path

from sglc.bench.setting import ROOT, commit, cpu_model, setting

__all__ = ["ROOT", "commit", "cpu_model", "result_path", "setting"]


def result_path(kind: str) -> Path:
    """Where the results of `kind` on this processor are stored; the folder is made."""
    slug = re.sub(r"[^a-z0-9]+", "-", cpu_model().lower()).strip("-")
    path = ROOT / "benchmarks" / "results" / f"{kind}-{slug}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
