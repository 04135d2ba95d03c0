"""Which generations one request may ask for: who goes on with each stream, and what keeps one apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sglc.ir.core import Op, Program, Type, Value, inputs, regions
from sglc.ir.ops import Append, Arg, Fork, Gen, RoleOpen, ScopeBegin, ScopeEnd, Select
from sglc.ir.sampling import Sampling
from sglc.ir.target import Target

_PLAIN = Sampling()
# A joint answer is no sample of a generation that asks for any of these, or holds it to no form.
_ALONE = (
    "n", "min_tokens", "stop_token_ids", "ignore_eos", "ebnf", "structural_tag", "tools", "frequency_penalty",
    "presence_penalty", "repetition_penalty", "logprobs_from", "top_logprobs", "logprob_text", "logprobs",
)  # fmt: skip
_SHARED = ("temperature", "top_p", "top_k", "min_p", "logit_bias", "seed")


def may_be_joint(target: Target) -> bool:
    """Whether one structured-output request can have several generations of a turn there."""
    return target.guesses and bool(target.takes.json_schema) and target.protocol != "tokens"


@dataclass(frozen=True, slots=True)
class StreamUses:
    """Of a program's values: who made each, in which block, and who reads each stream."""

    makers: Mapping[Value, Op]
    blocks: Mapping[Value, int]
    readers: Mapping[Value, Sequence[Op]]
    asked: Sequence[Gen | Select]

    @classmethod
    def of(cls, program: Program) -> StreamUses:
        """Those of a program, without what it calls."""
        makers: dict[Value, Op] = {}
        blocks: dict[Value, int] = {}
        readers: dict[Value, list[Op]] = {}
        asked: list[Gen | Select] = []
        todo: list[Sequence[Op]] = [(*program.params, *program.ops)]
        for number, ops in enumerate(todo):
            for op in ops:
                makers.update(dict.fromkeys(op.results, op))
                blocks.update(dict.fromkeys(op.results, number))
                read = [*inputs(op), *(value for region in regions(op) for value in region.results)]
                for value in read:
                    if value.type is Type.STREAM:
                        readers.setdefault(value, []).append(op)
                if isinstance(op, Gen | Select):
                    asked.append(op)
                todo += [region.ops for region in regions(op)]
        return cls(makers, blocks, readers, asked)

    def known(self, text: Value | str) -> bool:
        """Whether a text is there before anything is generated."""
        if isinstance(text, str):
            return True
        maker = self.makers.get(text)
        if maker is None or isinstance(maker, Arg):
            return True
        return maker.pure and all(self.known(value) for value in inputs(maker))

    def next(self, gen: Gen | Select) -> tuple[Gen | Select | None, list[Append]]:
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

    def since_turn(self, gen: Gen | Select) -> list[Append] | None:
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


def alone(gen: Gen, more: tuple[str, ...] = ()) -> str:
    """Why a generation cannot be asked for with others; "" if it can. `more`: parameters that keep it apart."""
    for name in (*_ALONE, *more):
        if getattr(gen.sampling, name) != getattr(_PLAIN, name):
            return f"`{gen.site.name}` has `{name}`"
    return "" if gen.sampling.max_tokens else f"`{gen.site.name}` makes no text"


def sampled_otherwise(gen: Gen, follower: Gen) -> str:
    """Why two generations are no sample of one request; "" if they are."""
    for name in _SHARED:
        if getattr(gen.sampling, name) != getattr(follower.sampling, name):
            return f"`{gen.site.name}` has another `{name}`"
    return ""
