"""What a stored result says of the machine and the code that it was measured on."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def cpu_model() -> str:
    """The processor's name as the kernel gives it, or the architecture where it gives none."""
    info = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*:\s*(.+)$", info.read_text(), re.M) if info.exists() else []
    return names[0] if names else platform.machine()


def commit() -> str:
    """The checked-out commit, with `+` behind it if tracked files were changed; "" outside a checkout."""
    done = subprocess.run(
        ["git", "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"],
        capture_output=True, text=True, cwd=ROOT, check=False,
    )  # fmt: skip
    return done.stdout.strip()


def setting() -> dict[str, object]:
    """Interpreter, processor, cores and commit, as every stored result names them."""
    return {
        "python": platform.python_version(),
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "commit": commit(),
    }


def result_path(kind: str) -> Path:
    """Where the results of `kind` on this processor are stored; the folder is made."""
    slug = re.sub(r"[^a-z0-9]+", "-", cpu_model().lower()).strip("-")
    path = ROOT / "benchmarks" / "results" / f"{kind}-{slug}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
