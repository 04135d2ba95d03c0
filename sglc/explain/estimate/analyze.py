"""What a run did beside what was expected: every step, every call with its times, the longest chain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from sglc.execution.call_record import CallRecord
from sglc.execution.result import Result
from sglc.explain.estimate.forecast import Forecast, StepForecast
from sglc.explain.estimate.intervals import Interval
from sglc.explain.estimate.state import base_site
from sglc.ir.plan.events import Usage
from sglc.ir.target import Tokenizer

_MOST_TEXTS = 300  # calls whose prompt and answer are kept


@dataclass(frozen=True, slots=True)
class ActualCall:
    """One call as it went. Times are seconds since its row began.

    `ready_s`: all that it waits for was there; `prompt` and `answer` are texts, None where they are too many.
    """

    row: int
    site: str
    step: str
    kind: str
    usage: Usage
    ready_s: float
    first_s: float
    ended_s: float
    within: bool  # its prompt is as long as it was expected to be
    cached_text: str | None = None
    rest_text: str | None = None
    answer: str | None = None


@dataclass(frozen=True, slots=True)
class ActualStep:
    """One step's counts over all calls. `within` says whether all of them lie between the bounds.

    `off` is how far the middle of the bounds of its prompts lies from what they were, as a fraction; None
    without a bound. `expected` is False for calls that no step of the estimate stands for; behind a graph
    break, where the estimate ends, they are `within`. Of a run that failed no call is missed.
    """

    site: str
    usage: Usage
    seconds: float
    expected: bool
    within: bool
    off: float | None


@dataclass(frozen=True, slots=True)
class Analysis:
    """A run, or the rows of a batch, held against a forecast."""

    steps: tuple[ActualStep, ...]
    calls: tuple[ActualCall, ...]
    chain: tuple[str, ...]  # sites of the calls that the row which took longest waited for
    seconds: float  # of that row
    usage: Usage
    off: float | None
    seed: int
    errors: tuple[tuple[int, str], ...]

    @property
    def within(self) -> bool:
        """Whether everything that happened lies between the bounds."""
        return all(step.within for step in self.steps)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {**asdict(self), "within": self.within}


def analyzed(forecast: Forecast, results: Sequence[Result], tokenizer: Tokenizer | None = None) -> Analysis:
    """Hold what came of the rows of a run against its forecast.

    Args:
        results: of the rows that the forecast is for, in their order; they are waited for.
        tokenizer: shows prompts as texts.
    """
    steps = {step.site: step for step in forecast.steps if step.kind != "tool"}
    marks, calls = dict(forecast.marks), list[ActualCall]()
    for result in results:
        calls += _row(result, steps, tokenizer if len(calls) < _MOST_TEXTS else None, marks)
    found: dict[str, list[ActualCall]] = {site: [] for site in steps}
    for call in calls:
        found.setdefault(call.step, []).append(call)
    errors = tuple((r.row, str(error)) for r in results if (error := r.error()) is not None)
    each = tuple(
        _actual(site, made, steps.get(site), bool(errors), forecast.goes_on) for site, made in found.items()
    )
    slowest = max(results, key=lambda result: max((call.ended_s for call in result.calls), default=0.0))
    chain, seconds = _chain([call for call in calls if call.row == slowest.row], steps)
    usage = sum((call.usage for call in calls), Usage())
    off = None if errors else _off(forecast.counts.prompt, usage.prompt)
    return Analysis(each, tuple(calls), chain, seconds, usage, off, results[0].seed, errors)


def _row(
    result: Result, steps: dict[str, StepForecast], tokenizer: Tokenizer | None, marks: dict[int, str]
) -> Iterable[ActualCall]:
    ended: dict[str, float] = {}
    for call in result.calls:
        site = base_site(str(call.site))
        step = steps.get(site)
        before = (ended[name] for name in step.after if name in ended) if step else ()
        ready = max([call.started_s, *(time for time in before if time <= call.ended_s)])
        within = step is not None and (call.usage.unified > 0 or call.usage.prompt in step.each.prompt)
        made = ActualCall(
            result.row, str(call.site), site, call.kind, call.usage, ready, max(call.first_s, ready),
            call.ended_s, within,
        )  # fmt: skip
        ended[site] = max(ended.get(site, 0.0), call.ended_s)
        yield made if tokenizer is None else _texts(made, call, tokenizer, marks)


def _texts(made: ActualCall, call: CallRecord, tokenizer: Tokenizer, marks: dict[int, str]) -> ActualCall:
    spelled, cached = tokenizer.token_bytes(), min(call.usage.cached, len(call.prompt_ids))

    def text(ids: Sequence[int]) -> str:
        known = (marks[i].encode() if i in marks else spelled[i] for i in ids if i < len(spelled))
        return b"".join(known).decode("utf-8", "replace")

    chosen = text(call.choice_ids[call.choice]) if call.choice_ids else ""
    return replace(
        made,
        cached_text=text(call.prompt_ids[:cached]),
        rest_text=text(call.prompt_ids[cached:]),
        answer=call.samples[0].text if call.samples else chosen,
    )


def _actual(
    site: str, made: Sequence[ActualCall], step: StepForecast | None, failed: bool, goes_on: bool
) -> ActualStep:
    usage = sum((call.usage for call in made), Usage())
    seconds = sum(call.ended_s - call.ready_s for call in made)
    if step is None:
        return ActualStep(site, usage, seconds, False, goes_on, None)
    counts = step.counts.perhaps(1.0) if failed else step.counts
    totals = ((counts.prompt, usage.prompt), (counts.new, usage.completion))
    within = (
        all(call.within for call in made)
        and len(made) in counts.calls
        and all(
            actual in expected or (usage.unified and actual < expected.low)  # an equal call paid for the rest
            for expected, actual in totals
        )
    )
    return ActualStep(site, usage, seconds, True, within, _off(counts.prompt, usage.prompt) if made else None)


def _off(expected: Interval, actual: int) -> float | None:
    if expected.high is None or not actual:
        return None
    return ((expected.low + expected.high) / 2 - actual) / actual


def _chain(calls: Sequence[ActualCall], steps: dict[str, StepForecast]) -> tuple[tuple[str, ...], float]:
    """From the last call of a row back to its first, each time to what was waited for longest."""
    if not calls:
        return (), 0.0
    here = max(calls, key=lambda call: call.ended_s)
    seconds, chain = here.ended_s, [here.site]
    left = [call for call in calls if call is not here]
    while (step := steps.get(here.step)) is not None:
        before = [
            call for call in left if call.step in (*step.after, here.step) and call.ended_s <= here.ready_s
        ]
        if not before:
            break
        here = max(before, key=lambda call: call.ended_s)
        left.remove(here)
        chain.append(here.site)
    return tuple(reversed(chain)), seconds
