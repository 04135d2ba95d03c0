"""What a back end's requests say ahead of its programs (`ir.plan.hints`): which prompt goes on from which.

A program here is what the engine's queue has as one: segments that go on from each other's streams. A stream
is over when its prompt is garbage: nothing that is kept, or still to come, begins with it. That is told with
whichever request comes next.
"""

from __future__ import annotations

import weakref
from collections import deque
from itertools import count
from uuid import uuid4

from sglc.backends.remote.prompts import HintedProgram, Prompt, StreamName
from sglc.ir.plan.hints import Hints
from sglc.ir.plan.segment import GenNode, SelectNode

_MOST_OVER = 1024  # that one request tells of


class PromptHints:
    """The names that one back end has given."""

    def __init__(self) -> None:
        self._client = uuid4().hex[:12]  # others may ask the same server
        self._made = count(1)
        self._over: deque[str] = deque()

    def program(self) -> HintedProgram:
        """A new program."""
        order = next(self._made)
        return HintedProgram(f"{self._client}-{order}", order)

    def of(self, node: GenNode | SelectNode, prompt: Prompt, program: HintedProgram) -> Hints:
        """What the request of a node says. Its segment is of `program`, or goes on from another's stream."""
        before = named(prompt)
        own = before.program if before is not None else program
        caller = node.site.function.rpartition("/")[0]
        over = [self._over.popleft() for _ in range(min(len(self._over), _MOST_OVER))]
        return Hints(
            program=f"{own.name}/{node.site.function}" if caller else own.name,
            parent=own.name if caller else "",
            order=own.order,
            stream="" if node.next_use == "never" else f"{self._client}-{next(self._made)}",
            after=before.text if before is not None else "",
            over=tuple(over),
            leaves=(node.site.written, node.next_use if node.next_use.startswith("tool ") else node.site.name),
            most=node.most,
            behind=node.behind,
        )

    def answered(self, hints: Hints, prompt: Prompt) -> None:
        """The `prompt` with the answer is what the request's stream was called."""
        if not hints.stream:
            return
        name = StreamName(hints.stream, HintedProgram(hints.parent or hints.program, hints.order))
        prompt.name = name
        weakref.finalize(name, self._over.append, hints.stream).atexit = False


def named(prompt: Prompt) -> StreamName | None:
    """The nearest stream with a name that a prompt begins with."""
    here: Prompt | None = prompt
    while here is not None:
        if here.name is not None:
            return here.name
        here = here.before
    return None
