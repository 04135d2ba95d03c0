"""What rows of a batch have in common at the beginning of their prompts, said by arguments."""

from __future__ import annotations

from collections.abc import Iterator

from sglc.ir.core import Op, Program, with_fields
from sglc.ir.ops import Gen, Select
from sglc.ir.plan.plan import Derived, PromptPrefix
from sglc.ir.plan.segment import Slot
from sglc.ir.remark import Remark, place
from sglc.ir.rewrite import rewritten
from sglc.ir.target import Target
from sglc.passes.base import Exactness, Rewrite, register
from sglc.passes.lowering.prompt_prefixes import prefix_of_each


@register(
    "hoist_prefix",
    Exactness.TOKENS,
    "rows that begin alike run one behind the other, and share it",
    to_run=lambda program, target: program,
)
def hoist_prefix(program: Program, target: Target) -> Rewrite:
    """Mark the generations whose prompts begin with arguments: rows in which these are equal begin alike.

        s1 = append(s0, 'Essay: '); s2 = append(s1, essay); s3 = append(s2, question); s4, t0 = gen(s3, 'x')
            -> the same, with s4, t0 = gen(s3, 'x', hoist=('essay', 'question'))

    A beginning goes on up to the last argument before the first text that a model or ordinary Python makes; an
    argument counts where it stands as it is, stripped or in lower case. The executor binds the beginnings of
    some thousand rows that are next, and runs the rows in the order of a walk through their trie, depth first:
    a cache that holds the path to one row computes every token of them once (Theorem 3.1 of the SGLang paper).
    No prompt changes.
    """
    marks: dict[int, tuple[str, ...]] = {}
    first: dict[tuple[str, ...], Remark] = {}
    for op, prefix in prefix_of_each(program):
        if isinstance(op, Gen | Select) and (names := tuple(_names(prefix))):
            marks[id(op)] = names
            behind = ", ".join(f"`{name}`" for name in dict.fromkeys(names))
            said = f"`{op.site.name}` begins with {behind}: rows share as much of it as they have in common"
            first.setdefault(names, Remark("hoist_prefix", said, place(op.loc)))

    def changed(op: Op) -> Op:
        return with_fields(op, hoist=marks.get(id(op), ())) if isinstance(op, Gen | Select) else op

    return with_fields(program, ops=rewritten(program.ops, changed)), tuple(first.values())


def _names(prefix: PromptPrefix) -> Iterator[str]:
    """The arguments in a beginning, in their order."""
    for part in prefix:
        match part:
            case Slot(name):
                yield name
            case Derived(parts=parts):
                yield from _names(parts)
