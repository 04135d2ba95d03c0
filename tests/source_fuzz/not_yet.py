"""What is known to be unequal today, to be taken off this list one by one.

A kind of difference is no violation in programs with one of the features beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tests.source_fuzz.observe import ASKED, OUTSIDE, RESULT, STREAMED

# Arguments of plans are texts, and the tracer takes an untyped one for a text: what the program makes of a
# number, a list or an object is another prompt, value or error.
_ARGUMENTS = frozenset({
    "argument: int", "argument: float", "argument: bool", "argument: none", "argument: enum", "argument: list",
    "argument: dict", "argument: nested", "argument: dataclass", "argument: pydantic", "argument: tuple",
    "argument: object",
})  # fmt: skip

NOT_YET: Mapping[str, frozenset[str]] = {
    **{f"plan: {aspect}": _ARGUMENTS for aspect in (*RESULT, *ASKED, *OUTSIDE, *STREAMED)},
    "plan: error": _ARGUMENTS | {"default"},  # a plan has no defaults: it misses the argument
}


def is_known(kind: str, features: Iterable[str]) -> bool:
    """Whether programs with these features may show the difference today."""
    return not NOT_YET.get(kind, frozenset()).isdisjoint(features)
