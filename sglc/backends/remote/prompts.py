"""Prompts as APIs are sent them: what a stream is made of, and its forms as messages, as text and as ids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

from sglc.errors import LegalizeError, Loc, RunError
from sglc.ir.made_often import made_often
from sglc.ir.plan.dataflow import FilledPart, encode_behind
from sglc.ir.plan.segment import EncodedText, ImagePart, Made, RoleMark
from sglc.ir.target import ControlText, Takes, Tokenizer


@dataclass(frozen=True, slots=True)
class HintedProgram:
    """A program by its `name`; they begin in this `order`."""

    name: str
    order: int


@dataclass(slots=True, eq=False, weakref_slot=True)
class StreamName:
    """What a stream is called, as long as something begins with it."""

    text: str
    program: HintedProgram


@dataclass(slots=True)  # not frozen: it remembers its turns
class Prompt:
    """A stream as a linked list: branches share what they have in common.

    `name`: what the server was told that it is called, if anything (`prompt_hints`).
    """

    before: Prompt | None = None
    items: tuple[FilledPart, ...] = ()
    name: StreamName | None = field(default=None, init=False, compare=False, repr=False)
    turns: _Turns | None = field(default=None, init=False, compare=False, repr=False)

    def __iter__(self) -> Iterator[FilledPart]:
        backwards = []
        here: Prompt | None = self
        while here is not None:
            backwards.append(here.items)
            here = here.before
        for items in reversed(backwards):
            yield from items


@made_often
@dataclass(frozen=True, slots=True)
class Message:
    """A turn. `open`: it is the last one, and the model goes on in it."""

    role: str
    content: tuple[str | ImagePart, ...]
    open: bool = False


def open_turn(prompt: Prompt) -> tuple[Prompt, str]:
    """A prompt up to where its open turn begins, and the text in that turn; no pictures stand in it."""
    items = list(prompt)
    begin = max((i + 1 for i, item in enumerate(items) if isinstance(item, RoleMark)), default=len(items))
    return Prompt(None, tuple(items[:begin])), text(Prompt(None, tuple(items[begin:])))


def messages(prompt: Prompt, loc: Loc) -> tuple[Message, ...]:
    """The turns of a prompt; text without turns is one message of the user. Nothing is stripped.

    An assistant's turn in which nothing stands yet is left out: the model begins it.

    Raises:
        LegalizeError: SGLC315 text beside turns, SGLC316 a prompt that ends outside the assistant's turn or,
            without turns, holds an answer already. Programs that are compiled as a whole fail before.
        RunError: SGLC402, there is nothing in it.
    """
    turned = _turned(prompt)
    turns, role, content, begun = turned.done, turned.role, turned.content, turned.begun
    if turned.outside:
        raise _outside(loc)
    if not begun and not content:
        raise RunError("SGLC402", "there is no text before this generation", loc, hint="append some text first")
    if not begun and not turned.answered:
        return (Message("user", _joined(content)),)
    if not begun:
        raise LegalizeError(
            "SGLC316", "a generation goes on behind another one, in a text without turns", loc,
            note="to a chat model such a text is one user message, and ends with its answer",
            hint="write turns: `s += sgl.user(...)` and `s += sgl.assistant(sgl.gen(...))`",
        )  # fmt: skip
    if role != "assistant":
        raise LegalizeError(
            "SGLC316", "a generation stands outside the assistant's turn", loc,
            note="a chat model answers with a turn of its own",
            hint="put it into the assistant's turn: `s += sgl.assistant(sgl.gen(...))`",
        )  # fmt: skip
    return (*turns, Message(role, _joined(content), True)) if content else turns


@made_often
@dataclass(frozen=True, slots=True)
class _Turns:
    """The turns up to some place: those that are `done`, and the `role` and content of one that is open.

    `begun`: there are turns. `outside`: text stands between them. `answered`: a model wrote some of that.
    """

    done: tuple[Message, ...] = ()
    role: str = ""
    content: tuple[str | ImagePart, ...] = ()
    begun: bool = False
    outside: bool = False
    answered: bool = False

    def behind(self, items: Iterable[FilledPart]) -> _Turns:
        """The same behind these."""
        done, role, content = list(self.done), self.role, list(self.content)
        begun, outside, answered = self.begun, self.outside, self.answered
        for item in items:
            if type(item) is str:
                if item:
                    content.append(item)
            elif isinstance(item, RoleMark):
                if item.begins:
                    outside = outside or bool(content)
                    role, begun = item.role, True
                else:
                    done.append(Message(role, _joined(content)))
                    role, content = "", []
            elif isinstance(item, Made):
                answered = answered or not role
                content.append(item.text)
            elif isinstance(item, ImagePart) or item.text:  # type: ignore[union-attr]  # or of the template
                content.append(item if isinstance(item, ImagePart) else item.text)  # type: ignore[union-attr]
        return _Turns(tuple(done), role, tuple(content), begun, outside, answered)


_NO_TURNS = _Turns()


def _turned(prompt: Prompt) -> _Turns:
    """What turns a prompt has, which goes on from those of the prompt that was asked for before."""
    turned, backwards = prompt.turns, list[tuple[FilledPart, ...]]()
    here: Prompt | None = prompt
    while turned is None and here is not None:
        backwards.append(here.items)
        here = here.before
        turned = None if here is None else here.turns
    if backwards:
        turned = prompt.turns = (turned or _NO_TURNS).behind(chain.from_iterable(reversed(backwards)))
    assert turned is not None
    return turned


Turns = tuple[Message, ...]


def see_turns(turns: Sequence[Message], takes: Takes, name: str, loc: Loc) -> None:
    """See that the model takes the texts and pictures of these turns, and begins the answer `name` behind them.

    Raises:
        LegalizeError: SGLC318 or, for a picture, SGLC308: it does not. Programs that are compiled as a whole
            fail before, if it is known then.
    """
    for turn in turns:
        for part in turn.content:
            if isinstance(part, ImagePart) and (said := takes.picture_refused(str(part.data), turn.role)):
                raise LegalizeError("SGLC308", f"a picture cannot be sent: {said[0]}", loc, hint=said[1])
    if not takes.blank_turns:
        for turn in turns:
            if not turn.open and any(isinstance(part, str) and not part.strip() for part in turn.content):
                raise LegalizeError(
                    "SGLC318", f"in a turn of `{turn.role}` a text is empty, or of white space alone", loc,
                    note="the API takes no such text", hint="leave the turn out where there is nothing to say",
                )  # fmt: skip
    whole = turns[:-1] if turns and turns[-1].open else turns
    if not takes.follows_own and whole and whole[-1].role == "assistant":
        raise LegalizeError(
            "SGLC318", f"`{name}` begins a turn behind one of the assistant's", loc,
            note="the model would go on in that", hint="put a user's turn between them",
        )  # fmt: skip


def system_apart(turns: Sequence[Message], takes: Takes, loc: Loc) -> tuple[Turns, Turns]:
    """The system turns that a conversation begins with, and the turns behind them.

    Raises:
        LegalizeError: SGLC318 a turn that the model takes not at all, or not at its place. Programs that are
            compiled as a whole fail before.
        RunError: SGLC402, there are no turns behind them.
    """
    count = next((i for i, turn in enumerate(turns) if turn.role != "system"), len(turns))
    for number, turn in enumerate(turns):
        if why := takes.turn_refused(turn.role, behind=number >= count):
            raise LegalizeError("SGLC318", why, loc)
    if count == len(turns):
        what = "there are instructions before this generation, and nothing else"
        raise RunError(
            "SGLC402", what if turns else "there is no turn before this generation", loc,
            hint="add a user's turn: `s += sgl.user(...)`",
        )  # fmt: skip
    return tuple(turns[:count]), tuple(turns[count:])


def kept_turns(key: str) -> int:
    """How many whole turns begin alike, by the cache key of a generation; 0 if there is none."""
    return int(key.rpartition("-")[2]) if key else 0


def no_prefill(name: str, loc: Loc, *, bound: bool = False) -> LegalizeError:
    """A generation stands behind text that the model cannot go on from.

    Args:
        bound: the model goes on behind text, but is held to a form here, or the text ends in white space.
    """
    why = "it goes on behind text only if that ends in no white space, and held to no form"
    return LegalizeError(
        "SGLC317", f"`{name}` stands behind text in the same turn", loc,
        note=why if bound else "the model begins every answer anew",
        hint="end the turn and ask again, or put what stands before it into the user's turn",
    )  # fmt: skip


def picture(part: ImagePart) -> tuple[str, str]:
    """A picture's type and its bytes in base64; of one that is elsewhere "" and its address."""
    assert isinstance(part.data, str)
    head, comma, data = part.data.partition(",")
    if not part.data.startswith("data:") or not comma:
        return "", part.data
    return head.removeprefix("data:").partition(";")[0], data


def _outside(loc: Loc) -> LegalizeError:
    return LegalizeError(
        "SGLC315", "text stands between turns, where no message can hold it", loc,
        hint="put it into a turn: `s += sgl.user(...)`, `sgl.system(...)` or `sgl.assistant(...)`",
    )  # fmt: skip


def _joined(content: Sequence[str | ImagePart]) -> tuple[str | ImagePart, ...]:
    """Neighbouring texts as one; at least one text."""
    if len(content) == 1:
        return (content[0],)
    made: list[str | ImagePart] = []
    for part in content:
        if made and isinstance(part, str) and isinstance(made[-1], str):
            made[-1] += part
        else:
            made.append(part)
    return tuple(made) or ("",)


def text(prompt: Prompt) -> str:
    """A prompt as one text, the template's markup in it."""
    parts = []
    for item in prompt:
        assert not isinstance(item, RoleMark | ImagePart | EncodedText), item
        parts.append(item if isinstance(item, str) else item.text)
    return "".join(parts)


def ids(prompt: Prompt, tokenizer: Tokenizer) -> tuple[int, ...]:
    """A prompt as token ids: every literal run as one string, what was generated as it was."""
    known, tail = ids_and_tail(prompt, tokenizer)
    return (*known, *encode_behind(tokenizer, known, tail))


def ids_and_tail(prompt: Prompt, tokenizer: Tokenizer) -> tuple[tuple[int, ...], str]:
    """A prompt as the ids that are sure, and the text behind them that is not encoded yet."""
    known: list[int] = []
    tail = ""
    for item in prompt:
        match item:
            case str():
                tail += item
            case Made(ids=None):
                tail += item.text
            case ControlText(ids=made) | Made(ids=tuple(made)):
                known += [*encode_behind(tokenizer, known, tail), *made]
                tail = item.tail if isinstance(item, Made) else ""
            case _:
                raise AssertionError(item)
    return tuple(known), tail
