"""What every kind of statement does."""

from __future__ import annotations

import ast
import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sglc.frontend.tracing.call_frame import CallFrame
from sglc.frontend.tracing.evaluation import Guarded, Handler
from sglc.frontend.tracing.interpreter.data import entries, is_known, is_ours, kind_of, unrolled
from sglc.frontend.tracing.interpreter.expressions import (
    MOST_TURNS,
    assign,
    closure,
    evaluate,
    gathered,
    iterated,
    tested,
    turns,
)
from sglc.frontend.tracing.interpreter.operations import (
    attribute,
    binary,
    equal,
    store_attribute,
    store_subscript,
    subscript,
    truth,
)
from sglc.frontend.tracing.join_points import meeting
from sglc.frontend.tracing.paths import PathEnded
from sglc.frontend.values.graph_breaks import CONTEXT, ITERATION, NO_RULE, OUTSIDE, TRIED, GraphBreak, generator
from sglc.frontend.values.symbolic import Failed, Symbolic, SymbolicText, classes_in


@dataclass(frozen=True, slots=True)
class Leaves:
    """Why a block of statements is left before its end: `return`, `break` or `continue`."""

    how: str
    value: Any = None


_BREAK, _CONTINUE = Leaves("break"), Leaves("continue")


def run_body(frame: CallFrame) -> Any:
    """Run a function's body; gives what it returns."""
    node = frame.scope
    if isinstance(node, ast.Lambda):
        return evaluate(frame, node.body)
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    left = run_block(frame, node.body)
    return None if left is None else left.value


def run_block(frame: CallFrame, body: Sequence[ast.stmt]) -> Leaves | None:
    """Run statements, up to one that leaves them.

    Raises:
        GraphBreak: before what has no rule.
        Exception: what the program raises; `tracer.place_of` has its place.
    """
    for statement in body:
        rule = _RULES.get(type(statement))
        frame.node = statement
        frame.tracer.step()
        stood = frame.tracer.stands()
        if rule is None:
            what = type(statement).__name__.removesuffix("Def").lower()
            raise GraphBreak(f"a `{what}` statement has no rule", frame.loc(), NO_RULE)
        try:
            left = rule(frame, statement)
        except GraphBreak:
            frame.tracer.forget_reads(stood)
            raise
        except Exception as error:
            frame.tracer.raised_at(error, frame.loc())
            raise
        if left is not None:
            return left
    return None


# -- simple statements -----------------------------------------------------------------------------


def _expression(frame: CallFrame, node: ast.Expr) -> None:
    evaluate(frame, node.value)


def _assign(frame: CallFrame, node: ast.Assign) -> None:
    unpacked = len(node.targets) == 1 and isinstance(node.targets[0], ast.Tuple | ast.List)
    value = (iterated if unpacked else evaluate)(frame, node.value)
    for target in node.targets:
        assign(frame, target, value)


def _annotated(frame: CallFrame, node: ast.AnnAssign) -> None:
    if node.value is not None:
        assign(frame, node.target, evaluate(frame, node.value))


def _augmented(frame: CallFrame, node: ast.AugAssign) -> None:
    load: Callable[[], Any]
    store: Callable[[Any], None]
    match node.target:
        case ast.Name(id=name):
            load, store = partial(frame.load, name), partial(frame.store, name)
        case ast.Attribute(value=owner, attr=name):
            held = evaluate(frame, owner)
            load, store = partial(attribute, frame, held, name), partial(store_attribute, frame, held, name)
        case ast.Subscript(value=owner, slice=index):
            of = (frame, evaluate(frame, owner), evaluate(frame, index))
            load, store = partial(subscript, *of), partial(store_subscript, *of)
    frame.node = node.target
    before = load()
    item = evaluate(frame, node.value)
    frame.node = node
    made = binary(frame, node.op, before, item, inplace=True)
    frame.node = node
    if made is not before or not is_ours(before):
        store(made)


def _delete(frame: CallFrame, node: ast.Delete) -> None:
    for target in node.targets:
        match target:
            case ast.Name(id=name):
                frame.node = target
                frame.delete(name)
            case ast.Subscript(value=owner, slice=index):
                held, key = evaluate(frame, owner), evaluate(frame, index)
                frame.node = target
                frame.tracer.change(held, f"`del {ast.unparse(target)}`")
                if isinstance(key, Symbolic):
                    frame.tracer.may_fail(f"`del {ast.unparse(target)}`")
                del held[key]
            case _:
                frame.node = target
                raise GraphBreak(f"`del {ast.unparse(target)}`", frame.loc(), OUTSIDE)


def _define(frame: CallFrame, node: ast.FunctionDef) -> None:
    if node.decorator_list:
        raise GraphBreak("a decorated function", frame.loc(), NO_RULE)
    if any(isinstance(inner, ast.Yield | ast.YieldFrom) for inner in ast.walk(node)):
        raise generator(node.name, frame.loc())
    frame.store(node.name, closure(frame, node, node.name))


def _import(frame: CallFrame, node: ast.Import) -> None:
    for alias in node.names:
        frame.tracer.outside.import_module(frame, alias.name)
        frame.tracer.outside.import_module(frame, alias.name.partition(".")[0])
        if alias.name not in sys.modules:
            raise GraphBreak(f"`import {alias.name}` runs code of its own", frame.loc(), OUTSIDE)
        whole = sys.modules[alias.name if alias.asname else alias.name.partition(".")[0]]
        frame.store(alias.asname or alias.name.partition(".")[0], whole)


def _import_from(frame: CallFrame, node: ast.ImportFrom) -> None:
    frame.tracer.outside.import_module(frame, node.module or "")
    module = sys.modules.get(node.module or "") if not node.level else None
    if module is None:
        raise GraphBreak(f"`from {node.module} import` runs code of its own", frame.loc(), OUTSIDE)
    for alias in node.names:
        frame.store(alias.asname or alias.name, attribute(frame, module, alias.name))


def _assert(frame: CallFrame, node: ast.Assert) -> None:
    if not tested(frame, node.test):
        said = [] if node.msg is None else [evaluate(frame, node.msg)]
        frame.node = node
        raise AssertionError(*said)


def _raise(frame: CallFrame, node: ast.Raise) -> None:
    if node.exc is None:
        if not frame.tracer.handling:
            raise RuntimeError("No active exception to reraise")
        raise frame.tracer.handling[-1]
    error = evaluate(frame, node.exc)
    cause = None if node.cause is None else evaluate(frame, node.cause)
    frame.node = node
    if isinstance(error, type) and issubclass(error, BaseException):
        error = error()
    if not isinstance(error, BaseException):
        raise TypeError("exceptions must derive from BaseException")
    if not isinstance(error, Exception):
        raise GraphBreak(f"`{type(error).__name__}` ends more than the program", frame.loc(), OUTSIDE)
    if frame.tracer.handling:
        _in_context(error, frame.tracer.handling[-1])
    if node.cause is not None:
        raise error from cause
    raise error


def _in_context(error: BaseException, handled: BaseException) -> None:
    """Note what was handled when an error was raised, as Python does: no error is in a context of its own."""
    if error is handled:
        return
    at = handled
    while (before := at.__context__) is not None:
        if before is error:
            at.__context__ = None
            break
        at = before
    error.__context__ = handled


# -- statements that hold others -------------------------------------------------------------------


def _if(frame: CallFrame, node: ast.If, test: Any) -> Leaves | None:
    frame.node = node.test
    return run_block(frame, node.body if truth(frame, test) else node.orelse)


def _for(frame: CallFrame, node: ast.For) -> Leaves | None:
    source = iterated(frame, node.iter)
    for item in turns(frame, node.iter, source):
        assign(frame, node.target, item)
        left = run_block(frame, node.body)
        if left is _BREAK:
            return None
        if left is not None and left is not _CONTINUE:
            return left
    return run_block(frame, node.orelse)


def _while(frame: CallFrame, node: ast.While) -> Leaves | None:
    for _ in range(MOST_TURNS):
        if not tested(frame, node.test):
            return run_block(frame, node.orelse)
        left = run_block(frame, node.body)
        if left is _BREAK:
            return None
        if left is not None and left is not _CONTINUE:
            return left
    frame.node = node.test
    raise GraphBreak(f"a loop has more than {MOST_TURNS} turns", frame.loc(), ITERATION)


def _managed(frame: CallFrame, items: Sequence[ast.withitem], body: Sequence[ast.stmt]) -> Leaves | None:
    if not items:
        return run_block(frame, body)
    item = items[0]
    manager = evaluate(frame, item.context_expr)
    frame.node = item.context_expr
    generator = manager.gen if isinstance(manager, contextlib._GeneratorContextManager) else None
    code = getattr(generator, "gi_code", None)
    ours = is_ours(manager) or str(getattr(code, "co_qualname", "")).startswith("State.")
    if not ours and type(manager) is not contextlib.nullcontext:
        raise GraphBreak(f"`with` of a `{type(manager).__name__}` runs code of its own", frame.loc(), CONTEXT)
    with manager as entered:  # its end belongs to the language, and sees no more than an error's type
        if item.optional_vars is not None:
            assign(frame, item.optional_vars, entered)
        left = _managed(frame, items[1:], body)
        frame.node = item.context_expr
    return left


def _try(frame: CallFrame, node: ast.Try) -> Leaves | None:
    tracer = frame.tracer
    around, final = tracer.guarded, bool(node.finalbody)
    tracer.guarded = (*around, Guarded(partial(_caught, frame, node), final, len(tracer.bodies)))
    left: Leaves | None = None
    problem: Exception | None = None
    try:
        try:
            left = run_block(frame, node.body)
        except (PathEnded, GraphBreak):
            raise
        except Exception as error:
            problem = error
    finally:
        tracer.guarded = around
    if final:
        tracer.guarded = (*around, Guarded(tuple, final, len(tracer.bodies)))
    try:
        try:
            if problem is not None:
                left, problem = _handled(frame, node, problem)
            elif left is None:
                left = run_block(frame, node.orelse)
        except (PathEnded, GraphBreak):
            raise
        except Exception as error:
            left, problem = None, error
    finally:
        tracer.guarded = around
    ended = run_block(frame, node.finalbody)
    if ended is not None:
        return ended
    if problem is not None:
        raise problem
    return left


def _caught(frame: CallFrame, node: ast.Try) -> tuple[Handler, ...] | None:
    """The handlers of a `try` before anything has failed; None if what they name may still change."""
    found: list[Handler] = []
    at = frame.node
    try:
        for handler in node.handlers:
            named = [] if handler.type is None else [*ast.walk(handler.type)]
            local = any(isinstance(each, ast.Name) and frame.binds(each.id) for each in named)
            if local or not all(isinstance(each, _FIXED_NAMES) for each in named):
                return None
            kinds = Exception if handler.type is None else evaluate(frame, handler.type)
            if not _are_errors(kinds):
                return None
            found.append(Handler(classes_in(kinds), handler.name is not None))
    except Exception:
        return None
    finally:
        frame.node = at
    return tuple(found)


def _are_errors(kinds: Any) -> bool:
    """Whether an `except` clause may name these: no tuple in a tuple, as `isinstance` takes."""
    return all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in classes_in(kinds))


_FIXED_NAMES = (ast.Name, ast.Attribute, ast.Tuple, ast.expr_context)


def _handled(frame: CallFrame, node: ast.Try, problem: Exception) -> tuple[Leaves | None, Exception | None]:
    for handler in node.handlers:
        kinds = Exception if handler.type is None else evaluate(frame, handler.type)
        frame.node = handler.type or handler
        if not _are_errors(kinds):
            raise GraphBreak("an `except` of what is no class of errors", frame.loc(), TRIED)
        if not (problem.is_one_of(kinds) if isinstance(problem, Failed) else isinstance(problem, kinds)):
            continue
        if handler.name:
            frame.store(handler.name, problem)
        frame.tracer.handling.append(problem)
        try:
            return run_block(frame, handler.body), None
        finally:
            frame.tracer.handling.pop()
            if handler.name:
                frame.values.pop(handler.name, None)
    return None, problem


def _match(frame: CallFrame, node: ast.Match, subject: Any) -> Leaves | None:
    for case in node.cases:
        frame.node = node.subject
        bound: dict[str, Any] = {}
        if _fits(frame, case.pattern, subject, bound):
            for name, value in bound.items():
                frame.store(name, value)
            if case.guard is None or tested(frame, case.guard):
                return run_block(frame, case.body)
    return None


def _fits(frame: CallFrame, pattern: ast.pattern, subject: Any, bound: dict[str, Any]) -> bool:
    if is_known(subject) and isinstance(pattern, ast.MatchSequence | ast.MatchMapping):
        kind = kind_of(subject)
        if isinstance(pattern, ast.MatchSequence) and kind in (list, tuple):
            subject = unrolled(frame.tracer, subject)
        elif isinstance(pattern, ast.MatchMapping) and kind is dict:
            subject = entries(frame.tracer, subject)
        else:
            return False
    match pattern:
        case ast.MatchValue(value=value):
            return truth(frame, equal(frame, subject, evaluate(frame, value)))
        case ast.MatchSingleton(value=value) if isinstance(subject, Symbolic):
            return truth(frame, equal(frame, subject, value))
        case ast.MatchSingleton(value=value):
            return subject is value
        case ast.MatchAs() | ast.MatchStar():
            inner = pattern.pattern if isinstance(pattern, ast.MatchAs) else None
            if inner is not None and not _fits(frame, inner, subject, bound):
                return False
            if pattern.name is not None:
                bound[pattern.name] = subject
            return True
        case ast.MatchOr(patterns=patterns):
            return any(_fits(frame, inner, subject, bound) for inner in patterns)
        case ast.MatchSequence(patterns=patterns) if not isinstance(subject, Symbolic):
            if type(subject) not in (list, tuple):
                return False
            star = next((i for i, p in enumerate(patterns) if isinstance(p, ast.MatchStar)), None)
            least = len(patterns) - (star is not None)
            if len(subject) < least or (star is None and len(subject) > least):
                return False
            items = subject if star is None else gathered(subject, star, least)
            return all(_fits(frame, p, item, bound) for p, item in zip(patterns, items, strict=True))
        case ast.MatchMapping(keys=keys, patterns=patterns, rest=rest) if not isinstance(subject, Symbolic):
            if not isinstance(subject, Mapping):
                return False
            known = [evaluate(frame, key) for key in keys]
            if not all(key in subject for key in known):
                return False
            if rest is not None:
                bound[rest] = {key: item for key, item in subject.items() if key not in known}
            return all(_fits(frame, p, subject[key], bound) for p, key in zip(patterns, known, strict=True))
        case ast.MatchClass(cls=cls, patterns=patterns, kwd_attrs=names, kwd_patterns=inner):
            kind = evaluate(frame, cls)
            if isinstance(subject, Symbolic) and kind in _SCALARS and _is_scalar(subject, "a class pattern"):
                fits = issubclass(kind_of(subject), kind)
                return fits and (not patterns or _fits(frame, patterns[0], subject, bound))
            if isinstance(subject, Symbolic) or not isinstance(kind, type) or type(kind) is not type:
                raise GraphBreak("a class pattern", frame.loc(), NO_RULE)
            if not isinstance(subject, kind):
                return False
            if kind in (str, int, float, bool, list, dict, tuple) and len(patterns) == 1:
                return _fits(frame, patterns[0], subject, bound)
            own = getattr(kind, "__match_args__", ())
            pairs = [*zip(own, patterns, strict=False), *zip(names, inner, strict=True)]
            return all(_fits(frame, p, attribute(frame, subject, name), bound) for name, p in pairs)
        case ast.MatchSequence() | ast.MatchMapping() if _is_scalar(subject, "a pattern"):
            return False  # no text is a sequence here
        case _:
            raise GraphBreak(f"`case {ast.unparse(pattern)}` has no rule", frame.loc(), NO_RULE)


_SCALARS = (str, int, float, bool)


def _is_scalar(subject: Symbolic, what: str) -> bool:
    """Whether a value that only a run knows is surely no sequence and no mapping."""
    if isinstance(subject, SymbolicText):
        subject.refuse_argument(NO_RULE, what)
    return kind_of(subject) in _SCALARS


_RULES: dict[type, Callable[[CallFrame, Any], Leaves | None]] = {
    ast.Expr: _expression,
    ast.Assign: _assign,
    ast.AnnAssign: _annotated,
    ast.AugAssign: _augmented,
    ast.Return: lambda frame, node: Leaves(
        "return", None if node.value is None else evaluate(frame, node.value)
    ),
    ast.Pass: lambda frame, node: None,
    ast.Break: lambda frame, node: _BREAK,
    ast.Continue: lambda frame, node: _CONTINUE,
    ast.Delete: _delete,
    ast.FunctionDef: _define,
    ast.Global: lambda frame, node: None,  # where names belong, a function's bindings say
    ast.Nonlocal: lambda frame, node: None,
    ast.Import: _import,
    ast.ImportFrom: _import_from,
    ast.Assert: _assert,
    ast.Raise: _raise,
    ast.If: meeting(lambda frame, node: evaluate(frame, node.test), _if),
    ast.For: _for,
    ast.While: _while,
    ast.With: lambda frame, node: _managed(frame, node.items, node.body),
    ast.Try: _try,
    ast.Match: meeting(lambda frame, node: evaluate(frame, node.subject), _match),
}
