"""Stored results as tables in Markdown, and the page that has them between markers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sglc.bench.result import FORMAT, figure
from sglc.errors import Loc, UsageError

Stored = Mapping[str, Any]  # as `result.to_json` writes it

_BEGIN = re.compile(r"<!-- results: ([\w-]+) -->[ \t]*\r?\n")
_END = "<!-- end -->"
_BLOCK = re.compile(rf"({_BEGIN.pattern})(.*?)({_END})", re.DOTALL)
_COLUMNS = (
    "model, device", "case", "median", "floor", "of the floor", "besides", "rounds", "commit", "stored in",
)  # fmt: skip
_TEXTS = {"model, device", "case", "besides", "commit", "stored in"}
_PROGRAM_COLUMNS = (
    "model, device", "case", "programs/s", "P50 / P95 s", "prompt tokens", "computed", "least", "hit rate",
    "best", "hand-overs", "steps", "idle ms", "besides", "rounds", "commit", "stored in",
)  # fmt: skip
_NONE = "Nothing is stored yet."


def read_results(folder: Path) -> list[tuple[str, Stored]]:
    """Name and content of the results in `folder`, by name; other files are passed over.

    Raises:
        UsageError: SGLC002, there is no such folder; SGLC008, one of them cannot be read, and may have been a
            result, or is a damaged one, or one of another sglc.
    """
    if not folder.is_dir():
        raise UsageError("SGLC002", f"there is no folder `{folder}`")
    found: list[tuple[str, Stored]] = []
    for path in sorted(folder.glob("*.json")):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise UsageError("SGLC002", f"`{path}` cannot be read: {error.strerror}") from None
        except (ValueError, RecursionError) as error:
            raise UsageError("SGLC008", f"`{path}` is no JSON: {error}") from None
        made_by = content.get("format") if isinstance(content, dict) else None
        if made_by == FORMAT:
            _check(path, content)
            found.append((path.name, content))
        elif isinstance(made_by, str) and made_by.startswith("sglc-bench"):
            raise UsageError("SGLC008", f"`{path}` is of format `{made_by}`, and this sglc reads `{FORMAT}`")
    return found


def _check(path: Path, result: Stored) -> None:
    try:
        tables([(path.name, result)])
    except (LookupError, TypeError, ValueError, AttributeError):
        raise UsageError(
            "SGLC008", f"`{path}` is no whole result", hint="measure again, or take it out of the folder"
        ) from None


def tables(results: Sequence[tuple[str, Stored]]) -> dict[str, str]:
    """Workload -> its table, one line for each case of each result."""
    by_workload: dict[str, list[str]] = {}
    for name, result in results:
        of_programs = result["workload"] == "programs"
        columns, line = (_PROGRAM_COLUMNS, _program_line) if of_programs else (_COLUMNS, _line)
        lines = by_workload.setdefault(
            result["workload"],
            [
                f"| {' | '.join(columns)} |",
                f"|{'|'.join('---' if column in _TEXTS else '--:' for column in columns)}|",
            ],
        )
        lines += [line(name, result, case) for case in result["cases"]]
    return {workload: "\n".join(lines) for workload, lines in by_workload.items()}


def updated(page: str, results: Sequence[tuple[str, Stored]], name: str = "the page") -> str:
    """`page` with the tables of `results` in its blocks `<!-- results: WORKLOAD -->` to `<!-- end -->`.

    A workload that has no results keeps its table, and lines end as they did.

    Raises:
        UsageError: SGLC008, no place for a table, or one whose end is missing; `name` is the page's.
    """
    found = tables(results)
    _check_ends(page, name)

    def block(match: re.Match[str]) -> str:
        text = found.get(match[2]) or match[3].strip().replace("\r\n", "\n") or _NONE
        inner = f"\n{text}\n\n"
        return match[1] + (inner.replace("\n", "\r\n") if match[1].endswith("\r\n") else inner) + match[4]

    return _BLOCK.sub(block, page)


def places(page: str) -> list[str]:
    """The workloads that a page has a place for."""
    return _BEGIN.findall(page)


def _check_ends(page: str, name: str) -> None:
    begun = list(_BEGIN.finditer(page))
    if not begun:
        raise UsageError(
            "SGLC008", f"`{name}` has no place for results",
            hint=f"a line `<!-- results: offline -->` begins one, and `{_END}` ends it",
        )  # fmt: skip
    for match, behind in zip(begun, [*(other.start() for other in begun[1:]), len(page)], strict=True):
        if _END not in page[match.end() : behind]:
            loc = Loc(name, page.count("\n", 0, match.start()) + 1)
            hint = f"add `{_END}` behind the table"
            raise UsageError("SGLC008", f"the results of `{match[1]}` have no end", loc, hint=hint)


def _program_line(name: str, result: Stored, case: Stored) -> str:
    """A program on one side, or the same work through the KV API, which knows fewer figures."""
    counts, figures = case["counts"], dict(case["figures"])
    hit, best, p50, p95 = (figures.pop(key, None) for key in ("hit_rate", "best_hit_rate", "p50_s", "p95_s"))
    idle_us = counts.get("rested_us")
    cells = (
        _where(result), case["name"], figure(case["value"]), "" if p50 is None else f"{p50:.3f} / {p95:.3f}",
        *(_count(counts, *keys) for keys in (
            ("prompt_tokens", "tokens_in"), ("computed_tokens", "tokens_computed"), ("fewest_computed_tokens",),
        )),
        "" if hit is None else f"{hit:.1%}", "" if best is None else f"{best:.1%}",
        _count(counts, "submits"), _count(counts, "steps"), "" if idle_us is None else f"{idle_us / 1e3:.1f}",
        ", ".join(f"{key} {figure(value)}" for key, value in figures.items()), str(len(case["seconds"])),
    )  # fmt: skip
    return f"| {' | '.join((*cells, result['setting']['commit'] or '-', f'`{name}`'))} |"


def _count(counts: Stored, *keys: str) -> str:
    """The first of these counts that there is."""
    return next((figure(counts[key]) for key in keys if key in counts), "")


def _where(result: Stored) -> str:
    setting = result["setting"]
    kv = setting.get("kv_dtype", "")
    device = setting.get("device", "cpu")
    where = setting["cpu"] if device == "cpu" else device
    model = result["model"] if kv in ("", setting.get("dtype")) else f"{result['model']}, KV {kv}"
    return f"{model}, {where}"


def _line(name: str, result: Stored, case: Stored) -> str:
    setting = result["setting"]
    floor = "" if case["floor"] is None else figure(case["floor"])
    share = "" if case["share"] is None else f"{case['share']:.1%}"
    besides = ", ".join(f"{key} {figure(value)}" for key, value in case["figures"].items())
    median = f"{figure(case['value'])} {case['unit']}"
    cells = (_where(result), case["name"], median, floor, share, besides, str(len(case["seconds"])))
    return f"| {' | '.join((*cells, setting['commit'] or '-', f'`{name}`'))} |"
