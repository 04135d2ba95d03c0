"""Chat turns become the template's own text and control tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import assert_never

from sglc.errors import LegalizeError, Loc, SglcError
from sglc.ir.core import NOWHERE, Op, Program, Type, Value, next_id, substitute, values_in
from sglc.ir.ops import Append, Control, Fork, Gen, HostCall, Resume, RoleClose, RoleOpen, Root, Select
from sglc.ir.plan import ControlText
from sglc.ir.target import Target, Tokenizer
from sglc.passes.base import Exactness, Remark, Rewrite, place, register
from sglc.passes.chat_markup import ASSISTANT, ChatMarkup, pieces, stand_in
from sglc.passes.later import refuse_later_ops


@register("lower_roles", Exactness.TOKENS, "chat turns become the template's text and control tokens")
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

    Raises:
        LegalizeError: SGLC301 no chat template; SGLC302 no tokenizer; SGLC303 the template refuses
            the conversation; SGLC304 the turns cannot be written one after another; SGLC307 an op
            that only runs from a later release.
    """
    refuse_later_ops(program)
    tokenizer = target.tokenizer
    first = next((op for op in program.ops if isinstance(op, RoleOpen | RoleClose)), None)
    if tokenizer is None:
        if first is None:
            return program
        raise LegalizeError(
            "SGLC302", f"back end `{target.name}` has no tokenizer, so it cannot write turns", place(first.loc),
            hint="leave the roles out, or use a back end with a chat model",
        )  # fmt: skip
    if first is not None and not tokenizer.has_template:
        raise LegalizeError(
            "SGLC301", f"the model behind `{target.name}` has no chat template", place(first.loc),
            hint="leave the roles out and write the prompt as text, or use a chat model",
        )  # fmt: skip
    if first is None and tokenizer.bos_id is None:
        return program
    return _Lowering(program, tokenizer).run()


@dataclass(frozen=True, slots=True)
class _Content:
    """A turn's texts as a linked list: appending is O(1), and branches share what came before."""

    before: _Content | None
    item: Value | str


@dataclass(frozen=True, slots=True)
class _Turn:
    role: str
    content: _Content | None = None
    known: bool = True  # False: it was written in an earlier launch


@dataclass(frozen=True, slots=True)
class _Chat:
    """Where a stream stands: the lowered stream, and the template's view of what is in it."""

    stream: Value
    view: str = ""
    turns: tuple[_Turn, ...] = ()
    open: bool = False  # the last turn is open
    generated: bool = False  # a generation stands in the open turn
    held: bool = False  # the last turns are not in the stream yet: the template shows them later
    raw: bool = False  # text outside turns is in the stream
    fresh: bool = False  # nothing is in the stream, not even a begin token

    @property
    def roles(self) -> tuple[str, ...]:
        return tuple(turn.role for turn in self.turns)


class _Lowering:
    """One walk over the ops; `chats` says where every stream stands."""

    def __init__(self, program: Program, tokenizer: Tokenizer) -> None:
        self.program = program
        self.tokenizer = tokenizer
        self.markup = ChatMarkup(tokenizer)
        self.ids = count(next_id(program))
        self.chats: dict[Value, _Chat] = {}
        self.begun: dict[Value, Value] = {}  # fresh stream -> the same behind a begin token
        self.ops: list[Op] = []
        self.remarks: dict[str, Remark] = {}  # by message: each is said once

    def run(self) -> tuple[Program, tuple[Remark, ...]]:
        last: tuple[Op, ...] = ()
        for op in self.program.params:
            if isinstance(op, Resume):
                self.chats[op.results[0]] = self.resumed(op)
        for op in self.program.ops:
            match op:
                case HostCall():
                    last = (op,)
                case Root():
                    self.ops.append(op)
                    self.chats[op.results[0]] = _Chat(op.results[0], fresh=True)
                case Append():
                    self.chats[op.results[0]] = self.append(self.chats[op.stream], op)
                case Control():
                    # Control tokens that are here already: this part of the program was lowered before.
                    chat = self.chats[op.stream]
                    self.ops.append(replace(op, stream=chat.stream))
                    self.chats[op.results[0]] = replace(chat, stream=op.results[0], raw=True, fresh=False)
                case Gen() | Select():
                    self.chats[op.results[0]] = self.generate(self.chats[op.stream], op)
                case Fork():
                    chat = self.chats[op.stream]
                    self.ops.append(replace(op, stream=chat.stream))
                    for branch in op.results:
                        self.chats[branch] = replace(chat, stream=branch)
                case RoleOpen():
                    self.chats[op.results[0]] = self.open(self.chats[op.stream], op.role, op.loc)
                case RoleClose():
                    self.chats[op.results[0]] = self.close(self.chats[op.stream], op.loc)
                case _:
                    self.ops.append(op)
        for value in values_in(self.program.returns):
            if value in self.chats:  # a kept stream says later that it is raw text: let it begin as such
                self.chats[value] = self.begin(self.chats[value], NOWHERE)
        rename = {value: chat.stream for value, chat in self.chats.items()}
        returns = substitute(self.program.returns, rename)
        tail = tuple(replace(op, reads=substitute(op.reads, rename)) for op in last if isinstance(op, HostCall))
        return replace(self.program, ops=(*self.ops, *tail), returns=returns), tuple(self.remarks.values())

    # -- ops -----------------------------------------------------------------------------------------

    def append(self, chat: _Chat, op: Append) -> _Chat:
        if chat.open and chat.held:
            return _with_content(chat, op.text)
        chat = self.before_given_text(chat, op.loc) if chat.open else self.outside(chat, op.loc)
        self.ops.append(replace(op, stream=chat.stream))
        chat = replace(chat, stream=op.results[0])
        return _with_content(chat, op.text) if chat.open else replace(chat, raw=True)

    def generate(self, chat: _Chat, op: Gen | Select) -> _Chat:
        if chat.held:
            raise self.refused("a generation stands where the template writes nothing yet", chat, op.loc)
        if not chat.open:
            chat = self.outside(chat, op.loc)
        self.ops.append(replace(op, stream=chat.stream))
        after, text = op.results
        chat = replace(chat, stream=after)
        if not chat.open:
            return replace(chat, raw=True)
        return replace(_with_content(chat, text), generated=True)

    def open(self, chat: _Chat, role: str, loc: Loc) -> _Chat:
        chat = replace(chat, turns=(*chat.turns, _Turn(role)), open=True, generated=False)
        view = self.markup.opened(chat.roles)
        if isinstance(view, str):
            return self.write(chat, view, loc)
        if len(chat.turns) > 1 or role in ("user", ASSISTANT):
            raise self.not_written(view, chat, loc)
        return replace(chat, held=True)

    def close(self, chat: _Chat, loc: Loc) -> _Chat:
        if chat.held:
            return replace(chat, open=False)
        self.probe(chat, loc)
        if chat.turns[-1].content is None:
            chat = self.before_given_text(chat, loc)
        view = self.markup.closed(chat.roles)
        mark = stand_in(len(chat.turns) - 1)
        if isinstance(view, SglcError) or mark not in view:
            raise self.not_written(view if isinstance(view, SglcError) else None, chat, loc)
        written = chat.view + mark
        if view.startswith(written):
            return replace(self.write(replace(chat, view=written), view, loc), open=False)
        head, _, after = view.rpartition(mark)
        gap = head.removeprefix(chat.view) if head.startswith(chat.view) else None
        chat = self.write(replace(chat, view=written), written + after, loc)
        if gap is not None and gap.isspace() and chat.generated:
            # The template writes white space before an answer; a model generates its own.
            return replace(chat, view=view, open=False)
        self.say(
            "the template writes the last answer of a closed conversation differently; "
            "the stream keeps the text that the answer was written behind", loc
        )  # fmt: skip
        return replace(chat, open=False)

    def resumed(self, op: Resume) -> _Chat:
        """Where a stream of an earlier launch stands: its turns are replayed without their contents."""
        ops, remarks, self.ops, self.remarks = self.ops, self.remarks, [], {}
        chat = _Chat(op.results[0], raw=not op.turns and not op.role)
        for role in op.turns:
            chat = self.close(replace(self.open(chat, role, op.loc), generated=role == ASSISTANT), op.loc)
        if op.role:
            chat = self.open(chat, op.role, op.loc)
        self.ops, self.remarks = ops, remarks
        if chat.held:
            raise self.refused(
                "an earlier part of the program ran before the template wrote this turn", chat, op.loc
            )
        turns = tuple(replace(turn, known=False) for turn in chat.turns)
        return replace(chat, stream=op.results[0], turns=turns, generated=op.role == ASSISTANT)

    # -- writing -------------------------------------------------------------------------------------

    def write(self, chat: _Chat, view: str, loc: Loc) -> _Chat:
        """Bring the stream to `view`: by what is missing, or from the start where the view begins otherwise."""
        if not view.startswith(chat.view):
            if chat.raw or not all(turn.known for turn in chat.turns):
                raise self.refused("the template writes earlier turns differently from here on", chat, loc)
            self.say(
                "the template writes earlier turns differently once this turn follows: the conversation "
                "begins anew and shares no prefix with what was computed", loc
            )  # fmt: skip
            root = self.value()
            self.ops.append(Root(results=(root,), loc=loc))
            chat = replace(chat, stream=root, view="", fresh=True)
        stream = chat.stream
        for index, piece in enumerate(pieces(view[len(chat.view) :])):
            match piece:
                case int():
                    for item in _texts(self.turn(chat, piece, loc).content):
                        stream = self.put(Append(stream, item, loc=loc))
                case str():
                    cut: Sequence[str | ControlText] = self.tokenizer.split_control(piece)
                    if index == 0 and not chat.view and chat.raw:
                        cut = self.without_begin(cut)
                    for part in cut:
                        match part:
                            case ControlText():
                                stream = self.put(Control(stream, part.text, part.ids, loc=loc))
                            case str():
                                stream = self.put(Append(stream, part, loc=loc))
                            case _:
                                assert_never(part)
        return replace(chat, stream=stream, view=view, held=False, fresh=chat.fresh and not view)

    def before_given_text(self, chat: _Chat, loc: Loc) -> _Chat:
        """Markup that the template has between its generation prompt and an answer that is given."""
        turn = chat.turns[-1]
        if turn.role != ASSISTANT or turn.content is not None or not turn.known or chat.generated:
            return chat
        return self.write(chat, chat.view + self.markup.gap(chat.roles, chat.view), loc)

    def without_begin(self, cut: Sequence[str | ControlText]) -> Sequence[str | ControlText]:
        """Markup for behind raw text, which has a begin token already."""
        begin = self.tokenizer.bos_id
        match cut:
            case [ControlText(ids=(first,)), *rest] if first == begin:
                return rest
            case _:
                return cut

    def outside(self, chat: _Chat, loc: Loc) -> _Chat:
        """Text outside turns: raw, behind a begin token where the tokenizer has one."""
        if chat.held:
            raise self.refused("text stands between a turn and where the template writes it", chat, loc)
        return self.begin(chat, loc)

    def begin(self, chat: _Chat, loc: Loc) -> _Chat:
        """The chat behind the tokenizer's begin token, if nothing is in the stream yet."""
        if not chat.fresh or self.tokenizer.bos_id is None:
            return replace(chat, fresh=False)
        if chat.stream not in self.begun:
            self.begun[chat.stream] = self.put(Control(chat.stream, "<bos>", (self.tokenizer.bos_id,), loc=loc))
        return replace(chat, stream=self.begun[chat.stream], fresh=False)

    def put(self, op: Append | Control) -> Value:
        value = self.value()
        self.ops.append(replace(op, results=(value,)))
        return value

    def value(self) -> Value:
        return Value(next(self.ids), Type.STREAM)

    # -- reports -------------------------------------------------------------------------------------

    def turn(self, chat: _Chat, index: int, loc: Loc) -> _Turn:
        turn = chat.turns[index]
        if not turn.known:
            raise self.refused("the template writes an earlier turn again", chat, loc)
        return turn

    def probe(self, chat: _Chat, loc: Loc) -> None:
        """Say where the template changes contents, which the lowering does not."""
        turn = chat.turns[-1]
        if _may_be_padded(turn.content) and self.markup.trims(chat.roles):
            self.say(f"the template strips white space round `{turn.role}` contents; sglc keeps it", loc)
        if chat.generated and self.markup.drops_thinking(chat.roles):
            self.say(
                "the template leaves reasoning out of earlier answers; sglc keeps it, so prefixes stay shared",
                loc,
            )

    def say(self, message: str, loc: Loc) -> None:
        self.remarks.setdefault(message, Remark("lower_roles", message, place(loc)))

    def not_written(self, problem: str | SglcError | None, chat: _Chat, loc: Loc) -> LegalizeError:
        shown = problem.note or problem.message if isinstance(problem, SglcError) else ""
        note = shown or "the template writes no such turn"
        roles = ", ".join(chat.roles)
        return LegalizeError(
            "SGLC303", f"the model's chat template refuses a conversation of {roles}", place(loc),
            note=note, hint="use the roles, and the order of turns, that the model knows",
        )  # fmt: skip

    def refused(self, why: str, chat: _Chat, loc: Loc) -> LegalizeError:
        return LegalizeError(
            "SGLC304", f"the turns {', '.join(chat.roles)} cannot be written one after another", place(loc),
            note=why, hint="keep raw text out of the conversation, and read results only where an answer ends",
        )  # fmt: skip


def _with_content(chat: _Chat, item: Value | str) -> _Chat:
    turn = chat.turns[-1]
    return replace(chat, turns=(*chat.turns[:-1], replace(turn, content=_Content(turn.content, item))))


def _texts(content: _Content | None) -> Iterator[Value | str]:
    """The texts in order."""
    backwards: list[Value | str] = []
    while content is not None:
        backwards.append(content.item)
        content = content.before
    return reversed(backwards)


def _may_be_padded(content: _Content | None) -> bool:
    """Whether the content may begin or end in white space, as far as literals tell."""
    texts = [item for item in _texts(content) if item != ""]
    if not texts:
        return False
    first, last = texts[0], texts[-1]
    return not (
        isinstance(first, str) and isinstance(last, str) and first == first.lstrip() and last == last.rstrip()
    )
