"""A function compiled for one back end: what `Function.compile` gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from sglc.execution.result import Result
from sglc.frontend.tracing.tools import tools_of
from sglc.frontend.values.graph_breaks import BreakPlace
from sglc.ir.core import Program
from sglc.ir.plan.backend import Backend
from sglc.ir.plan.plan import Plan
from sglc.ir.plan.plan_file import plan_to_text
from sglc.ir.remark import Remark
from sglc.passes.compile import Compiled


class Runnable(Protocol):
    """What is compiled: a function."""

    def run(self, *args: Any, **kwargs: Any) -> Result:
        """As `Function.run`."""

    def run_batch(self, rows: Sequence[Any], **kwargs: Any) -> list[Result] | Iterator[Result]:
        """As `Function.run_batch`."""


@dataclass(frozen=True, slots=True)
class CompiledFunction:
    """A program with its plan for one back end. It runs there as the function does, from Python.

    `breaks` are the places where it is left to ordinary Python.
    """

    function: Runnable
    backend: Backend
    compiled: Compiled
    defaults: Mapping[str, Any]
    breaks: tuple[BreakPlace, ...] = ()

    @property
    def source(self) -> Program:
        """The program as it was recorded."""
        return self.compiled.source

    @property
    def lowered(self) -> Program:
        """What the passes made of it."""
        return self.compiled.lowered

    @property
    def plan(self) -> Plan:
        """What the back end would be handed."""
        return self.compiled.plan

    @property
    def remarks(self) -> tuple[Remark, ...]:
        """What the passes had to say."""
        return self.compiled.remarks

    def __reduce__(self) -> tuple[Any, ...]:
        """For `pickle`: its plan, as `sglc.load_plan` gives it; the back end stays here."""
        from sglc.api.plan import LoadedPlan

        return LoadedPlan(self.plan, tools_of(self.source)).__reduce__()

    def __copy__(self) -> CompiledFunction:
        """Itself, on its back end: nothing of it changes."""
        return self

    def __deepcopy__(self, memo: object) -> CompiledFunction:
        return self

    def save(self, path: str | Path) -> None:
        """Write the plan into a file, which `sglc.load_plan` and `sglc run` take.

        Raises:
            OSError: the file cannot be written.
        """
        Path(path).write_text(plan_to_text(self.plan) + "\n", encoding="utf-8")

    def run(self, *args: Any, **kwargs: Any) -> Result:
        """`Function.run` on this back end."""
        return self.function.run(*args, **{"backend": self.backend, **self.defaults, **kwargs})

    def run_batch(self, rows: Sequence[Any], **kwargs: Any) -> list[Result] | Iterator[Result]:
        """`Function.run_batch` on this back end."""
        given: dict[str, Any] = {"backend": self.backend, **self.defaults, **kwargs}
        return self.function.run_batch(rows, **given)
