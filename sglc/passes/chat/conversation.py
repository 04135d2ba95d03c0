"""Where every stream stands in a conversation, and what a chat template writes as it goes on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import assert_never

from sglc.errors import LegalizeError, Loc, SglcError
from sglc.ir.core import Op, Type, Value
from sglc.ir.ops import Append, Control, Gen, Image, Resume, Root, Select
from sglc.ir.remark import Remark, place
from sglc.ir.target import ControlText, Tokenizer
from sglc.passes.chat.markup import ASSISTANT, ChatMarkup, pieces, stand_in


@dataclass(frozen=True, slots=True)
class Content:
    """A turn's texts as a linked list: appending is O(1), and branches share what came before."""

    before: Content | None
    item: Value | str


@dataclass(frozen=True, slots=True)
class Turn:
    role: str
    content: Content | None = None
    known: bool = True  # False: it was written in an earlier launch


@dataclass(frozen=True, slots=True)
class Chat:
    """Where a stream stands: the lowered stream, and the template's view of what is in it."""

    stream: Value
    view: str = ""
    turns: tuple[Turn, ...] = ()
    open: bool = False  # the last turn is open
    generated: bool = False  # a generation stands in the open turn
    held: bool = False  # the last turns are not in the stream yet: the template shows them later
    raw: bool = False  # text outside turns is in the stream
    fresh: bool = False  # nothing is in the stream, not even a begin token

    @property
    def roles(self) -> tuple[str, ...]:
        return tuple(turn.role for turn in self.turns)


class ChatWriter:
    """Writes what streams need as they go on, into `ops`.

    Args:
        first_id: of the values that it makes.
        remarks: by message, each is said once.
    """

    def __init__(
        self, tokenizer: Tokenizer, markup: ChatMarkup, first_id: int, remarks: dict[str, Remark]
    ) -> None:
        self.tokenizer = tokenizer
        self.markup = markup
        self.ids = count(first_id)
        self.begun: dict[Value, Value] = {}  # fresh stream -> the same behind a begin token
        self.ops: list[Op] = []
        self.remarks = remarks

    # -- ops -----------------------------------------------------------------------------------------

    def append(self, chat: Chat, op: Append) -> Chat:
        if chat.open and chat.held:
            return with_content(chat, op.text)
        if op.text == "":  # nothing is given with it
            self.ops.append(replace(op, stream=chat.stream))
            return replace(chat, stream=op.results[0])
        chat = self.before_given_text(chat, op.loc) if chat.open else self.outside(chat, op.loc)
        self.ops.append(replace(op, stream=chat.stream))
        chat = replace(chat, stream=op.results[0])
        return with_content(chat, op.text) if chat.open else replace(chat, raw=True)

    def image(self, chat: Chat, op: Image) -> Chat:
        if chat.open and chat.held:
            raise self.refused("a picture stands in a turn that the template writes later", chat, op.loc)
        chat = self.before_given_text(chat, op.loc) if chat.open else self.outside(chat, op.loc)
        self.ops.append(replace(op, stream=chat.stream))
        chat = replace(chat, stream=op.results[0])
        if not chat.open:
            return replace(chat, raw=True)
        # A turn with a picture in it cannot be written again.
        *before, turn = with_content(chat, "").turns
        return replace(chat, turns=(*before, replace(turn, known=False)))

    def generate(self, chat: Chat, op: Gen | Select) -> Chat:
        if chat.held:
            raise self.refused("a generation stands where the template writes nothing yet", chat, op.loc)
        if not chat.open:
            chat = self.outside(chat, op.loc)
        self.ops.append(replace(op, stream=chat.stream))
        after, text = op.results
        chat = replace(chat, stream=after)
        if not chat.open:
            return replace(chat, raw=True)
        return replace(with_content(chat, text), generated=True)

    def open(self, chat: Chat, role: str, loc: Loc) -> Chat:
        chat = replace(chat, turns=(*chat.turns, Turn(role)), open=True, generated=False)
        view = self.markup.opened(chat.roles)
        if isinstance(view, str):
            return self.write(chat, view, loc)
        if len(chat.turns) > 1 or role in ("user", ASSISTANT):
            raise self.not_written(view, chat, loc)
        return replace(chat, held=True)

    def close(self, chat: Chat, loc: Loc) -> Chat:
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

    def resumed(self, op: Resume) -> Chat:
        """Where a stream of an earlier launch stands: its turns are replayed without their contents."""
        own = self.ops, self.remarks, self.ids
        self.ops, self.remarks, self.ids = [], {}, count()
        chat = Chat(op.results[0], raw=not op.turns and not op.role)
        done = len(op.turns)
        while done and (known := self.markup.known((op.turns[:done], "chat"))) is None:
            done -= 1
        chat = known if done else chat
        for end in range(done, len(op.turns)):
            close = partial(self.behind, chat, op.turns[end], op.loc)
            chat = self.markup.keep((op.turns[: end + 1], "chat"), close)
        if op.role:
            chat = self.open(chat, op.role, op.loc)
        self.ops, self.remarks, self.ids = own
        if chat.held:
            raise self.refused(
                "an earlier part of the program ran before the template wrote this turn", chat, op.loc
            )
        turns = tuple(replace(turn, known=False) for turn in chat.turns)
        return replace(chat, stream=op.results[0], turns=turns, generated=op.role == ASSISTANT)

    def behind(self, chat: Chat, role: str, loc: Loc) -> Chat:
        """The chat behind one more turn, whose contents are not known."""
        return self.close(replace(self.open(chat, role, loc), generated=role == ASSISTANT), loc)

    # -- writing -------------------------------------------------------------------------------------

    def write(self, chat: Chat, view: str, loc: Loc) -> Chat:
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
                    if not chat.turns[piece].known:
                        raise self.refused("the template writes an earlier turn again", chat, loc)
                    for item in _texts(chat.turns[piece].content):
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

    def before_given_text(self, chat: Chat, loc: Loc) -> Chat:
        """Markup that the template has between its generation prompt and an answer that is given."""
        turn = chat.turns[-1]
        if turn.role != ASSISTANT or turn.content is not None or not turn.known or chat.generated:
            return chat
        return self.write(chat, chat.view + self.markup.gap(chat.roles, chat.view), loc)

    def settled(self, chat: Chat, loc: Loc) -> Chat:
        """The chat where a block ends or another one takes it over: what it stands for is in the stream."""
        if chat.held:
            raise self.refused("a block begins or ends before the template writes the turn", chat, loc)
        if not chat.fresh:
            return chat
        # What begins with the tokenizer's begin token goes on as text outside turns does.
        return replace(self.begin(chat, loc), raw=chat.raw or self.tokenizer.bos_id is not None)

    def without_begin(self, cut: Sequence[str | ControlText]) -> Sequence[str | ControlText]:
        """Markup for behind raw text, which has a begin token already."""
        begin = self.tokenizer.bos_id
        match cut:
            case [ControlText(ids=(first,)), *rest] if first == begin:
                return rest
            case _:
                return cut

    def outside(self, chat: Chat, loc: Loc) -> Chat:
        """Text outside turns: raw, behind a begin token where the tokenizer has one."""
        if chat.held:
            raise self.refused("text stands between a turn and where the template writes it", chat, loc)
        return self.begin(chat, loc)

    def begin(self, chat: Chat, loc: Loc) -> Chat:
        """The chat behind the tokenizer's begin token, if nothing is in the stream yet."""
        bos_id = self.tokenizer.bos_id
        if not chat.fresh or bos_id is None:
            return replace(chat, fresh=False)
        if chat.stream not in self.begun:
            written = (self.tokenizer.control or {}).get(bos_id) or self.tokenizer.decode([bos_id])
            self.begun[chat.stream] = self.put(Control(chat.stream, written, (bos_id,), loc=loc))
        return replace(chat, stream=self.begun[chat.stream], fresh=False)

    def put(self, op: Append | Control) -> Value:
        value = self.value()
        self.ops.append(replace(op, results=(value,)))
        return value

    def value(self) -> Value:
        return Value(next(self.ids), Type.STREAM)

    # -- reports -------------------------------------------------------------------------------------

    def probe(self, chat: Chat, loc: Loc) -> None:
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

    def not_written(self, problem: str | SglcError | None, chat: Chat, loc: Loc) -> LegalizeError:
        shown = problem.note or problem.message if isinstance(problem, SglcError) else ""
        note = shown or "the template writes no such turn"
        roles = ", ".join(chat.roles)
        return LegalizeError(
            "SGLC303", f"the model's chat template refuses a conversation of {roles}", place(loc),
            note=note, hint="use the roles, and the order of turns, that the model knows",
        )  # fmt: skip

    def refused(self, why: str, chat: Chat, loc: Loc) -> LegalizeError:
        return LegalizeError(
            "SGLC304", f"the turns {', '.join(chat.roles)} cannot be written one after another", place(loc),
            note=why, hint="keep raw text out of the conversation, and read results only where an answer ends",
        )  # fmt: skip


def with_content(chat: Chat, item: Value | str) -> Chat:
    turn = chat.turns[-1]
    return replace(chat, turns=(*chat.turns[:-1], replace(turn, content=Content(turn.content, item))))


def _texts(content: Content | None) -> Iterator[Value | str]:
    """The texts in order."""
    backwards: list[Value | str] = []
    while content is not None:
        backwards.append(content.item)
        content = content.before
    return reversed(backwards)


def _may_be_padded(content: Content | None) -> bool:
    """Whether the content may begin or end in white space, as far as literals tell."""
    texts = [item for item in _texts(content) if item != ""]
    if not texts:
        return False
    first, last = texts[0], texts[-1]
    return not (
        isinstance(first, str) and isinstance(last, str) and first == first.lstrip() and last == last.rstrip()
    )
