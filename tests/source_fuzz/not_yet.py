"""What is known to be unequal today, to be taken off this list one by one.

A kind of difference is no violation in programs with one of the features beside it; `ANY` stands for all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

ANY = frozenset({"any"})

# A program that is called has sites, seeds and counts of its own in Python, and none in a plan.
_CALLED = frozenset({"called_program", "called_program_with_effects"})
# A variable that is assigned, the text of a scope, a typed value: a plan has none of them.
_STORED = frozenset({"variables", "enum_branch", "typed_gen", "fork_join"})
# Compiling executes these, or takes what they give for a constant.
_TAKEN = frozenset({
    "argument: enum", "argument: nested", "argument: dict", "argument: tuple", "argument: dataclass",
    "argument: pydantic", "argument: object", "object_with_operators", "object_with_property",
    "outside_iterator",
    "tool_given_an_object", "try_around_tool", "try_around_read", "outside_closure", "effect", "local_records",
})  # fmt: skip

NOT_YET: Mapping[str, frozenset[str]] = {
    "no effects: state": ANY,
    "no effects: error": ANY,  # the body fails on made-up values, and `explain` on its own
    "plan: error": ANY,  # of arguments that have a default, and of those that are no texts
    "plan: text": ANY,
    "plan: messages": ANY,
    "plan: stream of text": ANY,
    "plan: stream of variables": ANY,  # each comes as a whole
    "plan: value": ANY,  # tuples are lists, and objects their texts
    "plan: variables": _STORED | _CALLED | _TAKEN,
    "plan: order of variables": _STORED | _CALLED | _TAKEN,
    "plan: reads": _STORED | _CALLED | _TAKEN,
    "plan: meta data": _STORED | _CALLED | _TAKEN,
    "plan: calls": _CALLED | _TAKEN,
    "plan: usage": _CALLED | _TAKEN,
    "plan: prompts": _CALLED | _TAKEN,
    "plan: samples": _CALLED | _TAKEN,
    "plan: sites": _CALLED | _TAKEN,
    "plan: sampling": _CALLED | _TAKEN,
    "plan: places": _CALLED | _TAKEN,
    "plan: stream": _CALLED | _TAKEN,
    "plan: state": _TAKEN,
}


def is_known(kind: str, features: Iterable[str]) -> bool:
    """Whether programs with these features may show the difference today."""
    known = NOT_YET.get(kind, frozenset())
    return known is ANY or not known.isdisjoint(features)
