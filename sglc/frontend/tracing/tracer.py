"""The tracer of a function ahead of time: the block that is being recorded, and what is decided in it.

It is what symbolic values, structured ops and tools turn to (`current()`). Blocks nest: while one is
recorded, ops go into it, and decisions that were made in it are forgotten when it ends.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any

from sglc.errors import Loc
from sglc.frontend.locate import PLACE, of_exception, shown_path
from sglc.frontend.outputs.finite_regex import texts_of
from sglc.frontend.outputs.output_form import OutputParser
from sglc.frontend.program.history import History
from sglc.frontend.program.instance import Awaited, Gathered, Instance, PromptState, Scoped
from sglc.frontend.recorder.recorder import OpRecorder
from sglc.frontend.tracing.call_frame import CallFrame, Closure
from sglc.frontend.tracing.makers import declare_parser, declare_reader
from sglc.frontend.tracing.open_turns import StreamTurns
from sglc.frontend.tracing.outside import OutsideState
from sglc.frontend.tracing.paths import MOST_PATHS, Frame, PathEnded, explore, raise_at, stop_at
from sglc.frontend.tracing.pytree import items_of, leaf_of
from sglc.frontend.values.block_exit import BlockExit, Stored, TracedBlock, Unsettled
from sglc.frontend.values.graph_breaks import GUARDED, ITERATION, OUTSIDE, TRIED, GraphBreak
from sglc.frontend.values.known import Known
from sglc.frontend.values.recorded import Generated, Mark, RecordedStream, Turns
from sglc.frontend.values.symbolic import (
    TRACING,
    Symbolic,
    SymbolicBool,
    SymbolicJson,
    SymbolicList,
    SymbolicText,
)
from sglc.ir.core import NOWHERE, Op, Tree, Type, Value, inputs, regions
from sglc.ir.facts import spell
from sglc.ir.ops import (
    Arg,
    Cond,
    Eq,
    Format,
    Gen,
    Guard,
    In,
    Loop,
    Lower,
    Not,
    Prompt,
    PureCall,
    Select,
    Store,
    Strip,
    Switch,
    TextOf,
    arms_of,
    hands_over,
)
from sglc.ir.pure import PURE

_MOST_STEPS = 50_000
_KINDS: dict[str, type] = {"int": int, "float": float}  # of typed values, by their names
Enter = Callable[[Callable[..., Any], Loc], Callable[..., Any]]


def _unset(function: Callable[..., Any], loc: Loc) -> Callable[..., Any]:
    raise AssertionError(f"{function} at {loc}: the recording was not given its hooks")


def _unset_data(tracer: Tracer, item: Any, what: str) -> Tree:
    raise AssertionError(f"{item} is {what}: the tracer was not given its interpreter")


def _unset_body(frame: CallFrame) -> Any:
    raise AssertionError(f"{frame}: the tracer was not given its interpreter")


def current() -> Tracer | None:
    """The tracer at work; None in an ordinary run."""
    tracing = TRACING.get()
    assert tracing is None or isinstance(tracing, Tracer)
    return tracing


@contextmanager
def outside() -> Iterator[None]:
    """What is called here is no part of the program that is recorded."""
    token, place = TRACING.set(None), PLACE.set(None)
    try:
        yield
    finally:
        TRACING.reset(token)
        PLACE.reset(place)


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """Where the recorder and every state stand."""

    mark: Mark
    states: tuple[tuple[PromptState, RecordedStream, Value, Turns, bool, dict[str, Any], History | None], ...]


@dataclass(slots=True, eq=False)
class Tracer:
    """`graph_breaks` are all places where ordinary Python takes over, in the order in which they were met."""

    instance: Instance
    most_paths: int = MOST_PATHS
    file: str = ""  # where the function is written
    calls: tuple[Any, ...] = ()  # the functions whose traces this one is part of, outermost first
    at: Loc = NOWHERE  # of the function
    node: ast.AST | None = None  # what is evaluated, and its file
    node_file: str = ""
    steps: int = 0  # statements and turns of loops that were interpreted
    graph_breaks: list[GraphBreak] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    decided: dict[Value, str | bool] = field(default_factory=dict)
    copies: dict[Callable[..., Any], Closure] = field(default_factory=dict)  # of helpers, interpreted
    bodies: list[Callable[..., Any]] = field(default_factory=list)  # of structured ops, outermost first
    make_copy: Enter = _unset
    run_body: Callable[[CallFrame], Any] = _unset_body
    as_data: Callable[[Tracer, Any, str], Tree] = _unset_data
    outside: OutsideState = field(default_factory=OutsideState)
    calling: list[CallFrame] = field(default_factory=list)  # of interpreted functions, innermost last
    called_tool: str = ""  # the last tool on this path
    unchecked: dict[Value, None] = field(default_factory=dict)  # generations read since then
    guarded: int = 0  # `try` statements around that could see a failure
    handling: list[Exception] = field(default_factory=list)  # in `except` blocks, innermost last
    guards: dict[str, Guard] = field(default_factory=dict)  # by the fact
    facts: dict[int, tuple[Op, Known]] = field(default_factory=dict)  # what ops on arguments alone make, by id
    standing: list[frozenset[int]] = field(default_factory=list)  # per block: ids of what was made before it
    _places: dict[int, tuple[BaseException, Loc]] = field(default_factory=dict)
    _made: list[tuple[Frame, dict[Value, Op]]] = field(default_factory=list)  # per frame, who made what

    @property
    def recorder(self) -> OpRecorder:
        return self.instance.recorder

    # -- what symbolic values ask ------------------------------------------------------------------

    def emit(self, op: Op, result: Type) -> Value:
        return self.recorder.emit(op, result)

    def operand(self, text: str | SymbolicText, loc: Loc) -> Value | str:
        return self.recorder.text(text, loc)

    def enter(self, function: Callable[..., Any], loc: Loc) -> Callable[..., Any]:
        return self.make_copy(function, loc)

    def parsed(self, parser: OutputParser, text: SymbolicText, loc: Loc) -> Any:
        if all(self.decidable(part) for part in text.parts if isinstance(part, Value)):
            known = text._known(loc)
            assert known is not None
            return parser.parse(known)
        self.may_fail(f"a `{parser.name}`")
        call = PureCall(declare_parser(parser), (self.operand(text, loc),), {}, "object", loc=loc)
        return SymbolicJson(self.emit(call, Type.JSON), _KINDS.get(parser.name, object))

    def guard(self, fact: str, real: Any, loc: Loc) -> Any:
        """The program is for arguments of which a fact is `real`.

        Raises:
            GraphBreak: it is an object that no guard can hold.
        """
        if fact in self.guards or not any(
            op.name in fact for op in self.recorder.params if isinstance(op, Arg)
        ):
            return real  # known already, or a constant
        spelled = spell(real)
        if spelled is None or "sglc.instance(" in spelled:
            raise GraphBreak(f"`{fact}` is a `{type(real).__name__}`, which Python needs here", loc, GUARDED)
        self.guards.setdefault(fact, Guard(fact, spelled, loc=loc))
        if isinstance(real, list | dict | set):
            self.outside.note(real)
        return real

    def made(self, value: Value, known: Known) -> None:
        """The last op makes a value that is known."""
        op = self.recorder.ops[-1]
        assert op.results == (value,)
        self.facts[id(op)] = op, known

    def name_of(self, value: Value) -> tuple[str, str]:
        for param in self.recorder.params:
            if isinstance(param, Arg) and param.results == (value,):
                return param.name, param.name
        op = self.made_by(value)
        if isinstance(op, PureCall | Strip | Lower):
            return "", next((found for part in inputs(op) if (found := self.name_of(part)[1])), "")
        return (op.site.name, "") if isinstance(op, Gen | Select) else ("", "")

    def truth(self, value: Value, loc: Loc) -> SymbolicBool | bool:
        """A recorded truth value for the program's code."""
        del loc
        return SymbolicBool(value)

    def store(self, name: str, value: Any, loc: Loc) -> None:
        """A variable of the program's own state; what can still change is stored again at its path's end."""
        if len(self.calls) > 1:
            return
        if isinstance(value, Generated) and value.parser is not None:
            if not value.many:
                read = PureCall(
                    declare_reader(value.parser), (value.value,), {}, "object", loc=value.parser.loc
                )
                self.recorder.ops.append(Store(name, self.emit(read, Type.JSON), loc=loc))
        else:
            self.recorder.ops.append(Store(name, self.as_data(self, value, "stored"), loc=loc))

    def text_of(self, stream: Value, since: Value | None, loc: Loc) -> SymbolicText:
        return SymbolicText((self.recorder.emit(TextOf(stream, since, loc=loc), Type.TEXT),))

    def end_path(self, state: PromptState) -> None:
        """The function has returned: what its own state leaves behind."""
        if len(self.calls) > 1:
            return
        for name, variable in state._variables.items():
            if not isinstance(variable, Unsettled) and not _is_settled(variable):
                self.recorder.ops.append(Store(name, self.as_data(self, variable, "stored"), loc=self.at))
        self.recorder.ops.append(Prompt(state.stream.value, loc=self.at))

    # -- what the interpreter asks -----------------------------------------------------------------

    def place(self) -> Loc:
        """Where the program stands."""
        if self.node is None:
            return self.at
        node: Any = self.node
        end = node.end_col_offset + 1 if node.end_lineno == node.lineno else 0
        return Loc(shown_path(self.node_file), node.lineno, node.col_offset + 1, end)

    def raised_at(self, error: Exception, loc: Loc) -> None:
        """An exception goes through the program; the first place is where it was raised."""
        self._places.setdefault(id(error), (error, loc))

    def place_of(self, error: BaseException) -> Loc | None:
        """Where the program raised it."""
        found = self._places.get(id(error))
        return None if found is None else found[1]

    def was_read(self, value: Any) -> None:
        """The program has read a variable: no tool is called behind it if that has failed."""
        if isinstance(value, SymbolicText):
            self.unchecked.update(dict.fromkeys(part for part in value.parts if isinstance(part, Value)))
        elif isinstance(value, SymbolicList | SymbolicJson | SymbolicBool):
            self.unchecked[value.value] = None

    def before_tool(self, name: str) -> None:
        """A tool is about to be recorded."""
        if self.unchecked:
            self.emit(
                PureCall("sglc.known", tuple(self.unchecked), {}, str(Type.JSON), loc=self.place()), Type.JSON
            )
        self.unchecked, self.called_tool = {}, name

    def step(self) -> None:
        """One more statement, or turn of a loop, is interpreted.

        Raises:
            GraphBreak: there were too many, on all paths together.
        """
        self.steps += 1
        if self.steps > _MOST_STEPS:
            raise GraphBreak(f"tracing takes more than {_MOST_STEPS:,} steps", self.place(), ITERATION)

    def may_fail(self, what: str) -> None:
        """`what` can fail when the program runs.

        Raises:
            GraphBreak: the program could catch that.
        """
        if self.guarded:
            raise GraphBreak(f"{what} can fail inside of a `try`", self.place(), TRIED)

    def change(self, value: Any, what: str) -> None:
        """`value` is about to be changed.

        Raises:
            GraphBreak: the change could be seen behind the program, or behind the block that is recorded.
        """
        if self.outside.is_outside(value) or any(id(value) in ids for ids in self.standing):
            raise GraphBreak(f"{what} changes what outlives the program", self.place(), OUTSIDE)
        if isinstance(value, Symbolic):
            raise GraphBreak(
                f"{what} changes a value that only exists when the program runs", self.place(), OUTSIDE
            )
        known = isinstance(value, list | dict | set) or type(value).__module__ == "collections"
        if not known and not dataclasses.is_dataclass(value):
            raise GraphBreak(
                f"{what} of a `{type(value).__name__}` runs code of its own", self.place(), OUTSIDE
            )

    @contextmanager
    def inside_block(self, body: Callable[..., Any]) -> Iterator[None]:
        """What is made from here on belongs to a block; what was there before is not changed in it."""
        found: dict[int, Any] = {}
        for frame in self.calling:
            outer: CallFrame | None = frame
            while outer is not None:
                _reach(list(outer.values.values()), found)
                outer = outer.outer
        self.bodies.append(body)
        self.standing.append(frozenset(found))
        try:
            yield
        finally:
            self.bodies.pop()
            self.standing.pop()

    def several(self, value: Value) -> bool:
        op = self.made_by(value)
        return isinstance(op, Gen) and op.sampling.n > 1

    def known(self, value: Value) -> str | bool | None:
        if value in self.decided:
            return self.decided[value]
        match self.made_by(value):
            case Strip(text=text):
                made = self._known_text(text)
                return None if made is None else made.strip()
            case Lower(text=text):
                made = self._known_text(text)
                return None if made is None else made.lower()
            case Format(parts=parts):
                texts = [self._known_text(part) for part in parts]
                return None if None in texts else "".join(text for text in texts if text is not None)
            case Eq(left=left, right=right):
                one, other = self._known_text(left), self._known_text(right)
                return self._same_fact(value) if one is None or other is None else one == other
            case In(part=part, text=text):
                one, other = self._known_text(part), self._known_text(text)
                return self._same_fact(value) if one is None or other is None else one in other
            case Not(value=inner):
                negated = self.known(inner)
                return None if negated is None else not negated
            case PureCall() if value.type is Type.BOOL:
                return self._same_fact(value)
            case _:
                options = self._options(value)
                return options[0] if options is not None and len(options) == 1 else None

    def _same_fact(self, value: Value) -> bool | None:
        """What this path has decided of a question that was asked before."""
        asked = _question(self.made_by(value))
        for other, outcome in self.decided.items():
            made, negated = self.made_by(other), False
            while isinstance(made, Not):
                made, negated = self.made_by(made.value), not negated
            if isinstance(outcome, bool) and asked is not None and _question(made) == asked:
                return outcome is not negated
        return None

    def decidable(self, value: Value) -> bool:
        match self.made_by(value):
            case Strip(text=text) | Lower(text=text):
                return not isinstance(text, Value) or self.decidable(text)
            case Format(parts=parts):
                return all(self.decidable(part) for part in parts if isinstance(part, Value))
            case _:
                return value.type is Type.BOOL or value in self.decided or self._options(value) is not None

    def decide(self, value: Value, loc: Loc) -> str | bool:
        known = self.known(value)
        if known is not None:
            return known
        match self.made_by(value):
            case Strip(text=Value() as text):
                return str(self.decide(text, loc)).strip()
            case Lower(text=Value() as text):
                return str(self.decide(text, loc)).lower()
            case Format(parts=parts):
                return "".join(part if isinstance(part, str) else str(self.decide(part, loc)) for part in parts)
            case _:
                cases = () if value.type is Type.BOOL else self._options(value)
                assert cases is not None, "asked without `decidable`"
                outcome = self.frames[-1].decide(value, cases, loc).outcome
                self.decided[value] = outcome
                return outcome

    def options_of(self, text: SymbolicText) -> tuple[str, ...] | None:
        """Every text that a text of one value can be, if these are few."""
        (part, *more) = text.parts
        return self._options(part) if isinstance(part, Value) and not more else None

    def _known_text(self, item: Value | str) -> str | None:
        known = item if isinstance(item, str) else self.known(item)
        return known if isinstance(known, str) else None

    def _options(self, value: Value) -> tuple[str, ...] | None:
        """Every text that the value can be, if these are few."""
        if value.type is not Type.TEXT:
            return None
        match self.made_by(value):
            case Select(choices=choices):
                texts = [choice for choice in choices if isinstance(choice, str)]
                return tuple(dict.fromkeys(texts)) if len(texts) == len(choices) else None
            case Gen(sampling=sampling):
                return texts_of(sampling)
            case Format(parts=parts) if all(isinstance(part, str) for part in parts):
                return ("".join(part for part in parts if isinstance(part, str)),)
            case Cond() | Switch() as op:
                at = op.results.index(value)
                return self._any_of([arm.results[at] for arm in arms_of(op) if not hands_over(arm)])
            case Loop() as op:
                at = op.results.index(value)
                placeholder = self.made_by(op.init[at]) == Format(("",), results=(op.init[at],))
                made = [op.body.results[at + 1]]
                return self._any_of(made if placeholder else [op.init[at], *made])
            case _:
                return None

    def _any_of(self, values: list[Value]) -> tuple[str, ...] | None:
        texts: list[str] = []
        for value in values:
            options = self._options(value)
            if options is None:
                return None
            texts += options
        return tuple(dict.fromkeys(texts))

    def made_by(self, value: Value) -> Op | None:
        """The op that made the value, inside of regions too; None for an argument."""
        while len(self._made) > len(self.frames) or any(
            frame is not own for (own, _), frame in zip(self._made, self.frames, strict=False)
        ):
            self._made.pop()
        for frame in self.frames[len(self._made) :]:
            self._made.append((frame, {}))
        for frame, made in reversed(self._made):
            if value not in made:
                self._index(frame, made)
            if value in made:
                return made[value]
        return None

    def _index(self, frame: Frame, made: dict[Value, Op]) -> None:
        for op in reversed(frame.ops):  # what is asked for is mostly new
            if op.results and op.results[0] in made:
                return
            made.update((result, inner) for inner in _nested(op) for result in inner.results)
            made.update((result, op) for result in op.results)

    # -- blocks ------------------------------------------------------------------------------------

    def block(
        self,
        body: Callable[[], Tree],
        loc: Loc,
        *,
        variables: bool = True,
        python: bool = True,
        first: bool = False,
    ) -> TracedBlock:
        """Record a block on all its paths; afterwards everything stands where it stood before.

        Args:
            body: records the block, and gives what it hands on.
            variables: the exit has the variables of the states from before the block, and their streams.
            python: ordinary Python may take over in the block.
            first: it is the whole function.

        Raises:
            GraphBreak: ordinary Python would have to take over where it must not.
        """
        before, outer = self._snapshot(), self.recorder.ops
        depth = sum(len(frame.decisions) + 1 for frame in self.frames)
        decided = dict(self.decided)
        standing = self.called_tool, self.guarded, len(self.handling), len(self.calling)
        unchecked = dict(self.unchecked)
        called = ""
        met = len(self.graph_breaks)
        marks = [before.mark]

        def run(frame: Frame) -> BlockExit | None:
            nonlocal called
            self._restore(before)
            self.called_tool, self.guarded = standing[:2]
            self.unchecked = dict(unchecked)
            del self.handling[standing[2] :], self.calling[standing[3] :]
            self.decided = dict(decided)
            self.recorder.ops = frame.ops
            self.frames.append(frame)
            try:
                tree = body()
                return (
                    self.exit_of(tree, [entry[0] for entry in before.states]) if variables else BlockExit(tree)
                )
            except PathEnded:
                return None
            except GraphBreak as graph_break:
                self._stop(frame, graph_break)
                return None
            except Exception as error:
                if first and not frame.decisions:
                    raise
                place = self.place_of(error) or of_exception(error, self.file) or loc
                try:
                    raise_at(frame, error, place, partial(self.operand, loc=place))
                except GraphBreak as graph_break:
                    self._stop(frame, graph_break)
                return None
            finally:
                called = called or self.called_tool
                self.frames.pop()
                marks.append(self.recorder.mark())

        def fresh(kind: Type) -> Value:
            return self.recorder.new_value(kind)

        def streams() -> StreamTurns:
            for mark in marks:
                self.recorder.skip_to(mark)
            return self.streams()

        try:
            made = explore(run, fresh, streams, loc, most_paths=self.most_paths, depth=depth)
        finally:
            marks.append(self.recorder.mark())
            self._restore(before)
            for mark in marks:
                self.recorder.skip_to(mark)
            self.recorder.ops = outer
            self.decided = decided
            self.called_tool, self.guarded = called or standing[0], standing[1]
            self.unchecked = unchecked
            del self.handling[standing[2] :], self.calling[standing[3] :]
        if len(self.graph_breaks) > met and not python:
            graph_break = self.graph_breaks[met]
            del self.graph_breaks[met:]
            raise graph_break
        return made

    def streams(self) -> StreamTurns:
        """The chat turns of every stream so far."""
        streams = StreamTurns()
        for frame in self.frames:
            for param, like in frame.given:
                streams.same(param, like)
            for op in frame.ops:
                streams.add(op)
        return streams

    def _stop(self, frame: Frame, graph_break: GraphBreak) -> None:
        self.graph_breaks.append(graph_break.with_traceback(None))
        stop_at(frame, graph_break)

    @contextmanager
    def here(self) -> Iterator[None]:
        """Symbolic values, structured ops and tools turn to this tracer."""
        token, place = TRACING.set(self), PLACE.set(self.place)
        try:
            yield
        finally:
            TRACING.reset(token)
            PLACE.reset(place)

    # -- states ------------------------------------------------------------------------------------

    def states(self) -> tuple[PromptState, ...]:
        return tuple(self.instance.states)

    def _snapshot(self) -> _Snapshot:
        return _Snapshot(
            self.recorder.mark(),
            tuple(
                (s, s._stream, s._stream.value, s._stream.turns, s._stream.live, dict(s._variables), s._history)
                for s in self.instance.states
            ),
        )

    def _restore(self, before: _Snapshot) -> None:
        self.recorder.go_back(before.mark)
        del self.instance.states[len(before.states) :]
        for state, stream, value, turns, live, variables, history in before.states:
            stream.value, stream.turns, stream.live = value, turns, live
            state._stream, state._variables, state._history = stream, dict(variables), history

    def exit_of(self, tree: Tree, states: Sequence[PromptState]) -> BlockExit:
        """Where the states stand now."""
        variables: dict[tuple[int, str], Stored] = {}
        for number, state in enumerate(states):
            for name, variable in state._variables.items():
                leaf = leaf_of(self, variable, name)
                variables[number, name] = Stored(leaf, variable, kept=True)
        values = tuple(state._stream.value for state in states)
        return BlockExit(tree, values, tuple(state._stream.turns.open for state in states), variables)

    def go_on(self, block_exit: BlockExit) -> None:
        """Let the states stand where a block has left them."""
        for number, state in enumerate(self.states()[: len(block_exit.streams)]):
            value, role = block_exit.streams[number], block_exit.opens[number]
            stream = state._stream
            if value != stream.value:
                stream.value = value
                stream.turns = Turns(stream.turns.closed, role)
                state._history = History(state._history, "block", "")
            own = {name: stored for (n, name), stored in (block_exit.variables or {}).items() if n == number}
            state._variables = {name: items_of(stored) for name, stored in own.items()}

    def unsettle(self, names: Mapping[tuple[int, str], str], loc: Loc) -> None:
        """Reading these variables is an error from here on, for the reasons given."""
        for (number, name), reason in names.items():
            self.states()[number]._variables[name] = Unsettled(name, reason, loc)


def _question(op: Op | None) -> tuple[Any, ...] | None:
    """What a truth value asks: two that ask the same of the same values are equal."""
    match op:
        case Eq(left=left, right=right):
            return "eq", left, right
        case In(part=part, text=text):
            return "in", part, text
        case PureCall(name=name, args=args, named=named) if name in PURE:
            return name, args, dict(named)
        case _:
            return None


def _is_settled(value: Any) -> bool:
    """Whether nothing that the program does can change a variable's value any more."""
    known = str | int | float | bool | bytes | None | Symbolic | Enum
    if isinstance(value, tuple | frozenset):
        return all(map(_is_settled, value))
    return isinstance(value, known | Generated | Gathered | Scoped | Awaited)


def _reach(items: Sequence[Any], found: dict[int, Any]) -> None:
    """Everything that could be changed in containers, by its id."""
    for item in items:
        if id(item) in found or isinstance(item, str | int | float | bool | None):
            continue
        found[id(item)] = item
        if isinstance(item, list | tuple | set):
            _reach(list(item), found)
        elif isinstance(item, dict):
            _reach(list(item.values()), found)


def _nested(op: Op) -> Iterator[Op]:
    for region in regions(op):
        for inner in region.ops:
            yield from _nested(inner)
            yield inner
