"""From plans and arguments to a forecast."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sglc.explain.estimate.abstract_values import CallChain
from sglc.explain.estimate.forecast import Forecast, PrefixNode, StepForecast, Tally, one_of, some_of
from sglc.explain.estimate.intervals import ZERO, sure
from sglc.explain.estimate.prefix_tree import Branch
from sglc.explain.estimate.state import Chances, EstimateState, PossibleCall, PossibleToolCall, base_site
from sglc.explain.estimate.token_counts import Symbol, TokenCounter, Unknown, weight
from sglc.explain.estimate.walk_plan import endless, go_through
from sglc.ir.depth import with_room
from sglc.ir.plan.plan import Plan
from sglc.ir.plan.segment import GenNode
from sglc.ir.target import Target

_MOST_NODES = 2_000  # of a prefix tree that is shown


@with_room
def estimated(plans: Sequence[tuple[Plan, Mapping[str, str]]], target: Target) -> Forecast:
    """What runs of `plans`, each with its arguments, will do one after another: the rows of a batch.

    Args:
        plans: at least one; an argument that is not there may be any text.
    """
    seen = EstimateState(target, TokenCounter(target))
    for row, (plan, arguments) in enumerate(plans):
        go_through(plan, arguments, row, seen)
    first = plans[0][0]
    chains = (asked.behind.chain for asked in seen.asked if asked.behind.chain)
    longest = max(chains, key=lambda chain: chain.length, default=None)
    chain = _chain(longest)
    return Forecast(
        program=first.program,
        target=target.name,
        rows=len(plans),
        exact=seen.counter.exact,
        steps=tuple(_steps(seen, chain)),
        counts=seen.tally.possible.or_more() if seen.goes_on else seen.tally.possible,
        depth=max(plan.estimate.critical_path for plan, _ in plans if plan.estimate is not None),
        chain=chain,
        chain_tokens=longest.new if longest else ZERO,
        tree=tuple(_tree(seen, several=len(plans) > 1)),
        ends=tuple(seen.ends),
        marks=seen.counter.marks,
        counted=seen.counter.counted,
        goes_on=seen.goes_on,
    )


def _chain(chain: CallChain | None) -> tuple[str, ...]:
    sites: list[str] = []
    while chain is not None:
        sites.append(chain.site)
        chain = chain.before
    return tuple(reversed(sites))


def _steps(seen: EstimateState, chain: Sequence[str]) -> Iterable[StepForecast]:
    found: dict[str, list[PossibleCall | PossibleToolCall]] = {}
    for asked in seen.asked:
        found.setdefault(base_site(asked.site), []).append(asked)
    for called in seen.called:
        found.setdefault(base_site(called.site), []).append(called)
    for site, calls in found.items():
        yield _step(site, calls, site in chain, seen)


def _step(
    site: str, calls: Sequence[PossibleCall | PossibleToolCall], critical: bool, seen: EstimateState
) -> StepForecast:
    first = calls[0]
    counts = _counted([
        (call.chances, call.tally if isinstance(call, PossibleCall) else Tally(tools=sure(1))) for call in calls
    ])  # fmt: skip
    if site in seen.endless:
        counts = counts + endless(counts)
    counts = counts.possible
    after = tuple(sorted({base_site(before) for call in calls for before in call.after.sites} - {site}))
    if isinstance(first, PossibleToolCall):
        step = first.step
        asks = "a declared function" if step.effects else "a declared function without effects"
        asks += ", in no order" if step.effects and not step.in_order else ""
        name = step.function.rpartition(".")[2]
        each = Tally(tools=sure(1))
        return StepForecast(
            site, name, "tool", step.loc, counts, each, after, first.after.depth, critical, (), asks, ()
        )
    each = one_of([call.tally for call in calls if isinstance(call, PossibleCall)]).possible
    node = first.node
    kind = "gen" if isinstance(node, GenNode) else "select"
    unknown = [one.shown for one in first.symbols if isinstance(one, Unknown) and one.tokens.high is None]
    return StepForecast(
        site, node.site.name, kind, node.loc, counts, each, after, first.after.depth + 1, critical,
        tuple(dict.fromkeys(unknown)), _asks(first), _parts(first, seen.counter),
    )  # fmt: skip


def _counted(calls: Iterable[tuple[Chances, Tally]]) -> Tally:
    """What all calls come to: of those in arms of one decision, those of one arm."""
    sum_ = Tally()
    decisions: dict[int, dict[tuple[int, float], list[tuple[Chances, Tally]]]] = {}
    for chances, tally in calls:
        if not chances:
            sum_ += tally
            continue
        (number, arm, weight), *inner = chances
        decisions.setdefault(number, {}).setdefault((arm, weight), []).append((tuple(inner), tally))
    for arms in decisions.values():
        sum_ += some_of([(weight, _counted(inside)) for (_, weight), inside in arms.items()])
    return sum_


def _asks(asked: PossibleCall) -> str:
    node = asked.node
    if not isinstance(node, GenNode):
        return "one of " + ", ".join(repr(c) if isinstance(c, str) else "{...}" for c in node.choices)
    sampling = node.sampling
    said = [f"at most {'so many tokens as a run says' if node.limit else f'{sampling.max_tokens} tokens'}"]
    said += [f"{sampling.n} samples"] if sampling.n > 1 else []
    said += [f"until {' or '.join(map(repr, sampling.stop))}"] if sampling.stop else []
    said += [f"like /{sampling.regex}/"] if sampling.regex is not None else []
    said += ["JSON of a schema"] if sampling.json_schema is not None else []
    said += ["text of a grammar"] if sampling.ebnf is not None else []
    said += ["text with a structural tag"] if sampling.structural_tag is not None else []
    said += [f"temperature {sampling.temperature:g}"]
    return ", ".join(said)


def _parts(asked: PossibleCall, counter: TokenCounter) -> tuple[tuple[str, str], ...]:
    """A prompt cut where what is shared ends, and round what is not known."""
    parts: list[tuple[str, str]] = []
    known: list[Symbol] = []
    unknown: list[str] = []
    for index, symbol in enumerate((*asked.symbols, None)):
        if unknown and not isinstance(symbol, Unknown):
            parts.append(("unknown", "".join(unknown)))
            unknown = []
        if known and (index == asked.shared or not isinstance(symbol, int)):
            key = tuple(known)
            text = counter.runs.get(key)
            if text is None:
                text = counter.runs[key] = counter.spelled(known)
            parts.append(("shared" if index <= asked.shared else "computed", text))
            known = []
        if isinstance(symbol, Unknown):
            unknown.append(symbol.shown)
        elif symbol is not None:
            known.append(symbol)
    return tuple(parts)


def _tree(seen: EstimateState, *, several: bool) -> Iterable[PrefixNode]:
    """The tree of prefixes, depth first, without what no prompt goes through."""

    def named(end: str) -> str:
        row, _, site = end.partition(":")
        return f"row {row}: {site}" if several else site

    stack: list[tuple[int, Branch]] = [(-1, branch) for branch in reversed(seen.prefixes.root.below.values())]
    number = 0
    while stack and number < _MOST_NODES:
        above, branch = stack.pop()
        if not branch.passes:
            continue
        tokens = weight(branch.symbols, seen.counter).possible
        yield PrefixNode(
            above, seen.counter.spelled(branch.symbols), tokens, branch.passes, tuple(map(named, branch.ends))
        )
        stack += [(number, child) for child in reversed(branch.below.values())]
        number += 1
