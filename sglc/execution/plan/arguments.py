"""The arguments of a plan's run: defaults are filled in, types and guards are checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglc.errors import UsageError, shown
from sglc.ir.facts import holds, readable, spell, value_of
from sglc.ir.plan.plan import Param, Plan, PlanGuard
from sglc.ir.pure import function_of, type_name
from sglc.ir.remark import place
from sglc.ir.values import plain

_SHOWN = 120
_JSON = ("str", "int", "float", "bool", "NoneType", "list", "dict")
_AGAIN = "compile the program for them: `compile(args={...})`"


def bound(plan: Plan, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """All arguments of a run, in the order of the plan.

    Raises:
        UsageError: SGLC014 missing or unknown ones, SGLC047 one of another type, SGLC048 a guard that does
            not hold.
    """
    missing = [param for param in plan.params if param.default is None and param.name not in arguments]
    unknown = [name for name in arguments if name not in plan.names]
    if missing or unknown:
        wrong = f"misses `{missing[0].name}`" if missing else f"has no argument `{unknown[0]}`"
        raise UsageError(
            "SGLC014", f"the plan {wrong}", note=f"its arguments: {', '.join(plan.names) or 'none'}"
        )
    given = {param.name: _fitted(param, arguments) for param in plan.params}
    for guard in plan.guards:
        _check(guard, given)
    return given


def _fitted(param: Param, arguments: Mapping[str, Any]) -> Any:
    if param.name not in arguments:
        assert param.default is not None
        value = value_of(param.default)
    else:
        value = arguments[param.name]
    found = type_name(value)
    if found == param.kind:
        return value
    match None if param.holds is None else value_of(param.holds):  # JSON has only what is in an object
        case dict() as members if found in _JSON:
            return _member(param, members, value)
        case list() as names if type(value) is dict:
            unknown = next((name for name in value if name not in names), None)
            if unknown is None:
                return value
            raise UsageError(
                "SGLC047", f"`{param.name}` has a field `{unknown}`, and `{param.kind}` has none of this name",
                place(param.loc), note=f"its fields: {', '.join(names) or 'none'}",
            )  # fmt: skip
    raise UsageError(
        "SGLC047", f"`{param.name}` is of type `{found}`, and the plan is for `{param.kind}`",
        place(param.loc), hint=_AGAIN,
    )  # fmt: skip


def _member(param: Param, members: Mapping[str, Any], value: Any) -> Any:
    """The member of an enumeration that has this value, as JSON has it."""
    for name, held in members.items():
        if plain(held) == plain(value) and isinstance(held, bool) is isinstance(value, bool):
            return function_of("sglc.instance")(param.kind, {"name": name, "value": held})
    raise UsageError(
        "SGLC047", f"`{param.name}` is `{shown(repr(value))}`, and no member of `{param.kind}` has this value",
        place(param.loc),
        note=f"its members: {', '.join(f'{name} = {held!r}' for name, held in members.items())}",
    )  # fmt: skip


def _check(guard: PlanGuard, given: Mapping[str, Any]) -> None:
    try:
        made = spell(holds(guard.fact, given))
    except Exception as error:  # a fact that cannot be asked does not hold
        made = f"`{type(error).__name__}`: {error}"
    if made != guard.expected:
        raise UsageError(
            "SGLC048",
            f"the plan is for arguments of which `{readable(guard.fact)}` is `{_short(guard.expected)}`",
            place(guard.loc), note=f"here it is {_short(str(made))}", hint=_AGAIN,
        )  # fmt: skip


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
