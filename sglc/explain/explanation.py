"""What `explain` gives: the compiled program, its estimate, and what else there is to say before a run."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from sglc.errors import Loc, SglcError, UsageError
from sglc.execution.batch.prefixes import Beginnings, remark
from sglc.execution.bind import check_batch, fitted_row, in_row
from sglc.explain.estimate.estimate import estimated
from sglc.explain.estimate.forecast import Forecast
from sglc.explain.estimate.price import Price, price_of
from sglc.explain.render.draw import to_dot, to_mermaid
from sglc.explain.render.page import page
from sglc.explain.render.text import explanation_text
from sglc.explain.render.to_json import explanation_data
from sglc.frontend.analysis.lint import Finding, findings
from sglc.frontend.language.function import Definition, describe
from sglc.frontend.tracing.arguments import promised
from sglc.frontend.values.graph_breaks import BreakPlace
from sglc.ir.core import Program, walk
from sglc.ir.ops import HostCall
from sglc.ir.plan.asked import known_questions
from sglc.ir.plan.plan import HostStep, Plan
from sglc.ir.remark import Remark
from sglc.ir.target import Target, Tokenizer
from sglc.passes.compile import Compiled, compile_program

if TYPE_CHECKING:
    from sglc.ir.plan.backend import Backend

_SHOWN = 8  # leaves in a text


class _Compilation(Protocol):
    """What `Function.compile` gives."""

    @property
    def compiled(self) -> Compiled: ...
    @property
    def backend(self) -> Backend: ...
    @property
    def breaks(self) -> tuple[BreakPlace, ...]: ...


class Explained(Protocol):
    """A function that can be compiled."""

    definition: Definition

    @property
    def bound(self) -> Mapping[str, Any]:
        """Its fixed arguments."""

    def compile(self, target: Any = None, **kwargs: Any) -> _Compilation:
        """As `Function.compile`."""

    def bind(self, **kwargs: Any) -> Explained:
        """As `Function.bind`."""


@dataclass(frozen=True, slots=True)
class LeafSeen:
    """A path that runs of a function took: for which arguments, how often, and why it is no plan, if so."""

    guards: tuple[str, ...]
    hits: int
    why: str = ""

    def __str__(self) -> str:
        what = f"Python, because {self.why}" if self.why else "a plan"
        return f"{self.hits} runs of {what}" + (f", where {', '.join(self.guards)}" if self.guards else "")


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a program will do on one back end.

    `price` is None where it is not known, or nobody asks one. `breaks` are where ordinary Python takes over.
    `leaves` are what its runs came to so far, and `last_miss` the fact that was new at the last one that had
    no plan.
    """

    compiled: Compiled
    forecast: Forecast
    price: Price | None
    breaks: tuple[BreakPlace, ...]
    findings: tuple[Finding, ...]
    leaves: tuple[LeafSeen, ...] = ()
    last_miss: str = ""

    def text(self) -> str:
        """For people, without a newline at the end."""
        text = explanation_text(self.compiled, self.forecast, self.price, self.breaks, self.findings)
        missed = [f"  last without a plan: another {self.last_miss}"] if self.last_miss else []
        ranked = sorted(self.leaves, key=lambda leaf: -leaf.hits)
        leaves = [f"  so far {leaf}" for leaf in ranked[:_SHOWN]]
        if rest := ranked[_SHOWN:]:
            leaves.append(f"  and {sum(leaf.hits for leaf in rest)} runs of {len(rest)} others")
        return "\n".join([text, *leaves, *missed])

    def to_json(self) -> dict[str, Any]:
        """Plain data: spans are lists of the lowest, the highest (null: no bound) and the expected count."""
        data = explanation_data(self.compiled, self.forecast, self.price, self.breaks, self.findings)
        return {**data, "leaves": [asdict(leaf) for leaf in self.leaves], "last_miss": self.last_miss}

    def to_html(self) -> str:
        """One page that needs nothing else."""
        return page([self.to_json()])

    def to_mermaid(self) -> str:
        """The graph of steps for Mermaid."""
        return to_mermaid(self.forecast)

    def to_dot(self) -> str:
        """The graph of steps for Graphviz."""
        return to_dot(self.forecast)

    def __str__(self) -> str:
        return self.text()


def explained(
    function: Explained,
    target: Backend | str | None,
    rows: Sequence[Mapping[str, Any] | Sequence[Any]] | None,
    own: Mapping[str, Any],
    sampling: Mapping[str, Any],
) -> Explanation:
    """The explanation of a function, for one run or for the rows of a batch.

    Args:
        own: arguments, of every row.
        sampling: defaults of generations.

    Raises:
        UsageError: SGLC060, the function has no such argument; SGLC011, a row lacks one; SGLC064, a batch
            without rows.
        SglcError: as of `Function.compile`.
    """
    _check(function.definition, own)
    if rows is not None:
        check_batch(rows)
        if not rows:
            raise UsageError("SGLC064", "there are no rows to explain a batch of", function.definition.loc)
    made: list[tuple[_Compilation, Mapping[str, str]]] = []
    first_row: Mapping[str, Any] = {}
    for number, row in enumerate([own] if rows is None else rows):
        try:
            if isinstance(row, Mapping):
                _check(function.definition, row)
            if rows is not None:  # of one run some may be left open
                fitted_row(function.definition, function.bound, row, own)
            named = row if isinstance(row, Mapping) else zip(function.definition.names, row, strict=False)
            arguments = {**own, **dict(named)}
            first_row = first_row if made else arguments
            made.append(_row(function, made[0][0].backend if made else target, arguments, sampling))
        except SglcError as error:
            raise error if rows is None else in_row(number, error) from None
    first, goal = made[0][0].compiled, made[0][0].backend.target
    forecast = estimated([(one.compiled.plan, texts) for one, texts in made], goal)
    found = findings(function.definition, first.source)
    if rows is not None and first.plan.leads:
        known = [
            (one.compiled.plan.leads if texts.keys() >= set(one.compiled.plan.names) else (), texts)
            for one, texts in made
        ]
        begun = Beginnings(known, function.definition.loc)
        said = remark(begun, goal.tokenizer)
        first = replace(first, remarks=(*first.remarks, said))
        if goal.tokenizer is not None:
            prompts = [prompt for row in begun.rows for prompt in row]
            found = tuple([_weighed(each, prompts, goal.tokenizer) for each in found])
    if rows is not None:
        first = replace(first, remarks=(*first.remarks, *_unified(made, function.definition.loc)))
    return Explanation(
        first, forecast, price_of(goal.name, forecast.counts),
        _breaks(function, made[0][0], first_row, sampling), found,
    )  # fmt: skip


def _unified(made: Sequence[tuple[_Compilation, Mapping[str, str]]], loc: Loc | None) -> Iterator[Remark]:
    """How many generations of a batch another one answers, as far as that shows in the arguments."""
    asked = [
        question
        for one, texts in made
        if texts.keys() >= set(one.compiled.plan.names)
        for question in known_questions(one.compiled.plan, texts)
    ]
    if less := len(asked) - len(set(asked)):
        yield Remark("unify", f"unified {less:,} of {len(asked):,} generations out of {len(made):,} rows", loc)


def _weighed(finding: Finding, prompts: Sequence[str], tokenizer: Tokenizer) -> Finding:
    """With what the rows of a batch would save."""
    if not finding.shareable:
        return finding
    before = {prompt.partition(finding.shareable)[0] for prompt in prompts}  # prompts end with an argument
    more = (len(before) - 1) * len(tokenizer.encode(finding.shareable))
    if not more:
        return finding
    return replace(finding, note=f"{finding.note}; these rows compute {more:,} tokens more for it")


def explained_program(program: Program, target: Target) -> Explanation:
    """The explanation of a program in IR form.

    Raises:
        SglcError: the target cannot do it.
    """
    return explained_compiled(compile_program(program, target), target)


def explained_compiled(compiled: Compiled, target: Target) -> Explanation:
    """The explanation of a program that has been compiled for `target`, without its source."""
    forecast = estimated([(compiled.plan, {})], target)
    price = price_of(target.name, forecast.counts)
    stops = [op for op in walk(compiled.source.ops) if isinstance(op, HostCall) and not op.error]
    breaks = dict.fromkeys(BreakPlace(op.loc, op.reason) for op in stops)
    return Explanation(compiled, forecast, price, tuple(breaks), tuple(findings(None, compiled.source)))


def _row(
    function: Explained, target: Any, arguments: Mapping[str, Any], sampling: Mapping[str, Any]
) -> tuple[_Compilation, Mapping[str, str]]:
    """The plan for one row, and what of the row's arguments is left open in it."""
    # Numbers that nobody gives are what they are by default: prompts with them can be counted.
    usual = {
        p.name: p.default
        for p in function.definition.parameters
        if p.default is not p.empty and not isinstance(p.default, str) and p.name not in arguments
    }
    kinds = promised(function.definition)
    texts = {
        name: value
        for name, value in arguments.items()
        if isinstance(value, str) and kinds.get(name, "str") == "str"
    }
    if len(texts) == len(arguments):
        made = (function.bind(**usual) if usual else function).compile(target, **sampling)
        plan = made.compiled.plan
        if not arguments or (texts.keys() <= set(plan.names) and not _stops(plan)):
            return made, texts
    # What the body does with them is known only if it is recorded with them.
    names = [parameter.name for parameter in function.definition.parameters]
    own = {name: value for name, value in arguments.items() if name in names}
    more = {name: value for name, value in arguments.items() if name not in names}
    return function.bind(**usual, **own).compile(target, args=more, **sampling), {}


def _breaks(
    function: Explained, made: _Compilation, arguments: Mapping[str, Any], sampling: Mapping[str, Any]
) -> tuple[BreakPlace, ...]:
    """Where runs are left to ordinary Python: they hold no argument, and no default, constant."""
    constant = any(p.default is not p.empty or p.name in arguments for p in function.definition.parameters)
    if function.definition.fullgraph or not constant:
        return made.breaks
    return function.compile(made.backend, args=arguments or None, **sampling).breaks


def _stops(plan: Plan) -> bool:
    return any(
        isinstance(step, HostStep) and not step.error
        for block in (plan.body, *plan.blocks)
        for step in block.steps
    )


def _check(definition: Definition, arguments: Iterable[str]) -> None:
    """Refuse arguments that the function does not have.

    Raises:
        UsageError: SGLC060.
    """
    names = [parameter.name for parameter in definition.parameters]
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in definition.parameters):
        return
    for name in arguments:
        if name not in names:
            raise UsageError(
                "SGLC060", f"`{definition.name}` has no argument `{name}` to explain it with", definition.loc,
                note=f"its arguments are: {describe(definition) or 'none'}",
            )  # fmt: skip
