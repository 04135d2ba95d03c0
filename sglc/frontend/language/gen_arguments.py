"""What `gen(...)` and `run(...)` say about sampling, checked and brought into `Sampling`'s own fields.

SGLang's names come in, `Sampling`'s go out. What is not given stays away, so that a call's fields can be
laid over the run's.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Protocol

from sglc.errors import Loc, TraceError
from sglc.ir.grammar.regex_positions import refuse_posix
from sglc.ir.grammar.whole_characters import has_half_pair
from sglc.ir.sampling import LEAST_REPETITION, MOST_REPETITION, MOST_TEMPERATURE, SEEDS, Sampling, is_seed
from sglc.ir.text.literal_place import place_in_literal

# SGLang's names of what to report, each with the field that it sets.
_REPORTS = {
    "logprob_start_len": "logprobs_from",
    "top_logprobs_num": "top_logprobs",
    "return_text_in_logprobs": "logprob_text",
}
_REPORTING = frozenset(("return_logprob", *_REPORTS))
_NO_REPORTS = {"logprobs_from": None, "top_logprobs": 0, "logprob_text": False, "logprobs": False}
_MOST_FLOAT = sys.float_info.max
# The arguments that are about sampling; what may be called, another argument says as a text.
SAMPLING = {field.name for field in fields(Sampling)} - {"tools"} | _REPORTING


class StructuralTag(Protocol):
    """xgrammar's, or another model of pydantic's that is written in the same way."""

    def model_dump(self, *, mode: str) -> dict[str, Any]:
        """Its fields."""


def sampling_fields(given: Mapping[str, Any], loc: Loc) -> dict[str, Any]:
    """The fields of `given` that are not None, checked, lists frozen as tuples.

    Args:
        given: by `Sampling`'s names and SGLang's four of log-probabilities.

    Raises:
        TraceError: SGLC103, naming the argument, its value and what it may be.
    """
    found: dict[str, Any] = {}
    for key, value in given.items():
        if value is None:
            continue
        problem = _problem(key, value)
        if problem:
            raise TraceError("SGLC103", f"`{key}` is `{_spelled(value)}`: {problem}", _place(key, value, loc))
        if key not in _REPORTING:
            found[key] = _frozen(key, value)
            refuse_half_pairs(key, found[key], loc)
    return found if given.keys().isdisjoint(_REPORTING) else {**found, **_reports(given, loc)}


def _spelled(value: Any) -> str:
    try:
        return repr(value)
    except RecursionError:
        return "..."


def refuse_half_pairs(name: str, value: Any, loc: Loc, code: str = "SGLC103") -> None:
    """Raises TraceError: `code`, a text in `value` has half of a surrogate pair, which has no UTF-8."""
    if has_half_pair(value):
        raise TraceError(code, f"`{name}` has half of a surrogate pair, which is no text", loc)


def _reports(given: Mapping[str, Any], loc: Loc) -> dict[str, Any]:
    """The fields of log-probabilities. What was generated always has them, so there is no field for these."""
    asked = {name: given[name] for name in _REPORTS if given.get(name) is not None}
    if given.get("return_logprob") is False:
        for name, value in asked.items():
            if value not in (False, 0, -1):
                raise TraceError(
                    "SGLC103", f"`{name}` is `{value!r}`, and `return_logprob` is `False`", loc,
                    hint="leave one of them out",
                )  # fmt: skip
        return dict(_NO_REPORTS)
    found = {_REPORTS[name]: value for name, value in asked.items()}
    if given.get("return_logprob"):
        found["logprobs"] = True
    if found.get("logprobs_from") == -1:
        found["logprobs_from"] = None
    return found


def _frozen(key: str, value: Any) -> Any:
    match key:
        case "stop" | "stop_token_ids" | "stop_regex":
            return (value,) if isinstance(value, str | int) else tuple(value)
        case "logit_bias":
            return tuple(sorted((int(id_), float(bias)) for id_, bias in value.items()))
        case "structural_tag" if not isinstance(value, str | Mapping):
            return json.dumps(value.model_dump(mode="json"), ensure_ascii=False)
        case "json_schema" | "structural_tag":
            return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        case _:
            return value


def _problem(key: str, value: Any) -> str:
    """What is wrong with a sampling argument, or nothing."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    whole = isinstance(value, int) and not isinstance(value, bool)
    match key:
        case "n":
            return "" if whole and value >= 1 else "it must be an integer of at least 1"
        case "max_tokens" | "min_tokens" | "top_logprobs_num":
            return "" if whole and value >= 0 else "it must be an integer of at least 0"
        case "logprob_start_len":
            return "" if whole and value >= -1 else "it must be -1 (only what is generated) or at least 0"
        case "top_k":
            good = whole and (value == -1 or 1 <= value < 2**31)
            return "" if good else "it must be -1 (off) or from 1 to 2^31-1"
        case "temperature":
            good = number and 0 <= value <= MOST_TEMPERATURE
            return "" if good else f"it must be a number from 0 to {MOST_TEMPERATURE:g}"
        case "top_p":
            return "" if number and 0 < value <= 1 else "it must be in (0, 1]"
        case "min_p":
            return "" if number and 0 <= value <= 1 else "it must be in [0, 1]"
        case "frequency_penalty" | "presence_penalty":
            return "" if number and -2 <= value <= 2 else "it must be in [-2, 2]"
        case "repetition_penalty":
            good = number and LEAST_REPETITION <= value <= MOST_REPETITION
            return "" if good else f"it must be above 0, from {LEAST_REPETITION:g} to {MOST_REPETITION:g}"
        case "stop":
            good = all(isinstance(text, str) and text for text in _several(value))
            return "" if good else "stop strings are texts that are not empty"
        case "stop_regex":
            problems = (_no_regex(text) or ("" if text else "it must not be empty") for text in _several(value))
            return next(filter(None, problems), "")
        case "stop_token_ids":
            good = all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in _several(value))
            return "" if good else "it must be a list of ids"
        case "canonical" | "strict" | "ignore_eos" | "return_logprob" | "return_text_in_logprobs":
            return "" if isinstance(value, bool) else "it must be True or False"
        case "regex":
            return _no_regex(value)
        case "json_schema":
            return _no_schema(value)
        case "structural_tag" if not isinstance(value, str | Mapping):
            return "" if hasattr(value, "model_dump") else "it must be a structural tag, as text or as a dict"
        case "structural_tag":
            return _no_json(value)
        case "ebnf":
            return "" if isinstance(value, str) and value.strip() else "it must be a grammar as text"
        case "logit_bias":
            return _no_biases(value)
        case "seed":
            return "" if is_seed(value) else f"it must be {SEEDS}"
        case _:
            raise AssertionError(key)


def _several(value: Any) -> Sequence[Any]:
    """One or several, as several; [None] if it is neither, which no check takes."""
    if isinstance(value, str | int):
        return (value,)
    return value if isinstance(value, list | tuple) else (None,)


def _no_regex(value: Any) -> str:
    if not isinstance(value, str):
        return "it must be a text"
    try:
        refuse_posix(value)
        re.compile(value)
    except (re.error, ValueError, OverflowError, RecursionError) as error:
        return f"it is no regular expression: {error}"
    return ""


def _place(key: str, value: Any, loc: Loc) -> Loc:
    """Where in the source a value is wrong: inside a pattern, if that stands there, else at `loc`."""
    for pattern in _several(value) if key in ("regex", "stop_regex") else ():
        try:
            refuse_posix(pattern)
            re.compile(pattern)
        except re.error as error:
            return (place_in_literal(pattern, error.pos, loc) if error.pos is not None else None) or loc
        except (TypeError, ValueError, OverflowError, RecursionError):
            return loc
    return loc


def _no_schema(value: Any) -> str:
    if not isinstance(value, str | Mapping):
        return "it must be a JSON schema, as text or as a dict; a class goes to `dtype`"
    if problem := _no_json(value):
        return problem
    held = isinstance(value, Mapping) or isinstance(json.loads(value), dict | bool)
    return "" if held else "a JSON schema is an object"


def _no_json(value: str | Mapping[str, Any]) -> str:
    try:
        json.loads(value) if isinstance(value, str) else json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        return f"it is no JSON: {error}"
    except RecursionError:
        return "it is nested too deeply"
    return ""


def _no_biases(value: Any) -> str:
    if not isinstance(value, Mapping):
        return "it must be a dict from token ids to numbers"
    for id_, bias in value.items():
        spelt = isinstance(id_, str) and id_.isdecimal()  # as in requests of OpenAI's
        if not spelt and (not isinstance(id_, int) or isinstance(id_, bool) or id_ < 0):
            return f"`{id_!r}` is no token id"
        if not isinstance(bias, int | float) or isinstance(bias, bool) or bias != bias:
            return f"the bias of `{id_}` is no number"
        if isinstance(bias, int) and abs(bias) > _MOST_FLOAT:
            return f"the bias of `{id_}` is larger than any float"
    return ""
