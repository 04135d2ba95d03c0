"""Random work for the engine on the oracle, every invariant checked after every step.

`python -m tests.runtime.soak --steps N --seed S` runs it for longer than the tests do.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import re
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sglc.errors import BackendError, RunError
from sglc.ir.sampling import Sampling
from sglc.runtime.cache.page_pool import Owner
from sglc.runtime.cache.page_tree import SOME_DAY, PageNode, RadixTree, resolve
from sglc.runtime.cache.sequence_handles import Prefix
from sglc.runtime.constraints.constraint import Constraints
from sglc.runtime.constraints.protocol import Constraint
from sglc.runtime.constraints.pushdown_automaton import PushdownAutomaton
from sglc.runtime.constraints.token_automaton import TokenAutomaton
from sglc.runtime.engine.engine import (
    Engine,
    EngineConfig,
    EngineEvent,
    PromptScored,
    QueuePosition,
    RequestDone,
    RequestFailed,
    SampleDone,
    ScoreDone,
    Token,
)
from sglc.runtime.engine.matcher_threads import MatcherThreads, _Call
from sglc.runtime.scheduler.kv_allocator import Lengths
from sglc.runtime.scheduler.requests import PartKind, RequestPart
from sglc.runtime.scheduler.samples import Likely, listed
from sglc.runtime.step import Step, StepResult
from tests.reference.oracle import Oracle, history_hashes

EOS = (3,)
NAMESPACES = ("", "", "", "adapter")
_PREFIXES = 12  # that are kept
VOCAB = 13  # small, so that ends, equal pages and near misses are common
BYTES = tuple(piece.encode() for piece in ("a", "b", "ab", "", "aab", "1", "12", "2", ".", "é", "c", "bc", "!"))
CONSTRAINTS = Constraints(BYTES, VOCAB)
PATTERNS = (
    "[ab]+", "(12|1)*(2|a+)", "a*b?c", "[^ac]{2,5}", "(aab|aabc|ab.){1,2}", ".*", "(é|!)[12]?",
    # With runs of one spelling: at the start, in the middle, at the end, all of it, across stop ids.
    r"é!c\.!!é[12]+", r"[ab]é\.!{4}c!é\.\.(1|2)!é", r"!éééé!\.", r"(!|\.)é{6}(ab|c)*!!!é", r"(é!\.c)*[ab]"
)  # fmt: skip
# What these have of themselves inside of them becomes what it stands for, until a pattern matches what is left.
GRAMMARS = {
    'root ::= item+\nitem ::= "a" item* "b" | "1" | "2" "."': ("a(1|2\\.)*b", "1", "(1|2\\.)+"),
    'root ::= "a" root? "bc" | "!"': ("a!?bc", "!", "!"),
    'root ::= "1" list "c"\nlist ::= "!" | "a" (list ("." list)*)? "b" "2"?': ("a(!(\\.!)*)?b2?", "!", "1!c"),
}


@dataclass(frozen=True, slots=True)
class Setup:
    """One engine."""

    page_size: int
    pages: int
    depth: int
    token_budget: int
    max_rows: int
    max_len: int
    cache: bool
    failures: float  # probability that a launch or a drain fails
    watched: float  # share of the generations whose tokens are reported one by one
    trees: bool  # rows may branch
    keeps: bool  # the executor keeps automata and what is added to logits
    late: float  # how much of what constrained rows wait for is not there at a step; 0: they need not wait
    bold: bool  # samples are always expected to end at once, so that rows have to give way

    @staticmethod
    def draw(rng: random.Random) -> Setup:
        page_size = rng.choice((1, 4, 16))
        return Setup(
            page_size=page_size,
            pages=rng.choice((32, 48, 80, 160)) // page_size + rng.randrange(3),
            depth=rng.randint(1, 4),
            token_budget=rng.choice((2, 5, 16, 64, 256)),
            max_rows=rng.choice((1, 2, 5, 8)),
            max_len=rng.choice((40, 96)),
            cache=rng.random() < 0.85,
            failures=rng.choice((0.0, 0.0, 0.0, 0.01)),
            watched=rng.choice((0.0, 0.5, 1.0)),
            bold=rng.random() < 0.6,
            trees=rng.random() < 0.8,
            late=rng.choice((0.0, 0.0, 0.2, 0.7)),
            keeps=rng.random() < 0.5,
        )


class SlowAutomaton(TokenAutomaton):
    """An automaton that is taken for one whose calls take long."""

    slow = True

    def __init__(self, automaton: TokenAutomaton) -> None:
        vars(self).update(vars(automaton))


def held_to(form: str) -> Constraint:
    """What a pattern or grammar is for the engine."""
    if form not in GRAMMARS:
        return CONSTRAINTS.regex(form)
    constraint = CONSTRAINTS.of(Sampling(ebnf=form, canonical=False))
    assert isinstance(constraint, PushdownAutomaton)
    return constraint


def matches(form: str, text: str) -> bool:
    """Whether a text is one of a pattern or grammar."""
    if form not in GRAMMARS:
        return re.fullmatch(form, text) is not None
    inside, becomes, left = GRAMMARS[form]
    while (shorter := re.sub(inside, becomes, text)) != text:
        text = shorter
    return re.fullmatch(left, text) is not None


class LateThreads(MatcherThreads):
    """Makes each call at some step, `late` ones at a later one; in any order."""

    def __init__(self, rng: random.Random, late: float) -> None:
        super().__init__()
        self.rng = rng
        self.late = late

    def begin(
        self,
        key: Hashable,
        work: Callable[[], Any],
        then: Callable[[Any], None],
        *,
        may_take_s: float,
        awaited: bool,
        urgent: bool = False,
    ) -> None:
        self.pending[_Call(key, work, then, may_take_s, awaited, (urgent, 0), 0.0)] = None

    def drop(self, key: Hashable) -> None:
        self.pending = {call: None for call in self.pending if call.key is not key}

    def wait(self, seconds: float, *, for_all: bool) -> None:
        return

    def deliver(self) -> None:
        for call in self.rng.sample([*self.pending], len(self.pending)):
            if call in self.pending and self.rng.random() >= self.late:
                del self.pending[call]
                try:
                    given = call.work()
                except RunError as error:
                    given = error
                call.then(given)


class ShakyOracle(Oracle):
    """An oracle whose launches and drains fail at random, and whose steps are over sooner or later."""

    def __init__(self, setup: Setup, rng: random.Random) -> None:
        super().__init__(
            pages=setup.pages,
            page_size=setup.page_size,
            depth=setup.depth,
            vocab_size=VOCAB,
            eos_ids=EOS,
            trees=setup.trees,
            token_bytes=BYTES if setup.keeps else (),
        )
        self.rng = rng
        self.busy = random.Random(0)
        self.failures = setup.failures
        self.failed = False

    def launch(self, step: Step) -> int:
        if self.rng.random() < self.failures:
            self.failed = True
            raise RuntimeError("no launch")
        return super().launch(step)

    def ready(self, ticket: int) -> bool:
        assert ticket == self._results[0].index, "asked for another step than the oldest"
        if self.busy.random() < self.failures:
            raise RuntimeError("not known")  # and so it is over
        return self.busy.random() < 0.5

    def drain(self, ticket: int) -> StepResult:
        result = super().drain(ticket)
        if self.rng.random() < self.failures:
            self.failed = True
            raise RuntimeError("no result")
        return result


@dataclass(slots=True)
class Job:
    """What the driver knows of a request."""

    ids: tuple[int, ...]
    space: str
    sampling: Sampling | None = None
    seeds: tuple[int, ...] = ()
    pattern: str | None = None
    watch: bool = False
    choices: list[tuple[int, ...]] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)
    cuts: dict[int, int] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)
    scored: bool = False
    prompt_scored: bool = False


class Driver:
    """Drives one engine with random calls and compares every event with the oracle's truth."""

    def __init__(self, setup: Setup, seed: int, *, busy: bool = False) -> None:
        self.busy = busy  # calls come while steps are not over, too
        self.rng = random.Random(seed)
        self.programs = random.Random(seed + 2)  # which requests are one program's, and when it comes back
        self.common = random.Random(seed + 4)  # what prompts have in common that are told so
        self.setup = setup
        self.oracle = ShakyOracle(setup, random.Random(seed + 1))
        self.engine = Engine(
            self.oracle,
            EngineConfig(
                token_budget=setup.token_budget,
                max_rows=setup.max_rows,
                cache=setup.cache,
                max_len=setup.max_len,
            ),
            LateThreads(random.Random(seed + 3), setup.late),
        )
        self._check_evictions()
        self.prefixes: dict[tuple[str, tuple[int, ...]], Prefix] = {}
        self.handles: dict[int, tuple[int, ...]] = {}
        self.spaces: dict[int, str] = {}  # of the handles
        self.jobs: dict[int, Job] = {}
        # Sequences whose KV may be in the tree of a namespace, or of a scratch root (None).
        self.allowed: dict[str | None, set[tuple[int, ...]]] = {name: set() for name in (None, *NAMESPACES)}
        self.answers: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        self.texts = [self._random_ids(setup.max_len // 2) for _ in range(3)]
        self.occupants: dict[int, tuple[object, int]] = {}
        self.finished = 0
        self.cuts = 0
        self.matched = 0  # constrained samples that ended by themselves
        self.steered = 0  # samples with a bias or penalties
        self.prompts_scored = 0
        self.branched = 0  # requests whose choices share ids
        self.cached = 0  # prompt tokens
        self.preempted = 0  # rows that gave way
        self.forced = 0  # tokens that were not sampled
        self.late = 0  # rows that waited for what they may sample, each step counted
        self.aborted = 0
        self.acted_meanwhile = 0  # calls while a step was not over
        self.aborted_late = 0  # of these, while a sample waited for what it may be

    def _random_ids(self, length: int) -> tuple[int, ...]:
        return tuple(self.rng.randrange(VOCAB) for _ in range(length))

    # -- calls

    def act(self) -> None:
        """One random call."""
        calls = [self.new, self.new, self.grow, self.gen, self.gen, self.gen, self.score, self.warm]
        calls += [self.cut, self.cut, self.cut, self.abort, self.fork, self.release, self.release, self.turn]
        calls += [self.forget, self.expect]
        calls += [self.gen] * (8 * self.setup.bold)
        self.rng.choice(calls)()
        if self.programs.random() < 0.1:
            self.hold()
        if self.setup.bold and self.programs.random() < 0.05:
            self.preempt()

    def _meanwhile(self) -> bool:
        """One random call while a step is not over: what programs ask for, whatever they have been told of."""
        self.acted_meanwhile += 1
        # What gave way, and what has ended, may be gone before this step is over.
        for part in self._resumed():
            self._allow(self.jobs[part.request.id], part.ids)
        for event in self.engine._events:
            if isinstance(event, SampleDone) and event.request in self.jobs:
                job = self.jobs[event.request]
                self._allow(job, job.ids + event.ids)
        calls = [self.new, self.grow, self.gen, self.gen, self.score, self.warm, self.abort, self.fork]
        self.rng.choice([*calls, self.release, self.forget, self.expect, self.hold, self.turn])()
        return self.rng.random() < 0.5

    def new(self) -> None:
        text = self.rng.choice(self.texts)
        ids = text[: self.rng.randint(0, len(text))] + self._random_ids(self.rng.choice((0, 0, 1, 3)))
        space = self.rng.choice(NAMESPACES)
        if self.common.random() < 0.5:
            self._keep(self.engine.extend(None, ids, space), ids, space)
            return
        known, begin = self._prefix(ids, space)
        if begin and self.common.random() < 0.3:
            known, begin = self.engine.prefix(known, ids[begin : begin + 3], space), begin + 3
        self._keep(self.engine.extend(known, ids[begin:]), ids, space)

    def _prefix(self, ids: tuple[int, ...], space: str) -> tuple[Prefix, int]:
        """What many begin with, and so many of `ids` are: one of before, or a new one."""
        alike = [begin for of, begin in self.prefixes if of == space and ids[: len(begin)] == begin]
        if not alike or self.common.random() < 0.2:
            alike = [ids[: self.common.randint(0, len(ids))]]
            if len(self.prefixes) == _PREFIXES:
                del self.prefixes[self.common.choice(list(self.prefixes))]
            self.prefixes[space, alike[0]] = self.engine.prefix(None, alike[0], space)
        begin = self.common.choice(alike)
        return self.prefixes[space, begin], len(begin)

    def grow(self) -> None:
        if self.handles:
            base = self.rng.choice(list(self.handles))
            ids = self._random_ids(self.rng.choice((0, 1, 2, 5)))
            self._keep(self.engine.extend(base, ids), self.handles[base] + ids, self.spaces[base])

    def turn(self) -> None:
        """The prompt, its answer, and a literal: the next turn of a conversation."""
        if self.answers:
            prompt, answer = self.rng.choice(self.answers[-6:])
            space = self.rng.choice(NAMESPACES)
            handle = self.engine.extend(None, prompt, space)
            self._keep(handle, prompt, space)
            literal = self._random_ids(self.rng.randint(0, 4))
            self._keep(self.engine.extend(handle, answer + literal), prompt + answer + literal, space)

    def fork(self) -> None:
        if self.handles:
            base = self.rng.choice(list(self.handles))
            for handle in self.engine.fork(base, self.rng.randint(0, 3)):
                self._keep(handle, self.handles[base], self.spaces[base])

    def release(self) -> None:
        if self.handles:
            handle = self.rng.choice(list(self.handles))
            self.engine.release(handle)
            del self.handles[handle]

    def forget(self) -> None:
        if self.handles:
            handle = self.rng.choice(list(self.handles))
            self.engine.forget(handle)
            del self.handles[handle]

    def expect(self) -> None:
        if self.handles:
            self.engine.expect(self.rng.choice(list(self.handles)), self.rng.randrange(20))

    def hold(self) -> None:
        if self.handles:
            rng = self.programs
            self.engine.hold(rng.choice(list(self.handles)), rng.randrange(20), self._place())

    def preempt(self) -> None:
        """A row gives way, whether or not anybody lacks its pages; rather one with a run on its way."""
        rows = self.engine.rows.decoding().tolist()
        parts = [self.engine.allocator.work[row].part for row in rows]
        runs = [row for row, part in zip(rows, parts, strict=True) if part.request.samples[part.index].run]
        if rows:
            self.engine.queue._preempt(self.programs.choice(runs or rows))
            self._gave_way()

    def _place(self) -> int:
        """Of a program that begins now, or of one that began not long ago."""
        return max(1, self.engine.next_place - self.programs.choice((0, 0, 1, 4, 15)))

    def _turn(self) -> QueuePosition | None:
        return self.programs.choice((None, QueuePosition(self._place(), self.programs.choice((0, 7, 30)))))

    def _keep(self, handle: int, ids: tuple[int, ...], space: str) -> None:
        assert self.engine.ids(handle) == ids, "a handle names other ids than it was made of"
        self.handles[handle] = ids
        self.spaces[handle] = space

    def _allow(self, job: Job, ids: tuple[int, ...]) -> None:
        """The KV of `ids`, which begin as the job's, may stay."""
        self.allowed[job.space].add(ids)
        self.allowed[None].add(ids)

    def gen(self) -> None:
        if not self._room():
            return
        handle = self.rng.choice(list(self.handles))
        count = self.rng.choice((1, 1, 1, 2, 4))
        sampling = Sampling(
            max_tokens=self.rng.choice((1, 2, 4, 9, 17, 25)),
            min_tokens=self.rng.choice((0, 0, 3)),
            n=count,
            stop_token_ids=self.rng.choice(((), (), (5,), tuple(range(2, 11)))),
            temperature=self.rng.choice((0.0, 0.7, 1.0)),
            top_k=self.rng.choice((-1, 5)),
            ignore_eos=self.rng.random() < (0.8 if self.setup.bold else 0.3),
            frequency_penalty=self.rng.choice((0.0, 0.0, 0.0, 0.5)),
            presence_penalty=self.rng.choice((0.0, 0.0, 0.0, -1.5)),
            repetition_penalty=self.rng.choice((1.0, 1.0, 1.0, 1.25)),
            logit_bias=self.rng.choice(((), (), (), ((7, 2.5), (1, -100.0)))),
            logprobs_from=self.rng.choice((None, None, None, 0, 1, 5, 30)),
            top_logprobs=self.rng.choice((0, 0, 0, 1, 4)),
        )
        seeds = tuple(self.rng.getrandbits(64) for _ in range(count))
        ids = self.handles[handle]
        fits = len(ids) > 0 and self._fits(len(ids) + sampling.max_tokens, 1)
        pattern = self.rng.choice((None, self.rng.choice((*PATTERNS, *GRAMMARS))))
        constraint = None if pattern is None else held_to(pattern)
        if isinstance(constraint, TokenAutomaton) and self.setup.late:
            constraint = SlowAutomaton(constraint)
        watch = self.rng.random() < self.setup.watched
        try:
            request = self.engine.gen(
                handle, sampling, seeds, eos_ids=EOS, constraint=constraint, watch=watch,
                turn=self._turn(),
            )  # fmt: skip
        except RunError:
            assert not fits, "a request that fits is refused"
            return
        assert fits, "a request that never fits is taken"
        job = Job(ids, self.spaces[handle], sampling, seeds, pattern, watch, tokens=[[] for _ in seeds])
        self._submitted(request, job)

    def score(self) -> None:
        if not self._room():
            return
        handle = self.rng.choice(list(self.handles))
        ids = self.handles[handle]
        if not ids:
            return
        choices = [self._random_ids(self.rng.choice((0, 1, 1, 2, 3, 6))) for _ in range(self.rng.randint(1, 5))]
        if self.rng.random() < 0.5:
            choices += [choices[0], choices[0] + (4,)]
        for _ in range(self.rng.choice((0, 2, 6))):
            stem = self.rng.choice(choices)
            choices.append(stem[: self.rng.randint(0, len(stem))] + self._random_ids(self.rng.randint(0, 3)))
        longest = max(map(len, choices))
        fits = self._fits(len(ids) + longest, min(longest, 1))
        try:
            request = self.engine.score(handle, choices, turn=self._turn())
        except RunError:
            assert not fits, "a request that fits is refused"
            return
        assert fits, "a request that never fits is taken"
        self._submitted(request, Job(ids, self.spaces[handle], choices=choices))

    def warm(self) -> None:
        if not self._room():
            return
        handle = self.rng.choice(list(self.handles))
        try:
            request = self.engine.warm(handle)
        except RunError:
            assert not self._fits(len(self.handles[handle]), 0), "a request that fits is refused"
            return
        self._submitted(request, Job(self.handles[handle], self.spaces[handle]))

    def _fits(self, tokens: int, unwritten: int) -> bool:
        pages = -(-(tokens - unwritten) // self.setup.page_size)
        return tokens <= self.setup.max_len and pages <= self.setup.pages

    def _room(self) -> bool:
        return bool(self.handles) and len(self.jobs) < 10

    def _submitted(self, request: int, job: Job) -> None:
        self.jobs[request] = job
        self._allow(job, job.ids)

    def cut(self) -> None:
        running = [
            (request, i)
            for request, job in self.jobs.items()
            for i, tokens in enumerate(job.tokens)
            if tokens and i not in job.done and i not in job.cuts
        ]
        if running:
            request, i = self.rng.choice(running)
            job = self.jobs[request]
            length = max(0, len(job.tokens[i]) - self.rng.choice((0, 0, 1, 3)))
            job.cuts[i] = length
            self._allow(job, job.ids + tuple(job.tokens[i][:length]))
            self.engine.cut(request, i, length)
            self.cuts += 1

    def abort(self) -> None:
        if self.jobs and self.rng.random() < 0.5:
            request = self.rng.choice(list(self.jobs))
            nodes = sum(1 for _ in self._nodes())
            self.aborted += 1
            known = self.engine._requests.get(request)  # None: it is over, and its event is on its way
            self.aborted_late += known is not None and any(one.asked is not None for one in known.samples)
            self.engine.abort(request)
            assert sum(1 for _ in self._nodes()) <= nodes, "an abort adds to the tree"
            del self.jobs[request]  # an event for it is now a KeyError

    # -- events

    def step(self) -> None:
        """One step of the engine; its events and its state are checked."""
        self.oracle.failed = False
        if self.setup.bold:
            self.engine.allocator.lengths = Lengths(0.0)
        for event in self.engine.step(self._meanwhile if self.busy else None):
            self._event(event)
        self._gave_way()
        self._queue()
        self.check()

    def _queue(self) -> None:
        """Who began first is served first, and nothing is held for longer than is worth it."""
        parts = self.engine.queue.parts
        orders = [(p.request.turn.place, -p.request.turn.left, p.request.id, p.index) for p in parts]
        assert orders == sorted(orders), "the queue is out of order"
        reservations = self.engine.reservations
        ends = [hold.until for hold in reservations.held.values()]
        assert all(end >= self.engine.steps for end in ends), "a hold has no end"
        assert all(end <= self.engine.steps + reservations.longest for end in ends)

    def _resumed(self) -> list[RequestPart]:
        """Samples whose row gave way, which go on, or wait for that."""
        parts = self.engine.queue.parts + [work.part for work in self.engine.allocator.work.values()]
        return [part for part in parts if part.logprobs is not None]

    def _gave_way(self) -> None:
        """What a row that gave way has made so far is the beginning of its sample, and may be cached."""
        for part in self._resumed():
            job = self.jobs[part.request.id]
            assert job.sampling is not None
            made = part.ids[len(job.ids) :]
            assert len(made) == len(part.logprobs), "a row that gave way has lost a token, or its place"
            if job.watch and part.index not in job.cuts:
                assert tuple(job.tokens[part.index][: len(made)]) == made, (
                    "it has made other tokens than reported"
                )
            self._allow(job, part.ids)

    def _event(self, event: EngineEvent) -> None:
        assert event.request in self.jobs, "an event of a request that is over"
        job = self.jobs[event.request]
        match event:
            case Token():
                assert job.watch, "a token of a request that nobody watches"
                assert event.sample not in job.cuts, "a token after the cut"
                job.tokens[event.sample].append(event.id)
            case PromptScored():
                self._prompt(job, event)
            case SampleDone():
                self._sample(job, event)
            case ScoreDone():
                truth = tuple(self.oracle.scores(job.ids, choice) for choice in job.choices)
                assert event.logprobs == truth, "wrong scores"
                job.scored = True
            case RequestDone():
                self._usage(job, event)
                del self.jobs[event.request]
                self.finished += 1
            case RequestFailed():
                assert isinstance(event.error, BackendError)
                assert self.oracle.failed, f"a request fails: {event.error}"
                del self.jobs[event.request]

    def _prompt(self, job: Job, event: PromptScored) -> None:
        assert job.sampling is not None
        assert job.sampling.logprobs_from is not None
        assert not job.prompt_scored, "a prompt is scored twice"
        assert not job.tokens[0], "a token before the prompt's scores"
        begin = max(job.sampling.logprobs_from, 1)
        assert event.logprobs == self.oracle.scores(job.ids[:begin], job.ids[begin:]), "wrong prompt scores"
        if job.sampling.top_logprobs:
            self._likeliest(job.sampling, job.ids[:begin], job.ids[begin:], event.likeliest)
        job.prompt_scored = True
        self.prompts_scored += 1

    def _likeliest(
        self, sampling: Sampling, before: tuple[int, ...], ids: tuple[int, ...], found: tuple[Likely, ...]
    ) -> None:
        whole = before + ids
        truth = [
            self.oracle.likeliest(whole[:i], sampling.top_logprobs) for i in range(len(before), len(whole))
        ]
        assert [listed(likely) for likely in found] == truth, "wrong likeliest ids"

    def _sample(self, job: Job, event: SampleDone) -> None:
        assert job.sampling is not None
        constraint = None if job.pattern is None else held_to(job.pattern)
        ids, logprobs, finish = self.oracle.continuation(
            job.ids, job.sampling, job.seeds[event.sample], constraint
        )
        whole = event.finish == "stop" and event.sample not in job.cuts and not job.sampling.stop_token_ids
        if job.pattern is not None and whole:
            text = b"".join(BYTES[token] for token in event.ids).decode()
            assert matches(job.pattern, text), "a constrained sample that does not match"
            self.matched += 1
        if event.sample in job.cuts:
            length = job.cuts[event.sample]
            ids, logprobs, finish = ids[:length], logprobs[:length], "stop"
            del job.tokens[event.sample][length:]
        assert (event.ids, event.logprobs, event.finish) == (ids, logprobs, finish), "a wrong sample"
        if job.watch:
            assert tuple(job.tokens[event.sample]) == ids, "the tokens reported are not the sample's"
        job.tokens[event.sample][:] = ids
        if job.sampling.top_logprobs:
            self._likeliest(job.sampling, job.ids, ids, event.likeliest)
        sampling = job.sampling
        self.steered += bool(sampling.logit_bias) or sampling.penalised
        assert event.sample not in job.done, "a sample ends twice"
        job.done.add(event.sample)
        self._allow(job, job.ids + ids)
        self.answers.append((job.ids, ids))

    def _usage(self, job: Job, event: RequestDone) -> None:
        self.cached += event.cached_tokens
        assert event.prompt_tokens == event.cached_tokens + event.computed_tokens
        if len(job.seeds) <= 1 and not job.choices:
            assert event.prompt_tokens == len(job.ids)
        assert event.prompt_tokens >= len(job.ids)
        self._scored_tokens(job, event.scored_tokens)
        assert job.scored == bool(job.choices)
        assert len(job.done) == len(job.seeds)
        begin = None if job.sampling is None else job.sampling.logprobs_from
        assert job.prompt_scored == (begin is not None and max(begin, 1) < len(job.ids))
        kept = sum(len(tokens) for tokens in job.tokens)
        assert kept <= event.completion_tokens <= kept + len(job.seeds)

    def _scored_tokens(self, job: Job, found: int) -> None:
        """What choices share is passed through once; where no row may branch, once for each end."""
        above = {choice[:i] for choice in job.choices for i in range(1, len(choice))}
        ends = [ids for ids in above if not any(ids == more[: len(ids)] for more in above - {ids})]
        once, again = len(above), sum(map(len, ends))
        room = min(self.setup.max_len, self.setup.pages * self.setup.page_size) - len(job.ids)
        if not self.setup.trees:
            assert found == again, "choices that go on where others end are passed through again"
        elif once <= room:
            assert found == once, "what choices share is passed through again"
        else:
            assert once <= found <= sum(max(0, len(choice) - 1) for choice in job.choices)
        self.branched += again > once

    # -- invariants

    def _check_evictions(self) -> None:
        """From now on every eviction is compared with what looking at all leaves finds."""
        driver = self

        class Checked(RadixTree):
            __slots__ = ()

            def evict(self, most: int = 1) -> None:
                leaves = [node for node in driver._nodes() if not node.children and not node.refs]
                victim = min(leaves, key=_value, default=None)
                assert victim is not None
                had, end, before = len(victim.pages), victim.end, self.evictable
                RadixTree.evict(self, most)
                assert victim.moved or victim.end < end, "another leaf is worth less than the evicted one"
                assert before - self.evictable == min(had, most), "more pages are evicted than were asked for"

        self.engine.tree.__class__ = Checked

    def _roots(self) -> list[PageNode]:
        allocator = self.engine.allocator
        requests = [work.part.request for work in allocator.work.values()]
        roots = [self.engine.tree.root_of(name) for name in sorted(set(NAMESPACES))]
        roots += [request.root for request in requests]
        roots += [request.root for request in self.engine._requests.values()]
        for _, node in allocator._unlocks:
            while node.parent is not None:
                node = node.parent
            roots.append(node)
        return list({id(root): root for root in roots}.values())

    def _nodes(self) -> Iterator[PageNode]:
        stack = self._roots()
        while stack:
            node = stack.pop()
            assert node.keys == sorted(node.keys), "children are out of order"
            assert node.keys == [child.key[: self.setup.page_size] for child in node.children]
            assert all(child.parent is node for child in node.children)
            if node.parent is not None:
                whole = len(node.key) == len(node.pages) * self.setup.page_size
                assert whole or len(node.pages) == 1, "a partial page in a run"
                yield node
            stack += node.children

    def check(self) -> None:
        """Every invariant of the engine's state."""
        nodes = list(self._nodes())
        self._check_pages(nodes)
        self._check_counts(nodes)
        self._check_rows()
        self._check_content(nodes)

    def _check_pages(self, nodes: list[PageNode]) -> None:
        pool, rows = self.engine.allocator.pool, self.engine.rows
        owner = np.full(self.setup.pages, Owner.FREE, np.int8)
        seen = np.zeros(self.setup.pages, np.int32)
        private = [
            rows.table[row, work.shared : rows.held[row]] for row, work in self.engine.allocator.work.items()
        ]
        waiting = [pages for _, pages in pool._waiting]
        node_pages = np.array([page for node in nodes for page in node.pages], np.int32)
        for kind, groups in (
            (Owner.NODE, [node_pages]),
            (Owner.PRIVATE, private),
            (Owner.QUARANTINE, waiting),
            (Owner.FREE, [pool._stack[: pool.free]]),
        ):
            for pages in groups:
                assert not pages.size or pages.min() >= 0
                np.add.at(seen, pages, 1)
                owner[pages] = kind
        assert (seen == 1).all(), "a page has no owner, or two"
        assert (owner == pool.owner).all(), "the pool and the owners disagree"
        flying = np.flatnonzero(self.oracle._touched > self.oracle._drained) // self.setup.page_size
        assert (owner[flying] != Owner.FREE).all(), "a page is free that a step in flight touches"
        locked = np.zeros(self.setup.pages, np.bool_)
        locked[node_pages] = [node.refs > 0 for node in nodes for _ in node.pages]
        assert (locked | (owner != Owner.NODE))[flying].all(), "a step in flight touches an unlocked node"

    def _check_counts(self, nodes: list[PageNode]) -> None:
        engine, allocator = self.engine, self.engine.allocator
        refs = {id(node): 0 for node in nodes}
        holders = [work.node for work in allocator.work.values()]
        holders += [work.source for work in allocator.work.values() if work.source is not None]
        holders += engine.reservations.nodes()
        for holder in holders + [node for _, node in allocator._unlocks]:
            node: PageNode | None = holder
            while node is not None and node.parent is not None:
                assert id(node) in refs, "a lock on a node outside the tree"
                refs[id(node)] += 1
                if refs[id(node)] > 1:
                    break  # counted above already
                node = node.parent
        uses: dict[int, list[int]] = {}
        for sequence in engine.handles._sequences.values():
            if sequence.next_use != SOME_DAY:
                uses.setdefault(id(resolve(sequence.node)), []).append(sequence.next_use)
        pins: dict[int, int] = {}
        pinned = engine.handles.pinned()
        pinned += [r.pinned for r in engine._requests.values() if r.pinned is not None]
        for node in pinned:
            pins[id(resolve(node))] = pins.get(id(resolve(node)), 0) + 1
        entries = {id(node): rank for rank, _, node in engine.tree._heap if node.queued == rank}
        for node in nodes:
            assert node.refs == refs[id(node)], "a node's locks do not add up"
            assert node.pins == pins.get(id(node), 0), "a node's pins do not add up"
            assert node.next_uses == sorted(uses.get(id(node), [])), "next uses do not add up"
            assert node.parent is not None
            assert node.worth <= node.parent.worth, "a node is worth more than what it needs above it"
            assert node.moved is None
            assert node.refs or node.step <= allocator._drained, "a page still being written is evictable"
            if not node.refs and not node.children:
                assert node.queued is not None, "an evictable leaf is not queued"
                assert entries.get(id(node)) == node.queued, "an evictable leaf is not queued"
                assert node.queued <= engine.tree._rank(node)
        evictable = sum(len(node.pages) for node in nodes if not node.refs)
        assert engine.tree.evictable == evictable, "evictable pages are miscounted"
        assert allocator.available >= 0, "more pages are promised than there are"
        assert allocator.reserved == int(engine.rows.reserved[list(allocator.work)].sum()), (
            "reserved pages do not add up"
        )

    def _check_rows(self) -> None:
        allocator, rows, size = self.engine.allocator, self.engine.rows, self.setup.page_size
        assert sorted(allocator.work) == np.flatnonzero(rows.active).tolist()
        guided = rows.active & (rows.constrained | (rows.automaton >= 0))
        assert rows.guided == guided.sum(), "rows that are held to something are miscounted"
        assert not (rows.active & (rows.forced | rows.late) & ~guided).any(), "a free row is forced, or late"
        assert not rows.short(rows.decoding()).size or rows.steps_paged <= 0, (
            "a row lacks a page, and is not seen"
        )
        parts = self.engine.queue.parts + [work.part for work in allocator.work.values()]
        assert all(part.order[0] <= self.engine.queue._highest for part in parts), "a priority is not seen"
        for row, work in allocator.work.items():
            path: list[int] = []
            node = work.node
            while node.parent is not None:
                path += reversed(node.pages)
                node = node.parent
            assert work.shared * size == work.node.end == len(path) * size
            held = int(rows.held[row])
            assert rows.table[row, : work.shared].tolist() == path[::-1], "a row's pages are not its path"
            assert (rows.table[row, held:] == -1).all()
            assert rows.seq_len[row] <= held * size or work.source is not None
            assert held + rows.reserved[row] >= -(-rows.prompt_len[row] // size), (
                "a row's prompt is not reserved"
            )
            if rows.last_step[row] >= 0:
                self._check_mirror(row, held + (work.source is not None))
            if work.part.kind is PartKind.SAMPLE:
                late = work.part.request.samples[work.part.index].asked is not None
                # Where the executor follows an automaton, a row may wait for its steps in flight.
                held = rows.automaton[row] >= 0 and rows.seq_len[row] >= rows.begun[row] + rows.made[row]
                assert bool(rows.late[row]) == late or held, "a row waits for nothing, or not for its mask"
                self.late += late
            before = self.occupants.get(row)
            generation = int(rows.generation[row])
            if before is not None and before[0] is not work:
                assert generation > before[1], "a reused row keeps its generation"
            self.occupants[row] = (work, generation)

    def _check_mirror(self, row: int, entered: int) -> None:
        """What the executor knows of a row is what the host knows; of its pages the first `entered`."""
        mirror, rows = self.oracle.mirror, self.engine.rows
        assert mirror.seq_len[row] == rows.seq_len[row], "the executor has another length of a row"
        held = int(rows.held[row])
        assert (mirror.table[row, :held] == rows.table[row, :held]).all(), (
            "the executor has other pages of a row"
        )
        assert (mirror.table[row, entered:] == -1).all(), "the executor has pages that the row does not have"
        if rows.samples[row]:
            for name in ("temperature", "top_p", "top_k", "min_p", "seeds"):
                theirs, ours = getattr(mirror, name)[row], getattr(rows, name)[row]
                assert theirs == ours, f"the executor has another {name} of a row"
            endless = rows.automaton[row] >= 0 and rows.stops[row, 0] < 0
            begin = rows.begun[row] + rows.min_tokens[row]
            assert mirror.eos_from[row] == (2**30 if endless else begin), "an end is banned elsewhere"

    def _check_content(self, nodes: list[PageNode]) -> None:
        size = self.setup.page_size
        names = {id(self.engine.tree.root_of(name)): name for name in NAMESPACES}
        sequences = {name: sorted(ids) for name, ids in self.allowed.items()}
        for node in nodes:
            if node.children:
                continue
            path: list[PageNode] = []
            step: PageNode | None = node
            while step is not None and step.parent is not None:
                path.append(step)
                step = step.parent
            path.reverse()
            assert path[0].parent is not None
            allowed = sequences[names.get(id(path[0].parent))]
            ids = tuple(token for part in path for token in part.key)
            assert all(len(part.key) % size == 0 for part in path[:-1]), "a partial page has children"
            assert len(ids) == node.end
            at = np.arange(len(ids))
            slots = np.array([page for part in path for page in part.pages])[at // size] * size + at % size
            assert tuple(self.oracle._ids[slots].tolist()) == ids, "a node's page holds other tokens"
            assert (self.oracle._hash[slots] == history_hashes(ids)).all(), "a node's page has another history"
            where = bisect_left(allowed, ids)
            known = where < len(allowed) and allowed[where][: len(ids)] == ids
            assert known, "the tree holds a sequence that nobody asked to keep"

    # -- the end

    def finish(self) -> None:
        """Let everything run out; nothing may be left but evictable pages."""
        self.busy = False  # nobody asks for more
        for _ in range(20_000):
            if self.engine.idle:
                break
            self.step()
        assert self.engine.idle, "the engine does not come to an end"
        assert not self.jobs, "requests without an end"
        for handle in list(self.handles):
            self.engine.release(handle)
        self.handles.clear()
        self.check()
        allocator = self.engine.allocator
        assert allocator.reserved == 0
        assert allocator.pool.free + allocator.tree.evictable == self.setup.pages, "pages are leaked"
        assert self.setup.cache or allocator.pool.free == self.setup.pages, (
            "pages are cached with the cache off"
        )


def _value(node: PageNode) -> tuple[int, float, int, int]:
    """What a leaf is worth, the least worth first."""
    if not node.pins:
        return int(node.worth), 0, node.last_use, node.serial
    return 3, -min(node.next_uses, default=float("inf")), node.last_use, node.serial


def soak(steps: int, seed: int, episode: int = 200, *, busy: bool = False) -> Iterator[Driver]:
    """Engines of all kinds, each driven for `episode` steps and then to its end, `steps` in all."""
    left = steps
    while left > 0:
        driver = Driver(Setup.draw(random.Random(seed)), seed, busy=busy)
        for _ in range(min(left, episode)):
            while driver.rng.random() < 0.5:
                driver.act()
            driver.step()
        driver.finish()
        driver.preempted = driver.engine.queue.preempted
        driver.forced = driver.engine.forced
        yield driver
        left -= episode
        seed += 1


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/soak-engine.json"))
    arguments = parser.parse_args()
    start, found = time.monotonic(), Counter[str]()
    for driver in soak(arguments.steps, arguments.seed):
        found["requests"] += driver.finished
        found["tokens"] += driver.oracle.extended
        found["rows that waited for a mask, by step"] += driver.late
        found["rows that gave way"] += driver.preempted
        found["aborted"] += driver.aborted
        found["aborted while a mask was late"] += driver.aborted_late
    seconds = time.monotonic() - start
    print(f"{arguments.steps} steps, {dict(found)}, {seconds:.1f} s: no violation")
    report = {
        "what": "random work on the engine with the oracle, every invariant checked after every step",
        "steps": arguments.steps,
        "seed": arguments.seed,
        **found,
        "violations": 0,  # the first one ends the run with its assertion
        "seconds": round(seconds, 1),
        "python": platform.python_version(),
    }
    arguments.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
