"""What a call of `gen` wants its text to be: which of its arguments say so, and what fits together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglc.errors import Loc, TraceError
from sglc.frontend.outputs.output_form import OutputForm, OutputParser, matching, whole_json
from sglc.frontend.outputs.typed import form_of
from sglc.ir.sampling import FORMS

_MOST_RETRIES = 100

# What says something about a `select`: it is ranked anyway, and its scores are always there.
_BESIDE_CHOICES = {"temperature": (0, 0.0), "return_logprob": (True, False), "retries": (0,)}


def refuse_beside_choices(given: Mapping[str, Any], loc: Loc) -> None:
    """Whether the other arguments of a `gen` with `choices` mean something.

    Raises:
        TraceError: SGLC114, naming the first that does not.
    """
    for key, value in given.items():
        if value is not None and value not in _BESIDE_CHOICES.get(key, ()):
            raise TraceError(
                "SGLC114", f"`{key}` has no meaning beside `choices`", loc,
                note="a choice is ranked, not sampled", hint=f"leave `{key}` or `choices` out",
            )  # fmt: skip


def forms_given(caller: str, said: Mapping[str, Any], loc: Loc) -> list[str]:
    """Which of the arguments that say what a text is `said` has: one at most.

    Raises:
        TraceError: SGLC112, there are two.
    """
    ways = [name for name in ("dtype", *FORMS) if said.get(name) is not None]
    if len(ways) > 1:
        what = f"`{caller}` has both `{ways[0]}` and `{ways[1]}`"
        raise TraceError("SGLC112", what, loc, hint="one of them says what the text is")
    return ways


def specified_form(dtype: Any, given: Mapping[str, Any], loc: Loc) -> OutputForm | None:
    """The form that the text of a `gen` must have, if any; at most one argument may say it.

    Raises:
        TraceError: SGLC112, two that say it or an unknown `dtype`; SGLC115, a class that has no form.
    """
    match forms_given("gen", {"dtype": dtype, **given}, loc):
        case ["dtype"]:
            return form_of(dtype, loc)
        case ["regex"]:
            return OutputForm("text of that form", regex=given["regex"])
        case ["json_schema"]:
            return OutputForm("JSON document", value=whole_json)
        case ["tools"]:
            return given["tools"]  # type: ignore[no-any-return]
        case _:
            return None


def check_of(form: OutputForm | None, loc: Loc) -> OutputParser | None:
    """What tells whether a text has the form; None where nothing here can tell."""
    if form is None:
        return None
    value = form.value or (matching(form.regex) if form.regex is not None else None)
    return None if value is None else OutputParser(form.name, value, loc)


def checked_retries(retries: Any, form: OutputForm | None, loc: Loc) -> int:
    """How often a text that misses the form is made again.

    Raises:
        TraceError: SGLC103, no number or too large a one; SGLC116, without a form.
    """
    if retries is None or retries is False:
        return 0
    if not isinstance(retries, int) or isinstance(retries, bool) or not 0 <= retries <= _MOST_RETRIES:
        what = f"`retries` is `{retries!r}`: it must be an integer from 0 to {_MOST_RETRIES}"
        raise TraceError("SGLC103", what, loc)
    if retries and (form is None or (form.value is None and form.regex is None)):
        raise TraceError(
            "SGLC116", "`retries` needs a form that a text can miss", loc,
            hint="say it with `dtype`, `regex` or `json_schema`",
        )  # fmt: skip
    return retries
