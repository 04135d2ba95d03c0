"""Values, ops and programs: the data of the IR, all of it frozen.

A program is a flat tuple of ops in static single assignment. A prompt state is a `stream`
value: appending gives a new stream, and using one stream twice is sharing its prefix. Control
flow is in ops that hold regions, which are blocks of the same kind of ops.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from enum import StrEnum
from itertools import chain, count, islice
from operator import attrgetter, is_
from typing import Any, ClassVar, TypeVar, cast, dataclass_transform

from sglc.errors import Loc
from sglc.ir.made_often import made_often, replaced

NOWHERE = Loc("<none>", 0)


class Type(StrEnum):
    STREAM = "stream"
    TEXT = "text"
    BOOL = "bool"
    LIST = "list"  # list[text]: what `join` gathers
    JSON = "json"


@made_often
@dataclass(frozen=True, slots=True)
class Value:
    """One SSA result. Ids are unique in a program, its regions included; names belong to the printer."""

    id: int
    type: Type

    def __hash__(self) -> int:
        return self.id


@dataclass(frozen=True, slots=True)
class Site:
    """Where a generation stands in a program: it keys the seed and the row of `explain`.

    `name` is the user's key; `occurrence` counts generations of the same function, fork path
    and name within one instance, so two samples never share a site. In a structured form, `function` says
    which (`in_form`), and they are counted anew. What stands in a loop or in a called program runs more often
    than it is written: `inside` gives each run a site of its own.
    """

    function: str
    fork: tuple[int, ...]
    name: str
    occurrence: int = 0

    def __str__(self) -> str:
        path = f"[{','.join(map(str, self.fork))}]" if self.fork else ""
        return f"{self.function}{path}.{self.name}#{self.occurrence}"

    @property
    def called(self) -> bool:
        """Whether it stands in a called program, so that its name is no variable of the program around."""
        return "/" in self.function

    @property
    def in_prompt(self) -> bool:
        """Whether it stands in the prompt of the program itself, not in a branch or a called program."""
        return not (self.fork or self.called)

    def inside(self, call: str, iterations: tuple[int, ...]) -> Site:
        """The site at run time. Both parts go into the function path; neither changes a site outside.

        Args:
            call: the site, at run time, of the `call` that runs the program; "" in the program itself.
            iterations: number of the current iteration of each `loop` and `map` around, outermost
                first, counted from 0 and inside that program only.
        """
        if not call and not iterations:
            return self
        function = repeated(self.function, iterations)
        return replaced(self, function=f"{call}/{function}" if call else function)

    @property
    def counted(self) -> bool:
        """Whether it is, at run time, in a comprehension of a plan; Python's generation has another one."""
        return any(in_comprehension(part, part.count("@")) for part in self.function.split("/"))

    @property
    def written(self) -> str:
        """The function path as the program is written: without structured forms, arms and iterations."""
        return re.sub(r"~[\d.]+(:\d+)?|@\d+", "", self.function)


def in_form(function: str, number: str, arm: int | None = None) -> str:
    """The function of sites in its structured form (`cond`, `switch`, `loop`, `map`) of that number.

    Forms are counted in the body that they stand in, so no site around one depends on what it does. Iterations
    stand behind it at run time: `repeated`.
    """
    return f"{function}~{number}" if arm is None else f"{function}~{number}:{arm}"


def repeated(function: str, iterations: tuple[int, ...]) -> str:
    """The function of sites in these iterations of the `loop`s and `map`s around, outermost first."""
    return "@".join([function, *map(str, iterations)])


def in_comprehension(function: str, turns: int) -> bool:
    """Whether one of the `turns` (`loop`s and `map`s) around a site of this function is no structured form."""
    return sum(":" not in form for form in function.split("~")[1:]) < turns


class _Read:
    """What an op reads and holds, once that was asked for: every pass asks often, and an op never changes.

    It is asked for by `getattr`, as an exception where it is not there yet takes longer than to find it out.
    """

    __slots__ = ("_inputs", "_operands", "_regions")
    _inputs: tuple[Value, ...]
    _operands: tuple[Value, ...]
    _regions: tuple[Region, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Op(_Read):
    """Base of all ops. Fields of a subclass that hold `Value`s are operands, the others attributes."""

    mnemonic: ClassVar[str]
    result_types: ClassVar[tuple[Type, ...] | None]  # None: `ops.types_of` says it
    pure: ClassVar[bool]
    own_fields: ClassVar[tuple[str, ...]]  # all but `results` and `loc`
    region_fields: ClassVar[tuple[str, ...]]  # those that hold a region or several
    input_fields: ClassVar[tuple[str, ...]]  # those that may hold values, or data with values in it
    tree_fields: ClassVar[tuple[str, ...]]  # those that hold plain data with values in it

    results: tuple[Value, ...] = ()
    loc: Loc = field(default=NOWHERE, compare=False)


@made_often
@dataclass(frozen=True, slots=True)
class Region:
    """A block inside an op: the values it is given, its ops in order, and what its `yield` hands back.

    It reads whatever is defined before the op that holds it. Nothing outside reads what it defines.
    A region whose last op is `host_call` never comes to its `yield`.
    """

    params: tuple[Value, ...]
    ops: tuple[Op, ...]
    results: tuple[Value, ...] = ()
    loc: Loc = field(default=NOWHERE, compare=False)  # of the `yield`


class _Walked:
    """All ops of a program and their kinds, once that was asked for: most passes first ask whether theirs is
    there."""

    __slots__ = ("_all", "_kinds")
    _all: tuple[Op, ...]
    _kinds: frozenset[type[Op]]


# What a program gives back: values inside ordinary JSON-like data.
Tree = Value | str | int | float | bool | None | tuple["Tree", ...] | Mapping[str, "Tree"]


@made_often
@dataclass(frozen=True, slots=True)
class Program(_Walked):
    """A function's ops in order. `params` are `arg` and `resume` ops; every other op is in `ops`.

    `outputs` are the variables that are asked for, beside what it returns; None: all, and its prompt.
    """

    name: str
    params: tuple[Op, ...]
    ops: tuple[Op, ...]
    returns: Tree = field(default=None, hash=False)  # it may hold mappings
    outputs: tuple[str, ...] | None = None


OPS: dict[str, type[Op]] = {}
_HOLDING: set[type[Op]] = set()  # those that hold other ops
_ID, _RESULTS = attrgetter("id"), attrgetter("results")
_PLAIN = frozenset((str, int, float, bool, type(None)))  # data that holds no values
_HOLDS_REGIONS = ("Region", "Region | None", "tuple[Region, ...]")
_HOLDS_TREES = ("Tree", "tuple[Tree, ...]", "Mapping[str, Tree]")
_O = TypeVar("_O", bound=type[Op])


def _reads(annotation: Any) -> bool:
    return "Value" in annotation or "Tree" in annotation


@dataclass_transform(frozen_default=True)
def op(mnemonic: str, *results: Type, pure: bool = False, variadic: bool = False) -> Callable[[_O], _O]:
    """Declare an op: its text form, what it yields, and whether equal ones may be merged."""

    def register(cls: _O) -> _O:
        made = cast(_O, dataclass(frozen=True, slots=True)(cls))
        if made.__module__.startswith("sglc.") and all(f.default_factory is MISSING for f in fields(made)):
            made = cast(_O, made_often(made))
        made.mnemonic = mnemonic
        made.result_types = None if variadic else results
        made.pure = pure
        made.own_fields = tuple(f.name for f in fields(made) if f.name not in ("results", "loc"))
        nested = {f.name for f in fields(made) if f.type in _HOLDS_REGIONS}
        made.region_fields = tuple(name for name in made.own_fields if name in nested)
        assert not nested or made.own_fields[-len(nested) :] == made.region_fields, mnemonic  # `operands`
        made.input_fields = tuple(f.name for f in fields(made) if f.name in made.own_fields and _reads(f.type))
        made.tree_fields = tuple(f.name for f in fields(made) if f.type in _HOLDS_TREES)
        OPS[mnemonic] = made
        if nested or "program" in made.own_fields:
            _HOLDING.add(made)
        return made

    return register


def operands(o: Op) -> tuple[Value, ...]:
    """Every value the op reads, in field order; what its regions read from outside is among them."""
    known: tuple[Value, ...] | None = getattr(o, "_operands" if o.region_fields else "_inputs", None)
    if known is None:
        known = inputs(o)
        if o.region_fields:  # which are the last
            known = (*known, *chain.from_iterable(map(_from_outside, regions(o))))
            object.__setattr__(o, "_operands", known)
    return known


def inputs(o: Op) -> tuple[Value, ...]:
    """The values that the op itself reads, in field order, without those of its regions."""
    known: tuple[Value, ...] | None = getattr(o, "_inputs", None)
    if known is None:
        found: list[Value] = []
        for name in o.input_fields:
            item = getattr(o, name)
            if type(item) is Value:
                found.append(item)
            elif item and type(item) not in _PLAIN:
                found += values_in(item)
        known = tuple(found)
        object.__setattr__(o, "_inputs", known)
    return known


def values_in(item: object) -> Iterator[Value]:
    """Every value inside a field or a return tree, depth first; of a region what it reads from outside."""
    match item:
        case Value():
            yield item
        case tuple():
            for part in item:
                if type(part) is Value:
                    yield part
                elif type(part) not in _PLAIN:
                    yield from values_in(part)
        case str() | None:
            return
        case Region():
            yield from _from_outside(item)
        case Mapping():
            for part in item.values():
                yield from values_in(part)


def _from_outside(region: Region) -> list[Value]:
    """What a region reads of what stands before the op that holds it."""
    inner, reads = set(region.params), list[Value]()
    for op in region.ops:
        inner.update(op.results)
        reads += operands(op)
    return [value for value in (*reads, *region.results) if value not in inner]


def substitute(item: Any, rename: Mapping[Value, Value]) -> Any:
    """`item` (a field or a return tree) with every value replaced as `rename` says, in regions too."""
    if not rename:
        return item
    match item:
        case Value():
            return rename.get(item, item)
        case tuple():
            return tuple(substitute(part, rename) for part in item)
        case str() | None:
            return item
        case Region():
            return replaced(
                item,
                params=substitute(item.params, rename),
                ops=tuple(renamed(op, rename) for op in item.ops),
                results=substitute(item.results, rename),
            )
        case Mapping():
            return {key: substitute(part, rename) for key, part in item.items()}
        case _:
            return item


def content(o: Op) -> tuple[Any, ...]:
    """What the op is without what it gives and its place: equal for ops that make the same of the same."""
    return (o.mnemonic, *[getattr(o, name) for name in o.own_fields])


def renamed(o: Op, rename: Mapping[Value, Value]) -> Op:
    """The op with every value replaced as `rename` says: what it reads, what it gives, and in its regions."""
    names = (*o.input_fields, *o.region_fields)
    changed = {name: substitute(getattr(o, name), rename) for name in names}
    return replaced(o, results=substitute(o.results, rename), **changed)


def reading(o: Op, rename: Mapping[Value, Value]) -> Op:
    """The op with what it reads by itself replaced as `rename` says; its regions and results stay."""
    if not rename or rename.keys().isdisjoint(inputs(o)):
        return o
    return replaced(o, **{name: substitute(getattr(o, name), rename) for name in o.input_fields})


def regions(o: Op) -> tuple[Region, ...]:
    """The op's own regions in the order of the text."""
    if not o.region_fields:
        return ()
    known: tuple[Region, ...] | None = getattr(o, "_regions", None)
    if known is None:
        found: list[Region] = []
        for name in o.region_fields:
            held = getattr(o, name)
            found += (held,) if isinstance(held, Region) else held or ()
        known = tuple(found)
        object.__setattr__(o, "_regions", known)
    return known


_Data = TypeVar("_Data", bound=Op | Region | Program)


def with_fields(o: _Data, **fields: Any) -> _Data:
    """`o` with these fields; `o` itself if they hold that already: what does not change is not made anew."""
    for name, new in fields.items():
        old = getattr(o, name)
        if old is new or (type(old) is type(new) is tuple and len(old) == len(new) and all(map(is_, old, new))):
            continue
        return replaced(o, **fields)
    return o


def with_regions(o: Op, change: Callable[[Region], Region], **changed: Any) -> Op:
    """The op with `change` made to each of its own regions, in the order of the text, and with these fields."""
    if not o.region_fields:
        return with_fields(o, **changed)
    before = regions(o)
    after = [change(region) for region in before]
    if all(map(is_, before, after)):
        return with_fields(o, **changed)
    left = iter(after)
    for name in o.region_fields:
        held = getattr(o, name)
        if held is not None:
            changed[name] = next(left) if isinstance(held, Region) else tuple(islice(left, len(held)))
    return replaced(o, **changed)


def walk(ops: Iterable[Op]) -> Iterator[Op]:
    """Every op, those in regions behind the op that holds them. A called program is not entered."""
    stack = [iter(ops)]
    while stack:
        for o in stack[-1]:
            yield o
            if o.region_fields:
                stack.append(chain.from_iterable([region.ops for region in regions(o)]))
                break
        else:
            stack.pop()


def kinds(program: Program) -> frozenset[type[Op]]:
    """The kinds of its ops, those in blocks and in called programs included."""
    try:
        return program._kinds
    except AttributeError:
        object.__setattr__(program, "_kinds", frozenset(map(type, all_ops(program))))
        return program._kinds


def all_ops(program: Program) -> tuple[Op, ...]:
    """Its ops, and level by level those in blocks and in called programs. Does not recurse."""
    try:
        return program._all
    except AttributeError:
        found, level = list(program.ops), program.ops
        while not _HOLDING.isdisjoint(map(type, level)):
            holding = [op for op in level if type(op) in _HOLDING]
            level = tuple([inner for op in holding for held in _held(op) for inner in held.ops])
            found += level
        object.__setattr__(program, "_all", tuple(found))
        return program._all


def _held(o: Op) -> tuple[Region | Program, ...]:
    """What the op holds: blocks, or the program that it calls."""
    return regions(o) if o.region_fields else (o.program,)  # type: ignore[attr-defined]


def definitions(ops: Iterable[Op]) -> list[Value]:
    """Every value that is defined, regions included, in order: an op's results behind its regions' values."""
    found: list[Value] = []
    stack: list[Iterator[Op | tuple[Value, ...]]] = [iter(ops)]
    while stack:
        for o in stack[-1]:
            if isinstance(o, tuple):
                found += o
            elif o.region_fields:
                inner: list[Op | tuple[Value, ...]] = []
                for region in regions(o):
                    inner += (region.params, *region.ops)
                stack.append(iter([*inner, o.results]))
                break
            else:
                found += o.results
        else:
            stack.pop()
    return found


def fresh_ids(program: Program) -> Iterator[int]:
    """Ids as of `next_id`, which is not asked before the first is."""
    yield from count(next_id(program))


def next_id(program: Program) -> int:
    """The first id above all that the program uses, and the programs that it calls."""
    ops = (*program.params, *all_ops(program))
    given = [region.params for op in ops if op.region_fields for region in regions(op)]
    return 1 + max(map(_ID, chain.from_iterable((*map(_RESULTS, ops), *given))), default=-1)
