"""What is found out about a function without running it: its program, its plans, how its prompts begin.

Each is made once, and again when something has changed that the function's body reads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from sglc.errors import Loc, UsageError
from sglc.execution.bind import Fitting
from sglc.frontend.language.function import Definition
from sglc.frontend.tracing.arguments import Bound
from sglc.frontend.tracing.guards import Memo, frozen
from sglc.frontend.values.graph_breaks import BreakPlace
from sglc.ir.core import Program, Site
from sglc.ir.ops import HostCall
from sglc.ir.sampling import Sampling

# What only a run or a compilation needs is imported when one begins: `import sglc` is quick.
if TYPE_CHECKING:
    from sglc.execution.batch.prefixes import Beginnings
    from sglc.ir.plan.backend import Backend
    from sglc.ir.target import Target
    from sglc.passes.compile import Compiled


@dataclass(frozen=True, slots=True)
class Recording:
    """A program as it was recorded, and where it is left to ordinary Python."""

    program: Program
    breaks: tuple[BreakPlace, ...]


def with_outputs(program: Program, asked: Sequence[str] | None, loc: Loc | None = None) -> Program:
    """A program, which stands at `loc`, of which only these variables are asked for; None: as it is.

    Raises:
        UsageError: SGLC082, no list of names, or one of them is a variable that the program never makes.
    """
    if asked is None:
        return program
    from sglc.ir.effects import variables_of

    known = variables_of(program)
    if isinstance(asked, str) or not all(isinstance(name, str) for name in asked):
        raise UsageError("SGLC082", f"`outputs` is a list of names, not `{asked!r}`", loc)
    for name in asked:
        if known is not None and name not in known:
            raise UsageError(
                "SGLC082", f"`{program.name}` makes no variable `{name}`, which `outputs` asks for", loc,
                note=f"it makes: {', '.join(f'`{one}`' for one in known) or 'none'}",
            )  # fmt: skip
    return replace(program, outputs=tuple(dict.fromkeys(asked)))


class AheadOfTime:
    """One function with its `bound` arguments. `memo` has what was recorded, and what that depends on."""

    def __init__(
        self, definition: Definition, bound: Mapping[str, Any], memo: Memo[Recording] | None = None
    ) -> None:
        self.memo: Memo[Recording] = Memo() if memo is None else memo
        self._definition = definition
        self._bound = bound
        self._begun: Memo[Program] = Memo()  # recorded to see how rows begin
        self._compiled: dict[Any, tuple[Program, Compiled]] = {}  # of the newest recording, by target
        self._turn = threading.Lock()  # one recording at a time

    def recording(
        self, sampling: Sampling, max_paths: int | None = None, args: Mapping[str, Any] | None = None
    ) -> Recording:
        """As of `Function.trace`."""
        from sglc.frontend.tracing.paths import MOST_PATHS

        most = MOST_PATHS if max_paths is None else max_paths
        key = (frozen(self._bound), sampling, most, None if args is None else frozen(dict(args)))
        return self.memo.get(key, lambda: self._record(sampling, most, args))

    def _record(
        self, sampling: Sampling, max_paths: int, args: Mapping[str, Any] | None
    ) -> tuple[Recording, Callable[[], str]]:
        from sglc.frontend.tracing.reads import Reads
        from sglc.frontend.tracing.trace import explored

        reads = Reads()

        bound = self._bound
        parameters = tuple(
            parameter.replace(default=Bound(bound[parameter.name])) if parameter.name in bound else parameter
            for parameter in self._definition.parameters
        )
        definition = replace(self._definition, parameters=parameters)
        made = explored(definition, sampling, max_paths=max_paths, args=args, reads=reads)
        recording = Recording(made.program, tuple([one.place for one in made.graph_breaks]))
        return recording, partial(reads.changed, whole=False)

    def compiled(self, program: Program, target: Target, outputs: tuple[str, ...] | None = None) -> Compiled:
        """The newest recording, `program`, lowered for a target, with the `outputs` that are asked for."""
        from sglc.passes.compile import compile_program

        key = target.told_by, outputs
        known = self._compiled.get(key)
        if known is not None and known[0] is program:
            return known[1]
        made = self._remarked(compile_program(replace(program, outputs=outputs), target), target)
        self._compiled[key] = program, made
        return made

    def outputs(self, asked: Sequence[str] | None, sampling: Sampling) -> tuple[str, ...] | None:
        """The variables that are asked for, each once.

        Raises:
            UsageError: SGLC082, no list of names, or one of them is a variable that the program never makes, as
                far as it can be recorded as a whole.
        """
        if asked is None:
            return None
        try:
            with self._turn:
                program = self.recording(sampling).program
        except Exception:  # whatever is wrong is met, and told, where the body itself comes to it
            program = Program(self._definition.name, (), (HostCall("it is not recorded"),))
        return with_outputs(program, asked, self._definition.loc).outputs

    def _remarked(self, compiled: Compiled, target: Target) -> Compiled:
        """`compiled`, with what the decorator asks for and this target has no use for."""
        from sglc.ir.remark import Remark

        tokens = self._definition.num_api_spec_tokens
        if tokens is None or target.guesses:
            return compiled
        message = (
            f"`num_api_spec_tokens={tokens}` changes nothing on `{target.name}`: "
            "a generation there goes on from any text"
        )
        remark = Remark("speculate", message, self._definition.loc)
        return replace(compiled, remarks=(*compiled.remarks, remark))

    def cache_keys(self, sampling: Sampling, backend: Backend) -> Mapping[Site, str]:
        """Those of its generations: launches alone do not know what is the same in every row.

        So what an API cannot do is refused before its first call, as far as the program can be compiled ahead.

        Raises:
            LegalizeError: the target cannot do it.
        """
        from sglc.ir.target import EVERYTHING

        try:
            target = backend.target
            if target.takes is EVERYTHING:
                return {}
            with self._turn:
                program = self.recording(sampling).program
        except Exception:
            return {}  # whatever is wrong is met, and told, where the body itself comes to it
        if not program.ops:
            return {}
        from sglc.passes.compile import cached

        return cached(program, target).cache_keys

    def beginnings(self, rows: Sequence[Fitting]) -> Beginnings:
        """How the prompts of rows begin."""
        from sglc.execution.batch.prefixes import beginnings

        with self._turn:
            return beginnings(self._definition, self._begun, [arguments for arguments, _ in rows])
