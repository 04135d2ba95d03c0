"""Results of functions of texts, remembered within a bound of characters: strangers send any text."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, update_wrapper
from typing import Any, Generic, TypeVar

_T = TypeVar("_T")
_LONG, _FEW = 1 << 14, 2  # characters of a form, and how many are remembered of those that have more


def remembered(
    count: int, characters: int = _LONG, longer: int = _FEW
) -> Callable[[Callable[..., _T]], Remembered[_T]]:
    """As `lru_cache(count)`, for a function of a text and of what else there is.

    Of texts with more than so many `characters` only the last `longer` are remembered.
    """
    return lambda function: Remembered(function, count, characters, longer)


class Remembered(Generic[_T]):
    """A function that remembers, in any thread."""

    def __init__(self, function: Callable[..., _T], count: int, characters: int, longer: int) -> None:
        self._characters = characters
        self._short = lru_cache(count)(function)
        self._long = lru_cache(longer)(function)
        update_wrapper(self, function)

    def __call__(self, text: str, *more: Any) -> _T:
        """As of the function."""
        return (self._short if len(text) <= self._characters else self._long)(text, *more)

    @property
    def misses(self) -> int:
        """How often the function was called."""
        return self._short.cache_info().misses + self._long.cache_info().misses

    @property
    def kept(self) -> int:
        """How many texts are remembered."""
        return self._short.cache_info().currsize + self._long.cache_info().currsize

    def cache_clear(self) -> None:
        """Forget all of them."""
        self._short.cache_clear()
        self._long.cache_clear()
