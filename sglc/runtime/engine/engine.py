"""The engine: requests on token sequences in, events out, one step of the executor at a time.

`step` decides (scheduler), builds and launches a step, and drains the oldest one when `depth` steps
are in flight. Prompt pages enter the tree at the launch that computes them, generated ones when
their sample ends. A page or lock is given up only after the last step that touches it is drained.
Results are told apart by (row, generation), so what arrives for a row that ended is dropped.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from time import perf_counter, sleep
from typing import Any

import numpy as np

from sglc import knobs
from sglc.errors import BackendError, RunError, SglcError
from sglc.ir.plan.events import PackedIds
from sglc.ir.sampling import Sampling
from sglc.runtime.cache.page_tree import DUE, Key
from sglc.runtime.cache.sequence_handles import Handles, Prefix, as_ids
from sglc.runtime.choice_trie import MOST_TOKENS, tries_of
from sglc.runtime.constraints import give_way
from sglc.runtime.constraints.protocol import Constraint
from sglc.runtime.engine.jump_forward import force, land, stretched, worth_waiting
from sglc.runtime.engine.logit_masks import steered
from sglc.runtime.engine.lookahead import Lookaheads
from sglc.runtime.engine.matcher_threads import MatcherThreads
from sglc.runtime.engine.scores import account, likeliest_at, take_scores
from sglc.runtime.ids import Handle, RequestId
from sglc.runtime.scheduler import scheduler
from sglc.runtime.scheduler.batch_state import PrefillChunk
from sglc.runtime.scheduler.kv_allocator import KVAllocator
from sglc.runtime.scheduler.queue import RequestQueue
from sglc.runtime.scheduler.requests import (
    EngineEvent,
    EngineRequest,
    Flight,
    Last,
    PartKind,
    PromptScored,
    QueuePosition,
    RequestDone,
    RequestFailed,
    RequestPart,
    SampleDone,
    SampleState,
    ScoreDone,
    Token,
    check_generation,
    check_size,
    first_part,
    scores_of,
)
from sglc.runtime.scheduler.reservations import PrefixReservations
from sglc.runtime.scheduler.samples import NONE_LIKELY, Lookahead
from sglc.runtime.step import I32, Bool, Executor, Step, StepCost, StepResult

__all__ = [
    "Engine", "EngineConfig", "EngineEvent", "Handle", "PromptScored", "QueuePosition", "RequestDone",
    "RequestFailed", "RequestId", "SampleDone", "ScoreDone", "Token",
]  # fmt: skip


# Rows up to which waiting for what is in flight saves steps: of more, the others' steps are there anyway.
_JUMPING_ROWS = 8
# Tokens of a step that takes so long that commands are looked for until it is over; to look again and again
# for the end of a short one would lengthen it.
_LONG_STEP = 512
_LOOKS_S = 2e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Limits of the engine."""

    token_budget: int = 2048  # tokens of one step (decode + extend chunks)
    max_rows: int = 64  # rows in flight
    cache: bool = True  # False: nothing is shared between requests
    max_len: int = 8192  # longest sequence (from the model's config)
    # Given, a step with prompts is kept short while rows decode that are looked at.
    cost: StepCost | None = None


class Engine:
    """Runs requests against one executor. Single-threaded; knows ids, not text."""

    def __init__(self, executor: Executor, config: EngineConfig, threads: MatcherThreads | None = None) -> None:
        """`threads` do what may take long."""
        self.executor = executor
        self.config = config
        self.allocator = KVAllocator(executor.pages, executor.page_size, config.max_rows, config.max_len)
        self._sizes = config.max_len, executor.pages, executor.page_size
        self.tree = self.allocator.tree
        self.rows = self.allocator.rows
        self._flights: deque[Flight] = deque()
        self._requests: dict[RequestId, EngineRequest] = {}
        self.handles = Handles(self.tree, config.cache)
        pool = executor.pages * executor.page_size
        self.reservations = PrefixReservations(self.tree, -(-pool // config.token_budget))
        self.queue = RequestQueue(
            self.allocator, self.handles, self.reservations, config.token_budget, config.max_rows, config.cost,
            executor.keeps,
        )  # fmt: skip
        self.threads = threads or MatcherThreads()
        self._lookaheads = Lookaheads(self.threads, executor.depth, self._looked_ahead, self._refuse)
        self._events: list[EngineEvent] = []
        self._next_request = 0
        self._next_step = 0
        self.step_s = 0.0  # that the last one took
        self.forced = 0  # ids that samples were not free to choose, and that took no step of their own
        self._shows_steps = knobs.debug_level() >= 3

    # -- handles

    def prefix(self, base: Handle | Prefix | None, ids: Sequence[int], namespace: str = "") -> Prefix:
        """The ids of `base` (none: nothing, in `namespace`) followed by `ids`, for many to begin with.

        It keeps no KV.

        Raises:
            RunError: as `extend`.
        """
        return self.handles.prefix(base, *self._checked(ids), namespace)

    def extend(self, base: Handle | Prefix | None, ids: Sequence[int], namespace: str = "") -> Handle:
        """A new handle on the ids of `base` (none: nothing) followed by `ids`.

        What begins in one `namespace` (an adapter, a user's salt) shares no KV with any other.

        Raises:
            RunError: SGLC443, an id that the model does not have.
        """
        key, array = self._checked(ids)
        return self.handles.extend(base, key, namespace, array)

    def _checked(self, ids: Sequence[int]) -> tuple[Key, I32]:
        key, array = as_ids(ids)
        vocab = self.executor.vocab_size
        # A tokenizer may have more than its model; what is below 0 is above all without a sign.
        if key and np.maximum.reduce(array.view(np.uint32)) >= vocab:
            unknown = next(id_ for id_ in key if not 0 <= id_ < vocab)
            raise RunError(
                "SGLC443",
                f"a prompt has the token id {unknown}, the model has ids up to {vocab - 1}",
                hint="leave out the text of this token",
            )
        return key, array

    def fork(self, handle: Handle, n: int) -> tuple[Handle, ...]:
        """`n` new handles on the same ids."""
        return tuple(self.handles.fork(handle) for _ in range(n))

    def expect(self, handle: Handle, steps: int) -> None:
        """The handle's ids will be used again in about `steps` steps: the later, the sooner their KV may go."""
        self.handles.expect(handle, self._next_step + steps)

    def hold(self, handle: Handle, steps: int, place: int) -> None:
        """The program at `place` comes back to the handle's ids in about `steps` steps.

        If that is soon, no program behind it takes their pages meanwhile, as long as others can go on.
        """
        self.expect(handle, steps)
        if self.config.cache and steps <= self.reservations.longest:
            self.reservations.add(handle, self.handles.node(handle), place, self._next_step)
            if self.allocator.available < 0:
                self.reservations.drop(handle)  # its pages were free, and are promised to rows

    def await_turn(self, handle: Handle, place: int) -> None:
        """The program at `place` goes on behind the handle's ids as soon as it can."""
        self.handles.expect(handle, place + DUE)

    def turn_over(self, handle: Handle, place: int) -> None:
        """The turn that was awaited is over: when the handle's ids are used next is not known."""
        self.handles.used(handle, place + DUE)

    def release(self, handle: Handle) -> None:
        """The handle ends and its program is through with its ids; requests made from it go on."""
        if handle in self.reservations.held:
            self.reservations.drop(handle)
        self.handles.release(handle, self.queue.wanted)

    def forget(self, handle: Handle) -> None:
        """The handle ends; whether its ids are wanted again is not known."""
        self.reservations.drop(handle)
        self.handles.forget(handle)

    def ids(self, handle: Handle) -> tuple[int, ...]:
        """The ids that a handle names."""
        return self.handles.sequence(handle).ids

    def packed(self, handle: Handle) -> PackedIds:
        """The same ids."""
        return PackedIds(self.handles.sequence(handle).array.tobytes())

    # -- requests

    @property
    def next_place(self) -> int:
        """The place in the queue of a program that begins now: behind all that there are."""
        return self._next_request + 1

    def gen(
        self,
        handle: Handle,
        sampling: Sampling,
        seeds: Sequence[int],
        *,
        eos_ids: Sequence[int],
        constraint: Constraint | None = None,
        watch: bool = True,
        dropped: bool = False,
        turn: QueuePosition | None = None,
    ) -> RequestId:
        """Sample len(seeds) continuations of the handle's ids. With `watch` every token is reported.

        A sample ends at an id of `eos_ids` (unless `ignore_eos`) or of `stop_token_ids`, once it has
        `min_tokens`; at `max_tokens`; or at `cut`.
        With a `constraint` it also ends, whatever `min_tokens`, where nothing can follow. What it keeps
        is then a match, unless `max_tokens`, `cut` or a stop id that is text ended it before.
        What is going to be `dropped` is one token, which is never passed through: it needs no room.

        Raises:
            RunError: SGLC440, SGLC441, too long to ever run; SGLC442, nothing to do; SGLC470, a bias for
                an id that the model does not have.
        """
        assert len(seeds) == sampling.n, "one seed for each sample"
        prompt, vocab = self.handles.sequence(handle), self.executor.vocab_size
        ids = prompt.ids
        check_generation(ids, sampling, seeds, vocab)
        written = len(ids) + sampling.max_tokens - 1
        check_size(written if dropped else written + 1, written, *self._sizes)
        request = self._request(handle, prompt, len(seeds), turn)
        if sampling.top_logprobs > vocab:
            sampling = replace(sampling, top_logprobs=vocab)
        request.sampling = sampling
        request.adjusts = bool(sampling.logit_bias) or sampling.penalised
        request.steers = constraint is not None or request.adjusts or sampling.top_logprobs > 0
        if sampling.logprobs_from is not None:
            request.scored_from = max(sampling.logprobs_from - 1, 0)
            request.prompt_logprobs = [0.0] * (len(ids) - 1 - request.scored_from)
        request.seeds = tuple(seeds)
        request.stop_ids = frozenset(sampling.stop_token_ids)
        if not sampling.ignore_eos:
            request.stop_ids |= frozenset(eos_ids)
        request.watch = watch
        request.fixed_length = not (request.stop_ids or constraint is not None or watch)
        start = 0 if constraint is None else constraint.start
        request.samples = [SampleState(state=start) for _ in seeds]
        if constraint is not None:
            request.constraint = constraint
            request.automaton = self._held(request, constraint, frozenset(eos_ids))
            request.steered = request.automaton < 0
            if constraint.slow:
                self._lookaheads.at_start(request)
        return self._submit(request)

    def score(
        self, handle: Handle, choices: Sequence[Sequence[int]], *, turn: QueuePosition | None = None
    ) -> RequestId:
        """Log-probabilities of the ids of each choice after the handle's ids (at least one).

        What choices share is passed through once, if the executor takes rows that branch. Choices that
        fit behind the prompt are passed through with its last ids; the others follow when it is there.

        Raises:
            RunError: SGLC440, SGLC441, too long to ever run.
        """
        prompt = self.handles.sequence(handle)
        ids = prompt.ids
        assert ids, "a prompt of one id at least"
        assert choices, "one choice at least"
        longest = max(len(choice) for choice in choices)
        check_size(len(ids) + longest, len(ids) + max(longest - 1, 0), *self._sizes)
        room = min(self.config.max_len, self.executor.pages * self.executor.page_size) - len(ids)
        made = tries_of(choices, min(room, MOST_TOKENS), branching=self.executor.trees)
        request = self._request(handle, prompt, len(made.tries), turn)
        request.choices = made
        request.logprobs = [[0.0] * len(trie.pairs) for trie in made.tries]
        return self._submit(request)

    def warm(self, handle: Handle) -> RequestId:
        """Compute the KV of the handle's ids.

        Raises:
            RunError: SGLC440, SGLC441, too long to ever run.
        """
        prompt = self.handles.sequence(handle)
        check_size(len(prompt.ids), len(prompt.ids), *self._sizes)
        return self._submit(self._request(handle, prompt, 1, None))

    def cut(self, request: RequestId, sample: int, length: int) -> None:
        """The sample ends with its first `length` tokens. Ignored if it has ended already."""
        owner = self._requests.get(request)
        if owner is None or owner.samples[sample].done:
            return
        del owner.samples[sample].likeliest[length:]
        self._conclude(owner, sample, length, "stop")

    def cached(self, request: RequestId) -> int:
        """How many ids of its prompt have been found in the cache; 0 of a request that is over."""
        owner = self._requests.get(request)
        return 0 if owner is None else owner.cached

    def abort(self, request: RequestId) -> None:
        """Forget a request: nothing more of it is computed, cached or reported. Unknown ones are ignored."""
        owner = self._requests.get(request)
        if owner is not None:
            self._forget(owner)
        if self._events:
            self._events = [event for event in self._events if event.request != request]

    def close(self) -> None:
        """The engine ends. It refers to itself, so its executor would keep its memory for a while."""
        del self.executor

    # -- the loop

    @property
    def idle(self) -> bool:
        """Nothing waits, runs, is in flight or is left to report."""
        return not (self._requests or self._flights or self._events or self.threads.pending)

    @property
    def steps(self) -> int:
        """Steps that were launched."""
        return self._next_step

    @property
    def requests(self) -> int:
        """Requests that have not ended: they run, or wait."""
        return len(self._requests)

    @property
    def most_commands(self) -> int:
        """Commands that are obeyed before the next step: for rows that may begin in it, beside those that wait.

        But always some: others may be ended by them.
        """
        decoding = self.rows.decoding().size
        if not self._flights:
            return scheduler.new_rows(decoding, 0)
        most = min(scheduler.new_rows(decoding, self.queue.begun), self.queue.fitting)
        return max(most - self.queue.coming, scheduler.NEW_ROWS)

    @property
    def starves(self) -> bool:
        """Whether the device is done with all that was launched, and a part waits that could begin."""
        return (
            bool(self._flights and self.queue.coming) and self._is_over(self._flights[-1]) and self.queue.ready
        )

    def step(self, meanwhile: Callable[[], bool] | None = None) -> list[EngineEvent]:
        """Launch at most one step; drain the oldest if enough are in flight or none was launched.

        That is `depth` of them, but two at most while somebody looks at each token: who looks may end
        a sample, and what was launched for it by then is lost. While the oldest is not over `meanwhile` is
        called, again if it gives True, or if the step is long; it may begin and abort requests.
        """
        with self.undisturbed():
            return self._step(meanwhile)

    def undisturbed(self) -> AbstractContextManager[None]:
        """Inside, threads of matchers give way, if there are some, be it for what nobody wants any more."""
        threads = self.threads
        return give_way.step() if threads.working or threads.lost else nullcontext()

    def _step(self, meanwhile: Callable[[], bool] | None) -> list[EngineEvent]:
        if self.threads.pending:
            self._lookaheads.take(hurry=bool(self._flights) or self._may_launch, step_s=self.step_s)
        began_s = perf_counter()
        depth = self.executor.depth if not self.rows.watched else min(self.executor.depth, 2)
        launched = len(self._flights) < depth and self._launch()
        full = len(self._flights) >= depth
        if drains := bool(self._flights) and (full or not launched):
            self._drain(meanwhile)
            self.step_s = perf_counter() - began_s
        events, self._events = self._events, []
        if not (launched or drains or events):
            assert self.threads.pending or not self._requests, "requests, but nothing can run"
            self._lookaheads.rest()
        return events

    @property
    def _may_launch(self) -> bool:
        """Whether something is not late."""
        rows = self.rows
        return bool(self.allocator.unfinished or self.queue.ready or rows.known(rows.decoding()).size)

    def _launch(self) -> bool:
        rows, queue, work = self.rows, self.queue, self.allocator.work
        if self.reservations.held:
            self.reservations.expire(self._next_step)
        ready = queue.make_room()
        known = rows.known(ready)
        decode = known if rows.steps_paged > 0 else self.allocator.promise(known)
        stalled = known.size - decode.size
        chunks: list[PrefillChunk] = []
        if queue.parts or self.allocator.unfinished:
            before = queue.begun if self._flights else 0
            chunks, done = queue.chunks(ready.size - stalled, stalled, before)
            for request in done:
                self._end_part(request)
        else:
            queue.begun = 0
        if not decode.size and not chunks:
            return False
        steering, left = rows.steering, queue.left
        for at, chunk in enumerate(chunks):
            request = work[chunk.row].part.request
            if request.constraint is not None:
                chunks[at] = stretched(self.allocator, chunk, left)
                left -= chunks[at].tokens - chunk.tokens
            steering |= request.steers
        step = self.allocator.build(self._next_step, decode, chunks)
        if steering:
            step = steered(step, rows, work)
        try:
            ticket = self.executor.launch(step)
        except AssertionError:
            raise
        except Exception as error:
            self._fail(error)
            return True
        if self._shows_steps:
            new = ", ".join(f"{chunk.tokens} for row {chunk.row}" for chunk in chunks)
            print(
                f"sglc: step {self._next_step}: {decode.size} rows decode; prompt tokens: {new or 'none'}",
                file=sys.stderr,
            )
        self._next_step += 1
        self._launched(step, ticket, chunks)
        return True

    def _launched(self, step: Step, ticket: Any, chunks: list[PrefillChunk]) -> None:
        """Record a launched step and what ends with it on the host's side."""
        flight = Flight(
            step.index,
            ticket,
            len(step.ids),
            step.rows,
            self.rows.generation[step.rows],
            np.flatnonzero(step.sample).astype(np.int32),
            step.top_rows.tolist(),
        )
        self._flights.append(flight)
        for chunk in chunks:
            if chunk.scored:
                flight.scored += scores_of(self.allocator.work[chunk.row].part, chunk.scored)
        for row in self.allocator.launched(step, chunks):
            part, node = self.allocator.work[row].part, self.allocator.work[row].node
            if part.kind is not PartKind.SAMPLE:
                keep = part.kept if part.kind is PartKind.PROMPT else 0
                node = self.allocator.retire(row, keep)
                flight.ended.append(part.request)
            if part.kind is not PartKind.CHOICE:
                if part.kind is PartKind.SAMPLE and len(part.request.samples) == 1:
                    self.handles.reached(part.request.handle, node)  # and its last page when its row ends
                else:
                    self.handles.follow(part.request.handle, node)
                if part.request.pending > 1 and not part.request.forked:
                    self.queue.fork(part)

    def _drain(self, meanwhile: Callable[[], bool] | None) -> None:
        flight = self._flights[0]
        with give_way.waiting() if self.threads.working else nullcontext():
            while meanwhile is not None and not self._is_over(flight):
                if not meanwhile():
                    if flight.tokens < _LONG_STEP:
                        break
                    sleep(_LOOKS_S)  # for what comes before the step is over
            try:
                result = self.executor.drain(flight.ticket)
            except AssertionError:
                raise
            except Exception as error:
                self._flights.popleft()
                self._fail(error)
                return
        self._flights.popleft()
        assert result.index == flight.index, "steps are drained out of order"
        self.allocator.drained(flight.index)
        self._refuse_no_numbers(flight, result)
        if flight.scored:
            self._events += take_scores(flight, result)
        self._take_tokens(flight, result)
        if self.rows.guided:
            self._end_runs(flight)
        for request in flight.ended:
            if request.live:
                self._end_part(request)

    def _is_over(self, flight: Flight) -> bool:
        with suppress(Exception):  # it is raised again where the step is drained
            return self.executor.ready(flight.ticket)
        return True

    def _refuse_no_numbers(self, flight: Flight, result: StepResult) -> None:
        """End requests whose log-probabilities are NaN: nothing was chosen by these."""
        made, scores = result.logprobs, result.scores
        if not np.isnan(made.dot(made) + scores.dot(scores)):
            return
        sampled = flight.sampled
        current = self.rows.generation[flight.rows[sampled]] == flight.generation[sampled]
        rows = flight.rows[sampled][current & np.isnan(made[sampled])]
        bad = [self.allocator.work[row].part.request for row in rows.tolist()]
        ends = np.cumsum([score.count for score in flight.scored])
        places = np.searchsorted(ends, np.flatnonzero(np.isnan(scores)), side="right")
        for request in [*bad, *(flight.scored[place].request for place in places.tolist())]:
            if request.live:
                self._refuse(request, _no_numbers())

    def _take_tokens(self, flight: Flight, result: StepResult) -> None:
        rows = flight.rows[flight.sampled]
        current = self.rows.generation[rows] == flight.generation[flight.sampled]
        offsets = flight.sampled[current]
        rows = rows[current]
        for row in rows[self.rows.forced[rows]].tolist() if self.rows.guided else ():
            self._land(row)
        tokens, logprobs = result.tokens[offsets], result.logprobs[offsets]
        stopped, full = self.rows.take(rows, tokens, logprobs)
        looked_at = self.rows.looked_at[rows]
        over = forced = np.zeros(rows.size, np.bool_)
        if self.rows.guided and result.follows is not None:
            over, forced = self._followed(rows, offsets, result.follows)
        listed = np.full(rows.size, -1, np.int32)
        if flight.tops:
            listed = self._note_likeliest(flight, rows, offsets, stopped, result)
        places = np.flatnonzero(stopped | full | looked_at | over | forced)
        if not places.size:
            return
        refused = False
        arrays = (rows, tokens, logprobs, stopped, full, looked_at, over, forced, listed, self.rows.tops[rows])
        columns = [values[places].tolist() for values in arrays]
        for row, token, logprob, is_stop, is_full, look, ends, single, at, tops in zip(*columns, strict=True):
            if row not in self.allocator.work:
                assert refused, f"a result for row {row}, which nobody uses"
                continue
            part = self.allocator.work[row].part
            likely = NONE_LIKELY if at < 0 else likeliest_at(result, at, tops)
            if is_stop:
                self._end_sample(part.request, part.index, "stop", (token, logprob, likely))
                continue
            if look:
                if part.request.watch:
                    self._events.append(Token(part.request.id, part.index, token, logprob, likely))
                try:
                    ends = account(part, token) or ends
                    if part.request.constraint is not None and part.request.constraint.slow:
                        self.rows.late[row] = True
                        self._lookaheads.behind(part, token, int(self.rows.made[row]), last=is_full)
                        continue
                    if part.request.steered and not (ends or is_full):
                        force(self.allocator, row, part)
                except SglcError as error:
                    refused = True
                    self._refuse(part.request, error)
                    continue
            if ends:
                self._end_sample(part.request, part.index, "stop")
            elif is_full:
                self._end_sample(part.request, part.index, "length")
            elif single:
                self._jump(row, part)

    def _note_likeliest(
        self, flight: Flight, rows: I32, offsets: I32, stopped: Bool, result: StepResult
    ) -> I32:
        """Enter the likeliest ids at the places of ids that are kept; gives of each row where the step has its
        likeliest ids, -1 for one that did not ask."""
        place = np.full(flight.rows.size, -1, np.int32)
        place[flight.tops] = np.arange(len(flight.tops))
        at = place[offsets]
        kept = (at >= 0) & ~stopped
        rows = rows[kept]
        work = self.allocator.work
        columns = (rows.tolist(), at[kept].tolist(), self.rows.tops[rows].tolist())
        for row, index, count in zip(*columns, strict=True):
            part = work[row].part
            part.request.samples[part.index].likeliest.append(likeliest_at(result, index, count))
        return at

    def _followed(self, rows: I32, offsets: I32, follows: I32) -> tuple[Bool, Bool]:
        """Of `rows` whose automata the executor follows: whose text has to end, and which may jump."""
        held, follows = self.rows.automaton[rows] >= 0, follows[offsets]
        few = self.rows.decoding().size <= _JUMPING_ROWS
        return held & (follows == 0), held & ((follows == 1) & few | self.rows.late[rows])

    def _jump(self, row: int, part: RequestPart) -> None:
        """Where many ids have to follow, a row waits for its steps in flight, and has them at once."""
        rows = self.rows
        if not rows.late[row] and not worth_waiting(rows, row, part):
            return
        rows.hold_back(row)
        if rows.seq_len[row] < rows.begun[row] + rows.made[row]:  # nothing of it is in flight
            rows.late[row] = False
            force(self.allocator, row, part)

    def _looked_ahead(self, request: EngineRequest, sample: int, ahead: Lookahead, last: bool) -> None:
        """What a sample goes on with is known; or that it ends, because it has to or had its `last` id."""
        row = request.samples[sample].row
        if ahead.ends or last:
            self._conclude(request, sample, None, "stop" if ahead.ends else "length")
        elif row >= 0:
            self.rows.late[row] = False
            force(self.allocator, row, self.allocator.work[row].part)

    def _land(self, row: int) -> None:
        before = int(self.rows.made[row])
        self._events += land(self.rows, row, self.allocator.work[row].part)
        self.forced += int(self.rows.made[row]) - before

    # -- ends

    def _end_runs(self, flight: Flight) -> None:
        """Samples whose text ends with a run that is through now are complete."""
        for score in flight.scored:
            run = score.run
            if run is None or not run.finish or len(run.logprobs) < len(run.ids) or not score.request.live:
                continue
            for sample, state in enumerate(score.request.samples):
                if state.run is run and not state.done:
                    self._land(state.row)
                    self._end_sample(score.request, sample, run.finish)

    def _conclude(self, request: EngineRequest, sample: int, length: int | None, finish: str) -> None:
        """A sample, with or without a row, is complete with its first `length` tokens; None: with all."""
        row = request.samples[sample].row
        if row < 0:
            ids, logprobs = self.queue.withdraw(request, sample)
            assert length is None or 0 <= length <= len(ids), "a cut behind the tokens reported"
            self._report(request, sample, ids[:length], logprobs[:length], finish)
            return
        if length is not None:
            assert 0 <= length <= self.rows.made[row], "a cut behind the tokens reported"
            self.rows.made[row] = length
        self._end_sample(request, sample, finish)

    def _end_sample(self, request: EngineRequest, sample: int, finish: str, last: Last | None = None) -> None:
        """A sample is complete; `last` was decoded, and is not kept."""
        state = request.samples[sample]
        state.done = True
        ids, logprobs = self.rows.sampled(state.row)
        written = min(len(request.ids) + len(ids), int(self.rows.seq_len[state.row]))
        node = self.allocator.retire(state.row, 0 if request.root.scratch else written)
        if sample == 0:
            self.handles.follow(request.handle, node)
        self._report(request, sample, ids, logprobs, finish, last)

    def _report(
        self,
        request: EngineRequest,
        sample: int,
        ids: tuple[int, ...],
        logprobs: tuple[float, ...],
        finish: str,
        last: Last | None = None,
    ) -> None:
        """Account for a sample that is complete and has no row any more."""
        state = request.samples[sample]
        state.done = True
        request.completion += len(ids) + (last is not None)
        if not request.fixed_length and request.sampling is not None:
            self.allocator.observe(len(ids), request.sampling.max_tokens)
        self._events.append(SampleDone(request.id, sample, ids, logprobs, finish, tuple(state.likeliest), last))
        self._end_part(request)

    def _end_part(self, request: EngineRequest) -> None:
        request.pending -= 1
        if request.pending:
            return
        if request.choices is not None:
            self._events.append(request.scores())
        self._events.append(request.done())
        self._forget(request)

    def _forget(self, request: EngineRequest) -> None:
        """A request is over: what it still holds is given back."""
        del self._requests[request.id]
        self.handles.used(request.handle, request.turn.place + DUE)
        request.live = False
        if request.constraint is not None and request.constraint.slow:
            self.threads.drop(request)
        if request.automaton >= 0:
            assert request.constraint is not None
            assert request.constraint.automaton is not None
            self.executor.release(request.constraint.automaton)
        if request.pending:
            self.queue.drop(request)
            for row in [row for row, work in self.allocator.work.items() if work.part.request is request]:
                self.allocator.retire(row, 0)
        if request.pinned is not None:
            self.tree.unpin(request.pinned)

    def _refuse(self, request: EngineRequest, error: SglcError) -> None:
        """A request cannot go on, for a reason of its own."""
        self._forget(request)
        self._events.append(RequestFailed(request.id, error))

    def _fail(self, cause: Exception) -> None:
        """The executor failed: so do the requests that it worked on, and no KV can be trusted any more."""
        for flight in self._flights:
            # An executor gives its steps back in order; what the others hold is of no use now.
            with suppress(Exception):
                self.executor.drain(flight.ticket)
        self._flights.clear()
        self.allocator.reset(self._next_step - 1)
        self.handles.reset()
        self.reservations.reset()
        for request in [request for request in self._requests.values() if request.started]:
            request.pinned = None
            self._forget(request)
            self._events.append(RequestFailed(request.id, _as_error(cause)))

    def _held(self, request: EngineRequest, constraint: Constraint, eos_ids: frozenset[int]) -> int:
        """What the executor follows for a request's samples; -1 if steps bring masks."""
        sampling = request.sampling
        # A mask may have the ids in it that end all turns, and no others.
        if request.stop_ids not in (frozenset(), eos_ids) or not self.executor.keeps:
            return -1
        automaton = None if constraint.slow or sampling is None or sampling.penalised else constraint.automaton
        held = None if automaton is None else self.executor.hold(automaton)
        return -1 if held is None else held

    # -- small things

    def _request(self, handle: Handle, prompt: Prefix, parts: int, turn: QueuePosition | None) -> EngineRequest:
        self._next_request += 1
        turn = turn or QueuePosition(self._next_request)
        root = prompt.root if self.config.cache else self.tree.scratch()
        return EngineRequest(
            self._next_request, handle, prompt.ids, prompt.array, root, prompt.base, parts, turn, perf_counter()
        )

    def _submit(self, request: EngineRequest) -> RequestId:
        self._requests[request.id] = request
        self.handles.expect(request.handle, request.turn.place + DUE)
        self.queue.add(first_part(request))
        return request.id


def _no_numbers() -> BackendError:
    """SGLC518: what a model computes is NaN."""
    return BackendError(
        "SGLC518",
        "the model's log-probabilities are not numbers",
        note="there are infinite numbers or NaN in its weights, or in what it makes of this prompt",
        hint="fetch the model again, or take another `dtype`",
    )


def _as_error(cause: Exception) -> SglcError:
    if isinstance(cause, SglcError):
        return cause
    error = BackendError(
        "SGLC520", f"the model's executor failed: {type(cause).__name__}: {cause}", hint="run it again"
    )
    error.__cause__ = cause
    return error
