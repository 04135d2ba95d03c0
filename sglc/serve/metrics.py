"""What the server counts of its requests, for `/metrics` and `/get_server_info`.

Only `Metrics.answered`, once a request, and `between`, once for what comes together of a text, are on anybody's
way; what Prometheus reads is made when it asks.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from sglc.runtime.histogram import Histogram

_FIRST_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60)
_BETWEEN_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
_WHOLE_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 150, 600)
OTHER = "other"  # a path or a method that is not ours: a client may send any
_METHODS = {"GET", "POST", "OPTIONS", "HEAD", "PUT", "PATCH", "DELETE", "CONNECT", "TRACE"}


@dataclass(slots=True)
class Spent:
    """What a request has taken so far.

    Fields:
        prompt: tokens of its prompts; None: it makes no text.
        completion: tokens that were made of texts that have ended.
        read: tokens of the prompts whose first text has ended, of them `cached` that were not computed.
        first_s: when the first of a stream was there, of `time.perf_counter`.
        code: of the error that it was answered with.
    """

    between: Histogram  # seconds between two tokens of a text, of all requests
    prompt: int | None = None
    completion: int | None = None
    read: int = 0
    cached: int = 0
    first_s: float | None = None
    code: str | None = None


class Metrics:
    """Counts since the server began. Of one event loop."""

    def __init__(self) -> None:
        self.model = ""  # its name
        self.paths: frozenset[str] = frozenset()  # those that are told apart
        self.patterns: dict[str, str] = {}  # of paths that go on behind these beginnings
        self.active = 0
        self.asked: Counter[tuple[str, str]] = Counter()  # by path and method
        self.answers: Counter[tuple[str, str, str]] = Counter()  # by path, method and status
        self.errors: Counter[str] = Counter()  # by code
        self.generations = 0  # requests for texts that came as far as the runtime and are over
        self.aborted = 0  # of them, those that nobody read to the end, or that were ended by `/abort_request`
        self.prompt_tokens = self.cached_tokens = self.generated_tokens = 0
        self.first = Histogram(_FIRST_S)
        self.between = Histogram(_BETWEEN_S)
        self.whole = Histogram(_WHOLE_S)

    def asks(self, scope: Any) -> tuple[str, str]:
        """A request has come; gives what it is counted as."""
        path, method = scope["path"], scope["method"]
        if path not in self.paths:
            path = next((known for begin, known in self.patterns.items() if path.startswith(begin)), OTHER)
        kind = path, method if method in _METHODS else OTHER
        self.active += 1
        self.asked[kind] += 1
        return kind

    def answered(
        self,
        kind: tuple[str, str],
        spent: Spent,
        began_s: float,
        ended_s: float,
        status: int | None,
        complete: bool,
    ) -> None:
        """A request of a kind that `asks` gave is over. `status` None: it has none; `complete`: it was read."""
        self.active -= 1
        if status is not None:
            self.answers[*kind, str(status)] += 1
        if spent.code is not None:
            self.errors[spent.code] += 1
        if spent.prompt is None:
            return
        self.generations += 1
        self.aborted += not complete or spent.code == "aborted"
        self.prompt_tokens += spent.read
        self.cached_tokens += spent.cached
        self.generated_tokens += spent.completion or 0
        if spent.first_s is not None:
            self.first.observe(spent.first_s - began_s)
        if complete and spent.code is None:
            self.whole.observe(ended_s - began_s)
