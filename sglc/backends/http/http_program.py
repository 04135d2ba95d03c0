"""A run of a plan on a server that runs plans: one request, whose events answer what the plan asks for here.

The plan runs here, too: it makes values and texts of the answers, as it does on every back end. Which prompts
there are, and in which order, the server finds out by itself, so nothing waits for the way there and back.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

from sglc import errors
from sglc.backends.http.http_trouble import FINAL, events_of, problem_of, refused
from sglc.backends.remote.connection import Connection
from sglc.backends.retry import Patience, Trouble, patiently, unexpected
from sglc.errors import BackendError, Loc, SglcError, located
from sglc.ir.plan.backend import Backend, BackendWrapper, ProgramRun
from sglc.ir.plan.events import Delta, Event, GenDone, NodeFailed, SelectDone
from sglc.ir.plan.plan import Plan
from sglc.ir.plan.plan_json import answer_from_json, plan_to_json
from sglc.ir.plan.segment import GenNode, Segment, SelectNode
from sglc.ir.plan.without_host import generating

_REQUEST = "the program"  # in errors, until a generation is told of one


def part_of(plan: Plan) -> str | None:
    """What the server runs of a plan, as JSON; None where it cannot do it all."""
    part = generating(plan)
    return None if part is None else json.dumps(plan_to_json(part))


@dataclass(slots=True)
class _Site:
    """What was told of a generation, how much of it was handed on, and who waits for it, as which node."""

    text: str = ""
    told: int = 0
    end: GenDone | SelectDone | SglcError | None = None
    waiting: tuple[int, GenNode | SelectNode, asyncio.Queue[Event]] | None = None

    def tell(self) -> None:
        """Hand on what is new."""
        if self.waiting is None:
            return
        index, node, inbox = self.waiting
        if isinstance(self.end, SglcError):
            inbox.put_nowait(NodeFailed(index, _error_at(self.end, node)))
        elif self.end is not None:
            inbox.put_nowait(replace(self.end, node=index))
        elif len(self.text) > self.told:
            inbox.put_nowait(Delta(index, self.text[self.told :]))
            self.told = len(self.text)


class ServerProgram(BackendWrapper):
    """A back end for one run. Of the executor's loop.

    Args:
        inner: runs the segments if the server does not want the program.
        connected: gives the connection to the server.
        no_plans: is called where the server turns out to run none.
        plan: as of `part_of`.
    """

    def __init__(
        self, inner: Backend, connected: Callable[[], Connection], patience: Patience,
        no_plans: Callable[[], None], plan: str, run: ProgramRun,
    ) -> None:  # fmt: skip
        super().__init__(inner)
        self._connected, self._patience, self._no_plans = connected, patience, no_plans
        self._plan = plan
        self._rest = {"rows": [dict(run.arguments)], "first": run.row, "seed": run.seed}
        self._sites: dict[str, _Site] = {}
        self._accepted: asyncio.Future[bool] | None = None
        self._over: SglcError | None = None  # what is told of generations that come too late
        self._job: asyncio.Task[None] | None = None

    async def submit(self, segment: Segment, *, streams: bool = True) -> AsyncIterator[Event]:
        """The events of a segment, as the server tells of them; streams that are kept are the server's."""
        if self._accepted is None:
            self._accepted = asyncio.get_running_loop().create_future()
            self._job = asyncio.ensure_future(self._ask(streams))
        if not await asyncio.shield(self._accepted):
            async for event in self.inner.submit(segment, streams=streams):
                yield event
            return
        inbox = asyncio.Queue[Event]()
        left = 0
        for index, node in enumerate(segment.nodes):
            if isinstance(node, GenNode | SelectNode):
                site = self._sites.setdefault(str(node.site), _Site())
                site.end = site.end or self._over
                site.waiting = (index, node, inbox)
                site.tell()
                left += 1
        try:
            while left:
                event = await inbox.get()
                left -= not isinstance(event, Delta)
                yield event
        finally:
            if left and self._job is not None:  # the run was stopped
                self._job.cancel()

    async def _ask(self, streams: bool) -> None:
        """Follow the request, and try again where that may help: it gives the same answers."""
        assert self._accepted is not None
        connection = self._connected()
        content = f'{{"plan": {self._plan}, {json.dumps({**self._rest, "stream": streams})[1:]}'.encode()
        error: SglcError = BackendError("SGLC544", "the server says nothing of this generation")

        try:
            await patiently(
                lambda: self._follow(connection.client, content), self._patience, connection.places, problem_of,
                seed=0, name=_REQUEST,
            )  # fmt: skip
        except SglcError as problem:
            error = problem
        except Exception as problem:  # nobody may be left waiting
            error = unexpected(problem)
        finally:
            self._over = error
            if not self._accepted.done():
                self._accepted.set_result(True)
            for site in self._sites.values():
                if site.end is None:
                    site.end = error
                    site.tell()

    async def _follow(self, client: Any, content: bytes) -> None:
        assert self._accepted is not None
        for site in self._sites.values():
            site.text = ""
        headers = {"content-type": "application/json"}
        async with client.stream("POST", "/v1/programs", content=content, headers=headers) as response:
            if response.status_code != 200:
                await response.aread()
                if response.status_code in (404, 405):
                    self._no_plans()
                if response.status_code in (400, 404, 405, 413) and not self._accepted.done():
                    self._accepted.set_result(False)  # it may take what the plan asks for, one by one
                    return
                raise refused(response)
            if not self._accepted.done():
                self._accepted.set_result(True)
            async with aclosing(events_of(response)) as events:
                async for data in events:
                    if self._take(data):
                        return
        raise Trouble("the answer ended before it was whole")

    def _take(self, data: str) -> bool:
        """One event; gives whether it is the last one.

        Raises:
            Trouble: the server failed.
        """
        if data == "[DONE]":
            return True
        event: Mapping[str, Any] = json.loads(data)
        if "error" in event:
            failed = event["error"]
            # It would take as long again. With a budget each generation is a request, which has its own time.
            late, again = failed["code"] == "timed_out", failed["code"] not in FINAL
            hint = "give the server a longer `--request-timeout`, or the run a `max_calls`" if late else ""
            raise Trouble(f"the server failed: {failed['message']}", again=again, hint=hint)
        if (result := event.get("result")) is not None:
            for failure in result["failures"]:
                if failure["kind"] == "BackendError":
                    raise Trouble(failure["message"])
                self._end(failure["site"], _error_of(failure))
            if result["error"] is not None:  # what was not told of does not begin
                for name in tuple(self._sites):
                    self._end(name, _error_of(result["error"]))
        elif (answer := event.get("answer")) is not None:
            self._end(event["site"], answer_from_json(answer))
        else:
            site = self._sites.setdefault(event["site"], _Site())
            site.text += event["text"]
            site.tell()
        return False

    def _end(self, name: str, end: GenDone | SelectDone | SglcError) -> None:
        site = self._sites.setdefault(name, _Site())
        if site.end is None:
            site.end = end
            site.tell()


def _error_at(error: SglcError, node: GenNode | SelectNode) -> SglcError:
    """What the request ended with, as the error of one of its generations."""
    made = copy(located(error, node.loc))
    made.message = made.message.replace(f"`{_REQUEST}`", f"`{node.site.name}`", 1)
    made.args = (made.message,)
    return made


def _error_of(told: Mapping[str, Any]) -> SglcError:
    kind = getattr(errors, told["kind"], None)
    made = kind if isinstance(kind, type) and issubclass(kind, SglcError) else BackendError
    loc = None if told["at"] is None else Loc(*told["at"])
    return made(told["code"], told["message"], loc, note=told["note"], hint=told["hint"])
