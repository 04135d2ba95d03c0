"""The part of a prompt that is the same whatever the arguments are, computed before it is needed."""

from __future__ import annotations

from dataclasses import replace

from sglc.errors import LegalizeError
from sglc.execution.plan.executor import run_plan
from sglc.execution.session import Session
from sglc.ir.core import Op, Program, Site, Type, Value
from sglc.ir.ops import Append, Format, Gen, RoleClose, RoleOpen, Root
from sglc.ir.plan.backend import Backend
from sglc.ir.sampling import Sampling
from sglc.passes.compile import compile_program


def precache(program: Program, backend: Backend) -> None:
    """Compute the prefix of `program` on `backend`; nothing if the program begins with an argument.

    Raises:
        SglcError: the back end cannot do it.
    """
    first = prefix(program)
    if first is None or not backend.target.takes.stop_tokens:  # no API's cache is filled ahead
        return
    try:
        plan = compile_program(first, backend.target).plan
    except LegalizeError as error:
        if error.code == "SGLC304":  # the template writes this beginning only together with what follows
            return
        raise
    run_plan(plan, {}, Session(backend, 0))


def prefix(program: Program) -> Program | None:
    """What stands in the program's own stream before anything that differs from run to run.

        s1 = role_open(s0, 'user'); s2 = append(s1, 'Q: '); s3 = append(s2, question); ...
            -> s1 = role_open(s0, 'user'); s2 = append(s1, 'Q: '); s3, t0 = gen(s2, max_tokens=1)

    The one token that is generated behind it makes any back end compute it. None: nothing stands there.
    """
    formats = {op.results[0]: op for op in program.ops if isinstance(op, Format)}
    ops: list[Op] = []
    stream: Value | None = None
    for op in program.ops:
        match op:
            case Root() if stream is None:
                ops.append(op)
            case Append(text=str()) | RoleOpen() | RoleClose() if op.stream == stream:
                ops.append(op)
            case Append(text=Value() as text) if op.stream == stream:
                head = formats[text].parts[0] if text in formats else ""
                if isinstance(head, str) and head:
                    ops.append(replace(op, text=head))
                    stream = op.results[0]
                break
            case _ if stream is not None and getattr(op, "stream", None) == stream:
                break
            case _:
                continue
        stream = op.results[0]
    if stream is None or not any(isinstance(op, Append) for op in ops):
        return None
    unused = 1 + max(value.id for op in (*program.params, *program.ops) for value in op.results)
    made = (Value(unused, Type.STREAM), Value(unused + 1, Type.TEXT))
    sampling = Sampling(max_tokens=1, temperature=0.0, ignore_eos=True, seed=0)
    last = Gen(stream, Site(program.name, (), "warm"), sampling, results=made, loc=ops[-1].loc)
    return Program(program.name, (), (*ops, last))
