"""The text form of a program: printed here, parsed by `sglc.ir.text.parser` with `grammar.lark`.

Python-looking, one op a line, blocks indented, values renumbered at print time, so one program
always prints the same bytes. The text without locations is a program's identity.

    s3, t1 = cond(b0):                   l0 = map(l1) as t4:
        yield s1, t0                         yield t4
    else:                                s5, t7 = loop((s3, t1), 8) as s4, t5:
        yield s2, a                          yield b1, s4, t6
    t2 = switch(a):                      t3 = call('judge', (a,)):
        case 'x':                            def judge(essay):
            yield a                              return essay
        case _:
            yield t1
"""

from __future__ import annotations

import hashlib
import keyword
import math
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields
from itertools import count, filterfalse
from typing import Any

from sglc.errors import Loc
from sglc.ir.core import Op, Program, Region, Site, Type, Value, definitions
from sglc.ir.depth import check_depth, with_room
from sglc.ir.ops import Arg, Call, Cond, Guard, Loop, Map, Switch
from sglc.ir.sampling import Sampling
from sglc.ir.text.syntax import IR_VERSION, _loc_text, required

_PREFIX = {Type.STREAM: "s", Type.TEXT: "t", Type.LIST: "l", Type.BOOL: "b", Type.JSON: "j"}
_STEP = "    "
_UNPRINTED = ("results", "loc", "cases", "program")  # these, and regions, stand elsewhere than in the call
_DEFAULT_SAMPLING = Sampling()
_SAMPLING = tuple((f.name, f.type == "float") for f in fields(Sampling))


@with_room
def to_text(program: Program, *, locs: bool = False) -> str:
    """The program as text, ending in a newline; with `locs`, each line ends in where it comes from.

    Raises:
        VerifyError: SGLC216, SGLC217, it is too deep to have a text.
    """
    check_depth(program)
    printer = _Printer(locs)
    printer.program(program, "")
    return "\n".join([f"# sglir {IR_VERSION}", *printer.lines]) + "\n"


def from_text(text: str, filename: str) -> Program:
    """The program that `text` describes, with values numbered in order of definition.

    An op without a location trailer gets its place in `filename`. Checks syntax, names and the
    types of fields; `verify` checks the rest. A text without a version line has this version.

    Raises:
        VerifyError: SGLC201 syntax, or lines that are not indented as their blocks; SGLC202 an
            unknown op, or a field or block that does not fit; SGLC203 an unknown name; SGLC204 a
            name assigned twice; SGLC206 a wrong number of results; SGLC214 another version;
            SGLC216 too many brackets in brackets; SGLC217 too many blocks in blocks.
    """
    from sglc.ir.text.parser import parse

    return parse(text, filename)


def identity(program: Program) -> str:
    """Hash of the program's text without locations (hex): equal for equal programs, on any machine."""
    return hashlib.sha256(to_text(program).encode("utf-8", "surrogatepass")).hexdigest()


def value_names(program: Program) -> dict[int, str]:
    """How the printer calls each value: a letter for its type and a number, arguments by their own names."""
    own = {
        op.results[0].id: op.name
        for op in program.params
        if isinstance(op, Arg) and plain(op.name) and op.results
    }
    taken = {op.name for op in program.params if isinstance(op, Arg) and plain(op.name)}
    numbered = {kind: map(_PREFIX[kind].__add__, map(str, count())) for kind in Type}
    free = {kind: filterfalse(taken.__contains__, names) for kind, names in numbered.items()}
    values = definitions((*program.params, *program.ops))
    return {value.id: own.get(value.id) or next(free[value.type]) for value in values}


def plain(name: str) -> bool:
    """Whether a parameter can be printed under its own name: an identifier that means nothing else."""
    return name.isidentifier() and not keyword.iskeyword(name) and name not in ("nan", "inf")


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


class _Printer:
    """Collects the lines of a program and of the programs that it calls."""

    def __init__(self, locs: bool) -> None:
        self.locs = locs
        self.lines: list[str] = []

    def program(self, program: Program, indent: str) -> None:
        names = value_names(program)
        title = program.name if program.name.isidentifier() else repr(program.name)
        head = f"{indent}def {title}({', '.join(_param(op, names) for op in program.params)})"
        head += ":" if program.outputs is None else f" -> {program.outputs!r}:"
        self.lines.append(head + (_param_trailer(program.params) if self.locs else ""))
        for op in program.ops:
            self.op(op, program.name, names, indent + _STEP)
        returns = "" if program.returns is None else f" {_item(program.returns, names)}"
        self.lines.append(f"{indent}{_STEP}return{returns}")

    def op(self, op: Op, function: str, names: Mapping[int, str], indent: str) -> None:
        line = indent + statement(op, function, names)
        if not op.region_fields and not isinstance(op, Call):
            self.add(line, op.loc)
            return
        inside = indent + _STEP
        match op:
            case Loop() | Map():
                bound = ", ".join([names[value.id] for value in op.body.params])
                self.add(f"{line} as {bound}:" if bound else f"{line}:", op.loc)
                self.region(op.body, function, names, inside)
            case Cond():
                self.add(f"{line}:", op.loc)
                self.region(op.then, function, names, inside)
                self.lines.append(f"{indent}else:")
                self.region(op.orelse, function, names, inside)
            case Switch():
                self.add(f"{line}:", op.loc)
                for case, arm in zip(op.cases, op.arms, strict=True):
                    self.lines.append(f"{inside}case {case!r}:")
                    self.region(arm, function, names, inside + _STEP)
                if op.default is not None:
                    self.lines.append(f"{inside}case _:")
                    self.region(op.default, function, names, inside + _STEP)
            case Call():
                self.add(f"{line}:", op.loc)
                self.program(op.program, inside)
            case _:
                raise AssertionError(op.mnemonic)

    def region(self, region: Region, function: str, names: Mapping[int, str], indent: str) -> None:
        for op in region.ops:
            self.op(op, function, names, indent)
        results = ", ".join([names[value.id] for value in region.results])
        self.add(f"{indent}yield {results}" if results else f"{indent}yield", region.loc)

    def add(self, line: str, loc: Loc) -> None:
        self.lines.append(f"{line}  # {_loc_text(loc)}" if self.locs else line)


def _param(op: Op, names: Mapping[int, str]) -> str:
    name = ", ".join(names[value.id] for value in op.results)
    match op:
        case Arg(kind="str", default=None, holds=None) if plain(op.name):
            return name
        case Guard():
            return f"_: {_call(op, '', names)}"
        case _:
            return f"{name}: {_call(op, '', names)}"


def _param_trailer(params: tuple[Op, ...]) -> str:
    """One location for all parameters where they share it, else one each."""
    marks = [_loc_text(op.loc) for op in params]
    return f"  # {' '.join(marks[:1] if len(set(marks)) == 1 else marks)}" if marks else ""


def statement(op: Op, function: str, names: Mapping[int, str]) -> str:
    """One op's own line in the text of a program called `function`, without indentation, colon and location."""
    left = ", ".join([names[value.id] for value in op.results])
    call = _call(op, function, names)
    return f"{left} = {call}" if left else call


def _call(op: Op, function: str, names: Mapping[int, str]) -> str:
    positional: list[str] = []
    keywords: list[str] = []
    for field in fields(op):
        if field.name in _UNPRINTED or field.name in op.region_fields:
            continue
        item = getattr(op, field.name)
        match item:
            case Site():
                positional.append(repr(item.name))
                keywords += _site_keywords(item, function)
            case Sampling():
                keywords += _sampling_keywords(item)
            case _ if required(field):
                positional.append(_item(item, names))
            case _ if item != _default(field):
                keywords.append(f"{field.name}={_item(item, names)}")
    return f"{op.mnemonic}({', '.join(positional + keywords)})"


def _site_keywords(site: Site, function: str) -> Iterator[str]:
    if site.fork:
        yield f"fork={site.fork!r}"
    if site.occurrence:
        yield f"occurrence={site.occurrence}"
    if site.function != function:
        yield f"function={site.function!r}"


def _sampling_keywords(sampling: Sampling) -> Iterator[str]:
    for name, real in _SAMPLING:
        item = getattr(sampling, name)
        if item != getattr(_DEFAULT_SAMPLING, name):
            # `temperature=0` and `temperature=0.0` are one program, so they are one text.
            yield f"{name}={float(item) if real else item!r}"


def _item(item: object, names: Mapping[int, str]) -> str:
    match item:
        case Value():
            return names[item.id]
        case tuple():
            inner = ", ".join([_item(part, names) for part in item])
            return f"({inner},)" if len(item) == 1 else f"({inner})"
        case Mapping():
            return "{" + ", ".join(f"{key!r}: {_item(part, names)}" for key, part in item.items()) + "}"
        case float() if math.isnan(item):
            return "nan"
        case _:
            return repr(item)
