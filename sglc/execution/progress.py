"""How a batch goes on, on stderr: a bar for people, where there is a terminal or a notebook, or JSON lines."""

from __future__ import annotations

import json
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Literal, Protocol, TypeVar

from sglc.ir.plan.events import Usage


class Counted(Protocol):
    """What is counted of a result."""

    @property
    def failed(self) -> bool: ...
    @property
    def usage(self) -> Usage: ...


_Counted = TypeVar("_Counted", bound=Counted)
Style = Literal["bar", "json", "none"]
_EACH_S = 1.0  # between two JSON lines


class Progress:
    """What the results of a batch add up to while it runs.

    Args:
        total: rows; below 0 nobody knows.
        cost: what tokens cost, in US dollars, if that is known.
    """

    def __init__(self, total: int, cost: Callable[[Usage], float] | None = None) -> None:
        self.total = total if total >= 0 else None
        self.rows = self.failed = 0
        self.used = Usage()
        self._cost = cost
        self._began_s = time.perf_counter()

    def add(self, result: Counted) -> None:
        """One more has ended."""
        self.rows += 1
        self.failed += result.failed
        self.used += result.usage

    def figures(self) -> dict[str, Any]:
        """Rows, generated tokens and those a second, the share of cached ones in prompts, dollars, and time."""
        seconds = time.perf_counter() - self._began_s
        left = None if self.total is None or not self.rows else seconds / self.rows * (self.total - self.rows)
        return {
            "rows": self.rows, "total": self.total, "failed": self.failed, "tokens": self.used.completion,
            "tokens_per_s": round(self.used.completion / seconds, 1) if seconds else 0.0,
            "cached": round(self.used.cached / self.used.prompt, 3) if self.used.prompt else 0.0,
            "cost": None if self._cost is None else round(self._cost(self.used), 6),
            "seconds": round(seconds, 1), "left_s": None if left is None else round(left, 1),
        }  # fmt: skip

    def __str__(self) -> str:
        known = self.figures()
        parts = [f"{known['tokens_per_s']:,.0f} tok/s", f"{100 * known['cached']:.0f}% cached"]
        parts += [f"{self.failed} failed"] if self.failed else []
        parts += [f"${known['cost']:.2f}"] if self._cost is not None else []
        return ", ".join(parts)


def watched(
    results: Iterator[_Counted], *, total: int, label: str, style: Style = "bar",
    cost: Callable[[Usage], float] | None = None,
) -> Iterator[_Counted]:  # fmt: skip
    """`results`, with what they add up to shown as they come."""
    progress = Progress(total, cost)
    if style == "json":
        return _in_lines(results, progress)
    if style == "bar" and (sys.stderr.isatty() or "ipykernel" in sys.modules):
        return _in_a_bar(results, progress, label)
    return results


def _in_lines(results: Iterator[_Counted], progress: Progress) -> Iterator[_Counted]:
    over = threading.Event()

    def tell_each() -> None:  # also while no row ends
        while not over.wait(_EACH_S):
            _tell(progress)

    telling = threading.Thread(target=tell_each, name="sglc-progress", daemon=True)
    telling.start()
    try:
        for result in results:
            progress.add(result)
            yield result
    finally:
        over.set()
        telling.join()
        _tell(progress)


def _tell(progress: Progress) -> None:
    with suppress(OSError):  # nobody may read it any more, and the batch goes on
        print(json.dumps(progress.figures()), file=sys.stderr, flush=True)


def _in_a_bar(results: Iterator[_Counted], progress: Progress, label: str) -> Iterator[_Counted]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a notebook without widgets has the bar of a terminal
        from tqdm.auto import tqdm

    with tqdm(total=progress.total, desc=label, unit="row", dynamic_ncols=True) as bar:
        for result in results:
            progress.add(result)
            bar.set_postfix_str(str(progress), refresh=False)
            bar.update()
            yield result
