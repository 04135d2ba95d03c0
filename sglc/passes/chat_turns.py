"""Turns of a program for a back end that takes messages: where a generation may stand in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace

from sglc.errors import LegalizeError, Loc
from sglc.ir.core import Op, Program, Region, Type, Value, values_in
from sglc.ir.ops import (
    Append,
    Call,
    Cond,
    Fork,
    Gen,
    Image,
    Loop,
    Map,
    Resume,
    RoleClose,
    RoleOpen,
    Root,
    ScopeBegin,
    ScopeEnd,
    Select,
    Switch,
    arms_of,
    hands_over,
)
from sglc.ir.remark import Remark, place
from sglc.ir.target import Target
from sglc.passes.base import Exactness, Kind, Rewrite, register
from sglc.passes.chat.pictures import refuse_picture

ASSISTANT = "assistant"


@register(
    "chat_turns", Exactness.TEXT, "turns stay messages; what messages cannot say is refused", Kind.LOWERING
)
def chat_turns(program: Program, target: Target) -> Rewrite:
    """Leave the program as it is if every generation can be asked for with messages.

        s1, t0 = gen(s0, 'x') behind plain text alone  ->  the same: the text is one user message (a remark)
        s2, t1 = gen(s1, 'y') in the same turn         ->  error[SGLC317] with the place of the `gen`

    A generation with `ahead`, or one that is `fused`, is asked for together with what stands before it in its
    turn: `speculate` and `fuse_gens`, which run before, have seen to that.

    Raises:
        LegalizeError: SGLC308 a picture that the model does not take, or not there, SGLC315 text outside
            turns, SGLC316 a generation outside the assistant's turn, SGLC317 one behind text or behind another
            generation in its turn, SGLC318 a turn that the model does not take, or not there, and an answer
            behind an assistant's turn in which the model would go on.
    """
    walk = _Walk(target, {})
    walk.ops((*program.params, *program.ops))
    return (program, tuple(walk.remarks.values())) if walk.remarks else program


@dataclass(frozen=True, slots=True)
class StreamPlace:
    """Where a stream stands. `role` is whose turn is open, "" outside turns.

    `raw` and `begun` say whether there may be text outside turns, and turns, and `talked` whether there may be
    others than system turns; `filled`, `generated` and `pictured` whether text, a generation or a picture may
    stand in the open turn (or, without turns, in the text), and `blank` whether that ends in white space;
    `said` whether it may have more than that, and `own` whether the turn before is surely the assistant's. Of a
    stream that an earlier launch kept they say what is sure: the back end looks again when it runs.
    """

    role: str = ""
    raw: bool = False
    begun: bool = False
    filled: bool = False
    generated: bool = False
    talked: bool = False
    blank: bool = False
    pictured: bool = False
    said: bool = False
    own: bool = False


def _either(places: Sequence[StreamPlace]) -> StreamPlace:
    may = [any(getattr(p, field.name) for p in places) for field in fields(StreamPlace)[1:]]
    # Of an answer behind the assistant's turn, which a request is looked at for once more, what is sure.
    return replace(StreamPlace(places[0].role, *may), own=all(p.own for p in places))


class _Walk:
    def __init__(self, target: Target, remarks: dict[str, Remark]) -> None:
        self.target = target
        self.remarks = remarks
        self.places: dict[Value, StreamPlace] = {}

    def ops(self, ops: Iterable[Op]) -> None:
        for op in ops:
            self.op(op)

    def op(self, op: Op) -> None:
        places = self.places
        match op:
            case Root():
                places[op.results[0]] = StreamPlace()
            case Resume():
                talked = any(role != "system" for role in (*op.turns, op.role or "system"))
                begun = bool(op.turns or op.role)
                own = op.turns[-1:] == (ASSISTANT,)
                here = StreamPlace(op.role, begun=begun, talked=talked, said=True, own=own)
                places.setdefault(op.results[0], here)
            case Append(stream, ""):
                places[op.results[0]] = places[stream]
            case Append() | Image():
                if isinstance(op, Image):
                    data = op.data if isinstance(op.data, str) else ""
                    refuse_picture(self.target, data, places[op.stream].role, op.loc)
                text = op.text if isinstance(op, Append) and isinstance(op.text, str) else "a text or a picture"
                here = self.written(places[op.stream], op.loc)
                places[op.results[0]] = replace(
                    here,
                    blank=text[-1:].isspace(),
                    said=here.said or not text.isspace(),
                    pictured=here.pictured or isinstance(op, Image),
                )
            case RoleOpen():
                here = places[op.stream]
                if here.raw:
                    raise self.outside(op.loc, "text stands before the first turn")
                if why := self.target.takes.turn_refused(op.role, behind=here.talked):
                    raise LegalizeError(
                        "SGLC318", f"`{self.target.name}` cannot take this turn: {why}", place(op.loc),
                        hint="say it in the user's turn",
                    )  # fmt: skip
                talked = here.talked or op.role != "system"
                places[op.results[0]] = StreamPlace(op.role, begun=True, talked=talked, own=here.own)
            case RoleClose():
                here = places[op.stream]
                if not here.said and not self.target.takes.blank_turns:
                    raise LegalizeError(
                        "SGLC318", f"`{self.target.name}` takes no turn without text", place(op.loc),
                        note="it is empty, or of white space alone", hint="leave it out",
                    )  # fmt: skip
                places[op.results[0]] = StreamPlace(begun=True, talked=here.talked, own=here.role == ASSISTANT)
            case Gen() | Select():
                places[op.results[0]] = self.generated(places[op.stream], op)
            case Fork() | ScopeBegin() | ScopeEnd():
                places.update(dict.fromkeys(op.results, places[op.stream]))
            case Cond() | Switch():
                left = [self.region(arm) for arm in arms_of(op)]
                self.results(
                    op, [one for one, arm in zip(left, arms_of(op), strict=True) if not hands_over(arm)]
                )
            case Loop():
                self.loop(op)
            case Map():
                self.results(op, [self.region(op.body)])
            case Call():
                self.call(op)

    def written(self, here: StreamPlace, loc: Loc) -> StreamPlace:
        if not here.role and here.begun:
            raise self.outside(loc, "text stands between turns or behind them")
        return replace(here, filled=True, raw=here.raw or not here.role)

    def generated(self, here: StreamPlace, op: Gen | Select) -> StreamPlace:
        name = op.site.name
        together = op.fused or (isinstance(op, Gen) and op.ahead > 0)
        if here.role != ASSISTANT and (here.role or here.begun):
            stands = f"in a turn of `{here.role}`" if here.role else "outside turns"
            raise LegalizeError(
                "SGLC316", f"`{self.target.name}` cannot run `{name}`, which stands {stands}", place(op.loc),
                note="a chat model answers with a turn of its own",
                hint="put it into the assistant's turn: `s += sgl.assistant(sgl.gen(...))`",
            )  # fmt: skip
        if not here.role:
            if here.generated and not together:
                raise LegalizeError(
                    "SGLC316",
                    f"`{self.target.name}` cannot run `{name}`, which goes on behind another generation",
                    place(op.loc), note="a text without turns is one user message, and ends with its answer",
                    hint="write turns: `s += sgl.user(...)` and `s += sgl.assistant(sgl.gen(...))`",
                )  # fmt: skip
            said = "a text without turns is sent as one user message, and the answer is a new turn"
            self.remarks.setdefault(said, Remark("chat_turns", said, place(op.loc)))
        elif here.filled and not together and (why := self.kept_apart(here, op)):
            before = "another generation" if here.generated else "a picture" if here.pictured else "text"
            hint = "end the turn and ask again, or put what stands before it into the user's turn"
            if self.target.guesses and not here.pictured:
                hint += "; `@sgl.function(num_api_spec_tokens=...)` has a turn asked for in one request"
            raise LegalizeError(
                "SGLC317", f"`{self.target.name}` cannot run `{name}` behind {before} in the same turn",
                place(op.loc), note=why, hint=hint,
            )  # fmt: skip
        if here.role and here.own and not self.target.takes.follows_own:
            raise LegalizeError(
                "SGLC318", f"`{self.target.name}` cannot begin `{name}` behind a turn of the assistant's",
                place(op.loc), note="the model would go on in that turn", hint="put a user's turn between them",
            )  # fmt: skip
        return replace(here, generated=True, filled=True, blank=False, said=True)

    def kept_apart(self, here: StreamPlace, op: Gen | Select) -> str:
        """Why a generation cannot go on behind what stands in its turn; "" if it can."""
        takes = self.target.takes
        if not takes.prefill:
            return "the model begins every answer anew"
        held = isinstance(op, Select) or op.sampling.constrained
        if takes.bound_prefill or not (held or here.blank):
            return ""
        return "the model goes on behind text only if that ends in no white space, and held to no form"

    def outside(self, loc: Loc, why: str) -> LegalizeError:
        return LegalizeError(
            "SGLC315", f"`{self.target.name}` takes messages, and this text is in none", place(loc), note=why,
            hint="put it into a turn: `s += sgl.user(...)`, `sgl.system(...)` or `sgl.assistant(...)`",
        )  # fmt: skip

    # -- blocks --------------------------------------------------------------------------------------

    def region(self, region: Region) -> list[StreamPlace]:
        """Where the streams stand that it yields."""
        self.ops(region.ops)
        return [self.places[value] for value in region.results if value in self.places]

    def results(self, op: Op, left: Sequence[Sequence[StreamPlace]]) -> None:
        streams = [value for value in op.results if value.type is Type.STREAM]
        for value, places in zip(streams, zip(*left, strict=True), strict=False):
            self.places[value] = _either(places)

    def loop(self, op: Loop) -> None:
        entered = [self.places[value] for value in op.init if value.type is Type.STREAM]
        params = [value for value in op.body.params if value.type is Type.STREAM]
        while True:  # places only grow, so this ends
            self.places.update(zip(params, entered, strict=True))
            left = self.region(op.body)
            again = [_either(pair) for pair in zip(entered, left, strict=True)]
            if again == entered:
                break
            entered = again
        self.results(op, [left])

    def call(self, op: Call) -> None:
        inner = _Walk(self.target, self.remarks)
        for item, param in zip(op.args, op.program.params, strict=True):
            if isinstance(item, Value) and item in self.places:
                inner.places[param.results[0]] = self.places[item]
        inner.ops((*op.program.params, *op.program.ops))
        returned = [inner.places[value] for value in values_in(op.program.returns) if value in inner.places]
        self.results(op, [returned])
