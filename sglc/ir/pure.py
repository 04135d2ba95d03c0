"""Functions of Python's own that a program may apply to data: `pure_call` names them, and a plan runs them.

None of them changes what it is given, reads anything else, or calls back. A plan holds names only, and a name
that is not here is a declared function of the user's.
"""

from __future__ import annotations

import builtins
import collections
import dataclasses
import enum
import functools
import importlib
import inspect
import operator
import reprlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, EnumMeta
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    FunctionType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    WrapperDescriptorType,
)
from typing import Any

TEXTS = "list of texts"  # the type of a list that holds nothing but texts
READ_PICTURE = "sglc.image"  # what a plan calls for a picture that a text names: it reads the file of a path
PAUSE = "sglc.pause"  # a tool that ends the run, unless a person has answered
STORED = ", stored"  # ends the names of what reads a variable's typed value at the end


@dataclass(frozen=True, slots=True)
class PureFunction:
    """`gives` is the type of its result: a class, `TEXTS`, or None where that depends on the operands.

    `fails`: it may raise, although its operands have the types that the tracer knows of.
    """

    gives: Any = None
    fails: bool = True


def _named(names: str, gives: Any, *, fails: bool = True, of: str = "") -> dict[str, PureFunction]:
    return {of + name: PureFunction(gives, fails) for name in names.split()}


# Methods of a type that leave their object as it is. Of a value whose type shows at run time only, these are
# all that may be called.
METHODS: Mapping[type, Mapping[str, PureFunction]] = {
    str: {
        **_named("capitalize casefold expandtabs lower lstrip removeprefix removesuffix rstrip strip swapcase "
                 "title upper", str, fails=False),
        **_named("center format format_map join ljust replace rjust translate zfill", str),
        **_named("endswith startswith", bool),
        **_named("isalnum isalpha isascii isdecimal isdigit isidentifier islower isnumeric isprintable isspace "
                 "istitle isupper", bool, fails=False),
        **_named("count find index rfind rindex", int),
        **_named("rsplit split", TEXTS),
        **_named("splitlines", TEXTS, fails=False),
        **_named("partition rpartition", tuple),
        **_named("encode", bytes),
    },
    bytes: {**_named("decode hex", str), **_named("startswith endswith", bool), **_named("count find", int)},
    int: {**_named("bit_length bit_count", int), **_named("is_integer", bool)},
    float: {**_named("is_integer", bool), **_named("hex", str)},
    list: {**_named("copy", list, fails=False), **_named("count", int, fails=False), **_named("index", int)},
    tuple: _named("count index", int),
    dict: {**_named("copy", dict, fails=False), **_named("get", object),
           **{each: PureFunction(type(getattr({}, each)()), False) for each in ("items", "keys", "values")}},
    **{kind: {**_named("union intersection difference symmetric_difference copy", kind),
              **_named("issubset issuperset isdisjoint", bool)} for kind in (set, frozenset)},
}  # fmt: skip

_OPERATORS = _named(
    "add sub mul truediv floordiv mod pow neg pos invert abs getitem and_ or_ xor lshift rshift matmul",
    None, of="operator.",
) | _named("eq ne lt le gt ge contains not_", bool, of="operator.")  # fmt: skip

_BUILTINS = {
    **_named("len ord round hash", int),
    **_named("int", int),
    **_named("float", float),
    **_named("bool all any", bool),
    **_named("str repr ascii format chr bin hex oct", str),
    **_named("list sorted", list),
    **_named("tuple divmod", tuple),
    **_named("set", set),
    **_named("frozenset", frozenset),
    **_named("dict dict.fromkeys", dict),
    **_named("abs max min pow sum", None),
}

_LIBRARY = {
    **_named("re.sub json.dumps html.escape html.unescape textwrap.dedent textwrap.fill textwrap.indent "
             "textwrap.shorten re.escape", str),
    **_named("re.split textwrap.wrap difflib.get_close_matches", TEXTS),
    **_named("re.findall re.finditer", list),
    **_named("collections.Counter re.search re.match re.fullmatch json.loads ast.literal_eval", object),
    **_named("math.ceil math.floor math.trunc math.isqrt math.gcd math.lcm math.factorial math.comb", int),
    **_named("math.sqrt math.log math.log2 math.log10 math.exp math.sin math.cos math.tan math.fabs math.pow "
             "math.hypot math.dist math.fsum math.atan math.atan2 math.radians math.degrees", float),
    **_named("math.isclose math.isnan math.isinf math.isfinite", bool),
    **_named("math.prod statistics.mean statistics.median statistics.mode statistics.stdev statistics.pstdev "
             "statistics.fmean statistics.variance statistics.pvariance", None),
    **_named("statistics.multimode", list),
    **_named("datetime.date.fromisoformat datetime.datetime.fromisoformat datetime.timedelta datetime.date",
             object),
    **_named("chain combinations permutations product pairwise islice zip_longest accumulate", list,
             of="itertools."),
    **_named("fractions.Fraction decimal.Decimal", object),
}  # fmt: skip

# What no single function of Python's is: see below.
_OWN = {
    **_named("sglc.slice sglc.method sglc.attribute sglc.instance", None),
    **_named("sglc.type sglc.message", str, fails=False),
    **_named("sglc.raises", bool, fails=False),
    **_named("sglc.text", str),
    **_named("sglc.known", object),
    **_named("sglc.is_none", bool, fails=False),
    **_named("sglc.isinstance", bool),
    **_named("sglc.template", str),
    **_named("sglc.arrange", list),
    **_named("sglc.compress sglc.unpack sglc.spread sglc.flat", list),
    **_named("sglc.merge", dict),
    **_named("sglc.first", None),
    **_named("sglc.zip sglc.enumerate sglc.reversed", list),
    **_named("sglc.range", range),
}

PURE: Mapping[str, PureFunction] = {
    **_BUILTINS,
    **_OPERATORS,
    **_LIBRARY,
    **_OWN,
    **{f"{kind.__name__}.{name}": known for kind, names in METHODS.items() for name, known in names.items()},
}

# Attributes that may be read of values which these functions give.
_ATTRIBUTES = {
    "date": ("year", "month", "day"),
    "datetime": ("year", "month", "day", "hour", "minute", "second", "microsecond"),
    "timedelta": ("days", "seconds", "microseconds"),
    "Match": ("string", "lastindex", "lastgroup", "pos", "endpos"),
}
# Methods of such values, besides `METHODS`.
_MORE_METHODS = {
    "Match": ("group", "groups", "groupdict", "start", "end", "span", "expand"),
    "Counter": ("most_common", "elements", "total", "get", "items", "keys", "values", "copy"),
    "date": ("isoformat", "strftime", "weekday", "isoweekday", "toordinal", "replace", "timetuple"),
    "datetime": ("isoformat", "strftime", "weekday", "isoweekday", "date", "time", "timestamp", "replace"),
    "timedelta": ("total_seconds",),
    "Fraction": ("limit_denominator",),
    "Decimal": ("quantize", "normalize"),
}
# What may be called of a value whose type only a run knows: anything else is a method of none of them.
CALLABLE = frozenset(name for methods in (*METHODS.values(), *_MORE_METHODS.values()) for name in methods)


@functools.cache
def function_of(name: str) -> Callable[..., Any]:
    """The function that `name` of `PURE` is.

    Raises:
        KeyError: it is not there.
    """
    if name not in PURE:
        raise KeyError(name)
    if name in _MADE:
        return _MADE[name]
    head, _, last = name.rpartition(".")
    if head == "operator":
        return getattr(operator, last)  # type: ignore[no-any-return]
    owner: Any = getattr(builtins, head, None) if head else builtins
    if owner is None:
        module, _, inner = head.partition(".")
        owner = importlib.import_module(module)
        owner = getattr(owner, inner) if inner else owner
    made = getattr(owner, last)
    return _listed(made) if gives_iterator(name) else made


_FUNCTIONS = (BuiltinFunctionType, FunctionType, MethodDescriptorType, MethodType, type)


def name_of(function: Any) -> str:
    """The name under which a function of Python's is in `PURE`; "" if it is not."""
    if not isinstance(function, _FUNCTIONS):
        return ""
    owner = getattr(function, "__self__", getattr(function, "__objclass__", None))
    module = str(getattr(function, "__module__", None) or getattr(owner, "__module__", ""))
    qualified = getattr(function, "__qualname__", "")
    name = qualified if module == "builtins" else f"{module.lstrip('_')}.{qualified}"
    if name not in PURE or name.startswith("sglc."):
        return ""
    known = function_of(name)
    same = known is function or known == function or getattr(known, "__wrapped__", None) is function
    return name if same else ""


def gives_iterator(name: str) -> bool:
    """Whether a function of `PURE` gives an iterator, and in a plan the list of its items."""
    return name.startswith("itertools.") or name == "re.finditer"


def _listed(function: Callable[..., Iterable[Any]]) -> Callable[..., list[Any]]:
    @functools.wraps(function, updated=())
    def made(*args: Any, **named: Any) -> list[Any]:
        return list(function(*args, **named))

    return made


def _slice(value: Any, start: Any, stop: Any, step: Any) -> Any:
    return value[start:stop:step]


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a prompt is made of texts, not of `{type(value).__name__}`")
    return value


def _method(value: Any, name: str, /, *args: Any, **named: Any) -> Any:
    """A method of a value whose type shows only now."""
    kind = type(value)
    known = {known for base in kind.__mro__ for known in METHODS.get(base, ())}
    if name not in known and name not in _MORE_METHODS.get(kind.__name__, ()):
        raise AttributeError(f"'{kind.__name__}' object has no attribute '{name}' that a plan may call")
    made = getattr(value, name)(*args, **named)
    return list(made) if name == "elements" else made


@dataclass(frozen=True, slots=True)
class Instance:
    """An object of a class that this process does not have, by what it holds."""

    kind: str
    fields: Mapping[str, Any]


def type_name(value: Any) -> str:
    """The name of a value's type, with its module unless it is a builtin."""
    return str(value.kind) if type(value) is Instance else class_name(type(value))


def class_name(kind: type) -> str:
    """The name of a class, with its module unless it is a builtin."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


_BUILT_IN = (BuiltinFunctionType, WrapperDescriptorType, MethodDescriptorType, ClassMethodDescriptorType)
_MADE_IN = ("<string>", dataclasses.__file__, collections.__file__, enum.__file__, reprlib.__file__)


def is_written(kind: type, name: str) -> bool:
    """Whether a method is the user's own: no builtin, and not made for a dataclass, a named tuple, an enum."""
    made = _in_class(kind, name)
    if isinstance(made, staticmethod | classmethod):
        made = made.__func__
    if isinstance(made, FunctionType):
        return made.__code__.co_filename not in _MADE_IN
    return made is not None and not isinstance(made, _BUILT_IN)


def _in_class(kind: type, name: str) -> Any:
    return next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)


def sets_up_itself(kind: type) -> bool:
    """Whether making an object of a class, all of whose fields are given, runs code of the user's."""
    if is_written(type(kind), "__call__"):
        return True
    if any(is_written(kind, name) for name in ("__new__", "__init__", "__post_init__", "__setattr__")):
        return True
    fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
    return any(_made_by_itself(kind, field) for field in fields)


def _made_by_itself(kind: type, field: dataclasses.Field[Any]) -> bool:
    """Whether the user's code makes a field, or is told what is stored there."""
    stored = _in_class(kind, field.name)
    told = hasattr(type(stored), "__set__") and not isinstance(stored, MemberDescriptorType)
    return told or (not field.init and field.default_factory not in FACTORIES)


FACTORIES = (dataclasses.MISSING, list, dict, set, tuple, str, int)  # of fields; they run no code of the user's


def _instance(kind: str, held: Mapping[str, Any]) -> Any:
    """The object of a class that is imported here, else what stands for it.

    A plan may come from a stranger: a class whose own code would run is not used.
    """
    module, _, name = kind.rpartition(".")
    found = getattr(sys.modules.get(module), "__dict__", {}).get(name)
    if isinstance(found, EnumMeta) and held.get("name") in found.__members__:
        return found.__members__[held["name"]]
    if isinstance(found, type) and getattr(found, "__pydantic_fields__", {}).keys() == held.keys():
        plain = getattr(found, "__pydantic_post_init__", "") is None and not is_written(found, "__new__")
        construct = _in_class(found, "model_construct").__func__
        if plain and construct.__module__.startswith("pydantic."):
            return construct(found, **held)
    if not isinstance(found, type) or sets_up_itself(found):
        return Instance(kind, held)
    if dataclasses.is_dataclass(found):
        if {field.name for field in dataclasses.fields(found) if field.init} == held.keys():
            return found(**held)
    elif issubclass(found, tuple) and getattr(found, "_fields", None) == tuple(held):
        return tuple.__new__(found, held.values())
    return Instance(kind, held)


def _attribute(value: Any, name: str) -> Any:
    """A field of a value, as far as reading it runs no code."""
    if type(value) is dict and name in value:
        return value[name]  # the fields of an object that was given as an argument
    kind = type(value)
    if kind is Instance and name.strip("_") in value.fields:
        return value.fields[name.strip("_")]
    if isinstance(value, Enum) and name.strip("_") in ("name", "value"):
        return value._name_ if "name" in name else value._value_
    if kind.__module__ not in sys.stdlib_module_names:
        if name in (held := getattr(value, "__dict__", {})):
            return held[name]
        in_class = inspect.getattr_static(kind, name, None)
        if isinstance(in_class, MemberDescriptorType) or type(in_class).__name__ == "_tuplegetter":
            return getattr(value, name)
    if name not in _ATTRIBUTES.get(type(value).__name__, ()):
        raise AttributeError(f"'{type(value).__name__}' object has no attribute '{name}' that a plan may read")
    return getattr(value, name)


def _isinstance(value: Any, names: Sequence[str]) -> bool:
    kinds = tuple(getattr(builtins, name) for name in names)
    return isinstance(value, kinds)


def _template(template: str, safe: bool, values: Mapping[str, Any]) -> str:
    from string import Template

    made = Template(template)
    return made.safe_substitute(values) if safe else made.substitute(values)


def _arrange(how: str, items: Sequence[Any], keys: Sequence[Any], reverse: bool = False) -> Any:
    """`sorted`, `max` or `min` of items by keys that are there already."""
    items = list(items)
    order = range(len(items))
    if how == "sorted":
        return [items[at] for at in sorted(order, key=lambda at: keys[at], reverse=reverse)]
    return items[(max if how == "max" else min)(order, key=lambda at: keys[at])]


def _compress(items: Sequence[Any], chosen: Sequence[Any]) -> list[Any]:
    return [item for item, there in zip(items, chosen, strict=True) if there]


def _unpack(value: Any, count: int) -> list[Any]:
    items = list(value)
    if len(items) < count:
        raise ValueError(f"not enough values to unpack (expected {count}, got {len(items)})")
    if len(items) > count:
        raise ValueError(f"too many values to unpack (expected {count})")
    return items


def _spread(*parts: Any) -> list[Any]:
    made: list[Any] = []
    for part in parts:
        made = [*made, *part]
    return made


def _merge(*parts: Any) -> dict[Any, Any]:
    made: dict[Any, Any] = {}
    for part in parts:
        made = {**made, **part}
    return made


def _raised_by(name: str, args: tuple[Any, ...], named: Mapping[str, Any]) -> Exception | None:
    function = function_of(name)
    try:
        function(*args, **named)
    except Exception as error:
        return error
    return None


def _raises(kinds: Sequence[str], name: str, /, *args: Any, **named: Any) -> bool:
    """Whether a function raises an error of one of these classes, by their names."""
    error = _raised_by(name, args, named)
    return error is not None and any(class_name(kind) in kinds for kind in type(error).__mro__)


def _message(name: str, /, *args: Any, **named: Any) -> str:
    """What an error says that a function raises."""
    return str(_raised_by(name, args, named))


_MADE: Mapping[str, Callable[..., Any]] = {
    "sglc.slice": _slice,
    "sglc.known": lambda *read: None,
    "sglc.text": _text,
    "sglc.method": _method,
    "sglc.attribute": _attribute,
    "sglc.instance": _instance,
    "sglc.type": type_name,
    "sglc.raises": _raises,
    "sglc.message": _message,
    "sglc.is_none": lambda value: value is None,
    "sglc.isinstance": _isinstance,
    "sglc.template": _template,
    "sglc.arrange": _arrange,
    "sglc.compress": _compress,
    "sglc.unpack": _unpack,
    "sglc.spread": _spread,
    "sglc.flat": lambda rows: [item for row in rows for item in row],
    "sglc.merge": _merge,
    "sglc.first": lambda items, *default: next(iter(items), *default),
    "sglc.zip": lambda *items: list(zip(*items, strict=False)),
    "sglc.enumerate": lambda items, start=0: list(enumerate(items, start)),
    "sglc.reversed": lambda items: list(reversed(items)),
    "sglc.range": range,
}
