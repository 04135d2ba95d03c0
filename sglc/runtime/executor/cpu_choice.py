"""Whether products of integers are faster here than those of floats: measured once, kept beside the kernels.

What holds with some threads need not with others, so each number of them has its own file. One answer for all
numbers of rows: what a row gives must not depend on what else is in its step.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from sglc import knobs
from sglc.runtime.executor.cpu_model import head_product
from sglc.runtime.model.packed_weights import pack_codes

_ROWS = (1, 16, 128)
_OUTPUTS, _INPUTS = 512, 1024
_TURNS = 8  # 20 ms in all
_KINDS = ("floats", "integers")

Seconds = Mapping[str, Sequence[float]]


def integers(library: ctypes.CDLL, threads: int) -> bool:
    """Whether integers are; `SGLC_DEBUG=1` and `sglc doctor` show it."""
    seconds, _ = chosen(library, threads)
    if knobs.debug_level():
        print(f"sglc: products on this CPU: {told(seconds)}", file=sys.stderr, flush=True)
    return faster(seconds)


def chosen(library: ctypes.CDLL, threads: int) -> tuple[Seconds, Path]:
    """What was measured with so many threads on this machine before, or is now, and where it is kept."""
    file = Path(library._name).with_suffix(f".{threads}.json")
    return _read(file) or _kept(file, measured(library, threads)), file


def told(seconds: Seconds) -> str:
    """What is chosen, and why."""
    times = ", ".join(f"{f / i:.2f}" for f, i in zip(seconds["floats"], seconds["integers"], strict=True))
    name = "integers" if faster(seconds) else "floats"
    return f"codes by {name}; integers are {times} times as fast at {', '.join(map(str, _ROWS))} rows"


def faster(seconds: Seconds) -> bool:
    """Whether integers are, over all numbers of rows."""
    return sum(math.log(f / i) for f, i in zip(seconds["floats"], seconds["integers"], strict=True)) > 0


def measured(library: ctypes.CDLL, threads: int) -> Seconds:
    """The least seconds of one product, by rows; the two kinds take turns."""
    random = np.random.default_rng(0)
    codes = random.integers(0, 16, (_OUTPUTS, _INPUTS))
    scale = random.random((2, _OUTPUTS, _INPUTS // 32), np.float32)
    matrix = pack_codes(codes, scale[0], scale[1], 4)
    x = random.random((max(_ROWS), _INPUTS), np.float32)
    seconds = {name: [math.inf] * len(_ROWS) for name in _KINDS}
    for _ in range(_TURNS):
        for place, rows in enumerate(_ROWS):
            for name, times in seconds.items():
                began_s = time.perf_counter()
                head_product(library, threads, matrix, name == "integers", x[:rows])
                times[place] = min(times[place], time.perf_counter() - began_s)
    return seconds


def _read(file: Path) -> Seconds | None:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return {name: [float(found[name][place]) for place in range(len(_ROWS))] for name in _KINDS}
    except (OSError, ValueError, LookupError, TypeError):  # something else lies there
        return None


def _kept(file: Path, seconds: Seconds) -> Seconds:
    """What is in `file` now: of processes that measure side by side, the first one's holds for all."""
    try:
        with tempfile.NamedTemporaryFile("w", dir=file.parent, suffix=".json") as made:
            json.dump(seconds, made)
            made.flush()
            os.link(made.name, file)
    except FileExistsError:
        if found := _read(file):
            return found
        file.unlink(missing_ok=True)  # something else lies there: the next one keeps its own
    except OSError:  # nothing can be kept here
        pass
    return seconds
