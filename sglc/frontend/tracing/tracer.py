"""The tracer of a function ahead of time: the block that is being recorded, and what is decided in it.

It is what symbolic values, structured ops and tools turn to (`current()`). Blocks nest: while one is
recorded, ops go into it, and decisions that were made in it are forgotten when it ends.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any

from sglc.errors import Loc, SglcError
from sglc.frontend.locate import PLACE, of_exception
from sglc.frontend.outputs.output_form import OutputParser
from sglc.frontend.program.history import History
from sglc.frontend.program.instance import Awaited, Gathered, Instance, PromptState, Scoped
from sglc.frontend.recorder.form import BODY, Body
from sglc.frontend.recorder.recorder import OpRecorder
from sglc.frontend.tracing.evaluation import Evaluation
from sglc.frontend.tracing.finite_values import FiniteValues
from sglc.frontend.tracing.makers import declare_parser, declare_reader
from sglc.frontend.tracing.open_turns import StreamTurns
from sglc.frontend.tracing.outside import behind_tool
from sglc.frontend.tracing.paths import MOST_PATHS, Frame, PathEnded, explore, raise_at
from sglc.frontend.tracing.pytree import items_of, leaf_of
from sglc.frontend.values.block_exit import BlockExit, Stored, TracedBlock, Unsettled
from sglc.frontend.values.graph_breaks import GUARDED, ArmsDiffer, GraphBreak
from sglc.frontend.values.known import Known
from sglc.frontend.values.recorded import Generated, Mark, RecordedStream, Turns
from sglc.frontend.values.symbolic import TRACING, Symbolic, SymbolicJson, SymbolicList, SymbolicText
from sglc.ir.core import Op, Tree, Type, Value, inputs
from sglc.ir.facts import spell
from sglc.ir.ops import Arg, Gen, Guard, HostCall, Lower, Prompt, PureCall, Select, Store, Strip, TextOf
from sglc.ir.pure import READ_PICTURE

_KINDS: dict[str, type] = {"int": int, "float": float}  # of typed values, by their names


def current() -> Tracer | None:
    """The tracer at work; None in an ordinary run."""
    tracing = TRACING.get()
    assert tracing is None or isinstance(tracing, Tracer)
    return tracing


@contextmanager
def turned_to(tracer: Tracer | None) -> Iterator[None]:
    """Symbolic values, structured ops and tools turn to this tracer; None: to none, as in an ordinary run."""
    token, place = TRACING.set(tracer), PLACE.set(None if tracer is None else tracer.place)
    body = BODY.set(None if tracer is None else Body(tracer.recorder))
    try:
        yield
    finally:
        BODY.reset(body)
        TRACING.reset(token)
        PLACE.reset(place)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Where the recorder and every state stand."""

    mark: Mark
    replaced: frozenset[Value | int]
    states: tuple[
        tuple[PromptState, RecordedStream, Value, Turns, tuple[bool, bool], dict[str, Any], History | None], ...
    ]


@dataclass(eq=False)
class Tracer(Evaluation, FiniteValues):
    """`graph_breaks` are all places where ordinary Python takes over, in the order in which they were met."""

    instance: Instance
    most_paths: int = MOST_PATHS
    file: str = ""  # where the function is written
    calls: tuple[Any, ...] = ()  # the functions whose traces this one is part of, outermost first
    graph_breaks: list[GraphBreak] = field(default_factory=list)
    # The interpreter: how it calls a function, runs the body of a call's frame, and makes data of a value.
    make_copy: Callable[[Tracer, Callable[..., Any], Loc], Callable[..., Any]] = field(kw_only=True)
    run_body: Callable[..., Any] = field(kw_only=True)
    as_data: Callable[[Tracer, Any, str], Tree] = field(kw_only=True)
    guards: dict[str, Guard] = field(default_factory=dict)  # by the fact
    counts: set[str] | None = None  # facts that are counts of tokens; None: such counts are data
    joins: bool = True  # arms meet behind their branch, where they can
    joined: set[ast.AST] = field(default_factory=set)  # statements whose arms have met
    apart: set[ast.AST] = field(default_factory=set)  # those whose arms cannot
    uneven: dict[Any, int] = field(default_factory=dict)  # sites not made by all arms, and how often by some
    arms: int = 0  # that were recorded to meet
    read_in_arms: bool = False  # arms that have met had read what was made before them
    facts: dict[int, tuple[Op, Known]] = field(default_factory=dict)  # what ops on arguments alone make, by id
    broken: list[str] = field(default_factory=list)  # why calls have graph breaks, of all programs of a trace
    recorder: OpRecorder = field(init=False)

    def __post_init__(self) -> None:
        self.recorder = self.instance.recorder

    def ask_arms(self) -> None:
        """What follows a branch asks what only its arms know.

        Raises:
            ArmsDiffer: the arms of some branch have met.
        """
        if self.joined:
            raise ArmsDiffer

    def made_unevenly(self) -> bool:
        """Whether a site was made behind a branch of which only some arms had made it: it has another number
        on each path."""
        counts = self.recorder.mark().occurrences
        return any(counts.get(key, 0) > count for key, count in self.uneven.items())

    def is_argument(self, value: Value) -> bool:
        """Whether it is an argument of the program itself, and of none that it calls."""
        return len(self.calls) == 1 and any(
            value in op.results for op in self.recorder.params if isinstance(op, Arg)
        )

    # -- what symbolic values ask ------------------------------------------------------------------

    def operand(self, text: str | SymbolicText, loc: Loc) -> Value | str:
        return self.recorder.text(text, loc)

    def picture(self, source: str | SymbolicText, loc: Loc) -> SymbolicText:
        if self.called_tool:
            raise behind_tool(self, "the file of a picture")
        self.may_fail("`image(...)`")
        self.outside.reads.changeable = self.outside.reads.changeable or "the file of a picture"
        args = (self.operand(source, loc),)
        data = self.recorder.emit(Type.TEXT, PureCall, READ_PICTURE, args, {}, str(Type.TEXT), loc=loc)
        self.unchecked[data] = None
        return SymbolicText((data,))

    def enter(self, function: Callable[..., Any], loc: Loc) -> Callable[..., Any]:
        return self.make_copy(self, function, loc)

    def parsed(self, parser: OutputParser, text: SymbolicText, loc: Loc) -> Any:
        if text.is_decidable():
            known = text._known(loc)
            assert known is not None
            return parser.parse(known)
        self.may_fail(f"a `{parser.name}`", SglcError)
        name, args = declare_parser(parser), (self.operand(text, loc),)
        made = self.recorder.emit(Type.JSON, PureCall, name, args, {}, "object", loc=loc)
        return SymbolicJson(made, _KINDS.get(parser.name, object))

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
            self.outside.note_given(real)
        return real

    def replace(self, value: Any, what: str, *, sure: bool) -> None:
        """`value` is about to be changed in place, where a plan makes a new one: nobody may read the old one.

        Args:
            sure: it is nothing that Python makes anew, too, so what it is a part of changes as well.

        Raises:
            GraphBreak: the change could be seen behind the program.
        """
        data = isinstance(value, SymbolicJson | SymbolicList)
        op = self.made_by(value.value) if data else None
        new = isinstance(op, PureCall) and op.name in _MAKE_NEW
        if not data or (value.known is not None and not new):
            self.change(value, what)
            self.outside.kept.append(value)
            self.outside.replaced |= {id(value)}
            return
        todo, found = [value.value], {value.value}
        while todo and sure and not new:
            op = self.made_by(todo.pop())
            if isinstance(op, PureCall):
                todo += inputs(op)
                found.update(inputs(op))
        self.outside.replaced |= found

    def stands(self) -> tuple[Any, ...]:
        """How much is recorded: the ops of this block, decisions, guards; and what was read outside."""
        ops, reads = self.recorder.ops, self.outside.reads
        counts = len(ops), len(self.decided), len(self.guards)
        return ops, counts, (len(reads), reads.changeable, reads.handed)

    def forget_reads(self, stood: tuple[Any, ...]) -> None:
        """A statement ends in a graph break: if it recorded nothing, what it read outside does not matter."""
        ops, counts, mark = stood
        if ops is self.recorder.ops and counts == (len(ops), len(self.decided), len(self.guards)):
            self.outside.reads.go_back(mark)

    def made(self, value: Value, known: Known) -> None:
        """The last op makes a value that is known."""
        op = self.recorder.ops[-1]
        assert op.results == (value,)
        self.facts[id(op)] = op, known

    def before_tool(self, name: str) -> None:
        """A tool is about to be recorded."""
        if self.read_in_arms:
            self.ask_arms()
        if self.unchecked:
            args = tuple(self.unchecked)
            self.recorder.emit(Type.JSON, PureCall, "sglc.known", args, {}, str(Type.JSON), loc=self.place())
        self.unchecked, self.called_tool = {}, name

    def name_of(self, value: Value) -> tuple[str, str]:
        for param in self.recorder.params:
            if isinstance(param, Arg) and param.results == (value,):
                return param.name, param.name
        op = self.made_by(value)
        if isinstance(op, PureCall | Strip | Lower):
            arguments = [self.name_of(part)[1] for part in inputs(op)]
            return "", arguments[0] if arguments and all(arguments) else ""  # else one alone is not enough
        return (op.site.name, "") if isinstance(op, Gen | Select) else ("", "")

    def store(self, name: str, value: Any, loc: Loc) -> None:
        """A variable of the program's own state; what can still change is stored again at its path's end."""
        if len(self.calls) > 1:
            return
        self.recorder.ops.append(Store(name, self._to_store(value), loc=loc))

    def _to_store(self, value: Any) -> Tree:
        """A variable as data; what reads the typed values of generations in it fails nobody."""
        match value:
            case Generated(parser=OutputParser() as parser):
                name, args = declare_reader(parser), (value.value,)
                return self.recorder.emit(Type.JSON, PureCall, name, args, {}, "object", loc=parser.loc)
            case Gathered():
                return tuple(map(self._to_store, value.entries))
            case _:
                return self.as_data(self, value, "stored")

    def text_of(self, stream: Value, since: Value | None, loc: Loc) -> SymbolicText:
        return SymbolicText((self.recorder.emit(Type.TEXT, TextOf, stream, since, loc=loc),))

    def end_path(self, state: PromptState) -> None:
        """The function has returned: what its own state leaves behind."""
        if len(self.calls) > 1:
            return
        for name, variable in state._variables.items():
            self.outside.unchanged(self, variable, name=name)
            if not isinstance(variable, Unsettled) and not _is_settled(variable):
                self.recorder.ops.append(Store(name, self.as_data(self, variable, "stored"), loc=self.at))
        self.recorder.ops.append(Prompt(state._stream.value, loc=self.at))

    # -- blocks ------------------------------------------------------------------------------------

    def block(
        self,
        body: Callable[[], Tree],
        loc: Loc,
        *,
        states: bool = True,
        variables: bool = True,
        python: bool = True,
        first: bool = False,
    ) -> TracedBlock:
        """Record a block on all its paths; afterwards everything stands where it stood before.

        Args:
            body: records the block, and gives what it hands on.
            states: the exit has the streams of the states from before the block.
            variables: it has their variables too.
            python: ordinary Python may take over in the block.
            first: it is the whole function.

        Raises:
            GraphBreak: ordinary Python would have to take over where it must not.
        """
        before, outer = self.snapshot(), self.recorder.ops
        depth = sum(len(frame.decisions) + 1 for frame in self.frames)
        decided, answered = dict(self.decided), list(self.answered)
        forgotten, questions = set(self.forgotten), list(self.forgotten_questions)
        called_tool, guarded, unchecked = self.called_tool, self.guarded, dict(self.unchecked)
        handling, calling = len(self.handling), len(self.calling)
        called = ""
        met = len(self.graph_breaks)
        marks: list[Mark] = []

        def go_back() -> None:
            marks.append(self.recorder.mark())
            self.restore(before)
            self.called_tool, self.guarded, self.unchecked = called_tool, guarded, dict(unchecked)
            del self.handling[handling:], self.calling[calling:]
            self.decided, self.answered = dict(decided), list(answered)
            self.forgotten, self.forgotten_questions = set(forgotten), list(questions)

        def run(frame: Frame) -> BlockExit | None:
            nonlocal called
            if frame.repeat:  # the first run begins where everything stands
                go_back()
            self.recorder.ops = frame.ops
            self.frames.append(frame)
            try:
                tree = body()
                left = [entry[0] for entry in before.states] if states else []
                return self.exit_of(tree, left, variables=variables)
            except PathEnded:
                return None
            except GraphBreak as graph_break:
                self._stop(frame, graph_break)
                return None
            except Exception as error:
                own = not isinstance(error, Symbolic)
                if own and first and not frame.decisions and len(self.calls) == 1:
                    raise
                place = self.place_of(error) or of_exception(error, self.file) or loc
                try:
                    self.may_fail(f"`{type(error).__name__}`", type(error))
                    raise_at(frame, error, place, partial(self.operand, loc=place))
                except GraphBreak as graph_break:
                    self._stop(frame, graph_break)
                return None
            finally:
                called = called or self.called_tool
                self.frames.pop()

        def skip() -> None:
            while marks:
                self.recorder.skip_to(marks.pop())

        def streams() -> StreamTurns:
            skip()
            return self.streams()

        try:
            fresh = self.recorder.new_value
            made = explore(run, fresh, streams, loc, most_paths=self.most_paths, depth=depth)
        finally:
            go_back()
            skip()
            self.recorder.ops, self.called_tool = outer, called or called_tool
        if len(self.graph_breaks) > met and not python:
            graph_break = self.graph_breaks[met]
            del self.graph_breaks[met:]
            raise graph_break
        return made

    def streams(self) -> StreamTurns:
        """The chat turns of every stream so far."""
        streams = StreamTurns()
        for frame in self.frames if self.recorder.chat else ():  # else no stream has any
            for param, like in frame.given:
                streams.same(param, like)
            for op in frame.ops:
                streams.add(op)
        return streams

    def _stop(self, frame: Frame, graph_break: GraphBreak) -> None:
        self.graph_breaks.append(graph_break.with_traceback(None))
        frame.ops.append(HostCall(graph_break.reason, loc=graph_break.loc))

    # -- states ------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        return Snapshot(
            self.recorder.mark(),
            self.outside.replaced,
            tuple(
                (
                    s,
                    s._stream,
                    s._stream.value,
                    s._stream.turns,
                    (s._joined, s._stream.live),
                    dict(s._variables),
                    s._history,
                )
                for s in self.instance.states
            ),
        )

    def restore(self, before: Snapshot) -> None:
        self.recorder.go_back(before.mark)
        self.outside.replaced = before.replaced
        del self.instance.states[len(before.states) :]
        for state, stream, value, turns, joined, variables, history in before.states:
            stream.value, stream.turns = value, turns
            state._joined, stream.live = joined
            state._stream, state._variables, state._history = stream, dict(variables), history

    def exit_of(self, tree: Tree, states: Sequence[PromptState], *, variables: bool = True) -> BlockExit:
        """Where the states stand now."""
        stored = {
            (number, name): Stored(leaf_of(self, variable, name), variable, kept=True)
            for number, state in enumerate(states if variables else ())
            for name, variable in state._variables.items()
        }
        values = tuple([state._stream.value for state in states])
        opens = tuple([state._stream.turns.open for state in states])
        return BlockExit(tree, values, opens, stored, tuple([state._joined for state in states]))

    def go_on(self, block_exit: BlockExit, *, variables: bool = True) -> None:
        """Let the states stand where a block has left them, with the `variables` that it has."""
        exits = zip(block_exit.streams, block_exit.opens, block_exit.joined, strict=True)
        for number, (state, (value, role, joined)) in enumerate(zip(self.instance.states, exits, strict=False)):
            stream = state._stream
            state._joined = joined
            if value != stream.value:
                stream.value = value
                stream.turns = Turns(stream.turns.closed, role)
                state._history = History(state._history, "block", "")
            if variables:
                stored = block_exit.variables.items()
                state._variables = {name: items_of(item) for (n, name), item in stored if n == number}


# Functions that make a new container, whatever they are given.
_MAKE_NEW = (
    "list", "dict", "set", "sorted", "sglc.slice", "list.copy", "dict.copy", "set.copy", "operator.add",
    "operator.mul", "operator.or_", "operator.and_", "operator.sub", "operator.xor",
)  # fmt: skip


_SETTLED = (str, int, float, bytes, type(None), Symbolic, Enum, Generated, Scoped, Awaited)


def _is_settled(value: Any) -> bool:
    """Whether nothing that the program does can change a variable's value any more."""
    if isinstance(value, tuple | frozenset):
        return all(map(_is_settled, value))
    if isinstance(value, Gathered):
        return all(map(_is_settled, value.entries))
    return isinstance(value, _SETTLED)
