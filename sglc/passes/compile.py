"""Program + target -> plan: runs the target's pipeline and remembers the outcome."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from operator import attrgetter
from threading import Lock

from sglc.errors import Loc
from sglc.ir.core import Op, Program, Site, all_ops, walk, with_fields
from sglc.ir.depth import with_room
from sglc.ir.ops import ASKED, Call, Gen
from sglc.ir.plan.plan import Plan
from sglc.ir.remark import Remark
from sglc.ir.rewrite import rewritten
from sglc.ir.target import Target
from sglc.passes.base import run_pipeline
from sglc.passes.lowering.lower_plan import lower_plan
from sglc.passes.pass_options import name_of
from sglc.passes.pipelines import extended, pipeline_for
from sglc.passes.prompt.turns import with_turns

_PLACE = attrgetter(*[f"loc.{field.name}" for field in fields(Loc)])
_CACHE_SIZE = 1024
_CACHE: dict[Hashable, list[Compiled]] = {}  # of each program one, once it is made
_ADDING = Lock()


@dataclass(frozen=True, slots=True)
class Compiled:
    """A program, what the pipeline made of it, and the plan."""

    source: Program
    lowered: Program
    plan: Plan
    remarks: tuple[Remark, ...]
    cache_keys: Mapping[Site, str]  # of the generations that have one


def compile_program(
    program: Program,
    target: Target,
    passes: Sequence[str] | None = None,
    observe: Callable[[str, Program], None] | None = None,
    *,
    to_run: bool = False,
) -> Compiled:
    """Run `passes` (default: the target's pipeline) and lower to a plan.

    Args:
        passes: names; `+name` adds one to the others, or to the target's own (`pipelines.extended`).
        observe: is called with every pass's name and the program it gave.
        to_run: nothing more than a run needs (`Pass.to_run`, `lower_plan`): it is verified once, behind all
            passes.

    Raises:
        VerifyError: the program, or what a pass made of it, breaks an invariant.
        LegalizeError: the target cannot do it.
    """
    names = pipeline_for(target) if passes is None else extended(passes, target)
    ready = with_turns(program)
    if target.guesses and "speculate" not in map(name_of, names):
        ready = _asked_alone(ready)
    lowered, remarks = run_pipeline(ready, target, names, observe=observe, step_by_step=not to_run)
    keys = {op.site: op.cache_key for op in walk(lowered.ops) if isinstance(op, ASKED) and op.cache_key}
    return Compiled(program, lowered, lower_plan(lowered, target, to_run=to_run), remarks, keys)


@with_room
def cached(program: Program, target: Target) -> Compiled:
    """`compile_program`, done once per distinct program: a batch compiles once per distinct path."""
    key = (program.name, program.params, program.ops, repr(program.returns), program.outputs,
           _unlike(program), target.told_by)  # fmt: skip
    with _ADDING:  # rows compile in threads of their own
        made = _CACHE.setdefault(key, [])  # looked up once: it takes long to hash a program
    if not made:
        try:
            made.append(compile_program(program, target, to_run=True))
        except BaseException:
            with _ADDING:
                if not made and _CACHE.get(key) is made:  # no other thread has made it
                    del _CACHE[key]
            raise
        with _ADDING:
            while len(_CACHE) > _CACHE_SIZE:
                del _CACHE[next(iter(_CACHE))]  # the oldest
    return made[0]


def _asked_alone(program: Program) -> Program:
    """Without what the author allows to be asked for in one request: no pass has looked what may be."""

    def changed(op: Op) -> Op:
        return with_fields(op, ahead=0) if isinstance(op, Gen) else op

    return with_fields(program, ops=rewritten(program.ops, changed))


def _unlike(program: Program) -> tuple[Hashable, ...]:
    """What equal ops can differ in: their places, and to Python, 1 and 1.0 and True are equal."""
    ops = all_ops(program)
    found: list[Hashable] = [*chain.from_iterable(map(_PLACE, ops))]
    for op in ops:
        if op.tree_fields:
            found += [repr(getattr(op, name)) for name in op.tree_fields]
        if isinstance(op, Call):
            found.append(repr(op.program.returns))
    return tuple(found)
