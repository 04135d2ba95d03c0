"""A run of a plan: in the executor's loop, and the result that it fills.

It ends in the loop's thread, once: with the plan's end, or at its deadline whatever the back end and tools
do then. Nothing of it waits in a thread but the tools that it calls.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from sglc.errors import Loc, RunError
from sglc.execution.deadline import Deadline
from sglc.execution.event_loop import on_loop
from sglc.execution.lifecycle import Part, Run, RunSetup
from sglc.execution.outputs import Failure, RunOutputs, values
from sglc.execution.plan.executor import PlanExecutor
from sglc.execution.plan.meter import Meter
from sglc.execution.plan.prepare import Prepared, Shown
from sglc.execution.plan.raised import as_raised
from sglc.execution.plan.values import plain, turn_parts
from sglc.execution.readers import TextReader
from sglc.execution.result import RunOutcome
from sglc.execution.served import Served
from sglc.execution.tool_calls import Tools
from sglc.frontend.locate import of_error
from sglc.frontend.outputs.output_form import OutputParser
from sglc.frontend.program.history import conversation
from sglc.frontend.program.instance import Awaited
from sglc.frontend.tracing.makers import NoValue
from sglc.frontend.values.recorded import Generated
from sglc.ir import core
from sglc.ir.core import Site
from sglc.ir.plan.backend import Backend, ProgramRun


def plan_run(
    prepared: Prepared, setup: RunSetup, arguments: Mapping[str, Any], tools: Tools, go_on: GoOn | None = None,
    meter: Meter | None = None,
) -> Run:  # fmt: skip
    """A run of a plan; `go_on` and `meter` as of `PlanPart`."""
    single_call = setup.call.observer is not None and prepared.single_call
    part = partial(PlanPart, prepared, tools, go_on, meter)
    return Run(setup, arguments, part, prepared.asked, single_call)


def _chosen(outputs: RunOutputs, prepared: Prepared, number: int) -> None:
    """The block of an arm begins: what it generates can be read as it comes."""
    with outputs.change:
        dict.update(outputs.variables, prepared.early_in.get(number, {}))


@dataclass(frozen=True, slots=True)
class _KnownValue(OutputParser):
    """What reads a typed value, or those of several samples, from its text, and did so already."""

    late: Any = None

    def parse(self, text: str | list[str]) -> Any:
        if isinstance(self.late, NoValue):
            raise self.late.problem
        return self.late


def _messages(turns: Any) -> list[dict[str, Any]]:
    """The conversation that a prompt's turns are."""
    return conversation(turn_parts(plain(turns)))


def _no_values(late: Any) -> Iterator[NoValue]:
    """What stands for values in a variable that a text does not spell."""
    left = [late]  # and no call in a call: what a function gave may be nested deeper than Python's stack is
    while left:
        item = left.pop()
        if isinstance(item, NoValue):
            yield item
        elif type(item) is list:
            left += reversed(item)


def _without_unread(late: list[Any]) -> list[Any]:
    """In a list of what branches made, a text that spells no value leaves None."""
    return [
        None if isinstance(item, NoValue) else _without_unread(item) if type(item) is list else item
        for item in late
    ]


class GoOn(NamedTuple):
    """How a program goes on as Python from its top, with what its plan has had.

    `unlike_before` says whether it would find something else there.
    """

    part: Callable[[Run, Served], Part]
    unlike_before: Callable[[], bool]


class PlanPart(Part):
    """A plan with its arguments. Its tools see the variables of the run's context.

    No thread of a batch waits for it, so none is lost.

    Args:
        go_on: what goes on as Python where the plan cannot say all; None: it is not the plan of a function
            that is here.
        meter: as of `PlanExecutor`. What a failed run had put together is not shown then.
    """

    _over = False

    def __init__(
        self, prepared: Prepared, tools: Tools, go_on: GoOn | None, meter: Meter | None, run: Run
    ) -> None:
        self.loc = prepared.loc
        self._run = run
        self._session = run.session
        self._prepared = prepared
        self._go_on = go_on
        if run.observer is not None and prepared.calls_functions:
            tools = run.observer.tools(tools, prepared.plan)
        self._meter = meter
        outputs = run.result.outputs
        # Which does not hold this part: that holds it.
        chosen = partial(_chosen, outputs, prepared) if prepared.plan.blocks else None
        self._executor = PlanExecutor(prepared, run.session, tools, lambda: run.context, meter, chosen)
        dict.update(outputs.variables, prepared.early)

    def start(self) -> None:
        """Returns at once."""
        on_loop(self.begin)

    def begin(self) -> None:
        """Called in the loop's thread."""
        if not self._run.begin():
            return
        session, observer = self._session, self._run.observer
        try:
            if observer is not None:
                session.context = self._run.context
                begin = observer.begin
                session.backend = session.context.run(begin, session.backend, session.began_s, "plan")
            else:
                session.backend = self._whole(session.backend)
            prepared = self._prepared
            self._show(prepared.shown)
            later = prepared.shown_behind
            behind = {number: partial(self._show, shown) for number, shown in later.items()} if later else {}
            self._executor.begin(self._run.arguments, self._ended, behind)
        except Exception as error:  # a bug of ours as well: nobody may be left waiting for it
            self._end(error)

    def _whole(self, backend: Backend) -> Backend:
        """What runs all of the plan, if the back end can and nothing has to be known of each call here."""
        session = self._session
        program = getattr(backend, "program", None)
        if program is None or session.tracker or session.served or session.outputs.call:
            return backend
        run = ProgramRun(self._prepared.plan, self._run.arguments, session.seed, session.row)
        return program(run) or backend

    def _ended(self, value: Any, error: BaseException | None) -> None:
        """Everything of the plan has ended."""
        error = self._session.ended_by or error
        if error is None:
            try:
                self._end_well(value)
            except Exception as problem:  # a bug of ours: nobody may be left waiting for it
                self._end(problem)
        elif self._goes_on():
            return
        else:
            wanted = self._go_on is not None and self._executor.needs_python
            self._end(
                (self._session.why_over if wanted else None)
                or (error if self._go_on is None else as_raised(error))
            )

    def _goes_on(self) -> bool:
        """Whether the program goes on as Python, from its top, with what the plan has had; it does then."""
        if self._go_on is None or not self._executor.needs_python or self._over or self._session.why_over:
            return False
        served = self._executor.functions.served
        # Else it ends as the plan does: Python would make its generations again, or find something else.
        again = self._executor.handed_over or not (
            any(site.counted for site in self._session.outputs.generations)
            or (served.tools and self._go_on.unlike_before())
        )
        if not again or self._executor.functions.printed:
            return False
        self._over = True
        self._run.result.why_python = self._executor.needs_python
        self._session.begin_again(served)
        self._run.inside.served = served
        self._run.context = self._executor.functions.context
        part = self._run.part = self._go_on.part(self._run, served)
        threading.Thread(target=part.start, name="sglc-goes-on", daemon=True).start()
        return True

    # -- its prompt ------------------------------------------------------------------------------

    def _show(self, shown: Shown) -> None:
        """Readers of the whole text see what is known of it, and where generations will stand."""
        outputs = self._session.outputs
        parts: list[Any] = list(shown.parts)
        for place, name in shown.arguments:
            parts[place] = self._run.arguments[name]
        if outputs.call:
            parts = [outputs.at(part) if isinstance(part, Site) else part for part in parts]
        with outputs.change:
            outputs.text += parts

    def _show_rest(self, whole: str) -> None:
        """All generations have ended: readers see what else there is."""
        if self._prepared.shows_all:
            return
        outputs = self._run.result.outputs
        known = sum([len(part if isinstance(part, str) else outputs.first_text(part)) for part in outputs.text])
        with outputs.change:
            outputs.text.append(whole[known:])

    # -- the end ---------------------------------------------------------------------------------

    def late(self, deadline: Deadline) -> None:
        if self._over:
            return
        self.give_up(deadline.late(*self._where()))

    def give_up(self, error: RunError) -> None:
        self._run.stop(error)
        self._end(error)

    def _where(self) -> tuple[Loc | None, str]:
        """What an unfinished run waits for: a function, or else a generation."""
        for step in self._executor.functions.calling.values():
            return step.loc, f"for `{step.function}`"
        return self._run.waits()

    def _end_well(self, value: Any) -> None:
        if self._over:
            return
        variables = self._executor.variables
        whole, turns = self._executor.prompt
        self._show_rest(whole)
        said = partial(_messages, turns) if turns else list
        made, unspelled = self._store(variables)
        self._over = True  # nothing can fail from here on
        error, total_s = self._run.leave(None, self._session.elapsed_s)
        self._run.result.outputs.error = error
        self._run.fill(RunOutcome(value, error, made, unspelled, whole, said, total_s))

    def _end(self, error: BaseException) -> None:
        """The run fails, with what there is."""
        if self._over:
            return
        self._over = True
        self._run.result.raised_at = of_error(error)
        outputs = self._run.result.outputs
        problem, total_s = self._run.leave(error, self._session.elapsed_s)
        outputs.error = problem
        early, _ = values(outputs, outputs.variables)
        made, unspelled, text = dict[str, Any](), dict[str, Sequence[Failure]](), ""
        if self._meter is not None:
            early = early if self._meter.affords(early) else {}
        else:
            with suppress(Exception):  # as of a value that is nested too deeply: what else there is has to do
                made, unspelled = self._store(self._executor.variables)
                text = max("".join(TextReader(outputs).come()), self._executor.prompt[0], key=len)
        made = {**made, **early, **made}  # in the order of the program
        self._run.fill(RunOutcome(None, problem, made, unspelled, text, list, total_s))

    def _store(self, variables: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Sequence[Failure]]]:
        """Have what was not there before among the outputs; gives all values, and which texts spell none."""
        outputs, early = self._run.result.outputs, self._prepared.early
        made: dict[str, Any] = {}
        unspelled: dict[str, Sequence[Failure]] = {}
        sites = {} if variables.keys() <= early.keys() else self._executor.sites
        for name, value in variables.items():
            if found := tuple(_no_values(value)):
                unspelled[name] = [
                    Failure(one.site or Site(self._run.result.name, (), name), one.problem) for one in found
                ]
                value = _without_unread(value) if type(value) is list else value
            late = value
            if isinstance(value, NoValue):
                late = Awaited(lambda: None, problem=value.problem)
            else:
                made[name] = value
            if name in early:
                continue
            site, typed = sites.get(name, (None, False))
            if site is not None and outputs.at(site) in outputs.generations:  # its pieces can be read
                parser = _KnownValue("", str, core.NOWHERE, late=value) if typed else None
                late = Generated(site, 0, core.Value(0, core.Type.TEXT), parser)
            dict.__setitem__(outputs.variables, name, late)
        return made, unspelled
