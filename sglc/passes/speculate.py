"""Neighbouring generations of one turn are asked for in one request, where the author allows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sglc.errors import LegalizeError
from sglc.ir.core import Op, Program, Type, Value, inputs, regions
from sglc.ir.depth import with_room
from sglc.ir.ops import Append, Arg, Call, Fork, Gen, RoleOpen, ScopeBegin, ScopeEnd, Select
from sglc.ir.remark import Remark, place
from sglc.ir.rewrite import everywhere, rewritten
from sglc.ir.sampling import Sampling
from sglc.ir.target import Target
from sglc.passes.base import Exactness, Rewrite, register

_PLAIN = Sampling()
# A joint answer is no sample of a generation that asks for any of these.
_ALONE = (
    "n", "min_tokens", "stop_token_ids", "ignore_eos", "regex", "json_schema", "ebnf", "structural_tag",
    "tools", "frequency_penalty", "presence_penalty", "logprobs_from", "top_logprobs", "logprob_text",
    "logprobs",
)  # fmt: skip
_SHARED = ("temperature", "top_p", "top_k", "min_p", "logit_bias", "seed")


@register(
    "speculate", Exactness.DISTRIBUTION, "neighbouring generations of a turn become one request of an API"
)
@with_room
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
    aheads = _aheads(_Uses.of(program), target, remarks)

    def changed(op: Op) -> Op:
        match op:
            case Gen():
                return replace(op, ahead=aheads.get(op.results[0], 0))
            case Call():
                return replace(op, program=_changed(op.program, target, remarks))
            case _:
                return op

    return replace(program, ops=rewritten(program.ops, changed, calls=False))


@dataclass(frozen=True, slots=True)
class _Uses:
    """Of a program's values: who made each, in which block, and who reads each stream."""

    makers: Mapping[Value, Op]
    blocks: Mapping[Value, int]
    readers: Mapping[Value, Sequence[Op]]
    gens: Sequence[Gen]

    @classmethod
    def of(cls, program: Program) -> _Uses:
        makers: dict[Value, Op] = {}
        blocks: dict[Value, int] = {}
        readers: dict[Value, list[Op]] = {}
        gens: list[Gen] = []
        todo: list[Sequence[Op]] = [(*program.params, *program.ops)]
        for number, ops in enumerate(todo):
            for op in ops:
                makers.update(dict.fromkeys(op.results, op))
                blocks.update(dict.fromkeys(op.results, number))
                read = [*inputs(op), *(value for region in regions(op) for value in region.results)]
                for value in read:
                    if value.type is Type.STREAM:
                        readers.setdefault(value, []).append(op)
                if isinstance(op, Gen):
                    gens.append(op)
                todo += [region.ops for region in regions(op)]
        return cls(makers, blocks, readers, gens)

    def known(self, text: Value | str) -> bool:
        """Whether a text is there before anything is generated."""
        if isinstance(text, str):
            return True
        maker = self.makers.get(text)
        if maker is None or isinstance(maker, Arg):
            return True
        return maker.pure and all(self.known(value) for value in inputs(maker))

    def next(self, gen: Gen) -> tuple[Gen | Select | None, list[Append]]:
        """What is generated behind `gen` in its turn if only that goes on from there, and the texts between."""
        texts: list[Append] = []
        value = gen.results[0]
        while True:
            match self.readers.get(value, ()):
                case [Append() | ScopeBegin() | ScopeEnd() | Gen() | Select() as op]:
                    pass
                case _:
                    return None, texts
            if self.blocks[op.results[0]] != self.blocks[value]:
                return None, texts
            if isinstance(op, Gen | Select):
                return op, texts
            if isinstance(op, Append):
                texts.append(op)
            value = op.results[0]

    def since_turn(self, gen: Gen) -> list[Append] | None:
        """The texts before `gen` in its turn; None if it is not the assistant's, or holds more than texts."""
        texts: list[Append] = []
        value = gen.stream
        while True:
            match self.makers.get(value):
                case Append() as op:
                    texts.append(op)
                    value = op.stream
                case ScopeBegin() | ScopeEnd() | Fork() as op:
                    value = op.stream
                case RoleOpen(role="assistant"):
                    return [text for text in texts if text.text != ""]
                case _:
                    return None


def _aheads(uses: _Uses, target: Target, remarks: list[Remark]) -> dict[Value, int]:
    """The `ahead` of every generation that has one."""
    anew = target.protocol == "chat" and not target.takes.prefill
    found: dict[Value, int] = {}
    seen: set[Value] = set()
    for gen in uses.gens:
        if not gen.ahead or gen.results[0] in seen:
            continue
        before = uses.since_turn(gen) if anew else []
        if before is None:
            continue
        run = [gen]
        _refuse(target, anew and bool(before), gen, _why_not_first(uses, gen, before))
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


def _why_not_first(uses: _Uses, gen: Gen, before: Sequence[Append]) -> str:
    return _own(gen) or _unknown(uses, before)


def _why_not(uses: _Uses, gen: Gen, follower: Gen | Select, texts: Sequence[Append], anew: bool) -> str:
    """Why one answer cannot have both; nothing if it can."""
    if isinstance(follower, Select):
        return f"`{follower.site.name}` is a choice"
    if not follower.ahead:
        return f"nothing is allowed to guess `{follower.site.name}`"
    if why := _own(gen) or _own(follower) or _unknown(uses, texts):
        return why
    for name in _SHARED:
        if getattr(gen.sampling, name) != getattr(follower.sampling, name):
            return f"`{gen.site.name}` has another `{name}`"
    if gen.sampling.stop or gen.sampling.stop_regex:
        return ""
    if anew and any(text.text != "" for text in texts):
        return ""  # it ends where the text behind it begins
    return f"`{gen.site.name}` has no `stop`, so an answer would not show where it ends"


def _own(gen: Gen) -> str:
    for name in _ALONE:
        if getattr(gen.sampling, name) != getattr(_PLAIN, name):
            return f"`{gen.site.name}` has `{name}`"
    return "" if gen.sampling.max_tokens else f"`{gen.site.name}` makes no text"


def _unknown(uses: _Uses, texts: Sequence[Append]) -> str:
    known = all(uses.known(text.text) for text in texts)
    return "" if known else "the text before it holds what is generated"
