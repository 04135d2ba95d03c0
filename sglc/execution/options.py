"""What runs and batches are asked for, by keyword: options of their own, defaults of generations, arguments."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import (
    AsyncIterable,
    Callable,
    Collection,
    Container,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from itertools import starmap
from types import MappingProxyType
from typing import Any, Literal, TypeVar, get_args

from sglc.errors import SglcError, UsageError
from sglc.frontend.language.function import Definition, describe
from sglc.frontend.language.gen_arguments import sampling_fields
from sglc.frontend.locate import here
from sglc.ir.sampling import Sampling

_T = TypeVar("_T")
Row = Mapping[str, Any] | Sequence[Any]  # a call's arguments by name, or in order
Rows = Iterable[Row] | AsyncIterable[Row]
Mode = Literal["auto", "plan", "python"]  # whether a plan runs where there is one, always, or never
MODES: tuple[Mode, ...] = get_args(Mode)
Fitting = tuple[dict[str, Any], Sampling]  # a row's arguments, and defaults of its generations

DEFAULTS = Sampling()


@dataclass(frozen=True, slots=True)
class NumberedRows:
    """A part of a batch: each row with its number in the whole, from which its seeds are made.

    For results as they end alone.
    """

    pairs: Iterable[tuple[int, Any]]

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        return iter(self.pairs)


NOTHING: Mapping[str, Any] = MappingProxyType({})
_SAMPLING = {
    "max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens", "n": "n", "stop": "stop",
    **{name: name for name in (
        "stop_token_ids", "stop_regex", "temperature", "top_p", "top_k", "min_p", "frequency_penalty",
        "presence_penalty", "ignore_eos", "return_logprob", "logprob_start_len", "top_logprobs_num",
        "return_text_in_logprobs",
    )},
}  # fmt: skip
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


def split(
    definition: Definition, kwargs: Mapping[str, Any], parameters: Sequence[str]
) -> tuple[dict[str, Any], Sampling]:
    """Keywords for the program, whose open parameters have `parameters`, and defaults of its generations."""
    own = {key: value for key, value in kwargs.items() if key in parameters or key not in _SAMPLING}
    given = {_SAMPLING[key]: value for key, value in kwargs.items() if key not in own}
    return own, Sampling(**sampling_fields(given, definition.loc)) if given else DEFAULTS


def fitted(
    definition: Definition, bound: Mapping[str, Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Fitting:
    """The arguments of a call, which fit the function; those that are `bound` win.

    Raises:
        UsageError: SGLC011, they do not fit.
    """
    names = definition.names
    if definition.by_name and not args and not bound and kwargs.keys() == set(names):
        return dict(zip(names, map(kwargs.__getitem__, names), strict=True)), DEFAULTS  # as most come
    parameters = names[len(args) :]
    own, sampling = split(definition, kwargs, parameters)
    own.update((name, value) for name, value in bound.items() if name in parameters)
    return {**bind(definition, args, own), **bound}, sampling


def bind(definition: Definition, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The call's arguments by parameter name, defaults filled in.

    Raises:
        UsageError: SGLC011, naming what is missing, unknown or given twice.
    """
    names = definition.names
    if definition.by_name and not args and kwargs.keys() == set(names):
        return {name: kwargs[name] for name in names}  # ten times as fast
    signature = inspect.Signature(definition.parameters)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        problem = re.sub("'([^']*)'", r"`\1`", str(error))
        bound_by_nobody = any(parameter.name == "self" for parameter in definition.parameters[:1])
        named = f"`{definition.call.__qualname__}.run(obj, ...)`"
        raise UsageError(
            "SGLC011", f"`{definition.name}`: {problem}", definition.loc,
            note=f"its arguments are: {describe(definition) or 'none'}",
            hint=f"nothing binds the `self` of a program: {named}" if bound_by_nobody else "",
        ) from None  # fmt: skip
    bound.apply_defaults()
    return dict(bound.arguments)


def check_names(definition: Definition, names: Collection[str]) -> None:
    """Raises UsageError: SGLC011, one of the names is that of no argument."""
    open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in definition.parameters)
    if not open_ended and (unknown := sorted({*names}.difference(definition.names))):
        raise UsageError(
            "SGLC011", f"`{definition.name}`: got an unexpected keyword argument `{unknown[0]}`",
            definition.loc, note=f"its arguments are: {describe(definition) or 'none'}",
        )  # fmt: skip


def fitted_rows(
    definition: Definition, bound: Mapping[str, Any], rows: Rows, kwargs: Mapping[str, Any],
    skip: Container[int] = (),
) -> Iterable[Any]:  # fmt: skip
    """Each row of a batch as a `Fitting`. `kwargs` are of all rows. Those of a list are looked at now.

    Rows whose numbers are in `skip` do not run, and are not looked at.

    Raises:
        UsageError: SGLC017, SGLC011, no rows, or one that does not fit.
    """

    def fitting(number: int, row: Row) -> Fitting:
        if number in skip:
            return {}, DEFAULTS
        try:
            return fitted_row(definition, bound, row, kwargs)
        except SglcError as error:
            raise in_row(number, error) from None

    return each_fitted(rows, fitting)


def fitted_row(
    definition: Definition, bound: Mapping[str, Any], row: Row, kwargs: Mapping[str, Any]
) -> Fitting:
    """A row of a batch, as `fitted`. `kwargs` are of all rows.

    Raises:
        UsageError: SGLC017, SGLC011, it does not fit.
    """
    match row:
        case Mapping():
            return fitted(definition, bound, (), {**kwargs, **row})
        case Sequence() if not isinstance(row, str | bytes):
            return fitted(definition, bound, row, kwargs)
    raise UsageError("SGLC017", f"a row is a dict or a tuple of arguments, not `{type(row).__name__}`")


def each_fitted(rows: Any, fit: Callable[[int, Any], _T]) -> Iterable[Any]:
    """What `fit` makes of each row and its number. Those of a list are looked at now.

    Raises:
        UsageError: SGLC017, no list, and nothing else that gives rows; as `fit`.
    """
    if isinstance(rows, NumberedRows):
        return NumberedRows((number, fit(number, row)) for number, row in rows)
    if isinstance(rows, AsyncIterable):
        rows = _awaited(rows)
    check_batch(rows)
    made = starmap(fit, enumerate(rows))
    return list(made) if isinstance(rows, Sequence) else made


def check_batch(rows: Any) -> None:
    """Raises UsageError: SGLC017, no list, and nothing else that gives rows."""
    if not isinstance(rows, Iterable) or isinstance(rows, str | bytes | Mapping):
        raise UsageError("SGLC017", f"a batch is a list of rows, not `{type(rows).__name__}`", here())


def _awaited(rows: AsyncIterable[Any]) -> Iterator[Any]:
    """Those of an async iterator, which come in an event loop of whoever asks for the first."""
    import asyncio

    async def following() -> Any:
        return await anext(coming, NOTHING)

    with asyncio.Runner() as loop:
        coming = aiter(rows)
        while (row := loop.run(following())) is not NOTHING:
            yield row


def count_of(rows: Rows) -> int:
    """How many rows there are; -1 where that shows as they come."""
    return len(rows) if isinstance(rows, Sequence) else -1


def in_row(number: int, error: SglcError) -> SglcError:
    """`error` as that of a row of a batch."""
    note = f"row {number} of the batch" + (f"; {error.note}" if error.note else "")
    return type(error)(error.code, error.message, error.loc, note=note, hint=error.hint)


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


def random_seed() -> int:
    """A seed for a run that was given none."""
    return int.from_bytes(os.urandom(8), "little") >> 11  # 53 bits survive JSON
