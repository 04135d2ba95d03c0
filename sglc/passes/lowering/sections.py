"""Named sections are for passes: a plan has none."""

from __future__ import annotations

from collections.abc import Iterable

from sglc.ir.core import Op, Program, Region, Value, reading, substitute, with_fields, with_regions
from sglc.ir.ops import ScopeBegin, ScopeEnd
from sglc.passes.prompt.text import PromptTexts

SECTIONS = (ScopeBegin, ScopeEnd)


def without_sections(program: Program, prompts: PromptTexts) -> tuple[Program, PromptTexts]:
    """The program, in which streams are read from before where a section begins or ends, and its prompts.

    s1 = scope_begin(s0, 'a'); s2 = append(s1, 'x'); s3 = scope_end(s2, 'a'); yield s3
        -> s2 = append(s0, 'x'); yield s2
    """
    rename: dict[Value, Value] = {}

    def block(before: Iterable[Op]) -> tuple[Op, ...]:
        ops: list[Op] = []
        for op in before:
            op = reading(op, rename)
            if isinstance(op, SECTIONS):
                rename[op.results[0]] = op.stream
            else:
                ops.append(with_regions(op, region))
        return tuple(ops)

    def region(before: Region) -> Region:
        ops = block(before.ops)
        return with_fields(before, ops=ops, results=substitute(before.results, rename))

    ops = block(program.ops)
    made = with_fields(program, ops=ops, returns=substitute(program.returns, rename))
    return made, {rename.get(stream, stream): texts for stream, texts in prompts.items()}
