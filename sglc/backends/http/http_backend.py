"""An sglc or SGLang server, by SGLang's protocol (`/get_model_info`, `/generate`), over kept connections."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from sglc.backends.http import llama_wire, vllm_wire
from sglc.backends.http.hint_fields import DIALECTS, spoken
from sglc.backends.http.http_program import ServerProgram, part_of
from sglc.backends.http.http_trouble import FINAL, address_of, events_of, missing, problem_of, refused
from sglc.backends.http.http_wire import (
    Spoken,
    alone,
    choosing,
    chosen,
    gen_answer,
    gen_body,
    needs_alone,
    one_by_one,
    prompt_field,
    scores,
)
from sglc.backends.http.server_info import ServerModel, model_behind, model_of, model_of_engine
from sglc.backends.remote.answers import Cut, Reading
from sglc.backends.remote.connection import Connection, see_keys, unreachable
from sglc.backends.remote.sdk_errors import said
from sglc.backends.remote.segment_runner import ApiAnswer, ApiRequest, Walker
from sglc.backends.retry import Paid, Patience, Places, Trouble, patiently, status_trouble
from sglc.errors import BackendError
from sglc.ir.plan.backend import ProgramRun
from sglc.ir.plan.events import Event, Usage
from sglc.ir.plan.plan import Plan
from sglc.ir.plan.segment import GenNode, Segment
from sglc.ir.plan.without_host import is_json
from sglc.ir.target import Target
from sglc.knobs import api_key

PATIENCE = Patience()
_INFO_S = 30.0  # for what a server says of itself
_COUNTS = ("prompt_tokens", "completion_tokens", "cached_tokens")
_POOL = 32  # connections of a client, about
_ENGINES = {"vllm": vllm_wire, "llama.cpp": llama_wire}  # those asked in words of their own


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Where a server is. `verify`: False, or a file of certificates. `concurrency`: None: the server's own.

    `api_key`: None: that of `SGLC_API_KEY`, if there is one. gRPC has no False of `verify`.
    `hints`: how it is told what follows a request: a dialect of `hint_fields`, "" for none; None: as it says.
    """

    url: str
    api_key: str | None = None
    verify: str | bool = True
    chat_template: str | None = None
    concurrency: int | None = None
    patience: Patience = PATIENCE
    hints: str | None = None


class _Clients:
    """Requests through several clients, a further one where those before it have enough to do.

    To begin and to end a request, a client looks at each of its connections: with 512 of them that is half of
    what a batch costs its process.
    """

    def __init__(self, clients: Sequence[Any]) -> None:
        self._clients = clients
        self._busy = [0] * len(clients)  # requests that each has now

    @contextmanager
    def _one(self) -> Iterator[Any]:
        least = self._busy.index(min(self._busy))
        place = next((place for place, busy in enumerate(self._busy) if busy < _POOL), least)
        self._busy[place] += 1
        try:
            yield self._clients[place]
        finally:
            self._busy[place] -= 1

    async def post(self, *given: Any, **options: Any) -> Any:
        """As of a client."""
        with self._one() as client:
            return await client.post(*given, **options)

    @asynccontextmanager
    async def stream(self, *given: Any, **options: Any) -> AsyncIterator[Any]:
        """As of a client."""
        with self._one() as client:
            async with client.stream(*given, **options) as response:
                yield response

    async def aclose(self) -> None:
        """Close them all."""
        await asyncio.gather(*(client.aclose() for client in self._clients))


class ServerBackend:
    """Runs segments on a server; prompts are put together here."""

    def __init__(self, options: ServerOptions) -> None:
        self.options = options
        self._connection: Connection | None = None
        self._runs_plans = True  # until it says that it does not
        self._part: tuple[Plan, str | None] | None = None  # of the last plan, which other rows have, too
        self._walker = Walker(self._ask, hinted=lambda: self.target.takes.hints)

    def __repr__(self) -> str:
        return f"<sglc back end {address_of(self.options.url)}>"

    @cached_property
    def model(self) -> ServerModel:
        """What the server says of its model. The first use asks it.

        Raises:
            BackendError: SGLC540 no package, SGLC547 no such server, or one that says something odd.
        """
        try:
            return self._said_model()
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise BackendError(
                "SGLC547", f"what the server at `{address_of(self.options.url)}` says of itself is malformed: "
                f"{said(error)}", hint="is it an sglc or SGLang server?",
            ) from None  # fmt: skip

    def _said_model(self) -> ServerModel:
        response = self._told("GET", "/get_model_info")
        if response.status_code == 501:
            return model_behind(self._state("GET", "/workers")["workers"], self.options.chat_template)
        if response.status_code == 404:
            own = model_of_engine(self._state("GET", "/v1/models"), self._ids_of, self._slots)
            return replace(own, hints=spoken(self.options.hints, {}))
        info = self._content(response)
        if not isinstance(info, Mapping):
            info = {}
        told = spoken(self.options.hints, info)
        return replace(model_of(info, self.options.chat_template), hints=told)

    def _ids_of(self, text: str) -> Any:
        """The ids that a vLLM server makes of a text, which it calls `prompt`, or a llama.cpp server."""
        asked = {"prompt": text, "add_special_tokens": False, "content": text, "parse_special": False}
        return self._content(self._told("POST", "/tokenize", json=asked)).get("tokens")

    def _slots(self) -> int:
        return int(self._state("GET", "/props")["total_slots"])

    @cached_property
    def target(self) -> Target:
        """Capabilities, and how prompts are written.

        Raises:
            BackendError: as `model`.
        """
        model = self.model
        return Target(
            name=address_of(self.options.url),
            model=model.name,
            tokenizer=model.tokenizer,
            scores_tokens=model.scores_tokens,
            continues_text=True,
            images=bool(model.image_token),
            concurrency=self.options.concurrency or model.concurrency,
            protocol="tokens" if model.exact else "text",
            whole_answers=True,
            takes=replace(model.takes, hints=bool(model.hints)),
        )

    @property
    def identity(self) -> str:
        """The server's model."""
        return self.model.name

    def start(self) -> None:
        """Ask what the server has.

        Raises:
            BackendError: as `model`.
        """
        _ = self.target

    def close(self) -> None:
        """Close what is connected. Idempotent. What is asked next may be another server."""
        for known in ("model", "target"):
            self.__dict__.pop(known, None)
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def submit(self, segment: Segment, *, streams: bool = True) -> AsyncIterator[Event]:
        """Run `segment`, without deltas if not `streams`; closing the iterator cancels what is left."""
        return self._walker.submit(segment, streams=streams)

    def program(self, run: ProgramRun) -> ServerProgram | None:
        """What answers the segments of a run of a plan, which the server does in one request.

        None where it does not: it has no such end point, or the plan a part that is only here.
        """
        if not (self.model.runs_plans and self._runs_plans and is_json(dict(run.arguments))):
            return None
        if self._part is None or self._part[0] is not run.plan:
            self._part = run.plan, part_of(run.plan)
        plan = self._part[1]
        if plan is None:
            return None
        return ServerProgram(self, self._connected, self.options.patience, self._no_plans, plan, run)

    def _no_plans(self) -> None:
        self._runs_plans = False

    def flush_cache(self) -> None:
        """Have the server forget every cached prefix that no run uses now.

        Raises:
            BackendError: SGLC547, it does not answer.
        """
        self._state("POST", "/flush_cache")

    def server_info(self) -> dict[str, Any]:
        """What the server says of itself, as plain data.

        Raises:
            BackendError: SGLC547, it does not answer.
        """
        return dict(self._state("GET", "/get_server_info"))

    # -- one request ---------------------------------------------------------------------------------

    async def _ask(self, request: ApiRequest, emit: Callable[[Event], None]) -> ApiAnswer:
        if not isinstance(request.node, GenNode):
            return await self._choose(request)
        body = {**gen_body(request, self.model), **self._hinted(request)}
        # What a gateway streams of an answer over gRPC lacks its log-probabilities.
        if request.streams and request.node.sampling.n == 1 and not (self.model.over_grpc or self.model.engine):
            answers, tries = await self._spoken(request, body, emit)
        else:
            answers, tries = await self._whole(request, body)
        return gen_answer(request, answers, self.model, tries)

    def _hinted(self, request: ApiRequest) -> dict[str, Any]:
        return DIALECTS[self.model.hints](request.hints) if request.hints is not None else {}

    async def _choose(self, request: ApiRequest) -> ApiAnswer:
        size, tries = None, 0
        if not self.model.exact:
            prompt = prompt_field(request.prompt, self.model)
            (answer,), tries = await self._whole(
                request, {**prompt, "sampling_params": {"max_new_tokens": 0, "temperature": 0.0}}
            )
            size = answer["meta_info"].get("prompt_tokens") or 0
        found = None
        while found is None:
            asked = choosing(request, self.model, size)
            with Paid(Usage(calls=tries)):
                answers, more = await self._whole(request, asked.body)
            tries += more
            with Paid(Usage(calls=tries)):
                found, size = scores(asked, answers), 0
        own: list[Mapping[str, Any]] = []
        if needs_alone(request):
            with Paid(Usage(calls=tries)):
                own, more = await self._whole(request, alone(found.ids))
            tries += more
        return chosen(request, found, own, answers[-len(request.choices)]["meta_info"], tries)

    async def _whole(self, request: ApiRequest, body: Mapping[str, Any]) -> tuple[list[Mapping[str, Any]], int]:
        """The answers to one request, and how often it was tried."""

        async def attempt(client: Any) -> list[Mapping[str, Any]]:
            return await self._answered(client, body, _routed(request))

        return await self._patiently(request, attempt, lambda: False)

    async def _answered(
        self, client: Any, body: Mapping[str, Any], headers: Mapping[str, str]
    ) -> list[Mapping[str, Any]]:
        wire = _ENGINES.get(self.model.engine)
        if wire is not None:
            bodies = wire.asked(body, self.model)
        else:
            bodies = one_by_one(body, self.model.name) if self.model.over_grpc else [body]
        path = "/generate" if wire is None else wire.PATH
        responses = await asyncio.gather(*(client.post(path, json=each, headers=headers) for each in bodies))
        for response in responses:
            if response.status_code != 200:
                raise refused(response)
        with Reading():
            told = [response.json() for response in responses]
            if wire is not None:
                return list(wire.told(told, body, self.model.tokenizer))
        return [each for data in told for each in _answers(data)]

    async def _spoken(
        self, request: ApiRequest, body: Mapping[str, Any], emit: Callable[[Event], None]
    ) -> tuple[list[Mapping[str, Any]], int]:
        """The answer to one request for one sample, handed on as it comes."""
        assert isinstance(request.node, GenNode)
        sampling, spoken = request.node.sampling, Spoken()
        stops = tuple(body["sampling_params"].get("stop", ()))

        async def attempt(client: Any) -> list[Mapping[str, Any]]:
            nonlocal spoken
            spoken = Spoken(None if self.model.own else Cut(replace(sampling, stop=stops)))
            last: list[Mapping[str, Any]] = []
            async with aclosing(self._told_by(client, body, _routed(request))) as answers:
                async for last in answers:
                    delta = spoken.delta(request.index, last[0])
                    if delta is not None:
                        emit(delta)
            if not last or not last[0]["meta_info"].get("finish_reason"):
                raise Trouble("the answer ended before it was whole")
            return last

        return await self._patiently(request, attempt, lambda: bool(spoken.text))

    async def _told_by(
        self, client: Any, body: Mapping[str, Any], headers: Mapping[str, str]
    ) -> AsyncGenerator[list[Mapping[str, Any]], None]:
        """The answer as far as it has come, again and again."""
        asked = {"json": {**body, "stream": True}, "headers": headers}
        async with client.stream("POST", "/generate", **asked) as response:
            if response.status_code != 200:
                await response.aread()
                raise refused(response)
            async with aclosing(events_of(response)) as events:
                async for data in events:
                    if data == "[DONE]":
                        break
                    yield _answers(json.loads(data))

    async def _patiently(
        self,
        request: ApiRequest,
        attempt: Callable[[Any], Any],
        told: Callable[[], bool],
    ) -> tuple[list[Mapping[str, Any]], int]:
        connection = self._connected()

        node = request.node
        return await patiently(
            lambda: attempt(connection.client),
            self.options.patience,
            connection.places,
            self._trouble,
            seed=getattr(node, "seed", None) or 0,
            name=node.site.name,
            told=told,
        )

    def _trouble(self, error: Exception) -> Exception:
        return problem_of(error)

    # -- the connection ------------------------------------------------------------------------------

    def _connected(self) -> Connection:
        connection = self._connection
        if connection is None or not connection.is_here():
            most = self.target.concurrency
            client, end = self._client(most)
            connection = Connection(asyncio.get_running_loop(), client, Places(most), end)
            self._connection = connection
        return connection

    def _client(self, most: int) -> tuple[Any, Callable[[], Coroutine[Any, Any, None]]]:
        """What requests go through in this loop, and what closes it."""
        http = self._http()
        limits = http.Limits(max_connections=None, max_keepalive_connections=_POOL)
        door = self._door()
        door["verify"] = http.create_ssl_context(door["verify"])  # takes long, so once
        clients = [
            http.AsyncClient(
                base_url=self.options.url, timeout=self.options.patience.attempt_s, limits=limits, **door
            )
            for _ in range(-(-most // _POOL))
        ]
        client = _Clients(clients)
        return client, client.aclose

    def _state(self, method: str, path: str) -> Any:
        """What the server says of itself at `path`; waits for it."""
        return self._content(self._told(method, path))

    def _told(self, method: str, path: str, json: Any = None) -> Any:
        http = self._http()
        url = self.options.url.rstrip("/")
        try:
            return http.request(method, f"{url}{path}", json=json, timeout=_INFO_S, **self._door())
        except (http.HTTPError, http.InvalidURL, OSError) as error:
            raise BackendError(
                "SGLC547", f"there is no server at `{address_of(url)}`: {str(error) or type(error).__name__}",
                hint="start one with `sglc serve`, and give its URL",
            ) from None  # fmt: skip
        except (ImportError, ValueError) as error:  # of proxies
            raise unreachable(address_of(url), error, "") from None

    def _content(self, response: Any) -> Any:
        if response.status_code != 200:
            trouble = refused(response)
            raise BackendError(
                "SGLC547",
                f"the server at `{address_of(self.options.url)}` does not say what it has: {trouble.message}",
                hint=trouble.hint,
            )
        try:
            return response.json()
        except ValueError:
            return {}

    @property
    def _key(self) -> str | None:
        if self.options.api_key is None:
            return api_key()
        see_keys(address_of(self.options.url), self.options.api_key)
        return self.options.api_key

    def _door(self) -> dict[str, Any]:
        key = self._key
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        return {"headers": headers, "verify": self.options.verify}

    def _http(self) -> Any:
        try:
            import httpx2
        except ImportError as error:
            raise missing(error, "http") from None
        return httpx2


def _routed(request: ApiRequest) -> dict[str, str]:
    """Before several servers, a gateway sends prompts that begin alike to the one that has the beginning."""
    key = request.node.cache_key
    return {"x-smg-routing-key": key} if key else {}


def _answers(data: Any) -> list[Mapping[str, Any]]:
    """One answer or several, as several.

    Raises:
        Trouble: it is none.
    """
    made = data if isinstance(data, list) else [data]
    if not made or not all(map(_is_answer, made)):
        error = data.get("error") if isinstance(data, Mapping) else None
        why, code = (error.get("message"), error.get("code")) if isinstance(error, Mapping) else (error, None)
        if why and isinstance(code, int) and code >= 400:
            raise status_trouble(code, str(why), {})
        what = f"the server failed: {why}" if why else "the answer is malformed"
        raise Trouble(what, again=code not in FINAL)
    return made


def _is_answer(item: Any) -> bool:
    """Whether it has the shape of one, as far as each is read."""
    if not (isinstance(item, Mapping) and isinstance(item.get("text"), str)):
        return False
    meta = item.get("meta_info")
    if not (isinstance(meta, Mapping) and isinstance(meta.get("finish_reason"), Mapping | None)):
        return False
    return all(isinstance(meta.get(name), int | None) for name in _COUNTS)
