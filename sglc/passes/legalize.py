"""What generations ask for, held against what the target's model takes: as it is, emulated, or refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sglc.errors import LegalizeError
from sglc.ir.core import Program, walk
from sglc.ir.ops import SELECT_METHODS, Call, Gen, Select
from sglc.ir.remark import Remark, place
from sglc.ir.sampling import Sampling
from sglc.ir.target import Takes, Target
from sglc.passes.base import Exactness, Kind, Rewrite, register
from sglc.passes.chat.joint_turns import may_be_joint


@register(
    "legalize", Exactness.TEXT, "what the target's model cannot do is emulated, or refused here", Kind.LOWERING
)
def legalize(program: Program, target: Target) -> Rewrite:
    """Leave the program's texts as they are, say what the back end will emulate, and refuse the rest.

        s1, t0 = gen(s0, 'x', stop=(six strings))  ->  the same, with a remark: two are cut off here
        s1, t0 = gen(s0, 'x', top_k=5)             ->  error[SGLC311] with the place of the `gen`
        two generations of a chat model's turn     ->  the same, `fused`: as `fuse_gens` makes one request of it

    The back end finds the same emulation in the same data (`Takes`, `ir.answer_form`): local stop strings, one
    request a sample, a form as a JSON schema whose answer is read back, a choice as an `enum`.

    Raises:
        LegalizeError: SGLC311 a parameter that the model does not take, SGLC312 and SGLC313 a form that it
            cannot be held to, SGLC314 a choice that it cannot decide, SGLC317 a generation behind others, or
            behind text, in a turn that one request cannot ask for as a whole.
    """
    remarks = _remarks(program, target)
    if may_be_joint(target):
        from sglc.passes.chat.fusion import fused

        program, said = fused(program, target, "legalize", refused_only=True)
        remarks.update((remark.message, remark) for remark in said)
    return (program, tuple(remarks.values())) if remarks else program


def _remarks(program: Program, target: Target) -> dict[str, Remark]:
    """What is emulated, each said once."""
    remarks: dict[str, Remark] = {}
    for op in walk(program.ops):
        match op:
            case Gen() | Select():
                if not target.known:
                    remarks.setdefault(
                        _UNKNOWN, Remark("legalize", f"`{target.name}` {_UNKNOWN}", place(op.loc))
                    )
                for said in _checked(op, target):
                    remarks.setdefault(said, Remark("legalize", said, place(op.loc)))
            case Call():
                for message, remark in _remarks(op.program, target).items():
                    remarks.setdefault(message, remark)
    return remarks


_UNKNOWN = "is in no table of models, so it is asked only for what all of its kind take (`takes=` says more)"


def _checked(op: Gen | Select, target: Target) -> Iterator[str]:
    """What is emulated, in words."""
    try:
        yield from _gen(op, target) if isinstance(op, Gen) else _select(op, target)
    except LegalizeError as error:
        raise LegalizeError(
            error.code, f"`{target.name}` cannot run `{op.site.name}`: {error.message}", place(op.loc),
            note=error.note, hint=error.hint,
        ) from None  # fmt: skip


def _gen(op: Gen, target: Target) -> Iterator[str]:
    sampling, takes, name = op.sampling, target.takes, op.site.name
    for limit in LIMITS:
        if limit.asked(sampling) and not limit.taken(sampling, takes):
            raise LegalizeError(
                "SGLC311", f"it takes no {limit.shown(sampling, takes)}",
                note=limit.note if target.known else f"the model {_UNKNOWN}",
                hint=limit.hint if target.known else "leave it out, or make the back end with `takes=`",
            )  # fmt: skip
    form = None
    if not takes.holds(sampling):
        from sglc.ir.grammar.answer_form import form_for  # it reads schemas, which few programs need

        form = form_for(sampling, takes)
    yield from (f"`{name}`: {said}" for said in (form.remarks if form is not None else ()))
    local = len(sampling.stop) - len(takes.sent_stops(sampling.stop))
    if form is not None and form.inside:
        local = 0 if sampling.regex is not None else len(sampling.stop)  # texts of a pattern are short anyway
    if local:
        many = f"{local} of its {len(sampling.stop)} stop strings"
        yield f"`{name}`: {many} are cut off here, so more may be generated"
    if sampling.stop_regex and not takes.stop_regex:
        yield f"`{name}`: `stop_regex` is cut off here, so more may be generated"
    if takes.samples is not None and sampling.n > takes.samples:
        yield f"`{name}`: {sampling.n} samples are {-(-sampling.n // takes.samples)} requests"
    if takes.reasons:
        yield f"`{target.name}` counts what it thinks before the answer in `max_tokens`"
    if not takes.seed:
        yield f"`{target.name}` takes no seed: the same run again may give other texts"


def _select(op: Select, target: Target) -> Iterator[str]:
    if target.scores_tokens:
        return
    if op.method != SELECT_METHODS[0]:
        raise LegalizeError(
            "SGLC314", f"it cannot decide by `{op.method}`", note="it gives no log-probabilities of given text",
            hint="leave `choices_method` out: it then writes one of the choices",
        )  # fmt: skip
    if not target.takes.json_schema:
        raise LegalizeError(
            "SGLC314", "it cannot decide between texts",
            note="it gives no log-probabilities of given text, and knows no structured outputs",
            hint="use a model that does, or run on `local`",
        )  # fmt: skip
    from sglc.ir.grammar.answer_form import form_of_choices

    form_of_choices([choice for choice in op.choices if isinstance(choice, str)])
    yield f"`{op.site.name}`: decided by what the model writes, held to the choices, not by log-probabilities"
    if target.takes.temperature is None:
        yield f"`{op.site.name}`: the choice is sampled, since the model takes no temperature"


@dataclass(frozen=True, slots=True)
class Limit:
    """A parameter: whether a generation asks for it, and whether the model takes that."""

    name: str
    asked: Callable[[Sampling], bool]
    taken: Callable[[Sampling, Takes], bool]
    hint: str
    note: str = ""

    def shown(self, sampling: Sampling, takes: Takes) -> str:
        """The parameter as it is given."""
        value = getattr(sampling, self.name)
        most = takes.temperature if self.name == "temperature" else None
        if most is not None and sampling.temperature > most:
            return f"`temperature` above {most:g}"
        return f"`{self.name}={value!r}`" if isinstance(value, int | float) else f"`{self.name}`"


LIMITS = (
    Limit(
        "temperature",
        lambda s: s.temperature != 1,
        lambda s, t: t.temperature is not None and s.temperature <= t.temperature,
        "leave it out, or lower it", "models that reason take no temperature, others one up to 2",
    ),
    Limit("top_p", lambda s: s.top_p != 1, lambda _, t: t.top_p, "leave it out"),
    Limit(
        "top_p", lambda s: s.top_p != 1 and s.temperature != 1, lambda _, t: t.top_p_at_any_temperature,
        "give one of the two", "it takes `temperature` or `top_p`, not both",
    ),
    Limit("top_k", lambda s: s.top_k != -1, lambda _, t: t.top_k, "use `top_p`, or leave it out"),
    Limit("min_p", lambda s: s.min_p != 0, lambda _, t: t.min_p, "use `top_p`, or leave it out"),
    Limit("frequency_penalty", lambda s: s.frequency_penalty != 0, lambda _, t: t.penalties, "leave it out"),
    Limit("presence_penalty", lambda s: s.presence_penalty != 0, lambda _, t: t.penalties, "leave it out"),
    Limit(
        "repetition_penalty", lambda s: s.repetition_penalty != 1, lambda _, t: t.repetition_penalty,
        "use `frequency_penalty`, or leave it out",
    ),
    Limit("logit_bias", lambda s: bool(s.logit_bias), lambda _, t: t.logit_bias, "leave it out"),
    Limit("seed", lambda s: s.seed is not None, lambda _, t: t.seed, "leave it out"),
    Limit("min_tokens", lambda s: s.min_tokens > 0, lambda _, t: t.min_tokens, "ask for the length in words"),
    Limit(
        "tools", lambda s: s.tools is not None, lambda _, t: t.tools,
        "ask for the call by a `json_schema`, or use a model that has tools", "it is asked for texts alone",
    ),
    Limit("stop_token_ids", lambda s: bool(s.stop_token_ids), lambda _, t: t.stop_tokens, "use `stop`"),
    Limit("ignore_eos", lambda s: s.ignore_eos, lambda _, t: t.stop_tokens, "leave it out"),
    Limit(
        "canonical", lambda s: not s.canonical, lambda _, t: t.regex,
        "leave it out", "how a text that has to follow is cut into tokens is not for its clients to say",
    ),
    Limit(
        "max_tokens", lambda s: s.max_tokens == 0, lambda _, t: t.prompt_logprobs,
        "generate a token at least", "without a text it has nothing to answer",
    ),
    Limit(
        "logprobs_from", lambda s: s.logprobs_from is not None, lambda _, t: t.prompt_logprobs,
        "leave `logprob_start_len` out", "it gives no log-probabilities of a prompt",
    ),
    Limit(
        "logprobs",
        lambda s: s.logprobs or s.logprob_text,
        lambda _, t: t.logprobs != -1,
        "leave `return_logprob` out", "it gives no log-probabilities",
    ),
    Limit(
        "top_logprobs",
        lambda s: s.top_logprobs > 0,
        lambda s, t: t.logprobs is None or s.top_logprobs <= t.logprobs,
        "ask for fewer likeliest tokens, or for none",
    ),
)  # fmt: skip
