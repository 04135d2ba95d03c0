"""`POST /v1/programs`: a plan and rows of arguments, run next to the engine by the ordinary executor.

Each generation is told of where it stands in the program, as soon as it has ended; each row's result comes when
the row has ended. A request that is cancelled stops its rows, which aborts their segments.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from dataclasses import astuple, dataclass, replace
from functools import lru_cache, partial
from time import perf_counter
from typing import Any, cast

import msgspec

from sglc.errors import SglcError
from sglc.execution.answers.duplicates import Duplicates
from sglc.execution.bind import random_seed
from sglc.execution.budget import Budget
from sglc.execution.lifecycle import CallSetup, Limits, Run, RunSetup
from sglc.execution.observer import Observer
from sglc.execution.outputs import PendingOutput
from sglc.execution.plan.arguments import bound
from sglc.execution.plan.meter import Meter
from sglc.execution.plan.prepare import Prepared, check_plan_runs
from sglc.execution.plan.run import plan_run
from sglc.execution.result import Result, error_json
from sglc.ir.core import Site
from sglc.ir.plan.backend import Backend, BackendWrapper, hand_over
from sglc.ir.plan.events import Event
from sglc.ir.plan.plan import Plan, steps_of
from sglc.ir.plan.plan_json import answer_to_json
from sglc.ir.plan.segment import GenNode, Segment, SelectNode
from sglc.serve.access_log import SPENT
from sglc.serve.bodies import ProgramBody
from sglc.serve.limits import Limits as ServiceLimits
from sglc.serve.limits import plan_bytes
from sglc.serve.plan_bounds import check_json, plan_of
from sglc.serve.problems import Refusal, bad, refusal_of
from sglc.serve.service import Service

_KEPT = 64 << 10  # bytes of the largest plans that are kept for the next request


@dataclass(frozen=True, slots=True)
class Program:
    """What a request asks for, which was looked at: nothing of it has run."""

    prepared: Prepared
    rows: tuple[dict[str, Any], ...]
    first: int
    seed: int
    drawn: bool
    streams: bool
    backend: Backend
    limits: ServiceLimits

    @property
    def width(self) -> int:
        """Texts that are made at once, as far as that shows before."""
        segments = [step for step in steps_of(self.prepared.plan) if isinstance(step, Segment)]
        widths = [sum(map(_texts_of, segment.nodes)) for segment in segments]
        return len(self.rows) * max([1, *widths])


def _texts_of(node: Any) -> int:
    if isinstance(node, GenNode):
        return node.sampling.n
    return int(isinstance(node, SelectNode))


def program_of(service: Service, body: ProgramBody, priority: int, share: str) -> Program:
    """What a request asks for.

    Raises:
        Refusal: 400, a plan or rows that are not taken, whatever is wrong with them.
    """
    limits = service.limits
    if len(body.rows) > limits.prompts:
        message = f"has {len(body.rows)} rows, more than the {limits.prompts} of `--max-prompts`"
        raise bad("rows", message, "too_many")
    check_json(body.rows, "rows")
    data = plan_bytes(limits, body.plan)
    read = _kept if len(data) <= _KEPT else _kept.__wrapped__
    prepared = read(data, limits.samples, len(service.tokenizer.token_bytes()))
    backend = _InTurn(service.backend, priority, share, body.cache_salt)
    try:
        check_plan_runs(prepared.plan, backend, {})
        rows = tuple(_bound(prepared.plan, number, row) for number, row in enumerate(body.rows))
    except SglcError as error:
        raise Refusal(400, refusal_of(error).message, param="plan", code=error.code) from None
    seed = random_seed() if body.seed is None else body.seed
    return Program(prepared, rows, body.first, seed, body.seed is None, body.stream, backend, limits)


@lru_cache(64)
def _kept(data: bytes, samples: int, vocabulary: int) -> Prepared:
    return Prepared(plan_of(msgspec.json.decode(data), samples, vocabulary))


def _bound(plan: Plan, number: int, row: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return bound(plan, row)
    except SglcError as error:
        refusal = refusal_of(error)
        raise Refusal(
            400, f"`rows.{number}`: {refusal.message}", param=f"rows.{number}", code=error.code
        ) from None


class _InTurn(BackendWrapper):
    """The server's back end, whose segments wait for their turn as those of the request's key."""

    def __init__(self, inner: Any, priority: int, share: str, salt: str) -> None:
        super().__init__(inner)
        self._priority, self._share, self._salt = priority, share, salt

    def submit(self, segment: Segment, *, streams: bool = True) -> AsyncIterator[Event]:
        """As that of every back end."""
        own = replace(segment, priority=self._priority, share=self._share, namespace=self._salt)
        return hand_over(self.inner, own, streams)


async def events(program: Program) -> AsyncGenerator[list[dict[str, Any]], None]:
    """What is told of all rows, what is there already together; `[]` once when they have begun."""
    loop, told = asyncio.get_running_loop(), asyncio.Queue[dict[str, Any]]()
    runs: list[Run] = []

    def tell(event: dict[str, Any]) -> None:
        loop.call_soon_threadsafe(told.put_nowait, event)

    prepared, budget = program.prepared, Budget(tokens=program.limits.row_tokens)
    plan, context = prepared.plan, contextvars.Context()
    meter = Meter(program.limits.rows_size, program.limits.rows_blocks)
    duplicates = Duplicates(program.backend)
    duplicates.look(program.rows)
    call = CallSetup(
        plan.program, program.backend, program.seed, Limits(budget), duplicates=duplicates,
        outputs=plan.outputs, drawn=program.drawn,
    )  # fmt: skip
    for number, row in enumerate(program.rows, program.first):
        told_of = _Row(number, tell)
        on_text = told_of.said if program.streams else None
        run = plan_run(prepared, RunSetup(call, number, context, on_text), row, {}, meter=meter)
        run.session.observer = cast(Observer, told_of)  # of a session, which asks no more of it
        run.ended = partial(told_of.ended, run.result)
        runs.append(run)
    left, spent = len(runs), SPENT.get()
    spent.prompt, spent.completion = 0, 0
    try:
        for run in runs:
            run.start()
        yield []
        while left:
            batch = [await told.get()]
            while not told.empty():
                batch.append(told.get_nowait())
            for event in batch:
                if spent.first_s is None and "text" in event:
                    spent.first_s = perf_counter()
                if answer := event.get("answer"):
                    usage = answer["usage"]
                    spent.prompt += usage["prompt"]
                    spent.read += usage["prompt"]
                    spent.cached += min(usage["cached"], usage["prompt"])
                    spent.completion += usage["completion"]
                left -= "result" in event
            yield batch
    finally:
        for run in runs:
            run.result.stop()


class _Row:
    """Tells of one row, in the executor's thread: of each generation that has ended, and of the row itself."""

    wants_pieces = False

    def __init__(self, number: int, tell: Callable[[dict[str, Any]], None]) -> None:
        self._number = number
        self._tell = tell

    def said(self, site: Site, text: str | None) -> None:
        """More of a text; None at its end."""
        if text:
            self._tell({"row": self._number, "site": str(site), "text": text})

    def done(self, output: PendingOutput) -> None:
        """As of every observer."""
        assert output.event is not None
        answer = answer_to_json(replace(output.event, node=0, prompt_ids=()))
        self._tell({"row": self._number, "site": str(output.site), "answer": answer})

    def ended(self, result: Result) -> None:
        """The row has a result."""
        try:
            made = result.as_json()
            whole = result.asked is None and made["error"] is None
            made["messages"] = result.messages() if whole else []
            error = result.error()
            made["error"] = None if error is None else _error(error)
            made["failures"] = [{"site": str(one.site), **_error(one.error)} for one in result.failures]
        except Exception as problem:  # nobody may be left waiting for it
            made = {"index": self._number, "error": _error(problem), "failures": []}
        self._tell({"row": self._number, "result": made})


def _error(error: BaseException) -> dict[str, Any]:
    """An error by its class, and with its place by parts."""
    loc = error.loc if isinstance(error, SglcError) else None
    return {"kind": type(error).__name__, **error_json(error), "at": None if loc is None else astuple(loc)}
