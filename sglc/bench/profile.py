"""Where the device's time goes, by kind of kernel.

Where kernels overlap, the time is that of the one which began first. Kernels of our own have their
functions' names, and a kind has prefixes of names, so a new kernel is `other` until it is entered here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

OTHER = "other"
# The first prefix that a name begins with decides. What torch prefixes to a name is taken off before.
PREFIXES: dict[str, tuple[str, ...]] = {
    "decode attention": ("_decode", "_count_blocks"),
    "tile attention": ("_tile", "_merge"),  # prompts, and prefixes that rows share
    "GEMM": ("tiled", "vector", "nvjet", "cutlass", "cublas", "gemm", "gemv", "sm90_", "splitKreduce"),
    "sampler": (
        "_race",
        "_decide",
        "_candidates",
        "_check",
        "_tell",
        "_again",
        "_narrow",
        "_peaks",
        "_gather",
        "_keep_by_k",
        "_keep_by_p",
        "_largest_of_groups",
        "_best_of_row",
        "_log_probabilities",
        "_above",
        "_kept",
        "_make_masks",
        "_fill",
    ),
    "rope and KV": ("_rope_store",),
    "glue": ("_rms_norm", "_row_squares", "_silu_mul", "_embed", "_prepare", "_stage", "at::"),
    "copies": ("Memcpy", "Memset", "_copy_tokens"),
}


_FIRST_OF_A_STEP = "_prepare"
_OF_PROMPTS = "_merge"  # steps without prompts have none
_NAMES = 12  # that are told


@dataclass(frozen=True, slots=True)
class Span:
    """One kernel or copy: when it ran, in microseconds."""

    name: str
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class Profile:
    """Of `steps` steps, each of `step_us` on average: microseconds and launches of a step by kind, the longest
    first; the share of the time in which the device had nothing to do, and the share of steps in which some
    tokens were of prompts; the names with most time."""

    steps: int
    step_us: float
    idle: float
    prompts: float
    kinds_us: dict[str, float]
    launches: dict[str, float]
    names_us: dict[str, float]


def kind_of(name: str) -> str:
    """The kind of a kernel."""
    for noise in ("void ", "(anonymous namespace)::"):
        name = name.removeprefix(noise)
    return next((kind for kind, prefixes in PREFIXES.items() if name.startswith(prefixes)), OTHER)


def profile_of(spans: Sequence[Span], steps: int) -> Profile:
    """What the spans of `steps` steps (at least one span) add up to."""
    kinds: dict[str, float] = {}
    launches: dict[str, float] = {}
    by_name: dict[str, float] = {}
    reached = began = min(span.begin for span in spans)
    whole = max(span.end for span in spans) - reached
    busy = of_prompts = 0.0
    has_prompts = False
    for span in sorted(spans, key=lambda span: span.begin):
        if span.name.startswith(_FIRST_OF_A_STEP):
            of_prompts += has_prompts * (span.begin - began)
            began, has_prompts = span.begin, False
        has_prompts |= span.name.startswith(_OF_PROMPTS)
        alone = max(0.0, span.end - max(span.begin, reached))
        reached = max(reached, span.end)
        busy += alone
        took = alone / steps
        kind = kind_of(span.name)
        kinds[kind] = kinds.get(kind, 0.0) + took
        launches[kind] = launches.get(kind, 0.0) + 1 / steps
        by_name[span.name] = by_name.get(span.name, 0.0) + took
    of_prompts += has_prompts * (reached - began)

    def longest(times: dict[str, float], count: int) -> dict[str, float]:
        return {key: round(times[key], 2) for key in sorted(times, key=lambda key: -times[key])[:count]}

    ordered = longest(kinds, len(kinds))
    return Profile(
        steps, round(whole / steps, 2), round(1 - busy / whole, 4), round(of_prompts / whole, 4), ordered,
        {kind: round(launches[kind], 2) for kind in ordered}, longest(by_name, _NAMES),
    )  # fmt: skip


class Profiler:
    """`torch.profiler` over the first `steps` steps."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._running: Any = None
        self._spans: list[Span] = []

    def before(self, step: int) -> None:
        """Step `step` is about to be launched."""
        import torch

        if step == 0:
            torch.cuda.synchronize()
            self._running = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
            self._running.start()
        elif step == self._steps:
            self.end()

    def end(self) -> None:
        """There are no more steps, or none that are wanted."""
        import torch
        from torch._C._autograd import DeviceType

        if self._running is None:
            return
        torch.cuda.synchronize()
        self._running.stop()
        self._spans = [
            Span(event.name, event.time_range.start, event.time_range.end)
            for event in self._running.events()
            if event.device_type == DeviceType.CUDA
        ]
        self._running = None

    def profile(self) -> Profile | None:
        """What was found; None: nothing ran on the device."""
        return profile_of(self._spans, self._steps) if self._spans else None
