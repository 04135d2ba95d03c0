"""The value of every kind of expression."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Sequence
from types import BuiltinFunctionType
from typing import Any

from sglc.frontend.tracing.call_frame import CallFrame, Closure, Coroutine, FunctionNode
from sglc.frontend.tracing.interpreter.calls import call
from sglc.frontend.tracing.interpreter.data import (
    OnceOver,
    characters,
    compressed,
    entries,
    holds_symbols,
    is_known,
    is_plain,
    kind_of,
    listed,
    over,
    pure_call,
    refuse_foreign,
    refuses_text,
    settled,
)
from sglc.frontend.tracing.interpreter.operations import (
    DataMethod,
    attribute,
    binary,
    compare,
    store_attribute,
    store_subscript,
    subscript,
    truth,
    unary,
)
from sglc.frontend.tracing.interpreter.python_calls import goes_through
from sglc.frontend.values.graph_breaks import ASYNC, FOREIGN, ITERATION, NO_RULE, SPREAD, GraphBreak
from sglc.frontend.values.symbolic import Failed, Symbolic, SymbolicJson, SymbolicList, SymbolicText, joined
from sglc.ir.core import walk
from sglc.ir.ops import Call, Gen, Map, Select, Tool
from sglc.ir.pure import TEXTS, name_of

MOST_TURNS = 1000  # of one loop, each of which is recorded by itself


def evaluate(frame: CallFrame, node: ast.expr) -> Any:
    """What an expression gives.

    Raises:
        GraphBreak: before anything that has no rule, or whose value only a run can know.
    """
    value = _RULES.get(type(node), _no_rule)(frame, node)
    if isinstance(value, OnceOver):
        if value.kept is not None:
            return value.kept()
        frame.node = node
        reason, hint = "an iterator over what only a run knows is kept", "keep `list(...)` of it"
        raise GraphBreak(reason, frame.loc(), ITERATION, hint)
    return value


def _no_rule(frame: CallFrame, node: Any) -> Any:
    frame.node = node
    raise GraphBreak(f"`{ast.unparse(node)}` has no rule", frame.loc(), NO_RULE)


def iterated(frame: CallFrame, node: ast.expr) -> Any:
    """What an expression gives whose items are gone through at once, and never again."""
    value = _once(frame, node)
    return value.items if isinstance(value, OnceOver) else value


_OF_FIRST = (next, dict.fromkeys)  # go through what they are given first only
_ONE_BY_ONE = (all, any, filter, map, next, zip)  # may end early, or do something between two items
_EFFECTS = (Call, Gen, Select, Tool)


def _one_by_one(frame: CallFrame, node: ast.expr) -> Any:
    """What an expression gives whose items are gone through at once, and perhaps not to the end.

    Raises:
        GraphBreak: making an item does something, which a plan would do for all of them first.
    """
    items, acts = _lazily(frame, node)
    if acts:
        raise _in_turns(frame, node)
    return items


def _lazily(frame: CallFrame, node: ast.expr) -> tuple[Any, bool]:
    """As `iterated`, and whether it is an iterator that does something for each of its items."""
    begun = len(frame.tracer.recorder.ops)
    value = _once(frame, node)
    return (value.items, _acts(frame, begun)) if isinstance(value, OnceOver) else (value, False)


def _once(frame: CallFrame, node: ast.expr) -> Any:
    """What an expression gives, where an iterator over what only a run knows is not kept."""
    rule = _comprehension if isinstance(node, ast.GeneratorExp) else _RULES.get(type(node), _no_rule)
    return rule(frame, node)


def _acts(frame: CallFrame, begun: int) -> bool:
    """Whether the items of a `map` that was recorded since then do something."""
    maps = [op.body for op in frame.tracer.recorder.ops[begun:] if isinstance(op, Map)]
    return any(isinstance(op, _EFFECTS) for body in maps for op in walk(body.ops))


def _does(frame: CallFrame, begun: int) -> bool:
    """Whether anything that was recorded since then does something."""
    return any(isinstance(op, _EFFECTS) for op in walk(frame.tracer.recorder.ops[begun:]))


def _in_turns(frame: CallFrame, node: ast.AST) -> GraphBreak:
    frame.node = node
    reason = "what is done for one item is done before the next one is made"
    return GraphBreak(reason, frame.loc(), ITERATION, "make a list of the items first")


def turns(frame: CallFrame, node: ast.AST, items: Any) -> Iterator[Any]:
    """The items of a loop, one turn after another.

    Raises:
        GraphBreak: only a run knows them, or there are too many.
    """
    frame.node = node
    if isinstance(items, SymbolicText) and items.settled() is not None:
        items = items.settled()
    for number, item in enumerate(listed(frame.tracer, items)):
        if number >= MOST_TURNS:
            frame.node = node
            raise GraphBreak(f"a loop has more than {MOST_TURNS} turns", frame.loc(), ITERATION)
        frame.tracer.step()
        yield item
        frame.node = node
        frame.tracer.outside.unchanged(frame.tracer, items)


def _name(frame: CallFrame, node: ast.Name) -> Any:
    frame.node = node
    return frame.load(node.id)


def _binary(frame: CallFrame, node: ast.BinOp) -> Any:
    left, right = evaluate(frame, node.left), evaluate(frame, node.right)
    frame.node = node
    frame.tracer.outside.unchanged(frame.tracer, left)
    return binary(frame, node.op, left, right)


def _unary(frame: CallFrame, node: ast.UnaryOp) -> Any:
    value = evaluate(frame, node.operand)
    frame.node = node
    return unary(frame, node.op, value)


def _boolean(frame: CallFrame, node: ast.BoolOp) -> Any:
    ends = isinstance(node.op, ast.Or)
    for part in node.values[:-1]:
        value = evaluate(frame, part)
        frame.node = part
        if truth(frame, value) is ends:
            return value
    return evaluate(frame, node.values[-1])


def _compare(frame: CallFrame, node: ast.Compare) -> Any:
    left = evaluate(frame, node.left)
    made: Any = True
    for number, (op, comparator) in enumerate(zip(node.ops, node.comparators, strict=True)):
        right = (_one_by_one if isinstance(op, ast.In | ast.NotIn) else evaluate)(frame, comparator)
        frame.node = node
        frame.tracer.outside.unchanged(frame.tracer, left)
        made = compare(frame, op, left, right)
        if number < len(node.ops) - 1 and not truth(frame, made):
            return made
        left = right
    return made


def tested(frame: CallFrame, node: ast.expr) -> bool:
    """Whether a condition holds, on this path."""
    value = evaluate(frame, node)
    frame.node = node
    return truth(frame, value)


def _call(frame: CallFrame, node: ast.Call) -> Any:
    if isinstance(node.func, ast.Attribute):
        owner = evaluate(frame, node.func.value)
        frame.node = node.func
        function = attribute(frame, owner, node.func.attr, called=True)
    else:
        function = evaluate(frame, node.func)
    args, ahead = _items(frame, node.args, function)
    named: dict[str, Any] = {}
    for keyword in node.keywords:
        value = evaluate(frame, keyword.value)
        for name, item in ({keyword.arg: value} if keyword.arg else entries(frame.tracer, value)).items():
            if name in named:
                raise TypeError(f"got multiple values for keyword argument '{name}'")
            named[name] = item
    frame.node = node
    if ahead is not None and _does(frame, ahead):
        raise _in_turns(frame, node)
    frame.tracer.outside.unchanged(frame.tracer, function, *args, *named.values())
    return call(frame, function, args, named)


def _attribute(frame: CallFrame, node: ast.Attribute) -> Any:
    value = evaluate(frame, node.value)
    frame.node = node
    return attribute(frame, value, node.attr)


def _subscript(frame: CallFrame, node: ast.Subscript) -> Any:
    value, index = evaluate(frame, node.value), evaluate(frame, node.slice)
    frame.node = node
    frame.tracer.outside.unchanged(frame.tracer, value)
    return subscript(frame, value, index)


def _slice(frame: CallFrame, node: ast.Slice) -> slice:
    parts = [None if part is None else evaluate(frame, part) for part in (node.lower, node.upper, node.step)]
    return slice(*parts)


def _goes_through(function: Any) -> bool:
    """Whether a function goes through what it is given at once, or gives an iterator that does."""
    if isinstance(function, DataMethod):
        return function.name == "join"
    if isinstance(function, BuiltinFunctionType) and function.__name__ in ("join", "extend", "update"):
        return True
    return function is next or goes_through(function)


def _items(frame: CallFrame, nodes: list[ast.expr], function: Any) -> tuple[list[Any], int | None]:
    """What a function is given, and how many ops there were behind an iterator whose items Python makes later.

    Raises:
        GraphBreak: something is done behind such an iterator, or for its items, of which not all may be made.
    """
    made: list[Any] = []
    ahead: int | None = None
    for node in nodes:
        if isinstance(node, ast.Starred):
            spread = iterated(frame, node.value)
            if isinstance(spread, Symbolic) and not is_known(spread):
                spread = spread.observe(SPREAD)
            made += listed(frame.tracer, spread)
            continue
        goes = isinstance(node, ast.GeneratorExp | ast.Call) and _goes_through(function)
        if goes and not (made and function in _OF_FIRST):
            name = name_of(function)
            ends = name.startswith("itertools.") and name != "itertools.chain"
            begun = len(frame.tracer.recorder.ops)
            value = _once(frame, node)
            if isinstance(value, OnceOver):
                if (ends or any(function is one for one in _ONE_BY_ONE)) and _acts(frame, begun):
                    raise _in_turns(frame, node)
                ahead = len(frame.tracer.recorder.ops)
                value = value if function is next else value.items
        else:
            value = evaluate(frame, node)
        if ahead is not None and _does(frame, ahead):
            raise _in_turns(frame, node)
        made.append(value)
    return made, ahead


def _display(frame: CallFrame, nodes: list[ast.expr], *, hashed: bool = False) -> Any:
    """The list of what stands in a display; `hashed`: of a set, which may refuse each of its items."""
    parts: list[Any] = [[]]
    unsure: int | None = None
    for node in nodes:
        if not isinstance(node, ast.Starred):
            parts[-1].append(evaluate(frame, node))
            continue
        value = characters(frame.tracer, iterated(frame, node.value))
        if isinstance(value, SymbolicText) and not is_known(value):
            value = value.observe(SPREAD)  # one of finitely many
        if isinstance(value, Symbolic) and not is_known(value):
            if unsure is None and (hashed or not hasattr(kind_of(value), "__iter__")):
                unsure = len(frame.tracer.recorder.ops)
            parts += value, []
        else:
            parts[-1] += listed(frame.tracer, value)
    frame.node = nodes[0] if nodes else frame.node
    _refuse_behind(frame, frame.node, unsure)
    return _put_together(frame, parts)


def _refuse_behind(frame: CallFrame, node: ast.AST | None, unsure: int | None) -> None:
    """Stop where something is done behind what is spread, since `unsure`: a plan spreads all of it at the end.

    Raises:
        GraphBreak: spreading may fail before that is done.
    """
    if unsure is not None and _does(frame, unsure):
        frame.node = node
        reason = "something is done behind what is spread, which may be nothing that can be spread"
        raise GraphBreak(reason, frame.loc(), SPREAD, "do it before")


def _put_together(frame: CallFrame, parts: list[Any]) -> Any:
    """The list of all that lists hold, every second of which only a run knows."""
    if len(parts) == 1:
        return parts[0]
    texts = all(isinstance(p, SymbolicList) or (type(p) is list and set(map(type, p)) <= {str}) for p in parts)
    return pure_call(frame.tracer, "sglc.spread", *parts, kind=TEXTS if texts else list)


def _tuple(frame: CallFrame, node: ast.Tuple) -> Any:
    items = _display(frame, node.elts)
    return pure_call(frame.tracer, "tuple", items) if isinstance(items, Symbolic) else tuple(items)


def _set(frame: CallFrame, node: ast.Set) -> Any:
    items = _display(frame, node.elts, hashed=True)
    if holds_symbols(items):
        return pure_call(frame.tracer, "set", items)
    refuse_foreign(frame.tracer, "a set", items)
    return set(items)


def _dict(frame: CallFrame, node: ast.Dict) -> Any:
    pairs: list[tuple[Any, Any]] = []
    before: list[Any] = []  # what stands before the pairs, where only a run knows some of its keys
    unsure: int | None = None
    for key, value in zip(node.keys, node.values, strict=True):
        if key is None:
            whole = evaluate(frame, value)
            refuse_foreign(frame.tracer, "`**`", whole)
            if isinstance(whole, SymbolicJson) and not is_known(whole):
                if unsure is None and whole.kind is not dict:
                    unsure = len(frame.tracer.recorder.ops)
                before, pairs = [*before, _of_pairs(frame, pairs), whole], []
                continue
            pairs += entries(frame.tracer, whole).items()
            continue
        name = evaluate(frame, key)
        refuse_foreign(frame.tracer, "a dictionary key", name)
        pairs.append((settled(name), evaluate(frame, value)))
    _refuse_behind(frame, node, unsure)
    last = _of_pairs(frame, pairs)
    return pure_call(frame.tracer, "sglc.merge", *before, last) if before else last


def _of_pairs(frame: CallFrame, pairs: list[tuple[Any, Any]]) -> Any:
    if any(isinstance(name, Symbolic) for name, _ in pairs) and is_plain(pairs):
        return pure_call(frame.tracer, "dict", pairs)
    return dict(pairs)


def _format(frame: CallFrame, node: ast.JoinedStr) -> Any:
    pieces: list[str | SymbolicText] = []
    for part in node.values:
        if isinstance(part, ast.Constant):
            pieces.append(str(part.value))
            continue
        assert isinstance(part, ast.FormattedValue)
        value = evaluate(frame, part.value)
        spec = "" if part.format_spec is None else evaluate(frame, part.format_spec)
        frame.node = node
        pieces.append(formatted(frame, value, part.conversion, spec))
    if any(isinstance(piece, SymbolicText) for piece in pieces):
        return joined(tuple(pieces))
    return "".join(str(piece) for piece in pieces)


_CONVERSIONS: dict[int, Callable[[Any], str]] = {115: str, 114: repr, 97: ascii}


def formatted(frame: CallFrame, value: Any, conversion: int, spec: Any) -> Any:
    """One replacement field of an f-string."""
    if isinstance(value, Failed) and conversion in (-1, 115) and (conversion == 115 or spec == ""):
        value = value.text()
    if not holds_symbols(value) and not isinstance(spec, Symbolic):
        if not refuses_text(value):
            refuse_foreign(frame.tracer, "a format", value)
        shown = _CONVERSIONS[conversion](value) if conversion in _CONVERSIONS else value
        return format(shown, spec)
    if conversion in _CONVERSIONS and not (conversion == 115 and isinstance(value, SymbolicText)):
        value = pure_call(frame.tracer, _CONVERSIONS[conversion].__name__, value)
    if isinstance(value, SymbolicText):
        settled = value.settled()
        if spec == "":
            return value if settled is None else settled
        if settled is not None and isinstance(spec, str):
            return format(settled, spec)
    if not is_plain(value):
        reason = f"a format of a `{type(value).__name__}` could run code of its own"
        raise GraphBreak(reason, frame.loc(), FOREIGN)
    return pure_call(frame.tracer, "format", value, spec)


def closure(frame: CallFrame, node: FunctionNode, name: str) -> Closure:
    """A function that the program defines."""
    spec = node.args
    plain = len(spec.posonlyargs) + len(spec.args)
    groups: list[tuple[Any, list[ast.arg]]] = [
        (inspect.Parameter.POSITIONAL_ONLY, spec.posonlyargs),
        (inspect.Parameter.POSITIONAL_OR_KEYWORD, spec.args),
        (inspect.Parameter.VAR_POSITIONAL, [spec.vararg] if spec.vararg else []),
        (inspect.Parameter.KEYWORD_ONLY, spec.kwonlyargs),
        (inspect.Parameter.VAR_KEYWORD, [spec.kwarg] if spec.kwarg else []),
    ]
    nodes = [None] * (plain - len(spec.defaults)) + spec.defaults + ([None] if spec.vararg else [])
    nodes += spec.kw_defaults + ([None] if spec.kwarg else [])
    empty = inspect.Parameter.empty
    defaults = [empty if node is None else evaluate(frame, node) for node in nodes]
    left = iter(defaults)
    parameters = [inspect.Parameter(arg.arg, kind, default=next(left)) for kind, args in groups for arg in args]
    signature = inspect.Signature(parameters)
    inner = CallFrame(frame.tracer, node, frame.file, frame.globals, frame.cells, outer=frame)
    return Closure(inner, lambda: signature, name, defaults)


def _walrus(frame: CallFrame, node: ast.NamedExpr) -> Any:
    value = evaluate(frame, node.value)
    frame.node = node
    frame.store(node.target.id, value)
    return value


# -- what is bound --------------------------------------------------------------------------------


def assign(frame: CallFrame, target: ast.expr, value: Any) -> None:
    """Bind what is on the left of a `=`."""
    match target:
        case ast.Name(id=name):
            frame.node = target
            frame.store(name, value)
        case ast.Attribute(value=owner, attr=name):
            held = evaluate(frame, owner)
            frame.node = target
            store_attribute(frame, held, name, value)
        case ast.Subscript(value=owner, slice=index):
            held, key = evaluate(frame, owner), evaluate(frame, index)
            frame.node = target
            store_subscript(frame, held, key, value)
        case ast.Tuple(elts=targets) | ast.List(elts=targets):
            frame.node = target
            _unpack(frame, targets, value)
        case _:
            raise AssertionError(target)


def _unpack(frame: CallFrame, targets: Sequence[ast.expr], value: Any) -> None:
    if isinstance(value, Symbolic) and not is_known(value):
        if any(isinstance(target, ast.Starred) for target in targets):
            raise GraphBreak("how many items there are shows when the program runs", frame.loc(), ITERATION)
        whole = pure_call(frame.tracer, "sglc.unpack", value, len(targets))
        for number, target in enumerate(targets):
            assign(frame, target, subscript(frame, whole, number))
        return
    items = list(listed(frame.tracer, value))
    star = next((i for i, target in enumerate(targets) if isinstance(target, ast.Starred)), None)
    least = len(targets) - (star is not None)
    if len(items) < least:
        at_least = "" if star is None else "at least "
        raise ValueError(f"not enough values to unpack (expected {at_least}{least}, got {len(items)})")
    if star is not None:
        items = gathered(items, star, least)
    elif len(items) > least:
        raise ValueError(f"too many values to unpack (expected {least})")
    for target, item in zip(targets, items, strict=True):
        assign(frame, target.value if isinstance(target, ast.Starred) else target, item)


def gathered(items: Sequence[Any], star: int, others: int) -> list[Any]:
    """Items of which those that the starred place, number `star`, gets are a list: all but `others`."""
    behind = len(items) - (others - star)
    return [*items[:star], list(items[star:behind]), *items[behind:]]


# -- comprehensions --------------------------------------------------------------------------------


def _generated(frame: CallFrame, node: Any, made: ast.expr, first: Any) -> Iterator[tuple[Any, bool]]:
    """What is made in every turn of a comprehension over `first`, or (True) a list that only a run knows."""
    inner = CallFrame(frame.tracer, node, frame.file, frame.globals, frame.cells, outer=frame)

    def nest(level: int, source: Any, acts: bool) -> Iterator[tuple[Any, bool]]:
        generator, source = node.generators[level], characters(frame.tracer, source)
        listed_at_once = level > 0 and not isinstance(node, ast.GeneratorExp)
        if listed_at_once and isinstance(source, SymbolicList | SymbolicJson) and not is_known(source):
            rest = ast.copy_location(ast.ListComp(made, node.generators[level:]), node)
            yield _over_data(inner, rest, made, source, [acts]), True
            return
        if generator.is_async:
            raise GraphBreak("an asynchronous comprehension", frame.loc(), ASYNC)
        for item in turns(inner, generator.iter, source):
            assign(inner, generator.target, item)
            if not all(tested(inner, test) for test in generator.ifs):
                continue
            if level + 1 < len(node.generators):
                yield from nest(level + 1, *_lazily(inner, node.generators[level + 1].iter))
            else:
                yield evaluate(inner, made), False

    return nest(0, first, False)


def _comprehension(frame: CallFrame, node: Any, *, kept: bool = False) -> Any:
    first, acts = _lazily(frame, node.generators[0].iter)  # now, as in Python
    pairs = isinstance(node, ast.DictComp)
    kind = "dict" if pairs else "set" if isinstance(node, ast.SetComp) else ""
    made = ast.copy_location(ast.Tuple([node.key, node.value], ast.Load()), node) if pairs else node.elt
    if not kept:  # else the characters are gone through, or refused, where the generator is
        first = characters(frame.tracer, first)
    if isinstance(first, SymbolicList | SymbolicJson) and not is_known(first):
        items = _over_data(frame, node, made, first, [acts])
        if isinstance(node, ast.GeneratorExp):
            return OnceOver(items)
        return pure_call(frame.tracer, kind, items) if kind else items
    each = _generated(frame, node, made, first)
    if isinstance(node, ast.GeneratorExp):
        return (item for item, _ in each)
    parts: list[Any] = [[]]
    for item, many in each:
        if many:
            parts += item, []
        else:
            parts[-1].append(item)
    items = _put_together(frame, parts)
    if isinstance(items, Symbolic):
        return pure_call(frame.tracer, kind, items) if kind else items
    if pairs:
        undecided = any(isinstance(name, Symbolic) for name, _ in items)
        return pure_call(frame.tracer, "dict", items) if undecided else dict(items)
    if isinstance(node, ast.ListComp):
        return items
    return pure_call(frame.tracer, "set", items) if holds_symbols(items) else set(items)


def _over_data(frame: CallFrame, node: Any, made: ast.expr, source: Any, acting: list[bool]) -> Any:
    """A comprehension over a list that only a run knows: a `map` of what it makes, and one of what it asks.

    Args:
        acting: of what is done for each item before, whether it does something.
    """
    frame.node = node
    generator, *inner_ones = node.generators
    if inner_ones:
        made = ast.copy_location(ast.ListComp(made, inner_ones), node)

    def turn(item: Any) -> CallFrame:
        inner = CallFrame(frame.tracer, node, frame.file, frame.globals, frame.cells, outer=frame)
        assign(inner, generator.target, item)
        return inner

    if generator.ifs:
        test = ast.BoolOp(ast.And(), generator.ifs)
        begun = len(frame.tracer.recorder.ops)
        flags = over(frame, source, lambda item: _boolean(turn(item), test))
        acting.append(_acts(frame, begun))
        source = compressed(frame.tracer, source, flags)
        frame.node = node
    begun = len(frame.tracer.recorder.ops)
    items = over(frame, source, lambda item: evaluate(turn(item), made))
    if sum((*acting, _acts(frame, begun))) > 1:
        raise _in_turns(frame, node)
    return pure_call(frame.tracer, "sglc.flat", items) if inner_ones else items


def _awaited(frame: CallFrame, node: ast.Await) -> Any:
    value = evaluate(frame, node.value)
    frame.node = node
    if not isinstance(value, Coroutine):
        raise GraphBreak("`await` waits for more than the model", frame.loc(), ASYNC)
    return value.awaited()


_RULES: dict[type, Callable[[CallFrame, Any], Any]] = {
    ast.Constant: lambda frame, node: node.value,
    ast.Name: _name,
    ast.BinOp: _binary,
    ast.UnaryOp: _unary,
    ast.BoolOp: _boolean,
    ast.Compare: _compare,
    ast.IfExp: lambda frame, node: evaluate(frame, node.body if tested(frame, node.test) else node.orelse),
    ast.Call: _call,
    ast.Attribute: _attribute,
    ast.Subscript: _subscript,
    ast.Slice: _slice,
    ast.List: lambda frame, node: _display(frame, node.elts),
    ast.Tuple: _tuple,
    ast.Set: _set,
    ast.Dict: _dict,
    ast.JoinedStr: _format,
    ast.Lambda: lambda frame, node: closure(frame, node, "<lambda>"),
    ast.NamedExpr: _walrus,
    ast.ListComp: _comprehension,
    ast.SetComp: _comprehension,
    ast.DictComp: _comprehension,
    ast.GeneratorExp: lambda frame, node: _comprehension(frame, node, kept=True),
    ast.Await: _awaited,
}
