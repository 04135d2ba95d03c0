"""What a recorded program is made of: streams, generations, marks, and what is launched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from sglc.errors import Loc
from sglc.frontend.outputs.output_form import OutputParser
from sglc.ir.core import Program, Site, Value


@dataclass(frozen=True, slots=True)
class Turns:
    """The chat of a stream so far: finished turns, and the role that is open ("" if none)."""

    closed: tuple[str, ...] = ()
    open: str = ""


NO_TURNS = Turns()


@dataclass(eq=False, slots=True)
class RecordedStream:
    """A prompt state's place in the recording. `value` belongs to launch number `launch`;
    between launches the stream is known by `handle`."""

    launch: int
    value: Value
    turns: Turns = NO_TURNS
    handle: str = ""
    live: bool = True


@dataclass(frozen=True, slots=True)
class Recorded:
    """One launch: what to compile, the texts of its slots, and the streams that matter afterwards.

    `program.returns` maps handles to streams that later launches resume; `release` are handles
    of earlier launches that nothing will resume any more. `final`: the function has returned.
    """

    program: Program
    texts: Mapping[str, str]
    release: tuple[str, ...]
    final: bool


class Launcher(Protocol):
    """Runs launches; gives the texts of generations and streams, blocking until they are there."""

    def launch(self, recorded: Recorded) -> None: ...

    def wait(self) -> BaseException | None:
        """Wait until everything that was launched has ended; gives the first failure in program order."""

    def text_of_site(self, site: Site) -> str | list[str]: ...

    def made_again(self, site: Site) -> None:
        """Another generation is made for one that failed."""

    def text_in_prompt(self, site: Site) -> str:
        """What stands in a prompt where a generation was made: nothing, if the program caught its failure."""

    def text_of_stream(self, handle: str) -> str: ...

    def text_of_program(self, recorded: Recorded) -> str:
        """The text of the stream that a program keeps, which generates nothing; nothing of it is sent."""

    def call_of_site(self, site: Site) -> Scores: ...

    def meta_of_site(self, site: Site) -> dict[str, Any]: ...

    def launch_on(self, backend: Any, recorded: Recorded, loc: Loc) -> None:
        """Run a program of its own on another back end, as a part of this run."""


class Scores(Protocol):
    """What is known of a `select` that was made: of every choice its score, ids and log-probabilities."""

    @property
    def scores(self) -> tuple[float, ...]: ...

    @property
    def choice_ids(self) -> tuple[tuple[int, ...], ...]: ...

    @property
    def logprobs(self) -> tuple[tuple[float, ...], ...]: ...

    @property
    def unconditional(self) -> tuple[tuple[float | None, ...], ...]: ...


@dataclass(frozen=True, slots=True)
class Generated:
    """A variable whose text a generation makes; its value is what `parser`, if there is one, makes of it.

    `many`: it has several samples, and its value is a list.
    """

    site: Site
    launch: int
    value: Value
    parser: OutputParser | None = field(default=None, compare=False)
    many: bool = field(default=False, compare=False)


class Mark(NamedTuple):
    """A place in a recording to which it can go back."""

    next_value: int
    occurrences: Mapping[tuple[str, tuple[int, ...], str], int]
    streams: int
