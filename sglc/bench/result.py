"""What a benchmark found: as JSON, and as a small table."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from sglc.bench.profile import Profile
from sglc.bench.session import BenchSession

FORMAT = "sglc-bench 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One figure of a workload: `value` in `unit`, from rounds of so many `seconds`.

    `floor` is the value in the least time that the work can take, and `share` that time over the median's;
    None: not known for the device, or for such a figure. `counts` are of the last round. `figures` are further
    ones, their units in their names.
    """

    name: str
    unit: str
    value: float
    seconds: tuple[float, ...]
    median_s: float
    floor: float | None = None
    share: float | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """A workload on a model. `work` is its size, `setting` the machine, the code and the limits."""

    workload: str
    what: str
    model: str
    work: Mapping[str, object]
    cases: tuple[Case, ...]
    setting: Mapping[str, object]
    profile: Profile | None = None


def seconds_case(
    name: str,
    rounds: Sequence[BenchSession],
    seconds: Sequence[float],
    *,
    tokens: int | None = None,
    floor_s: float | None = None,
    figures: Mapping[str, float] | None = None,
) -> Case:
    """A case whose value is the median of `seconds`, or the rate at which `tokens` tokens came out in it."""
    middle = median(seconds)
    return timed_case(
        name,
        "s" if tokens is None else "out tok/s",
        short(middle if tokens is None else tokens / middle),
        seconds,
        floor=None if floor_s is None else short(floor_s if tokens is None else tokens / floor_s),
        share=None if floor_s is None else short(floor_s / middle),
        counts=rounds[-1].counts(),
        figures=figures or {},
    )


def timed_case(name: str, unit: str, value: float, seconds: Sequence[float], **more: Any) -> Case:
    """A case from rounds of so many `seconds`."""
    told = tuple(round(one, 4) for one in seconds)
    return Case(name=name, unit=unit, value=value, seconds=told, median_s=round(median(seconds), 4), **more)


def percentile(values: Sequence[float], percent: float) -> float:
    """The least value that `percent` of all (at least one) do not exceed."""
    ordered = sorted(values)
    return ordered[max(math.ceil(len(ordered) * percent / 100) - 1, 0)]


def to_json(result: BenchResult) -> str:
    """The result as an indented JSON object."""
    return json.dumps({"format": FORMAT, **asdict(result)}, indent=1)


def table(result: BenchResult) -> str:
    """The result for a terminal."""
    device = result.setting.get("device", result.setting["cpu"])
    lines = [f"{result.workload}: {result.model} on {device}", result.what]
    cells = [["case", "value", "", "floor", "share", "median s", "rounds"]]
    for case in result.cases:
        floor = "-" if case.floor is None else figure(case.floor)
        share = "-" if case.share is None else f"{case.share:.1%}"
        cells.append(
            [
                case.name,
                figure(case.value),
                case.unit,
                floor,
                share,
                f"{case.median_s:.3f}",
                str(len(case.seconds)),
            ]
        )
    lines += _aligned(cells)
    for case in result.cases:
        extra = {**case.figures, **case.counts}
        lines.append(f"{case.name}: " + ", ".join(f"{key} {figure(value)}" for key, value in extra.items()))
    if result.profile is not None:
        lines += ["", *_profile_lines(result.profile)]
    return "\n".join(lines)


def _profile_lines(profile: Profile) -> list[str]:
    cells = [["kind", "us a step", "launches"]]
    cells += [[kind, f"{us:.1f}", f"{profile.launches[kind]:.1f}"] for kind, us in profile.kinds_us.items()]
    head = (
        f"{profile.steps} steps of {profile.step_us:.1f} us, {profile.prompts:.1%} of the time in steps with "
        f"prompts, the device idle for {profile.idle:.1%}"
    )
    names = [[name[:60], f"{us:.1f}"] for name, us in profile.names_us.items()]
    return [head, *_aligned(cells), "", *_aligned([["name", "us a step"], *names])]


def _aligned(cells: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as their widest cell; the first one begins at the left, the others end at the right."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    ]


def short(value: float) -> float:
    """`value` with five digits that count."""
    return float(f"{value:.5g}")


def figure(value: float) -> str:
    """A number as people read it."""
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"
