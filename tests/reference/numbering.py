"""Programs with their values numbered as the text form numbers them: by these, equal programs are equal."""

from __future__ import annotations

from dataclasses import replace

from sglc.ir.core import Op, Program, Value, definitions, renamed, substitute
from sglc.ir.depth import with_room
from sglc.ir.ops import Call
from sglc.ir.rewrite import rewritten


@with_room
def canonical(program: Program) -> Program:
    """The same program with values numbered from 0 in order of definition, as `from_text` numbers them."""
    defined = enumerate(definitions((*program.params, *program.ops)))
    rename = {value: Value(number, value.type) for number, value in defined}

    def called(op: Op) -> Op:  # it numbers its values by itself
        return replace(op, program=canonical(op.program)) if isinstance(op, Call) else op

    return replace(
        program,
        params=tuple(renamed(op, rename) for op in program.params),
        ops=tuple(renamed(op, rename) for op in rewritten(program.ops, called, calls=False)),
        returns=substitute(program.returns, rename),
    )
