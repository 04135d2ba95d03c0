"""A model behind a vendor's API: what every back end of this kind does, and what a vendor has to say.

The official SDKs read keys and addresses from their own environment variables and try once; `retry` decides
what is tried again. A back end holds no state of a program but the prompts of streams that are kept.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, TypeVar

from sglc.backends.models.vendor_rules import ApiModel
from sglc.backends.remote.answers import (
    Answer,
    Cut,
    Piece,
    RequestBody,
    Unanswered,
    chosen,
    form_of_request,
    gen_answer,
    no_answer,
    of_whole_characters,
    reply_for,
    sample_of,
    whole_reply,
)
from sglc.backends.remote.connection import Connection
from sglc.backends.remote.fused_request import ask_fused
from sglc.backends.remote.joint_request import JointReply, ask_jointly
from sglc.backends.remote.segment_runner import ApiAnswer, ApiRequest, Walker
from sglc.backends.retry import Paid, Patience, Places, Trouble, patiently
from sglc.errors import BackendError
from sglc.ir.plan.events import Delta, Event, Sample, Usage
from sglc.ir.plan.segment import GenNode, Segment
from sglc.ir.target import Encoding, Takes, Target, Tokenizer

PATIENCE = Patience()
_T = TypeVar("_T")
Client = tuple[Any, Callable[[], Coroutine[Any, Any, None]]]  # an SDK's client, and what closes it


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiOptions:
    """Where a model is and how it is asked.

    `takes`: what the model takes, and `images` whether pictures, where the table does not know it.
    `concurrency`: requests at once. `api_retries`: requests more than there are generations, where one asks for
    several. `encoding`: the model's tokenizer, for estimates. `client`: keywords of the SDK's client
    (`base_url`, `api_key`, ...); its environment variables count too.
    """

    model: str
    takes: Takes | None = None
    images: bool | None = None
    concurrency: int = 16
    api_retries: int = 2
    patience: Patience = PATIENCE
    encoding: Encoding | None = None
    client: Mapping[str, Any] = field(default_factory=dict)


class ApiBackend(ABC):
    """Runs segments on one model of an API."""

    kind: str  # the back end's name before the model's, as `--backend` takes it
    # Fields of `Takes` that the protocol has no way to say, whatever is claimed.
    cannot: ClassVar[Mapping[str, Any]]

    def __init__(self, options: ApiOptions) -> None:
        self.options = options
        self._connection: Connection | None = None
        self._client: Client | None = None  # made before there was a loop; certificates are read for each
        self._walker = Walker(self.ask, lambda: self.model.takes.samples != 1)

    def __repr__(self) -> str:
        return f"<sglc back end {self.target.name}>"

    # -- what a vendor says --------------------------------------------------------------------------

    @abstractmethod
    def usual_model(self) -> ApiModel:
        """What the model takes, by the table and the vendor's rules."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """Where the model is."""

    @abstractmethod
    def connect(self) -> Client:
        """A client of the SDK that tries once.

        Raises:
            BackendError: SGLC540 the package is missing, SGLC541 no key or address.
        """

    @abstractmethod
    def bodies(self, request: ApiRequest) -> tuple[RequestBody, ...]:
        """The requests that answer one generation or choice, none of them streaming.

        Raises:
            SglcError: its prompt is nothing that the protocol can say.
        """

    @abstractmethod
    async def whole(self, client: Any, body: RequestBody) -> Answer:
        """One request's answer. Raises `Unanswered`, or what the SDK raises."""

    @abstractmethod
    def pieces(self, client: Any, body: RequestBody) -> AsyncIterator[Piece]:
        """The same as a stream, of one sample."""

    @abstractmethod
    def trouble(self, error: Exception) -> Exception:
        """What an attempt's failure means: a `Trouble`, or `Unanswered`.

        Itself, if it is none of the API's or the network's.
        """

    # -- as of `Backend` -----------------------------------------------------------------------------

    @cached_property
    def model(self) -> ApiModel:
        """What the model takes."""
        usual, takes, images = self.usual_model(), self.options.takes, self.options.images
        return replace(
            usual,
            takes=replace(takes or usual.takes, **self.cannot),
            images=usual.images if images is None else images,
            known=usual.known or takes is not None,
        )

    @property
    def tokenizer(self) -> Tokenizer | None:
        """What writes prompts, if they are not messages."""
        return None

    def encoding(self) -> Encoding | None:
        """The model's tokenizer, for estimates; None: they are made by lengths."""
        return self.options.encoding

    @cached_property
    def target(self) -> Target:
        """Capabilities, from the table of models; nothing is asked of the API."""
        model = self.model
        return Target(
            name=f"{self.kind}:{self.options.model}",
            tokenizer=self.tokenizer,
            scores_tokens=model.scores_tokens,
            continues_text=model.protocol == "text",
            images=model.images,
            concurrency=self.options.concurrency,
            protocol=model.protocol,
            takes=model.takes,
            known=model.known,
            encoding=self.encoding,
            guesses=True,
            whole_answers=True,
        )

    def start(self) -> None:
        """See that there is an SDK and a key.

        Raises:
            BackendError: SGLC540 the package is missing, SGLC541 no key.
        """
        if self._connection is None and self._client is None:
            self._client = self.connect()

    def close(self) -> None:
        """Close what is connected. Idempotent."""
        connection, self._connection, self._client = self._connection, None, None
        if connection is not None:
            connection.close()

    def submit(self, segment: Segment, *, streams: bool = True) -> AsyncIterator[Event]:
        """Run `segment`, without deltas if not `streams`; closing the iterator cancels what is left."""
        return self._walker.submit(segment, streams=streams)

    # -- one generation or choice --------------------------------------------------------------------

    def ask(self, request: ApiRequest, emit: Callable[[Event], None]) -> Awaitable[ApiAnswer]:
        """What answers it: one request, several, or one that answers others too."""
        if request.node.fused:
            return self.ask_fused(request, emit)
        if isinstance(request.node, GenNode) and request.node.ahead:
            return self.ask_jointly(request, emit)
        return self.ask_one(request, emit)

    async def ask_fused(self, request: ApiRequest, emit: Callable[[Event], None]) -> ApiAnswer:
        """One JSON object for several generations of a turn."""
        return await ask_fused(
            request,
            lambda asked: self._once(asked, None),
            lambda single: self.ask_one(single, emit),
            self.model.takes,
            chat=self.model.protocol == "chat",
            retries=self.options.api_retries,
        )

    async def ask_jointly(
        self, request: ApiRequest, emit: Callable[[Event], None], ends: tuple[str, ...] = ()
    ) -> ApiAnswer:
        """One request for several generations of a turn, which `ends` stop too."""
        return await ask_jointly(
            request,
            emit,
            self._once,
            lambda single: self.ask_one(single, emit),
            whole_turn=self.model.protocol == "chat" and not self.model.takes.prefill,
            retries=self.options.api_retries,
            ends=ends,
        )

    async def _once(self, request: ApiRequest, hear: Callable[[str], None] | None) -> JointReply:
        """One request of one sample, its text as it came."""
        (body,) = self.bodies(request)
        answer = _counted(*await self._answer(request, body, hear))
        with Paid(answer.usage):
            reply = of_whole_characters(reply_for(request.node.site.name, answer.replies[0]))
        return JointReply(reply.text, reply.finish, answer.usage)

    async def ask_one(self, request: ApiRequest, emit: Callable[[Event], None]) -> ApiAnswer:
        """As many requests as its samples need."""
        form = form_of_request(request, self.model)
        asked = self.bodies(request)
        if not isinstance(request.node, GenNode):
            answer = _counted(*await self._answer(request, asked[0], None))
            assert form is not None
            with Paid(answer.usage):
                reply = reply_for(request.node.site.name, answer.replies[0])
                return chosen(request, reply, form, answer.usage)
        live = request.streams and len(asked) == 1 and asked[0].count == 1
        live = live and request.node.sampling.tools is None  # calls are a text when they are whole
        say = None
        if live and (form is None or not form.inside):
            say = lambda text: emit(Delta(request.index, text))  # noqa: E731
        sampling, name = request.node.sampling, request.node.site.name
        if len(asked) == 1:
            answers = [_counted(*await self._answer(request, asked[0], say))]
        else:
            each = await _together([self._answer(request, body, say) for body in asked])
            answers = [_counted(*one) for one in each]
        usage = sum((answer.usage for answer in answers[1:]), answers[0].usage)
        replies = [reply for answer in answers for reply in answer.replies]

        def sample(place: int) -> Sample | BackendError:
            try:
                if not place < len(replies) <= sampling.n:
                    raise _miscounted(len(replies), sampling.n, name)
                return sample_of(reply_for(name, replies[place]), sampling, form, name)
            except BackendError as error:
                if request.apart:
                    return error
                raise

        with Paid(usage):
            return gen_answer(request, [sample(place) for place in range(sampling.n)], usage)

    def _answer(
        self, request: ApiRequest, body: RequestBody, say: Callable[[str], None] | None
    ) -> Coroutine[Any, Any, tuple[Answer, int]]:
        """The answer to one body, as a stream if what comes is to be said, and how many attempts it took."""
        if say is None:
            return self.tried(request, body, lambda client: self.whole(client, body))
        told = False

        def tell(text: str) -> None:
            nonlocal told
            if text:
                told = True
                say(text)

        return self.tried(request, body, lambda client: self._heard(client, request, body, tell), lambda: told)

    async def _heard(
        self, client: Any, request: ApiRequest, body: RequestBody, tell: Callable[[str], None]
    ) -> Answer:
        """A streamed answer of one sample."""
        assert isinstance(request.node, GenNode)
        cut, heard, usage = Cut(request.node.sampling), list[Piece](), Usage(calls=1)
        why: Unanswered | None = None
        async with aclosing(self.pieces(client, body)) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                usage, why = piece.usage or usage, why or piece.why
                heard.append(piece)
                if piece.text and cut.ended is None and why is None:
                    tell(cut.push(piece.text))
        if why is not None:
            return Answer((why,), usage)
        reply = whole_reply(heard)
        if reply is None:
            raise Trouble("the answer ended before it was whole")
        tell(cut.finish())
        return Answer((reply,), usage)

    def tried(
        self,
        request: ApiRequest,
        body: RequestBody,
        attempt: Callable[[Any], Awaitable[_T]],
        told: Callable[[], bool] = lambda: False,
    ) -> Coroutine[Any, Any, tuple[_T, int]]:
        """What `attempt` makes of a client, and how many attempts that took.

        Raises:
            BackendError: SGLC542, SGLC543, as of `patiently`; SGLC545, the model gives no answer.
        """
        connection, name = self._connected(), request.node.site.name

        def meaning(error: Exception) -> Exception:
            told = error if isinstance(error, Unanswered | BackendError) else self.trouble(error)
            return no_answer(name, told) if isinstance(told, Unanswered) else told

        return patiently(
            lambda: attempt(connection.client),
            self.options.patience,
            connection.places,
            meaning,
            seed=(getattr(request.node, "seed", None) or 0) + body.first,
            name=name,
            told=told,
        )

    def _connected(self) -> Connection:
        connection = self._connection
        if connection is None or not connection.is_here():
            places, (client, end) = Places(self.options.concurrency), self._client or self.connect()
            self._client = None
            connection = Connection(asyncio.get_running_loop(), client, places, end)
            self._connection = connection
        return connection


def _counted(answer: Answer, tries: int) -> Answer:
    """It with a call for each attempt; of one it counts that itself."""
    return answer if tries == 1 else replace(answer, usage=replace(answer.usage, calls=tries))


def _miscounted(count: int, wanted: int, name: str) -> BackendError:
    return BackendError(
        "SGLC544", f"the API gave {count} of {wanted} samples of `{name}`",
        hint="it gives one at a time: say so with `takes=Takes(samples=1, ...)`" if count < wanted else "",
    )  # fmt: skip


async def _together(asked: list[Coroutine[Any, Any, tuple[Answer, int]]]) -> list[tuple[Answer, int]]:
    """All of them side by side; the first failure cancels the others, and has taken what all have."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in asked]
    except ExceptionGroup as several:
        first, *others = several.exceptions
        ended = [task.result() for task in tasks if not task.cancelled() and task.exception() is None]
        spent = [_counted(*one).usage for one in ended]
        spent += [one.usage for one in others if isinstance(one, BackendError) and one.usage]
        with Paid(sum(spent, Usage())):
            raise first from None
    return [task.result() for task in tasks]


def missing(name: str, package: str, extra: str, error: ImportError) -> BackendError:
    """The SDK of a back end is not installed."""
    return BackendError(
        "SGLC540", f"`{name}` needs the package `{package}`: {error}", hint=f"pip install 'sglc[{extra}]'"
    )
