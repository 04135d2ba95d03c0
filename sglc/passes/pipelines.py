"""Which passes run, in which order, for which kind of target."""

from __future__ import annotations

from sglc.ir.target import Target

LOCAL = (
    "check_constraints",  # first, while every generation still has its place
    "fold_text",  # longer literals, fewer ops: what follows is quicker and finds more that is equal
    "share_prefixes",  # before roles are lowered, because equal turns are easiest to see as roles
    "lower_roles",  # turns become template text and control tokens
    "fold_text",  # that text joins the literals beside it
)


def pipeline_for(target: Target) -> tuple[str, ...]:
    """The passes that prepare a program for `target`. Every target of this release runs whole segments."""
    del target
    return LOCAL
