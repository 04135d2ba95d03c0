"""How long programs stay away: steps from a generation's end until something goes on behind it."""

from __future__ import annotations

from dataclasses import dataclass

_WINDOW_SAMPLES = 16  # what has been seen counts as this many absences at most
_MOST_PLACES = 4_096


@dataclass(frozen=True, slots=True)
class _Latencies:
    mean: float
    samples: int


class ToolLatencyStats:
    """Absences by their place in a program, such as the function and the name of the generation before.

    A place that nobody has come back to yet is taken for one without a wait.
    """

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], _Latencies] = {}

    def expected(self, place: tuple[str, str]) -> int:
        """Steps until a program comes back that leaves at `place`."""
        seen = self._seen.get(place)
        return 0 if seen is None else round(seen.mean)

    def ended(self, place: tuple[str, str], steps: int) -> None:
        """A program has come back to `place` after `steps`."""
        seen = self._seen.pop(place, _Latencies(0.0, 0))
        samples = min(seen.samples + 1, _WINDOW_SAMPLES)
        self._seen[place] = _Latencies(seen.mean + (steps - seen.mean) / samples, samples)
        if len(self._seen) > _MOST_PLACES:
            del self._seen[next(iter(self._seen))]  # the one not seen for the longest time
