"""What may be appended to a prompt: text, generations, choices, chat turns, and their concatenation.

Expressions are frozen descriptions; nothing happens until one is appended to a state.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sglc.errors import Loc, TraceError
from sglc.frontend.choices import ChoicesMethod, ChoicesSamplingMethod
from sglc.frontend.forms import form_of
from sglc.frontend.locate import here
from sglc.frontend.symbolic import SymbolicText
from sglc.ir.core import NOWHERE
from sglc.ir.ops import SELECT_METHODS


class Expr:
    """Base of everything that `s += ...` takes besides text."""

    __slots__ = ()

    def __add__(self, other: object) -> Concat:
        return Concat((*_flat(self), *_flat(_checked(other))))

    def __radd__(self, other: object) -> Concat:
        return Concat((*_flat(_checked(other)), *_flat(self)))


Appendable = str | SymbolicText | Expr


@dataclass(frozen=True, slots=True)
class GenExpr(Expr):
    """A generation. `overrides` are the `Sampling` fields that the call set itself."""

    name: str | None
    overrides: Mapping[str, Any]
    loc: Loc = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class SelectExpr(Expr):
    name: str | None
    choices: tuple[str | SymbolicText, ...]
    method: str
    loc: Loc = field(default=NOWHERE, compare=False)
    decide: ChoicesSamplingMethod | None = None  # Python decides, with the scores that `method` gives


@dataclass(frozen=True, slots=True)
class RoleOpenExpr(Expr):
    role: str
    loc: Loc = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class RoleCloseExpr(Expr):
    role: str
    loc: Loc = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Concat(Expr):
    parts: tuple[Appendable, ...]


def gen(
    name: str | None = None,
    max_tokens: int | None = None,
    min_tokens: int | None = None,
    n: int | None = None,
    stop: str | Sequence[str] | None = None,
    stop_token_ids: Sequence[int] | None = None,
    stop_regex: object = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    ignore_eos: bool | None = None,
    return_logprob: bool | None = None,
    logprob_start_len: int | None = None,
    top_logprobs_num: int | None = None,
    return_text_in_logprobs: bool | None = None,
    dtype: type | str | None = None,
    choices: Sequence[str] | None = None,
    choices_method: ChoicesMethod | ChoicesSamplingMethod | str | None = None,
    regex: str | None = None,
    json_schema: object = None,
    *,
    seed: int | None = None,
) -> Expr:
    """Text that the model writes here, stored under `name`. The arguments are SGLang's, in its order.

    Args:
        name: variable that receives the text (a list of texts when `n` > 1).
        max_tokens, min_tokens: bounds on the tokens made.
        n: independent samples; the prompt continues with the first.
        stop: strings that end the text and are cut from it.
        temperature: 0 is greedy. top_p, top_k, min_p: filters of the distribution.
        return_logprob: accepted; log-probabilities of what was generated are always there.
        dtype: `int`, `float`, `str` or `bool` (or their names): the text has that form.
        choices: makes this a `select`.
        regex: the whole text matches it.
        seed: of this call alone; without it the run's seed and the call's site decide.

    Raises:
        TraceError: a value of the wrong type or out of range (SGLC103), a `regex` that is none or comes
            with a `dtype` (SGLC112), an argument of a later release (SGLC113).
    """
    loc = here()
    _refuse_later(
        loc, stop_regex=stop_regex, frequency_penalty=frequency_penalty, presence_penalty=presence_penalty,
        logprob_start_len=logprob_start_len, top_logprobs_num=top_logprobs_num,
        return_text_in_logprobs=return_text_in_logprobs, json_schema=json_schema,
    )  # fmt: skip
    if choices is not None:
        return _select(name, choices, choices_method, loc)
    given = {
        "max_tokens": max_tokens,
        "min_tokens": min_tokens,
        "n": n,
        "stop": stop,
        "stop_token_ids": stop_token_ids,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "min_p": min_p,
        "ignore_eos": ignore_eos,
        "seed": seed,
        "regex": regex,
    }
    fields = sampling_fields(given, loc)
    if dtype is not None:
        if regex is not None:
            raise TraceError(
                "SGLC112", "`gen` has a `dtype` and a `regex`", loc, hint="one of them says what the text is"
            )
        form = form_of(dtype, loc)
        fields["regex"] = form.regex
        fields["stop"] = (*fields.get("stop", ()), *form.stop)
    return GenExpr(_name(name, "gen", loc), fields, loc)


def gen_int(name: str | None = None, **arguments: Any) -> Expr:
    """`gen(name, dtype=int, ...)`."""
    return gen(name, dtype=int, **arguments)


def gen_string(name: str | None = None, **arguments: Any) -> Expr:
    """`gen(name, dtype=str, ...)`: a text in double quotes."""
    return gen(name, dtype=str, **arguments)


def _refuse_later(loc: Loc, **arguments: object) -> None:
    for name, value in arguments.items():
        if value:  # None, 0 and False ask for nothing
            raise TraceError("SGLC113", f"`gen({name}=...)` is not in this release", loc)


def select(
    name: str | None = None,
    choices: Sequence[str] | None = None,
    temperature: float = 0.0,
    choices_method: ChoicesMethod | ChoicesSamplingMethod | str | None = None,
) -> Expr:
    """The most likely of `choices` at this place, stored under `name`.

    Args:
        choices: at least one text.
        temperature: only 0 has a meaning: a choice is ranked, not sampled.
        choices_method: how (`sglc.frontend.choices`): `token_length_normalized`, the mean log-probability
            of a choice's tokens (default); `greedy_token_selection`, what greedy decoding would follow;
            `unconditional_likelihood_normalized`, how much likelier the prompt makes it.

    Raises:
        TraceError: no choices, something that is not a text among them, an unknown method.
    """
    loc = here()
    if temperature:
        raise TraceError(
            "SGLC103", "`select` ranks its choices, so it takes no `temperature` but 0", loc,
            hint="sample with `gen(...)`",
        )  # fmt: skip
    return _select(name, choices, choices_method, loc)


def _select(
    name: str | None,
    choices: Sequence[str] | None,
    method: ChoicesMethod | ChoicesSamplingMethod | str | None,
    loc: Loc,
) -> SelectExpr:
    if isinstance(choices, str) or not isinstance(choices, Sequence):
        raise TraceError(
            "SGLC104", f"`choices` is a list of texts, not `{type(choices).__name__}`", loc,
            hint='`select("answer", choices=["yes", "no"])`',
        )  # fmt: skip
    if not choices:
        raise TraceError("SGLC104", "`choices` is empty", loc, hint="give at least one choice")
    for choice in choices:
        if not isinstance(choice, str | SymbolicText) or choice is None or choice == "":
            raise TraceError("SGLC104", f"a choice is a text that is not empty, not `{choice!r}`", loc)
    if isinstance(method, ChoicesSamplingMethod):
        return SelectExpr(_name(name, "select", loc), tuple(choices), SELECT_METHODS[0], loc, method)
    wanted = method.name if isinstance(method, ChoicesMethod) else method
    if wanted is not None and wanted not in SELECT_METHODS:
        raise TraceError(
            "SGLC105",
            f"`choices_method` `{wanted}` is unknown",
            loc,
            note=f"known: {', '.join(SELECT_METHODS)}",
        )
    return SelectExpr(_name(name, "select", loc), tuple(choices), wanted or SELECT_METHODS[0], loc)


def role(name: str, content: object = None) -> Concat:
    """A whole chat turn of `name`: its border, `content`, its border."""
    loc = here()
    inner = () if content is None else _flat(_checked(content))
    return Concat((RoleOpenExpr(name, loc), *inner, RoleCloseExpr(name, loc)))


def system(content: object = None) -> Concat:
    """A system turn with `content`."""
    return role("system", content)


def user(content: object = None) -> Concat:
    """A user turn with `content`."""
    return role("user", content)


def assistant(content: object = None) -> Concat:
    """An assistant turn with `content`."""
    return role("assistant", content)


def system_begin() -> RoleOpenExpr:
    return RoleOpenExpr("system", here())


def system_end() -> RoleCloseExpr:
    return RoleCloseExpr("system", here())


def user_begin() -> RoleOpenExpr:
    return RoleOpenExpr("user", here())


def user_end() -> RoleCloseExpr:
    return RoleCloseExpr("user", here())


def assistant_begin() -> RoleOpenExpr:
    return RoleOpenExpr("assistant", here())


def assistant_end() -> RoleCloseExpr:
    return RoleCloseExpr("assistant", here())


def sampling_fields(given: Mapping[str, Any], loc: Loc) -> dict[str, Any]:
    """The fields of `given` that are not None, checked, lists frozen as tuples.

    Raises:
        TraceError: SGLC103, naming the argument, its value and what it may be.
    """
    fields: dict[str, Any] = {}
    for key, value in given.items():
        if value is None:
            continue
        if key in ("stop", "stop_token_ids"):
            value = (value,) if isinstance(value, str | int) else tuple(value)
        problem = _problem(key, value)
        if problem:
            raise TraceError("SGLC103", f"`{key}` is `{given[key]!r}`: {problem}", loc)
        fields[key] = value
    return fields


def _problem(key: str, value: Any) -> str:
    """What is wrong with a sampling field, or nothing."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    whole = isinstance(value, int) and not isinstance(value, bool)
    match key:
        case "max_tokens" | "n":
            return "" if whole and value >= 1 else "it must be an integer of at least 1"
        case "min_tokens":
            return "" if whole and value >= 0 else "it must be an integer of at least 0"
        case "top_k":
            return "" if whole and (value == -1 or value >= 1) else "it must be -1 (off) or at least 1"
        case "temperature":
            return "" if number and 0 <= value < float("inf") else "it must be a number of at least 0"
        case "top_p":
            return "" if number and 0 < value <= 1 else "it must be in (0, 1]"
        case "min_p":
            return "" if number and 0 <= value <= 1 else "it must be in [0, 1]"
        case "stop":
            good = all(isinstance(text, str) and text for text in value)
            return "" if good else "stop strings are texts that are not empty"
        case "stop_token_ids":
            return "" if all(isinstance(i, int) and i >= 0 for i in value) else "it must be a list of ids"
        case "ignore_eos":
            return "" if isinstance(value, bool) else "it must be True or False"
        case "regex":
            return _no_regex(value)
        case "seed":
            return "" if whole and 0 <= value < 2**64 else "it must be an integer from 0 to 2**64 - 1"
        case _:
            raise AssertionError(key)


def _no_regex(value: Any) -> str:
    if not isinstance(value, str):
        return "it must be a text"
    try:
        re.compile(value)
    except re.error as error:
        return f"it is no regular expression: {error}"
    return ""


def _name(name: object, what: str, loc: Loc) -> str | None:
    if name is not None and not isinstance(name, str):
        raise TraceError(
            "SGLC103", f"the name of a `{what}` is a text, not `{type(name).__name__}`", loc,
            hint=f'`{what}("answer", ...)`',
        )  # fmt: skip
    return name


def _checked(item: object) -> Appendable:
    if isinstance(item, str | SymbolicText | Expr):
        return item
    raise TraceError(
        "SGLC102", f"`{type(item).__name__}` cannot be part of a prompt", here(),
        note="a prompt takes text, `gen`, `select`, roles, and their `+`",
        hint="convert it with `str(...)`" if item is not None else "it is None: is a `return` missing?",
    )  # fmt: skip


checked = _checked


def _flat(item: Appendable) -> tuple[Appendable, ...]:
    return item.parts if isinstance(item, Concat) else (item,)
