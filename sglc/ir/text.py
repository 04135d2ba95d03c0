"""The text form of a program: printed here, parsed by `sglc.ir.parse` with `grammar.lark`.

Python-looking, one op a line, values renumbered at print time, so one program always prints the
same bytes. The text without locations is a program's identity.
"""

from __future__ import annotations

import hashlib
import keyword
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, replace

from sglc.errors import Loc
from sglc.ir.core import Op, Program, Site, Type, Value, attributes, substitute
from sglc.ir.ops import Arg
from sglc.ir.sampling import Sampling

_PREFIX = {Type.STREAM: "s", Type.TEXT: "t", Type.LIST: "l"}
_DEFAULT_SAMPLING = Sampling()
_SAMPLING = tuple((f.name, f.type == "float") for f in fields(Sampling))


def to_text(program: Program, *, locs: bool = False) -> str:
    """The program as text, ending in a newline; with `locs`, each line ends in where it comes from."""
    names = value_names(program)
    title = program.name if program.name.isidentifier() else repr(program.name)
    head = f"def {title}({', '.join(_param(op, names) for op in program.params)}):"
    lines = [head + (_param_trailer(program.params) if locs else "")]
    for op in program.ops:
        line = f"    {_statement(op, program.name, names)}"
        lines.append(f"{line}  # {_loc_text(op.loc)}" if locs else line)
    lines.append("    return" + ("" if program.returns is None else f" {_item(program.returns, names)}"))
    return "\n".join(lines) + "\n"


def from_text(text: str, filename: str) -> Program:
    """The program that `text` describes, with values numbered in order of definition.

    An op without a location trailer gets its place in `filename`. Checks syntax, names and the
    types of fields; `verify` checks the rest.

    Raises:
        VerifyError: SGLC201 syntax; SGLC202 an unknown op or a field that does not fit; SGLC203 an
            unknown name; SGLC204 a name assigned twice; SGLC206 a wrong number of results.
    """
    from sglc.ir.parse import parse

    return parse(text, filename)


def identity(program: Program) -> str:
    """Hash of the program's text without locations (hex): equal for equal programs, on any machine."""
    return hashlib.sha256(to_text(program).encode("utf-8", "surrogatepass")).hexdigest()


def canonical(program: Program) -> Program:
    """The same program with values numbered from 0 in order of definition, as `from_text` numbers them."""
    rename: dict[Value, Value] = {}
    for op in (*program.params, *program.ops):
        for value in op.results:
            rename[value] = Value(len(rename), value.type)

    def renamed(op: Op) -> Op:
        changed = {name: substitute(item, rename) for name, item in attributes(op)}
        return replace(op, results=tuple(rename[value] for value in op.results), **changed)

    return Program(
        program.name,
        tuple(renamed(op) for op in program.params),
        tuple(renamed(op) for op in program.ops),
        substitute(program.returns, rename),
    )


def value_names(program: Program) -> dict[int, str]:
    """How the printer calls each value: `s0` streams, `t0` texts, `l0` lists, arguments by their own names."""
    taken = {op.name for op in program.params if isinstance(op, Arg) and plain(op.name)}
    counts = dict.fromkeys(Type, 0)
    names: dict[int, str] = {}
    for op in (*program.params, *program.ops):
        if isinstance(op, Arg) and plain(op.name) and op.results:
            names[op.results[0].id] = op.name
            continue
        for value in op.results:
            while (name := f"{_PREFIX[value.type]}{counts[value.type]}") in taken:
                counts[value.type] += 1
            counts[value.type] += 1
            names[value.id] = name
    return names


def plain(name: str) -> bool:
    """Whether a parameter can be printed under its own name: an identifier that means nothing else."""
    return name.isidentifier() and not keyword.iskeyword(name) and name not in ("nan", "inf")


def statement(op: Op, program: Program, names: Mapping[int, str]) -> str:
    """One op as it stands in the text of `program`, without indentation and location."""
    return _statement(op, program.name, names)


def _param(op: Op, names: Mapping[int, str]) -> str:
    name = ", ".join(names[value.id] for value in op.results)
    match op:
        case Arg() if plain(op.name):
            return name
        case _:
            return f"{name}: {_call(op, '', names)}"


def _param_trailer(params: tuple[Op, ...]) -> str:
    """One location for all parameters where they share it, else one each."""
    marks = [_loc_text(op.loc) for op in params]
    return f"  # {' '.join(marks[:1] if len(set(marks)) == 1 else marks)}" if marks else ""


def _statement(op: Op, function: str, names: Mapping[int, str]) -> str:
    left = ", ".join([names[value.id] for value in op.results])
    call = _call(op, function, names)
    return f"{left} = {call}" if left else call


def _call(op: Op, function: str, names: Mapping[int, str]) -> str:
    positional: list[str] = []
    keywords: list[str] = []
    for field in fields(op):
        if field.name in ("results", "loc"):
            continue
        item = getattr(op, field.name)
        match item:
            case Site():
                positional.append(repr(item.name))
                keywords += _site_keywords(item, function)
            case Sampling():
                keywords += _sampling_keywords(item)
            case _ if field.default is MISSING:
                positional.append(_item(item, names))
            case _ if item != field.default:
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


def _loc_text(loc: Loc) -> str:
    """`file:line:column-end`, white space and `%` in the file name escaped."""
    file = re.sub(r"[\s%]", lambda m: "".join(f"%{byte:02X}" for byte in m[0].encode()), loc.file)
    text = f"{file}:{loc.line}"
    if loc.column or loc.end_column:
        text += f":{loc.column}"
    return f"{text}-{loc.end_column}" if loc.end_column else text


def loc_of(trailer: str) -> Loc | None:
    """The location that one word of a trailer spells; None if it spells none."""
    found = re.fullmatch(r"(\S+?):(\d+)(?::(\d+)(?:-(\d+))?)?", trailer)
    if found is None:
        return None
    file = re.sub(r"(?:%[0-9A-F]{2})+", lambda m: bytes.fromhex(m[0].replace("%", "")).decode(), found[1])
    return Loc(file, int(found[2]), int(found[3] or 0), int(found[4] or 0))
