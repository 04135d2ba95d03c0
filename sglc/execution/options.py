"""What runs and batches are asked for, by keyword."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, get_args

from sglc.errors import UsageError
from sglc.frontend.locate import here

Mode = Literal["auto", "plan", "python"]  # whether a plan runs where there is one, always, or never
MODES: tuple[Mode, ...] = get_args(Mode)


@dataclass(frozen=True, slots=True)
class NumberedRows:
    """A part of a batch: each row with its number in the whole, from which its seeds are made.

    For results as they end alone.
    """

    pairs: Iterable[tuple[int, Any]]

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        return iter(self.pairs)


NOTHING: Mapping[str, Any] = MappingProxyType({})
# Each with what asks for nothing.
WATCHES: dict[str, Any] = {
    "record": None, "replay": None, "trace": None, "cache": None, "resume": False, "retry_failed": False,
    "redo": (), "answers": None,
}  # fmt: skip
LIMITS = ("max_calls", "max_tokens", "timeout")
OPTIONS: dict[str, Any] = {
    **dict.fromkeys(("backend", "seed", "stream", "use_thread", *LIMITS, "mode", "passes", "outputs")),
    **WATCHES,
}  # fmt: skip


def check_mode(mode: Any) -> None:
    """Raises UsageError: SGLC023, there is no such mode."""
    if mode not in MODES:
        known = ", ".join(f'"{name}"' for name in MODES)
        raise UsageError("SGLC023", f"`mode` is one of {known}, not `{mode!r}`", here())


def watches_of(**given: Any) -> dict[str, Any]:
    """What was asked for of the ways to watch a run."""
    return {name: value for name, value in given.items() if value is not None and value is not False}


def given_of(keywords: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Keywords of a run without the options that ask for nothing."""
    return {
        name: value
        for name, value in keywords
        if (value is not None or name not in OPTIONS)
        and (value is not False or name not in WATCHES)
        and (name != "redo" or value)
    }


def parted(keywords: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options among them, and the others."""
    options = {name: value for name, value in keywords.items() if name in OPTIONS}
    return options, {name: value for name, value in keywords.items() if name not in OPTIONS}
