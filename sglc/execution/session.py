"""Runs launches and plans on a back end: binds arguments and seeds, follows events, keeps results.

One asyncio loop in a background thread serves every run of the process; threads of user code
only wait here. A failure belongs to the generation that failed; everything else goes on.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Container, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import Context
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any

from sglc.errors import BackendError, Loc, RunError, SglcError
from sglc.execution.bind import Own, Template, asked_in, seeds_of, without_keeps
from sglc.execution.budget import BudgetTracker, is_budget
from sglc.execution.call_record import CallRecord, meta_info
from sglc.execution.context import resolve
from sglc.execution.event_loop import Job, start
from sglc.execution.observer import Observer
from sglc.execution.outputs import Part as TextPart
from sglc.execution.outputs import PendingOutput, RunOutputs, stopped
from sglc.execution.recover import Launched, cause_of, mended
from sglc.execution.served import Served, behind
from sglc.frontend.program.instance import first
from sglc.frontend.values.recorded import Recorded, RecordedStream
from sglc.ir import ops
from sglc.ir.core import Site, Value
from sglc.ir.plan.backend import Backend
from sglc.ir.plan.dataflow import left_in_prompt
from sglc.ir.plan.events import Delta, Event, GenDone, NodeFailed, SelectDone, batches_of
from sglc.ir.plan.segment import (
    GenNode,
    KeepNode,
    OpenNode,
    Part,
    ReleaseNode,
    Segment,
    SelectNode,
)
from sglc.ir.plan.stream_text import StreamAt, stream_pieces
from sglc.passes.chat.pictures import refuse_picture
from sglc.passes.compile import cached

HANDLES = count()
Told = Callable[[PendingOutput], None]


@dataclass(frozen=True, slots=True)
class _Kept:
    """A stream by where it was made: its text can be put together from the nodes before it."""

    segment: Segment
    node: int
    number: int | None  # the back end's handle; None if the stream is not kept there


@dataclass(slots=True)
class _Launches:
    """The streams of what was launched."""

    kept: dict[str, _Kept] = field(default_factory=dict)
    numbered: dict[int, _Kept] = field(default_factory=dict)
    shown: str = ""  # the handle up to which the outputs have the text
    gone: set[int] = field(default_factory=set)  # handles of streams that were never sent
    told: list[TextPart] = field(default_factory=list)  # what readers of the whole text have seen before
    mended: dict[int, StreamAt] = field(default_factory=dict)  # kept streams that go on behind a failure
    refused: dict[str, SglcError] = field(default_factory=dict)  # streams of launches that did not begin


class Session:
    """One instance's side of the executor (the frontend's `Launcher`).

    What it makes goes into `outputs`. `on_text` is called with every piece of generated text as it
    comes, and with None when its generation is over, in the loop's thread. After every launch readers of the
    whole text see `stream`, that of the body, as far as it came; the body reads inside of `waiting`.

    Args:
        tracker: of its budget (`own_budget`), or that of a run around.
        drawn: nobody asked for the seed.
        context: the variables that back ends see; None: those of whoever launches.
    """

    cache_keys: Mapping[Site, str] | None = None  # what the whole program says of its launches
    served: Served | None = None  # what is there already
    stream: RecordedStream | None = None
    waiting: Callable[[str], AbstractContextManager[None]] | None = None
    when_stopped: Callable[[], None] | None = None  # is called when the run is stopped, in any thread
    submits: int = 0
    stopped: bool = False
    ended_by: RunError | None = None  # why nothing begins any more, though what runs goes on to its end
    _reason: RunError | None = None  # why it was stopped, if nobody asked for it
    _launched_before: _Launches | None = None  # of a program that runs as Python
    _running: int = 0  # changes inside `outputs.change`
    _then: Callable[[], None] | None = None  # to be called when nothing runs
    _cut: frozenset[Site] = frozenset()  # what ran when a budget was passed

    def __init__(
        self, backend: Backend, seed: int, row: int = 0,
        on_text: Callable[[Site, str | None], None] | None = None, outputs: RunOutputs | None = None,
        tracker: BudgetTracker | None = None, *, own_budget: bool = False, observer: Observer | None = None,
        drawn: bool = False, context: Context | None = None,
    ) -> None:  # fmt: skip
        self.backend = backend
        self.seed = seed
        self.row = row
        self.on_text = on_text
        self.outputs = outputs = outputs or RunOutputs()
        self.tracker = tracker
        self.own_budget = own_budget
        self.observer = observer
        self.drawn = drawn
        self.context = context
        outputs.content = self.content
        self.seeds = seeds_of(seed, row)
        self.began_s = time.perf_counter()  # when the run began
        self._jobs: list[Job] = []

    @property
    def _launches(self) -> _Launches:
        launches = self._launched_before = self._launched_before or _Launches()
        return launches

    @property
    def calls(self) -> Sequence[CallRecord]:
        """The generations and choices that were completed, in order of completion."""
        return self.outputs.calls

    @property
    def elapsed_s(self) -> float:
        """Seconds since the run began."""
        return time.perf_counter() - self.began_s

    def begin(self) -> None:
        """The row leaves the queue: its time begins."""
        self.began_s = time.perf_counter()

    # -- what the frontend asks for --------------------------------------------------------------

    def launch(self, recorded: Recorded) -> None:
        """Compile (once per distinct program) and submit what a function recorded.

        Raises:
            SglcError: the target cannot do it, or the run was stopped (SGLC407), or it goes on behind what
                was refused.
        """
        try:
            self._launch(recorded)
        except SglcError as error:
            self._refuse(recorded, error)
            raise
        if self.stream is not None:
            self._show(self.stream.handle)

    def _refuse(self, recorded: Recorded, error: SglcError) -> None:
        """A launch did not begin. A program may catch that; what it goes on with behind it is refused too."""
        kept = recorded.program.returns
        for handle in kept if isinstance(kept, Mapping) else ():
            self._launches.kept.pop(handle, None)
            self._launches.refused[handle] = error
        made = [op.site for op in recorded.program.ops if isinstance(op, ops.Gen | ops.Select)]
        self.outputs.refuse([self.outputs.at(site) for site in made], error)

    def _launch(self, recorded: Recorded) -> None:
        opened = {name: kept.number for name, kept in self._launches.kept.items()}
        released = [opened.get(name) for name in recorded.release]
        numbered = [number for number in released if number is not None and number not in self._launches.gone]
        releases = tuple([ReleaseNode(number) for number in numbered]) if numbered else ()
        if not recorded.program.ops:
            if releases:
                self.submit(Segment(releases), {})
            return
        segment = _segment_of(recorded, self.backend)
        if self._launches.refused:
            for node in segment.nodes:
                if isinstance(node, OpenNode) and node.handle in self._launches.refused:
                    raise self._launches.refused[str(node.handle)]
        keeps = [node for node in segment.nodes if isinstance(node, KeepNode)]
        numbers = {} if recorded.final else {node.handle: next(HANDLES) for node in keeps}
        own = Own(
            recorded.texts, opened, numbers, self.seeds, self.cache_keys, self.outputs.call, drawn=self.drawn
        )
        bound = self._bound(without_keeps(segment) if recorded.final else segment, own)
        for node in keeps:
            number = numbers.get(node.handle)
            kept = _Kept(bound, node.stream, number)
            self._launches.kept[str(node.handle)] = kept
            if number is not None:
                self._launches.numbered[number] = kept
        self.submit(Segment((*bound.nodes, *releases)) if releases else bound, asked_in(bound))

    def launch_on(self, backend: Any, recorded: Recorded, loc: Loc) -> None:
        """Run a program of its own on another back end, as a part of this run: its calls, seeds, errors.

        Raises:
            SglcError: no such back end, it cannot do it, or the run was stopped (SGLC407).
        """
        other = resolve(backend, loc)
        if self.observer is not None:
            other = self.observer.other(other, recorded.program, loc)
        other.start()
        own = Own(recorded.texts, {}, {}, self.seeds, call=self.outputs.call, drawn=self.drawn)
        bound = self._bound(_segment_of(recorded, other), own)
        self.submit(bound, asked_in(bound), backend=other)

    def _bound(self, segment: Segment, own: Own) -> Segment:
        """The segment with the row's own data; in a called program its sites are those of the call."""
        return Template(segment, placed=bool(self.outputs.call)).bind(own)

    def text_of_site(self, site: Site) -> str | list[str]:
        """The text that a generation made (a list for n > 1); waits for it.

        Raises:
            the error of the generation.
        """
        if self.waiting is None:
            return self._text_at(self.outputs.at(site))
        with self.waiting(str(site)):
            return self._text_at(self.outputs.at(site))

    def _text_at(self, site: Site) -> str | list[str]:
        """`text_of_site` of a site as it is at run time."""
        if site in self.outputs.refused:
            raise self.outputs.refused[site]
        if site not in self.outputs.generations:
            raise RunError("SGLC406", f"`{site.name}` was never run: the function ended before")
        output = self.outputs.generations[site]
        if not output.ready:
            self.outputs.wait(lambda: output.ready or None)
        made: str | list[str] = self._text_of(output)
        return made

    def _text_of(self, output: PendingOutput) -> Any:
        if output.error is not None:
            if not self.stopped:  # the end of the run is nothing to recover from
                with self.outputs.change:
                    output.root.raised = True
            raise output.error
        assert output.text is not None
        return output.text

    def made_again(self, site: Site) -> None:
        """Another generation was made for one that failed, which is no failure of the run then."""
        self.outputs.generations[self.outputs.at(site)].replaced = True

    def text_in_prompt(self, site: Site) -> str:
        """What stands in a prompt where a generation was made: nothing, if the program caught its failure.

        Raises:
            the error of the generation.
        """
        return self._in_prompt_at(self.outputs.at(site))

    def _in_prompt_at(self, site: Site) -> str:
        """`text_in_prompt` of a site as it is at run time."""
        output = self.outputs.generations.get(site)
        text: str = "" if output is not None and output.caught else first(self._text_at(site))
        return text

    def call_of_site(self, site: Site) -> CallRecord:
        """A call with everything that is known of it; waits for it.

        Raises:
            the error of the generation.
        """
        at = self.outputs.at(site)
        self._text_at(at)
        call = self.outputs.generations[at].call
        assert call is not None
        return call

    def meta_of_site(self, site: Site) -> dict[str, Any]:
        """`meta_info` of that call."""
        return meta_info(self.call_of_site(site))

    def text_of_stream(self, handle: str) -> str:
        """The text of a kept stream, markup included; waits for every generation in it.

        Raises:
            the error of a generation in it, or why it was refused.
        """
        if handle in self._launches.refused:
            raise self._launches.refused[handle]
        parts = self._content(self._launches.kept[handle], None)
        return "".join(part if isinstance(part, str) else self._in_prompt_at(part) for part in parts)

    def text_of_program(self, recorded: Recorded) -> str:
        """The text of the stream that a program keeps, which generates nothing; nothing of it is sent."""
        segment = _segment_of(recorded, self.backend)
        (keep,) = (node for node in segment.nodes if isinstance(node, KeepNode))
        bound = self._bound(without_keeps(segment), Own(recorded.texts, {}, {}, self.seeds))
        return "".join(map(str, stream_pieces((bound, keep.stream), lambda _: None)))

    def content(self, handle: str) -> list[TextPart] | None:
        """What a stream is made of; None if it was not launched yet."""
        return self._content(self._launches.kept[handle], None) if handle in self._launches.kept else None

    def _show(self, handle: str) -> None:
        """The run's own stream has come as far as `handle`: readers of the whole text see what is new."""
        if handle == self._launches.shown or handle not in self._launches.kept:
            return
        before = self._launches.kept[self._launches.shown] if self._launches.shown else None
        parts = self._content(self._launches.kept[handle], before)
        self._launches.shown = handle
        if self._launches.told:
            parts, self._launches.told = behind(parts, self._launches.told, self._said_before)
        with self.outputs.change:
            self.outputs.text += parts

    def begin_again(self, served: Served) -> None:
        """The program runs from its top once more; what is `served` is not asked for again."""
        served.answers |= self.outputs.begin_again()
        self.served = served
        for number, part in enumerate(self.outputs.text):
            if isinstance(part, Site) and self.outputs.of_a_call(part) and part not in served.answers:
                # A called program was a part of the plan, and is a run of its own now: its texts are literals.
                with self.outputs.change:
                    del self.outputs.text[number:]  # no reader has come so far
                break
        self._launches.told = list(self.outputs.text)

    @property
    def told_ahead(self) -> str:
        """What readers of the text were told by a plan, and the program has not written since then."""
        return "".join(
            part if isinstance(part, str) else self._said_before(part) for part in self._launches.told
        )

    def _said_before(self, site: Site) -> str:
        """The text of a generation that was there when the program began again."""
        output = self.outputs.before.get(site)
        return "" if output is None else "".join(output.said)

    # -- running ---------------------------------------------------------------------------------

    def submit(
        self, segment: Segment, asked: Mapping[int, GenNode | SelectNode], told: Told | None = None,
        backend: Backend | None = None,
    ) -> None:  # fmt: skip
        """Hand a bound segment, in which these are `asked` for, to the back end: the run's, or another one.

        Each of them is `told` when it has ended, in the loop's thread or before this returns; of a run that is
        stopped perhaps none is.

        Raises:
            RunError: SGLC407, the run was stopped.
        """
        with self.outputs.change:
            if self.stopped or self.ended_by is not None:
                raise self.why_over or stopped()
            over: Mapping[Site, RunError] = {}
            answers = {} if self.served is None else self.served.answers
            there = {node.site for node in asked.values() if node.site in answers} if answers else set()
            if self.tracker is not None:
                new = tuple([node for node in asked.values() if node.site not in there])
                segment = self.tracker.shortened(segment, new)
                over = self.tracker.begin(new)
            generations = began = self.outputs.begin(asked, self.elapsed_s, answers)
            if not over and self.served is None and (backend is not None or not self.outputs.failed):
                self._start(segment, generations, backend, told)
                return
        for site, error in over.items():
            self.outputs.fail(self.outputs.generations[site], error, None)
        if (
            self.served is not None
            and not self.served.over
            and there.issuperset(node.site for node in asked.values())
        ):
            self._launches.gone |= {
                n.handle for n in segment.nodes if isinstance(n, KeepNode) and type(n.handle) is int
            }
            return
        if (self.outputs.failed and backend is None) or self.served is not None:
            segment, generations = self._going_on(segment, generations, there)
            for output in began.values():
                if output.ready and told is not None:  # it does not begin
                    told(output)
        with self.outputs.change:
            self._start(segment, generations, backend, told)
        if self.stopped:  # meanwhile
            self.close()

    def _going_on(
        self, segment: Segment, generations: dict[int, PendingOutput], there: Container[Site]
    ) -> tuple[Segment, dict[int, PendingOutput]]:
        """What is behind a failure that the program caught goes on without it, what is behind another fails."""
        found = mended(segment, replace(self._launched, served=there))
        if found is None:
            return segment, generations
        for index, cause in found.lost.items():
            if index in generations:
                self.outputs.fail(generations[index], cause.error or stopped(), cause)
        left = [index for index, output in generations.items() if not output.ready]
        self._launches.mended |= {
            node.handle: (found.segment, node.stream)
            for node in found.segment.nodes
            if isinstance(node, KeepNode) and isinstance(node.handle, int)
        }
        return found.segment, {found.places[index]: generations[index] for index in left}

    def wait(self) -> BaseException | None:
        """Wait until everything submitted has ended; gives the first failure in program order."""
        self.outputs.wait(lambda: self._running == 0 or None)
        return self.failure

    @property
    def why_over(self) -> RunError | None:
        """Why nothing begins any more: the run was stopped, or an error is its end; else None."""
        return (self._reason or stopped()) if self.stopped else self.ended_by

    def end_with(self, error: RunError) -> None:
        """Let nothing begin any more: this error is that of the run, whether the program catches it or not."""
        self.ended_by = self.ended_by or error

    @property
    def failure(self) -> BaseException | None:
        """The first failure in program order of what has ended, and that the program has not seen.

        A budget that was passed is one, whoever has seen it, here or in a run in this one.
        """
        for error in self.outputs.refused.values():
            if is_budget(error):
                return error
        failed = [output for output in self.outputs.generations.values() if output.error is not None]
        unseen = [output for output in failed if not output.caught or is_budget(output.error)]
        own = min(unseen, key=lambda output: output.order).error if unseen else None
        if own is not None and not is_budget(own):
            return own
        return (self.tracker.passed if self.tracker is not None and self.own_budget else None) or own

    def when_idle(self, then: Callable[[], None]) -> None:
        """Call `then` as soon as everything submitted has ended: now, or later in the loop's thread."""
        with self.outputs.change:
            if self._running:
                self._then = then
                return
        then()

    def stop(self, reason: RunError | None = None) -> None:
        """Stop what runs, and let nothing begin any more. What was made is kept."""
        with self.outputs.change:
            self.stopped, self._reason = True, self._reason or reason
            self.outputs.give_up(self.outputs.generations.values(), self._reason or stopped())
            running = tuple(self._jobs)
        for job in running:
            job.cancel()
        if self.when_stopped is not None:
            self.when_stopped()

    def close(self) -> None:
        """Stop what still runs, and give back kept streams; `wait` and `when_idle` wait for that."""
        for job in tuple(self._jobs):
            job.cancel()
        sent = [number for number in self._launches.numbered if number not in self._launches.gone]
        if sent:
            with self.outputs.change:
                self._start(Segment(tuple(map(ReleaseNode, sent))), {})

    def forget(self) -> None:
        """The run is over: what only it needed can go."""
        self.context = None
        if self._launched_before is not None:
            self._launches.kept.clear()
            self._launches.numbered.clear()
            self._launches.mended.clear()

    # -- inside ----------------------------------------------------------------------------------

    def _start(
        self, segment: Segment, generations: Mapping[int, PendingOutput], backend: Backend | None = None,
        told: Told | None = None,
    ) -> None:  # fmt: skip
        """Called inside `outputs.change`."""
        self.submits += 1
        self._running += 1
        follow = partial(self._follow, segment, generations, backend or self.backend, told)
        job = start(follow, self.context)
        self._jobs.append(job)

    async def _follow(
        self, segment: Segment, generations: Mapping[int, PendingOutput], backend: Backend, told: Told | None
    ) -> None:
        problem: BaseException | None = None
        left = len(generations)
        try:
            async for batch in batches_of(self._events(segment, backend)):
                for event in batch:
                    left -= self._take(segment, generations, event, told)
        except SglcError as error:
            problem = error
        except Exception as error:
            problem = BackendError("SGLC502", f"the back end failed: `{type(error).__name__}`: {error}")
            problem.__cause__ = error
        finally:
            # A back end that ends early must not leave anybody waiting.
            for index, output in generations.items() if left else ():
                if output.site in self._cut:
                    pass  # it has its error, and nobody was told
                elif output.ready:
                    continue
                elif problem is None:
                    self.outputs.give_up((output,), self._reason or stopped())
                else:
                    self._fail(output, problem, cause_of((segment, index), self._launched))
                if told is not None:
                    told(output)
            with self.outputs.change:
                self._running -= 1
                then = None
                if not self._running:
                    self._jobs.clear()
                    then, self._then = self._then, None
            if then is not None:
                then()

    def _events(self, segment: Segment, backend: Backend) -> AsyncIterator[Event]:
        if not backend.target.whole_answers:
            return backend.submit(segment)
        timed = self.observer is not None and self.observer.wants_pieces
        return backend.submit(segment, streams=timed or self.outputs.heard or self.on_text is not None)

    def _take(
        self, segment: Segment, generations: Mapping[int, PendingOutput], event: Event, told: Told | None
    ) -> bool:
        """Something of a segment has come; gives whether a generation has ended with it."""
        output = generations.get(event.node)
        if output is None or output.error is not None:  # it was stopped
            return False
        match event:
            case GenDone() if output.several:
                self._done(output, [sample.text for sample in event.samples], event)
            case GenDone():
                self._done(output, event.samples[0].text, event)
            case SelectDone():
                if self.on_text is not None:
                    self.on_text(output.site, event.text)
                self._done(output, event.text, event)
            case NodeFailed():
                self._fail(output, event.error, cause_of((segment, event.node), self._launched))
            case Delta():
                if output.first_s is None:
                    output.first_s = self.elapsed_s
                if self.outputs.heard:
                    with self.outputs.change:
                        self.outputs.add(output, event.text, event)
                if self.on_text is not None:
                    self.on_text(output.site, event.text)
                return False
        if told is not None:
            told(output)
        return True

    def _fail(self, output: PendingOutput, error: BaseException, cause: PendingOutput | None) -> None:
        reason: RunError | None = None
        with self.outputs.change:
            self.outputs.fail(output, error, cause)
            if self.tracker is not None and output.spent is not None:
                reason = self.tracker.spend(output.node, output.spent.completion)
                output.error = reason or output.error
        if reason is not None:
            self._passed(reason)

    def _passed(self, reason: RunError) -> None:
        """A budget of tokens is used up. A plan goes on with what generates nothing: its tools may stand before
        what passed it, and begin behind it."""
        if self.when_stopped is None:
            self.stop(reason)
            return
        with self.outputs.change:
            self._reason = self._reason or reason
            self._cut |= {output.site for output in self.outputs.generations.values() if not output.ready}
            self.outputs.give_up(self.outputs.generations.values(), reason)
        for job in tuple(self._jobs):
            job.cancel()

    def _done(self, output: PendingOutput, text: str | list[str], event: GenDone | SelectDone) -> None:
        came_whole = output.first_s is None  # before who observes says when it came the first time
        output.ended_s, output.event = self.elapsed_s, event
        if self.observer is not None:
            self.observer.done(output)
        if self.on_text is not None:
            if came_whole and isinstance(event, GenDone):
                self.on_text(output.site, first(text))
            self.on_text(output.site, None)
        outputs = self.outputs
        with outputs.change:
            if came_whole and (outputs.live or outputs.outer is not None) and first(text):
                outputs.add(output, first(text))
            output.text = text
            outputs.finish(output)
            spent = event.usage.completion
            reason = None if self.tracker is None else self.tracker.spend(output.node, spent)
            if reason is not None:
                output.text, output.error = None, reason  # it may have been cut short
        if reason is not None:
            self._passed(reason)

    @property
    def _launched(self) -> Launched:
        outputs = self.outputs

        def stream(handle: int) -> StreamAt | None:
            if handle in self._launches.mended:
                return self._launches.mended[handle]
            kept = self._launches.numbered.get(handle)
            return None if kept is None else (kept.segment, kept.node)

        def parts(node: GenNode | SelectNode) -> tuple[Part, ...]:
            output = outputs.generations[node.site]
            outputs.wait(lambda: output.ready or None)
            self._text_of(output)
            assert output.event is not None
            return (left_in_prompt(output.event, self.backend.target),)

        return Launched(stream, lambda node: outputs.generations[node.site], parts, self._launches.gone)

    def _content(self, kept: _Kept, since: _Kept | None) -> list[TextPart]:
        """The text of a stream behind `since` (or its beginning): literals, and whose text stands there."""

        def opened(number: int) -> StreamAt | None:
            before = self._launches.numbered[number]
            return None if before is since else (before.segment, before.node)

        return stream_pieces((kept.segment, kept.node), opened)


def _segment_of(recorded: Recorded, backend: Backend) -> Segment:
    """What a launch becomes on a back end: one segment, compiled once for all launches that are equal.

    Raises:
        LegalizeError: it cannot do what the launch asks for, or a picture of this row.
    """
    for op in recorded.program.ops:
        if isinstance(op, ops.Image):
            refuse_picture(backend.target, _literal(op.data, recorded), "", op.loc)
    plan = cached(recorded.program, backend.target).plan
    (segment,) = (step for step in plan.steps if isinstance(step, Segment))
    return segment


def _literal(text: Value | str, recorded: Recorded) -> str:
    """A text of a launch, whose literals are its row's."""
    slots = {param.results[0]: param.name for param in recorded.program.params if isinstance(param, ops.Arg)}
    return text if isinstance(text, str) else recorded.texts.get(slots.get(text, ""), "")
