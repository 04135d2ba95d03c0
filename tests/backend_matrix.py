"""What each back end does with each feature of the language, found by compiling a program that uses it.

The table of docs/backends.md is made of this, so it says what the compiler does and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import sglc as sgl
from sglc.backends.openai import OpenAIBackend, OpenAIOptions
from sglc.backends.registry import connect
from sglc.backends.remote.text_tokenizer import TextTokenizer
from sglc.errors import LegalizeError
from sglc.frontend.language.chat_templates import get_chat_template, jinja_of
from sglc.ir.core import Program
from sglc.ir.target import Target
from sglc.passes.compile import compile_program

_WORDS = TextTokenizer(jinja_of(get_chat_template("chatml")), {}, (), "matrix")


def _openai(model: str, *, chat: bool | None = None, own: bool = False) -> Target:
    client = {"base_url": "http://127.0.0.1:9/v1" if own else "https://api.openai.com/v1"}
    return OpenAIBackend(OpenAIOptions(model=model, chat=chat, client=client)).target


TARGETS: Mapping[str, Target] = {
    "`local`, `http://`": Target("local", _WORDS, scores_tokens=True, continues_text=True),
    "`openai:gpt-4o`": _openai("gpt-4o"),
    "`openai:gpt-5`": _openai("gpt-5"),
    "`anthropic:claude-opus-5-5`": connect("anthropic:claude-opus-5-5").target,
    "`anthropic:claude-opus-4-5`": connect("anthropic:claude-opus-4-5").target,
    "`gemini:gemini-2.5-flash`": connect("gemini:gemini-2.5-flash").target,
    "`gemini:gemini-3.6-flash`": connect("gemini:gemini-3.6-flash").target,
    "`mistral:mistral-large-latest`": connect("mistral:mistral-large-latest").target,
    "`openrouter:VENDOR/MODEL`": connect("openrouter:VENDOR/MODEL").target,
    "`litellm:anthropic/claude-opus-5-5`": connect("litellm:anthropic/claude-opus-5-5").target,
    "another server, chat": _openai("m", own=True),
    "another server, completions": _openai("m", chat=False, own=True),
}

_SCHEMA = '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'
_LENGTH = '{"type": "object", "properties": {"a": {"type": "string", "maxLength": 3}}, "required": ["a"]}'


def _gen(**arguments: Any) -> Callable[[Any], None]:
    def body(s: Any) -> None:
        s += "Hi" + sgl.gen("x", **arguments)

    return body


def _select(**arguments: Any) -> Callable[[Any], None]:
    def body(s: Any) -> None:
        s += "Hi" + sgl.select("x", choices=["a", "b"], **arguments)

    return body


def _turns(s: Any) -> None:
    s += sgl.user("Hi") + sgl.assistant(sgl.gen("x")) + sgl.user("So?") + sgl.assistant(sgl.gen("y"))


def _forked(s: Any) -> None:
    s += sgl.user("Hi")
    for fork in (forks := s.fork(2)):
        fork += sgl.assistant(sgl.gen("x"))
    s.join(forks)


def _prefilled(s: Any) -> None:
    s += sgl.user("Hi") + sgl.assistant("I" + sgl.gen("x"))


def _two(s: Any) -> None:
    s += sgl.user("Hi") + sgl.assistant(sgl.gen("x") + " and " + sgl.gen("y"))


def _two_held(s: Any) -> None:
    s += sgl.user("Hi") + sgl.assistant(sgl.gen("x", dtype=int) + " and " + sgl.gen("y", dtype=bool))


def _text(s: Any) -> None:
    s += "Hi" + sgl.gen("x") + " and " + sgl.gen("y")


def _beside(s: Any) -> None:
    s += sgl.user("Hi")
    s += "By the way"
    s += sgl.assistant(sgl.gen("x"))


def _late(s: Any) -> None:
    s += sgl.user("Hi") + sgl.system("Be brief.") + sgl.assistant(sgl.gen("x"))


def _two_answers(s: Any) -> None:
    s += sgl.user("Hi") + sgl.assistant("Well.") + sgl.assistant(sgl.gen("x"))


def _empty(s: Any) -> None:
    s += sgl.system("") + sgl.user("Hi") + sgl.assistant(sgl.gen("x"))


def _picture(s: Any) -> None:
    s += sgl.user(sgl.image(b"\x89PNG\r\n\x1a\n") + "Hi") + sgl.assistant(sgl.gen("x"))


FEATURES: Mapping[str, Callable[[Any], None] | sgl.Function] = {
    "chat turns": _turns,
    "forks and joins": _forked,
    "one text without turns, one `gen`": _gen(),
    "a text that goes on behind a `gen`": _text,
    "text before a `gen` in its turn": _prefilled,
    "two `gen` in one turn": _two,
    "two that are held to forms": _two_held,
    "two `gen` with `num_api_spec_tokens`": sgl.function(num_api_spec_tokens=64)(_two),
    "text between turns": _beside,
    "a system turn behind others": _late,
    "an answer behind an assistant's turn": _two_answers,
    "an empty turn": _empty,
    "`image`": _picture,
    "`select`": _select(),
    "`choices_method=greedy_token_selection`": _select(choices_method=sgl.greedy_token_selection),
    "`stop`, up to 4": _gen(stop=["a", "b"]),
    "`stop` of white space alone": _gen(stop=["\n"]),
    "`stop`, more": _gen(stop=["a", "b", "c", "d", "e"]),
    "`stop_regex`": _gen(stop_regex="a+"),
    "`stop_token_ids`, `ignore_eos`": _gen(ignore_eos=True),
    "`n=3`": _gen(n=3),
    "`temperature`": _gen(temperature=0.5),
    "`top_p`": _gen(top_p=0.5),
    "both at once": _gen(temperature=0.5, top_p=0.5),
    "`top_k`": _gen(top_k=5),
    "`min_p`": _gen(min_p=0.5),
    "penalties": _gen(presence_penalty=0.5),
    "`repetition_penalty`": _gen(repetition_penalty=1.2),
    "`logit_bias`": _gen(logit_bias={5: 1.0}),
    "`seed` of one `gen`": _gen(seed=5),
    "`min_tokens`": _gen(min_tokens=5),
    "`regex` of few texts, `dtype=bool`, Enum, Literal": _gen(dtype=bool),
    "`dtype=int`, `float`": _gen(dtype=int),
    "`dtype=str`": _gen(dtype=str),
    "any other `regex`": _gen(regex="[a-z]+"),
    "`json_schema`, classes as `dtype`": _gen(json_schema=_SCHEMA),
    "`json_schema` with lengths, free names, ...": _gen(json_schema=_LENGTH),
    "`ebnf`": _gen(ebnf='root ::= "a"+'),
    "`structural_tag`": _gen(structural_tag={"type": "structural_tag", "format": {"type": "any_text"}}),
    "`tools`": _gen(tools=[{"name": "f"}]),
    "`return_logprob`": _gen(return_logprob=True),
    "`logprob_start_len`": _gen(logprob_start_len=0),
}


def traced(body: Callable[[Any], None] | sgl.Function) -> Program:
    return (body if isinstance(body, sgl.Function) else sgl.function(body)).trace()


def verdict(program: Program, target: Target) -> str:
    """`yes`, `emulated`, or the code of the refusal."""
    try:
        remarks = compile_program(program, target).remarks
    except LegalizeError as error:
        return f"no ({error.code})"
    # What is said of the model as a whole is not said of the feature.
    said = [remark.message for remark in remarks if remark.source == "legalize"]
    of_site = [message for message in said if message.startswith("`x`: ") or "one JSON object" in message]
    return "emulated" if of_site else "yes"


def table() -> str:
    """The matrix in Markdown."""
    rows = [["", *TARGETS], ["---"] * (len(TARGETS) + 1)]
    for name, body in FEATURES.items():
        program = traced(body)
        rows.append([name, *(verdict(program, target) for target in TARGETS.values())])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
