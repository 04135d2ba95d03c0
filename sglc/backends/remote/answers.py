"""What all APIs are asked for and answer, whatever their words: request bodies, samples, and what they mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from sglc.backends.models.vendor_rules import ApiModel
from sglc.backends.remote.sdk_errors import said
from sglc.backends.remote.segment_runner import ApiAnswer, ApiRequest
from sglc.backends.retry import Trouble
from sglc.errors import BackendError
from sglc.ir.grammar.answer_form import AnswerForm, form_for, form_of_choices
from sglc.ir.grammar.call_format import HERMES, arguments_schema
from sglc.ir.grammar.finite import accepted
from sglc.ir.grammar.stops import stop_pattern
from sglc.ir.grammar.whole_characters import WholeCharacters, whole_characters
from sglc.ir.made_often import made_often
from sglc.ir.plan.events import GenDone, Sample, SelectDone, TokenLogprob, Usage
from sglc.ir.plan.segment import GenNode, Made, SelectNode
from sglc.ir.sampling import Sampling
from sglc.ir.target import Takes
from sglc.runtime.tokenizer.detokenize import StopStream

_T = TypeVar("_T")
_Given = TypeVar("_Given")
UNKNOWN_ID = -1  # of a token of which only the text is known

Logprobs = tuple[tuple[float, ...], tuple[str, ...], tuple[tuple[TokenLogprob, ...], ...]]
NO_LOGPROBS: Logprobs = ((), (), ())
_LOST = Sample("", (), "abort")  # in the place of one that failed
_OF_CHOICE = "use a model that keeps to schemas"
_OF_TEXT = f"give it more `max_tokens`, or `retries`, or {_OF_CHOICE}"


@made_often
@dataclass(frozen=True, slots=True)
class RequestBody:
    """One request: `fields` as the SDK's method takes them. Its samples are `count`, from `first` on."""

    fields: Mapping[str, Any]
    first: int = 0
    count: int = 1


@made_often
@dataclass(frozen=True, slots=True)
class Reply:
    """One sample as the API gave it. `finish` is `stop` or `length`."""

    text: str
    finish: str
    logprobs: tuple[float, ...] = ()
    texts: tuple[str, ...] = ()
    top_logprobs: tuple[tuple[TokenLogprob, ...], ...] = ()


@made_often
@dataclass(frozen=True, slots=True)
class Answer:
    """The samples of one request, in order, and its counts; of some there may be none, and why."""

    replies: tuple[Reply | Unanswered, ...]
    usage: Usage


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a streamed answer. `usage` are the counts of the whole request so far; the last ones hold.

    `why` there is no answer: the counts may come behind it.
    """

    text: str = ""
    finish: str = ""
    usage: Usage | None = None
    logprobs: Logprobs = NO_LOGPROBS
    why: Unanswered | None = None


class Unanswered(Exception):
    """The model, or the provider's filter, gives no answer; the same will be so again."""


PROMPT_BLOCKED = "the provider's filter blocks the prompt"


def or_why_not(read: Callable[[_Given], Reply], given: _Given) -> Reply | Unanswered:
    """The sample that `read` finds, or why there is none: others of the request may be good."""
    try:
        return read(given)
    except Unanswered as why:
        return why


def piece_or_why_not(read: Callable[[_Given], Piece], given: _Given) -> Piece:
    """The part of a stream that `read` finds, or why there is no answer."""
    try:
        return read(given)
    except Unanswered as why:
        return Piece(why=why)


def reply_for(name: str, reply: Reply | Unanswered) -> Reply:
    """The sample.

    Raises:
        BackendError: SGLC545, there is none.
    """
    if isinstance(reply, Unanswered):
        raise no_answer(name, reply)
    return reply


def no_answer(name: str, why: Unanswered) -> BackendError:
    """The error of a generation that has none."""
    return BackendError("SGLC545", f"the API gives no answer for `{name}`: {why}")


class Reading:
    """What an answer says is read here; the SDKs do not look whether it has the vendor's shape.

    Raises:
        Trouble: it has another one.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, AttributeError | TypeError | ValueError | KeyError):
            raise Trouble(f"the answer is malformed: {said(error)}") from None


def text_of(value: Any) -> str:
    """A text of an answer, "" where there is none.

    Raises:
        Trouble: it is something else.
    """
    if value is not None and not isinstance(value, str):
        raise Trouble(f"the answer is malformed: {value!r} stands where a text should")
    return value or ""


def with_calls(text: str, calls: Sequence[tuple[str, Any]]) -> str:
    """An answer as one text: what is no call, and each call, of a name with its arguments, behind it."""
    written = [HERMES.written(text_of(name), arguments) for name, arguments in calls]
    return "\n".join(filter(None, [text, *written]))


# -- requests ------------------------------------------------------------------------------------------


def declared(tools: Sequence[Mapping[str, Any]], arguments: str) -> list[dict[str, Any]]:
    """Tools as a vendor declares them, each with the schema of its arguments in the field `arguments`."""
    return [
        {
            **{key: tool[key] for key in ("name", "description") if key in tool},
            arguments: arguments_schema(tool),
        }
        for tool in tools
    ]


def form_of_request(request: ApiRequest, model: ApiModel) -> AnswerForm | None:
    """What the answer is held to by a JSON schema; None if it is held to nothing, or scored."""
    if isinstance(request.node, SelectNode):
        return None if model.scores_tokens else form_of_choices(request.choices)
    return form_for(request.node.sampling, model.takes)


def sampling_of(request: ApiRequest, takes: Takes) -> Sampling:
    """How the answer is sampled: of a choice greedily, if the model can."""
    if isinstance(request.node, GenNode):
        return request.node.sampling
    longest = max(len(choice.encode()) for choice in request.choices)  # no token is shorter than a byte
    return Sampling(max_tokens=longest, temperature=1.0 if takes.temperature is None else 0.0)


def in_batches(request: ApiRequest, takes: Takes, sampling: Sampling) -> list[tuple[int, int, int | None]]:
    """The requests for all samples: the first sample of each, how many it gives, and its seed."""
    node, count = request.node, sampling.n
    seed = getattr(node, "seed", None) if sampling.seed is None else sampling.seed
    if not takes.seed:
        seed = None
    several = takes.samples or count
    return [
        (first, min(several, count - first), None if seed is None else (seed + first) % 2**63)
        for first in range(0, count, several)
    ]


def asks_logprobs(sampling: Sampling) -> bool:
    """Whether log-probabilities of what is generated are wanted."""
    return sampling.logprobs or sampling.logprob_text or sampling.top_logprobs > 0


def sent_stops(sampling: Sampling, takes: Takes, form: AnswerForm | None) -> tuple[str, ...]:
    """The stop strings that the API is given: inside a JSON answer they would mean something else."""
    return () if form is not None and form.inside else takes.sent_stops(sampling.stop)


# -- answers -------------------------------------------------------------------------------------------


class Cut:
    """Ends a text at its stop strings, as it comes: those that the API was not given, and patterns."""

    def __init__(self, sampling: Sampling) -> None:
        self._pieces: list[bytes] = []
        self._characters = WholeCharacters()
        self._stream = StopStream(
            self._pieces, sampling.stop, [stop_pattern(pattern) for pattern in sampling.stop_regex]
        )

    @property
    def ended(self) -> str | None:
        """The stop that has come, if one has."""
        return None if self._stream.match is None else self._stream.match.stop

    def push(self, piece: str) -> str:
        """What now surely belongs to the text."""
        self._pieces.append(self._characters.push(piece).encode())
        return self._stream.push(len(self._pieces) - 1)

    def finish(self) -> str:
        """No more comes: what was held back."""
        self._pieces.append(self._characters.finish().encode())
        return self._stream.push(len(self._pieces) - 1) + self._stream.finish()


def whole_reply(pieces: Sequence[Piece]) -> Reply | None:
    """The sample that was streamed; None if the stream broke off."""
    finish = next((piece.finish for piece in reversed(pieces) if piece.finish), "")
    if not finish:
        return None
    columns = [tuple(item for piece in pieces for item in piece.logprobs[i]) for i in range(3)]
    return Reply("".join(piece.text for piece in pieces), finish, *columns)  # type: ignore[arg-type]


def of_whole_characters(reply: Reply) -> Reply:
    """It as text that can be sent on: an escape, or the end of a piece, may leave half of a character."""
    text = whole_characters(reply.text)
    if text is reply.text and not reply.texts:
        return reply
    tops = tuple(
        tuple((logprob, id_, spelled and whole_characters(spelled)) for logprob, id_, spelled in place)
        for place in reply.top_logprobs
    )
    return replace(reply, text=text, texts=tuple(map(whole_characters, reply.texts)), top_logprobs=tops)


def sample_of(reply: Reply, sampling: Sampling, form: AnswerForm | None, name: str) -> Sample:
    """A generation's sample.

    Raises:
        BackendError: SGLC546, the answer is not in the form that was asked for.
    """
    reply = of_whole_characters(reply)
    text = reply.text
    if form is not None and (form.inside or reply.finish != "length"):
        text = read_with(form.read, text, reply.finish, name)
        if sampling.regex is not None and not accepted(sampling.regex, text):
            raise _not_held(name, f"it does not match `{sampling.regex}`", reply.text)
    if not (sampling.stop or sampling.stop_regex) and text is reply.text and text.isascii():  # most are this
        return Sample(
            text, (UNKNOWN_ID,) * len(reply.logprobs), reply.finish, reply.logprobs, reply.texts,
            reply.top_logprobs,
        )  # fmt: skip
    cut = Cut(sampling)
    kept = cut.push(text) + cut.finish()
    count = len(reply.logprobs)
    if kept != reply.text and count:  # tokens behind the cut do not belong to it
        count, length = 0, 0
        while count < len(reply.texts) and length + len(reply.texts[count]) <= len(kept):
            length += len(reply.texts[count])
            count += 1
    return Sample(
        kept,
        (UNKNOWN_ID,) * count,
        reply.finish if cut.ended is None else "stop",
        reply.logprobs[:count],
        reply.texts[:count],
        reply.top_logprobs[:count],
        matched=cut.ended,
    )


def read_with(read: Callable[[str], _T], text: str, finish: str, name: str, hint: str = _OF_TEXT) -> _T:
    """What `read` makes of an answer.

    Raises:
        BackendError: SGLC546, it is not in the form that was asked for.
    """
    try:
        return read(text)
    except (ValueError, RecursionError) as error:
        why = "it ended at `max_tokens`" if finish == "length" else f"it is not what was asked for: {error}"
        raise _not_held(name, why, text, hint) from None


def _not_held(name: str, why: str, text: str, hint: str = _OF_TEXT) -> BackendError:
    shown = text if len(text) <= 80 else f"{text[:77]}..."
    return BackendError(
        "SGLC546", f"the answer for `{name}` does not have its form: {why}", note=f"the API gave {shown!r}",
        hint=hint,
    )  # fmt: skip


def gen_answer(request: ApiRequest, samples: Sequence[Sample | BackendError], usage: Usage) -> ApiAnswer:
    """The end of a generation; of a request whose samples are `apart`, some may have failed."""
    lost = tuple([(place, one) for place, one in enumerate(samples) if isinstance(one, BackendError)])
    kept = tuple([_LOST if isinstance(one, BackendError) else one for one in samples])
    return ApiAnswer(GenDone(request.index, (), kept, usage), Made(kept[0].text), lost=lost)


def chosen(request: ApiRequest, reply: Reply, form: AnswerForm, usage: Usage) -> ApiAnswer:
    """The end of a choice that the model wrote.

    Raises:
        BackendError: SGLC546, it wrote something else.
    """
    name = request.node.site.name
    text = read_with(form.read, whole_characters(reply.text), reply.finish, name, _OF_CHOICE)
    if text not in request.choices:
        raise _not_held(name, "it is none of the choices", reply.text, _OF_CHOICE)
    choice = request.choices.index(text)
    event = SelectDone(request.index, (), choice, text, (), (), (), usage, decided="constrained")
    return ApiAnswer(event, Made(text))
