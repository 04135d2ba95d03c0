"""A row's own data: arguments that fit the function, and segments with its texts, handles and seeds."""

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
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import starmap
from typing import Any, TypeVar

from sglc.errors import SglcError, UsageError
from sglc.execution.options import NOTHING, NumberedRows
from sglc.frontend.language.function import Definition, describe
from sglc.frontend.language.gen_arguments import sampling_fields
from sglc.frontend.locate import here
from sglc.ir.core import Site
from sglc.ir.plan.segment import (
    ASKED,
    ExtendNode,
    GenNode,
    ImagePart,
    KeepNode,
    Node,
    OpenNode,
    Part,
    Segment,
    SelectNode,
    Slot,
    TextPart,
    reads,
    waits_of,
)
from sglc.ir.sampling import Sampling
from sglc.ir.values import limited

_T = TypeVar("_T")
Row = Mapping[str, Any] | Sequence[Any]  # a call's arguments by name, or in order
Rows = Iterable[Row] | AsyncIterable[Row]
Fitting = tuple[dict[str, Any], Sampling]  # a row's arguments, and defaults of its generations

DEFAULTS = Sampling()
_SAMPLING = {
    "max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens", "n": "n", "stop": "stop",
    **{name: name for name in (
        "stop_token_ids", "stop_regex", "temperature", "top_p", "top_k", "min_p", "frequency_penalty",
        "presence_penalty", "ignore_eos", "return_logprob", "logprob_start_len", "top_logprobs_num",
        "return_text_in_logprobs",
    )},
}  # fmt: skip


@dataclass(slots=True)  # not frozen: one is made for every segment
class Own:
    """A row's own data: texts by slot, numbers of the streams it opens and keeps, where its seeds begin, and
    the cache keys of its generations: most back ends have none, and a site takes time to hash.

    `call` and `iterations` are as in `Site.inside`, for a template that is `placed`. `drawn`: nobody asked for
    the seed.
    """

    texts: Mapping[str, str]
    opened: Mapping[str, int | None]
    kept: Mapping[Any, int]
    seeds: blake2b
    cache_keys: Mapping[Site, str] | None = None
    call: str = ""
    iterations: tuple[int, ...] = ()
    drawn: bool = False


class Template:
    """A segment that many rows share: what differs from row to row is found once.

    Args:
        placed: it runs in a called program or in a loop, where sites are distinct by it.
    """

    __slots__ = ("_fill", "_waits", "segment")

    def __init__(self, segment: Segment, *, placed: bool = False) -> None:
        self.segment = segment
        self._waits = waits_of([reads(node) for node in segment.nodes])
        fillers = [(index, _filler(node, placed)) for index, node in enumerate(segment.nodes)]
        self._fill = tuple([(index, fill) for index, fill in fillers if fill is not None])

    def bind(self, own: Own) -> Segment:
        """The segment with slots, handles and seeds filled in."""
        nodes = list(self.segment.nodes)
        for index, fill in self._fill:
            nodes[index] = fill(own)
        return Segment(tuple(nodes), waits=self._waits)


def asked_in(segment: Segment) -> dict[int, GenNode | SelectNode]:
    """The generations and choices of a segment, by their place in it."""
    return {i: node for i, node in enumerate(segment.nodes) if isinstance(node, ASKED)}


def _filler(node: Node, placed: bool) -> Callable[[Own], Node] | None:
    """What makes a row's own node of a shared one; None if all rows have the same.

    Args:
        placed: as of `Template`.
    """
    match node:
        case GenNode() if node.limit:
            return _limited(node, placed)
        case ExtendNode(stream, parts) if any(isinstance(part, ImagePart) for part in parts):
            return lambda own: ExtendNode(stream, tuple([_part(part, own.texts) for part in parts]))
        case ExtendNode(stream, parts) if slots := [
            (place, part.name) for place, part in enumerate(parts) if isinstance(part, Slot)
        ]:

            def extended(own: Own) -> Node:
                said = list(parts)
                for place, name in slots:
                    said[place] = own.texts[name]
                return ExtendNode(stream, tuple(said))

            return extended
        case GenNode(stream, site, sampling, loc, ahead=ahead, cache_key=key, unify=unify, fused=fused) as node:
            next_use, most, behind = _told(node)
            name = str(site).encode()

            def filled(own: Own) -> Node:
                at = site.inside(own.call, own.iterations) if placed else site
                seed = _seed(own.seeds, str(at).encode() if placed else name)
                cache_key = own.cache_keys.get(site, key) if own.cache_keys else key
                return GenNode(
                    stream, at, sampling, loc, seed, ahead, cache_key, unify,
                    fused=fused, drawn=own.drawn, next_use=next_use, most=most, behind=behind,
                )  # fmt: skip

            return filled
        case SelectNode(stream, site, choices, method, loc, key, unify, fused=fused) as node:
            next_use, most, behind = _told(node)
            return lambda own: SelectNode(
                stream, site.inside(own.call, own.iterations) if placed else site,
                tuple([_choice(choice, own.texts) for choice in choices]),
                method, loc, own.cache_keys.get(site, key) if own.cache_keys else key, unify, fused=fused,
                next_use=next_use, most=most, behind=behind,
            )  # fmt: skip
        case OpenNode(str() as opened):
            return lambda own: OpenNode(own.opened.get(opened))
        case KeepNode(stream, handle):
            return lambda own: KeepNode(stream, own.kept[handle])
        case _:
            return None


def _limited(node: GenNode, placed: bool) -> Callable[[Own], Node]:
    """What makes a row's own node of one whose `max_tokens` is the row's."""
    fill = _filler(replace(node, limit=""), placed)
    assert fill is not None

    def filled(own: Own) -> Node:
        sampling = limited(node.sampling, own.texts[node.limit], node.loc)
        made = fill(own)
        assert isinstance(made, GenNode)
        return replace(made, sampling=sampling, most=sampling.max_tokens if node.next_use else 0)

    return filled


def _told(node: GenNode | SelectNode) -> tuple[str, int, int]:
    """What engines are told ahead of it, which is of every row the same."""
    return (node.next_use, node.most, node.behind) if node.next_use else ("", 0, 0)


def _choice(choice: TextPart, texts: Mapping[str, str]) -> TextPart:
    return texts[choice.name] if isinstance(choice, Slot) else choice


def _part(part: Part, texts: Mapping[str, str]) -> Part:
    match part:
        case Slot(name):
            return texts[name]
        case ImagePart(Slot(name)):
            return ImagePart(texts[name])
        case _:
            return part


def without_keeps(segment: Segment) -> Segment:
    """`segment` without the keeps at its end, for the last launch of a run."""
    end = len(segment.nodes)
    while end and isinstance(segment.nodes[end - 1], KeepNode):
        end -= 1
    return Segment(segment.nodes[:end])


def seeds_of(run_seed: int, row: int) -> blake2b:
    """Where the seeds of one row begin: `site_seed` goes on with the site."""
    return blake2b(f"{run_seed}/{row}/".encode(), digest_size=8)


def site_seed(run_seed: int, row: int, site: Site) -> int:
    """The 64-bit seed of a generation: hash(run seed, row, site), the same in every process."""
    return _seed(seeds_of(run_seed, row), str(site).encode())


def _seed(seeds: blake2b, name: bytes) -> int:
    own = seeds.copy()
    own.update(name)
    return int.from_bytes(own.digest(), "little")


def random_seed() -> int:
    """A seed for a run that was given none."""
    return int.from_bytes(os.urandom(8), "little") >> 11  # 53 bits survive JSON


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

    names, wanted = definition.names, set(definition.names)
    alone = definition.by_name and not (bound or kwargs)

    def fitting(number: int, row: Row) -> Fitting:
        if number in skip:
            return {}, DEFAULTS
        if alone and type(row) is dict and row.keys() == wanted:  # as most come
            return dict(zip(names, map(row.__getitem__, names), strict=True)), DEFAULTS
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
