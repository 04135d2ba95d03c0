"""Warnings about programs that are right and do more work than they need, or wait where nothing comes.

A warning has a code, a place, and a way out; `# sglc: ignore` on its line silences it. Each one is meant:
where a program might have its reasons, nothing is said.
"""

from __future__ import annotations

import ast
import builtins
import linecache
from collections.abc import Iterator
from dataclasses import dataclass
from types import FunctionType, ModuleType

from sglc.errors import Loc, diagnostic
from sglc.frontend.language import expr
from sglc.frontend.language.function import Definition
from sglc.frontend.locate import of_node
from sglc.frontend.source import source_of
from sglc.ir.core import Op, Program, Type, Value, operands, regions, values_in, walk
from sglc.ir.ops import Append, Arg, Format, Gen, HostCall, Lower, PureCall, Resume, Root, Select, Strip

_LONG = 200  # characters of a constant that is worth sharing
_IGNORE = "sglc: ignore"
_MAKERS = (expr.gen, expr.gen_int, expr.gen_string, expr.select)
_READERS = {
    "int": ("an integer", "dtype=int"),
    "float": ("a number", "dtype=float"),
    "json.loads": ("JSON", "json_schema=..."),
}
_UNNAMED = ("gen", "select")  # what a generation without a name is called


@dataclass(frozen=True, slots=True)
class Finding:
    """A warning: what, where, and what to do about it. `shareable` is text that each run computes again."""

    code: str
    message: str
    loc: Loc
    note: str = ""
    hint: str = ""
    shareable: str = ""


def render_finding(finding: Finding) -> str:
    """The warning as text, like an error."""
    return diagnostic("warning", finding.code, finding.message, finding.loc, finding.note, finding.hint)


def findings(definition: Definition | None, program: Program) -> tuple[Finding, ...]:
    """All warnings about a program, in the order of the text.

    Args:
        definition: its function; None for a program in IR form.
        program: as recorded ahead of time, before any pass.
    """
    found = [*_volatile_first(program), *_unused(program), *_free_text_read(program)]
    if definition is not None and type(definition.call) is FunctionType:
        found = _with_source(found, definition.call)
    ordered = sorted(found, key=lambda each: (each.loc.file, each.loc.line, each.loc.column, each.code))
    return tuple([finding for finding in dict.fromkeys(ordered) if not _is_ignored(finding.loc)])


def _is_ignored(loc: Loc) -> bool:
    linecache.checkcache(loc.file)  # an editor may have changed it
    _, mark, comment = linecache.getline(loc.file, loc.line).rpartition("#")
    return bool(mark) and comment.strip() == _IGNORE


# -- in the recorded program ---------------------------------------------------------------------


def _volatile_first(program: Program) -> Iterator[Finding]:
    """SGLC601: text that differs from run to run stands before a long constant of the same prompt.

    Behind the first generation nothing can be shared any more, so only what is before it counts.
    """
    volatile = {value for op in program.params if isinstance(op, Arg) for value in op.results}
    made = {value: op for op in program.ops for value in op.results}
    first: dict[Value, Op | None] = {}  # of each prompt without generations: where an argument comes first
    reported: list[Op] = []
    for op in program.ops:
        if any(value in volatile for value in operands(op)):
            volatile.update(result for result in op.results if result.type is Type.TEXT)
        stream = getattr(op, "stream", None)
        before = first.get(stream) if isinstance(stream, Value) else None
        inside = isinstance(op, Root) or (isinstance(stream, Value) and stream in first)
        if not inside or isinstance(op, Gen | Select | Resume):
            continue
        for text in _pieces(op, made):
            if isinstance(text, str) and len(text) >= _LONG and before is not None:
                if not any(before is other for other in reported):
                    reported.append(before)
                    yield Finding(
                        "SGLC601", "an argument stands before a constant that all runs could share", before.loc,
                        f"behind it every run computes a constant of {len(text)} characters ({op.loc})",
                        "put the constant first, and the argument behind it",
                        text,
                    )  # fmt: skip
            elif text in volatile and before is None:
                before = op
        first.update((result, before) for result in op.results)


def _pieces(op: Op, made: dict[Value, Op]) -> tuple[Value | str, ...]:
    """The literals and values that an op appends, in order."""
    if not isinstance(op, Append):
        return ()
    maker = made.get(op.text) if isinstance(op.text, Value) else None
    return maker.parts if isinstance(maker, Format) else (op.text,)


def _free_text_read(program: Program) -> Iterator[Finding]:
    """SGLC604: a number, or JSON, is read for certain from a generation that is held to nothing."""
    made = {value: op for op in program.ops for value in op.results}
    for op in program.ops:
        if not isinstance(op, PureCall) or op.name not in _READERS:
            continue
        read = op.args[0] if op.args else None
        while isinstance(read, Value) and isinstance(made.get(read), Strip | Lower):
            (read,) = operands(made[read])
        source = made.get(read) if isinstance(read, Value) else None
        if isinstance(source, Gen) and (
            not source.sampling.constrained or source.sampling.structural_tag is not None
        ):
            what, instead = _READERS[op.name]
            yield Finding(
                "SGLC604", f"`{source.site.name}` is read as {what}, and may be any text", op.loc,
                f"the run fails where the model writes something else ({source.loc})",
                f"say `{instead}` at the generation: then it writes nothing else, and ends by itself",
            )  # fmt: skip


def _unused(program: Program) -> Iterator[Finding]:
    """SGLC603: what a generation makes goes nowhere, or only stays in the prompt under a name that is taken."""
    if any(isinstance(op, HostCall) and not op.error for op in walk(program.ops)):
        return  # who knows what is read behind it
    ops = tuple(walk(program.ops))
    read = {value for op in ops for value in operands(op)} | set(values_in(program.returns))
    read.update(value for op in ops for region in regions(op) for value in region.results)
    used = _continued(ops, program)
    for block in (program.ops, *(region.ops for op in ops for region in regions(op))):
        yield from _unused_in(block, read, used)


def _unused_in(block: tuple[Op, ...], read: set[Value], used: set[Value]) -> Iterator[Finding]:
    """Of the generations of one block, one of which follows the other for certain.

    What the program's own prompt stores is in the result, whoever reads it; a branch's is lost if it is
    not joined.
    """
    calls = [op for op in block if isinstance(op, Gen | Select) and op.site.name not in _UNNAMED]
    for number, op in enumerate(calls):
        stream, text = op.results
        if text in read:
            continue
        name, fork = op.site.name, op.site.fork
        following = calls[number + 1 :]
        later = [
            one for one in following if (one.site.name, one.site.fork) == (name, fork) and one.loc != op.loc
        ]
        if later:
            yield Finding(
                "SGLC603", f"`{name}` is never read before it is made again", op.loc,
                f"`{name}` is what {later[0].loc} makes", "give the two different names",
            )  # fmt: skip
        elif op.site.fork and stream not in used:
            yield Finding(
                "SGLC603", f"`{name}` is generated and never used", op.loc,
                "its branch is not joined, nothing reads it, and no generation follows it in its prompt",
                f"join the branch, or leave the generation of `{name}` out",
            )  # fmt: skip


def _continued(ops: tuple[Op, ...], program: Program) -> set[Value]:
    """The streams that a later generation, or the result, continues."""
    used = set(values_in(program.returns))
    for op in reversed(ops):
        if isinstance(op, Gen | Select) or any(result in used for result in op.results) or op.region_fields:
            used.update(operands(op))
            used.update(value for region in regions(op) for value in region.results)
    return used


# -- in the source -------------------------------------------------------------------------------


class _Body:
    """The source of a program's function: what surrounds each node, and where names are bound.

    Nested functions, classes and comprehensions count as parts of it.
    """

    def __init__(self, function: FunctionType) -> None:
        self.tree = tree = source_of(function.__code__).definition
        self.function = function
        self.state = function.__code__.co_varnames[0]
        self.parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        self.bindings: dict[str, list[ast.AST]] = {}
        for node in self.parents:
            match node:
                case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name):
                    self.bindings.setdefault(name, []).append(node)

    def meant(self, node: ast.expr) -> object:
        """What a name from outside, or an attribute of a module, stands for; None if that is not sure."""
        match node:
            case ast.Name(id=name) if name not in self.bindings:
                free = self.function.__code__.co_freevars
                cells = dict(zip(free, self.function.__closure__ or (), strict=True))
                if name in cells:
                    return cells[name].cell_contents
                return self.function.__globals__.get(name, getattr(builtins, name, None))
            case ast.Attribute(value=value, attr=attribute):
                owner = self.meant(value)
                return getattr(owner, attribute, None) if isinstance(owner, ModuleType) else None
            case _:
                return None

    def makes(self, node: ast.AST) -> bool:
        """Whether a node is a call that makes a generation or a choice."""
        return isinstance(node, ast.Call) and any(self.meant(node.func) is maker for maker in _MAKERS)

    def place(self, node: ast.expr) -> Loc:
        """A node's place as sglc shows places."""
        return of_node(node, self.function.__code__.co_filename)


def _with_source(found: list[Finding], function: FunctionType) -> list[Finding]:
    """`found` but for reads whose failure is caught, and what the source says, if that is available."""
    try:
        body = _Body(function)
        more = [*_unbounded(body), *_no_choices(body)]
    except (OSError, SyntaxError, ValueError, RecursionError):
        return found
    tries = [node for node in ast.walk(body.tree) if isinstance(node, ast.Try) and node.handlers]
    caught = [range(one.lineno, (one.end_lineno or one.lineno) + 1) for node in tries for one in node.body]
    lines = {line for part in caught for line in part}
    return [*more, *(each for each in found if each.code != "SGLC604" or each.loc.line not in lines)]


def _unbounded(body: _Body) -> Iterator[Finding]:
    """SGLC602: a `while` with generations that ends only when the model says so."""
    for node in body.parents:
        if not isinstance(node, ast.While) or not any(map(body.makes, ast.walk(node))):
            continue
        tests = [] if isinstance(node.test, ast.Constant) else [node.test]
        tests += _exits(node)
        if all(_is_the_models(body, test, ()) for test in tests):
            yield Finding(
                "SGLC602", "a loop with generations has no bound on its rounds", body.place(node.test),
                "it ends only when the model writes what it waits for",
                "count the rounds: `for _ in range(8): ...` with a `break`",
            )  # fmt: skip


def _exits(loop: ast.While) -> list[ast.expr]:
    """The conditions under which the body leaves the loop."""
    leaving = (ast.Break, ast.Return, ast.Raise)
    return [
        node.test
        for node in ast.walk(loop)
        if isinstance(node, ast.If) and any(isinstance(inner, leaving) for inner in ast.walk(node))
    ]


def _is_the_models(body: _Body, test: ast.expr, seen: tuple[str, ...]) -> bool:
    """Whether a condition depends on the prompt, whose texts the model makes, and constants alone."""
    for node in ast.walk(test):
        if isinstance(node, ast.Call) and not _computes(body, node, seen):
            return False
        if isinstance(node, ast.Name) and node.id not in (body.state, *seen):
            for place in body.bindings.get(node.id, ()):
                match body.parents[place]:
                    case ast.Assign(value=value) if _is_the_models(body, value, (*seen, node.id)):
                        continue
                    case _:
                        return False
    return True


def _computes(body: _Body, call: ast.Call, seen: tuple[str, ...]) -> bool:
    """Whether a call gives nothing but what its arguments, or the text whose method it is, give."""
    function = body.meant(call.func)
    if any(function is known for known in (len, str, int, float, bool)):
        return True
    if not isinstance(call.func, ast.Attribute):
        return False
    # A method of a text, and no function of a module.
    owned = any(isinstance(node, ast.Name) and node.id in body.bindings for node in ast.walk(call.func.value))
    return owned and _is_the_models(body, call.func.value, seen)


def _no_choices(body: _Body) -> Iterator[Finding]:
    """SGLC605: `choices=[]`, which is refused when the program comes to it."""
    for node in body.parents:
        if not isinstance(node, ast.Call) or not body.makes(node):
            continue
        for keyword in node.keywords:
            match keyword:
                case ast.keyword(arg="choices", value=ast.List(elts=[]) | ast.Tuple(elts=[])):
                    yield Finding(
                        "SGLC605", "`choices` is empty", body.place(keyword.value),
                        "the run fails when it comes here", "give at least one choice",
                    )  # fmt: skip
