"""Forecasts and explanations as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

from sglc.explain.estimate.forecast import Forecast, StepForecast, Tally
from sglc.explain.estimate.intervals import Interval
from sglc.explain.estimate.price import Price, is_priced
from sglc.frontend.analysis.lint import Finding, render_finding
from sglc.frontend.values.graph_breaks import BreakPlace
from sglc.ir.text.fsm_graph import automata_of, drawing
from sglc.passes.compile import Compiled

VERSION = 2


def span(value: Interval) -> list[float | int | None]:
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


def _step(step: StepForecast) -> dict[str, Any]:
    return {
        "site": step.site, "name": step.name, "kind": step.kind, "loc": str(step.loc),
        "counts": tally(step.counts), "each": tally(step.each), "after": list(step.after),
        "wave": step.wave, "critical": step.critical, "without_bound": list(step.without_bound),
        "asks": step.asks, "parts": [list(part) for part in step.parts],
    }  # fmt: skip


def explanation_data(
    compiled: Compiled,
    forecast: Forecast,
    price: Price | None,
    breaks: Sequence[BreakPlace],
    findings: Sequence[Finding],
) -> dict[str, Any]:
    """An explanation, with `version`."""
    return {
        "version": VERSION,
        "estimate": forecast_data(forecast),
        "price": asdict(price) if price else None,
        "priced": is_priced(forecast.target),
        "remarks": [
            {"pass": remark.source, "message": remark.message, "loc": str(remark.loc) if remark.loc else None}
            for remark in compiled.remarks
        ],
        "breaks": [{"loc": str(one.loc), "reason": one.reason, "hint": one.hint} for one in breaks],
        "automata": [drawing(held) for held in automata_of(compiled.lowered)],
        "warnings": [render_finding(finding) for finding in findings],
    }
