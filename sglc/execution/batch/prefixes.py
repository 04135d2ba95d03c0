"""How the rows of a batch begin: each distinct kind of row is recorded once, ahead of time, and bound.

A text argument stays an argument in the recording. Other values decide what the body does, so a recording has
them as they are, as long as few differ over the batch.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import Any

from sglc.errors import Loc, SglcError
from sglc.execution.batch.order import KnownRow, begins, depth_first, has_room, keys, trie_size
from sglc.frontend.language.function import Definition
from sglc.frontend.tracing.arguments import Bound
from sglc.frontend.tracing.guards import Memo, frozen
from sglc.frontend.tracing.reads import Reads
from sglc.frontend.tracing.trace import explored
from sglc.ir.core import Program
from sglc.ir.ops import HostCall
from sglc.ir.plan.backend import Backend
from sglc.ir.plan.plan import PromptPrefix
from sglc.ir.remark import Remark
from sglc.ir.sampling import Sampling
from sglc.ir.target import Tokenizer
from sglc.ir.values import NOTHING, plain
from sglc.knobs import debug_level
from sglc.passes.lowering.prompt_prefixes import prompt_prefixes

_FEW = 8  # values of an argument that is no text, and recordings of one batch
_PASS = "hoist_prefix"
_PLAIN = (str, int, float, bool)
NOTHING_KNOWN: KnownRow = (), {}


@dataclass(frozen=True, slots=True)
class Beginnings:
    """How each row begins, by its prompts' prefixes and its arguments, and the place of the program; `why` that
    is not known of any."""

    known: Sequence[KnownRow]
    loc: Loc | None
    why: str = ""

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """How each row begins, prompt by prompt."""
        return [begins(prefixes, texts) for prefixes, texts in self.known]


def beginnings(definition: Definition, memo: Memo[Program], rows: Sequence[Mapping[str, Any]]) -> Beginnings:
    """How the prompts of each row begin, from its `rows` entry: the function's arguments by name.

    Nothing of the function's own is called but what recording it calls (`frontend.ahead`).

    Args:
        memo: what was recorded before.
    """
    key_of = _Frozen()
    names = rows[0] if rows else ()
    others = [name for name in names if set(map(type, map(itemgetter(name), rows))) != {str}]
    constant = _constants(rows, others, key_of)
    recorded_for = [tuple([key_of(row[name]) for name in constant]) if constant else () for row in rows]
    found: dict[Hashable, tuple[PromptPrefix, ...]] = {}
    end: HostCall | None = None
    for key, row in zip(recorded_for, rows, strict=True):
        if key in found:
            continue
        try:
            program = _recorded(definition, memo, {name: row[name] for name in constant}, key)
        except Exception as error:  # the rows themselves will meet it, and tell
            why = error.message if isinstance(error, SglcError) else repr(error)
            return Beginnings(
                [NOTHING_KNOWN] * len(rows), definition.loc, f"it cannot be recorded ahead: {why}"
            )
        found[key] = prompt_prefixes(program, constants=bool(constant))
        if program.ops and isinstance(program.ops[-1], HostCall):
            end = program.ops[-1]
    texts = [{**row, **{name: _text(row[name]) for name in others}} for row in rows] if others else rows
    known = list(zip(map(found.__getitem__, recorded_for), texts, strict=True))
    if any(found.values()):
        return Beginnings(known, definition.loc)
    if end is not None:
        return Beginnings(known, end.loc, f"ordinary Python comes before any argument: {end.reason}")
    return Beginnings(known, definition.loc, "no prompt begins with an argument")


def batch_order(batches: Sequence[Beginnings], backend: Backend) -> Sequence[int]:
    """The order in which to run the rows of all batches, which are numbered one batch behind the other.

    Where the cache has room for all that they begin with (`has_room`), they stay as they are. `SGLC_DEBUG`
    reports what the order is good for.
    """
    if debug_level() >= 1:
        for known in batches:
            print(remark(known, backend.target.tokenizer), file=sys.stderr)
    if has_room(backend, [row for known in batches for row in known.known]):
        return range(sum(len(known.known) for known in batches))
    return depth_first([key for known in batches for key in keys(known.rows)])


def remark(known: Beginnings, tokenizer: Tokenizer | None) -> Remark:
    """What the order of one batch is good for, in tokens where there is a tokenizer: it encodes all prompts."""
    if known.why:
        return Remark(_PASS, f"rows run in the order of the list: {known.why}", known.loc)
    prompts = [prompt for row in known.rows for prompt in row]
    whole = [tokenizer.encode(prompt) for prompt in prompts] if tokenizer else prompts
    total, least = sum(map(len, whole)), trie_size(whole)
    unit = "tokens" if tokenizer else "characters"
    count = len(known.known)
    return Remark(_PASS, f"hoisted {total - least:,} of {total:,} {unit} out of {count:,} rows", known.loc)


class _Frozen:
    """Arguments as keys; what many rows share is looked at once."""

    def __init__(self) -> None:
        # By identity, with the value, so that it stays alive.
        self._known: dict[int, tuple[Any, Hashable | None]] = {}

    def __call__(self, value: Any) -> Hashable | None:
        """A key, equal for equal plain data; None for anything else."""
        if id(value) not in self._known:
            self._known[id(value)] = value, None if plain(value) is NOTHING else frozen(value)
        return self._known[id(value)][1]


def _constants(rows: Sequence[Mapping[str, Any]], others: Iterable[str], key: _Frozen) -> list[str]:
    """Those of the `others`, which are not texts in every row, that are recorded as they are: plain data with
    few values."""
    values: dict[str, dict[Hashable, None]] = {name: {} for name in others}
    for row in rows if values else ():
        for name in list(values):
            own = key(row[name])
            values[name][own] = None
            if own is None or len(values[name]) > _FEW:
                del values[name]
    together: dict[Hashable, None] = {}
    for row in rows if values else ():
        together[tuple([key(row[name]) for name in values])] = None
        if len(together) > _FEW:
            return []
    return list(values)


def _recorded(
    definition: Definition, memo: Memo[Program], constants: Mapping[str, Any], key: Hashable
) -> Program:
    def known(parameter: inspect.Parameter) -> inspect.Parameter:
        if parameter.name not in constants:
            return parameter.replace(default=inspect.Parameter.empty)
        return parameter.replace(default=Bound(constants[parameter.name]))

    parameters = tuple([known(parameter) for parameter in definition.parameters])
    own = replace(definition, parameters=parameters, fullgraph=False)

    def make() -> tuple[Program, Callable[[], str]]:
        reads = Reads()
        # What stands behind the first branch stands behind what is generated.
        return explored(own, Sampling(), max_paths=1, reads=reads).program, partial(reads.changed, whole=False)

    return memo.get((tuple(constants), key), make)


def _text(value: Any) -> str:
    """A value as the program appends it; nothing for what is no text and no number."""
    return str(value) if type(value) in _PLAIN else ""
