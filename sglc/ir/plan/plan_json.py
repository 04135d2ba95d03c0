"""A plan as JSON, both ways and exactly: `plan_from_json(plan_to_json(p)) == p`.

Every class is an object with its name under `is`; the classes' own annotations say what each
field holds, so a new node kind needs one entry in `_CLASSES` and a new version.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from sglc.errors import Loc, VerifyError
from sglc.ir.core import Site
from sglc.ir.plan.events import GenDone, PackedIds, Sample, SelectDone, Usage
from sglc.ir.plan.plan import (
    Block,
    CallStep,
    CondStep,
    Derived,
    Estimate,
    FunctionStep,
    HostStep,
    Joined,
    LoopStep,
    MapStep,
    Named,
    Param,
    Plan,
    PlanGuard,
    PromptEnd,
    SwitchStep,
    ValueStep,
    Within,
)
from sglc.ir.plan.plan_check import check_plan
from sglc.ir.plan.segment import (
    ExtendNode,
    ForkNode,
    GenNode,
    Held,
    ImagePart,
    KeepNode,
    NodeResult,
    OpenNode,
    ReleaseNode,
    RoleMark,
    Segment,
    SelectNode,
    Slot,
)
from sglc.ir.sampling import Sampling
from sglc.ir.target import ControlText

PLAN_VERSION = 13

_CLASSES: dict[str, type] = {
    "control": ControlText,
    "slot": Slot,
    "result": NodeResult,
    "open": OpenNode,
    "extend": ExtendNode,
    "gen": GenNode,
    "select": SelectNode,
    "fork": ForkNode,
    "keep": KeepNode,
    "release": ReleaseNode,
    "image": ImagePart,
    "role": RoleMark,
    "segment": Segment,
    "host": HostStep,
    "value": ValueStep,
    "cond": CondStep,
    "switch": SwitchStep,
    "loop": LoopStep,
    "map step": MapStep,
    "call": CallStep,
    "function": FunctionStep,
    "block": Block,
    "held": Held,
    "joined": Joined,
    "derived": Derived,
    "named": Named,
    "within": Within,
    "prompt": PromptEnd,
    "estimate": Estimate,
    "site": Site,
    "sampling": Sampling,
    "loc": Loc,
    "param": Param,
    "guard": PlanGuard,
    "plan": Plan,
    # What a server that runs plans answers; no plan holds it.
    "generated": GenDone,
    "sample": Sample,
    "chosen": SelectDone,
    "usage": Usage,
}
# What fields are of which there is nothing in a plan: they came later, and most plans need none.
_ABSENT: dict[type, dict[str, object]] = {PromptEnd: {"stood": []}}
_KINDS = {made: kind for kind, made in _CLASSES.items()}


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """The plan as data that `json.dumps` takes."""
    return cast(dict[str, Any], _dump(plan))


def answer_to_json(answer: GenDone | SelectDone) -> dict[str, Any]:
    """The end of a generation as data that `json.dumps` takes."""
    return cast(dict[str, Any], _dump(answer))


def answer_from_json(data: object) -> GenDone | SelectDone:
    """The answer that `answer_to_json` wrote.

    Raises:
        VerifyError: SGLC221 data that is none.
    """
    return cast(GenDone | SelectDone, _load(data, GenDone | SelectDone, ""))


def _unbounded(plan: Plan) -> None:
    """Takes every plan."""


def plan_from_json(data: object, check: Callable[[Plan], None] = _unbounded) -> Plan:
    """The plan that `plan_to_json` wrote.

    Args:
        check: raises on plans that are not to be looked at any further, of which nothing was checked but types.

    Raises:
        VerifyError: SGLC220 another version; SGLC221 data that is no plan, with the path of the fault.
    """
    if not isinstance(data, Mapping) or data.get("is") != "plan":
        raise VerifyError(
            "SGLC221", "this is no plan", note=f"found: {_found(data)}",
            hint="a plan that runs is what `sglc compile PROG --emit json` writes",
        )  # fmt: skip
    if data.get("version") != PLAN_VERSION:
        raise VerifyError(
            "SGLC220", f"this plan has version `{data.get('version')}`, and this sglc reads `{PLAN_VERSION}`",
            hint="compile the program again",
        )  # fmt: skip
    try:
        plan = cast(Plan, _load(data, Plan, ""))
    except RecursionError:
        raise VerifyError("SGLC221", "this is no plan: it is too deep") from None
    check(plan)
    check_plan(plan)
    return plan


def _dump(item: object) -> object:
    match item:
        case tuple() | PackedIds():
            return [_dump(part) for part in item]
        case Mapping():
            # Wrapped, so that a user's key `is` cannot be taken for a class.
            return {"is": "map", "items": {key: _dump(part) for key, part in item.items()}}
        case _ if is_dataclass(item) and type(item) in _KINDS:
            made = {field.name: _dump(getattr(item, field.name)) for field in fields(item)}
            for name, absent in _ABSENT.get(type(item), {}).items():
                if made[name] == absent:
                    del made[name]
            return {"is": _KINDS[type(item)], **made}
        case None | str() | bool() | int() | float():
            return item
        case _:
            raise AssertionError(f"a plan cannot hold {item!r}")


def _load(data: object, wanted: Any, path: str) -> Any:
    """`data` as the annotation `wanted` says."""
    origin, args = get_origin(wanted), get_args(wanted)
    if Joined in args:  # an `OutputTree`, which is the only recursive annotation
        return _load_tree(data, path)
    if origin in (Union, types.UnionType):
        return _load_union(data, args, path)
    if origin in (tuple, Sequence):
        if not isinstance(data, list):
            raise _malformed(path, "a list", data)
        kinds = args[:1] * len(data) if origin is Sequence or args[-1] is Ellipsis else args
        if len(kinds) != len(data):
            raise _malformed(path, f"a list of {len(kinds)}", data)
        return tuple(
            _load(part, kind, f"{path}[{i}]") for i, (part, kind) in enumerate(zip(data, kinds, strict=True))
        )
    if origin is Mapping:
        return {key: _load(part, args[1], f"{path}.{key}") for key, part in _items(data, path).items()}
    if wanted in _KINDS:
        return _load_class(data, wanted, path)
    exact = type(data) is wanted or (wanted is float and type(data) is int)
    if not exact:
        raise _malformed(path, getattr(wanted, "__name__", str(wanted)), data)
    return data


def _load_union(data: object, options: tuple[Any, ...], path: str) -> Any:
    kind = _kind(data)
    for option in options:
        if option is type(None):
            if data is None:
                return None
        elif option in _KINDS:
            if kind == _KINDS[option]:
                return _load_class(data, option, path)
        elif get_origin(option) is tuple and isinstance(data, list):
            return _load(data, option, path)
        elif type(data) is option:
            return data
    names = " or ".join(_KINDS.get(option, getattr(option, "__name__", "")) for option in options)
    raise _malformed(path, names, data)


def _load_class(data: object, wanted: type, path: str) -> Any:
    if not isinstance(data, Mapping) or _kind(data) != _KINDS[wanted]:
        raise _malformed(path, f"`{_KINDS[wanted]}`", data)
    hints = _hints(wanted)
    given = {**_ABSENT.get(wanted, {}), **{key: value for key, value in data.items() if key != "is"}}
    if given.keys() != hints.keys():
        odd = ", ".join(sorted(given.keys() ^ hints.keys()))
        raise VerifyError(
            "SGLC221", f"this is no plan: `{_KINDS[wanted]}` at `{path or '.'}` and its fields: {odd}"
        )
    return wanted(**{name: _load(value, hints[name], f"{path}.{name}") for name, value in given.items()})


def _load_tree(data: object, path: str) -> Any:
    match data:
        case None | str() | bool() | int() | float():
            return data
        case list():
            return tuple(_load_tree(part, f"{path}[{i}]") for i, part in enumerate(data))
        case _ if _kind(data) == "map":
            return {key: _load_tree(part, f"{path}.{key}") for key, part in _items(data, path).items()}
        case _:
            return _load_union(data, (Slot, Held, Joined), path)


def _items(data: object, path: str) -> Mapping[str, object]:
    items = data.get("items") if isinstance(data, Mapping) and _kind(data) == "map" else None
    if not isinstance(items, Mapping):
        raise _malformed(path, "a map", data)
    return items


def _kind(data: object) -> object:
    return data.get("is") if isinstance(data, Mapping) else None


@cache
def _hints(made: type) -> dict[str, Any]:
    return get_type_hints(made)


def _malformed(path: str, wanted: str, data: object) -> VerifyError:
    return VerifyError(
        "SGLC221", f"this is no plan: `{path or '.'}` is not {wanted}", note=f"found: {_found(data)}"
    )


def _found(data: object) -> str:
    shown = repr(data)
    return shown if len(shown) <= 60 else shown[:57] + "..."
