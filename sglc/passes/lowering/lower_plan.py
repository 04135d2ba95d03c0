"""A lowered program becomes a plan: segments, what decides which of them run, and what it will cost."""

from __future__ import annotations

from sglc.ir.core import Program
from sglc.ir.depth import with_room
from sglc.ir.ops import Arg, Guard
from sglc.ir.plan.plan import Param, Plan, PlanGuard
from sglc.ir.plan.plan_json import PLAN_VERSION
from sglc.ir.plan.segment import Segment
from sglc.ir.target import Target
from sglc.passes.lowering.blocks import Lowering
from sglc.passes.lowering.estimate import estimate
from sglc.passes.lowering.prompt_prefixes import prompt_prefixes


@with_room
def lower_plan(program: Program, target: Target, *, to_run: bool = False) -> Plan:
    """The plan of `program`, whose roles are lowered already.

        s1 = control(s0, '<|im_start|>', (1,)); s2 = append(s1, 'user\\n'); s3, t0 = gen(s2, 'x')
            -> n0 open; n1 extend n0 ['<|im_start|>', 'user\\n']; n2 gen n1 'x'
        b0 = eq(t0, 'yes'); t1 = cond(b0): ... else: ...
            -> step 1: b0 = eq(n2, 'yes'); step 2: t1 = if b0 block 0 else block 1

    What stands between two decisions and needs neither is one segment. Every generation runs, since
    its name makes it an output, and every tool; other ops stay if one of those or the return value
    needs them. What streams say (`text_of`, `prompt`) is put together from texts. Streams in
    `program.returns` are kept under the dotted path of their place in it. The program is verified.

    Args:
        to_run: nothing more than a run needs: without what it will cost, and how its prompts begin.

    Raises:
        LegalizeError: SGLC306 chat turns that are not lowered; SGLC308 a picture on a target that
            takes none; SGLC330 `text_of` or `prompt` of a stream that was made elsewhere.
    """
    lowering = Lowering(target)
    block = lowering.program(program)
    steps, blocks = block.steps, tuple(lowering.blocks)
    return Plan(
        version=PLAN_VERSION,
        program=program.name,
        target=target.name,
        tokenizer=target.tokenizer.hash if target.tokenizer else "",
        params=tuple(
            Param(op.name, op.kind, op.default, op.holds, op.loc)
            for op in program.params
            if isinstance(op, Arg)
        ),
        steps=steps or (Segment(()),),
        variables=block.variables,
        returns=block.results[0],
        estimate=None if to_run else estimate(steps, blocks, target.tokenizer),
        blocks=blocks,
        leads=() if to_run else prompt_prefixes(program, marked=True),
        guards=tuple(PlanGuard(op.fact, op.expected, op.loc) for op in program.params if isinstance(op, Guard)),
        outputs=program.outputs,
    )
