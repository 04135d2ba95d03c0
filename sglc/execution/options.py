"""What runs and batches are asked for, by keyword: options of their own, defaults of generations, arguments."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from sglc.errors import SglcError, UsageError
from sglc.execution.context import ENCLOSING
from sglc.frontend.language.function import Definition
from sglc.frontend.language.gen_arguments import sampling_fields
from sglc.frontend.locate import here
from sglc.ir.sampling import Sampling

if TYPE_CHECKING:
    from sglc.observe.observer import Watch

Rows = Sequence[Mapping[str, Any] | Sequence[Any]]  # each: a call's arguments by name, or in order

DEFAULTS = Sampling()
NOTHING: Mapping[str, Any] = MappingProxyType({})
_SAMPLING = {
    "max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens", "n": "n", "stop": "stop",
    **{name: name for name in (
        "stop_token_ids", "stop_regex", "temperature", "top_p", "top_k", "min_p", "frequency_penalty",
        "presence_penalty", "ignore_eos", "return_logprob", "logprob_start_len", "top_logprobs_num",
        "return_text_in_logprobs",
    )},
}  # fmt: skip
WATCHES = ("record", "replay", "trace")
OPTIONS = ("backend", "seed", "stream", "use_thread", "max_calls", "max_tokens", "timeout", *WATCHES)


def split(
    definition: Definition, kwargs: Mapping[str, Any], parameters: Sequence[str]
) -> tuple[dict[str, Any], Sampling]:
    """Keywords for the program, whose open parameters have `parameters`, and defaults of its generations."""
    own = {key: value for key, value in kwargs.items() if key in parameters or key not in _SAMPLING}
    given = {_SAMPLING[key]: value for key, value in kwargs.items() if key not in own}
    return own, Sampling(**sampling_fields(given, definition.loc)) if given else DEFAULTS


def check_rows(rows: Any) -> None:
    """Refuse what cannot be the rows of a batch.

    Raises:
        UsageError: SGLC017, no list.
    """
    if not isinstance(rows, Sequence) or isinstance(rows, str):
        raise UsageError("SGLC017", f"a batch is a list of rows, not `{type(rows).__name__}`", here())


def in_row(number: int, error: SglcError) -> SglcError:
    """`error` as that of a row of a batch."""
    note = f"row {number} of the batch" + (f"; {error.note}" if error.note else "")
    return type(error)(error.code, error.message, error.loc, note=note, hint=error.hint)


def watches_of(record: str | None, replay: str | None, trace: str | None) -> dict[str, str]:
    """What was asked for of the ways to watch a run."""
    given = zip(WATCHES, (record, replay, trace), strict=True)
    return {name: value for name, value in given if value is not None}


def watch_of(
    name: str, seed: int | None, rows: int | None, watches: Mapping[str, Any]
) -> tuple[Watch | None, int]:
    """What watches a run of `name`, if anything does, and the run's seed. `rows`: of a batch."""
    enclosing = ENCLOSING.get()
    outer = None if enclosing is None else enclosing.watch
    if not watches and outer is None and "opentelemetry.trace" not in sys.modules:
        return None, random_seed() if seed is None else seed
    from sglc.observe.observer import open_watch

    return open_watch(name, random_seed, seed, rows, outer, watches)


def random_seed() -> int:
    """A seed for a run that was given none."""
    return int.from_bytes(os.urandom(8), "little") >> 11  # 53 bits survive JSON
