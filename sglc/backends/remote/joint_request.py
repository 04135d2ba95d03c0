"""One request for several generations of a turn, and what is done where its answer is not theirs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from sglc.backends.remote.joint import Heard, JointMatch, JointStep, limit_of, match
from sglc.backends.remote.prompts import open_turn
from sglc.backends.remote.segment_runner import ApiAnswer, ApiRequest
from sglc.backends.retry import Paid
from sglc.errors import BackendError
from sglc.ir.plan.events import Delta, Event, GenDone, Sample, Usage
from sglc.ir.plan.segment import GenNode, Made


@dataclass(frozen=True, slots=True)
class JointReply:
    """A joint answer: its text, why it ended, and the counts of its request."""

    text: str
    finish: str
    usage: Usage


# Makes one request; is given what to do with pieces of the answer, or None where nobody hears them.
Once = Callable[[ApiRequest, Callable[[str], None] | None], Awaitable[JointReply]]


async def ask_jointly(
    request: ApiRequest,
    emit: Callable[[Event], None],
    once: Once,
    alone: Callable[[ApiRequest], Awaitable[ApiAnswer]],
    *,
    whole_turn: bool,
    retries: int,
    ends: tuple[str, ...] = (),
) -> ApiAnswer:
    """The answer of a generation with `ahead`, and of as many behind it as came with it.

    What the first of them is, every answer says, unless it is longer than can be counted: then it is asked for
    `alone`. With `whole_turn` nothing but a whole match counts, and the model is asked again.

    Args:
        retries: requests more than there are generations. Without any, no request is made that may be in vain.
        ends: stop strings that end a turn.

    Raises:
        BackendError: SGLC549, no answer has the turn's texts.
    """
    node = request.node
    assert isinstance(node, GenNode)
    prompt, before = open_turn(request.prompt) if whole_turn else (request.prompt, "")
    steps = [
        JointStep(before, node.sampling),
        *(JointStep(one.before, one.node.sampling) for one in request.behind if isinstance(one.node, GenNode)),
    ]
    limit = limit_of(steps, node.ahead)
    if not whole_turn and not retries:
        limit = node.sampling.max_tokens
    told = _Told(emit, [request.index, *(one.index for one in request.behind)])
    spent = Usage()
    seed = node.seed if node.sampling.seed is None else node.sampling.seed
    for attempt in range(1 + retries if whole_turn else 1):
        sampling = replace(node.sampling, stop=ends, stop_regex=(), max_tokens=limit, seed=None)
        asked = replace(node, sampling=sampling, seed=None if seed is None else seed + attempt)
        pieces: list[str] = []

        def hear(piece: str, pieces: list[str] = pieces) -> None:
            pieces.append(piece)
            told.tell(match(steps, Heard("".join(pieces), limit, "")))

        # Patterns are searched from the beginning each time; of a whole turn nothing is sure before its end.
        heard = request.streams and not whole_turn and not any(step.sampling.stop_regex for step in steps)
        hearing = hear if heard else None
        with Paid(spent):
            said = await once(replace(request, node=asked, prompt=prompt, behind=()), hearing)
        spent += said.usage
        tokens = min(said.usage.completion or limit, limit)
        found = match(steps, Heard(said.text, tokens, said.finish), whole_turn=whole_turn)
        if len(found.captures) == len(steps) or (found.captures and not whole_turn):
            if request.streams:
                told.tell(found)
            return _answer(told.indices, found, spent, said.usage.prompt)
    with Paid(spent):
        if whole_turn:
            raise _no_match(request, found.why, 1 + retries)
        single = await alone(replace(request, node=replace(node, ahead=0), behind=()))
    assert isinstance(single.event, GenDone)
    event = replace(single.event, usage=single.event.usage + spent)
    return ApiAnswer(event, single.made, alone=True)


@dataclass(slots=True)
class _Told:
    """How much of each generation was handed on."""

    emit: Callable[[Event], None]
    indices: Sequence[int]
    lengths: dict[int, int] = field(default_factory=dict)

    def tell(self, found: JointMatch) -> None:
        texts = [*(capture.text for capture in found.captures), found.begun]
        for index, text in zip(self.indices, texts, strict=False):
            if new := text[self.lengths.get(index, 0) :]:
                self.lengths[index] = len(text)
                self.emit(Delta(index, new))


def _answer(indices: Sequence[int], found: JointMatch, spent: Usage, prompt: int) -> ApiAnswer:
    """The first generation has the request's counts, the others what they saved."""
    ends = []
    for number, (index, capture) in enumerate(zip(indices, found.captures, strict=False)):
        usage = Usage(saved_calls=1, saved_prompt=prompt) if number else spent
        sample = Sample(capture.text, (), capture.finish)
        ends.append((GenDone(index, (), (sample,), usage), Made(capture.text)))
    return ApiAnswer(*ends[0], others=tuple(ends[1:]))


def _no_match(request: ApiRequest, why: str, tries: int) -> BackendError:
    times = f"{tries} answers do" if tries > 1 else "the answer does"
    return BackendError(
        "SGLC549", f"the turn of `{request.node.site.name}` was asked for in one request, and {times} not keep "
        "to its texts", request.node.loc, note=f"the last one: {why}",
        hint="show the model in the prompt how to answer, or raise `num_api_spec_tokens` and `max_tokens`",
    )  # fmt: skip
