"""Text to program: the text is cut into calls and blocks, and the op classes say what each may hold."""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, cast

from lark import Token

from sglc.errors import Loc, VerifyError
from sglc.ir.core import OPS, Op, Program, Region, Site, Tree, Type, Value
from sglc.ir.depth import MAX_BRACKETS, MAX_DEPTH, with_room
from sglc.ir.ops import GIVES, ORDERS, Arg, Guard, Loop, Map, Resume, types_of
from sglc.ir.sampling import Sampling
from sglc.ir.text.lexer import MAX_DIGITS, Arm, CallText, Digits, LexedBlock, Line, Source, cut
from sglc.ir.text.syntax import IR_VERSION, loc_of, required


@with_room
def parse(text: str, filename: str) -> Program:
    """See `sglc.ir.text.printer.from_text`."""
    is_file = Path(filename).exists()
    if is_file:
        linecache.cache.pop(filename, None)  # lines of a text that had its name
    try:
        _check_version(text, filename)
        return _Builder(filename).program(cut(text, filename))
    except VerifyError as error:
        problem = error
    # The text may come from a pipe or a test: keep its lines where the caret is drawn from.
    if not is_file:
        linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    raise problem


def _check_version(text: str, filename: str) -> None:
    found = re.match(r"#[ \t]*sglir[ \t]+(\S+)", text)
    if found is not None and found[1] != str(IR_VERSION):
        raise VerifyError(
            "SGLC214", f"this text has IR version `{found[1]}`, and this sglc reads `{IR_VERSION}`",
            Loc(filename, 1, found.start(1) + 1, found.end(1) + 1),
            hint="print the program again from its source",
        )  # fmt: skip


_Check = Callable[[Any], bool]


def _whole(item: Any) -> bool:
    return isinstance(item, int) and not isinstance(item, bool)


def _text(item: Any) -> bool:
    return isinstance(item, str) and not isinstance(item, Token)


def _all(check: _Check) -> _Check:
    return lambda item: isinstance(item, tuple) and all(check(part) for part in item)


def _value(item: Any) -> bool:
    return isinstance(item, Value)


def _number(item: Any) -> bool:
    return isinstance(item, float) or (_whole(item) and abs(item) < 1e300)


def _tree(item: Any) -> bool:
    match item:
        case tuple():
            return all(_tree(part) for part in item)
        case Mapping():
            return all(_text(key) and _tree(part) for key, part in item.items())
        case _:
            return item is None or isinstance(item, bool) or _number(item) or _text(item) or _value(item)


# What a field's annotation admits, and how an error calls it. A new kind of field needs a row here.
_ADMITS: dict[str, tuple[_Check, str]] = {
    "str": (_text, "a string"),
    "str | None": (lambda item: item is None or _text(item), "a string or None"),
    "int": (_whole, "an integer"),
    "float": (_number, "a number"),
    "bool": (lambda item: isinstance(item, bool), "True or False"),
    "int | None": (lambda item: item is None or _whole(item), "an integer or None"),
    "Value": (_value, "a value"),
    "Value | None": (lambda item: item is None or _value(item), "a value or None"),
    "Value | str": (lambda item: _value(item) or _text(item), "a value or a string"),
    "tuple[str, ...]": (_all(_text), "a tuple of strings"),
    "tuple[int, ...]": (_all(_whole), "a tuple of integers"),
    "tuple[Value, ...]": (_all(_value), "a tuple of values"),
    "tuple[Value | str, ...]": (
        _all(lambda item: _value(item) or _text(item)),
        "a tuple of values and strings",
    ),
    "tuple[tuple[int, float], ...]": (
        _all(lambda item: isinstance(item, tuple) and len(item) == 2 and _whole(item[0]) and _number(item[1])),
        "a tuple of pairs of an id and a number",
    ),
    "Tree": (_tree, "a value, or plain data with values in it"),
    "tuple[Tree, ...]": (_all(_tree), "a tuple of values and plain data"),
    "Mapping[str, Tree]": (
        lambda item: isinstance(item, Mapping) and _tree(item),
        "names with values or plain data",
    ),
    "tuple[Value | None, ...]": (_all(lambda item: item is None or _value(item)), "a tuple of values and None"),
    "Order": (lambda item: _text(item) and item in ORDERS, f"one of {', '.join(map(repr, ORDERS))}"),
    "Gives": (lambda item: _text(item) and item in GIVES, f"one of {', '.join(map(repr, GIVES))}"),
}


# Fields that are written behind the op's colon.
_BLOCKS: dict[str, tuple[str, ...]] = {
    "cond": ("then", "orelse"),
    "switch": ("cases", "arms", "default"),
    "loop": ("body",),
    "map": ("body",),
    "call": ("program",),
}
_BLOCKS_AS_WRITTEN = {
    "cond": "two blocks with `else:` between them",
    "switch": "a `case` for each text, and perhaps `case _:` at the end",
    "loop": "one block, with `as` and a name for each value before the colon",
    "map": "one block, with `as` and a name for the item before the colon",
    "call": "a whole program, `def` to `return`",
}


@dataclass(frozen=True, slots=True)
class _Part:
    """One thing that a call may give: its own name, the op's field, and what it must be."""

    name: str
    field: str
    check: _Check
    kind: str


@dataclass(frozen=True, slots=True)
class _Shape:
    positional: tuple[_Part, ...]
    keywords: Mapping[str, _Part]
    site: str  # the field that holds a `Site`, "" without one
    sampling: str


@cache
def _shape(mnemonic: str) -> _Shape:
    positional: list[_Part] = []
    keywords: dict[str, _Part] = {}
    holds = {"Site": "", "Sampling": ""}

    def keyword(name: str, field: str, kind: str) -> None:
        keywords[name] = _Part(name, field, *_ADMITS[kind])

    for field in fields(OPS[mnemonic]):
        kind = str(field.type)
        if field.name in ("results", "loc", *_BLOCKS.get(mnemonic, ())):
            continue
        if kind in holds:
            holds[kind] = field.name
        if kind == "Site":
            positional.append(_Part("name", field.name, *_ADMITS["str"]))
            keyword("fork", field.name, "tuple[int, ...]")
            keyword("occurrence", field.name, "int")
            keyword("function", field.name, "str")
        elif kind == "Sampling":
            for inner in fields(Sampling):
                keyword(inner.name, field.name, str(inner.type))
        elif required(field):
            positional.append(_Part(field.name, field.name, *_ADMITS[kind]))
        else:
            keyword(field.name, field.name, kind)
    return _Shape(tuple(positional), keywords, holds["Site"], holds["Sampling"])


class _Builder:
    """Turns the cut text into ops: resolves names, numbers values, checks fields and columns."""

    def __init__(self, filename: str, depth: int = 0) -> None:
        self.filename = filename
        self.depth = depth
        self.function = ""
        self.scope: dict[str, Value] = {}
        self.ended: dict[str, Value] = {}  # names of blocks that have ended: they stay taken
        self.count = 0

    def program(self, source: Source) -> Program:
        self.function = source.title
        words = source.comment.lstrip("# ").split()
        locs = [loc for word in words if (loc := loc_of(word)) is not None]
        if len(locs) == 1:  # one for all
            locs *= len(source.params)
        given = locs if len(locs) == len(source.params) else [None] * len(source.params)
        params = tuple(self.param(*param, loc) for param, loc in zip(source.params, given, strict=True))
        self.column([*(line.first for line in source.lines), source.end], source.start)
        ops = tuple(self.op(line) for line in source.lines)
        returns = cast(Tree, self.resolve(source.returns, source.end))
        return Program(source.title, params, ops, returns, source.outputs)

    def param(self, name: Token, call: CallText | None, given: Loc | None) -> Op:
        loc = given or self.loc(name, name)
        if call is None:
            return Arg(str(name), results=(self.new(name, Type.TEXT),), loc=loc)
        kind = self.kind(call)
        if kind not in (Arg, Guard, Resume):
            note = "parameters: arg, guard, resume"
            raise self.error("SGLC202", f"`{call.op}` is no parameter", call.op, note=note)
        fields = self.fields(kind, call)
        if kind is Guard:
            return Guard(**fields, loc=loc)
        return kind(**fields, results=self.define((name,), kind(**fields), call.op), loc=loc)

    def op(self, line: Line) -> Op:
        kind, at = self.kind(line.call), line.call.op
        loc = loc_of(line.comment.lstrip("#").strip()) or self.loc(line.first, at)
        # Fields and blocks before results: an op cannot read what it makes.
        fields = self.fields(kind, line.call)
        fields |= self.blocks(kind, line, fields)
        return kind(**fields, results=self.define(line.names, kind(**fields), at), loc=loc)

    # -- blocks --------------------------------------------------------------------------------------

    def blocks(self, kind: type[Op], line: Line, made: Mapping[str, Any]) -> dict[str, Any]:
        """What stands behind the op's colon, as the fields that hold it."""
        at = line.call.op
        if line.binding and kind not in (Loop, Map):
            raise self.error("SGLC202", f"`{at}` gives its blocks no values", line.binding[0])
        if line.body and self.depth >= MAX_DEPTH:
            raise self.error("SGLC217", f"`{at}` stands in more than {MAX_DEPTH} blocks", at)
        match kind.mnemonic, line.body:
            case "cond", (LexedBlock() as then, Token() as middle, LexedBlock() as orelse):
                self.beside(middle, line.first)
                return {"then": self.block(then, line.first), "orelse": self.block(orelse, line.first)}
            case "switch", (*arms, Token(type="CASE") as last, LexedBlock() as default):
                return self.arms(arms, line.first, last) | {"default": self.block(default, last)}
            case "switch", (Arm(), *_) as arms:
                return self.arms(arms, line.first)
            case "loop", (LexedBlock() as body,):
                types = tuple(value.type for value in made["init"])
                return {"body": self.block(body, line.first, self.bound(line, types), types)}
            case "map", (LexedBlock() as body,):
                types = (Type.JSON if made["items"].type is Type.JSON else Type.TEXT,)
                return {"body": self.block(body, line.first, self.bound(line, types), types)}
            case "call", (Source() as program,):
                self.column([program.start], line.first)
                return {"program": _Builder(self.filename, self.depth + 1).program(program)}
            case name, body if body or name in _BLOCKS:
                wanted = _BLOCKS_AS_WRITTEN.get(name, "nothing")
                raise self.error(
                    "SGLC202", f"the blocks of `{at}` do not fit", at, note=f"`{at}` takes {wanted}"
                )
            case _:
                return {}

    def arms(self, parts: Sequence[object], above: Token, *last: Token) -> dict[str, Any]:
        arms = cast(Sequence[Arm], parts)
        self.column([*(arm.start for arm in arms), *last], above)
        return {
            "cases": tuple(arm.case for arm in arms),
            "arms": tuple(self.block(arm.block, arm.start) for arm in arms),
        }

    def bound(self, line: Line, types: tuple[Type, ...]) -> tuple[Token, ...]:
        if len(line.binding) != len(types):
            at = line.binding[0] if line.binding else line.call.op
            raise self.error(
                "SGLC202", f"`{line.call.op}` gives its block {len(types)} values, not {len(line.binding)}", at,
                note=f"`{line.call.op}` takes {_BLOCKS_AS_WRITTEN[str(line.call.op)]}",
            )  # fmt: skip
        return line.binding

    def block(
        self, block: LexedBlock, above: Token, names: tuple[Token, ...] = (), types: tuple[Type, ...] = ()
    ) -> Region:
        self.column([*(line.first for line in block.lines), block.end], above)
        outside = len(self.scope)
        self.depth += 1
        params = tuple(self.new(name, kind) for name, kind in zip(names, types, strict=True))
        ops = tuple(self.op(line) for line in block.lines)
        results = tuple(self.value(name) for name in block.results)
        self.depth -= 1
        while len(self.scope) > outside:
            name, value = self.scope.popitem()
            self.ended[name] = value
        loc = loc_of(block.comment.lstrip("#").strip()) or self.loc(block.end, block.end)
        return Region(params, ops, results, loc)

    def column(self, starts: Sequence[Token], above: Token) -> None:
        """The lines of a block stand in one column, deeper than the line above them."""
        first = starts[0].column
        for start in starts:
            if start.column != first or (start.column or 0) <= (above.column or 0):
                raise self.error(
                    "SGLC201", f"`{start}` is not indented like a line of its block", start,
                    note=f"the block begins at line {above.line}",
                )  # fmt: skip

    def beside(self, start: Token, head: Token) -> None:
        if start.column != head.column:
            raise self.error(
                "SGLC201", f"`{start}` is not indented like the line that it belongs to", start,
                note=f"that is line {head.line}",
            )  # fmt: skip

    # -- calls ---------------------------------------------------------------------------------------

    def kind(self, call: CallText) -> type[Op]:
        kind = OPS.get(str(call.op))
        if kind is None:
            known = ", ".join(sorted(OPS))
            raise self.error("SGLC202", f"unknown op `{call.op}`", call.op, note=f"known: {known}")
        return kind

    def fields(self, kind: type[Op], call: CallText) -> dict[str, Any]:
        """The op's own fields, as the call gives them."""
        shape = _shape(kind.mnemonic)
        made: dict[str, Any] = {}
        site: dict[str, Any] = {}
        sampling: dict[str, Any] = {}
        for part, item in self.matched(shape, call):
            item = self.resolve(item, call.op)
            if not part.check(item):
                raise self.error("SGLC202", f"`{part.name}` of `{call.op}` is not {part.kind}", call.op)
            if part.field == shape.site:
                site[part.name] = item
            elif part.field == shape.sampling:
                sampling[part.name] = item
            else:
                made[part.field] = item
        if shape.site:
            made[shape.site] = Site(
                site.get("function", self.function),
                site.get("fork", ()),
                site["name"],
                site.get("occurrence", 0),
            )
        if shape.sampling:
            made[shape.sampling] = Sampling(**sampling)
        return made

    def matched(self, shape: _Shape, call: CallText) -> Iterator[tuple[_Part, Any]]:
        """Each thing given in the call with the part that it fills."""
        if len(call.positional) != len(shape.positional):
            wanted = ", ".join(part.name for part in shape.positional) or "nothing"
            raise self.error(
                "SGLC202",
                f"`{call.op}` takes {len(shape.positional)} unnamed items, not {len(call.positional)}",
                call.op,
                note=f"in order: {wanted}",
            )
        yield from zip(shape.positional, call.positional, strict=True)
        seen: set[str] = set()
        for name, item in call.keywords:
            part = shape.keywords.get(str(name))
            if part is None or str(name) in seen:
                problem = "is given twice" if part else "is unknown"
                known = ", ".join(shape.keywords) or "none"
                raise self.error("SGLC202", f"`{name}` of `{call.op}` {problem}", name, note=f"known: {known}")
            seen.add(str(name))
            yield part, item

    def resolve(self, item: Any, at: Token, depth: int = 0) -> Any:
        """`item` with names replaced by their values; `at` is where to point for what has no place."""
        if depth > MAX_BRACKETS:
            raise self.error("SGLC216", f"brackets stand in more than {MAX_BRACKETS} others", at)
        match item:
            case Token():
                return self.value(item)
            case tuple():
                return tuple(self.resolve(part, at, depth + 1) for part in item)
            case dict():
                return {key: self.resolve(part, at, depth + 1) for key, part in item.items()}
            case Digits():
                raise self.error("SGLC202", f"a number has more than {MAX_DIGITS} digits", at)
            case _:
                return item

    # -- values --------------------------------------------------------------------------------------

    def value(self, name: Token) -> Value:
        value = self.scope.get(str(name))
        if value is None:
            note = "the block that defines it has ended; `yield` hands values out" if name in self.ended else ""
            raise self.error("SGLC203", f"`{name}` is not defined before this line", name, note=note)
        return value

    def define(self, names: Sequence[Token], made: Op, at: Token) -> tuple[Value, ...]:
        types = types_of(made, len(names))
        if len(types) != len(names):
            wanted = ", ".join(types) or "nothing"
            raise self.error("SGLC206", f"`{at}` gives {wanted}, and {len(names)} names take it", at)
        return tuple(self.new(name, kind) for name, kind in zip(names, types, strict=True))

    def new(self, name: Token, kind: Type) -> Value:
        if str(name) in self.scope or str(name) in self.ended:
            raise self.error("SGLC204", f"`{name}` is defined twice", name)
        value = Value(self.count, kind)
        self.count += 1
        self.scope[str(name)] = value
        return value

    def loc(self, first: Token, last: Token) -> Loc:
        assert first.line is not None
        assert first.column is not None
        return Loc(self.filename, first.line, first.column, last.end_column or 0)

    def error(self, code: str, message: str, at: Token, *, note: str = "") -> VerifyError:
        return VerifyError(code, message, self.loc(at, at), note=note)
