"""One run of a function: its recorder, its variables, and what reading one of them sets in motion."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, Protocol

from sglc.errors import Loc, RunError, TraceError
from sglc.frontend.language.expr import Appendable
from sglc.frontend.locate import here
from sglc.frontend.outputs.output_form import OutputParser
from sglc.frontend.program.history import History
from sglc.frontend.program.other_backend import write
from sglc.frontend.recorder.recorder import OpRecorder
from sglc.frontend.values.block_exit import Unsettled
from sglc.frontend.values.graph_breaks import ITERATION, GraphBreak, needing
from sglc.frontend.values.recorded import Generated, Launcher, RecordedStream
from sglc.frontend.values.symbolic import TRACING, SymbolicText, joined
from sglc.ir.core import Site, Value


@dataclass(frozen=True, slots=True)
class Gathered:
    """A joined variable: one entry a branch, None where the branch stored nothing."""

    entries: tuple[Variable, ...]
    value: Value | None  # of the list, where one launch made all of it
    launch: int


@dataclass(frozen=True, slots=True)
class Scoped:
    """Everything that was appended between two places of one prompt, chat markup included."""

    begin: RecordedStream
    end: RecordedStream
    parts: tuple[History, ...]


@dataclass(eq=False, slots=True)
class Awaited:
    """A variable that `settle` gives its value; before that `known` says as much as is known of it."""

    settle: Callable[[], None]
    known: Variable | None = None
    problem: BaseException | None = None  # why it will never have one


Variable = Generated | Gathered | Scoped | Awaited | Any


class PromptState(Protocol):
    """A `State` as its run, what it waits for, and the tracer see it."""

    _instance: Instance
    _stream: RecordedStream
    _path: tuple[int, ...]
    _variables: dict[str, Variable]
    _history: History | None
    _scopes: tuple[str, ...]
    _joined: bool
    _number: int
    label: str | None

    def append(self, item: Appendable, loc: Loc) -> None:
        """`s += item` for the program's line `loc`."""

    def store(self, name: str, variable: Variable) -> None:
        """From here on the variable is this."""

    def begin_pending(self) -> None:
        """Have what is pending recorded, or launched; does not wait for it."""

    def settle(self) -> None:
        """Wait for what is pending, and write what waits behind it."""

    def put(self, item: Appendable, loc: Loc) -> None:
        """Record one thing, or have it wait behind what is pending."""

    def adopt(self, branch: RecordedStream, made: Generated) -> None:
        """The prompt goes on as `branch`, which ends with `made`."""

    def as_data(self) -> str | None:
        """Its text; None if that cannot be put together."""


_NOWHERE = object()  # where a variable was not there
NUMBERS = count()  # of states, in the order in which they are made


@dataclass(slots=True, eq=False)
class MapItems:
    """What the items of a `map` store that runs as Python: none sees what another one has stored.

    Behind the last item stands what all have stored, in their order.
    """

    began: int = field(default_factory=partial(next, NUMBERS))  # what is made from here on is an item's own
    before: dict[tuple[PromptState, str], Any] = field(default_factory=dict)  # of what the item here stores
    put_back: dict[tuple[PromptState, str], Any] = field(default_factory=dict)  # behind the last that stored it
    stored: dict[tuple[PromptState, str], Variable] = field(default_factory=dict)

    def note(self, state: PromptState, name: str, variable: Variable) -> None:
        """An item is about to store this."""
        if state._number < self.began:
            self.before.setdefault((state, name), state._variables.get(name, _NOWHERE))
            self.stored[state, name] = variable
            state._instance.maps[self] = None

    @contextmanager
    def item(self) -> Iterator[None]:
        """Inside, an item runs; what comes behind it begins where the first one began."""
        token = MAP_ITEMS.set(self)
        try:
            yield
        finally:
            MAP_ITEMS.reset(token)
            self._put_back()

    def end(self) -> None:
        """No item runs any more."""
        for (state, name), variable in tuple(self.stored.items()):
            state._instance.maps.pop(self, None)
            if state._variables.get(name, _NOWHERE) is self.put_back[state, name]:
                state.store(name, variable)

    def _put_back(self) -> None:
        """What the last item has stored is as it was before."""
        while self.before:  # threads of the program's own may store meanwhile: what they have stored stays
            (state, name), before = self.before.popitem()
            self.put_back[state, name] = before
            if state._variables.get(name) is not self.stored[state, name]:
                continue
            if before is not _NOWHERE:
                state._variables[name] = before
            else:
                state._variables.pop(name, None)


# Of the `map` whose item runs here.
MAP_ITEMS: ContextVar[MapItems | None] = ContextVar("sglc_map_items", default=None)


class Instance:
    """One run of a function: the recorder, and the launcher that makes results (None: compiling)."""

    def __init__(self, recorder: OpRecorder, launcher: Launcher | None) -> None:
        self.recorder = recorder
        self.launcher = launcher
        self.states: list[PromptState] = []  # all that there are, while compiling
        self.waiting: list[PromptState] = []  # those with something pending, in program order
        self.told: set[Site] = set()  # generations whose texts spell no value, as the program has read
        self.recording = threading.RLock()  # branches may go on in threads of the program's own
        self.maps: dict[MapItems, None] = {}  # that run as Python, the outermost first: what their items stored
        self.over = False  # the body has ended: who has a state of it can read on

    def running(self, what: str, loc: Loc) -> None:
        """`what` needs a run: compiling ends before it."""
        if self.launcher is None:
            raise GraphBreak(f"{what} needs the program to run", loc, needing(what))

    def observe(self, what: str, loc: Loc) -> Launcher:
        """Launch what is pending, because ordinary Python needs `what` now."""
        self.running(what, loc)
        assert self.launcher is not None
        with self.recording:  # until it is launched: what is in it may be read by another thread
            if self.recorder.pending:
                self.launcher.launch(self.recorder.take(final=False))
        return self.launcher

    def settle(self) -> None:
        """Settle everything that states still wait for."""
        while self.waiting:
            self.waiting[0].settle()

    def text_of(self, made: Generated, what: str) -> Any:
        """The text of a generation (a list for several samples).

        While compiling it is a symbolic one, or itself, where this path has decided it.

        Raises:
            GraphBreak: there are several samples, and it is compiled.
        """
        if self.launcher is None:
            tracing = TRACING.get()
            if tracing is not None and made.many:
                reason = "several samples are a list that only exists when the program runs"
                raise GraphBreak(reason, here(), ITERATION)
            known = None if tracing is None else tracing.known(made.value)
            return known if isinstance(known, str) else SymbolicText((made.value,))
        return self.observe(what, here()).text_of_site(made.site)

    def read(self, variable: Variable, what: str) -> Any:
        """The Python value of a variable; a symbolic text while compiling."""
        match variable:
            case Generated(parser=parser):
                text = self.text_of(variable, what)
                if parser is None:
                    return text
                if not isinstance(text, SymbolicText):
                    return self._parsed(parser, text, variable.site)
                tracing = TRACING.get()
                assert tracing is not None
                return tracing.parsed(parser, text, here())
            case Awaited():
                variable.settle()
                if variable.problem is not None:
                    raise variable.problem
                return self.read(variable.known, what)
            case Gathered():
                return [self.read(entry, what) for entry in variable.entries]
            case Scoped() if all(part.kind in ("text", "generated") for part in variable.parts):
                return self._joined(variable.parts, what)
            case Scoped() if self.launcher is None and (tracing := TRACING.get()) is not None:
                return tracing.text_of(variable.end.value, variable.begin.value, here())
            case Scoped():  # only the back end knows how chat turns are written
                loc = here()
                before = self.text_at(variable.begin, variable.parts[0].before, what, loc)
                return self.text_at(variable.end, variable.parts[-1], what, loc)[len(before) :]
            case Unsettled():
                check_settled(variable)
                raise TraceError(
                    "SGLC148", f"`{variable.name}` is not one value here: {variable.reason}", here(),
                    note=f"the branch is at {variable.loc}",
                    hint="store it in every arm, or before the branch",
                )  # fmt: skip
            case _:
                return variable

    def _parsed(self, parser: OutputParser, text: Any, site: Site) -> Any:
        try:
            return parser.parse(text)
        except RunError:
            self.told.add(site)
            raise

    def in_prompt(self, made: Generated, what: str, loc: Loc) -> str:
        """The text that the prompt has of a generation: none, if the program caught its failure."""
        return self.observe(what, loc).text_in_prompt(made.site)

    def text_at(self, stream: RecordedStream, history: History | None, what: str, loc: Loc) -> str:
        """The text of a prompt that stands at `stream`, made of `history`; waits for every generation in it."""
        launcher = self.observe(what, loc)
        if stream.live and not self.over:
            return launcher.text_of_stream(stream.handle)
        # It was joined, or the run has ended: no launch knows it any more.
        recorder = OpRecorder(self.recorder.function, self.recorder.defaults, symbolic=False)
        write(recorder, history, lambda made: self.in_prompt(made, what, loc), loc)
        return launcher.text_of_program(recorder.take(final=True))

    def _joined(self, parts: tuple[History, ...], what: str) -> str | SymbolicText:
        texts: list[Any] = [
            first(self.read(part.item, what)) if part.kind == "generated" else part.item for part in parts
        ]
        if any(isinstance(text, SymbolicText) for text in texts):
            return joined(tuple(texts))
        return "".join(texts)


def check_settled(*variables: Variable | None) -> None:
    """Variables are asked for.

    Raises:
        ArmsDiffer: the arms of some branch leave one different, and could be recorded path by path.
    """
    tracing = TRACING.get()
    if tracing is not None and any(isinstance(variable, Unsettled) for variable in variables):
        tracing.ask_arms()


def is_typed(variable: Variable) -> bool:
    """Whether it is a value that is read from a text, or a list with such."""
    match variable:
        case Generated():
            return variable.parser is not None
        case Gathered():
            return any(map(is_typed, variable.entries))
        case _:
            return False


def first(text: Any) -> Any:
    """Of several samples, the one that the prompt goes on with."""
    return text[0] if isinstance(text, list) else text


class GatheredVariables(Mapping[str, Any]):
    """What `join` gathered: name -> list over the branches. Reading an entry waits for it."""

    def __init__(self, instance: Instance, variables: Mapping[str, Variable]) -> None:
        self._instance = instance
        self.variables = dict(variables)

    def __getitem__(self, name: str) -> Any:
        return self._instance.read(self.variables[name], f"`[{name!r}]`")

    def __iter__(self) -> Iterator[str]:
        return iter(self.variables)

    def __len__(self) -> int:
        return len(self.variables)

    def __repr__(self) -> str:
        return repr(dict(self))
