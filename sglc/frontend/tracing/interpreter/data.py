"""What kinds of values an interpreted program handles, and how data becomes operands of ops."""

from __future__ import annotations

import dataclasses
import gc
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from types import BuiltinFunctionType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any

from sglc.frontend.program.instance import Gathered, GatheredVariables
from sglc.frontend.tracing.call_frame import CallFrame, Closure, Coroutine
from sglc.frontend.tracing.control_blocks import record_map
from sglc.frontend.tracing.evaluation import Handler, reachable
from sglc.frontend.tracing.guards import of_a_library
from sglc.frontend.tracing.makers import declare_class
from sglc.frontend.tracing.outside import behind_tool, held_in
from sglc.frontend.tracing.pytree import tree_of
from sglc.frontend.tracing.reads import RUN_BY_PYTHON, VIEWS
from sglc.frontend.tracing.tracer import Tracer
from sglc.frontend.values.graph_breaks import (
    FOREIGN,
    ITERATION,
    NO_DATA,
    UNDECLARED,
    UNPACKED,
    BreakKind,
    GraphBreak,
)
from sglc.frontend.values.known import computed
from sglc.frontend.values.no_text import NotAwaited
from sglc.frontend.values.symbolic import (
    Failed,
    Symbolic,
    SymbolicList,
    SymbolicText,
    is_pythons,
    symbol,
)
from sglc.ir.core import Tree, Type
from sglc.ir.ops import PureCall
from sglc.ir.pure import PURE, TEXTS, class_name, function_of, is_written, sets_up_itself, type_name

_ATOMS = (str, int, float, bool, type(None))
_CONTAINERS = (list, tuple, dict, set, frozenset)
_FOR_THE_TRACE = (Symbolic, Closure, Coroutine, BaseException)  # of this package, and no object of the language
_HARMLESS = (
    *(bytes, complex, range, slice, type, Enum, ModuleType, FunctionType, BuiltinFunctionType, MethodType),
    *(BaseException, re.Pattern, Closure),
)
_LIBRARY = frozenset(
    ("builtins", "collections", "datetime", "decimal", "fractions", "functools", "itertools", "operator", "re")
)
_FORMS: Mapping[Any, Type] = {str: Type.TEXT, bool: Type.BOOL, TEXTS: Type.LIST, list[str]: Type.LIST}
_OWN_VALUES = (str, bytes, int, float, bool, TEXTS, list[str])  # hold nothing of what a function is given
_GIVE_DEFAULT = ("dict.fromkeys", "dict.get", "sglc.first", "sglc.method", "sum")  # itself, as a keyword is
_NO_METHODS = ("len", "operator.getitem")  # call no method of what a list holds
# What a plan does not raise where Python does, or the other way round.
_FAIL_IN_OTHER_WAYS = {
    "sglc.method": (AttributeError,),
    "sglc.attribute": (AttributeError,),
    "sglc.text": (TypeError,),
    "sglc.first": (StopIteration,),
}
_EMPTY: dict[Any, Any] = {}
_ITERATORS = (
    *map(type, (iter([]), iter(()), iter(_EMPTY), iter(""), iter(range(0)), iter(set()), reversed([]),
                _EMPTY.keys(), _EMPTY.values(), _EMPTY.items(), iter(_EMPTY.values()), iter(_EMPTY.items()))),
    map, filter, zip, enumerate,
)  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class OnceOver:
    """An iterator over a list that only a run knows: there is none in a plan, so it is gone through at once.

    What is no iterator, but has other items in other runs, can be kept as what `kept` makes.
    """

    items: Any
    kept: Callable[[], Any] | None = None


def is_ours(value: Any) -> bool:
    """Whether it is an object of the language: a state, an expression, what a call gives."""
    return type(value).__module__.startswith("sglc.") and not isinstance(value, _FOR_THE_TRACE)


def refuses_text(value: Any) -> bool:
    """Whether it says itself that it is no text, where it is taken for one."""
    return is_ours(value) or isinstance(value, NotAwaited)


def is_plain(value: Any) -> bool:
    """Whether a value is data, with or without values that only a run knows."""
    if isinstance(value, Symbolic) or type(value) in _ATOMS:
        return True
    if type(value) is dict:
        return all(is_plain(key) and is_plain(item) for key, item in value.items())
    return type(value) in _CONTAINERS and all(map(is_plain, value))


def holds_symbols(value: Any) -> bool:
    """Whether a value is, or holds, one that only a run knows."""
    if isinstance(value, Symbolic):
        return True
    if type(value) is dict:
        return any(map(holds_symbols, value.values()))
    return isinstance(value, list | tuple) and any(map(holds_symbols, value))


def is_foreign(tracer: Tracer, value: Any, depth: int = 0) -> bool:
    """Whether using a value could run code that is not known: it is an object of the user's, or holds one."""
    if type(value) in _ATOMS:
        return False
    if type(value) in _CONTAINERS:
        items = [*value, *value.values()] if type(value) is dict else value
        return depth > 8 or any(is_foreign(tracer, item, depth + 1) for item in items)
    if isinstance(value, Enum | BaseException):
        return _runs_its_own(tracer, type(value))
    if isinstance(value, type) and not is_known_code(type(value)):
        return _runs_its_own(tracer, type(value))
    known = isinstance(value, _HARMLESS + _ITERATORS + (Symbolic,)) or is_ours(value)
    if known or isinstance(value, GeneratorType):
        return False
    kind = type(value)
    if kind.__module__ in _LIBRARY:
        return False
    if dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"):
        held = value if isinstance(value, tuple) else getattr(value, "__dict__", {}).values()
        own = _runs_its_own(tracer, kind)
        return own or depth > 8 or any(is_foreign(tracer, item, depth + 1) for item in held)
    return True


def is_known_code(item: FunctionType | type) -> bool:
    """Whether what is asked of classes there is answered without the user's code, and changes nothing."""
    return of_a_library(item) or item.__module__.partition(".")[0] == "pydantic"


def _runs_its_own(tracer: Tracer, kind: type) -> bool:
    tracer.outside.look_up_class(kind)
    return any(is_written(kind, name) for name in RUN_BY_PYTHON)


def refuse_foreign(tracer: Tracer, what: str, *values: Any, kind: BreakKind = FOREIGN) -> None:
    """Stop before `what` of these values runs code of the user's.

    Raises:
        GraphBreak: it could.
    """
    for value in values:
        if is_foreign(tracer, value):
            reason = f"{what} of a `{type(value).__name__}` could run code of its own"
            raise GraphBreak(reason, tracer.place(), kind)
        if hasattr(type(value), "__next__") and not tracer.may_move(value):
            raise GraphBreak("an iterator from outside goes on where it is", tracer.place(), kind)


def kind_of(value: Any) -> Any:
    """The type of a value, also of one that only a run knows; `object` where nothing is known."""
    return value.kind if isinstance(value, Symbolic) else type(value)


def common_kind(items: Iterable[Any]) -> Any:
    """The type of all items; `object` where that is not one."""
    kinds = {kind_of(item) for item in items}
    return kinds.pop() if len(kinds) == 1 else object


def settled(value: Any) -> Any:
    """A text that this path has decided, also in a list or tuple, as the constant that it is."""
    if isinstance(value, SymbolicText):
        known = value.settled()
        return value if known is None else known
    if type(value) in (list, tuple) and any(isinstance(item, SymbolicText) for item in value):
        return type(value)(map(settled, value))
    return value


def undeclared(frame: CallFrame, function: Any) -> GraphBreak:
    """Why tracing stops before a call of something that is not known to be harmless."""
    known = isinstance(function, type | FunctionType | BuiltinFunctionType | MethodType)
    if not known and type(function).__module__ != "builtins":
        hint = "call a function, or a method by its name"
        what = f"a call of a `{type(function).__name__}`, which is no function,"
        return GraphBreak(f"{what} is ordinary Python", frame.loc(), UNDECLARED, hint)
    name = function.__qualname__ if known else type(function).__name__
    return GraphBreak(f"`{name}(...)` is ordinary Python", frame.loc(), UNDECLARED)


def pure_call(
    tracer: Tracer, name: str, *args: Any, kind: Any = None, named: Mapping[str, Any] = _EMPTY
) -> Any:
    """Record a call of one of Python's own functions on data.

    Args:
        named: its keywords, which may have any name: `str.format` takes the program's own.
        kind: the type of what it gives, where more is known than `PURE` says; `list[str]` is a list of texts.

    Raises:
        GraphBreak: an operand is no data, or the call could fail where the program would catch it.
    """
    pure = PURE[name]
    gives = kind if kind is not None else pure.gives
    loc = tracer.place()
    if tracer.guarded and not _is_sure(name, args, named):
        _decide_failure(tracer, name, args, named)
    for arg in (*args, *named.values()):
        _use(tracer, arg, name)
    known = computed(name, args, named)
    if known is not None and gives in (None, object):
        gives = type(known.real)
        tracer.guard(f"sglc.type({known.fact})", type_name(known.real), loc)
    used_by = args[1] if name == "sglc.raises" else name  # what a reason names
    trees = tuple(operand(tracer, arg, used_by) for arg in args)
    keywords = {key: operand(tracer, item, used_by) for key, item in named.items()}
    if gives not in _OWN_VALUES:
        for arg in (*args, *named.values()):
            for part in held_in(arg):
                tracer.copy(part)
        for default in (*named.values(), *(args[1:] if name in _GIVE_DEFAULT else ())):
            tracer.copy(default)
    form = _FORMS.get(gives, Type.JSON)
    value = tracer.recorder.emit(form, PureCall, name, trees, keywords, str(form), loc=loc)
    if known is not None:
        tracer.made(value, known)
    return symbol(value, known, gives if isinstance(gives, type) else object)


def _is_sure(name: str, args: tuple[Any, ...], named: Mapping[str, Any]) -> bool:
    """Whether a call does not fail, whatever a run gives it: where that is asked there is a path for it."""
    kinds, whole = {kind_of(arg) for arg in args}, kind_of(args[0]) if args else None
    if not PURE[name].fails and (name.startswith("sglc.") or (len(args) == 1 and not named)):
        return name.startswith(("sglc.", f"{getattr(whole, '__name__', '')}."))
    if named:
        return False
    match name.removeprefix("operator."):
        case "str.split" | "str.rsplit":
            return len(args) == 1 or (len(args) == 2 and type(args[1]) is str and args[1] != "")
        case "str.strip" | "str.lstrip" | "str.rstrip" | "str.removeprefix" | "str.removesuffix":
            return kinds == {str} and len(args) == 2
        case "str.startswith" | "str.endswith" | "str.find" | "str.count":
            return kinds == {str} and len(args) == 2
        case "str.replace":
            return kinds == {str} and len(args) == 3
        case "len" | "list":
            return len(args) == 1 and whole in (str, list, tuple, dict)
        case "eq" | "ne":
            return str in kinds
        case "lt" | "le" | "gt" | "ge":
            return kinds == {str} or kinds <= {int, bool}
        case "add" | "sub" | "mul" | "bool":
            return kinds <= {int, bool}
        case "sglc.slice":
            fixed = all(part is None or type(part) is int for part in args[1:])
            return whole in (str, list) and fixed and args[3] != 0
        case _:
            return False


def _decide_failure(tracer: Tracer, name: str, args: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    """Ask whether a call fails where the program would see it; on this path it does not, or fails here.

    Raises:
        Failed: it does.
        GraphBreak: a plan cannot tell.
    """
    tries = tracer.guarded[::-1]
    handlers = [None if each.blocks < len(tracer.bodies) else each.look_up() for each in tries]
    used: dict[int, Any] = {}
    reachable((*args, *named.values()), used)
    once = any(hasattr(type(item), "__next__") for item in used.values())  # what would be asked is gone then
    clauses = [clause for each in handlers for clause in each or ()]
    clauses += [Handler((Exception,), False)] if any(each.final for each in tries) else []
    caught = [kind for clause in clauses for kind in clause.kinds]
    other = any(issubclass(kind, each) for kind in _FAIL_IN_OTHER_WAYS.get(name, ()) for each in caught)
    if once or None in handlers or other:
        tracer.may_fail(f"`{name.removeprefix('operator.').removeprefix('sglc.')}(...)`")
    others: tuple[type, ...] = ()
    for clause in clauses:
        kinds = tuple([kind for kind in clause.kinds if is_pythons(kind) and not issubclass(kind, others)])
        if kinds and pure_call(tracer, "sglc.raises", [*map(class_name, kinds)], name, *args, named=named):
            said = clause.named and not name.startswith("sglc.")
            raise Failed(
                kinds, others, pure_call(tracer, "sglc.message", name, *args, named=named) if said else None
            )
        others += kinds


def over(frame: CallFrame, source: Any, body: Callable[[Any], Any]) -> Any:
    """What `body` gives for each item of a list that only a run knows: a `map` op.

    Raises:
        GraphBreak: `body` changes what is outside of it, or gives no data.
    """
    if not isinstance(source, SymbolicList):
        source = pure_call(frame.tracer, "list", source)
    return record_map(frame.tracer, source, body, frame.loc())


def characters(tracer: Tracer, value: Any) -> Any:
    """What is gone through: of a text that only a run knows the list of its characters."""
    if not isinstance(value, SymbolicText) or is_known(value) or value.is_decidable():
        return value
    value.refuse_argument(ITERATION, "a loop")
    return pure_call(tracer, "list", value, kind=TEXTS)


def compressed(tracer: Tracer, items: Symbolic, flags: Any) -> Any:
    """The items of a list that only a run knows whose flags hold."""
    kind = list[str] if isinstance(items, SymbolicList) else list
    return pure_call(tracer, "sglc.compress", items, flags, kind=kind)


def _use(tracer: Tracer, item: Any, name: str) -> None:
    """Note what using an operand takes for granted.

    Raises:
        GraphBreak: a tool may have changed it, or it is an object whose methods would run.
    """
    if isinstance(item, list | tuple):
        for part in item:
            _use(tracer, part, name)
    if not isinstance(item, Symbolic) or item.known is None or isinstance(item.known.real, _ATOMS):
        return
    known = item.known
    if tracer.called_tool and not isinstance(known.real, tuple | frozenset | Enum):
        raise behind_tool(tracer, f"`{known.fact}`")
    if name == "sglc.attribute" or (name in _NO_METHODS and type(known.real) in (list, tuple)):
        return
    refuse_foreign(tracer, f"`{name}`", known.real)
    whole(tracer, item)


def whole(tracer: Tracer, item: Symbolic) -> None:
    """An object is used as what it is, and not only its fields: what stands for it would not do."""
    if item.known is not None and type_name(item.known.real).count("."):
        tracer.guard(f"sglc.type({item.known.fact})", type_name(item.known.real), tracer.place())


def asked(tracer: Tracer, value: Symbolic, name: str) -> Any:
    """What a function of Python's gives for data that is known: a guard."""
    assert value.known is not None
    _use(tracer, value, name)
    made = function_of(name)(value.known.real)
    return tracer.guard(f"{name}({value.known.fact})", made, tracer.place())


def unrolled(tracer: Tracer, value: Symbolic) -> list[Any]:
    """The items of data that is known; there are as many in all runs of the program.

    Raises:
        GraphBreak: they have no order that is the same in all runs.
    """
    assert value.known is not None
    real = value.known.real
    if isinstance(real, dict):
        return unrolled(tracer, pure_call(tracer, "list", value))
    if isinstance(real, set | frozenset) and len(real) > 1:
        raise GraphBreak("the order of a set is another in every process", tracer.place(), ITERATION)
    if not isinstance(real, str | list | tuple):
        return list(value.observe(ITERATION))
    kind = str if isinstance(value, SymbolicText | SymbolicList) else None
    count = asked(tracer, value, "len")
    return [pure_call(tracer, "operator.getitem", value, number, kind=kind) for number in range(count)]


def entries(tracer: Tracer, value: Any) -> dict[Any, Any]:
    """A mapping that is data and known, as one of the program's own; any other as it is."""
    if isinstance(value, Symbolic) and value.known is None:
        value = value.observe(UNPACKED)
    if not isinstance(value, Symbolic) or value.known is None or not isinstance(value.known.real, dict):
        return dict(value)
    keys = asked(tracer, value, "list")
    return {key: pure_call(tracer, "operator.getitem", value, key) for key in keys}


def is_known(value: Any) -> bool:
    """Whether it is data that has a real value."""
    return isinstance(value, Symbolic) and value.known is not None


def operand(tracer: Tracer, item: Any, name: str) -> Tree:
    """A value as an operand: what JSON has no form for is made by a call of its own.

    Raises:
        GraphBreak: it is no data.
    """
    match item:
        case Symbolic():
            if name != "sglc.attribute":
                whole(tracer, item)
        case Gathered(value=None):
            return tuple(operand(tracer, entry, name) for entry in item.entries)
        case GatheredVariables():
            return {key: operand(tracer, made, name) for key, made in item.variables.items()}
        case _ if is_ours(item):
            pass
        case list() if type(item) is list:
            return tuple(operand(tracer, part, name) for part in item)
        case dict() if type(item) is dict and all(type(key) is str for key in item):
            return {key: operand(tracer, part, name) for key, part in item.items()}
        case dict() if type(item) is dict:
            pairs = tuple((operand(tracer, k, name), operand(tracer, v, name)) for k, v in item.items())
            return _made(tracer, "dict", (pairs,))
        case tuple() if type(item) is tuple:
            return _made(tracer, "tuple", (tuple(operand(tracer, part, name) for part in item),))
        case set() | frozenset() if type(item) in (set, frozenset):
            ordered = sorted(item, key=repr)
            return _made(tracer, type(item).__name__, (tuple(operand(tracer, part, name) for part in ordered),))
        case Enum():
            return _object(tracer, type(item), (operand(tracer, item.value, name),), {})
        case tuple() if hasattr(type(item), "_fields") and not sets_up_itself(type(item)):
            return _object(tracer, type(item), tuple(operand(tracer, part, name) for part in item), {})
        case _ if dataclasses.is_dataclass(item) and not isinstance(item, type):
            fields, kind = dataclasses.fields(item), type(item)
            if all(own.init for own in fields) and not (is_foreign(tracer, item) or sets_up_itself(kind)):
                held = {own.name: operand(tracer, getattr(item, own.name), name) for own in fields}
                return _object(tracer, kind, (), held)
        case list() | tuple() | dict() | set():
            raise GraphBreak(f"a `{type(item).__name__}` is given to `{name}`", tracer.place(), NO_DATA)
        case range():
            return _made(tracer, "sglc.range", (item.start, item.stop, item.step))
        case _ if isinstance(item, VIEWS):
            (held,) = gc.get_referents(item)
            return _made(tracer, type(item).__name__.replace("_", "."), (operand(tracer, held, name),))
        case Iterable() if name in PURE and isinstance(item, (*_ITERATORS, GeneratorType)):
            refuse_foreign(tracer, "an iterator", item)
            return operand(tracer, list(item), name)
    return tree_of(tracer, item, tracer.place(), f"given to `{name}`")


def _object(tracer: Tracer, kind: type, args: tuple[Tree, ...], named: dict[str, Tree]) -> Tree:
    name = declare_class(kind)
    return tracer.recorder.emit(Type.JSON, PureCall, name, args, named, "object", loc=tracer.place())


def _made(tracer: Tracer, name: str, args: tuple[Tree, ...]) -> Tree:
    return tracer.recorder.emit(Type.JSON, PureCall, name, args, {}, str(Type.JSON), loc=tracer.place())


def listed(tracer: Tracer, value: Any) -> Iterator[Any]:
    """The items of something that can be gone through now.

    Raises:
        GraphBreak: only a run knows them, or going through it could run code of the user's.
    """
    if isinstance(value, Symbolic) and value.known is not None:
        return iter(unrolled(tracer, value))
    iterable = hasattr(type(value), "__iter__") or hasattr(type(value), "__getitem__")
    if not isinstance(value, Symbolic) and not iterable:
        raise TypeError(f"'{type(value).__name__}' object is not iterable")
    if type(value) in _CONTAINERS:
        return iter(value)  # whatever it holds
    refuse_foreign(tracer, "a loop", value)
    kind = type(value)
    known = isinstance(value, (*_ITERATORS, GeneratorType, range, bytes, type, Mapping, Symbolic))
    if not (known or is_ours(value) or kind.__module__ in _LIBRARY or hasattr(kind, "_fields")):
        raise GraphBreak(f"a loop over a `{type(value).__name__}`", tracer.place(), NO_DATA)
    return iter(value)
