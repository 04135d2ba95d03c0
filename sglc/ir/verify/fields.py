"""What a single op must obey by itself: the types of its operands, and the range of its fields."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from sglc.errors import VerifyError
from sglc.ir.core import Op, Type, Value, inputs, values_in
from sglc.ir.grammar.call_format import NAME
from sglc.ir.ops import (
    GIVES,
    ORDERS,
    SELECT_METHODS,
    Append,
    Call,
    Cond,
    Control,
    Fork,
    Gen,
    Image,
    Join,
    Loop,
    Map,
    Prompt,
    PureCall,
    RoleClose,
    RoleOpen,
    ScopeBegin,
    ScopeEnd,
    Select,
    Store,
    Switch,
    TextOf,
    Tool,
)
from sglc.ir.remark import place
from sglc.ir.sampling import FORMS, LEAST_REPETITION, MOST_REPETITION, MOST_TEMPERATURE, Sampling, is_seed
from sglc.ir.values import DATA, OPERATIONS

_IN_FORMS = re.compile(r"(~[\d.]+(:\d+)?)+(@\d+)*")  # as bodies that run as Python are recorded
SITED = (Gen, Select, Join, Call)
_STREAM, _TEXT = (Type.STREAM,), (Type.TEXT,)


def problem(code: str, message: str, op: Op, *, note: str = "", hint: str = "") -> VerifyError:
    """An error that points at `op`."""
    return VerifyError(code, message, place(op.loc), note=note, hint=hint)


# The types that operands may have, by field; of others `OPERATIONS` says it, or what a `loop` or `call` holds.
_TAKES: Mapping[type[Op], Mapping[str, tuple[Type, ...]]] = {
    **{op: {"stream": _STREAM} for op in (Control, RoleOpen, RoleClose, ScopeBegin, ScopeEnd, Fork)},
    Append: {"stream": _STREAM, "text": _TEXT},
    Image: {"stream": _STREAM, "data": _TEXT},
    Gen: {"stream": _STREAM, "limit": _TEXT},
    Select: {"stream": _STREAM, "choices": _TEXT},
    Prompt: {"stream": _STREAM, "turns": DATA},
    TextOf: {"stream": _STREAM, "since": _STREAM},
    **{op: {"args": DATA, "named": DATA} for op in (Tool, PureCall)},
    Store: {"value": DATA},
    Join: {"values": (Type.TEXT, Type.LIST)},  # a list where the branches joined something
    Cond: {"pred": (Type.BOOL,)},
    Switch: {"value": _TEXT},
    Map: {"items": (Type.LIST, Type.JSON)},
}


# Ops with fields that may be out of range.
_RANGED = (Fork, Gen, Select, Tool, PureCall, Control, Loop, Switch, Join, Call)


def operand_types(op: Op) -> Sequence[tuple[Value, tuple[Type, ...]]]:
    """Each operand with the types it may have; those of `loop` and `call` depend on what they hold."""
    if (known := OPERATIONS.get(op.mnemonic)) is not None:
        return [(value, known.takes) for value in inputs(op)]
    found: list[tuple[Value, tuple[Type, ...]]] = []
    if type(op) in _TAKES:
        for name, wanted in _TAKES[type(op)].items():
            item = getattr(op, name)
            if type(item) is Value:
                found.append((item, wanted))
            elif item:
                found += [(value, wanted) for value in values_in(item)]
    return found


def check_fields(op: Op) -> None:
    """Whether the op's attributes are in range.

    Raises:
        VerifyError: SGLC210 labels that do not fit a fork; SGLC219 what a function gives; SGLC213 any
            other field.
    """
    if not isinstance(op, _RANGED):
        return
    match op:
        case Fork() if op.labels and len(op.labels) != len(op.results):
            raise problem(
                "SGLC210", f"`fork` has {len(op.labels)} labels for {len(op.results)} branches", op,
                hint="give one label a branch, or none",
            )  # fmt: skip
        case Select() if not op.choices:
            raise problem("SGLC213", "`select` has no choices", op)
        case Select() if op.method not in SELECT_METHODS:
            known = ", ".join(SELECT_METHODS)
            raise problem("SGLC213", f"`select` knows no method `{op.method}`", op, note=f"known: {known}")
        case Gen():
            wrong = sampling_problem(op.sampling) or ("`ahead` is negative" if op.ahead < 0 else "")
            if wrong:
                raise problem("SGLC213", wrong, op)
        case Tool() | PureCall() if op.gives not in GIVES:
            raise problem(
                "SGLC219", f"`{op.name}` gives a `{op.gives}`", op, note=f"functions give: {', '.join(GIVES)}"
            )
        case Tool() if op.order not in ORDERS:
            known = ", ".join(ORDERS)
            raise problem("SGLC213", f"`tool` knows no order `{op.order}`", op, note=f"known: {known}")
        case Control() if not op.ids:
            raise problem("SGLC213", "`control` has no ids", op)
        case Loop() if op.max_iters < 1:
            raise problem("SGLC213", f"`max_iters` is `{op.max_iters}`, out of range", op)
        case Switch():
            twice = next((case for i, case in enumerate(op.cases) if case in op.cases[:i]), None)
            if twice is not None:
                raise problem("SGLC213", f"`switch` has the case `{twice}` twice", op)
    if isinstance(op, SITED) and "@" in _IN_FORMS.sub("", op.site.function):
        raise problem(
            "SGLC213", f"function `{op.site.function}` has an `@` in its name", op,
            note="the site of a generation in a loop has its iteration there",
        )  # fmt: skip


def sampling_problem(sampling: Sampling) -> str:
    """The first field that is out of range, as a message; nothing if all are in range."""
    s = sampling
    bad = {
        "max_tokens": s.max_tokens < 0,
        "min_tokens": s.min_tokens < 0,
        "n": s.n < 1,
        "stop": "" in s.stop,
        "stop_token_ids": any(i < 0 for i in s.stop_token_ids),
        "temperature": not 0 <= s.temperature <= MOST_TEMPERATURE,
        "top_p": not 0 < s.top_p <= 1,
        "top_k": s.top_k != -1 and not 1 <= s.top_k < 2**31,
        "min_p": not 0 <= s.min_p <= 1,
        "seed": s.seed is not None and not is_seed(s.seed),
        "frequency_penalty": not -2 <= s.frequency_penalty <= 2,
        "presence_penalty": not -2 <= s.presence_penalty <= 2,
        "repetition_penalty": not LEAST_REPETITION <= s.repetition_penalty <= MOST_REPETITION,
        "stop_regex": "" in s.stop_regex,
        "logit_bias": any(id_ < 0 or bias != bias for id_, bias in s.logit_bias),
        "logprobs_from": s.logprobs_from is not None and s.logprobs_from < 0,
        "top_logprobs": s.top_logprobs < 0,
        "tools": s.tools is not None and not _are_tools(s.tools),
        "strict": s.strict and s.json_schema is None,
    }
    if any(bad.values()):
        wrong = next(name for name, out in bad.items() if out)
        return f"`{wrong}` is `{getattr(s, wrong)!r}`, out of range"
    if s.unreachable:
        return s.unreachable
    given = [name for name in FORMS if getattr(s, name) is not None]
    return f"`{given[0]}` and `{given[1]}` both say what the text is" if len(given) > 1 else ""


def _are_tools(text: str) -> bool:
    """Whether it is JSON of functions with names, and a choice among them."""
    try:
        given = json.loads(text)
        names = [tool["name"] for tool in given["tools"]]
        return given["choice"] in ("auto", "required", *names) and all(
            re.fullmatch(NAME, name) for name in names
        )
    except (ValueError, TypeError, LookupError, RecursionError):
        return False
