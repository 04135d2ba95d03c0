"""What the engine reports, and its records of requests, their samples and parts.

A request is done in parts, each one row: a sample of a generation, the prompt of a `warm` or `score`,
or choices after it. Parts wait in the order of (request, part).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import reduce
from typing import Any

import numpy as np

from sglc.errors import RunError, SglcError
from sglc.ir.made_often import made_often
from sglc.ir.sampling import Sampling
from sglc.runtime.cache.page_tree import PageNode
from sglc.runtime.cache.sequence_handles import Prefix
from sglc.runtime.choice_trie import ChoiceTrie, ChoiceTries
from sglc.runtime.constraints.protocol import Constraint
from sglc.runtime.ids import Handle, RequestId
from sglc.runtime.scheduler.samples import NONE_LIKELY, JumpForward, Likely, Lookahead
from sglc.runtime.step import I32

# Priority, tag of a share, place of a program, what is left of it, request, part: the lowest goes first.
Order = tuple[int, int, int, int, int, int]
Last = tuple[int, float, Likely]  # an id, its log-probability, and the likeliest ids at its place, if asked for

PROMPT = -1  # in `Score.trie`: the prompt itself is scored
FORCED = -2  # and here ids that a sample has to go on with


@made_often
@dataclass(frozen=True, slots=True)
class Token:
    """The next kept token of a watched sample; ids that end a generation are not among them.

    `likeliest` are the `top_logprobs` likeliest ids at its place.
    """

    request: RequestId
    sample: int
    id: int
    logprob: float
    likeliest: Likely = NONE_LIKELY


@dataclass(frozen=True, slots=True)
class PromptScored:
    """Log-probabilities of the prompt's ids from `logprobs_from` on (from 1 on, if that is 0).

    Comes before the first token of sample 0, if there is such an id. `likeliest` has an entry for each
    of them, or none at all.
    """

    request: RequestId
    logprobs: tuple[float, ...]
    likeliest: tuple[Likely, ...] = ()


@made_often
@dataclass(frozen=True, slots=True)
class SampleDone:
    """A sample is complete. `finish` is `stop` or `length`; `logprobs` are of `ids`.

    `last` is the id that ended it, which is not kept, if one did.
    """

    request: RequestId
    sample: int
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: str
    likeliest: tuple[Likely, ...] = ()  # at the places of `ids`, if asked for
    last: Last | None = None


@made_often
@dataclass(frozen=True, slots=True)
class RequestDone:
    """The last event of a request that succeeded: its token counts.

    `prompt_tokens` = `cached_tokens` + `computed_tokens`. A prompt counts once, whatever the number of
    samples: the step that reads its last id again for a further sample is decode. Only if eviction
    took a prompt away in between, the ids computed again count again, as prompt and as computed.
    """

    request: RequestId
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    scored_tokens: int  # ids of choices passed through extend
    completion_tokens: int  # kept ids, and the id that ended a sample


@made_often
@dataclass(frozen=True, slots=True)
class ScoreDone:
    """Log-probabilities (natural) of the ids of every choice after the prompt."""

    request: RequestId
    logprobs: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """The last event of a request that failed."""

    request: RequestId
    error: SglcError


EngineEvent = Token | PromptScored | SampleDone | RequestDone | ScoreDone | RequestFailed


class PartKind(Enum):
    """What a part does with its row."""

    SAMPLE = "sample"  # pass the prompt through, then decode
    PROMPT = "prompt"  # pass the prompt through; of a `score`, choices behind it too
    CHOICE = "choice"  # behind the prompt, pass choices through that its own row had no room for


@made_often
@dataclass(frozen=True, slots=True)
class QueuePosition:
    """When a request has its turn: programs in the order in which they began, so none waits for a later one.

    But those of a higher `priority` go first, and of equal ones those with a lower `tag` (`FairShare`). Of one
    program, that goes first behind which most is still to come.
    """

    place: int  # of its program
    left: int = 0  # tokens of the program's longest path from here on, at most
    priority: int = 0
    tag: int = 0


@dataclass(slots=True, eq=False)
class SampleState:
    """One sample so far, besides the ids, which its row has. `row` is -1 while it has none.

    `state` is where the kept ids have led the request's constraint; `counts` says how often each
    occurs, where penalties ask for it. Where the executor follows the constraint, `state` is where the first
    `followed` ids have led. `run` are ids on their way, which are not kept yet. Of a slow constraint
    `ahead` is what comes behind `state`; while that is found out, `asked` is who will know.
    """

    likeliest: list[Likely] = field(default_factory=list)
    counts: dict[int, int] = field(default_factory=dict)
    row: int = -1
    done: bool = False
    state: int = 0
    followed: int = 0
    run: JumpForward | None = None
    ahead: Lookahead | None = None
    asked: object = None


@dataclass(slots=True, eq=False)
class EngineRequest:
    """One call of `gen`, `score` or `warm`."""

    id: RequestId
    handle: Handle
    ids: tuple[int, ...]
    array: I32  # the same ids
    root: PageNode  # where its prefixes are looked up
    base: Prefix | None  # what others begin with, too
    pending: int  # parts not done yet
    turn: QueuePosition
    came_s: float  # of `time.perf_counter`
    sampling: Sampling | None = None
    seeds: Sequence[int] = ()
    stop_ids: frozenset[int] = frozenset()
    constraint: Constraint | None = None
    automaton: int = -1  # what the executor's `hold` gave, if it follows the constraint
    steered: bool = False  # steps bring masks for its samples
    adjusts: bool = False  # its logits are changed
    steers: bool = False  # steps may bring something for its samples, or report likeliest ids
    scored_from: int | None = None  # the first position of the prompt whose logits score the next id, if any
    fixed_length: bool = True  # its samples take `max_tokens`, whatever they are
    watch: bool = False  # every token is reported
    patient: bool = True  # its lookaheads come soon enough to be waited for
    choices: ChoiceTries | None = None
    logprobs: list[list[float]] = field(default_factory=list)  # of each trie's pairs
    prompt_logprobs: list[float] = field(default_factory=list)
    prompt_likeliest: list[Likely] = field(default_factory=list)
    samples: list[SampleState] = field(default_factory=list)
    started: bool = False
    live: bool = True
    forked: bool = False  # its later parts wait or run
    pinned: PageNode | None = None  # its prompt, while parts wait
    cached: int = 0
    computed: int = 0
    scored: int = 0
    completion: int = 0

    def scores(self) -> ScoreDone:
        """The event of a `score` that is through."""
        assert self.choices is not None
        each = (tuple(self.logprobs[trie][pair] for trie, pair in where) for where in self.choices.where)
        return ScoreDone(self.id, tuple(each))

    def done(self) -> RequestDone:
        """Its last event."""
        prompt = self.cached + self.computed
        return RequestDone(self.id, prompt, self.cached, self.computed, self.scored, self.completion)


@dataclass(slots=True, eq=False)
class RequestPart:
    """One row's work. `ids` are passed through; at most `limit` of them may come from the tree.

    Those behind the request's own are of `trie`, and nobody else's.

    A sample whose row was preempted goes on as a part whose `ids` end with what it has sampled.
    """

    request: EngineRequest
    index: int  # order within the request; of a sample or a trie, its number
    kind: PartKind
    ids: tuple[int, ...]
    limit: int
    end: int  # tokens whose KV it writes at most
    array: I32
    least: int = 0  # tokens whose KV it writes at least, unless it is cut
    logprobs: tuple[float, ...] | None = None  # of the sampled ids; None: it has not had a row yet
    trie: ChoiceTrie | None = None
    kept: int = field(init=False)  # how many of its ids may enter the tree
    order: Order = field(init=False)  # where it stands in the queue: the lowest goes first

    def __post_init__(self) -> None:
        request, turn = self.request, self.request.turn
        self.kept = len(self.ids) if self.trie is None else len(request.ids)
        self.order = -turn.priority, turn.tag, turn.place, -turn.left, request.id, self.index

    @property
    def late(self) -> bool:
        """Whether its sample waits for what it may go on with."""
        return self.kind is PartKind.SAMPLE and self.request.samples[self.index].asked is not None


@dataclass(frozen=True, slots=True)
class Score:
    """Where the next scores of a step belong."""

    request: EngineRequest
    trie: int  # or `PROMPT`, or `FORCED`
    first: int  # scores the trie's pairs, or the prompt's scored ids, first : first + count
    count: int
    run: JumpForward | None = None


@dataclass(slots=True, eq=False)
class Flight:
    """A launched step, until it is drained."""

    index: int
    ticket: Any
    tokens: int  # that it computes
    rows: I32
    generation: I32  # of `rows` at the launch
    sampled: I32  # offsets into `rows`
    tops: list[int] = field(default_factory=list)  # of `rows`, those whose likeliest ids it gives
    scored: list[Score] = field(default_factory=list)  # in the order of the scores
    ended: list[EngineRequest] = field(default_factory=list)  # a part of each ends with this step


def scores_of(part: RequestPart, scored: tuple[tuple[int, int], ...]) -> list[Score]:
    """Whose scores the pairs of `scored_places` give, in their order."""
    request = part.request
    if (run := run_of(part)) is not None:
        prompt = sum(at + 1 < run.first for at, _ in scored)
        forced = Score(request, FORCED, scored[prompt][0] + 1 - run.first, len(scored) - prompt, run)
        if not prompt:
            return [forced]
        assert request.scored_from is not None
        return [Score(request, PROMPT, scored[0][0] - request.scored_from, prompt), forced]
    if part.trie is not None:
        place, token = scored[0]
        first = bisect_left(part.trie.pairs, (place - len(request.ids), token))
        return [Score(request, max(part.index, 0), first, len(scored))]
    assert request.scored_from is not None
    return [Score(request, PROMPT, scored[0][0] - request.scored_from, len(scored))]


def run_of(part: RequestPart) -> JumpForward | None:
    """The run that a part's sample is on, if it is."""
    return part.request.samples[part.index].run if part.kind is PartKind.SAMPLE else None


def state_behind(request: EngineRequest, ids: Sequence[int]) -> int:
    """Where the ids of a sample lead what it is held to."""
    constraint = request.constraint
    assert constraint is not None
    return reduce(constraint.advance, ids, constraint.start)


def first_part(request: EngineRequest) -> RequestPart:
    """The part that passes a request's prompt through."""
    ids, array = request.ids, request.array
    if request.sampling is not None:
        # What is scored has to be computed, whatever the tree holds of it.
        limit = min(len(ids) - 1, len(ids) if request.scored_from is None else request.scored_from)
        end = len(ids) + request.sampling.max_tokens - 1
        # Who watches may cut.
        sure = 0 if request.watch or request.constraint is not None else request.sampling.min_tokens - 1
        least = end if request.fixed_length else len(ids) + max(sure, 0)
        return RequestPart(request, 0, PartKind.SAMPLE, ids, limit, end, array, least)
    if request.choices is None:
        return RequestPart(request, -1, PartKind.PROMPT, ids, len(ids), len(ids), array, len(ids))
    # A prompt whose logits are wanted is never taken from the tree as a whole.
    return _scoring(request, -1, PartKind.PROMPT, request.choices.tries[0], len(ids) - 1)


def later_parts(request: EngineRequest, first: RequestPart) -> list[RequestPart]:
    """The parts that start from the prompt which `first` passes through."""
    if request.sampling is not None:
        return [
            RequestPart(
                request, i, PartKind.SAMPLE, first.ids, len(first.ids) - 1, first.end, first.array, first.least
            )
            for i in range(1, len(request.seeds))
        ]
    assert request.choices is not None
    rest = enumerate(request.choices.tries[1:], 1)
    return [_scoring(request, i, PartKind.CHOICE, trie, len(request.ids)) for i, trie in rest]


def _scoring(request: EngineRequest, index: int, kind: PartKind, trie: ChoiceTrie, limit: int) -> RequestPart:
    ids = request.ids + trie.ids
    array = np.concatenate((request.array, np.array(trie.ids, np.int32)))
    return RequestPart(request, index, kind, ids, limit, len(ids), array, len(ids), trie=trie)


def resumed(part: RequestPart, sampled: tuple[int, ...], logprobs: tuple[float, ...]) -> RequestPart:
    """The part that goes on with a sample behind its ids `sampled`."""
    ids = part.request.ids + sampled
    array = np.array(ids, np.int32)
    # That a guess was too short has been seen: now there has to be room for all of it.
    return replace(part, ids=ids, limit=len(ids) - 1, array=array, least=part.end, logprobs=logprobs)


def scored_places(part: RequestPart, first: int, tokens: int) -> tuple[tuple[int, int], ...]:
    """(place, id) pairs to score while ids first : first + tokens of a part are passed through.

    The logits of a place score the id that follows it: those of the prompt's last one the first id
    of every choice, those of a choice's ids its next ones. Of a generation's prompt, what is asked for.
    """
    base, begin = len(part.request.ids), part.request.scored_from
    if (run := run_of(part)) is not None:
        span = range(max(first + 1, run.first), min(first + tokens, run.first + len(run.ids) - 1) + 1)
        return tuple((at - 1, run.ids[at - run.first]) for at in span)
    if part.trie is not None:
        pairs = part.trie.pairs
        inside = slice(bisect_left(pairs, (first - base,)), bisect_left(pairs, (first + tokens - base,)))
        return tuple((base + place, token) for place, token in pairs[inside])
    if part.kind is PartKind.SAMPLE and part.index == 0 and begin is not None and part.logprobs is None:
        last = base - 1
        return tuple((at, part.ids[at + 1]) for at in range(max(first, begin), min(first + tokens, last)))
    return ()


def check_generation(ids: Sequence[int], sampling: Sampling, seeds: Sequence[int], vocab: int) -> None:
    """Refuse a generation after `ids` that has nothing to do, or that names ids which a model of `vocab` lacks.

    Raises:
        RunError: SGLC442, nothing to do; SGLC470, a bias for an unknown id.
    """
    if not ids or sampling.max_tokens < 1 or not seeds:
        raise RunError(
            "SGLC442",
            f"a generation of {len(seeds)} samples of {sampling.max_tokens} tokens after {len(ids)}",
            hint="`n`, `max_tokens` and the prompt's length have to be at least 1",
        )
    if sampling.logit_bias and (unknown := [token for token, _ in sampling.logit_bias if token >= vocab]):
        raise RunError(
            "SGLC470",
            f"`logit_bias` names the id {unknown[0]}, the model has ids up to {vocab - 1}",
            hint="ids are those of the model's own tokenizer",
        )


def check_size(tokens: int, written: int, max_len: int, pages: int, page_size: int) -> None:
    """Refuse a request of `tokens`, the KV of `written` of them written, that could never run.

    Raises:
        RunError: SGLC440, longer than the model allows; SGLC441, larger than the pool.
    """
    if tokens > max_len:
        raise RunError(
            "SGLC440",
            f"a request of {tokens} tokens is longer than the model's {max_len}",
            note=f"prompt and `max_tokens` together may take {max_len} tokens",
            hint="shorten the prompt or lower `max_tokens`",
        )
    needed = -(-written // page_size)
    if needed > pages:
        raise RunError(
            "SGLC441",
            f"a request of {tokens} tokens needs {needed} KV pages, the pool has {pages}",
            note=f"a page holds {page_size} tokens",
            hint="give the runtime more KV memory, shorten the prompt or lower `max_tokens`",
        )
