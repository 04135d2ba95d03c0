"""Neighbouring generations of one turn are asked for in one request, where the author allows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sglc.errors import LegalizeError
from sglc.ir.core import Op, Program, Value
from sglc.ir.ops import Append, Call, Gen, Select
from sglc.ir.remark import Remark, place
from sglc.ir.rewrite import everywhere, rewritten
from sglc.ir.target import Target
from sglc.passes.base import Exactness, Rewrite, register
from sglc.passes.chat.joint_turns import StreamUses, alone, sampled_otherwise

_FORMS = ("regex", "json_schema")  # their texts are no part of a plain answer


@register(
    "speculate", Exactness.DISTRIBUTION, "neighbouring generations of a turn become one request of an API"
)
def speculate(program: Program, target: Target) -> Rewrite:
    """Leave `ahead` where one request may go on to the next generation, and take it away everywhere else.

        s1, t0 = gen(s0, 'a', stop=('\\n',), ahead=64)
        s2 = append(s1, '\\nB:')
        s3, t1 = gen(s2, 'b', stop=('\\n',), ahead=64)  ->  the same, but for the last: it has no `ahead`

    The back end matches the answer against the texts between, exactly, and asks on its own for what does not
    match; so what each generation is a sample of stays the same, but for tokens that would reach across
    the edge of a text, and for answers that the request's own limit cuts off. Where the model begins every
    answer anew (no `prefill`) a request asks for the whole turn, its first text included, and there `ahead`
    makes possible what would be refused.

    Raises:
        LegalizeError: SGLC317, such a turn cannot be asked for in one request.
    """
    if not target.guesses or not any(isinstance(op, Gen) and op.ahead for op in everywhere(program.ops)):
        return program
    remarks: list[Remark] = []
    changed = _changed(program, target, remarks)
    return changed, tuple(dict.fromkeys(remarks))


def _changed(program: Program, target: Target, remarks: list[Remark]) -> Program:
    aheads = _aheads(StreamUses.of(program), target, remarks)

    def changed(op: Op) -> Op:
        match op:
            case Gen():
                return replace(op, ahead=aheads.get(op.results[0], 0))
            case Call():
                return replace(op, program=_changed(op.program, target, remarks))
            case _:
                return op

    return replace(program, ops=rewritten(program.ops, changed, calls=False))


def _aheads(uses: StreamUses, target: Target, remarks: list[Remark]) -> dict[Value, int]:
    """The `ahead` of every generation that has one."""
    anew = target.protocol == "chat" and not target.takes.prefill
    found: dict[Value, int] = {}
    seen: set[Value] = set()
    for gen in uses.asked:
        if not isinstance(gen, Gen) or not gen.ahead or gen.fused or gen.results[0] in seen:
            continue
        before = uses.since_turn(gen) if anew else []
        if before is None:
            continue
        run = [gen]
        _refuse(target, anew and bool(before), gen, alone(gen, _FORMS) or _unknown(uses, before))
        while True:
            follower, texts = uses.next(run[-1])
            if follower is None:
                break
            why = _why_not(uses, run[-1], follower, texts, anew)
            _refuse(target, anew, follower, why)
            if why or not isinstance(follower, Gen):
                said = f"`{follower.site.name}` has a request of its own: {why}"
                remarks.append(Remark("speculate", said, place(follower.loc)))
                break
            run.append(follower)
        seen.update(one.results[0] for one in run)
        if len(run) > 1 or before:
            found.update((one.results[0], gen.ahead) for one in (run if anew else run[:-1]))
            remarks.append(Remark("speculate", _joined(run, anew), place(gen.loc)))
    return found


def _joined(run: Sequence[Gen], anew: bool) -> str:
    *names, last = (f"`{one.site.name}`" for one in run)
    less = len(run) - 1
    if not less:
        return f"{last} is asked for with the text before it; a turn that begins otherwise is asked for again"
    calls = "1 call less" if less == 1 else f"{less} calls less"
    kept = "the turn is asked for again" if anew else "the rest is asked for on its own"
    return (
        f"{', '.join(names)} and {last} are asked for in one request, {calls}: one sample of their joint text; "
        f"where that does not keep to the program's texts, {kept}"
    )


def _refuse(target: Target, only_way: bool, op: Gen | Select, why: str) -> None:
    """Raise where one request is the only way."""
    if only_way and why:
        raise LegalizeError(
            "SGLC317", f"`{target.name}` cannot run `{op.site.name}` behind what stands before it in its turn",
            place(op.loc),
            note=f"the model begins every answer anew, and one request cannot ask for the whole turn: {why}",
            hint="end the turn and ask again, or change what keeps it from being one request",
        )  # fmt: skip


def _why_not(uses: StreamUses, gen: Gen, follower: Gen | Select, texts: Sequence[Append], anew: bool) -> str:
    """Why one answer cannot have both; nothing if it can."""
    if isinstance(follower, Select):
        return f"`{follower.site.name}` is a choice"
    if follower.fused or not follower.ahead:
        return f"nothing is allowed to guess `{follower.site.name}`"
    if why := alone(gen, _FORMS) or alone(follower, _FORMS) or _unknown(uses, texts):
        return why
    if why := sampled_otherwise(gen, follower):
        return why
    if gen.sampling.stop or gen.sampling.stop_regex:
        return ""
    if anew and any(text.text != "" for text in texts):
        return ""  # it ends where the text behind it begins
    return f"`{gen.site.name}` has no `stop`, so an answer would not show where it ends"


def _unknown(uses: StreamUses, texts: Sequence[Append]) -> str:
    known = all(uses.known(text.text) for text in texts)
    return "" if known else "the text before it holds what is generated"
