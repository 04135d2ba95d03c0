"""Which passes run, in which order, for which kind of target."""

from __future__ import annotations

from collections.abc import Iterable

from sglc.ir.target import EVERYTHING, Target

LOCAL = (
    "check_constraints",  # first, while every generation still has its place
    "inline_calls",  # before all that joins and merges: it then sees past the border of a call
    "fold_text",  # longer literals, fewer ops: what follows is quicker and finds more that is equal
    "share_prefixes",  # before roles are lowered, because equal turns are easiest to see as roles
    "lower_roles",  # turns become template text and control tokens
    "fold_text",  # that text joins the literals beside it
    "unify",  # last: no pass behind it makes another sampling or prompt of what it marks
)


# An API that takes the prompt as a text or as ids: the model's template is written here, as for `local`.
TEXT = (
    "check_constraints",
    "legalize",  # as early as the last: what the model cannot do is refused at its place
    "inline_calls",
    "speculate",  # while turns show where they end
    "fold_text",
    "share_prefixes",
    "lower_roles",
    "fold_text",
    "unify",
)

# An API that takes messages: turns stay turns.
CHAT = (
    "check_constraints",
    "legalize",
    "inline_calls",
    "speculate",  # what one request can ask for, `chat_turns` does not refuse
    "chat_turns",
    "fold_text",
    "share_prefixes",
    "cache_hints",  # longer literals reach further, and nothing changes a prompt behind it
    "unify",
)

# What a target of tokens cannot do without: nothing is made better. For measuring what the others are worth.
MINIMAL = ("check_constraints", "lower_roles")

_BY_PROTOCOL = {"tokens": TEXT, "text": TEXT, "chat": CHAT}


def extended(passes: Iterable[str], target: Target) -> tuple[str, ...]:
    """Passes as they are asked for: `+name` stands before the first `fold_text` of the others.

    Without others these are the target's own. There calls are inlined, and turns are still turns. Nothing
    that is asked for is nothing.
    """
    asked = tuple(passes)
    more = tuple(name[1:] for name in asked if name.startswith("+"))
    others = tuple(name for name in asked if not name.startswith("+"))
    if more and not others:
        others = pipeline_for(target)
    at = others.index("fold_text") if "fold_text" in others else len(others)
    return (*others[:at], *more, *others[at:])


def pipeline_for(target: Target) -> tuple[str, ...]:
    """The passes that prepare a program for `target`."""
    if target.passes is not None:
        return target.passes
    if target.protocol == "tokens" and target.takes == EVERYTHING:
        return LOCAL
    return _BY_PROTOCOL[target.protocol]
