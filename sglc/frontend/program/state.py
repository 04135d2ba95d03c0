"""Prompt states, as a program sees them: `s += ...`, `s["x"]`, roles, fork and join.

A state is a name for an immutable stream: appending moves it on to a new one. It records; what
runs is the launcher's business.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NoReturn, Self

from sglc.errors import Loc, MissingVariable, TraceError
from sglc.frontend.language.expr import (
    Appendable,
    ConcatExpr,
    GenExpr,
    ImageExpr,
    ReasonedExpr,
    RoleCloseExpr,
    RoleOpenExpr,
    SectionCloseExpr,
    SectionOpenExpr,
    SelectExpr,
    checked,
    made_in_line,
)
from sglc.frontend.locate import here
from sglc.frontend.program.forks import Forks
from sglc.frontend.program.history import History, messages, since
from sglc.frontend.program.instance import (
    MAP_ITEMS,
    NUMBERS,
    Awaited,
    Gathered,
    GatheredVariables,
    Instance,
    Scoped,
    Variable,
    check_settled,
    is_typed,
)
from sglc.frontend.program.pending import Pending
from sglc.frontend.values.block_exit import Unsettled, is_there
from sglc.frontend.values.graph_breaks import OTHER, GraphBreak
from sglc.frontend.values.no_text import NoText, refuse_text
from sglc.frontend.values.recorded import Generated, RecordedStream
from sglc.frontend.values.symbolic import TRACING, SymbolicText
from sglc.ir.core import Value


class State(NoText):
    """A prompt in the making. Made by sglc and handed to the function as its first parameter."""

    def __init__(
        self,
        instance: Instance,
        stream: RecordedStream,
        path: tuple[int, ...] = (),
        variables: Mapping[str, Variable] | None = None,
        history: History | None = None,
        label: str | None = None,
    ) -> None:
        self._instance = instance
        self._stream = stream
        self._path = path
        self._variables: dict[str, Variable] = dict(variables or {})
        self._history = history
        self._forked_at = history
        self._pending: Pending | None = None
        self._awaited: dict[str, Awaited] = {}  # what is pending
        self._waiting: list[tuple[Appendable, Loc]] = []  # behind what is pending
        self._scopes: tuple[str, ...] = ()  # variables that an open `var_scope` will store
        self._joined = False
        self._number = next(NUMBERS)
        self.label = label
        if instance.launcher is None:
            instance.states.append(self)

    # -- writing ---------------------------------------------------------------------------------

    def __add__(self, other: object) -> NoReturn:
        refuse_text("a prompt state", "append to it, `s += ...`, which changes it in its place")

    def __iadd__(self, item: object) -> Self:
        part = checked(item)
        self.append(part, part.loc if isinstance(part, GenExpr) else here())
        return self

    def append(self, item: Appendable, loc: Loc) -> None:
        """`s += item` for the program's line `loc`."""
        self._check_open(loc)
        match item:
            case str():
                self.put(item, loc)
            case ConcatExpr():
                with self._instance.recording:  # no other thread's stands between them
                    for part in item.parts:
                        self.append(part, loc)
            case GenExpr() | SelectExpr() if (
                item.retries or item.decide is not None or item.backend is not None
            ):
                self._suspend(Pending(self, item), item.loc)
            case ReasonedExpr():
                self._suspend(Pending(self, item.inner, item.tags), item.inner.loc)
            case RoleOpenExpr() | RoleCloseExpr():
                self._check_turn(item)
                self.put(item, loc)
            case _:
                self.put(item, loc)

    def put(self, item: Appendable, loc: Loc) -> None:
        """Record one thing, or have it wait behind what is pending."""
        if self._pending is not None:
            if not isinstance(item, GenExpr | SelectExpr):
                self._waiting.append((item, loc))
                return
            self.settle()
        with self._instance.recording:
            if not self._joined:  # else nothing goes on behind it, and only its history is read
                self._record(item, loc)
            match item:
                case str() | SymbolicText():
                    self._history = History(self._history, "text", item)
                case RoleOpenExpr():
                    self._history = History(self._history, "open", item.role)
                case RoleCloseExpr():
                    self._history = History(self._history, "close", item.role)
                case ImageExpr():
                    self._history = History(self._history, "image", item.data)
                case _:  # a generation, which `_record` has entered, or no text
                    pass

    def _record(self, item: Appendable, loc: Loc) -> None:
        recorder = self._instance.recorder
        match item:
            case str() | SymbolicText():
                recorder.append(self._stream, item, loc)
            case GenExpr() | SelectExpr():
                made, name = recorder.generate(self._stream, self._path, item), item.name or item.unnamed
                self.store(name, made if item.parser is None else replace(made, parser=item.parser))
                if item.parser is not None:
                    self._stored(name, item.loc)
                self._history = History(self._history, "generated", made)
            case RoleOpenExpr():
                recorder.role_open(self._stream, item.role, item.loc)
            case RoleCloseExpr():
                recorder.role_close(self._stream, item.loc)
            case ImageExpr():
                recorder.image(self._stream, item.data, item.loc)
            case SectionOpenExpr():
                recorder.section_open(self._stream, item.name, item.movable, item.loc)
            case SectionCloseExpr():
                recorder.section_close(self._stream, item.name, item.loc)
            case _:
                raise AssertionError(item)

    # -- what is not settled yet (`sglc.frontend.program.pending`) ----------------------------------------

    def _suspend(self, pending: Pending, loc: Loc) -> None:
        self._instance.running(pending.what, loc)
        self.settle()
        stored = pending.variables(self.settle)
        self._pending = pending
        self._awaited = {name: made for name, made in stored.items() if isinstance(made, Awaited)}
        self._instance.waiting.append(self)
        for name, variable in stored.items():
            self.store(name, variable)

    def begin_pending(self) -> None:
        """Have what is pending recorded, or launched; does not wait for it."""
        if self._pending is not None:
            self._pending.begin()

    def settle(self) -> None:
        """Wait for what is pending, and write what waits behind it.

        Raises:
            the error of what was pending; the state can be used all the same.
        """
        pending = self._pending
        if pending is None:
            return
        waiting, self._waiting, self._pending = self._waiting, [], None
        held = self._awaited  # some may be variables of another item of a `map`
        try:
            # Everything else that waits begins with it, so that it all runs side by side.
            self._instance.waiting.remove(self)
            pending.begin()
            for state in self._instance.waiting:
                state.begin_pending()
            known = pending.finish()
            for name, variable in held.items():
                variable.known = known[name]  # for those who have it already: a joined list, a reader
            for name, made in known.items():
                self.store(name, made)
        except BaseException as problem:
            for variable in held.values():
                variable.problem = problem
            raise
        finally:
            for item, loc in waiting:
                self.put(item, loc)
            if self._joined:
                self._stream.live = False

    def adopt(self, branch: RecordedStream, made: Generated) -> None:
        """The prompt goes on as `branch`, which ends with `made`."""
        stream = self._stream
        with self._instance.recording:
            branch.live = False
            stream.launch, stream.value, stream.handle = branch.launch, branch.value, branch.handle
            self._history = History(self._history, "generated", made)

    @property
    def stream(self) -> RecordedStream:
        return self._stream

    # -- chat turns ------------------------------------------------------------------------------

    @property
    def _open_turn(self) -> str:
        """The role whose turn is open, with what waits written; "" if none is."""
        for item, _ in reversed(self._waiting):
            if isinstance(item, RoleOpenExpr):
                return item.role
            if isinstance(item, RoleCloseExpr):
                return ""
        return self._stream.turns.open

    def _check_turn(self, item: RoleOpenExpr | RoleCloseExpr) -> None:
        is_open = self._open_turn
        match item:
            case RoleOpenExpr(role) if is_open:
                raise TraceError(
                    "SGLC106", f"a turn of `{role}` begins inside one of `{is_open}`", item.loc,
                    hint=f"end the `{is_open}` turn first: chat turns do not nest",
                )  # fmt: skip
            case RoleCloseExpr(role) if is_open != role:
                raise TraceError(
                    "SGLC106", f"a turn of `{role}` ends, and {f'`{is_open}`' if is_open else 'none'} is open",
                    item.loc, hint=f"begin it with `{role}_begin()`",
                )  # fmt: skip

    def _check_open(self, loc: Loc) -> None:
        if self._instance.over:
            raise TraceError(
                "SGLC157", "the run of this state has ended, so nothing can be appended to it", loc,
                hint="begin another run, with `result.text()` or `result.messages()` as an argument",
            )  # fmt: skip
        if self._joined:
            raise TraceError(
                "SGLC107", "this branch has been joined, so nothing can be appended to it", loc,
                hint="append to the state that was forked, or fork again",
            )  # fmt: skip

    def role(self, name: str, content: object = None) -> Any:
        """A turn of `name`: appended whole with `content`, else a context manager for its inside."""
        loc = here()
        if content is None:
            return self._turn(name, loc)
        with self._instance.recording:
            for part in (RoleOpenExpr(name, loc), checked(content), RoleCloseExpr(name, loc)):
                self.append(part, loc)
        return self

    def system(self, content: object = None) -> Any:
        """A system turn: `s.system("...")`, or `with s.system(): ...`."""
        return self.role("system", content)

    def user(self, content: object = None) -> Any:
        """A user turn: `s.user("...")`, or `with s.user(): ...`."""
        return self.role("user", content)

    def assistant(self, content: object = None) -> Any:
        """An assistant turn: `s.assistant(gen("answer"))`, or `with s.assistant(): ...`."""
        return self.role("assistant", content)

    @contextmanager
    def _turn(self, name: str, loc: Loc) -> Iterator[State]:
        self.append(RoleOpenExpr(name, loc), loc)
        try:
            yield self
        except Exception:  # an exception in the turn leaves the state usable; a `GraphBreak` is none
            if self._open_turn == name:
                self.append(RoleCloseExpr(name, loc), loc)
            raise
        if self._open_turn == name:
            self.append(RoleCloseExpr(name, loc), loc)

    @contextmanager
    def var_scope(self, name: str) -> Iterator[State]:
        """Everything that is appended inside becomes the text of the variable `name`."""
        recorder, loc = self._instance.recorder, here()
        self.settle()
        with self._instance.recording:
            begin, start, scopes = recorder.bookmark(self._stream), self._history, self._scopes
        self._scopes = (*scopes, name)
        try:
            yield self
            self.settle()
        finally:
            self._scopes = scopes
            with self._instance.recording:
                parts = tuple(since(self._history, start))
                self.store(name, Scoped(begin, recorder.bookmark(self._stream), parts))
            self._stored(name, loc)

    # -- branching -------------------------------------------------------------------------------

    def fork(self, size: int | Sequence[str] = 1) -> Forks[State]:
        """`size` branches that begin as this state is now; a list of labels gives one branch a label."""
        loc = here()
        self._check_open(loc)
        labels: tuple[str, ...] = ()
        if isinstance(size, Sequence) and not isinstance(size, str) and all(isinstance(x, str) for x in size):
            labels, size = tuple(size), len(size)
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise TraceError(
                "SGLC108", f"`fork` takes a number of branches or a list of labels, not `{size!r}`", loc,
                hint='`s.fork(3)` or `s.fork(["first", "second"])`',
            )  # fmt: skip
        self.settle()
        with self._instance.recording:
            streams = self._instance.recorder.fork(self._stream, size, labels, loc)
            children = [
                State(self._instance, stream, (*self._path, i), self._variables, self._history,
                      labels[i] if labels else None)
                for i, stream in enumerate(streams)
            ]  # fmt: skip
        return Forks(children, self.join)

    @contextmanager
    def copy(self) -> Iterator[State]:
        """A branch of its own, joined at the end of the block: `with s.copy() as c: ...`."""
        forks = self.fork(1)
        yield forks[0]
        self.join(forks)

    def join(self, forks: Forks[State] | Sequence[State], mode: str = "gather_variable") -> GatheredVariables:
        """Gather what the branches stored: each new name becomes a list of this state, in branch order.

        With `mode="concate_and_append"`, append what each branch appended since the fork instead.
        """
        loc = here()
        if mode not in ("gather_variable", "concate_and_append"):
            note = "modes: gather_variable, concate_and_append"
            raise TraceError("SGLC109", f"`join` has no mode `{mode}`", loc, note=note)
        children = list(forks)
        for child in children:
            if not isinstance(child, State) or child._instance is not self._instance:
                raise TraceError(
                    "SGLC109", "`join` takes branches of this program", loc, hint="give it what `fork` returned"
                )
            if child._joined:
                raise TraceError("SGLC109", "this branch has been joined already", loc)
        self.settle()
        if mode == "concate_and_append":
            for child in children:
                self._append_branch(child, loc)
        for child in children:
            child._joined = True
            child._stream.live = child._pending is not None  # it is still needed there
        if mode == "concate_and_append":
            return GatheredVariables(self._instance, {})
        check_settled(*(variable for state in (self, *children) for variable in state._variables.values()))
        names = dict.fromkeys(name for child in children for name in child._variables)
        for name, own in self._variables.items() if self._instance.launcher is None else ():
            if any(child._variables.get(name, own) is not own for child in children):
                self._check_known(name, loc)  # it is gathered where the state has none
        gathered: dict[str, Gathered] = {}
        for name in [name for name in names if name not in self._variables]:
            made = self._gather(name, [child._variables.get(name) for child in children], loc)
            gathered[name] = made
            self.store(name, made)
            if made.value is None or is_typed(made):
                self._stored(name, loc)
        return GatheredVariables(self._instance, gathered)

    def _append_branch(self, child: State, loc: Loc) -> None:
        child.settle()
        parts = since(child._history, child._forked_at)
        if any(part.kind == "block" for part in parts):
            self._instance.running("the text of a branch with structured ops", loc)
        if any(part.kind not in ("text", "generated") for part in parts):
            raise TraceError(
                "SGLC109", "a branch with chat turns or pictures cannot be appended as text", loc,
                hint="gather its variables, and append these",
            )  # fmt: skip
        for part in parts:
            made = part.item
            if isinstance(made, Generated):
                with self._instance.recording:
                    if made.launch == self._instance.recorder.launch:
                        self._instance.recorder.append(self._stream, SymbolicText((made.value,)), loc)
                        self._history = History(self._history, "generated", made)
                        continue
                made = self._instance.in_prompt(made, "`join`", loc)
            self.append(made, loc)

    def _gather(self, name: str, entries: list[Variable], loc: Loc) -> Gathered:
        recorder = self._instance.recorder
        with self._instance.recording:
            value = recorder.join(self._path, name, self._values(entries), loc)
            return Gathered(tuple(entries), value, recorder.launch)

    def _values(self, entries: list[Variable]) -> tuple[Value | None, ...] | None:
        """What is to be joined; None if something was set by hand, or made before this launch."""
        values: list[Value | None] = []
        for entry in entries:
            match entry:
                case None:
                    values.append(None)
                case Generated() | Gathered() if entry.launch == self._instance.recorder.launch and entry.value:
                    values.append(entry.value)
                case _:
                    return None
        return tuple(values)

    # -- reading ---------------------------------------------------------------------------------

    __iter__ = None  # else Python would ask for the variables 0, 1, 2, ...

    def __getitem__(self, name: str) -> Any:
        if name not in self._variables or name in self._scopes:
            known = ", ".join(f"`{known}`" for known in self._variables)
            hint = f'store it with `gen("{name}")`'
            if made_in_line(name, loc := here()):
                hint = f'append `gen("{name}")` first, in a statement of its own: it is in the same expression'
            raise MissingVariable(
                "SGLC110", f"nothing is stored under `{name}` yet", loc,
                note=f"stored so far: {known or 'nothing'}", hint=hint,
            )  # fmt: skip
        return self._instance.read(self._variables[name], f"`[{name!r}]`")

    def __setitem__(self, name: str, value: Any) -> None:
        self.settle()
        self.store(name, value)
        self._stored(name, here())

    def store(self, name: str, variable: Variable) -> None:
        """From here on the variable is this."""
        items = MAP_ITEMS.get()
        if items is not None:
            items.note(self, name, variable)
        self._variables[name] = variable

    def _stored(self, name: str, loc: Loc) -> None:
        """A variable was stored that no generation makes: where the program is traced, an op says so."""
        tracing = TRACING.get() if self._instance.launcher is None else None
        if tracing is not None and not self._path:
            tracing.store(name, self._variables[name], loc)

    def __contains__(self, name: str) -> bool:
        variable = self._variables.get(name)
        self._check_known(name, here())
        failed = isinstance(variable, Awaited) and variable.problem is not None
        return name in self._variables and name not in self._scopes and not failed

    def _check_known(self, name: str, loc: Loc) -> None:
        """Raises GraphBreak: whether a variable is there shows when the program runs."""
        variable = self._variables.get(name)
        if isinstance(variable, Unsettled) and not is_there(variable):
            check_settled(variable)
            reason = f"whether `{name}` is stored shows when the program runs: {variable.reason}"
            raise GraphBreak(reason, loc, OTHER, "store it in every arm, or before the branch")

    def get_var(self, name: str) -> Any:
        """`s[name]` under its older name."""
        return self[name]

    def set_var(self, name: str, value: Any) -> None:
        """`s[name] = value` under its older name."""
        self[name] = value

    def text(self) -> str:
        """The whole prompt as text, chat markup included; waits for every generation in it."""
        self.settle()
        tracing = TRACING.get() if self._instance.launcher is None else None
        if tracing is not None and self._stream.live:
            return tracing.text_of(self._stream.value, None, here())  # type: ignore[return-value]
        return self._instance.text_at(self._stream, self._history, "`text()`", here())

    def sync(self) -> None:
        """Wait for everything that was appended. It raises nothing, and reading needs none of it."""
        if self._instance.launcher is not None:
            self.settle()
            self._instance.observe("`sync()`", here()).wait()

    def get_meta_info(self, name: str) -> dict[str, Any] | None:
        """Counts, finish reason, scores and ids of the call that stored `name`; waits for it. None: none."""
        loc = here()
        self.settle()
        made = self._variables.get(name)
        launcher = self._instance.observe("`get_meta_info`", loc)
        return launcher.meta_of_site(made.site) if isinstance(made, Generated) else None

    def __str__(self) -> str:
        """The prompt in SGLang's form; waits for every generation in it."""
        return f"ProgramState({self.text()})"

    def refuse_as_text(self) -> NoReturn:
        """As of `NoText`."""
        refuse_text("a prompt state", 'read a variable of it, `s["name"]`, or its whole text, `s.text()`')

    def as_data(self) -> str | None:
        """Its text; None if what stands in it failed."""
        try:
            return self.text()
        except Exception:
            return None

    def messages(self) -> list[dict[str, Any]]:
        """The chat turns as `{"role", "content"}`; text outside turns is in none of them.

        The content of a turn with pictures is a list of parts, in the form of OpenAI's requests.
        """
        loc = here()
        self.settle()
        self._instance.observe("`messages()`", loc)
        return messages(self._history, lambda made: self._instance.in_prompt(made, "`messages()`", loc))
