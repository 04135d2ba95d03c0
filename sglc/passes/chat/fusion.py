"""Neighbouring generations of a turn as one structured-output request, where its texts can be told apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from sglc.errors import LegalizeError
from sglc.ir.core import Op, Program, Value
from sglc.ir.grammar.captures import Captured, capture_form, why_ambiguous
from sglc.ir.ops import SELECT_METHODS, Append, Call, Fork, Gen, Root, ScopeBegin, ScopeEnd, Select
from sglc.ir.remark import Remark, place
from sglc.ir.rewrite import rewritten
from sglc.ir.target import Target
from sglc.passes.chat.joint_turns import StreamUses, alone, sampled_otherwise


def fused(
    program: Program, target: Target, name: str, *, refused_only: bool
) -> tuple[Program, Sequence[Remark]]:
    """Mark the generations that one structured-output request asks for, and say what keeps others apart.

    Args:
        name: of the pass that remarks it.
        refused_only: only turns that the model could not go on with otherwise.

    Raises:
        LegalizeError: SGLC317, with `refused_only`, such a turn cannot be asked for in one request.
    """
    fusing = _Fusing(StreamUses.of(program), target, name, refused_only)
    fusing.find()
    remarks = fusing.remarks

    def changed(op: Op) -> Op:
        nonlocal remarks
        match op:
            case Gen() | Select() if op.results[0] in fusing.marked:
                return replace(op, fused=True)
            case Call():
                inner, said = fused(op.program, target, name, refused_only=refused_only)
                remarks += said
                return replace(op, program=inner)
            case _:
                return op

    return replace(program, ops=rewritten(program.ops, changed, calls=False)), tuple(dict.fromkeys(remarks))


@dataclass(frozen=True, slots=True)
class _Run:
    """Neighbours of a turn, the texts before the first one, and why there are no more: "" at the turn's end."""

    ops: Sequence[Gen | Select]
    before: Sequence[Append]
    why: str


@dataclass(slots=True)
class _Fusing:
    uses: StreamUses
    target: Target
    name: str
    refused_only: bool
    seen: set[Value] = field(default_factory=set)
    marked: set[Value] = field(default_factory=set)
    remarks: list[Remark] = field(default_factory=list)

    def find(self) -> None:
        for op in self.uses.asked:
            if op.results[0] in self.seen or op.fused:
                continue
            before = self.before(op)
            if before is None:
                continue
            run = self.run(op, before)
            self.seen.update(one.results[0] for one in run.ops)
            self.decide(run)

    def before(self, op: Gen | Select) -> list[Append] | None:
        """The texts that stand before it in its turn; None if it cannot be the first one of an answer."""
        if self.target.protocol == "text" or self.outside_turns(op):
            return []
        return self.uses.since_turn(op)

    def outside_turns(self, op: Gen | Select) -> bool:
        """Whether nothing but text stands before it: to a chat model that is a message of the user's."""
        value = op.stream
        while isinstance(maker := self.uses.makers.get(value), Append | ScopeBegin | ScopeEnd | Fork):
            value = maker.stream
        return isinstance(maker, Root)

    def run(self, first: Gen | Select, before: Sequence[Append]) -> _Run:
        """The longest run from `first` on whose members may be in one object."""
        ops, captured, written = [first], [_captured(first, "")], _written(first, ())
        why = self.why_not(first)
        if not why and not all(self.uses.known(text.text) for text in before):
            why = "the text before it holds what is generated"
        while not why:
            follower, texts = self.uses.next(ops[-1])
            if follower is None or follower.fused:
                break
            why = self.why_not(follower) or self.why_not_behind(ops, follower, texts)
            if not why:
                ops.append(follower)
                captured.append(_captured(follower, "".join(str(text.text) for text in texts)))
                written = written and _written(follower, texts)
        ambiguous = ""
        # What only a run knows, the back end looks at before it asks.
        while len(ops) > 1 and written and (said := why_ambiguous(tuple(captured))):
            ambiguous = said
            del ops[-1], captured[-1]
        return _Run(ops, before, ambiguous or why)

    def decide(self, run: _Run) -> None:
        """Mark a run, say what keeps the next one apart, or refuse a turn that nothing else can ask for."""
        first, follower = run.ops[0], self.uses.next(run.ops[-1])[0]
        if not (run.before or len(run.ops) > 1 or follower is not None):
            return
        if self.refused_only and not self.refused_otherwise(run):
            return
        takes = self.target.takes
        anew = self.target.protocol == "chat" and not (takes.prefill and takes.bound_prefill)
        if (len(run.ops) > 1 or (anew and run.before)) and not (anew and run.why):
            self.marked.update(op.results[0] for op in run.ops)
            if follower is not None:  # it begins no other run: where two meet, one would look like the other
                self.seen.add(follower.results[0])
            self.remarks.append(Remark(self.name, _said(run), place(first.loc)))
        elif self.refused_only and not self.outside_turns(first):
            self.refuse(first if run.before else follower or first, bool(run.before), run.why)
        if run.why:
            apart = follower or first
            beside = f" with `{run.ops[-1].site.name}`" if follower else ""
            said = f"`{apart.site.name}` is not fused{beside}: {run.why}"
            self.remarks.append(Remark(self.name, said, place(apart.loc)))

    def refused_otherwise(self, run: _Run) -> bool:
        """Whether a chat model could not go on in the turn, and `speculate` does not ask for all of it."""
        takes = self.target.takes
        if self.target.protocol != "chat" or all(isinstance(op, Gen) and op.ahead for op in run.ops):
            return False
        behind = run.ops if run.before else run.ops[1:]
        held = any(isinstance(op, Select) or op.sampling.constrained for op in behind)
        last = run.before[0].text if run.before else ""
        blank = isinstance(last, str) and last[-1:].isspace()
        return not takes.prefill or ((held or blank) and not takes.bound_prefill)

    def refuse(self, op: Gen | Select, behind_text: bool, why: str) -> None:
        before = "text" if behind_text else "another generation"
        raise LegalizeError(
            "SGLC317", f"`{self.target.name}` cannot run `{op.site.name}` behind {before} in the same turn",
            place(op.loc),
            note="the model begins every answer anew, and one structured-output request cannot ask for the "
            f"whole turn: {why}",
            hint="end the turn and ask again, or put what stands before it into the user's turn; "
            "`@sgl.function(num_api_spec_tokens=...)` has a turn asked for in one request",
        )  # fmt: skip

    def why_not(self, op: Gen | Select) -> str:
        """Why no object can have it; "" if one can."""
        if isinstance(op, Select):
            if not all(self.uses.known(choice) for choice in op.choices):
                return f"the choices of `{op.site.name}` hold what is generated"
            if self.target.scores_tokens or op.method != SELECT_METHODS[0]:
                return f"`{op.site.name}` is decided by log-probabilities"
        elif why := alone(op, ("stop_regex",)):
            return why
        try:
            capture_form((_captured(op, ""),), self.target.takes.json_schema)
        except LegalizeError as error:
            return f"`{op.site.name}`: {error.message}"
        return ""

    def why_not_behind(
        self, ops: Sequence[Gen | Select], follower: Gen | Select, texts: Sequence[Append]
    ) -> str:
        """Why one object cannot have it together with those before it; "" if it can."""
        if not all(self.uses.known(text.text) for text in texts):
            return "what stands between them holds what is generated"
        gens = [op for op in (*ops, follower) if isinstance(op, Gen)]
        return next(filter(None, (sampled_otherwise(gens[0], gen) for gen in gens[1:])), "")


def _captured(op: Gen | Select, before: str) -> Captured:
    if isinstance(op, Gen):
        return Captured(before, op.site.name, op.sampling)
    return Captured(before, op.site.name, choices=tuple(map(str, op.choices)))


def _written(op: Gen | Select, texts: Sequence[Append]) -> bool:
    """Whether the program itself says what may stand there, and in the texts before it."""
    said = [*(text.text for text in texts), *(op.choices if isinstance(op, Select) else ())]
    return all(isinstance(text, str) for text in said)


def _said(run: _Run) -> str:
    *names, last = (f"`{op.site.name}`" for op in run.ops)
    if not names:
        return f"{last} is a property of one JSON object, and the text before it another one"
    calls = "1 call less" if len(names) == 1 else f"{len(names)} calls less"
    many = f"{', '.join(names)} and {last}"
    return f"{many} are one structured-output request, {calls}: properties of one JSON object"
