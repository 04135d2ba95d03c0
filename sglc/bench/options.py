"""What a benchmark is asked for. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """As `sglc bench` takes them. None: what the workload has for the device.

    `model`: a shape of `shapes.SHAPES` (random weights), or what `local:` takes. `seed` moves the work's own
    seed, and with it every prompt. `cascade` off: rows read a prefix that they share each for itself.
    """

    model: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    kv_dtype: str = "auto"
    rounds: int = 5
    rows: int | None = None
    token_budget: int | None = None
    seed: int = 0
    cascade: bool = True
    profile: bool = False
