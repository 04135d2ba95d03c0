"""One run of a function: its recorder, its variables, and what reading one of them sets in motion."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sglc.errors import Loc
from sglc.frontend.history import History
from sglc.frontend.locate import here
from sglc.frontend.recorder import Generated, Launcher, Observation, Recorder, Stream
from sglc.frontend.symbolic import Boundary, SymbolicText, joined
from sglc.ir.core import Value


@dataclass(frozen=True, slots=True)
class Gathered:
    """A joined variable: one entry a branch, None where the branch stored nothing."""

    entries: tuple[Variable, ...]
    value: Value | None  # of the list, where one launch made all of it
    launch: int


@dataclass(frozen=True, slots=True)
class Scoped:
    """Everything that was appended between two places of one prompt, chat markup included."""

    begin: Stream
    end: Stream
    parts: tuple[History, ...]


Variable = Generated | Gathered | Scoped | Any


class Instance:
    """One run of a function: the recorder, and the launcher that makes results (None: compiling)."""

    def __init__(self, recorder: Recorder, launcher: Launcher | None) -> None:
        self.recorder = recorder
        self.launcher = launcher

    def observe(self, what: str, loc: Loc) -> Launcher:
        """Launch what is pending, because ordinary Python needs `what` now."""
        if self.launcher is None:
            raise Boundary(f"{what} needs the program to run", loc)
        if self.recorder.pending:
            self.recorder.observations.append(Observation(what, loc))
            self.launcher.launch(self.recorder.take(final=False))
        return self.launcher

    def read(self, variable: Variable, what: str, loc: Loc) -> Any:
        """The Python value of a variable; a symbolic text while compiling."""
        match variable:
            case Generated() if self.launcher is None:
                return SymbolicText((variable.value,))
            case Generated():
                return self.observe(what, loc).text_of_site(variable.site)
            case Gathered():
                return [self.read(entry, what, loc) for entry in variable.entries]
            case Scoped() if all(part.kind in ("text", "generated") for part in variable.parts):
                return self._joined(variable.parts, what, loc)
            case Scoped():  # only the back end knows how chat turns are written
                launcher = self.observe(what, loc)
                before = launcher.text_of_stream(variable.begin.handle)
                return launcher.text_of_stream(variable.end.handle)[len(before) :]
            case _:
                return variable

    def _joined(self, parts: tuple[History, ...], what: str, loc: Loc) -> str | SymbolicText:
        texts: list[Any] = [
            first(self.read(part.item, what, loc)) if part.kind == "generated" else part.item for part in parts
        ]
        if any(isinstance(text, SymbolicText) for text in texts):
            return joined(tuple(texts))
        return "".join(texts)


def first(text: Any) -> Any:
    """Of several samples, the one that the prompt goes on with."""
    return text[0] if isinstance(text, list) else text


class GatheredVariables(Mapping[str, Any]):
    """What `join` gathered: name -> list over the branches. Reading an entry waits for it."""

    def __init__(self, instance: Instance, variables: Mapping[str, Variable]) -> None:
        self._instance = instance
        self.variables = dict(variables)

    def __getitem__(self, name: str) -> Any:
        return self._instance.read(self.variables[name], f"`[{name!r}]`", here())

    def __iter__(self) -> Iterator[str]:
        return iter(self.variables)

    def __len__(self) -> int:
        return len(self.variables)

    def __repr__(self) -> str:
        return repr(dict(self))
