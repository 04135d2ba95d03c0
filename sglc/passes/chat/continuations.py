"""Whether two conversations go on alike, found by going on with both.

Blocks that take turns leave one stream, and a block that runs again is lowered once; what the template
writes from there on must not depend on which way the stream came. Templates are programs, so they are
tried: with every pair of turns of the program's own roles.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count, product

from sglc.errors import LegalizeError
from sglc.ir.core import NOWHERE, Site, Type, Value
from sglc.ir.ops import Append, Control, Gen
from sglc.passes.chat.conversation import Chat, ChatWriter
from sglc.passes.chat.markup import ASSISTANT, stand_in

_Written = tuple[str | tuple[int, ...], ...]  # texts and control ids, and "refused" where it stops


def taken_over(chat: Chat, stream: Value) -> Chat:
    """A chat as a block sees it that several ways lead to: nothing is known of what its turns contain."""
    turns = tuple(replace(turn, known=False) for turn in chat.turns)
    if chat.open and chat.turns[-1].content is None and chat.turns[-1].known:
        turns = (*turns[:-1], chat.turns[-1])  # on any way it is empty
    return replace(chat, stream=stream, turns=turns)


def joined(chats: Sequence[Chat], stream: Value) -> Chat:
    """One chat for several that go on alike."""
    first = chats[0]
    if len(chats) > 1 and all(chat.turns is first.turns and chat.view == first.view for chat in chats):
        return replace(first, stream=stream)  # no way added a turn, or text to one
    return replace(
        taken_over(first, stream),
        raw=any(chat.raw for chat in chats),
        generated=any(chat.generated for chat in chats),
    )


def go_on_alike(writer: ChatWriter, one: Chat, other: Chat, roles: Sequence[str]) -> bool:
    """Whether the template writes the same behind both chats, whatever turns of `roles` follow."""
    if (one.open, one.fresh) != (other.open, other.fresh):
        return False
    return _state(one) == _state(other) or _futures(writer, one, roles) == _futures(writer, other, roles)


def _state(chat: Chat) -> tuple[object, ...]:
    """All that what follows can depend on, but for the contents of turns."""
    empty = chat.open and chat.turns[-1].content is None and not chat.generated
    return (chat.roles, chat.view, chat.raw or bool(chat.view), chat.generated, empty)


def written_first(writer: ChatWriter, chat: Chat, role: str) -> str:
    """What the template writes before the first turn of a conversation and before no later one.

    A default system turn, for the most part. Empty if a first turn is written like a later one.
    """
    if chat.turns or chat.view or chat.open or chat.held:
        return ""
    answer = "user" if role == ASSISTANT else ASSISTANT
    first, before = writer.markup.opened((role,)), writer.markup.closed((role, answer))
    later = writer.markup.opened((role, answer, role))
    if not (isinstance(first, str) and isinstance(before, str) and isinstance(later, str)):
        return ""
    if not later.startswith(before):
        return ""
    again = later.removeprefix(before)
    head = first.removesuffix(again)
    return head if again and head != first and stand_in(0) not in head else ""


def _futures(writer: ChatWriter, chat: Chat, roles: Sequence[str]) -> list[_Written]:
    sequences = [*product(roles, repeat=2), *((a, b, a) for a, b in product(roles, repeat=2) if a != b)]
    ends = ("as it is", "text", "generation") if chat.open else ("",)
    return [_future(writer, chat, end, sequence) for end in ends for sequence in sequences]


def _future(writer: ChatWriter, chat: Chat, end: str, roles: Sequence[str]) -> _Written:
    """What is written if turns of `roles` follow: their texts are given, answers are generated."""
    trial = ChatWriter(writer.tokenizer, writer.markup, 0, {})
    fresh = (Value(number, Type.STREAM) for number in count(-1, -1))
    chat = taken_over(chat, next(fresh))
    try:
        if chat.open:
            chat = _filled(trial, chat, end, fresh)
            chat = trial.close(chat, NOWHERE)
        for role in roles:
            chat = trial.open(chat, role, NOWHERE)
            chat = _filled(trial, chat, "generation" if role == ASSISTANT else "text", fresh)
            chat = trial.close(chat, NOWHERE)
    except LegalizeError:
        return (*_texts(trial), "refused")
    return tuple(_texts(trial))


def _filled(trial: ChatWriter, chat: Chat, what: str, fresh: Iterator[Value]) -> Chat:
    match what:
        case "text":
            return trial.append(chat, Append(chat.stream, "text", results=(next(fresh),)))
        case "generation":
            text = Value(next(fresh).id, Type.TEXT)
            return trial.generate(chat, Gen(chat.stream, Site("", (), ""), results=(next(fresh), text)))
        case _:
            return chat


def _texts(trial: ChatWriter) -> Iterator[str | tuple[int, ...]]:
    """What a trial wrote; texts beside each other as one."""
    text = ""
    for op in trial.ops:
        if isinstance(op, Append) and isinstance(op.text, str):
            text += op.text
            continue
        yield text
        text = ""
        yield op.ids if isinstance(op, Control) else op.mnemonic
    yield text
