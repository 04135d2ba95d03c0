"""Runs launches and plans on a back end: binds arguments and seeds, follows events, keeps results.

One asyncio loop in a background thread serves every run of the process; threads of user code
only wait here. A failure belongs to the generation that failed; everything else goes on.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import count
from typing import Any

from sglc.compile import cached
from sglc.errors import BackendError, RunError, SglcError, UsageError
from sglc.frontend.recorder import Recorded
from sglc.ir.core import Site
from sglc.ir.plan import (
    Delta,
    Event,
    ExtendNode,
    ForkNode,
    GenDone,
    GenNode,
    HostStep,
    Joined,
    KeepNode,
    Node,
    NodeFailed,
    OpenNode,
    Output,
    OutputTree,
    Plan,
    ReleaseNode,
    Result,
    Segment,
    SelectDone,
    SelectNode,
    Slot,
    TextPart,
)
from sglc.ir.target import Backend
from sglc.result import Call

_HANDLES = count()


@dataclass(slots=True)
class _Cell:
    """The place of one generation's outcome."""

    started_s: float
    order: int
    text: str | list[str] | None = None
    error: BaseException | None = None
    first_s: float | None = None

    @property
    def ready(self) -> bool:
        return self.text is not None or self.error is not None


@dataclass(frozen=True, slots=True)
class _Kept:
    """A stream by where it was made: its text can be put together from the nodes before it."""

    segment: Segment
    node: int
    number: int | None  # the back end's handle; None if the stream is not kept there


@dataclass(slots=True)
class Run:
    """One instance's side of the executor (the frontend's `Launcher`).

    `on_text` is called with every piece of generated text as it comes, and with None when its
    generation is over, in the loop's thread.
    """

    backend: Backend
    seed: int
    row: int = 0
    on_text: Callable[[Site, str | None], None] | None = None
    calls: list[Call] = field(default_factory=list)
    submits: int = 0
    _began: float = field(default_factory=time.perf_counter)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _cells: dict[Site, _Cell] = field(default_factory=dict)
    _kept: dict[str, _Kept] = field(default_factory=dict)
    _open: list[Future[None]] = field(default_factory=list)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the run began."""
        return time.perf_counter() - self._began

    # -- what the frontend asks for --------------------------------------------------------------

    def launch(self, recorded: Recorded) -> None:
        """Compile (once per distinct program) and submit what a function recorded."""
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
        self._kept.update(
            (str(node.handle), _Kept(bound, node.stream, None if recorded.final else numbers[node.handle]))
            for node in segment.nodes
            if isinstance(node, KeepNode)
        )
        if recorded.final:
            bound = without_keeps(bound)
        self.submit(Segment((*bound.nodes, *releases)))

    def text_of_site(self, site: Site) -> str | list[str]:
        """The text that a generation made (a list for n > 1); waits for it.

        Raises:
            the error of the generation.
        """
        with self._changed:
            if site not in self._cells:
                raise RunError("SGLC406", f"`{site.name}` was never run: the function ended before")
            cell = self._cells[site]
            self._changed.wait_for(lambda: cell.ready)
        if cell.error is not None:
            raise cell.error
        assert cell.text is not None
        return cell.text

    def text_of_stream(self, handle: str) -> str:
        """The text of a kept stream, markup included; waits for every generation in it."""
        kept = self._kept[handle]
        return self._text(kept.segment, kept.node)

    # -- running ---------------------------------------------------------------------------------

    def submit(self, segment: Segment) -> None:
        """Hand a bound segment to the back end; results arrive in the background."""
        self.submits += 1
        with self._changed:
            now = self.elapsed_s
            for node in segment.nodes:
                if isinstance(node, GenNode | SelectNode):
                    self._cells[node.site] = _Cell(now, len(self._cells))
        self._open.append(asyncio.run_coroutine_threadsafe(self._follow(segment), _loop()))

    def wait(self) -> BaseException | None:
        """Wait until everything submitted has ended; gives the first failure in program order."""
        wait(self._open)
        failed = [cell for cell in self._cells.values() if cell.error is not None]
        return min(failed, key=lambda cell: cell.order).error if failed else None

    def close(self) -> None:
        """Stop what still runs (the user interrupted, or nobody needs it), and give back kept streams."""
        for future in self._open:
            future.cancel()
        numbers = [kept.number for kept in self._kept.values() if kept.number is not None]
        if numbers:
            self.submit(Segment(tuple(ReleaseNode(number) for number in numbers)))

    # -- inside ----------------------------------------------------------------------------------

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
            with self._changed:
                for site in sites:
                    if not self._cells[site].ready:
                        self._cells[site].error = problem or RunError("SGLC406", "the run was stopped")
                self._changed.notify_all()

    def _event(self, segment: Segment, event: Event) -> None:
        node = segment.nodes[event.node]
        if isinstance(event, NodeFailed) or not isinstance(node, GenNode | SelectNode):
            if isinstance(event, NodeFailed) and isinstance(node, GenNode | SelectNode):
                with self._changed:
                    self._cells[node.site].error = event.error
                    self._changed.notify_all()
            return
        now = self.elapsed_s
        cell = self._cells[node.site]
        match event:
            case Delta():
                cell.first_s = cell.first_s or now
                if self.on_text is not None:
                    self.on_text(node.site, event.text)
            case GenDone():
                texts = [sample.text for sample in event.samples]
                self._done(node, cell, texts[0] if len(texts) == 1 else texts, now, event)
            case SelectDone():
                if self.on_text is not None:
                    self.on_text(node.site, event.text)
                self._done(node, cell, event.text, now, event)

    def _done(
        self,
        node: GenNode | SelectNode,
        cell: _Cell,
        text: str | list[str],
        now: float,
        event: GenDone | SelectDone,
    ) -> None:
        call = Call(
            site=node.site,
            loc=node.loc,
            kind="gen" if isinstance(event, GenDone) else "select",
            prompt_ids=event.prompt_ids,
            usage=event.usage,
            started_s=cell.started_s,
            first_s=cell.first_s or now,
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
        with self._changed:
            cell.text = text
            self.calls.append(call)
            self._changed.notify_all()

    def _text(self, segment: Segment, index: int) -> str:
        """The text of node `index`'s stream, from its beginning."""
        pieces: list[str] = []
        while True:
            node = segment.nodes[index]
            match node:
                case OpenNode(None):
                    return "".join(reversed(pieces))
                case OpenNode(number):
                    kept = next(kept for kept in self._kept.values() if kept.number == number)
                    segment, index = kept.segment, kept.node
                case ExtendNode():
                    parts = [self._part(segment, part) for part in node.parts]
                    pieces += reversed(parts)
                    index = node.stream
                case GenNode() | SelectNode():
                    pieces.append(_first(self.text_of_site(node.site)))
                    index = node.stream
                case ForkNode():
                    index = node.stream
                case KeepNode() | ReleaseNode():
                    raise AssertionError("not a stream")

    def _part(self, segment: Segment, part: Any) -> str:
        match part:
            case str():
                return part
            case Result(node):
                made = segment.nodes[node]
                assert isinstance(made, GenNode | SelectNode)
                return _first(self.text_of_site(made.site))
            case _:
                return str(part.text)

    def _seed_of(self, site: Site) -> int:
        return site_seed(self.seed, self.row, site)


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


def bind(
    segment: Segment,
    texts: Mapping[str, str],
    opened: Mapping[str, int | None],
    kept: Mapping[Any, int] | None,
    seed_of: Callable[[Site], int],
) -> Segment:
    """`segment` with slots, handles and seeds filled in. `kept` None leaves the names of kept streams."""

    def text(part: Any) -> Any:
        return texts[part.name] if isinstance(part, Slot) else part

    def bound(node: Node) -> Node:
        match node:
            case OpenNode(str() as name):
                return OpenNode(opened.get(name))
            case ExtendNode() if any(isinstance(part, Slot) for part in node.parts):
                return ExtendNode(node.stream, tuple(text(part) for part in node.parts))
            case GenNode() if node.sampling.seed is None:
                return replace(node, sampling=replace(node.sampling, seed=seed_of(node.site)))
            case SelectNode():
                choices: tuple[TextPart, ...] = tuple(text(choice) for choice in node.choices)
                return replace(node, choices=choices)
            case KeepNode() if kept is not None:
                return KeepNode(node.stream, kept[node.handle])
            case _:
                return node

    return Segment(tuple(bound(node) for node in segment.nodes))


def without_keeps(segment: Segment) -> Segment:
    """`segment` without the keeps at its end, for the last launch of a run."""
    nodes = list(segment.nodes)
    while nodes and isinstance(nodes[-1], KeepNode):
        nodes.pop()
    assert not any(isinstance(node, KeepNode) for node in nodes), "keeps come last"
    return Segment(tuple(nodes))


def site_seed(run_seed: int, row: int, site: Site) -> int:
    """The 64-bit seed of a generation: hash(run seed, row, site), the same in every process."""
    digest = hashlib.blake2b(f"{run_seed}/{row}/{site}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _resolve(run: Run, steps: Sequence[Segment], arguments: Mapping[str, str], tree: OutputTree) -> Any:
    match tree:
        case Output(step, node):
            made = steps[step].nodes[node]
            assert isinstance(made, GenNode | SelectNode), made
            return run.text_of_site(made.site)
        case Slot(name):
            return arguments[name]
        case Joined(parts):
            return "".join(_first(_resolve(run, steps, arguments, part)) for part in parts)
        case tuple():
            return [_resolve(run, steps, arguments, item) for item in tree]
        case Mapping():
            return {key: _resolve(run, steps, arguments, item) for key, item in tree.items()}
        case _:
            return tree


def _first(text: str | list[str]) -> str:
    return text if isinstance(text, str) else text[0]


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="sglc-executor", daemon=True).start()
    return loop
