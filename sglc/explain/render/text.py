"""An explanation as text: totals, a row for each step, remarks, graph breaks, warnings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sglc.explain.estimate.forecast import Forecast, StepForecast
from sglc.explain.estimate.intervals import Interval, between
from sglc.explain.estimate.price import Price, is_priced
from sglc.explain.render.summary import aligned, graph_breaks, structure
from sglc.frontend.analysis.lint import Finding, render_finding
from sglc.frontend.values.graph_breaks import BreakPlace
from sglc.ir.ops import Arg
from sglc.passes.compile import Compiled

_HEAD = ("wave", "op", "site", "calls", "prompt", "shared", "computed", "new", "from")


def explanation_text(
    compiled: Compiled,
    forecast: Forecast,
    price: Price | None,
    breaks: Sequence[BreakPlace],
    findings: Sequence[Finding],
) -> str:
    """The whole explanation, without a newline at the end."""
    program = compiled.lowered
    names = [param.name for param in program.params if isinstance(param, Arg)]
    lines = [f"{program.name}({', '.join(names)}) on `{forecast.target}`"]
    if forecast.rows > 1:
        lines[0] += f", {forecast.rows} rows"
    inner = [*totals(forecast), *structure(compiled)]
    if forecast.steps:
        inner += aligned([_HEAD, *(_cells(step) for step in forecast.steps)])
    inner += notes(forecast, breaks)
    if price is not None:
        inner.append(f"price: {price}")
    elif is_priced(forecast.target):
        inner.append(f"price: not known for `{forecast.target}`")
    inner += [str(remark) for remark in compiled.remarks]
    inner += graph_breaks(breaks)
    lines += [f"  {line}" for line in inner]
    lines += [render_finding(finding) for finding in findings]
    return "\n".join(lines)


def totals(forecast: Forecast) -> Iterator[str]:
    """What all of it comes to."""
    counts = forecast.counts
    about = "" if forecast.exact else "about "
    yield (
        f"{many(counts.calls, 'call')}, {one_after_another(forecast)} one after another; "
        f"{about}{said(counts.prompt)} prompt tokens: "
        f"{said(counts.shared)} shared with earlier ones, {said(counts.computed)} computed"
    )
    new = "any number of" if counts.new.high is None else f"at most {counts.new.high}"
    tools = f", {many(counts.tools, 'call')} of declared functions" if counts.tools.high != 0 else ""
    yield f"{new} new tokens, {many(counts.submits, 'submit')}{tools}"
    if len(forecast.chain) > 1:
        yield (
            f"longest chain (*): {len(forecast.chain)} calls that generate "
            f"{forecast.chain_tokens} tokens, about {forecast.chain_tokens.likely:.0f}"
        )


def one_after_another(forecast: Forecast) -> Interval:
    """How many calls come so: on the way that has the fewest of them, and on the longest chain."""
    unbounded = forecast.counts.calls.high is None
    return between(forecast.depth, None if unbounded else max(forecast.depth, len(forecast.chain)))


def many(span: Interval, name: str) -> str:
    """A count of what has a name."""
    return f"{span} {name}{'' if span.low == span.high == 1 else 's'}"


def said(span: Interval) -> str:
    """A count, with what is expected where it is not known."""
    if span.exact:
        return str(span.low)
    return f"{span} (about {span.likely:.0f})" if span.high is not None else str(span)


def _cells(step: StepForecast) -> Sequence[str]:
    counts = step.counts
    wave = f"{step.wave}{'*' if step.critical else ''}"
    if step.kind == "tool":
        return wave, "tool", step.name, str(counts.tools), "", "", "", "", str(step.loc)
    each = step.each if counts.calls.high == 1 else counts  # in a row for one call, what it is if it is made
    tokens = (each.prompt, each.shared, each.computed, each.new)
    return wave, step.kind, step.site, str(counts.calls), *map(str, tokens), str(step.loc)


def notes(forecast: Forecast, breaks: Sequence[BreakPlace]) -> Iterator[str]:
    """What the numbers do not say by themselves."""
    unknown = dict.fromkeys(name for step in forecast.steps for name in step.without_bound)
    if unknown:
        yield f"+: no bound is known before the run for {', '.join(unknown)}"
    if not forecast.counted:
        yield "tokens are guessed from lengths: the model's tokenizer is not here"
    said = [(place.reason, place.loc) for place in breaks]  # with a line of its own
    for why, loc in forecast.ends:
        if (why, loc) not in said:
            yield f"not estimated from {loc} on: {why}"
