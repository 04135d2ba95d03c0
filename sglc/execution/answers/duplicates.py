"""Which runs may ask for what others ask for. These alone go through a `UnifiedBackend`, which costs some."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from sglc.ir.plan.asked import Asked
from sglc.ir.plan.backend import Backend

if TYPE_CHECKING:
    from sglc.execution.answers.unified_backend import UnifiedBackend

_SEEN = 65_536  # rows whose arguments are remembered


class Duplicates:
    """The runs of one call of `run` or `run_batch`, by what they ask for."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._unified: UnifiedBackend | None = None
        # Rows that are looked at together, and how many of them have such arguments.
        self._ahead: tuple[Sequence[Mapping[str, Any]], dict[tuple[str, ...], Counter[int]]] = (), {}
        self._seen: dict[tuple[str, ...], set[int]] = {}

    def look(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """The arguments of the rows that begin next."""
        self._ahead = rows, {}

    def backend(self, asked: Asked | None, arguments: Mapping[str, Any]) -> Backend:
        """The one for a run: of a plan that asks for so much, or of Python (None), of which nobody knows."""
        if asked is not None:
            again = [self._again(names, arguments) for names in asked.arguments]
            if not (asked.repeats or any(again)):
                return self._backend
        from sglc.execution.answers.unified_backend import UnifiedBackend

        if asked is not None and not any(again) and hasattr(self._backend, "program"):
            return UnifiedBackend(self._backend, alone=True)
        if self._unified is None:
            inner = self._backend
            self._unified = inner if isinstance(inner, UnifiedBackend) else UnifiedBackend(inner)
        return self._unified

    def _again(self, names: tuple[str, ...], arguments: Mapping[str, Any]) -> bool:
        """Whether another row has these arguments, too; notes that one does."""
        key = _key(names, arguments)
        seen = self._seen.setdefault(names, set())
        if key in seen:
            return True
        if len(seen) >= _SEEN:
            seen.clear()
        seen.add(key)
        rows, counts = self._ahead
        if names not in counts:
            counts[names] = Counter(_keys(names, rows))
        return counts[names][key] > 1


def _keys(names: tuple[str, ...], rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """`_key` of each row; the first row waits for those of all."""
    try:
        if names:
            return list(map(hash, zip(*[map(itemgetter(name), rows) for name in names], strict=True)))
    except (KeyError, TypeError):
        pass
    return [_key(names, row) for row in rows]


def _key(names: tuple[str, ...], arguments: Mapping[str, Any]) -> int:
    values = tuple([arguments.get(name) for name in names])
    try:
        return hash(values)
    except TypeError:
        return hash(repr(values))
