"""One structured-output request for several generations of a turn, and what its answer says of each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from sglc.backends.remote.answers import Reply, chosen, gen_answer, read_with, sample_of, sampling_of
from sglc.backends.remote.joint_request import JointReply
from sglc.backends.remote.prompts import open_turn
from sglc.backends.remote.segment_runner import ApiAnswer, ApiRequest
from sglc.backends.retry import Paid
from sglc.errors import BackendError, LegalizeError, SglcError
from sglc.ir.grammar.answer_form import OVERHEAD_TOKENS
from sglc.ir.grammar.captures import Captured, CaptureForm, capture_form, most_characters, why_ambiguous
from sglc.ir.plan.events import Usage
from sglc.ir.plan.segment import GenNode, RoleMark
from sglc.ir.target import Takes

Once = Callable[[ApiRequest], Awaitable[JointReply]]


async def ask_fused(
    request: ApiRequest,
    once: Once,
    alone: Callable[[ApiRequest], Awaitable[ApiAnswer]],
    takes: Takes,
    *,
    chat: bool,
    retries: int,
) -> ApiAnswer:
    """The answer of a fused generation or choice, and of those behind it: one JSON object has all of them.

    Where the model could not go on in the turn, an answer without the form is asked for again, with another
    seed and `retries` times; elsewhere each is asked for `alone` from then on.

    Raises:
        BackendError: SGLC546, no answer has the form.
        LegalizeError: SGLC317, the turn's texts cannot be told apart.
    """
    prompt, before = open_turn(request.prompt) if chat else (request.prompt, "")
    in_turns = any(isinstance(item, RoleMark) for item in request.prompt)
    anew = chat and not (takes.prefill and takes.bound_prefill and in_turns)
    own = replace(request, behind=(), streams=False)
    members = [own, *(replace(own, index=b.index, node=b.node, choices=b.choices) for b in request.behind)]
    befores = [before, *(behind.before for behind in request.behind)]
    captured = tuple(map(_captured, members, befores))
    form = capture_form(captured, takes.json_schema)
    asked, spent, failed = _asked(members, form, takes), Usage(), _unproved(request, captured)
    for attempt in range(0 if failed else 1 + retries if anew else 1):
        node = replace(asked, seed=None if asked.seed is None else asked.seed + attempt)
        with Paid(spent):
            said = await once(replace(own, node=node, prompt=prompt, choices=()))
        spent += said.usage
        try:
            return _answer(members, form, said, spent)
        except BackendError as error:
            failed = error
    with Paid(spent):
        if anew and failed is not None:
            raise failed
        single = await alone(replace(request, node=replace(request.node, fused=False), behind=()))
    return replace(single, event=replace(single.event, usage=single.event.usage + spent), alone=True)


def _unproved(request: ApiRequest, captured: tuple[Captured, ...]) -> SglcError | None:
    """Why one object cannot be asked for, as far as only the run knows what stands between."""
    why = why_ambiguous(captured)
    if not why:
        return None
    return LegalizeError(
        "SGLC317", f"the turn of `{request.node.site.name}` cannot be one JSON object", request.node.loc,
        note=f"the model begins every answer anew, and {why}",
        hint="end the turn and ask again, or change the text between",
    )  # fmt: skip


def _captured(member: ApiRequest, before: str) -> Captured:
    name = member.node.site.name
    if isinstance(member.node, GenNode):
        return Captured(before, name, member.node.sampling)
    return Captured(before, name, choices=member.choices)


def _asked(members: Sequence[ApiRequest], form: CaptureForm, takes: Takes) -> GenNode:
    """The generation of the object: sampled as its members are, and as long as all of them together."""
    gens = [member.node for member in members if isinstance(member.node, GenNode)]
    samplings = [sampling_of(member, takes) for member in members]
    literals = sum(len(literal.encode("utf-8", "replace")) for _, literal in form.literals)
    length = literals + sum(sampling.max_tokens + OVERHEAD_TOKENS for sampling in samplings)
    sampling = gens[0].sampling if gens else samplings[0]
    held = replace(sampling, regex=None, json_schema=form.schema, stop=(), seed=None, max_tokens=length)
    seed = sampling.seed if sampling.seed is not None or not gens else gens[0].seed
    first = members[0].node
    return GenNode(first.stream, first.site, held, first.loc, seed, cache_key=first.cache_key)


def _answer(members: Sequence[ApiRequest], form: CaptureForm, said: JointReply, spent: Usage) -> ApiAnswer:
    """What the object says of each. The first one has the requests' counts, the others what they saved.

    Raises:
        BackendError: SGLC546, it says something else.
    """
    parts = read_with(form.split, said.text, said.finish, members[0].node.site.name)
    answers = []
    for number, (member, part, own) in enumerate(zip(members, parts, form.forms, strict=True)):
        usage, reply = (
            Usage(saved_calls=1, saved_prompt=said.usage.prompt) if number else spent,
            Reply(part, "stop"),
        )
        if isinstance(member.node, GenNode):
            sampling = member.node.sampling
            sample = sample_of(reply, sampling, own, member.node.site.name)
            if not sampling.constrained and len(sample.text) >= most_characters(sampling):
                sample = replace(sample, finish="length")
            answers.append(gen_answer(member, (sample,), usage))
        else:
            answers.append(chosen(member, reply, own, usage))
    return replace(answers[0], others=tuple((one.event, one.made) for one in answers[1:]))
