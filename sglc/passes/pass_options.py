"""How passes are asked for by text: `name` or `name{option=value,...}`, options typed as each pass says."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Any, get_type_hints

from sglc.errors import UsageError

_SPEC = re.compile(r"([^{}]*)(?:\{([^{}]*)\})?\Z")
_TRUTHS = {"true": True, "false": False}
Count = Annotated[int, range(sys.maxsize)]  # an option of a pass that is never below 0


def split_specs(text: str) -> tuple[str, ...]:
    """What stands between the commas of a list of passes; those in braces are the options' own."""
    return tuple(spec for part in re.findall(r"(?:[^,{]|\{[^}]*\}?)+", text) if (spec := part.strip()))


def name_of(spec: str) -> str:
    """The name of the pass that `spec` asks for."""
    return spec.partition("{")[0]


def options_of(spec: str, run: Callable[..., Any]) -> dict[str, Any]:
    """What the pass's function `run` is given besides: the options of `spec`, as its keywords are annotated.

    Raises:
        UsageError: SGLC322, braces that do not close, an option that the pass does not have or that is there
            twice, or a value of another type or out of its range.
    """
    if "{" not in spec:
        return {}
    found, known = _SPEC.match(spec), known_options(run)
    if found is None:
        raise _wrong(spec, "has its options in `{` and `}`", known)
    given: dict[str, Any] = {}
    for pair in (found[2] or "").split(","):
        name, equals, text = (part.strip() for part in pair.partition("="))
        if not pair.strip():
            continue
        if name in given:
            raise _wrong(spec, f"has two values of `{name}`", known)
        kind = known[name].annotation if name in known else None
        try:
            if not equals:
                raise ValueError
            given[name] = _TRUTHS[text.lower()] if kind is bool else kind(text)  # type: ignore[misc]
        except (KeyError, TypeError, ValueError):
            what = f"has no option `{name}`" if kind is None else f"takes `{name}={kind.__name__}`"
            raise _wrong(spec, what, known) from None
        for bounds in getattr(get_type_hints(run, include_extras=True).get(name), "__metadata__", ()):
            if given[name] not in bounds:
                raise _wrong(spec, f"takes `{name}` from {bounds[0]} on", known)
    return given


def _wrong(spec: str, what: str, known: Mapping[str, inspect.Parameter]) -> UsageError:
    its = ", ".join(str(parameter) for parameter in known.values()) or "none"
    return UsageError(
        "SGLC322", f"`{spec}`: pass `{name_of(spec)}` {what}", note=f"its options: {its}",
        hint=f"write `{name_of(spec)}{{option=value,...}}`" if known else f"write `{name_of(spec)}`",
    )  # fmt: skip


@cache
def known_options(run: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The options of a pass: the keywords of its function."""
    hints = get_type_hints(run)
    return {
        parameter.name: parameter.replace(annotation=hints.get(parameter.name, str))
        for parameter in inspect.signature(run).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
