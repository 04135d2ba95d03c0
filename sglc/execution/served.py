"""What a plan has had before its program goes on as Python: generations and calls that are not made again.

The body runs from its top. A generation whose site the plan has asked is there at once, and a tool that the
plan has called gives what it gave; where these end, the program is live.
"""

from __future__ import annotations

import inspect
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sglc.execution.outputs import PendingOutput
from sglc.execution.tasks import awaited
from sglc.frontend.tracing.tools import is_ordered
from sglc.ir.core import Site
from sglc.ir.facts import spell
from sglc.ir.plan.plan import FunctionStep


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A declared function that was called: what it gave, or raised."""

    name: str
    value: Any
    error: BaseException | None = None

    def given(self) -> Any:
        """What the program is given.

        Raises:
            what the function raised.
        """
        if self.error is not None:
            raise self.error
        return self.value


@dataclass(slots=True)
class Served:
    """`tools` are in the order of the program, others by what was called with what: `free` ones in the order in
    which equal calls began. Called programs take theirs before the caller goes on behind them (`wait`).
    """

    answers: dict[Site, PendingOutput] = field(default_factory=dict)
    tools: deque[ToolCall] = field(default_factory=deque)
    free: dict[tuple[str, str], dict[int, ToolCall]] = field(default_factory=dict)
    pure: dict[tuple[str, str], ToolCall] = field(default_factory=dict)
    change: threading.Condition = field(default_factory=threading.Condition)

    @property
    def over(self) -> bool:
        """Whether there is nothing left, so that the program is live."""
        return not self.answers and not self.calls_left

    @property
    def calls_left(self) -> bool:
        """Whether the plan has made calls that the program has not come to yet."""
        return bool(self.tools) or any(self.free.values())

    def wait(self, ended: Callable[[], bool]) -> None:
        """Wait until a called program has ended, or has come to the last call that the plan has made.

        Calls have the order of the program, in which it stands before what its caller does next.
        """
        with self.change:
            self.change.wait_for(lambda: not self.calls_left or ended())

    def tell(self) -> None:
        """A called program has ended."""
        with self.change:
            self.change.notify_all()

    def add(
        self, call: ToolCall, step: FunctionStep, args: Sequence[Any], named: Mapping[str, Any], number: int
    ) -> None:
        """The plan has made a call, which began as that `number` of its equals."""
        key = key_of(args, named)
        if step.needs_order:
            self.tools.append(call)
        elif step.effects:
            self.free.setdefault((call.name, key or ""), {})[number] = call
        elif key is not None:
            self.pure[call.name, key] = call

    def called(self, name: str, pure: bool, args: Sequence[Any], named: Mapping[str, Any]) -> ToolCall | None:
        """The call of a declared function that the plan has made; None: it is to be made."""
        if pure:
            key = key_of(args, named)
            return None if key is None else self.pure.get((name, key))
        with self.change:
            self.change.notify_all()
            if not is_ordered(name):
                made = self.free.get((name, key_of(args, named) or ""))
                return made.pop(min(made)) if made else None
            if self.tools and self.tools[0].name == name:
                return self.tools.popleft()
            self.tools.clear()  # the program does something else now
            return None

    def around(
        self, inner: Callable[..., Any] | None
    ) -> Callable[[str, Callable[..., Any], bool, Sequence[Any], Mapping[str, Any]], Any]:
        """What calls a declared function, unless it was called; `inner` is what else is round the call."""

        def around(
            name: str, function: Callable[..., Any], pure: bool, args: Sequence[Any], named: Mapping[str, Any]
        ) -> Any:
            known = self.called(name, pure, args, named)
            if known is None:
                return function(*args, **named) if inner is None else inner(name, function, pure, args, named)
            return awaited(known.given) if inspect.iscoroutinefunction(function) else known.given()

        return around


def key_of(args: Sequence[Any], named: Mapping[str, Any]) -> str | None:
    """The arguments of a call as a text, equal for equal data; None if they are no data."""
    return spell([tuple(args), dict(named)])


def behind(
    parts: Sequence[str | Site], told: Sequence[str | Site], text: Callable[[Site], str]
) -> tuple[list[str | Site], list[str | Site]]:
    """The parts of a text without those that were `told` before, and what of these is yet to come.

    What a plan was told as a generation may be its `text` in the program, which has read it.
    """
    new, old = list(parts), list(told)
    while new and old:
        first, known = new[0], old[0]
        if isinstance(first, str) and isinstance(known, str):
            both = min(len(first), len(known))
            new[:1] = [first[both:]] if len(first) > both else []
            old[:1] = [known[both:]] if len(known) > both else []
        elif first == known:
            del new[0], old[0]
        elif first == "" or known == "":
            del (new if first == "" else old)[0]
        elif isinstance(first, str) and isinstance(known, Site):
            old[0] = text(known)
        else:
            return new, []
    return new, old
