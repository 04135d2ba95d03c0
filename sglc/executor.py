"""Runs launches and plans on a back end: binds arguments and seeds, follows events, keeps results.

One asyncio loop in a background thread serves every run of the process; threads of user code
only wait here. A failure belongs to the generation that failed; everything else goes on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from sglc.binding import bind, site_seed, without_keeps
from sglc.calls import Call
from sglc.compile import cached
from sglc.errors import BackendError, RunError, SglcError, UsageError
from sglc.feed import Cell, Feed, stopped
from sglc.feed import Part as TextPart
from sglc.frontend.instance import first
from sglc.frontend.recorder import Recorded
from sglc.ir.core import Site
from sglc.ir.plan import (
    ControlText,
    Delta,
    Event,
    ExtendNode,
    ForkNode,
    GenDone,
    GenNode,
    HostStep,
    Joined,
    KeepNode,
    NodeFailed,
    OpenNode,
    Output,
    OutputTree,
    Part,
    Plan,
    ReleaseNode,
    Result,
    Segment,
    SelectDone,
    SelectNode,
    Slot,
)
from sglc.ir.target import Backend
from sglc.loop import executor_loop

_HANDLES = count()


@dataclass(frozen=True, slots=True)
class _Kept:
    """A stream by where it was made: its text can be put together from the nodes before it."""

    segment: Segment
    node: int
    number: int | None  # the back end's handle; None if the stream is not kept there


@dataclass(slots=True)
class Run:
    """One instance's side of the executor (the frontend's `Launcher`).

    What it makes goes into `feed`. `on_text` is called with every piece of generated text as it
    comes, and with None when its generation is over, in the loop's thread.
    """

    backend: Backend
    seed: int
    row: int = 0
    on_text: Callable[[Site, str | None], None] | None = None
    feed: Feed = field(default_factory=Feed)
    submits: int = 0
    stopped: bool = False
    _began: float = field(default_factory=time.perf_counter)
    _kept: dict[str, _Kept] = field(default_factory=dict)
    _numbered: dict[int, _Kept] = field(default_factory=dict)
    _shown: str = ""  # the handle up to which the feed has the text
    _open: list[Future[None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.feed.content = self.content

    @property
    def calls(self) -> Sequence[Call]:
        """The generations and choices that were completed, in order of completion."""
        return self.feed.calls

    @property
    def elapsed_s(self) -> float:
        """Seconds since the run began."""
        return time.perf_counter() - self._began

    def begin(self) -> None:
        """The row leaves the queue: its time begins."""
        self._began = time.perf_counter()

    # -- what the frontend asks for --------------------------------------------------------------

    def launch(self, recorded: Recorded) -> None:
        """Compile (once per distinct program) and submit what a function recorded.

        Raises:
            SglcError: the target cannot do it, or the run was stopped (SGLC407).
        """
        opened = {name: kept.number for name, kept in self._kept.items()}
        released = [opened[name] for name in recorded.release]
        releases = tuple(ReleaseNode(number) for number in released if number is not None)
        if not recorded.program.ops:
            if releases:
                self.submit(Segment(releases))
            return
        plan = cached(recorded.program, self.backend.target).plan
        (segment,) = (step for step in plan.steps if isinstance(step, Segment))
        numbers = {node.handle: next(_HANDLES) for node in segment.nodes if isinstance(node, KeepNode)}
        bound = bind(segment, recorded.texts, opened, numbers, self._seed_of)
        for node in segment.nodes:
            if isinstance(node, KeepNode):
                number = None if recorded.final else numbers[node.handle]
                kept = _Kept(bound, node.stream, number)
                self._kept[str(node.handle)] = kept
                if number is not None:
                    self._numbered[number] = kept
        if recorded.final:
            bound = without_keeps(bound)
        self.submit(Segment((*bound.nodes, *releases)))

    def text_of_site(self, site: Site) -> str | list[str]:
        """The text that a generation made (a list for n > 1); waits for it.

        Raises:
            the error of the generation.
        """
        if site not in self.feed.cells:
            raise RunError("SGLC406", f"`{site.name}` was never run: the function ended before")
        cell = self.feed.cells[site]
        if not cell.ready:
            self.feed.wait(lambda: cell.ready or None)
        if cell.error is not None:
            raise cell.error
        assert cell.text is not None
        return cell.text

    def call_of_site(self, site: Site) -> Call:
        """A call with everything that is known of it; waits for it.

        Raises:
            the error of the generation.
        """
        self.text_of_site(site)
        call = self.feed.cells[site].call
        assert call is not None
        return call

    def text_of_stream(self, handle: str) -> str:
        """The text of a kept stream, markup included; waits for every generation in it."""
        parts = self._content(self._kept[handle], None)
        return "".join(part if isinstance(part, str) else first(self.text_of_site(part)) for part in parts)

    def content(self, handle: str) -> list[TextPart] | None:
        """What a stream is made of; None if it was not launched yet."""
        return self._content(self._kept[handle], None) if handle in self._kept else None

    def show(self, handle: str) -> None:
        """The run's own stream has come as far as `handle`: readers of the whole text see what is new."""
        if handle in ("", self._shown):
            return
        before = self._kept[self._shown] if self._shown else None
        parts = self._content(self._kept[handle], before)
        self._shown = handle
        with self.feed.change:
            self.feed.text += parts

    # -- running ---------------------------------------------------------------------------------

    def submit(self, segment: Segment) -> None:
        """Hand a bound segment to the back end; results arrive in the background.

        Raises:
            RunError: SGLC407, the run was stopped.
        """
        asked = [node for node in segment.nodes if isinstance(node, GenNode | SelectNode)]
        several = [(node.site, isinstance(node, GenNode) and node.sampling.n > 1) for node in asked]
        with self.feed.change:
            if self.stopped:
                raise stopped()
            self.feed.begin(several, self.elapsed_s)
        future = self._start(segment)
        if self.stopped:  # meanwhile
            future.cancel()

    def wait(self) -> BaseException | None:
        """Wait until everything submitted has ended; gives the first failure in program order."""
        wait(self._open)
        failed = [cell for cell in self.feed.cells.values() if cell.error is not None]
        return min(failed, key=lambda cell: cell.order).error if failed else None

    def stop(self) -> None:
        """Stop what runs, and let nothing begin any more. What was made is kept."""
        with self.feed.change:
            self.stopped = True
            self.feed.fail(self.feed.cells, stopped())
            running = tuple(self._open)
        for future in running:
            future.cancel()

    def close(self) -> None:
        """Stop what still runs, and give back kept streams; waits until that is done."""
        for future in self._open:
            future.cancel()
        if self._numbered:
            self._start(Segment(tuple(ReleaseNode(number) for number in self._numbered)))
        wait(self._open)

    # -- inside ----------------------------------------------------------------------------------

    def _start(self, segment: Segment) -> Future[None]:
        self.submits += 1
        future = asyncio.run_coroutine_threadsafe(self._follow(segment), executor_loop())
        self._open.append(future)
        return future

    async def _follow(self, segment: Segment) -> None:
        problem: BaseException | None = None
        try:
            async for event in self.backend.submit(segment):
                self._event(segment, event)
        except SglcError as error:
            problem = error
        except Exception as error:
            problem = BackendError("SGLC502", f"the back end failed: `{type(error).__name__}`: {error}")
            problem.__cause__ = error
        finally:
            # A back end that ends early must not leave anybody waiting.
            sites = [node.site for node in segment.nodes if isinstance(node, GenNode | SelectNode)]
            if any(not self.feed.cells[site].ready for site in sites):
                self.feed.fail(sites, problem or stopped())

    def _event(self, segment: Segment, event: Event) -> None:
        node = segment.nodes[event.node]
        if not isinstance(node, GenNode | SelectNode):
            return
        cell = self.feed.cells[node.site]
        if cell.error is not None:  # it was stopped
            return
        match event:
            case Delta():
                if cell.first_s is None:
                    cell.first_s = self.elapsed_s
                if self.feed.live:
                    with self.feed.change:
                        self.feed.add(cell, event.text)
                if self.on_text is not None:
                    self.on_text(node.site, event.text)
            case NodeFailed():
                self.feed.fail((node.site,), event.error)
            case GenDone():
                texts = [sample.text for sample in event.samples]
                self._done(node, cell, texts if cell.several else texts[0], event)
            case SelectDone():
                if self.on_text is not None:
                    self.on_text(node.site, event.text)
                self._done(node, cell, event.text, event)

    def _done(
        self,
        node: GenNode | SelectNode,
        cell: Cell,
        text: str | list[str],
        event: GenDone | SelectDone,
    ) -> None:
        now = self.elapsed_s
        call = Call(
            site=node.site,
            loc=node.loc,
            kind="gen" if isinstance(event, GenDone) else "select",
            prompt_ids=event.prompt_ids,
            usage=event.usage,
            started_s=cell.started_s,
            first_s=now if cell.first_s is None else cell.first_s,
            ended_s=now,
        )
        match event:
            case GenDone():
                call = replace(call, samples=event.samples)
            case SelectDone():
                call = replace(
                    call,
                    choice=event.choice,
                    scores=event.scores,
                    choice_ids=event.choice_ids,
                    logprobs=event.logprobs,
                )
        if self.on_text is not None:
            self.on_text(node.site, None)
        with self.feed.change:
            if not cell.pieces and first(text):
                self.feed.add(cell, first(text))
            cell.text, cell.call = text, call
            self.feed.calls.append(call)

    def _content(self, kept: _Kept, since: _Kept | None) -> list[TextPart]:
        """The text of a stream behind `since` (or its beginning): literals, and whose text stands there."""
        parts: list[TextPart] = []
        segment, index = kept.segment, kept.node
        while True:
            node = segment.nodes[index]
            match node:
                case OpenNode(int() as number) if self._numbered[number] is not since:
                    before = self._numbered[number]
                    segment, index = before.segment, before.node
                case OpenNode():
                    parts.reverse()
                    return parts
                case ExtendNode():
                    parts += [_piece(segment, part) for part in reversed(node.parts)]
                    index = node.stream
                case GenNode() | SelectNode():
                    parts.append(node.site)
                    index = node.stream
                case ForkNode():
                    index = node.stream
                case KeepNode() | ReleaseNode():
                    raise AssertionError("not a stream")

    def _seed_of(self, site: Site) -> int:
        return site_seed(self.seed, self.row, site)


def _piece(segment: Segment, part: Part) -> TextPart:
    match part:
        case str():
            return part
        case ControlText(text):
            return text
        case Result(index):
            made = segment.nodes[index]
            assert isinstance(made, GenNode | SelectNode)
            return made.site
        case Slot(name):
            raise AssertionError(f"slot {name} is not bound")


def run_plan(plan: Plan, arguments: Mapping[str, str], run: Run) -> tuple[dict[str, Any], Any]:
    """Execute a whole plan; gives its variables and its return value.

    Raises:
        UsageError: SGLC014 missing or unknown arguments, SGLC015 another tokenizer than the plan's,
            SGLC016 a plan that goes on as ordinary Python.
        SglcError: the first failure, in program order.
    """
    missing = [name for name in plan.params if name not in arguments]
    unknown = [name for name in arguments if name not in plan.params]
    if missing or unknown:
        wrong = f"misses `{missing[0]}`" if missing else f"has no argument `{unknown[0]}`"
        raise UsageError(
            "SGLC014", f"the plan {wrong}", note=f"its arguments: {', '.join(plan.params) or 'none'}"
        )
    tokenizer = run.backend.target.tokenizer
    if plan.tokenizer and (tokenizer is None or tokenizer.hash != plan.tokenizer):
        raise UsageError(
            "SGLC015", "the plan was made for another tokenizer than the back end's",
            hint="compile the program again for this model",
        )  # fmt: skip
    for step in plan.steps:
        if isinstance(step, HostStep):
            raise UsageError(
                "SGLC016", f"the plan goes on as ordinary Python: {step.reason}", step.loc,
                hint="run the program's own file",
            )  # fmt: skip
        run.submit(without_keeps(bind(step, arguments, {}, None, run._seed_of)))
    error = run.wait()
    if error is not None:
        raise error
    steps = [step for step in plan.steps if isinstance(step, Segment)]
    variables = {name: _resolve(run, steps, arguments, tree) for name, tree in plan.variables.items()}
    return variables, _resolve(run, steps, arguments, plan.returns)


def _resolve(run: Run, steps: Sequence[Segment], arguments: Mapping[str, str], tree: OutputTree) -> Any:
    match tree:
        case Output(step, node):
            made = steps[step].nodes[node]
            assert isinstance(made, GenNode | SelectNode), made
            return run.text_of_site(made.site)
        case Slot(name):
            return arguments[name]
        case Joined(parts):
            return "".join(first(_resolve(run, steps, arguments, part)) for part in parts)
        case tuple():
            return [_resolve(run, steps, arguments, item) for item in tree]
        case Mapping():
            return {key: _resolve(run, steps, arguments, item) for key, item in tree.items()}
        case _:
            return tree
