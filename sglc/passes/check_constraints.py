"""What generations are held to is checked where the program is compiled, not when a model first meets it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sglc.errors import LegalizeError
from sglc.ir.core import Program, walk
from sglc.ir.grammar.gbnf import check_gbnf
from sglc.ir.grammar.json_schema import enforced
from sglc.ir.grammar.regex import compile_regex
from sglc.ir.grammar.schema_grammar import check_schema
from sglc.ir.grammar.stops import stop_pattern
from sglc.ir.ops import Call, Gen
from sglc.ir.remark import Remark, place
from sglc.ir.sampling import Sampling
from sglc.ir.target import Target
from sglc.passes.base import Exactness, Kind, Rewrite, register


@register(
    "check_constraints",
    Exactness.TOKENS,
    "regexes, schemas, grammars and stop patterns are refused here",
    Kind.LOWERING,
)
def check_constraints(program: Program, target: Target) -> Rewrite:
    r"""Leave the program as it is, and refuse what no back end's automata can do.

        s1, t0 = gen(s0, 'x', regex='(a)\\1')  ->  error[SGLC451] with the place of the `gen`

    What is built for the check is kept, so running the program does not build it again.

    Raises:
        LegalizeError: SGLC450 to SGLC453 a `regex`, SGLC450, SGLC451, SGLC455 and SGLC456 a `json_schema`,
            SGLC457 an `ebnf`, SGLC471 and SGLC472 a `stop_regex`.
    """
    said = dict.fromkeys(_checked(program, target))
    return (program, tuple(said)) if said else program


def _checked(program: Program, target: Target) -> Iterator[Remark]:
    for op in walk(program.ops):
        match op:
            case Gen():
                _check(op, target)
                if op.sampling.json_schema is not None:
                    for ignored in enforced(op.sampling.json_schema).ignored:
                        yield Remark("check_constraints", ignored, place(op.loc))
            case Call():
                yield from _checked(op.program, target)


def _check(op: Gen, target: Target) -> None:
    for check, text in _checks(op.sampling, target):
        try:
            check(text)
        except LegalizeError as error:
            raise LegalizeError(
                error.code, error.message, place(op.loc), note=error.note, hint=error.hint
            ) from None


def _checks(sampling: Sampling, target: Target) -> Iterator[tuple[Callable[[str], object], str]]:
    if sampling.regex is not None:
        yield compile_regex, sampling.regex
    if sampling.json_schema is not None:
        yield check_schema if target.takes.json_schema == "full" else enforced, sampling.json_schema
    if sampling.ebnf is not None:
        yield check_gbnf, sampling.ebnf
    for pattern in sampling.stop_regex:
        yield stop_pattern, pattern
