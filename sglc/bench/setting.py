"""What a stored result says of the machine and the code that it was measured on."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def cpu_model() -> str:
    """The processor's name as the kernel gives it, or the architecture where it gives none."""
    info = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*:\s*(.+)$", info.read_text(), re.M) if info.exists() else []
    return names[0] if names else platform.machine()


def commit() -> str:
    """The checked-out commit, with `+` behind it if tracked files were changed; "" outside a checkout."""
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"],
            capture_output=True, text=True, cwd=ROOT, check=False,
        )  # fmt: skip
    except OSError:  # a machine without git
        return ""
    return done.stdout.strip()


def setting() -> dict[str, object]:
    """Interpreter, processor, cores and commit, as every stored result names them."""
    return {
        "python": platform.python_version(),
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "commit": commit(),
    }


def model_setting(device: str) -> dict[str, object]:
    """`setting`, the libraries that run a model, and the device: its name, or "cpu"."""
    import torch

    found: dict[str, object] = {**setting(), "torch": torch.__version__, "device": "cpu"}
    if device == "cuda":
        import triton

        found |= {
            "triton": triton.__version__,
            "cuda": torch.version.cuda,
            "device": torch.cuda.get_device_name(),
        }
    return found
