"""Parts of requests that wait for a row, and how the prompts among the work share a step.

Parts wait in the order of their programs (`requests.Turn`). One that will find more of its prompt cached in
the next step lets others go first. A sample whose row was preempted waits again, to go on where it was.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from contextlib import suppress
from operator import attrgetter, itemgetter
from time import perf_counter

import numpy as np

from sglc.ir.sampling import Sampling
from sglc.runtime.cache.page_tree import Key, PageNode
from sglc.runtime.cache.sequence_handles import Handles, Prefix
from sglc.runtime.histogram import Histogram
from sglc.runtime.ids import common_prefix
from sglc.runtime.scheduler import scheduler
from sglc.runtime.scheduler.batch_state import TOKENS, PrefillChunk
from sglc.runtime.scheduler.fair_share import FairShare
from sglc.runtime.scheduler.kv_allocator import KVAllocator, RowWork
from sglc.runtime.scheduler.requests import (
    EngineRequest,
    PartKind,
    RequestPart,
    later_parts,
    resumed,
    scored_places,
    state_behind,
)
from sglc.runtime.scheduler.reservations import PrefixReservations
from sglc.runtime.scheduler.samples import bias_of
from sglc.runtime.step import I32, StepCost

_NEXT = 64  # parts in the queue that come soon
_NEAR = 16  # ids
_IDS, _ORDER, _REACH = attrgetter("ids"), attrgetter("order"), itemgetter(0)
_WAITS_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class RequestQueue:
    """The queue of one engine.

    Args:
        token_budget: tokens of one step; while rows decode, as many as `cost` affords, if it is given.
        max_rows: rows in flight.
        keeps: whether the executor keeps what is added to logits.
    """

    def __init__(
        self,
        allocator: KVAllocator,
        handles: Handles,
        reservations: PrefixReservations,
        token_budget: int,
        max_rows: int,
        cost: StepCost | None,
        keeps: bool,
    ) -> None:
        self.allocator = allocator
        self._handles = handles
        self._reservations = reservations
        self._token_budget = token_budget
        self._cost = cost
        self._short = scheduler.short_prompt(cost)
        self._max_rows = max_rows
        self._keeps = keeps
        self.parts: list[RequestPart] = []  # that wait
        self._highest = 0  # first number of the orders that came, of the lowest priority: most have 0
        self.begun = 0  # rows that began in the last step, those of choices not counted
        self.left = 0  # tokens of the last step that no prompt has
        self.preempted = 0  # rows that were preempted so far
        self.fair = FairShare()
        self._lacks_pages = False  # who is the next had a row and no pages
        self.waits = Histogram(_WAITS_S)  # seconds of requests until their first row

    def add(self, part: RequestPart) -> None:
        """`part` waits from now on, behind all that came before."""
        self._highest = max(self._highest, part.order[0])
        if self.parts and part.order < self.parts[-1].order:
            insort(self.parts, part, key=_ORDER)
        else:
            self.parts.append(part)

    def wanted(self, ids: Key, beyond: int, root: PageNode) -> int:
        """How many of `ids` below `root` the next one begins with who needs a page more than `beyond` of them.

        0 if nobody does of those who come soon.
        """
        end = beyond + self.allocator.page_size
        if len(ids) < end:
            return 0
        soon, page = self.parts[:_NEXT], ids[beyond:end]
        with suppress(IndexError):  # of one with fewer ids
            # Seldom the same: what a row shares with others was theirs before it, but for the first of them.
            # What follows that may begin with some ids that all rows have: the last one tells them apart.
            if page[-1] not in map(itemgetter(end - 1), map(_IDS, soon)):
                return 0
        for part in soon:
            if part.ids[beyond:end] == page and part.request.root is root:
                common = common_prefix(part.ids, ids)
                if common > beyond:
                    return common
        return 0

    @property
    def waiting(self) -> int:
        """Parts that wait for a row."""
        return len(self.parts)

    @property
    def fitting(self) -> int:
        """Rows of which a step is full, if each has as many tokens as those that began in the last one."""
        return self._token_budget * self.begun // max(self._token_budget - self.left, 1)

    @property
    def coming(self) -> int:
        """Parts that may have a row in the next step, as far as that is known."""
        return 0 if self._lacks_pages else min(len(self.parts), self.allocator.rows.free)

    @property
    def ready(self) -> bool:
        """Whether a part waits that has all but a row."""
        return any(not part.late for part in self.parts)

    def drop(self, request: EngineRequest) -> None:
        """Nothing of `request` waits any more."""
        self.parts = [part for part in self.parts if part.request is not request]

    def withdraw(self, request: EngineRequest, sample: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """A sample that was preempted will not go on: its ids and their log-probabilities."""
        at = [(part.request.id, part.index) for part in self.parts].index((request.id, sample))
        part = self.parts.pop(at)
        assert part.logprobs is not None, "a cut before the sample began"
        return part.ids[len(request.ids) :], part.logprobs

    def make_room(self) -> I32:
        """If the rows that decode lack pages, and will, some are preempted for the others; gives the rest."""
        rows = self.allocator.rows
        ready = rows.decoding()
        if rows.steps_paged <= 0:
            missing = self.allocator.missing(rows.known(ready))
            while missing and self._reservations.give_up():
                missing = self.allocator.missing(rows.known(ready))
            if missing and not self.allocator.relief:
                for row in self.allocator.giving_way(missing, ready):
                    self._preempt(row)
                ready = rows.decoding()
        if self.parts and self.parts[0].order[0] < self._highest:  # else all have the same priority
            self._make_way()
            ready = rows.decoding()
        return ready

    def _make_way(self) -> None:
        """Rows of a lower priority are preempted for those that wait with a higher one, and for nobody else."""
        rows, work = self.allocator.rows, self.allocator.work
        first = next((part for part in self.parts[:_NEXT] if not part.late), None)
        if first is None or (rows.free and not self._lacks_pages) or self.allocator.relief:
            return
        behind = [row for row in rows.decoding().tolist() if work[row].part.order[0] > first.order[0]]
        if behind:
            self._preempt(max(behind, key=lambda row: work[row].part.order))

    def _preempt(self, row: int) -> None:
        """A row is preempted. Its sample goes on, ahead of all that came later, when there is room for it.

        What is in flight for it is lost; the same ids come again.
        """
        rows, part = self.allocator.rows, self.allocator.work[row].part
        request = part.request
        ids, logprobs = rows.sampled(row)
        written = min(len(request.ids) + len(ids), int(rows.seq_len[row]))
        self._handles.follow(request.handle, self.allocator.retire(row, 0 if request.root.scratch else written))
        request.samples[part.index].row = -1
        request.samples[part.index].run = None
        insort(self.parts, resumed(part, ids, logprobs), key=_ORDER)
        self.preempted += 1

    def chunks(
        self, decoding: int, stalled: int, before: int
    ) -> tuple[list[PrefillChunk], list[EngineRequest]]:
        """The prompts' share of the next step, beside `decoding` rows that take a token.

        In the step in flight `before` rows began. While `stalled` more rows lack a page for their token, none
        does now. Gives also the requests that turned out to have nothing to compute: they are done.
        """
        unfinished, self.begun = self.allocator.unfinished, 0
        # A row that waits for its last token keeps its place in the budget.
        budget = self._token_budget
        # Somebody sees how long it takes.
        if self._cost is not None and decoding and self.allocator.rows.watched:
            budget = min(budget, self._affordable(self._cost, decoding))
        left, room = budget - decoding, self._token_budget - decoding
        chunks: list[PrefillChunk] = []
        done: list[EngineRequest] = []
        if unfinished:
            rows, work = self.allocator.rows, self.allocator.work
            rest = [int(rows.prompt_len[row] - rows.seq_len[row]) for row in unfinished]
            shares, left = scheduler.divide(budget, decoding, rest)
            room -= sum(shares)
            shared = zip(unfinished, shares, strict=True)
            chunks = [self._chunk(work[row].part, row, tokens) for row, tokens in shared if tokens]
        if self.parts and not stalled:
            admitted, done = self._admit(decoding, left, budget - decoding, room, before)
            chunks += admitted
        self.left = budget - decoding - sum(map(TOKENS, chunks))
        return chunks, done

    def _affordable(self, cost: StepCost, decoding: int) -> int:
        """Tokens of the next step, so that `decoding` rows do not wait for long."""
        rows, unfinished = self.allocator.rows, self.allocator.unfinished
        read = rows.seq_len[unfinished]
        keys = int(rows.seq_len[rows.active].sum() - read.sum())  # of the rows that decode
        position = int(read[0]) if unfinished else 0
        return scheduler.affordable(cost, decoding, keys, position)

    def _chunk(self, part: RequestPart, row: int, tokens: int) -> PrefillChunk:
        request = part.request
        scored: tuple[tuple[int, int], ...] = ()
        if part.trie is not None or request.scored_from is not None or request.constraint is not None:
            scored = scored_places(part, int(self.allocator.rows.seq_len[row]), tokens)
        return PrefillChunk(row, tokens, scored, part.trie, len(request.ids))

    def _admit(
        self, decoding: int, left: int, short: int, room: int, before: int
    ) -> tuple[list[PrefillChunk], list[EngineRequest]]:
        """Give rows to waiting parts, in order, while tokens, rows and pages last, and as many as may begin.

        Short prompts begin while there are some of `short` tokens, which no long one takes from them, or few
        begin for the rows that decode; others get the `left` ones. The step has `room` for as many as that.
        """
        chunks: list[PrefillChunk] = []
        done: list[EngineRequest] = []
        self._lacks_pages = False
        awaited: dict[Prefix | None, int] = {}  # see `_shared_soon`
        at = 0
        # Behind `max_rows` parts that wait for a prefix nobody needs to be looked at: their step is the next.
        late = 0
        last: tuple[RequestPart, PageNode] | None = None  # who was looked at last, and where its ids led
        free = self.allocator.rows.free
        while room and free and at < min(len(self.parts), self._max_rows + late):
            if self.begun >= scheduler.NEW_ROWS and self.begun == scheduler.new_rows(decoding, before):
                break
            few = len(chunks) < decoding // scheduler.ROWS_OF_ONE_BEGIN
            if max(left, short) <= 0 and not few:
                break
            part = self.parts[at]
            if part.request.constraint is not None and part.late:
                late += 1
                at += 1
                continue
            start = self._start(part, last)
            match = self.allocator.tree.match(part.ids, part.limit, start)
            if match.node is not start:
                self._handles.found(part.request.handle, match.node)
            last, cached = (part, match.node), match.length
            if cached == len(part.ids):  # a `warm` with nothing to do
                del self.parts[at]
                part.request.cached += cached
                done.append(part.request)
                continue
            if self.allocator.unfinished and self._shared_soon(part, cached, awaited):
                at += 1
                continue
            is_short = len(part.ids) - cached <= self._short
            if (short if is_short else left) <= 0 and not (is_short and few):
                at += 1
                continue
            opened = self.allocator.open(part, match, room if is_short else min(left, room))
            if opened is None:
                # Rather than that nobody runs, those ahead give up what they hold, too.
                if self._reservations.give_up(part.request.turn.place if self.allocator.work else -1):
                    continue
                self._lacks_pages = True
                break
            del self.parts[at]
            free -= 1
            row, known, tokens = opened
            self._admitted(part, row, known)
            chunks.append(self._chunk(part, row, tokens))
            if part.kind is not PartKind.CHOICE:  # a few tokens behind a prompt, and gone with the step
                self.begun += 1
            left -= tokens
            short -= tokens
            room -= tokens
        return chunks, done

    def _shared_soon(self, part: RequestPart, known: int, awaited: dict[Prefix | None, int]) -> bool:
        """Whether a row that computes its prompt will give `part` a longer prefix, worth waiting for.

        Such a row ends its prompt in the step being made: it would leave no tokens to admit anyone else.

        Args:
            awaited: rows of the step that were worth waiting for, by what those begin with who wait.
        """
        if part.limit <= known:
            return False
        allocator, worth = self.allocator, scheduler.worth_waiting(known, part.limit)
        unfinished, work, tokens = allocator.unfinished, allocator.work, allocator.rows.tokens
        size, first = allocator.page_size, awaited.get(part.request.base)
        if first is not None and _shares(work[first], part):
            kept = work[first].part.kept
            if worth <= _common(tokens, first, kept, part) <= kept // size * size:
                return True
        # The last id of those, and then some before it, tell most rows apart, at little cost.
        alike = tokens[unfinished, worth - 1] == part.array[worth - 1]
        if not alike.any():
            return False
        rows, around = np.array(unfinished)[alike], slice(max(0, known - _NEAR), worth)
        candidates = rows[(tokens[rows, around] == part.array[around]).all(axis=1)].tolist()
        reaches = [
            (_common(tokens, row, work[row].part.kept, part), row)
            for row in candidates
            if _shares(work[row], part)
        ]
        for reach, row in sorted(reaches, key=_REACH, reverse=True):
            if reach < worth:
                return False
            other = work[row].part
            whole = other.kept // size * size  # ids in whole pages
            if reach > whole and other.kind is PartKind.SAMPLE and not allocator.publish(row):
                reach = whole
            if reach >= worth:
                awaited[part.request.base] = row
                return True
        return False

    def _start(self, part: RequestPart, before: tuple[RequestPart, PageNode] | None = None) -> PageNode:
        """A node that the part's ids lead to; the one of the part `before`, if these begin alike."""
        request = part.request
        # Where a prompt is scored, less of it is taken than the handle knows of.
        known = (
            request.root
            if request.scored_from is not None
            else self._handles.start(request.handle, request.root)
        )
        if before is None:
            return known
        other, node = before
        alike = known.end < node.end <= part.limit and node.moved is None and other.request.root is request.root
        return node if alike and bool((part.array[: node.end] == other.array[: node.end]).all()) else known

    def _admitted(self, part: RequestPart, row: int, known: int) -> None:
        """`part` has a row, whose first `known` tokens are cached."""
        request = part.request
        if not request.started:
            self.waits.observe(perf_counter() - request.came_s)
            if request.turn.tag:
                self.fair.began(request.turn.tag)
        request.started = True
        if part.kind is PartKind.SAMPLE:
            assert request.sampling is not None
            request.samples[part.index].row = row
            self._sample(part, row, request.sampling)
        if part.logprobs is not None:  # what it costs was counted when it began
            self.allocator.rows.resume(row, part.logprobs)
            return
        match part.kind:
            case PartKind.CHOICE:
                request.scored += len(part.ids) - part.kept
                request.computed += part.kept - known
            case PartKind.SAMPLE if part.index:
                request.computed += len(part.ids) - 1 - known
            case _:
                request.cached += known
                request.computed += part.kept - known
                request.scored += len(part.ids) - part.kept
                if request.pending > 1:
                    self._prepare_fork(part, row)

    def _sample(self, part: RequestPart, row: int, sampling: Sampling) -> None:
        """The row samples; what the executor keeps for it begins where the ids of its sample so far lead."""
        request, rows = part.request, self.allocator.rows
        sampled = part.ids[len(request.ids) :]
        # What steps bring of a constrained row's runs is not sampled, so the executor does not see it.
        kept = self._keeps and request.adjusts and not (sampling.penalised and request.constraint is not None)
        rows.sample_with(
            row,
            sampling,
            request.seeds[part.index],
            stops=request.stop_ids,
            constrained=request.steered,
            biased=request.adjusts and not kept,
            watched=request.watch,
        )
        if request.automaton >= 0:
            rows.follow(row, request.automaton, state_behind(request, sampled))
        if request.adjusts and self._keeps:
            counts = Counter(sampled) if kept else {}
            penalties = (sampling.frequency_penalty, sampling.presence_penalty) if kept else (0.0, 0.0)
            rows.adjust(row, bias_of(sampling, counts) if kept else {}, counts, penalties)

    def _prepare_fork(self, part: RequestPart, row: int) -> None:
        """Other parts start behind this prompt: now if the tree has all of it, else when it is through."""
        wanted = part.kept - (part.kind is PartKind.SAMPLE)
        if self.allocator.tree.match(part.ids, wanted, self._start(part)).length == wanted:
            self.fork(part)
        elif part.kind is PartKind.SAMPLE and len(part.ids) % self.allocator.page_size > 1:
            self.allocator.publish(row)

    def fork(self, part: RequestPart) -> None:
        """The later parts of a request join the queue, its prompt pinned while they wait."""
        request = part.request
        match = self.allocator.tree.match(request.ids, len(request.ids), self._start(part))
        request.pinned = match.source or match.node
        self.allocator.tree.pin(request.pinned)
        for later in later_parts(request, part):
            insort(self.parts, later, key=_ORDER)
        request.forked = True


def _common(tokens: I32, row: int, kept: int, part: RequestPart) -> int:
    """How many of the first `kept` ids of a row's prompt `part` begins with."""
    most = min(part.limit, kept)
    differs = tokens[row, :most] != part.array[:most]
    first = int(differs.argmax())  # 0, if none does
    return first if differs[first] else most


def _shares(work: RowWork, part: RequestPart) -> bool:
    same_root = work.part.request.root is part.request.root
    return same_root and work.part.kind is not PartKind.CHOICE and not work.diverged
