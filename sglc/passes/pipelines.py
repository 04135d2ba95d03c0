"""Which passes run, in which order, for which kind of target."""

from __future__ import annotations

from collections.abc import Iterable

from sglc.errors import UsageError
from sglc.ir.target import EVERYTHING, Target
from sglc.passes.base import looked_up
from sglc.passes.pass_options import name_of, options_of

LOCAL = (
    "compile_constraints",  # first, while every generation still has its place
    "inline_calls",  # before all that joins and merges: it then sees past the border of a call
    "prune",  # behind it: what a called program generates for nobody goes too
    "overlap_tools",
    "fold_text",  # longer literals, fewer ops: what follows is quicker and finds more that is equal
    "share_prefixes",  # before roles are lowered, because equal turns are easiest to see as roles
    "lower_roles",  # turns become template text and control tokens
    "fold_text",  # that text joins the literals beside it
    "hoist_prefix",  # behind all that changes prompts
    "unify",  # last: no pass behind it makes another sampling or prompt of what it marks
)


# An API that takes the prompt as a text or as ids: the model's template is written here, as for `local`.
TEXT = (
    "compile_constraints",
    "legalize",  # as early as the last: what the model cannot do is refused at its place
    "inline_calls",
    "prune",
    "overlap_tools",
    "speculate",  # while turns show where they end
    "fold_text",
    "share_prefixes",
    "cache_hints",  # while turns are still told apart: the template's text is not counted
    "lower_roles",
    "fold_text",
    "hoist_prefix",
    "unify",
    "engine_hints",  # of what is left to be asked for
)

# An API that takes messages: turns stay turns.
CHAT = (
    "compile_constraints",
    "legalize",
    "inline_calls",
    "prune",
    "overlap_tools",
    "speculate",  # what one request can ask for, `chat_turns` does not refuse
    "chat_turns",
    "fold_text",
    "share_prefixes",
    "cache_hints",  # longer literals reach further, and nothing changes a prompt behind it
    "hoist_prefix",
    "unify",
)

# What a target of tokens cannot do without: nothing is made better. For measuring what the others are worth.
MINIMAL = ("compile_constraints", "lower_roles")

_BY_PROTOCOL = {"tokens": TEXT, "text": TEXT, "chat": CHAT}


def extended(passes: Iterable[str], target: Target) -> tuple[str, ...]:
    """Passes as they are asked for: `+name` adds one to the others, and `-name` takes one away.

    Without others these are the target's own. One that stands there already is given the options of
    `+name{...}`; others come before the first `fold_text`, where calls are inlined, and turns are still turns.
    Nothing that is asked for is nothing.

    Raises:
        UsageError: SGLC020, SGLC322, a name that is no pass, an option that it does not have, or one of a
            pass that is taken away.
    """
    asked = tuple(passes)
    for spec in asked:
        bare = spec[spec.startswith(("+", "-")) :]
        if options_of(bare, looked_up(bare).run) and spec.startswith("-"):
            raise UsageError(
                "SGLC322", f"`{spec}` takes a pass away, and gives it options", hint=f"write `{name_of(spec)}`"
            )
    more = [spec[1:] for spec in asked if spec.startswith("+")]
    less = [name_of(spec[1:]) for spec in asked if spec.startswith("-")]
    others = [spec for spec in asked if not spec.startswith(("+", "-"))]
    if asked and not others:
        others = list(pipeline_for(target))
    names = [name_of(spec) for spec in others]
    new = [spec for spec in more if "{" not in spec or name_of(spec) not in names]
    for spec in more:
        others = [
            spec if spec not in new and name_of(spec) == name else old
            for name, old in zip(names, others, strict=True)
        ]
    at = names.index("fold_text") if "fold_text" in names else len(names)
    return tuple(spec for spec in (*others[:at], *new, *others[at:]) if name_of(spec) not in less)


def pipeline_for(target: Target) -> tuple[str, ...]:
    """The passes that prepare a program for `target`."""
    if target.passes is not None:
        return target.passes
    if target.protocol == "tokens" and target.takes == EVERYTHING:
        return LOCAL
    return _BY_PROTOCOL[target.protocol]


def hoists(target: Target) -> bool:
    """Whether rows of a batch run in the order of how their prompts begin."""
    return "hoist_prefix" in map(name_of, pipeline_for(target))
