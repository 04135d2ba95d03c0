"""The branches of a fork, as a program sees them: one by one, by label, and all at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, NoReturn, Self, TypeVar

from sglc.errors import TraceError
from sglc.frontend.language.expr import checked
from sglc.frontend.locate import here
from sglc.frontend.program.instance import GatheredVariables, PromptState
from sglc.frontend.values.graph_breaks import BRANCH
from sglc.frontend.values.no_text import NoText, refuse_text
from sglc.frontend.values.symbolic import TRACING, Symbolic

_State = TypeVar("_State", bound=PromptState)


class Forks(NoText, Generic[_State]):
    """The branches of one fork, in order: by number, by label, or all at once.

    `join` is that of the state that was forked.
    """

    def __init__(
        self, children: Sequence[_State], join: Callable[[Sequence[_State], str], GatheredVariables]
    ) -> None:
        self._children = list(children)
        self._join = join

    def __len__(self) -> int:
        return len(self._children)

    def __iter__(self) -> Iterator[_State]:
        return iter(self._children)

    def __getitem__(self, index: int | str) -> _State:
        if isinstance(index, Symbolic):
            index = index.observe(BRANCH)
        if isinstance(index, str):
            for child in self._children:
                if child.label == index:
                    return child
            raise TraceError("SGLC108", f"no branch is labelled `{index}`", here())
        return self._children[index]

    def __setitem__(self, index: int | str, value: _State) -> None:
        """The second half of `forks[i] += ...`."""
        if (self._children[index] if isinstance(index, int) else self[index]) is not value:
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
                tracing = TRACING.get()
                each = (item if tracing is None else tracing.enter(item, loc))(i)
            child.append(checked(each), loc)
        return self

    def refuse_as_text(self) -> NoReturn:
        """As of `NoText`."""
        refuse_text("a list of branches", 'read what they stored, `forks[0]["name"]`, or join them')

    def as_data(self) -> list[Any]:
        """As of `NoText`."""
        return [child.as_data() for child in self._children]

    def join(self, mode: str = "gather_variable") -> GatheredVariables:
        """`s.join(forks)` of the state that was forked."""
        return self._join(self._children, mode)
