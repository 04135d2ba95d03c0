"""What generations are held to is compiled with the program, not when a model first meets it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace

from sglc.errors import LegalizeError
from sglc.ir.core import Op, Program, all_ops, with_fields
from sglc.ir.grammar.call_format import HERMES, calls_form
from sglc.ir.grammar.fsm_summary import summary_of, summary_of_choices
from sglc.ir.grammar.regex import compile_regex
from sglc.ir.ops import ASKED, Gen, Select
from sglc.ir.remark import Remark, place
from sglc.ir.rewrite import rewritten
from sglc.ir.sampling import Sampling
from sglc.ir.target import Target
from sglc.ir.text.literal_place import place_in_literal
from sglc.passes.base import Exactness, Kind, Rewrite, register


@register(
    "compile_constraints",
    Exactness.TOKENS,
    "forms are compiled: impossible ones are refused, automata say their size",
    Kind.LOWERING,
    to_run=lambda program, target: _compiled(program, target, sized=False),
)
def compile_constraints(program: Program, target: Target) -> Rewrite:
    r"""Mark what an automaton holds with the automaton's size, and refuse what no back end can hold.

        s1, t0 = gen(s0, 'x', regex='born (1[0-9]{3}|unknown)')
            ->  s1, t0 = gen(s0, 'x', regex='...', fsm='6 states, 2 runs, 5 of 9 bytes forced')
        s1, t0 = gen(s0, 'x', regex='(a)\\1')  ->  error[SGLC451] with the place inside the pattern

    Where the target has no tools of its own, a text that may call some is held to a structural tag. Only
    the pattern is looked at, its bytes: no vocabulary, no model. What is built is kept, so running the
    program does not build it again. A target that is asked in another way than by automata has no marks.

    Raises:
        LegalizeError: SGLC450 to SGLC453 a `regex`, SGLC450, SGLC451, SGLC455 and SGLC456 a `json_schema`,
            SGLC457 an `ebnf`, SGLC464 and SGLC465 a `structural_tag`, SGLC471 and SGLC472 a `stop_regex`.
    """
    return _compiled(program, target, sized=target.takes.regex)


def _compiled(program: Program, target: Target, *, sized: bool) -> Rewrite:
    """The program, in which all forms can be held; their automata are told of if it is `sized`."""

    def told(op: Op) -> bool:
        return isinstance(op, Select) and bool(sized or op.fsm)

    asked = [op for op in all_ops(program) if isinstance(op, ASKED)]
    if not any(told(op) or (isinstance(op, Gen) and _has_form(op)) for op in asked):
        return program
    remarks: list[Remark] = []
    in_tags = target.takes.structural_tag and not target.takes.tools

    def changed(op: Op) -> Op:
        # Where the target has no tools of its own, calls are pieces of a text, which it is held to.
        if isinstance(op, Gen) and op.sampling.tools is not None and in_tags:
            tag = _calls(op.sampling.tools)
            op = replace(op, sampling=replace(op.sampling, tools=None, structural_tag=tag))
        if isinstance(op, Gen) and _has_form(op):
            _check(op, target)
            for ignored in _ignored(op.sampling):
                remarks.append(Remark("compile_constraints", ignored, place(op.loc)))
        elif not told(op):
            return op
        assert isinstance(op, Gen | Select)
        fsm = _fsm(op) if sized else ""
        if sized and (said := _held_to(op, fsm)):
            remarks.append(Remark("compile_constraints", f"`{op.site.name}` {said}", place(op.loc)))
        return with_fields(op, fsm=fsm)

    return with_fields(program, ops=rewritten(program.ops, changed)), tuple(dict.fromkeys(remarks))


def _has_form(op: Gen) -> bool:
    return op.sampling.constrained or bool(op.sampling.stop_regex) or op.sampling.tools is not None


def _calls(text: str) -> str:
    """The structural tag of a text that may call the tools of `text`."""
    given = json.loads(text)
    choice = given["choice"]
    tools = [tool for tool in given["tools"] if choice in ("auto", "required", tool["name"])]
    named = choice not in ("auto", "required")
    return calls_form(HERMES, tools, required=choice != "auto", parallel=not named)


# What reads a kind of form is imported where a program has one: most have none, and compiling begins at once.


def _ignored(sampling: Sampling) -> Iterator[str]:
    """What is not held of its schemas."""
    if sampling.structural_tag is not None:
        from sglc.ir.grammar.structural_tag import schemas_of

        schemas = schemas_of(sampling.structural_tag)
    elif sampling.json_schema is not None:
        schemas = (sampling.json_schema,)
    else:
        return
    from sglc.ir.grammar.json_schema import enforced

    for schema in schemas:
        yield from enforced(schema).ignored


def _fsm(op: Gen | Select) -> str:
    """The size of the op's automaton; "" if it has none."""
    if isinstance(op, Select):
        return str(summary_of_choices(op.choices) or "")
    return str(summary_of(op.sampling.regex)) if op.sampling.regex is not None else ""


def _held_to(op: Gen | Select, fsm: str) -> str:
    """What the op is held to, for a remark; by an automaton of size `fsm`, if there is one."""
    if isinstance(op, Select):
        return f"is one of {len(op.choices)} texts: {fsm}" if fsm else ""
    match op.sampling:
        case Sampling(regex=str()):
            return f"is held to an automaton: {fsm}"
        case Sampling(json_schema=str(schema)):
            return (
                f"is held to a JSON schema of {len(schema):,} characters, read by a parser as it is generated"
            )
        case Sampling(ebnf=str(grammar)):
            return f"is held to a grammar of {len(grammar):,} characters, read by a parser as it is generated"
        case Sampling(structural_tag=str(tag)):
            return (
                f"is free text with pieces of a form, in a structural tag of {len(tag):,} characters, "
                "read by a parser as it is generated"
            )
        case _:
            return ""


def _check(op: Gen, target: Target) -> None:
    for check, text in _checks(op.sampling, target):
        try:
            check(text)
        except LegalizeError as error:
            # A place in a pattern that stands in a schema is none in the schema's text.
            at = None if text in (op.sampling.json_schema, op.sampling.structural_tag) else error.at
            found = None if at is None else place_in_literal(text, at, op.loc)
            raise LegalizeError(
                error.code, error.message, found or place(op.loc), note=error.note, hint=error.hint
            ) from None


def _checks(sampling: Sampling, target: Target) -> Iterator[tuple[Callable[[str], object], str]]:
    if sampling.regex is not None:
        yield compile_regex, sampling.regex
    if sampling.json_schema is not None:
        from sglc.ir.grammar.json_schema import enforced
        from sglc.ir.grammar.schema_grammar import check_schema

        yield check_schema if target.takes.json_schema == "full" else enforced, sampling.json_schema
    if sampling.ebnf is not None:
        from sglc.ir.grammar.gbnf import check_gbnf

        yield check_gbnf, sampling.ebnf
    if sampling.structural_tag is not None:
        from sglc.ir.grammar.structural_tag import check_structural_tag

        yield check_structural_tag, sampling.structural_tag
    if sampling.stop_regex:
        from sglc.ir.grammar.stops import stop_pattern

        for pattern in sampling.stop_regex:
            yield stop_pattern, pattern
