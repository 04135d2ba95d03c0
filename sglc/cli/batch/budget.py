"""What a whole batch may cost: a row begins if what was spent and what those that run will spend leave room."""

from __future__ import annotations

from dataclasses import dataclass, field

from sglc.ir.plan.events import Usage


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars for a million tokens."""

    prompt: float
    completion: float
    cached: float

    def of(self, usage: Usage) -> float:
        """US dollars."""
        fresh = usage.prompt - usage.cached
        tokens = self.prompt * fresh + self.cached * usage.cached + self.completion * usage.completion
        return tokens / 1e6


@dataclass(slots=True)
class BatchBudget:
    """Limits of a batch, and what was spent; a limit of None is none."""

    calls: int | None = None
    tokens: int | None = None
    cost: float | None = None
    price: Price | None = None
    rows: int = 0
    used: Usage = field(default_factory=Usage)

    def spend(self, usage: Usage) -> None:
        """A row has ended."""
        self.rows += 1
        self.used += usage

    def admits(self, begun: int) -> bool:
        """Whether one more row may begin, if each costs the average of those that have ended."""
        live = begun - self.rows
        for spent, limit in self._limits():
            # Nobody knows what a row costs until the first one has ended.
            if spent + (live + 1) * spent / self.rows > limit if self.rows else live:
                return False
        return True

    def _limits(self) -> list[tuple[float, float]]:
        made = self.used
        limits: list[tuple[float, float | None]] = [
            (made.calls, self.calls),
            (made.prompt + made.completion, self.tokens),
            (0.0 if self.price is None else self.price.of(made), self.cost),
        ]
        return [(spent, limit) for spent, limit in limits if limit is not None]

    @property
    def limited(self) -> bool:
        """Whether there is a limit."""
        return bool(self._limits())
