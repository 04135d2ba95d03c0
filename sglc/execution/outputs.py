"""What a run has made so far, for those who wait for it: threads, and coroutines of any event loop.

Writers only append, inside `change`, and wake whoever waits; nobody polls. What a reader looks at
together it looks at under the same lock.
"""

from __future__ import annotations

import _thread
import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from sglc.errors import BackendError, MissingVariable, RunError, SglcError
from sglc.execution.call_record import CallRecord, call_of
from sglc.frontend.locate import here
from sglc.frontend.outputs.output_form import OutputParser
from sglc.frontend.program.instance import Awaited, Gathered, Scoped, Variable
from sglc.frontend.values.recorded import Generated
from sglc.ir.core import Site
from sglc.ir.plan.events import Delta, GenDone, SelectDone, Usage
from sglc.ir.plan.segment import GenNode, SelectNode

_T = TypeVar("_T")
_NOT_STORED = object()

_NONE: dict[Any, Any] = {}
Part = str | Site  # of a prompt: a literal, or whose (first) text stands there


class PendingOutput:
    """The place of one generation's outcome. `pieces` add up to the text of its first sample.

    A run that is not read while it goes on has no pieces: a text is there at once.

    Args:
        several: its value is a list.
        place: among the nodes of its segment.
    """

    pieces: list[str] | None = None
    deltas: list[Delta] | None = None  # what `pieces` are of, where they came as such
    text: str | list[str] | None = None
    error: BaseException | None = None
    first_s: float | None = None
    ended_s: float = 0.0
    event: GenDone | SelectDone | None = None
    cause: PendingOutput | None = None  # the one whose failure took this one with it
    raised: bool = False  # to the program, which may have caught it
    replaced: bool = False  # another one was made for it
    spent: Usage | None = None  # what it took to fail

    def __init__(
        self, node: GenNode | SelectNode, order: int, started_s: float, several: bool, place: int
    ) -> None:
        self.node = node
        self.order = order
        self.started_s = started_s
        self.several = several
        self.place = place

    @property
    def site(self) -> Site:
        return self.node.site

    @property
    def said(self) -> list[str]:
        """The text of the first sample as far as it came, in pieces."""
        if self.pieces is not None:
            return self.pieces
        whole = self.text[0] if isinstance(self.text, list) else self.text
        return [whole] if whole else []

    @property
    def ready(self) -> bool:
        return self.text is not None or self.error is not None

    @property
    def root(self) -> PendingOutput:
        """The one whose failure this one's is: itself, or what it was to go on behind."""
        return self if self.cause is None else self.cause.root

    @property
    def caught(self) -> bool:
        """Whether the program has seen why it failed. If it ends well all the same, it has caught that."""
        return self.error is not None and self.root.raised

    @property
    def call(self) -> CallRecord | None:
        """What is known of it when it is done."""
        if self.event is None:
            return None
        first_s = self.ended_s if self.first_s is None else self.first_s
        return call_of(self.node, self.event, self.started_s, first_s, self.ended_s)


@dataclass(frozen=True, slots=True)
class Ready:
    """A variable's value, or why there is none."""

    value: Any
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """A generation that has no text, and why. What was to go on behind it has the same error."""

    site: Site
    error: BaseException


class Variables(dict[str, Any]):
    """The variables of a run's own state; whoever waits for one is woken when it is stored."""

    def __init__(self, change: Change) -> None:
        self.change = change

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        if not isinstance(value, Generated):  # nobody finds that before its launch
            with self.change:
                pass

    def copied(self) -> Variables:
        """The same ones, in which those who store into this see nothing of each other."""
        made = Variables(self.change)
        dict.update(made, self)
        return made


class Change(_thread.RLock):  # type: ignore[misc]  # it can be a base, and is then entered as fast
    """The lock of a run's outputs: whoever waits is woken when a block that holds it ends."""

    __slots__ = ("_condition", "listeners", "waiting")

    def __init__(self) -> None:
        self._condition: threading.Condition | None = None  # while somebody waits
        self.waiting = 0  # threads
        self.listeners: list[Callable[[], None]] = []  # are called at every change, inside the lock

    def __exit__(self, *_: object) -> None:
        try:
            if self.waiting or self.listeners:
                self._tell()
        finally:
            self.release()

    def _tell(self) -> None:
        if self._condition is not None:
            self._condition.notify_all()
        for listener in tuple(self.listeners):
            try:
                listener()
            except RuntimeError:  # its event loop was closed while it waited
                self.listeners.remove(listener)

    def wait(self, look: Callable[[], _T | None]) -> _T:
        """What `look` finds, as soon as it finds something; it is called at every change."""
        with self.quietly():
            if self._condition is None:
                self._condition = threading.Condition(self)
            self.waiting += 1
            try:
                while (found := look()) is None:
                    self._condition.wait()
            finally:
                self.waiting -= 1
                if not self.waiting:
                    self._condition = None  # it holds this
            return found

    @contextmanager
    def quietly(self) -> Iterator[None]:
        """The lock for who changes nothing."""
        self.acquire()
        try:
            yield
        finally:
            self.release()


# That of every run that is over: results are kept in great numbers, and locks are large.
_OVER = Change()


class RunOutputs:
    """One run's generations, variables and text, as they come.

    Args:
        live: text is wanted piece by piece; else a generation's text comes whole, at its end.
    """

    __slots__ = (
        "_by_site", "at_end", "before", "begun", "call", "change", "content", "done", "ended", "error",
        "failed", "live", "outer", "pieces", "refused", "text", "variables",
    )  # fmt: skip

    def __init__(self, *, live: bool = False) -> None:
        self.live = live
        self.begun: list[PendingOutput] = []  # in the order of the program
        self._by_site: dict[Site, PendingOutput] = {}  # those that somebody has asked for, and those before
        self.before: dict[Site, PendingOutput] = {}  # of the plan, where the program goes on as Python
        self.done: list[PendingOutput] = []  # in order of completion
        self.failed: list[PendingOutput] = []  # those of called programs among them
        self.change = Change()  # everything below changes inside it
        self.variables = Variables(self.change)
        self.refused: dict[Site, SglcError] = {}  # generations that did not begin, and why
        self.text: list[Part] = []  # of the run's own stream
        # Of all generations, in the order in which they came, if the run is live.
        self.pieces: list[tuple[Site, str]] = []
        self.call = ""  # the site of the call that the run is, in another run's body
        self.outer: RunOutputs | None = None  # that one's, which has these calls and pieces too
        self.ended = False
        self.at_end: tuple[Callable[[], object], ...] = ()  # is to be called when it has
        self.error: BaseException | None = None
        self.content: Callable[[str], Sequence[Part] | None] = nothing  # of a stream, once it was launched

    # -- writing ---------------------------------------------------------------------------------

    def begin(
        self, asked: Mapping[int, GenNode | SelectNode], now_s: float,
        answers: dict[Site, PendingOutput] = _NONE,
    ) -> dict[int, PendingOutput]:  # fmt: skip
        """Generations were submitted; gives their places under the same numbers. Called inside `change`.

        Args:
            answers: those that are there already, by site; what is asked for is taken out.
        """
        made: dict[int, PendingOutput] = {}
        order = len(self.begun)
        for number, node in asked.items():
            output = answers.pop(node.site, None) if answers else None
            if output is None:
                several = type(node) is GenNode and node.sampling.n > 1
                output = PendingOutput(node, order, now_s, several, number)
            else:
                output.order, output.place = order, number
                if self.outer is not None:  # the run around has it
                    (self.failed if output.error else self.done).append(output)
            made[number] = output
            self.begun.append(output)
            order += 1
        return made

    def begin_again(self) -> dict[Site, PendingOutput]:
        """The program runs from its top once more: gives the answers that there are, of which nothing is told
        twice."""
        with self.change:
            self.before, self.begun, self._by_site = self.generations, [], {}
            self.variables = Variables(self.change)
        return {site: output for site, output in self.before.items() if output.ready}

    def add(self, output: PendingOutput, text: str, delta: Delta | None = None) -> None:
        """More text of a generation of a run that is `heard`. Called inside `change`."""
        if self.live:
            if output.pieces is None:
                output.pieces = []
            output.pieces.append(text)
            if delta is not None:
                output.deltas = output.deltas or []
                output.deltas.append(delta)
            self.pieces.append((output.site, text))
        for outer in self.around():
            with outer.change:
                if outer.live:
                    outer.pieces.append((output.site, text))

    def finish(self, output: PendingOutput) -> None:
        """A generation has ended well. Called inside `change`."""
        self.done.append(output)
        if self.outer is not None:
            self._tell_around(lambda outer: outer.done.append(output))

    def refuse(self, sites: Iterable[Site], error: SglcError) -> None:
        """These generations do not begin."""
        with self.change:
            self.refused.update(dict.fromkeys(sites, error))

    @property
    def heard(self) -> bool:
        """Whether somebody wants text piece by piece: of this run, or of one around."""
        return self.live or (self.outer is not None and self.outer.heard)

    def around(self) -> Sequence[RunOutputs]:
        """Those of the runs around, innermost first."""
        if self.outer is None:
            return ()
        return (self.outer, *self.outer.around())

    def at(self, site: Site) -> Site:
        """A site of the program as it is at run time."""
        return site.inside(self.call, ()) if self.call else site

    def of_a_call(self, site: Site) -> bool:
        """Whether a site of a run stands in a program that the run calls."""
        return "/" in (site.function.removeprefix(f"{self.call}/") if self.call else site.function)

    def fail(self, output: PendingOutput, error: BaseException, cause: PendingOutput | None) -> None:
        """A generation has failed, perhaps because of another one's failure."""
        with self.change:
            if output.ready:
                return
            if cause is not None and cause.error is not None and isinstance(error, SglcError):
                # The back end only knows that the stream is not there; its reader wants to know why.
                error = cause.error if error.code == "SGLC403" else error
            output.error, output.cause = error, cause
            if cause is None and isinstance(error, BackendError):
                output.spent = error.usage
            self.failed.append(output)
        self._tell_around(lambda outer: outer.failed.append(output))

    def _tell_around(self, add: Callable[[RunOutputs], None]) -> None:
        """Something has ended, for the runs around that have not."""
        for outer in self.around():
            with outer.change:
                if not outer.ended:
                    add(outer)

    def give_up(self, generations: Iterable[PendingOutput], error: BaseException) -> None:
        """What has not come of these generations will not come: the run is over."""
        with self.change:
            for output in generations:
                if not output.ready:
                    output.error = error

    def end(self, error: BaseException | None) -> None:
        """The run is over; nothing is added any more, and nobody has to wait. Called inside `change`."""
        self.ended = True
        self.error = error
        self.content = nothing
        self.change = self.variables.change = _OVER
        calls, self.at_end = self.at_end, ()
        for call in calls:
            with suppress(RuntimeError):  # its event loop was closed while it waited
                call()

    def first_text(self, site: Site) -> str:
        """What a generation that has ended well left in its prompt."""
        text = self.generations[site].text
        assert text is not None
        return text if isinstance(text, str) else text[0]

    # -- waiting ---------------------------------------------------------------------------------

    def when_over(self, call: Callable[[], object]) -> None:
        """Call this when the run is over, now or inside `change`: who waits for that is not woken before."""
        change = self.change
        change.acquire()
        try:
            if not self.ended:
                self.at_end = (*self.at_end, call)
                return
        finally:
            change.release()
        call()

    def wait(self, look: Callable[[], _T | None]) -> _T:
        """What `look` finds, as soon as it finds something; it is called at every change."""
        return self.change.wait(look)

    async def wait_async(self, look: Callable[[], _T | None]) -> _T:
        """`wait` without blocking the event loop."""
        loop = asyncio.get_running_loop()
        changed = asyncio.Event()

        def listener() -> None:
            loop.call_soon_threadsafe(changed.set)

        change = self.change
        with change.quietly():
            change.listeners.append(listener)
        try:
            while True:
                changed.clear()
                with change.quietly():
                    found = look()
                if found is not None:
                    return found
                await changed.wait()
        finally:
            with change.quietly(), suppress(ValueError):  # its loop was closed
                change.listeners.remove(listener)

    # -- looking ---------------------------------------------------------------------------------

    @property
    def generations(self) -> dict[Site, PendingOutput]:
        """Those that have begun, by their sites, which take time to hash: of most runs nobody asks for one."""
        known = self._by_site
        for output in self.begun[len(known) :]:
            known[output.site] = output
        return known

    def find(self, name: str) -> tuple[Variable, ...] | None:
        """The newest variable of that name, alone; () if the run ended without one, None if it may yet come.

        A generation counts from its launch on: before, a newer one may take its name.
        """
        variable = self.variables.get(name, _NOT_STORED)
        if variable is not _NOT_STORED:
            if isinstance(variable, Awaited) and isinstance(variable.known, Generated):
                variable = variable.known  # its pieces can be read as they come
            if isinstance(variable, Awaited) and not self.ended:
                return None
            if self.ended or not isinstance(variable, Generated) or self.at(variable.site) in self.generations:
                return (variable,)
            return None
        return () if self.ended else None

    def value(self, variable: Variable, *, final: bool = False) -> Ready | None:
        """A variable's value; None if it may yet come. `final`: what is not there never comes.

        In a joined list, a branch that failed leaves None.
        """
        match variable:
            case Generated(site=site, parser=None):
                return self._of_site(site, final)
            case Generated(site=site, parser=OutputParser() as parser):
                return _read(parser, self._of_site(site, final))
            case Awaited(problem=None, known=None):
                return Ready(None, self.never("a variable")) if final or self.ended else None
            case Awaited(problem=None, known=known):
                return self.value(known, final=final)
            case Awaited(problem=problem):
                return Ready(None, problem)
            case Gathered(entries=entries):
                values = [self.value(entry, final=final) for entry in entries]
                known = [value for value in values if value is not None]
                if len(known) < len(values):
                    return None
                return Ready([value.value for value in known])
            case Scoped():
                return self._scoped(variable, final)
            case _:
                return Ready(variable)

    def _scoped(self, variable: Scoped, final: bool) -> Ready | None:
        if all(part.kind in ("text", "generated") for part in variable.parts):
            items = [part.item for part in variable.parts]
            return self._joined(
                [item.site if isinstance(item, Generated) else str(item) for item in items], final
            )
        begin, end = self.content(variable.begin.handle), self.content(variable.end.handle)
        if begin is None or end is None:
            return Ready(None, self.never("var_scope")) if final or self.ended else None
        before, whole = self._joined(begin, final), self._joined(end, final)
        if before is None or whole is None or whole.error is not None:
            return whole
        return Ready(whole.value[len(before.value) :])

    def _joined(self, parts: Sequence[Part], final: bool) -> Ready | None:
        """The text of parts; the first one's error."""
        texts: list[str] = []
        for part in parts:
            ready = Ready(part) if isinstance(part, str) else self._of_site(part, final)
            if ready is None or ready.error is not None:
                return ready
            texts.append(ready.value if isinstance(ready.value, str) else ready.value[0])
        return Ready("".join(texts))

    def _of_site(self, site: Site, final: bool) -> Ready | None:
        output = self.generations.get(self.at(site))
        if output is not None and output.ready:
            return Ready(output.text, output.error)
        if self.at(site) in self.refused:
            return Ready(None, self.refused[self.at(site)])
        return Ready(None, self.never(site.name)) if final or self.ended else None

    def never(self, name: str) -> BaseException:
        """Why `name`, whose generation was recorded, has no text and will have none."""
        return self.error or RunError("SGLC406", f"`{name}` was never run: the function ended before")

    def missing(self, name: str) -> BaseException:
        """Why nothing is stored under `name`: the run failed, or the program never stores it."""
        if self.error is not None:
            return self.error
        known = ", ".join(f"`{known}`" for known in self.variables)
        return MissingVariable(
            "SGLC110", f"the program stored nothing under `{name}`", here(),
            note=f"stored: {known or 'nothing'}", hint=f'store it with `gen("{name}")`',
        )  # fmt: skip

    def call_of(self, name: str) -> CallRecord | None:
        """The newest finished call that stored `name`."""
        named = (output for output in reversed(self.done) if output.site.name == name)
        return next((output.call for output in named if not self.of_a_call(output.site)), None)

    @property
    def failures(self) -> tuple[Failure, ...]:
        """The generations that failed by themselves or with others, in the order of the program."""
        own = {id(output): output.order for output in self.generations.values()}
        failed = sorted(self.failed, key=lambda output: own.get(id(output), len(own)))
        found = [
            Failure(output.site, output.error)
            for output in failed
            if output.error is not None and not output.replaced
        ]
        return tuple(found + [Failure(site, error) for site, error in self.refused.items()])

    @property
    def usage(self) -> Usage:
        """The counts of those that ended, well or not."""
        ended = [output.event.usage for output in self.done if output.event is not None]
        ended += [output.spent for output in self.failed if output.spent is not None]
        return sum(ended, Usage())

    @property
    def calls(self) -> tuple[CallRecord, ...]:
        """The generations and choices that were completed, in order of completion."""
        return tuple([call for output in self.done if (call := output.call) is not None])


def _read(parser: OutputParser, ready: Ready | None) -> Ready | None:
    """The value of a text that has come."""
    if ready is None or ready.error is not None:
        return ready
    try:
        return Ready(parser.parse(ready.value))
    except RunError as problem:
        return Ready(None, problem)


def nothing(_: str) -> None:
    """The content of every stream before anything was launched, and after the end."""


def values(
    outputs: RunOutputs, variables: Mapping[str, Variable]
) -> tuple[dict[str, Any], dict[str, Sequence[Failure]]]:
    """The values of a run's variables when nothing is added any more, and which of their texts spell none."""
    made: dict[str, Any] = {}
    unspelled: dict[str, Sequence[Failure]] = {}
    for name, variable in variables.items():
        ready = outputs.value(variable, final=True)
        assert ready is not None
        if ready.error is None:
            made[name] = ready.value
        if ready.error is not None or isinstance(ready.value, list):
            unspelled[name] = tuple(_unspelled(outputs, variable))
    return made, unspelled


def _unspelled(outputs: RunOutputs, variable: Variable) -> Iterator[Failure]:
    """The generations of a variable that have a text, which spells no value."""
    match variable:
        case Generated(site=site, parser=OutputParser() as parser):
            ready = outputs.value(replace(variable, parser=None), final=True)
            read = _read(parser, ready)
            if ready is not None and ready.error is None and read is not None and read.error is not None:
                yield Failure(outputs.at(site), read.error)
        case Awaited(problem=None, known=known):
            yield from _unspelled(outputs, known)
        case Gathered(entries=entries):
            for entry in entries:
                yield from _unspelled(outputs, entry)


def stopped() -> RunError:
    """The error of a run that was stopped."""
    return RunError("SGLC407", "the run was stopped", note="what it had computed before is kept")
