"""Forecasts and explanations as plain data."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from sglc.explain.estimate.forecast import Forecast, Step, Tally
from sglc.explain.estimate.price import is_priced
from sglc.explain.estimate.ranges import Span
from sglc.frontend.analysis.lint import render_finding

if TYPE_CHECKING:
    from sglc.explain.explanation import Explanation

VERSION = 1


def span(value: Span) -> list[float | int | None]:
    """The lowest count, the highest or None, and what is expected."""
    return [value.low, value.high, round(value.likely, 1)]


def tally(value: Tally) -> dict[str, Any]:
    """Counts by name."""
    return {part.name: span(getattr(value, part.name)) for part in fields(value)}


def forecast_data(forecast: Forecast) -> dict[str, Any]:
    """A forecast: see `Forecast` for what its fields are."""
    return {
        "program": forecast.program,
        "target": forecast.target,
        "rows": forecast.rows,
        "exact": forecast.exact,
        "counts": tally(forecast.counts),
        "depth": forecast.depth,
        "chain": list(forecast.chain),
        "chain_tokens": span(forecast.chain_tokens),
        "steps": [_step(step) for step in forecast.steps],
        "tree": [
            {"above": node.above, "text": node.text, "tokens": span(node.tokens), "prompts": node.prompts,
             "ends": list(node.ends)} for node in forecast.tree
        ],
        "ends": [{"why": why, "loc": str(loc)} for why, loc in forecast.ends],
    }  # fmt: skip


def _step(step: Step) -> dict[str, Any]:
    return {
        "site": step.site, "name": step.name, "kind": step.kind, "loc": str(step.loc),
        "counts": tally(step.counts), "each": tally(step.each), "after": list(step.after),
        "wave": step.wave, "critical": step.critical, "without_bound": list(step.without_bound),
        "asks": step.asks, "parts": [list(part) for part in step.parts],
    }  # fmt: skip


def explanation_data(explanation: Explanation) -> dict[str, Any]:
    """An explanation, with `version`."""
    from sglc.explain.render.summary import waiting

    target = explanation.forecast.target
    return {
        "version": VERSION,
        "estimate": forecast_data(explanation.forecast),
        "price": asdict(explanation.price) if explanation.price else None,
        "priced": is_priced(target),
        "remarks": [
            {"pass": remark.source, "message": remark.message, "loc": str(remark.loc) if remark.loc else None}
            for remark in explanation.compiled.remarks
        ],
        "waits": list(waiting(explanation.compiled, explanation.survey)),
        "warnings": [render_finding(finding) for finding in explanation.findings],
    }
