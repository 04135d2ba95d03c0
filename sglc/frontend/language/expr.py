"""What may be appended to a prompt: text, generations, choices, pictures, sections, chat turns, and their sum.

Expressions are frozen descriptions; nothing happens until one is appended to a state.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress, repeat
from operator import is_not
from pathlib import PurePath
from types import CoroutineType
from typing import Any, ClassVar, NoReturn

from sglc.errors import Loc, TraceError
from sglc.frontend.language.choices import (
    ChoicesMethod,
    ChoicesSamplingMethod,
    token_length_normalized,
    unconditional_likelihood_normalized,
)
from sglc.frontend.language.gen_arguments import SAMPLING, StructuralTag, refuse_half_pairs, sampling_fields
from sglc.frontend.language.image import can_change, data_of, is_address
from sglc.frontend.language.reasoning import Tags, tags_of
from sglc.frontend.locate import here
from sglc.frontend.outputs.output_form import OutputParser
from sglc.frontend.outputs.output_spec import check_of, checked_retries, refuse_beside_choices, specified_form
from sglc.frontend.values.graph_breaks import NO_TEXT, OTHER, GraphBreak
from sglc.frontend.values.no_text import NoText, append_instead, refuse_not_awaited, refuse_text
from sglc.frontend.values.symbolic import TRACING, Symbolic, SymbolicText, Tracing
from sglc.ir.core import NOWHERE
from sglc.ir.ops import SELECT_METHODS


class Expr:
    """Base of everything that `s += ...` takes besides text."""

    __slots__ = ()

    def __add__(self, other: object) -> ConcatExpr:
        return ConcatExpr((*_flat(self), *_flat(checked(other))))

    def __radd__(self, other: object) -> ConcatExpr:
        return ConcatExpr((*_flat(checked(other)), *_flat(self)))

    def __str__(self) -> str:
        shown = _shown(self)
        refuse_text(f"`{shown}`", append_instead(f"sgl.{shown}"))

    def __format__(self, spec: str) -> str:
        return str(self)

    def _ask(self, *of: object) -> NoReturn:
        """Something is asked of what it will make.

        Raises:
            TraceError: SGLC158, always.
        """
        name = _first_name(self)
        first = "append it first" if name else "append it under a name first"
        name = name or "answer"
        raise TraceError(
            "SGLC158", f"`{_shown(self)}` has no value of its own", here(),
            note="it says what is to be made, and nothing is made before it is appended",
            hint=f'{first}, `s += gen("{name}")`, then read `s["{name}"]`',
        )  # fmt: skip

    __bool__ = __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __len__ = __iter__ = __getitem__ = _ask
    __hash__ = object.__hash__


Appendable = str | SymbolicText | Expr

# Generations by place and arguments: batches and loops make the same ones again and again.
_KNOWN: dict[tuple[Any, ...], GenExpr] = {}
_MOST_KNOWN = 4096


@dataclass(frozen=True, slots=True, eq=False)
class GenExpr(Expr):
    """A generation. `overrides` are the `Sampling` fields that the call set itself.

    `more_stops` are added to whatever stops it has from its own call or from the run. `parser` gives the
    value of its text, `check` also where the value is the text itself. With `retries`
    a text that `check` refuses is made again. `backend` is not the run's own. `limit` is its `max_tokens`,
    where only a run knows it.
    """

    unnamed: ClassVar[str] = "gen"  # what it is called without a name
    decide: ClassVar[None] = None
    name: str | None
    overrides: Mapping[str, Any]
    loc: Loc = NOWHERE
    more_stops: tuple[str, ...] = ()
    parser: OutputParser | None = None
    check: OutputParser | None = None
    retries: int = 0
    backend: Any = None
    limit: SymbolicText | None = None


@dataclass(slots=True)  # without a hash: no trace is kept in `_KNOWN`
class SymbolicLimit:
    """`max_tokens` that only a run knows, as a text; `number` makes the program one for that number alone."""

    text: Callable[[], SymbolicText]
    number: Callable[[], int]


@dataclass(frozen=True, slots=True, eq=False)
class SelectExpr(Expr):
    unnamed: ClassVar[str] = "select"
    parser: ClassVar[None] = None
    check: ClassVar[None] = None
    retries: ClassVar[int] = 0
    name: str | None
    choices: tuple[str | SymbolicText, ...]
    method: str
    loc: Loc = NOWHERE
    decide: ChoicesSamplingMethod | None = None  # Python decides, with the scores that `method` gives
    backend: Any = None


@dataclass(frozen=True, slots=True, eq=False)
class ReasonedExpr(Expr):
    """A generation whose reasoning, which stands between `tags`, does not stay in the prompt."""

    inner: GenExpr
    tags: Tags


@dataclass(frozen=True, slots=True, eq=False)
class ImageExpr(Expr):
    """A picture: a data URI or a URL, or what a run reads to get one."""

    data: str | SymbolicText
    loc: Loc = NOWHERE


@dataclass(frozen=True, slots=True, eq=False)
class RoleOpenExpr(Expr):
    role: str
    loc: Loc = NOWHERE


@dataclass(frozen=True, slots=True, eq=False)
class RoleCloseExpr(Expr):
    role: str
    loc: Loc = NOWHERE


@dataclass(frozen=True, slots=True, eq=False)
class SectionOpenExpr(Expr):
    name: str
    movable: bool
    loc: Loc = NOWHERE


@dataclass(frozen=True, slots=True, eq=False)
class SectionCloseExpr(Expr):
    name: str
    loc: Loc = NOWHERE


@dataclass(frozen=True, slots=True, eq=False)
class ConcatExpr(Expr):
    parts: tuple[Appendable, ...]


def gen(
    name: str | None = None,
    max_tokens: int | None = None,
    min_tokens: int | None = None,
    n: int | None = None,
    stop: str | Sequence[str] | None = None,
    stop_token_ids: Sequence[int] | None = None,
    stop_regex: str | Sequence[str] | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    ignore_eos: bool | None = None,
    return_logprob: bool | None = None,
    logprob_start_len: int | None = None,
    top_logprobs_num: int | None = None,
    return_text_in_logprobs: bool | None = None,
    dtype: Any = None,
    choices: Sequence[str] | None = None,
    choices_method: ChoicesMethod | ChoicesSamplingMethod | str | None = None,
    regex: str | None = None,
    json_schema: str | Mapping[str, Any] | None = None,
    *,
    ebnf: str | None = None,
    structural_tag: str | Mapping[str, Any] | StructuralTag | None = None,
    tools: Sequence[Callable[..., Any] | Mapping[str, Any]] | None = None,
    tool_choice: str | None = None,
    canonical: bool | None = None,
    strict: bool | None = None,
    repetition_penalty: float | None = None,
    logit_bias: Mapping[int, float] | None = None,
    seed: int | None = None,
    backend: Any = None,
    retries: int | None = None,
) -> Expr:
    """Text that the model writes here, stored under `name`. The arguments are SGLang's, in its order.

    Args:
        name: variable that receives the text (a list of texts when `n` > 1).
        max_tokens, min_tokens: bounds on the tokens made; stop strings and patterns end a text before, too.
        n: independent samples; the prompt continues with the first.
        stop, stop_regex: strings and patterns that end the text and are cut from it.
        temperature: 0 is greedy. top_p, top_k, min_p: filters of the distribution.
        frequency_penalty, presence_penalty: OpenAI's, over what this call made. logit_bias: id -> bias.
        repetition_penalty: that of transformers, over prompt and text; 1 is off.
        return_logprob: log-probabilities of what was generated are always there; False switches off what
            the run asked for beyond them.
        logprob_start_len: also those of the prompt from this token on; -1: of none of it.
        top_logprobs_num, return_text_in_logprobs: also the likeliest ids at each place, and the texts of ids.
        dtype: a type or its name. `int`, `float`, `str`, `bool`: the text has that form. Enum, Literal,
            dataclass, TypedDict, pydantic model: the variable is an object of it.
        choices: makes this a `select`.
        regex, json_schema, ebnf: the whole text matches it.
        structural_tag: free text in which markers begin pieces of a form, in xgrammar's notation.
        tools: functions that the text may call, with annotations; or OpenAI's objects of such. The variable
            then has the text's `content` and its `calls`. tool_choice: `auto`, `required`, or the name of one.
        canonical: False lets the model choose the tokens of text that has to follow. They are sampled one by
            one then; as it is, they take no steps of their own.
        strict: changes nothing. A schema is enforced whole or refused, and nothing is checked afterwards.
        seed: of this call alone; without it the run's seed and the call's site decide.
        backend: runs this call instead of the run's own, by name or as an object.
        retries: how often a text that is not of the wanted form is made again, with another seed.

    Raises:
        TraceError: a value of the wrong type or out of range (SGLC103), two forms at once or an unknown
            `dtype` (SGLC112), arguments that `choices` leaves without a meaning (SGLC114), a class that has
            no form (SGLC115), `retries` without a form (SGLC116).
    """
    loc = here()
    step: tuple[Any, ...] = (
        id(loc), name, max_tokens, min_tokens, n, stop, stop_token_ids, stop_regex, temperature, top_p, top_k,
        min_p, frequency_penalty, presence_penalty, ignore_eos, return_logprob, logprob_start_len,
        top_logprobs_num, return_text_in_logprobs, dtype, choices, choices_method, regex, json_schema, ebnf,
        structural_tag, None if tools is None else tuple(tools), tool_choice, canonical, strict,
        repetition_penalty, logit_bias, seed, backend, retries,
    )  # fmt: skip
    try:
        known = _KNOWN.get(step)
    except TypeError:  # a list among the arguments
        known, step = None, ()
    if known is not None:
        return known
    own = dict(locals())
    filled = compress(own.items(), map(is_not, own.values(), repeat(None)))  # few are
    given = {key: value for key, value in filled if key in SAMPLING}
    limit: SymbolicText | None = None
    if isinstance(asked := max_tokens, SymbolicLimit):
        forms = (regex, json_schema, ebnf, structural_tag, dtype, choices, tools)
        if backend is not None or any(form is not None for form in forms):
            given["max_tokens"] = asked.number()  # how long a form may be decides what is made of it
        else:
            limit, given["max_tokens"] = asked.text(), None
    if choices is not None:
        refuse_beside_choices({**given, "dtype": dtype, "retries": retries, "tools": tools}, loc)
        return _select(name, choices, choices_method, backend, loc)
    if choices_method is not None:
        raise TraceError("SGLC114", "`choices_method` has no meaning without `choices`", loc)
    told, allowed = None, None
    if tools is not None:
        from sglc.frontend.outputs.called_tools import callable_tools

        told, allowed = callable_tools(tools, tool_choice or "auto", loc)
    if tool_choice is not None and tools is None:
        raise TraceError("SGLC114", "`tool_choice` has no meaning without `tools`", loc)
    form = specified_form(dtype, {**given, "tools": allowed}, loc)
    fields = sampling_fields(given, loc)
    more: tuple[str, ...] = ()
    parser: OutputParser | None = None
    if form is not None and (dtype is not None or tools is not None):
        more = form.stop
        said = {"regex": form.regex, "json_schema": form.json_schema, "tools": told}
        fields.update((key, value) for key, value in said.items() if value is not None)
        refuse_half_pairs("tools" if dtype is None else "dtype", list(said.values()), loc)
        parser = None if form.value is None else OutputParser(form.name, form.value, loc, dtype)
    check = parser or (check_of(form, loc) if retries else None)
    again = checked_retries(retries, form, loc)
    made = GenExpr(_name(name, "gen", loc), fields, loc, more, parser, check, again, backend, limit)
    if step:
        if len(_KNOWN) >= _MOST_KNOWN:
            _KNOWN.clear()  # what is asked for again is soon there
        _KNOWN[step] = made
    return made


def made_in_line(name: str, loc: Loc) -> bool:
    """Whether the line of `loc` has made a generation of that name."""
    at = name, loc.file, loc.line
    return any((known.name, known.loc.file, known.loc.line) == at for known in list(_KNOWN.values()))


def gen_int(name: str | None = None, **arguments: Any) -> Expr:
    """`gen(name, dtype=int, ...)`."""
    return gen(name, dtype=int, **arguments)


def gen_string(name: str | None = None, **arguments: Any) -> Expr:
    """`gen(name, dtype=str, ...)`: a text in double quotes."""
    return gen(name, dtype=str, **arguments)


def select(
    name: str | None = None,
    choices: Sequence[str] | None = None,
    temperature: float = 0.0,
    choices_method: ChoicesMethod | ChoicesSamplingMethod | str | None = None,
    *,
    backend: Any = None,
) -> Expr:
    """The most likely of `choices` at this place, stored under `name`.

    Args:
        choices: at least one text.
        temperature: only 0 has a meaning: a choice is ranked, not sampled.
        choices_method: how (`sglc.frontend.language.choices`): `token_length_normalized`, the mean
            log-probability of a choice's tokens (default); `greedy_token_selection`, what greedy decoding
            would follow; `unconditional_likelihood_normalized`, how much likelier the prompt makes it.
        backend: ranks instead of the run's own, by name or as an object.

    Raises:
        TraceError: no choices, something that is not a text among them, an unknown method.
    """
    loc = here()
    if temperature:
        raise TraceError(
            "SGLC103", "`select` ranks its choices, so it takes no `temperature` but 0", loc,
            hint="sample with `gen(...)`",
        )  # fmt: skip
    return _select(name, choices, choices_method, backend, loc)


def _select(
    name: str | None,
    choices: Sequence[str] | None,
    method: ChoicesMethod | ChoicesSamplingMethod | str | None,
    backend: Any,
    loc: Loc,
) -> SelectExpr:
    if isinstance(choices, str) or not isinstance(choices, Sequence):
        raise TraceError(
            "SGLC104", f"`choices` is a list of texts, not `{type(choices).__name__}`", loc,
            hint='`select("answer", choices=["yes", "no"])`',
        )  # fmt: skip
    if not choices:
        raise TraceError("SGLC104", "`choices` is empty", loc, hint="give at least one choice")
    for choice in choices:
        if not isinstance(choice, str | SymbolicText) or (isinstance(choice, str) and not choice):
            raise TraceError("SGLC104", f"a choice is a text that is not empty, not `{choice!r}`", loc)
        refuse_half_pairs("choices", choice, loc, "SGLC104")
    if isinstance(method, ChoicesSamplingMethod):
        alone = method.requires_unconditional_logprobs
        scores = unconditional_likelihood_normalized if alone else token_length_normalized
        return SelectExpr(_name(name, "select", loc), tuple(choices), scores.name, loc, method, backend)
    wanted = method.name if isinstance(method, ChoicesMethod) else method
    if wanted is not None and wanted not in SELECT_METHODS:
        raise TraceError(
            "SGLC105", f"`choices_method` `{wanted}` is unknown", loc,
            note=f"known: {', '.join(SELECT_METHODS)}",
        )  # fmt: skip
    wanted = wanted or SELECT_METHODS[0]
    return SelectExpr(_name(name, "select", loc), tuple(choices), wanted, loc, backend=backend)


def role(name: str, content: object = None) -> ConcatExpr:
    """A whole chat turn of `name`: its border, `content`, its border."""
    loc = here()
    inner = () if content is None else _flat(checked(content))
    return ConcatExpr((RoleOpenExpr(name, loc), *inner, RoleCloseExpr(name, loc)))


def system(content: object = None) -> ConcatExpr:
    """A system turn with `content`."""
    return role("system", content)


def user(content: object = None) -> ConcatExpr:
    """A user turn with `content`."""
    return role("user", content)


def assistant(content: object = None) -> ConcatExpr:
    """An assistant turn with `content`."""
    return role("assistant", content)


def system_begin() -> RoleOpenExpr:
    return RoleOpenExpr("system", here())


def system_end() -> RoleCloseExpr:
    return RoleCloseExpr("system", here())


def user_begin() -> RoleOpenExpr:
    return RoleOpenExpr("user", here())


def user_end() -> RoleCloseExpr:
    return RoleCloseExpr("user", here())


def assistant_begin() -> RoleOpenExpr:
    return RoleOpenExpr("assistant", here())


def assistant_end() -> RoleCloseExpr:
    return RoleCloseExpr("assistant", here())


def separate_reasoning(expr: object, model_type: str | None = None) -> Expr:
    """`expr`, whose named generations keep their reasoning out of the prompt.

    For `gen("x")` in it, `x` is the answer alone and `x_reasoning_content` the reasoning. Text and
    everything else in `expr` stays as it is.

    Args:
        model_type: whose tags mark the reasoning, by SGLang's name (`qwen3`, `deepseek-r1`, ...).

    Raises:
        TraceError: SGLC117, an unknown `model_type`, or no named generation that can have reasoning.
    """
    loc = here()
    tags = tags_of(model_type, loc)
    parts = _flat(checked(expr))
    if not any(isinstance(part, GenExpr) for part in parts):
        hint = 'give it `gen("answer")`'
        raise TraceError("SGLC117", "`separate_reasoning` needs a generation", loc, hint=hint)
    return ConcatExpr(tuple([_reasoned(part, tags) if isinstance(part, GenExpr) else part for part in parts]))


def _reasoned(inner: GenExpr, tags: Tags) -> ReasonedExpr:
    if inner.name is None:
        raise TraceError(
            "SGLC117", "`separate_reasoning` needs a generation with a name", inner.loc,
            hint='`gen("answer")` stores `answer` and `answer_reasoning_content`',
        )  # fmt: skip
    if any(key in inner.overrides for key in ("regex", "json_schema", "ebnf", "structural_tag")):
        raise TraceError(
            "SGLC117", "a text of a given form has no reasoning before it", inner.loc,
            hint="let one generation reason, and a second one give the form",
        )  # fmt: skip
    return ReasonedExpr(inner, tags)


def image(source: Any) -> Expr:
    """A picture at this place: a path, the bytes of a file, a PIL image, a URL or a data URI.

    A file is read each time that the program runs.

    Raises:
        TraceError: SGLC118, a file that cannot be read, or no picture.
        GraphBreak: what a plan would send could be another picture by then.
    """
    loc, tracing = here(), TRACING.get()
    return ImageExpr(data_of(source, loc) if tracing is None else _traced(source, tracing, loc), loc)


def _traced(source: Any, tracing: Tracing, loc: Loc) -> str | SymbolicText:
    """The data of a picture: of a file, and of a text that only a run knows, when the program runs."""
    if isinstance(source, PurePath):
        source = str(source)
    if isinstance(source, SymbolicText):
        known = source.settled()
        source = source if known is None else known
    if isinstance(source, SymbolicText) or (isinstance(source, str) and not is_address(source)):
        return tracing.picture(source, loc)
    if can_change(source):
        reason = f"a `{type(source).__name__}` is a picture that can change until the program runs"
        raise GraphBreak(reason, loc, OTHER, "give `image` the path of a file, or `bytes`")
    return data_of(source, loc)


def video(path: Any, num_frames: int | None = None) -> Expr:
    """Not in this release.

    Raises:
        TraceError: SGLC119, always.
    """
    raise TraceError(
        "SGLC119", "`video` is not in this release", here(), hint="give the frames one by one with `image(...)`"
    )


def section(content: object, name: str | None = None, movable: bool = False) -> Expr:
    """`content` as a part of its own. A movable one may stand elsewhere, if a pass that moves is asked for.

    Args:
        name: what reports call it.

    Raises:
        TraceError: SGLC103, a name that is no text.
    """
    loc = here()
    named = _name(name, "section", loc) or "section"
    begin, end = SectionOpenExpr(named, bool(movable), loc), SectionCloseExpr(named, loc)
    return ConcatExpr((begin, *_flat(checked(content)), end))


def _name(name: object, what: str, loc: Loc) -> str | None:
    if name is not None and not isinstance(name, str):
        raise TraceError(
            "SGLC103", f"the name of a `{what}` is a text, not `{type(name).__name__}`", loc,
            hint=f'`{what}("answer", ...)`',
        )  # fmt: skip
    return name


def checked(item: object) -> Appendable:
    if isinstance(item, Appendable):
        return item
    if isinstance(item, Symbolic):
        return str(item.observe(NO_TEXT, "appending it"))
    if isinstance(item, NoText):
        item.refuse_as_text()
    if isinstance(item, CoroutineType):
        item.close()  # nobody will await it now
        refuse_not_awaited(item.__name__)
    raise TraceError(
        "SGLC102", f"`{type(item).__name__}` cannot be part of a prompt", here(),
        note="a prompt takes text, `gen`, `select`, roles, and their `+`",
        hint=_text_instead(item),
    )  # fmt: skip


def _text_instead(item: object) -> str:
    if item is None:
        return "it is None: is a `return` missing?"
    if isinstance(item, Awaitable):
        return "await it: `s += await ...`, in an `async def`"
    return "convert it with `str(...)`"


def _shown(expr: Expr) -> str:
    """How a program writes an expression, in short."""
    match expr:
        case GenExpr(name=name):
            return f'gen("{name}")' if name else "gen(...)"
        case SelectExpr(name=name):
            return f'select("{name}", ...)' if name else "select(...)"
        case ReasonedExpr():
            return "separate_reasoning(...)"
        case ImageExpr():
            return "image(...)"
        case RoleOpenExpr(role=role):
            return f"{role}_begin()"
        case RoleCloseExpr(role=role):
            return f"{role}_end()"
        case ConcatExpr(parts=(RoleOpenExpr(role=role), *_)):
            return f"{role}(...)"
        case ConcatExpr(parts=(SectionOpenExpr(), *_)):
            return "section(...)"
        case ConcatExpr(parts=parts):
            return next((_shown(part) for part in parts if isinstance(part, Expr)), "a sum")
        case _:
            return type(expr).__name__


def _first_name(expr: Expr) -> str:
    """The first variable that it will store; "" if it stores none."""
    match expr:
        case GenExpr(name=str(name)) | SelectExpr(name=str(name)) | ReasonedExpr(GenExpr(name=str(name))):
            return name
        case ConcatExpr(parts=parts):
            return next(filter(None, [_first_name(part) for part in parts if isinstance(part, Expr)]), "")
        case _:
            return ""


def _flat(item: Appendable) -> tuple[Appendable, ...]:
    return item.parts if isinstance(item, ConcatExpr) else (item,)
