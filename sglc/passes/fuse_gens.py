"""Neighbouring generations that are held to forms become one structured-output request of an API."""

from __future__ import annotations

from sglc.ir.core import Program
from sglc.ir.target import Target
from sglc.passes.base import Exactness, Rewrite, register
from sglc.passes.chat.joint_turns import may_be_joint


@register(
    "fuse_gens",
    Exactness.AGGRESSIVE,
    "neighbouring generations become one JSON object that an API is asked for",
)
def fuse_gens(program: Program, target: Target) -> Rewrite:
    """Mark the neighbours of a turn that one structured-output request asks for.

        s1, t0 = gen(s0, 'name', regex='[a-z]+')
        s2 = append(s1, '\\nAge: ')
        s3, t1 = gen(s2, 'age', regex='[0-9]+')  ->  the same, with `fused=True`

    The back end asks for `{"name": ..., "age": ...}` and reads each text back; a literal that says more than
    the name behind it is a property too, of that value alone (`ir.grammar.captures`). Only what a reader of
    the turn's text could cut in no other way is fused, as automata prove (`ir.grammar.unambiguous`). The
    program's texts stay what they were; the model writes them as JSON, so its answers may be others. A free
    text may be the last one, or stand before its own stop character. `legalize` does the same
    to turns that a model could not go on with otherwise.
    """
    if not may_be_joint(target):
        return program
    from sglc.passes.chat.fusion import fused  # it reads forms of all kinds

    changed, remarks = fused(program, target, "fuse_gens", refused_only=False)
    return changed, tuple(remarks)
