"""Prompt states, as a program sees them: `s += ...`, `s["x"]`, roles, fork and join.

A state is a name for an immutable stream: appending moves it on to a new one. It records; what
runs is the launcher's business.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

from sglc.errors import Loc, MissingVariable, TraceError
from sglc.frontend.choices import ChoicesSamplingMethod
from sglc.frontend.expr import (
    Concat,
    Expr,
    GenExpr,
    RoleCloseExpr,
    RoleOpenExpr,
    SelectExpr,
    checked,
)
from sglc.frontend.history import History, messages, since
from sglc.frontend.instance import Gathered, GatheredVariables, Instance, Scoped, Variable, first
from sglc.frontend.locate import here
from sglc.frontend.recorder import Generated, Stream
from sglc.frontend.symbolic import SymbolicText
from sglc.ir.core import Value


class State:
    """A prompt in the making. Made by sglc and handed to the function as its first parameter."""

    def __init__(
        self,
        instance: Instance,
        stream: Stream,
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
        self.label = label

    # -- writing ---------------------------------------------------------------------------------

    def __iadd__(self, item: object) -> Self:
        self._append(checked(item), here())
        return self

    def _append(self, item: str | SymbolicText | Expr, loc: Loc) -> None:
        self._check_open(loc)
        recorder = self._instance.recorder
        match item:
            case str() | SymbolicText():
                recorder.append(self._stream, item, loc)
                self._history = History(self._history, "text", item)
            case Concat():
                for part in item.parts:
                    self._append(part, loc)
            case GenExpr():
                self._store(item.name or "gen", recorder.gen(self._stream, self._path, item))
            case SelectExpr() if item.decide is not None:
                self._choose(item, item.decide)
            case SelectExpr():
                self._store(item.name or "select", recorder.select(self._stream, self._path, item))
            case RoleOpenExpr():
                self._open_role(item.role, item.loc)
            case RoleCloseExpr():
                self._close_role(item.role, item.loc)
            case _:
                raise AssertionError(item)

    def _store(self, name: str, variable: Generated) -> None:
        self._variables[name] = variable
        self._history = History(self._history, "generated", variable)

    def _choose(self, item: SelectExpr, decide: ChoicesSamplingMethod) -> None:
        """Score the choices on a branch, let Python decide, and go on with its decision as text."""
        recorder = self._instance.recorder
        (branch,) = recorder.fork(self._stream, 1, (), item.loc)
        scored = recorder.select(branch, self._path, item)
        branch.live = False
        call = self._instance.observe("`choices_method`", item.loc).call_of_site(scored.site)
        by_token = [
            [(logprob, token, None) for logprob, token in zip(logprobs, ids, strict=True)]
            for logprobs, ids in zip(call.logprobs, call.choice_ids, strict=True)
        ]
        choices = [choice for choice in item.choices if isinstance(choice, str)]
        decision = decide(
            choices=choices,
            normalized_prompt_logprobs=call.scores,
            input_token_logprobs=by_token,
            output_token_logprobs=[[] for _ in by_token],
        ).decision
        if decision not in choices:
            raise TraceError(
                "SGLC105", f"`{type(decide).__name__}` chose `{decision}`, which is no choice", item.loc
            )
        self._append(decision, item.loc)
        self._variables[item.name or "select"] = decision

    def _open_role(self, role: str, loc: Loc) -> None:
        if self._stream.turns.open:
            raise TraceError(
                "SGLC106", f"a turn of `{role}` begins inside one of `{self._stream.turns.open}`", loc,
                hint=f"end the `{self._stream.turns.open}` turn first: chat turns do not nest",
            )  # fmt: skip
        self._instance.recorder.role_open(self._stream, role, loc)
        self._history = History(self._history, "open", role)

    def _close_role(self, role: str, loc: Loc) -> None:
        if self._stream.turns.open != role:
            is_open = f"`{self._stream.turns.open}`" if self._stream.turns.open else "none"
            raise TraceError(
                "SGLC106", f"a turn of `{role}` ends, and {is_open} is open", loc,
                hint=f"begin it with `{role}_begin()`",
            )  # fmt: skip
        self._instance.recorder.role_close(self._stream, loc)
        self._history = History(self._history, "close", role)

    def _check_open(self, loc: Loc) -> None:
        if not self._stream.live:
            raise TraceError(
                "SGLC107", "this branch has been joined, so nothing can be appended to it", loc,
                hint="append to the state that was forked, or fork again",
            )  # fmt: skip

    def role(self, name: str, content: object = None) -> Any:
        """A turn of `name`: appended whole with `content`, else a context manager for its inside."""
        loc = here()
        if content is None:
            return self._turn(name, loc)
        content = checked(content)
        self._open_role(name, loc)
        self._append(content, loc)
        self._close_role(name, loc)
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
        self._check_open(loc)
        self._open_role(name, loc)
        try:
            yield self
        except Exception:  # an exception in the turn leaves the state usable; a `Boundary` is none
            if self._stream.turns.open == name:
                self._close_role(name, loc)
            raise
        if self._stream.turns.open == name:
            self._close_role(name, loc)

    @contextmanager
    def var_scope(self, name: str) -> Iterator[State]:
        """Everything that is appended inside becomes the text of the variable `name`."""
        recorder = self._instance.recorder
        begin, start = recorder.bookmark(self._stream), self._history
        try:
            yield self
        finally:
            parts = tuple(since(self._history, start))
            self._variables[name] = Scoped(begin, recorder.bookmark(self._stream), parts)

    # -- branching -------------------------------------------------------------------------------

    def fork(self, size: int | Sequence[str] = 1) -> Forks:
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
        streams = self._instance.recorder.fork(self._stream, size, labels, loc)
        children = [
            State(self._instance, stream, (*self._path, i), self._variables, self._history,
                  labels[i] if labels else None)
            for i, stream in enumerate(streams)
        ]  # fmt: skip
        return Forks(self, children)

    @contextmanager
    def copy(self) -> Iterator[State]:
        """A branch of its own, joined at the end of the block: `with s.copy() as c: ...`."""
        forks = self.fork(1)
        yield forks[0]
        self.join(forks)

    def join(self, forks: Forks | Sequence[State], mode: str = "gather_variable") -> GatheredVariables:
        """Gather what the branches stored: each new name becomes a list of this state, in branch order.

        With `mode="concate_and_append"`, append what each branch appended since the fork instead.
        """
        loc = here()
        if mode not in ("gather_variable", "concate_and_append"):
            raise TraceError(
                "SGLC109",
                f"`join` has no mode `{mode}`",
                loc,
                note="modes: gather_variable, concate_and_append",
            )
        children = list(forks)
        for child in children:
            if not isinstance(child, State) or child._instance is not self._instance:
                raise TraceError(
                    "SGLC109", "`join` takes branches of this program", loc, hint="give it what `fork` returned"
                )
            if not child._stream.live:
                raise TraceError("SGLC109", "this branch has been joined already", loc)
        if mode == "concate_and_append":
            for child in children:
                self._append_branch(child, loc)
        for child in children:
            child._stream.live = False
        if mode == "concate_and_append":
            return GatheredVariables(self._instance, {})
        names = dict.fromkeys(name for child in children for name in child._variables)
        gathered = {
            name: self._gather(name, [child._variables.get(name) for child in children], loc)
            for name in names
            if name not in self._variables
        }
        self._variables.update(gathered)
        return GatheredVariables(self._instance, gathered)

    def _append_branch(self, child: State, loc: Loc) -> None:
        parts = since(child._history, child._forked_at)
        if any(part.kind in ("open", "close") for part in parts):
            raise TraceError(
                "SGLC109", "a branch with chat turns cannot be appended as text", loc,
                hint="gather its variables, and append these",
            )  # fmt: skip
        for part in parts:
            made = part.item
            if not isinstance(made, Generated):
                self._append(made, loc)
            elif made.launch == self._instance.recorder.launch:
                self._instance.recorder.append(self._stream, SymbolicText((made.value,)), loc)
                self._history = History(self._history, "generated", made)
            else:
                self._append(first(self._instance.read(made, "`join`", loc)), loc)

    def _gather(self, name: str, entries: list[Variable], loc: Loc) -> Gathered:
        recorder = self._instance.recorder
        values: list[Generated | Value | None] = []
        for entry in entries:
            match entry:
                case None | Generated():
                    values.append(entry)
                case Gathered(value=Value() as whole) if entry.launch == recorder.launch:
                    values.append(whole)
                case _:  # set by hand, or made before this launch: gathered when it is read
                    return Gathered(tuple(entries), None, recorder.launch)
        value = recorder.join(self._path, name, tuple(values), loc)
        return Gathered(tuple(entries), value, recorder.launch)

    # -- reading ---------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Any:
        loc = here()
        if name not in self._variables:
            known = ", ".join(f"`{known}`" for known in self._variables)
            raise MissingVariable(
                "SGLC110", f"nothing is stored under `{name}` yet", loc,
                note=f"stored so far: {known or 'nothing'}", hint=f'store it with `gen("{name}")`',
            )  # fmt: skip
        return self._instance.read(self._variables[name], f"`[{name!r}]`", loc)

    def __setitem__(self, name: str, value: Any) -> None:
        self._variables[name] = value

    def __contains__(self, name: str) -> bool:
        return name in self._variables

    def get_var(self, name: str) -> Any:
        """`s[name]` under its older name."""
        return self[name]

    def set_var(self, name: str, value: Any) -> None:
        """`s[name] = value` under its older name."""
        self[name] = value

    def text(self) -> str:
        """The whole prompt as text, chat markup included; waits for every generation in it."""
        launcher = self._instance.observe("`text()`", here())
        return launcher.text_of_stream(self._stream.handle) if self._stream.handle else ""

    def messages(self) -> list[dict[str, str]]:
        """The chat turns as `{"role", "content"}`; text outside turns is in none of them."""
        loc = here()
        self._instance.observe("`messages()`", loc)
        return messages(self._history, lambda made: self._instance.read(made, "`messages()`", loc))


class Forks:
    """The branches of one fork, in order."""

    def __init__(self, parent: State, children: Sequence[State]) -> None:
        self._parent = parent
        self._children = list(children)

    def __len__(self) -> int:
        return len(self._children)

    def __iter__(self) -> Iterator[State]:
        return iter(self._children)

    def __getitem__(self, index: int | str) -> State:
        if isinstance(index, str):
            for child in self._children:
                if child.label == index:
                    return child
            raise TraceError("SGLC108", f"no branch is labelled `{index}`", here())
        return self._children[index]

    def __setitem__(self, index: int | str, value: State) -> None:
        """The second half of `forks[i] += ...`."""
        if value is not self[index]:
            raise TraceError("SGLC108", "a branch cannot be replaced, only appended to", here())

    def __iadd__(self, item: object) -> Self:
        """The same text or expression for every branch, one of a list each, or what `item(i)` gives."""
        loc = here()
        if isinstance(item, list | tuple) and len(item) != len(self._children):
            raise TraceError(
                "SGLC108", f"{len(item)} expressions for {len(self._children)} branches", loc,
                hint="give one expression a branch",
            )  # fmt: skip
        for i, child in enumerate(self._children):
            each: object = item
            if isinstance(item, list | tuple):
                each = item[i]
            elif callable(item):
                each = item(i)
            child._append(checked(each), loc)
        return self

    def join(self, mode: str = "gather_variable") -> GatheredVariables:
        """`s.join(forks)` of the state that was forked."""
        return self._parent.join(self, mode)
