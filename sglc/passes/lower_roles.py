"""Chat turns become the template's own text and control tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sglc.errors import LegalizeError, Loc
from sglc.ir.core import (
    NOWHERE,
    Op,
    Program,
    Region,
    Type,
    Value,
    inputs,
    kinds,
    next_id,
    reading,
    regions,
    substitute,
    values_in,
    walk,
    with_regions,
)
from sglc.ir.made_often import replaced
from sglc.ir.ops import (
    Append,
    Call,
    Cond,
    Control,
    Fork,
    Gen,
    HostCall,
    Image,
    Loop,
    Map,
    Prompt,
    Resume,
    RoleClose,
    RoleOpen,
    Root,
    ScopeBegin,
    ScopeEnd,
    Select,
    Switch,
    TextOf,
    arms_of,
    hands_over,
)
from sglc.ir.remark import Remark, place
from sglc.ir.rewrite import everywhere
from sglc.ir.target import Target, Tokenizer
from sglc.passes.base import Exactness, Kind, Rewrite, register
from sglc.passes.chat.continuations import go_on_alike, joined, taken_over, written_first
from sglc.passes.chat.conversation import Chat, ChatWriter
from sglc.passes.chat.markup import ASSISTANT, ChatMarkup


@register(
    "lower_roles", Exactness.TOKENS, "chat turns become the template's text and control tokens", Kind.LOWERING
)
def lower_roles(program: Program, target: Target) -> Rewrite:
    """Replace turns by what the tokenizer's own chat template writes around their contents.

        s1 = role_open(s0, 'user')     ->  s2 = control(s0, '<|im_start|>', (1,)); s1 = append(s2, 'user\\n')
        s4 = role_close(s3, 'user')    ->  s5 = control(s3, '<|im_end|>', (2,)); s4 = append(s5, '\\n')

    The ids of a closed conversation are those of the template over its messages, and at an open
    assistant turn those of the template with its generation prompt. What the template adds by
    itself (a default system turn, a begin token) is there too; raw text begins with the
    tokenizer's begin token if it has one. A turn that the template shows only with a later one
    (a system text inside the first user turn) is held back until then. Where a later turn makes
    the template write earlier ones differently, the conversation begins anew and a remark says so.

    Blocks that take turns must leave conversations that go on alike, and so must a block that runs
    again: what a loop's first turn needs before it (a default system turn) is written before the
    loop. Behind a block nothing is known of what its turns contain.

    Raises:
        LegalizeError: SGLC301 no chat template; SGLC302 no tokenizer; SGLC303 the template refuses
            the conversation; SGLC304 the turns cannot be written one after another; SGLC309 blocks
            leave conversations that go on differently, SGLC310 iterations do.
    """
    tokenizer = target.tokenizer
    if (tokenizer is None or tokenizer.bos_id is None) and kinds(program).isdisjoint((RoleOpen, RoleClose)):
        return program
    turns = [op for op in everywhere(program.ops) if isinstance(op, RoleOpen | RoleClose)]
    if tokenizer is None:
        raise LegalizeError(
            "SGLC302", f"back end `{target.name}` has no tokenizer, so it cannot write turns",
            place(turns[0].loc), hint="leave the roles out, or use a back end with a chat model",
        )  # fmt: skip
    if turns and not tokenizer.has_template:
        raise LegalizeError(
            "SGLC301", f"the model behind `{target.name}` has no chat template", place(turns[0].loc),
            hint="leave the roles out and write the prompt as text, or use a chat model",
        )  # fmt: skip
    remarks: dict[str, Remark] = {}
    roles = tuple(dict.fromkeys([*(op.role for op in turns), "user", ASSISTANT])) if turns else ()
    lowered, _ = _Lowering(program, tokenizer, ChatMarkup(tokenizer), roles, remarks).run()
    return lowered, tuple(remarks.values())


class _Lowering:
    """One walk over the ops of one program; `chats` says where every stream stands."""

    def __init__(
        self, program: Program, tokenizer: Tokenizer, markup: ChatMarkup, roles: Sequence[str],
        remarks: dict[str, Remark],
    ) -> None:  # fmt: skip
        self.program = program
        self.roles = roles
        self.write = ChatWriter(tokenizer, markup, next_id(program), remarks)
        self.chats: dict[Value, Chat] = {}

    def run(self, given: Mapping[Value, Chat] | None = None) -> tuple[Program, list[Chat]]:
        """The lowered program, and where the streams stand that it returns.

        Args:
            given: where the streams stand that a caller passes, by the parameter's value.
        """
        end = self.write.begin if given is None else self.write.settled
        params: list[Op] = []
        for op in self.program.params:
            if isinstance(op, Resume):
                stream = op.results[0]
                self.chats[stream] = given[stream] if given else self.write.resumed(op)
                op = replaced(op, turns=(), role="")  # all that was written is in the stream
            params.append(op)
        ops = self.program.ops
        tail = [op for op in ops[-1:] if isinstance(op, HostCall)]
        for op in ops[: len(ops) - len(tail)]:
            self.op(op)
        returned = [value for value in values_in(self.program.returns) if value in self.chats]
        for value in returned:  # a kept stream says later that it is raw text: let it begin as such
            self.chats[value] = end(self.chats[value], NOWHERE)
        rename = {value: self.chats[value].stream for value in returned}
        self.write.ops += map(self.reading, tail)
        lowered = replaced(
            self.program, params=tuple(params), ops=tuple(self.write.ops),
            returns=substitute(self.program.returns, rename),
        )  # fmt: skip
        return lowered, [self.chats[value] for value in returned]

    def op(self, op: Op) -> None:
        write, chats = self.write, self.chats
        match op:
            case Root():
                write.ops.append(op)
                chats[op.results[0]] = Chat(op.results[0], fresh=True)
            case Append():
                chats[op.results[0]] = write.append(chats[op.stream], op)
            case Image():
                chats[op.results[0]] = write.image(chats[op.stream], op)
            case Control():
                # Control tokens that are here already: this part of the program was lowered before.
                chat = chats[op.stream]
                write.ops.append(replaced(op, stream=chat.stream))
                chats[op.results[0]] = replaced(chat, stream=op.results[0], raw=True, fresh=False)
            case Gen() | Select():
                chats[op.results[0]] = write.generate(chats[op.stream], op)
            case Fork() | ScopeBegin() | ScopeEnd():
                chat = chats[op.stream]
                write.ops.append(replaced(op, stream=chat.stream))
                chats.update((branch, replaced(chat, stream=branch)) for branch in op.results)
            case RoleOpen():
                self.turned(op, write.open(chats[op.stream], op.role, op.loc))
            case RoleClose():
                self.turned(op, write.close(chats[op.stream], op.loc))
            case Prompt() | TextOf():  # raw text that was not begun yet begins here
                for value in inputs(op):
                    if value in chats:
                        chats[value] = write.begin(chats[value], op.loc)
                write.ops.append(self.reading(op))
            case Cond() | Switch():
                self.arms(op)
            case Loop():
                self.loop(op)
            case Map():
                write.ops.append(with_regions(op, lambda region: self.region(region)[0]))
            case Call():
                self.call(op)
            case _:
                write.ops.append(self.reading(op))

    def turned(self, op: RoleOpen | RoleClose, chat: Chat) -> None:
        """Enter what a turn's begin or end left; where the template writes nothing, it is a new stream too."""
        if chat.stream == self.chats[op.stream].stream and not chat.held:
            self.write.ops.append(Append(chat.stream, "", results=op.results, loc=op.loc))
            chat = replaced(chat, stream=op.results[0])
        self.chats[op.results[0]] = chat

    def reading(self, op: Op) -> Op:
        """An op that writes nothing, with the lowered streams that it reads."""
        return reading(op, {value: self.chats[value].stream for value in inputs(op) if value in self.chats})

    # -- blocks --------------------------------------------------------------------------------------

    def region(self, region: Region) -> tuple[Region, list[Chat]]:
        """A block, lowered, with begin tokens of its own, and where the streams stand that it yields."""
        outside, begun = self.write.ops, len(self.write.begun)
        made = self.write.ops = []
        for op in region.ops:
            self.op(op)
        streams = [value for value in region.results if value.type is Type.STREAM]
        left = [self.write.settled(self.chats[value], region.loc) for value in streams]
        self.write.ops = outside
        while len(self.write.begun) > begun:
            self.write.begun.popitem()
        rename = {value: chat.stream for value, chat in zip(streams, left, strict=True)}
        return replaced(region, ops=tuple(made), results=substitute(region.results, rename)), left

    def results(self, op: Op, left: Sequence[Sequence[Chat]]) -> None:
        """The streams that an op gives: by stream, where each of its blocks left it."""
        streams = [value for value in op.results if value.type is Type.STREAM]
        for value, chats in zip(streams, left, strict=True):
            self.chats[value] = joined(chats, value)

    def arms(self, op: Cond | Switch) -> None:
        before: list[Region] = list(arms_of(op))
        made, left = [], []
        for arm in before:
            region, chats = self.region(arm)
            made.append(region)
            if hands_over(arm):
                continue
            left.append(chats)
            for one, other in zip(left[0], chats, strict=True):
                if not go_on_alike(self.write, one, other, self.roles):
                    raise self.unlike(
                        "SGLC309", f"the blocks of `{op.mnemonic}` leave different conversations",
                        arm.loc, one, other, "add the same turns in each, or begin the conversation before",
                    )  # fmt: skip
        new = iter(made)
        self.write.ops.append(with_regions(self.reading(op), lambda _: next(new)))
        self.results(op, list(zip(*left, strict=True)))

    def loop(self, op: Loop) -> None:
        streams = [value for value in op.init if value.type is Type.STREAM]
        params = [value for value in op.body.params if value.type is Type.STREAM]
        entered = []
        for value, param in zip(streams, params, strict=True):
            chat = self.begun(self.write.settled(self.chats[value], op.loc), param, op)
            self.chats[param] = taken_over(chat, param)
            entered.append(chat)
        body, left = self.region(op.body)
        for param, chat in zip(params, left, strict=True):
            if not go_on_alike(self.write, self.chats[param], chat, self.roles):
                raise self.unlike(
                    "SGLC310", "an iteration of `loop` leaves a conversation that goes on differently",
                    op.body.loc, self.chats[param], chat,
                    "begin the conversation before the loop, with a system turn or a first user turn",
                )  # fmt: skip
        given = iter(entered)
        init = tuple(next(given).stream if value.type is Type.STREAM else value for value in op.init)
        self.write.ops.append(replaced(op, init=init, body=body))
        # It has run at least once, so nothing stands as it did before.
        self.results(op, [[taken_over(chat, chat.stream)] for chat in left])

    def begun(self, chat: Chat, param: Value, op: Loop) -> Chat:
        """The chat with what the template writes before a first turn only, if the loop begins with a turn."""
        readers = [inner for inner in walk(op.body.ops) if param in inputs(inner)]
        yielded = [value for inner in walk((op,)) for block in regions(inner) for value in block.results]
        roles = dict.fromkeys(inner.role for inner in readers if isinstance(inner, RoleOpen))
        turns_only = all(isinstance(inner, RoleOpen) for inner in readers) and param not in yielded
        if len(roles) != 1 or not turns_only:
            return chat
        (role,) = roles
        head = written_first(self.write, chat, role)
        return self.write.write(chat, head, op.loc) if head else chat

    def call(self, op: Call) -> None:
        args, given = [], {}
        for item, param in zip(op.args, op.program.params, strict=True):
            if isinstance(item, Value) and item.type is Type.STREAM:
                chat = self.write.settled(self.chats[item], op.loc)
                given[param.results[0]] = taken_over(chat, param.results[0])
                item = chat.stream
            args.append(item)
        write = self.write
        inner = _Lowering(op.program, write.tokenizer, write.markup, self.roles, write.remarks)
        program, left = inner.run(given)
        write.ops.append(replaced(op, args=tuple(args), program=program))
        self.results(op, [[taken_over(chat, chat.stream)] for chat in left])

    def unlike(self, code: str, message: str, loc: Loc, one: Chat, other: Chat, hint: str) -> LegalizeError:
        ways = " and ".join(f"`{', '.join(chat.roles) or 'no turns'}`" for chat in (one, other))
        return LegalizeError(
            code, message, place(loc), hint=hint,
            note=f"behind {ways} the model's chat template writes later turns differently",
        )  # fmt: skip
