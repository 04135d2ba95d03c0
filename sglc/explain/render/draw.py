"""The graph of a forecast's steps for Graphviz and Mermaid."""

from __future__ import annotations

import re

from sglc.explain.estimate.forecast import Forecast, StepForecast


def to_dot(forecast: Forecast) -> str:
    """Boxes with the estimates; the longest chain is bold."""
    lines = [f"digraph {_quoted(forecast.program)} {{", '  node [shape=box, fontname="monospace"];']
    numbers = {step.site: number for number, step in enumerate(forecast.steps)}
    for number, step in enumerate(forecast.steps):
        label = "\\n".join(_quoted(line)[1:-1] for line in _label(step))
        lines.append(f'  n{number} [label="{label}"{", style=bold" if step.critical else ""}];')
    for before, after, critical in _edges(forecast):
        lines.append(f"  n{numbers[before]} -> n{numbers[after]}{' [style=bold]' if critical else ''};")
    return "\n".join([*lines, "}"])


def to_mermaid(forecast: Forecast) -> str:
    """Boxes with the estimates; the edges of the longest chain are thick."""
    lines = ["flowchart TD"]
    numbers = {step.site: number for number, step in enumerate(forecast.steps)}
    for number, step in enumerate(forecast.steps):
        # Mermaid reads labels as Markdown with entities: anything else than plain characters is written as one.
        label = "<br/>".join(re.sub(r"[^\w\s(),.:+-]", lambda m: f"#{ord(m[0])};", one) for one in _label(step))
        lines.append(f'  n{number}["{label}"]')
    for before, after, critical in _edges(forecast):
        lines.append(f"  n{numbers[before]} {'==>' if critical else '-->'} n{numbers[after]}")
    return "\n".join(lines)


def _label(step: StepForecast) -> list[str]:
    if step.kind == "tool":
        return [f"tool {step.name}"]
    counts = step.counts
    said = f"prompt {counts.prompt}, shared {counts.shared}"
    return [f"{step.kind} {step.site}", said + (f", new {counts.new}" if step.kind == "gen" else "")]


def _edges(forecast: Forecast) -> list[tuple[str, str, bool]]:
    known = {step.site for step in forecast.steps}
    follows = set(zip(forecast.chain, forecast.chain[1:], strict=False))
    return [
        (before, step.site, (before, step.site) in follows)
        for step in forecast.steps
        for before in step.after
        if before in known
    ]


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
