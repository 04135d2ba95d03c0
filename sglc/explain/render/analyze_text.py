"""An analysis as text: estimate beside actual for each step, the time line, the chain that took longest."""

from __future__ import annotations

from collections.abc import Iterator

from sglc.explain.estimate.analyze import ActualStep, Analysis
from sglc.explain.estimate.forecast import Forecast, Tally
from sglc.explain.render.summary import aligned

_HEAD = ("site", "calls", "prompt est/actual", "cached est/actual", "computed", "new est/actual", "time", "")
_WIDTH = 48  # characters of a time line
_MOST_LINES = 40


def analysis_text(forecast: Forecast, analysis: Analysis) -> str:
    """The whole analysis, without a newline at the end."""
    lines = [f"{forecast.program} as it ran, seed {analysis.seed}"]
    inner = [*aligned([_HEAD, *(_cells(forecast, actual) for actual in analysis.steps)])]
    usage = analysis.usage
    off = "" if analysis.off is None else f"; the middle of the estimate is {analysis.off:+.1%} off"
    inner.append(
        f"in all {usage.calls} calls, {usage.prompt} prompt tokens ({usage.cached} cached, "
        f"{usage.computed} computed), {usage.completion} new, {analysis.seconds:.2f} s{off}"
    )
    until = ", as far as it came" if analysis.errors else ""
    inner.append(f"all within the bounds{until}" if analysis.within else "not all within the bounds (!)")
    if len(analysis.chain) > 1:
        inner.append(f"longest chain: {' -> '.join(analysis.chain)}")
    if analysis.calls:
        inner += _time_line(analysis)
    lines += [f"  {line}" for line in inner]
    lines += [f"row {row} failed:\n{error}" for row, error in analysis.errors]
    return "\n".join(lines)


def _cells(forecast: Forecast, actual: ActualStep) -> tuple[str, ...]:
    usage, step = actual.usage, forecast.step_of(actual.site)
    counts = step.counts if step else Tally()
    said = "" if actual.within else "!"
    if not step:
        said = "behind a graph break" if actual.within else "! not foreseen"
    return (
        actual.site, f"{counts.calls}/{usage.calls}", f"{counts.prompt}/{usage.prompt}",
        f"{counts.shared}/{usage.cached}", str(usage.computed), f"{counts.new}/{usage.completion}",
        f"{actual.seconds:.2f} s", said,
    )  # fmt: skip


def _time_line(analysis: Analysis) -> Iterator[str]:
    """A bar for each call of the first rows: dots while there is no text yet, then what is generated."""
    end = max(call.ended_s for call in analysis.calls) or 1.0
    several = len({call.row for call in analysis.calls}) > 1
    yield f"time line, 0 to {end:.2f} s ('.' until the first text)"
    rows = []
    # What begins together stands in the program's order, whatever ends first.
    calls = sorted(analysis.calls, key=lambda call: (call.row, int(call.ready_s / end * _WIDTH), call.site))
    for call in calls[:_MOST_LINES]:
        begin, first, last = (int(at / end * _WIDTH) for at in (call.ready_s, call.first_s, call.ended_s))
        first = min(max(first, begin), _WIDTH - 1)
        bar = " " * begin + "." * (first - begin) + "#" * max(last - first, 1)
        name = f"{call.row}: {call.site}" if several else call.site
        rows.append((name, f"|{bar.ljust(_WIDTH)[:_WIDTH]}|"))
    yield from (f"  {line}" for line in aligned(rows))
    if len(analysis.calls) > _MOST_LINES:
        yield f"  and {len(analysis.calls) - _MOST_LINES} more calls"
