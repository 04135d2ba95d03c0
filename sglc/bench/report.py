"""Stored results as tables in Markdown, and the page that has them between markers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sglc.bench.result import FORMAT, figure

Stored = Mapping[str, Any]  # as `result.to_json` writes it

_BLOCK = re.compile(r"(<!-- results: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_COLUMNS = (
    "model, device", "case", "median", "floor", "of the floor", "besides", "rounds", "commit", "stored in",
)  # fmt: skip
_NONE = "Nothing is stored yet.\n"


def read_results(folder: Path) -> list[tuple[str, Stored]]:
    """Name and content of the results in `folder`, by name; other files are passed over."""
    found: list[tuple[str, Stored]] = []
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(content, dict) and content.get("format") == FORMAT:
            found.append((path.name, content))
    return found


def tables(results: Sequence[tuple[str, Stored]]) -> dict[str, str]:
    """Workload -> its table, one line for each case of each result."""
    by_workload: dict[str, list[str]] = {}
    for name, result in results:
        lines = by_workload.setdefault(
            result["workload"],
            [
                f"| {' | '.join(_COLUMNS)} |",
                "|---|---|--:|--:|--:|---|--:|---|---|",
            ],
        )
        lines += [_line(name, result, case) for case in result["cases"]]
    return {workload: "\n".join(lines) for workload, lines in by_workload.items()}


def updated(page: str, results: Sequence[tuple[str, Stored]]) -> str:
    """`page` with the tables of `results` in its blocks `<!-- results: WORKLOAD -->` to `<!-- end -->`."""
    found = tables(results)

    def block(match: re.Match[str]) -> str:
        text = found.get(match[2])
        return f"{match[1]}\n{f'{text}{chr(10)}' if text else _NONE}\n{match[3]}"

    return _BLOCK.sub(block, page)


def _line(name: str, result: Stored, case: Stored) -> str:
    setting = result["setting"]
    kv = setting.get("kv_dtype", "")
    device = setting.get("device", "cpu")
    where = setting["cpu"] if device == "cpu" else device
    model = result["model"] if kv in ("", setting["dtype"]) else f"{result['model']}, KV {kv}"
    floor = "" if case["floor"] is None else figure(case["floor"])
    share = "" if case["share"] is None else f"{case['share']:.1%}"
    besides = ", ".join(f"{key} {figure(value)}" for key, value in case["figures"].items())
    median = f"{figure(case['value'])} {case['unit']}"
    cells = (f"{model}, {where}", case["name"], median, floor, share, besides, str(len(case["seconds"])))
    return f"| {' | '.join((*cells, setting['commit'] or '-', f'`{name}`'))} |"
