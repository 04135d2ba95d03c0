"""Text to program: lark cuts the text into calls, and the op classes say what each call may hold."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, cast

from lark import Lark, Token, Transformer, UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from sglc.errors import Loc, VerifyError
from sglc.ir.core import OPS, Op, Program, Site, Tree, Type, Value
from sglc.ir.ops import Arg, Resume
from sglc.ir.sampling import Sampling
from sglc.ir.text import loc_of


def parse(text: str, filename: str) -> Program:
    """See `sglc.ir.text.from_text`."""
    try:
        source = cast(_Source, _lark().parse(text))
        return _Builder(filename).program(source)
    except UnexpectedInput as error:
        problem = _syntax_error(error, filename)
    except VerifyError as error:
        problem = error
    # The text may come from a pipe or a test: keep its lines where the caret is drawn from.
    if not Path(filename).exists():
        linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    raise problem


@dataclass(frozen=True, slots=True)
class _Call:
    op: Token
    positional: tuple[Any, ...]
    keywords: tuple[tuple[Token, Any], ...]


@dataclass(frozen=True, slots=True)
class _Line:
    names: tuple[Token, ...]
    call: _Call
    comment: str


@dataclass(frozen=True, slots=True)
class _Source:
    title: str
    params: tuple[tuple[Token, _Call | None], ...]
    comment: str
    lines: tuple[_Line, ...]
    returns: Any


class _Cut(Transformer[Token, Any]):
    """Grammar rules to plain data. Names stay tokens, so that errors have a place."""

    def start(self, parts: list[Any]) -> _Source:
        parts = [part for part in parts if not (isinstance(part, Token) and part.type == "COMMENT")]
        title, params, comment, *rest = parts
        name = _string(title) if title.type == "STRING" else str(title)
        return _Source(name, params or (), comment, tuple(rest[:-1]), rest[-1])

    def params(self, parts: list[Any]) -> tuple[Any, ...]:
        return tuple(parts)

    def param(self, parts: list[Any]) -> tuple[Any, ...]:
        return parts[0], parts[1]

    def op(self, parts: list[Any]) -> _Line:
        names = parts[0] if len(parts) == 3 else ()
        return _Line(names, parts[-2], parts[-1])

    def trailer(self, parts: list[Token]) -> str:
        return str(parts[0]) if parts else ""

    def names(self, parts: list[Token]) -> tuple[Token, ...]:
        return tuple(parts)

    def call(self, parts: list[Any]) -> _Call:
        given = parts[1:]
        positional = tuple(part for part in given if not isinstance(part, _Keyword))
        keywords = tuple((part.name, part.item) for part in given if isinstance(part, _Keyword))
        return _Call(parts[0], positional, keywords)

    def keyword(self, parts: list[Any]) -> _Keyword:
        return _Keyword(parts[0], parts[1])

    def items(self, parts: list[Any]) -> tuple[Any, ...]:
        return tuple(parts)

    def mapping(self, parts: list[tuple[str, Any]]) -> dict[str, Any]:
        return dict(parts)

    def entry(self, parts: list[Any]) -> tuple[str, Any]:
        return _string(parts[0]), parts[1]

    def string(self, parts: list[Token]) -> str:
        return _string(parts[0])

    def number(self, parts: list[Token]) -> int | float:
        digits = str(parts[0])
        return int(digits) if digits.lstrip("-").isdigit() else float(digits)

    def name(self, parts: list[Token]) -> Token:
        return parts[0]

    def none(self, _: list[Token]) -> None:
        return None

    def true(self, _: list[Token]) -> bool:
        return True

    def false(self, _: list[Token]) -> bool:
        return False

    def returns(self, parts: list[Any]) -> Any:
        items = [part for part in parts if not (isinstance(part, Token) and part.type == "COMMENT")]
        return items[0] if items else None


@dataclass(frozen=True, slots=True)
class _Keyword:
    name: Token
    item: Any


def _string(token: Token) -> str:
    body = token[1:-1]
    return str(ast.literal_eval(str(token))) if "\\" in body else str(body)


@cache
def _lark() -> Lark:
    grammar = Path(__file__).with_name("grammar.lark").read_text(encoding="utf-8")
    return Lark(grammar, parser="lalr", transformer=_Cut(), maybe_placeholders=True)


_NAMES = {
    "NAME": "a name", "STRING": "a string", "NUMBER": "a number", "_NL": "end of line", "COMMENT": "a comment",
    "$END": "end of file", "LPAR": "`(`", "RPAR": "`)`", "LBRACE": "`{`", "RBRACE": "`}`", "COMMA": "`,`",
    "COLON": "`:`", "EQUAL": "`=`", "DEF": "`def`", "RETURN": "`return`", "NONE": "`None`", "TRUE": "`True`",
    "FALSE": "`False`",
}  # fmt: skip


def _syntax_error(error: UnexpectedInput, filename: str) -> VerifyError:
    match error:
        case UnexpectedToken():
            found = (
                _NAMES.get(error.token.type, f"`{error.token}`")
                if not error.token.strip()
                else f"`{error.token}`"
            )
            expected = error.accepts or error.expected
        case UnexpectedCharacters():
            found, expected = f"`{error.char}`", error.allowed
        case _:
            found, expected = "end of file", set()
    wanted = ", ".join(sorted(_NAMES.get(name, name) for name in expected if name != "COMMENT"))
    line, column = max(error.line, 1), max(error.column, 1)
    return VerifyError(
        "SGLC201",
        f"unexpected {found}",
        Loc(filename, line, column),
        note=f"expected: {wanted}" if wanted else "",
    )


# -- calls to ops ------------------------------------------------------------------------------------

_Check = Callable[[Any], bool]


def _whole(item: Any) -> bool:
    return isinstance(item, int) and not isinstance(item, bool)


def _text(item: Any) -> bool:
    return isinstance(item, str) and not isinstance(item, Token)


def _all(check: _Check) -> _Check:
    return lambda item: isinstance(item, tuple) and all(check(part) for part in item)


def _value(item: Any) -> bool:
    return isinstance(item, Value)


# What a field's annotation admits, and how an error calls it. A new kind of field needs a row here.
_ADMITS: dict[str, tuple[_Check, str]] = {
    "str": (_text, "a string"),
    "int": (_whole, "an integer"),
    "float": (lambda item: _whole(item) or isinstance(item, float), "a number"),
    "bool": (lambda item: isinstance(item, bool), "True or False"),
    "int | None": (lambda item: item is None or _whole(item), "an integer or None"),
    "Value": (_value, "a value"),
    "Value | str": (lambda item: _value(item) or _text(item), "a value or a string"),
    "tuple[str, ...]": (_all(_text), "a tuple of strings"),
    "tuple[int, ...]": (_all(_whole), "a tuple of integers"),
    "tuple[Value, ...]": (_all(_value), "a tuple of values"),
    "tuple[Value | str, ...]": (
        _all(lambda item: _value(item) or _text(item)),
        "a tuple of values and strings",
    ),
    "tuple[Value | None, ...]": (_all(lambda item: item is None or _value(item)), "a tuple of values and None"),
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
        if field.name in ("results", "loc"):
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
        elif field.default is MISSING:
            positional.append(_Part(field.name, field.name, *_ADMITS[kind]))
        else:
            keyword(field.name, field.name, kind)
    return _Shape(tuple(positional), keywords, holds["Site"], holds["Sampling"])


class _Builder:
    """Turns the cut text into ops: resolves names, numbers values, checks fields."""

    def __init__(self, filename: str) -> None:
        self.filename = filename
        self.function = ""
        self.scope: dict[str, Value] = {}

    def program(self, source: _Source) -> Program:
        self.function = source.title
        words = source.comment.lstrip("# ").split()
        locs = [loc for word in words if (loc := loc_of(word)) is not None]
        if len(locs) == 1:  # one for all
            locs *= len(source.params)
        given = locs if len(locs) == len(source.params) else [None] * len(source.params)
        params = tuple(self.param(*param, loc) for param, loc in zip(source.params, given, strict=True))
        ops = tuple(self.op(line) for line in source.lines)
        return Program(source.title, params, ops, cast(Tree, self.resolve(source.returns)))

    def param(self, name: Token, call: _Call | None, given: Loc | None) -> Op:
        loc = given or self.loc(name, name)
        if call is None:
            return Arg(str(name), results=self.define((name,), Arg, name), loc=loc)
        kind = self.kind(call)
        if kind not in (Arg, Resume):
            raise self.error("SGLC202", f"`{call.op}` is no parameter", call.op, note="parameters: arg, resume")
        made = self.fields(kind, call)
        return kind(**made, results=self.define((name,), kind, call.op), loc=loc)

    def op(self, line: _Line) -> Op:
        kind = self.kind(line.call)
        first = line.names[0] if line.names else line.call.op
        loc = loc_of(line.comment.lstrip("#").strip()) or self.loc(first, line.call.op)
        # Fields before results: an op cannot read what it makes.
        made = self.fields(kind, line.call)
        return kind(**made, results=self.define(line.names, kind, line.call.op), loc=loc)

    def kind(self, call: _Call) -> type[Op]:
        kind = OPS.get(str(call.op))
        if kind is None:
            known = ", ".join(sorted(OPS))
            raise self.error("SGLC202", f"unknown op `{call.op}`", call.op, note=f"known: {known}")
        return kind

    def fields(self, kind: type[Op], call: _Call) -> dict[str, Any]:
        """The op's own fields, as the call gives them."""
        shape = _shape(kind.mnemonic)
        made: dict[str, Any] = {}
        site: dict[str, Any] = {}
        sampling: dict[str, Any] = {}
        for part, item in self.matched(shape, call):
            item = self.resolve(item)
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

    def matched(self, shape: _Shape, call: _Call) -> Iterator[tuple[_Part, Any]]:
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

    def resolve(self, item: Any) -> Any:
        """`item` with names replaced by the values they stand for."""
        match item:
            case Token():
                value = self.scope.get(str(item))
                if value is None:
                    raise self.error("SGLC203", f"`{item}` is not defined before this line", item)
                return value
            case tuple():
                return tuple(self.resolve(part) for part in item)
            case dict():
                return {key: self.resolve(part) for key, part in item.items()}
            case _:
                return item

    def define(self, names: Sequence[Token], kind: type[Op], at: Token) -> tuple[Value, ...]:
        types = kind.result_types if kind.result_types is not None else (Type.STREAM,) * len(names)
        if len(types) != len(names):
            wanted = ", ".join(types) or "nothing"
            raise self.error("SGLC206", f"`{at}` gives {wanted}, and {len(names)} names take it", at)
        return tuple(self.new(name, kind) for name, kind in zip(names, types, strict=True))

    def new(self, name: Token, kind: Type) -> Value:
        if str(name) in self.scope:
            raise self.error("SGLC204", f"`{name}` is defined twice", name)
        value = Value(len(self.scope), kind)
        self.scope[str(name)] = value
        return value

    def loc(self, first: Token, last: Token) -> Loc:
        assert first.line is not None
        assert first.column is not None
        return Loc(self.filename, first.line, first.column, last.end_column or 0)

    def error(self, code: str, message: str, at: Token, *, note: str = "") -> VerifyError:
        return VerifyError(code, message, self.loc(at, at), note=note)
