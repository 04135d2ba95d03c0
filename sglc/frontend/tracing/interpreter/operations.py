"""Operators, subscripts, attributes and truth: on constants Python's own, on data ops of the program."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import operator
import types
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from sglc.errors import SglcError
from sglc.frontend.program.instance import GatheredVariables
from sglc.frontend.program.state import State
from sglc.frontend.tracing.call_frame import CallFrame
from sglc.frontend.tracing.control import asked_of_texts
from sglc.frontend.tracing.control_blocks import concatenated
from sglc.frontend.tracing.interpreter.data import (
    asked,
    holds_symbols,
    is_ours,
    is_plain,
    kind_of,
    pure_call,
    refuse_foreign,
    refuses_text,
    whole,
)
from sglc.frontend.tracing.outside import is_sglc, name_of
from sglc.frontend.tracing.reads import own_fields
from sglc.frontend.tracing.subprogram import CallResult
from sglc.frontend.values.graph_breaks import ATTRIBUTE, COMPARISON, CONDITION, KEY, OPERATOR, OTHER, GraphBreak
from sglc.frontend.values.known import computed
from sglc.frontend.values.symbolic import (
    Symbolic,
    SymbolicBool,
    SymbolicJson,
    SymbolicList,
    SymbolicText,
    joined,
)
from sglc.ir.core import Type, Value
from sglc.ir.facts import fields_of
from sglc.ir.ops import Eq, In, Not, PureCall
from sglc.ir.pure import METHODS, type_name

BINARY: Mapping[type[ast.operator], str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "truediv", ast.FloorDiv: "floordiv",
    ast.Mod: "mod", ast.Pow: "pow", ast.BitAnd: "and_", ast.BitOr: "or_", ast.BitXor: "xor",
    ast.LShift: "lshift", ast.RShift: "rshift", ast.MatMult: "matmul",
}  # fmt: skip
_ORDER: Mapping[type[ast.cmpop], str] = {ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge"}
_READS = (State, GatheredVariables, CallResult)


def truth(frame: CallFrame, value: Any) -> bool:
    """Whether a value is true: of what only a run knows, on this path."""
    if isinstance(value, Symbolic) and value.known is not None:
        return bool(value.observe(CONDITION) if kind_of(value) is bool else asked(frame.tracer, value, "bool"))
    match value:
        case SymbolicText():
            settled = value.settled()
            if settled is not None or any(isinstance(part, str) and part for part in value.parts):
                return True if settled is None else bool(settled)
            if value.is_decidable():
                return bool(value)
            return bool(not_(frame, equal(frame, value, "")))
        case SymbolicBool():
            return bool(value)
        case Symbolic():
            return bool(pure_call(frame.tracer, "bool", value))
        case _:
            refuse_foreign(frame.tracer, "a condition", value)
            return bool(value)


def not_(frame: CallFrame, value: Any) -> Any:
    """`not value`."""
    if isinstance(value, SymbolicBool):
        known = frame.tracer.known(value.value)
        if known is None:
            made = frame.tracer.recorder.emit(Type.BOOL, Not, value.value, loc=frame.loc())
            return SymbolicBool(made, computed("operator.not_", (value,), {}))
        return not known
    return not truth(frame, value)


def unary(frame: CallFrame, node: ast.unaryop, value: Any) -> Any:
    """`-value` and its like."""
    name = {ast.USub: "neg", ast.UAdd: "pos", ast.Invert: "invert"}.get(type(node))
    if name is None:
        return not_(frame, value)
    if isinstance(value, Symbolic):
        return pure_call(frame.tracer, f"operator.{name}", value, kind=kind_of(value))
    refuse_foreign(frame.tracer, "an operator", value, kind=OPERATOR)
    return getattr(operator, name)(value)


def binary(frame: CallFrame, node: ast.operator, left: Any, right: Any, *, inplace: bool = False) -> Any:
    """`left + right` and its like; with `inplace`, `left += right`."""
    name = BINARY[type(node)]
    if refuses_text(left) or refuses_text(right):
        left, right = as_text(frame, left), as_text(frame, right)
        made: Callable[[Any, Any], Any] = getattr(operator, _in_place(name) if inplace else name)
        return made(left, right)
    if isinstance(left, Symbolic) or isinstance(right, Symbolic):
        if inplace and not _is_same_in_place(name, left, right):
            frame.tracer.may_fail(f"`{_shown(frame)}`")
        if inplace and _changes_in_place(frame, name, left, right):
            sure = kind_of(right) in _CHANGED_IN_PLACE or kind_of(left) in _CHANGED_IN_PLACE
            frame.tracer.replace(left, f"`{_shown(frame)}`", sure=sure)
        return _data_binary(frame, name, left, right)
    if name == "mod" and isinstance(left, str) and holds_symbols(right):
        return pure_call(frame.tracer, "operator.mod", left, right, kind=str)
    refuse_foreign(frame.tracer, "an operator", left, right, kind=OPERATOR)
    if inplace and isinstance(left, list | dict | set):
        frame.tracer.change(left, f"`{_shown(frame)}`")
        return getattr(operator, _in_place(name))(left, right)
    return getattr(operator, name)(left, right)


_CHANGED_IN_PLACE = (list, dict, set, list[str])


_OF_NUMBERS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
_ARITHMETIC = ("operator.add", "operator.sub", "operator.truediv", "operator.floordiv")


def _changes_in_place(frame: CallFrame, name: str, left: Any, right: Any) -> bool:
    """Whether `left += right` and its like may change what `left` is, for all who hold it."""
    if kind_of(left) in _CHANGED_IN_PLACE:
        return True
    plain = kind_of(right) in (int, float, bool, str, type(None)) and name != "mul"
    return kind_of(left) is object and not plain and not _is_number(frame, left)


def _is_same_in_place(name: str, left: Any, right: Any) -> bool:
    """Whether `left += right` and its like give and raise, to the word, what `left + right` does."""
    kinds = {kind_of(left), kind_of(right)}
    return (name == "add" and kinds == {str}) or (name in _OF_NUMBERS and kinds <= {int, float, bool})


def _is_number(frame: CallFrame, value: Any) -> bool:
    """Whether it is what a number became by arithmetic."""
    held: Any = value.value if isinstance(value, SymbolicJson) else None
    while isinstance(held, Value):
        op = frame.tracer.made_by(held)
        if not isinstance(op, PureCall) or op.name not in _ARITHMETIC:
            return False
        if any(isinstance(arg, int | float) for arg in op.args):
            return True
        held = op.args[0]
    return False


def _in_place(name: str) -> str:
    return "i" + name.rstrip("_")  # `and_`, but `iand`


def as_text(frame: CallFrame, item: Any) -> Any:
    """Data of which only a run knows whether it is a text, as a text; anything else as it is."""
    if isinstance(item, SymbolicJson) and (item.kind is object or issubclass(item.kind, str)):
        return pure_call(frame.tracer, "sglc.text", item)
    return item


def _data_binary(frame: CallFrame, name: str, left: Any, right: Any) -> Any:
    one, other = kind_of(left), kind_of(right)
    if name == "add":
        if {one, other} == {str}:
            return joined((left, right))
        if isinstance(left, SymbolicList) or isinstance(right, SymbolicList):
            sides = (left, right)
            items = [item for side in sides if isinstance(side, list) for item in side]
            texts = all(isinstance(item, str | SymbolicText) for item in items)
            if texts and all(isinstance(side, SymbolicList | list) for side in sides):
                parts = [part for side in sides for part in (side if isinstance(side, list) else [side])]
                return concatenated(frame.tracer, parts, frame.loc())
    return pure_call(frame.tracer, f"operator.{name}", left, right, kind=_result(name, one, other))


def _result(name: str, left: Any, right: Any) -> Any:
    """The type of what an operator gives, as far as the types of its operands say."""
    kinds = {left, right}
    if kinds <= {int, float, bool}:
        if name == "truediv" or float in kinds:
            return float
        return object if name == "pow" else int
    if (name == "mul" and str in kinds and kinds <= {str, int, bool}) or (name == "mod" and left is str):
        return str
    if name in ("add", "mul") and list in kinds and kinds <= {list, int}:
        return list
    return object


# -- comparisons -----------------------------------------------------------------------------------


def compare(frame: CallFrame, node: ast.cmpop, left: Any, right: Any) -> Any:
    """One comparison; what data takes part in is a recorded truth value."""
    left, right = as_member(left), as_member(right)
    match node:
        case ast.Is() | ast.IsNot():
            made = _same(frame, left, right)
        case ast.Eq() | ast.NotEq():
            made = equal(frame, left, right)
        case ast.In() | ast.NotIn():
            made = _contains(frame, right, left)
        case _:
            name = _ORDER[type(node)]
            if _undecided(frame, left) or _undecided(frame, right):
                return pure_call(frame.tracer, f"operator.{name}", left, right)
            refuse_foreign(frame.tracer, "an ordering", left, right, kind=OPERATOR)
            return getattr(operator, name)(left, right)
    return not_(frame, made) if isinstance(node, ast.IsNot | ast.NotEq | ast.NotIn) else made


def equal(frame: CallFrame, left: Any, right: Any) -> Any:
    """`left == right`."""
    left, right = as_member(left), as_member(right)
    if not (_undecided(frame, left) or _undecided(frame, right)):
        refuse_foreign(frame.tracer, "a comparison", left, right, kind=OPERATOR)
        return left == right
    if kind_of(left) is str and kind_of(right) is str and not isinstance(left, SymbolicJson):
        known = computed("operator.eq", (left, right), {})
        return asked_of_texts(frame.tracer, Eq, left, right, frame.loc(), known)
    if {kind_of(left), kind_of(right)} == {str, type(None)}:
        return False
    return pure_call(frame.tracer, "operator.eq", left, right)


def _contains(frame: CallFrame, whole: Any, part: Any) -> Any:
    if is_ours(whole):
        return part in whole
    if not (_undecided(frame, whole) or _undecided(frame, part)):
        refuse_foreign(frame.tracer, "`in`", whole, part, kind=OPERATOR)
        return part in whole
    if kind_of(whole) is str and kind_of(part) is str and not isinstance(whole, SymbolicJson):
        known = computed("operator.contains", (whole, part), {})
        return asked_of_texts(frame.tracer, In, part, whole, frame.loc(), known)
    if isinstance(whole, Mapping):
        if kind_of(part) not in _SCALARS:
            frame.tracer.may_fail("a look-up of what may have no hash")
        whole = list(whole)
    return pure_call(frame.tracer, "operator.contains", whole, part)


def as_member(value: Any) -> Any:
    """A member of an enumeration that is an argument as itself: which one it is, is asked."""
    if isinstance(value, Symbolic) and value.known is not None and isinstance(value.known.real, Enum):
        return value.observe(COMPARISON)
    return value


def _same(frame: CallFrame, left: Any, right: Any) -> Any:
    for one, other in ((left, right), (right, left)):
        if isinstance(one, SymbolicBool) and isinstance(other, bool):
            return bool(one) is other
        if isinstance(one, Symbolic) and other is None:
            if kind_of(one) is object:
                return pure_call(frame.tracer, "sglc.is_none", one)
            return kind_of(one) is type(None)
    if isinstance(left, Symbolic) and left is not right:
        left = left.observe(OPERATOR, "`is`")
    return left is right


def _undecided(frame: CallFrame, value: Any) -> bool:
    """Whether a value is, or holds, data that has no finite set of values."""
    match value:
        case SymbolicText():
            return not value.is_decidable()
        case SymbolicBool():
            return value.known is not None  # as any other argument
        case Symbolic():
            return True
        case _:
            return holds_symbols(value)


# -- parts -----------------------------------------------------------------------------------------


def subscript(frame: CallFrame, value: Any, index: Any) -> Any:
    """`value[index]`."""
    if is_ours(value):
        if isinstance(index, SymbolicText):
            index = index.observe(OPERATOR, "an index")
        found = value[index]
        decided = isinstance(found, str) and not isinstance(value, CallResult)  # a path has read it
        if isinstance(value, _READS) and not decided:
            frame.tracer.may_fail(f"`[{index!r}]`", SglcError if isinstance(value, State) else BaseException)
        frame.tracer.was_read(found)
        return found
    settled = value.settled() if isinstance(value, SymbolicText) else None
    if settled is not None and not holds_symbols(index):
        return settled[index]
    if isinstance(index, slice):
        parts = (index.start, index.stop, index.step)
        if isinstance(value, Symbolic) or holds_symbols(parts):
            made = list[str] if isinstance(value, SymbolicList) else kind_of(value)
            return pure_call(frame.tracer, "sglc.slice", value, *parts, kind=made)
    if isinstance(value, Symbolic):
        if value.known is not None and isinstance(index, SymbolicText) and not _undecided(frame, index):
            index = index.observe(OPERATOR, "an index")
        kind = str if isinstance(value, SymbolicText | SymbolicList) else object
        return pure_call(frame.tracer, "operator.getitem", value, as_member(index), kind=kind)
    if isinstance(index, Symbolic):
        kinds = {kind_of(item) for item in (value.values() if isinstance(value, Mapping) else value)}
        if is_plain(value) and (kinds <= _SCALARS or _undecided(frame, index)):
            kind = kinds.pop() if len(kinds) == 1 else object
            return pure_call(frame.tracer, "operator.getitem", value, index, kind=kind)
        index = index.observe(OPERATOR, "an index")
    if type(value).__module__ == "typing" or (isinstance(value, type) and value.__module__ in _GENERIC):
        return value[index]
    frame.tracer.outside.look_up_class(type(value))
    if getattr(type(value), "__getitem__", None) not in _GETITEMS:
        raise GraphBreak(f"`[...]` of a `{type(value).__name__}` is ordinary Python", frame.loc(), OPERATOR)
    refuse_foreign(frame.tracer, "an index", index, kind=OPERATOR)
    found = value[index]
    return frame.tracer.outside.read_attribute(frame, value, f"[{index!r}]", found)


_GENERIC = ("builtins", "collections", "collections.abc")
_GETITEMS = {kind.__getitem__ for kind in (str, bytes, list, tuple, dict, range, memoryview)}


_SCALARS = {str, int, float, bool, type(None)}


def store_subscript(frame: CallFrame, value: Any, index: Any, item: Any) -> None:
    """`value[index] = item`."""
    if is_ours(value):
        value[index] = item
        return
    frame.tracer.change(value, f"`{_shown(frame)} = ...`")
    if isinstance(index, Symbolic):
        index = index.observe(KEY)
    refuse_foreign(frame.tracer, "a dictionary key or an index", index, kind=OPERATOR)
    value[index] = item


def _shown(frame: CallFrame) -> str:
    return ast.unparse(frame.node) if frame.node is not None else "..."


def attribute(frame: CallFrame, value: Any, name: str, *, called: bool = False) -> Any:
    """`value.name`, without running any code of the user's; `called` is what it is read for."""
    if isinstance(value, Symbolic):
        return _data_attribute(frame, value, name, called)
    if isinstance(value, CallResult):
        return _of_call(frame, value, name)
    if is_ours(value):
        return getattr(value, name)
    outside, kind = frame.tracer.outside, type(value)
    if isinstance(value, types.ModuleType):
        if is_sglc(value):
            getattr(value, name)  # it is loaded, so that it is there from now on
        outside.look_up(frame, value, name)
        if not is_sglc(value):
            outside.look_up_pythons(frame, value, "__class__")
            in_class = None if kind is types.ModuleType else inspect.getattr_static(kind, name, None)
            if hasattr(type(in_class), "__set__"):
                return _refused(frame, value, name)
        if name not in vars(value):
            return _refused(frame, value, name) if hasattr(value, "__getattr__") else getattr(value, name)
        return outside.read_attribute(frame, value, name, vars(value)[name])
    if isinstance(value, type):
        outside.look_up_class(kind)
        if not isinstance(kind.__getattribute__, types.WrapperDescriptorType):
            return _refused(frame, value, name)
        outside.look_up(frame, value, name)
        if kind is not type:
            in_class = inspect.getattr_static(kind, name, None)
            if hasattr(type(in_class), "__set__") and in_class is not inspect.getattr_static(type, name, None):
                return _refused(frame, value, name)
        found = inspect.getattr_static(value, name, _refused)
        if issubclass(value, Enum) and name in value.__members__:
            return value.__members__[name]
        match found:
            case _ if found is _refused and hasattr(kind, "__getattr__"):
                pass
            case staticmethod():
                return found.__func__
            case classmethod():
                return types.MethodType(found.__func__, value)
            case _ if type(found).__module__ == "builtins" and not isinstance(found, property):
                return outside.read_attribute(frame, value, name, getattr(value, name))
            case _ if not hasattr(type(found), "__get__"):
                return outside.read_attribute(frame, value, name, found)
        return _refused(frame, value, name)
    if isinstance(value, Enum) and name in ("value", "name", "_value_", "_name_"):
        stored = "_value_" if "value" in name else "_name_"
        outside.look_up_pythons(frame, value, stored)
        return getattr(value, stored)
    if kind.__module__ in _PYTHONS:
        outside.look_up_pythons(frame, value, name)
        found = getattr(value, name)
        return found if called else outside.read_attribute(frame, value, name, found)
    if issubclass(kind, BaseException) and name == "args":
        return value.args
    outside.look_up_class(kind)
    if not isinstance(kind.__getattribute__, types.WrapperDescriptorType):
        return _refused(frame, value, name)
    outside.look_up(frame, value, name)
    in_class = inspect.getattr_static(kind, name, None)
    slot = isinstance(in_class, types.MemberDescriptorType | types.GetSetDescriptorType)
    if slot or type(in_class).__name__ == "_tuplegetter":
        return outside.read_attribute(frame, value, name, getattr(value, name))
    fields = own_fields(value) or {}
    if name in fields and not hasattr(type(in_class), "__set__"):
        return outside.read_attribute(frame, value, name, fields[name])
    match in_class:
        case types.FunctionType():
            return types.MethodType(in_class, value)
        case staticmethod():
            return in_class.__func__
        case classmethod():
            return types.MethodType(in_class.__func__, kind)
        case types.BuiltinFunctionType() | None:
            pass
        case _ if not hasattr(type(in_class), "__get__"):
            return outside.read_attribute(frame, kind, name, in_class)
    if in_class is None and getattr(kind, "__getattr__", None) is None:
        raise AttributeError(f"'{kind.__name__}' object has no attribute '{name}'")
    return _refused(frame, value, name)


def _of_call(frame: CallFrame, value: CallResult, name: str) -> Any:
    """An attribute of what a call gives: what tells of its run, and of nothing else, only a run knows."""
    if name == "variables" or not hasattr(value, name):
        raise GraphBreak(f"`.{name}` needs the program to run", frame.loc(), OTHER)
    if name == "ret_value":  # it waits for all that was called
        frame.tracer.may_fail("`ret_value`")
        frame.tracer.was_read([value.ret_value, *value.variables.values()])
    return getattr(value, name)


_PYTHONS = ("builtins", "re", "collections", "datetime", "functools", "types", "decimal", "fractions")


def _refused(frame: CallFrame, value: Any, name: str) -> Any:
    raise GraphBreak(f"`.{name}` of `{name_of(value)}` could run code of its own", frame.loc(), ATTRIBUTE)


def _data_attribute(frame: CallFrame, value: Symbolic, name: str, called: bool) -> Any:
    if value.known is not None and type_name(value.known.real).count("."):
        return _of_object(frame, value, value.known.real, name)
    if called:
        return DataMethod(value, name)
    if isinstance(value, SymbolicJson) and value.kind not in METHODS:
        return pure_call(frame.tracer, "sglc.attribute", value, name)
    found = value.observe(ATTRIBUTE, f"`.{name}`")
    return attribute(frame, found, name)


def _of_object(frame: CallFrame, value: Symbolic, real: Any, name: str) -> Any:
    """An attribute of an object that is an argument: a field is data, anything else is its class's."""
    found = attribute(frame, real, name)
    field = fields_of(real) is not None and name in (fields_of(real) or {})
    if field or (isinstance(real, Enum) and name in ("value", "name")):
        return pure_call(frame.tracer, "sglc.attribute", value, name)
    whole(frame.tracer, value)
    if isinstance(found, types.MethodType) and found.__self__ is real:
        return types.MethodType(found.__func__, value)
    return found


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class DataMethod:
    """A method of a value that only a run knows."""

    value: Symbolic
    name: str


def store_attribute(frame: CallFrame, value: Any, name: str, item: Any) -> None:
    """`value.name = item`: of an object of a dataclass that the program made."""
    frame.tracer.change(value, f"`.{name} = ...`")
    kind = type(value)
    frame.tracer.outside.look_up_class(kind)
    if inspect.getattr_static(kind, "__setattr__") is not object.__setattr__ or (
        hasattr(type(inspect.getattr_static(kind, name, None)), "__set__")
        and not isinstance(inspect.getattr_static(kind, name), types.MemberDescriptorType)
    ):
        _refused(frame, value, name)
    setattr(value, name, item)
