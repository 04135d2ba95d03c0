"""Models behind OpenAI's chat and completions protocols, through the official SDK (versions 2 and 3).

The SDK reads keys and base URL from its own environment variables and tries once; `retry` decides what is
tried again. A back end holds no state of a program but the prompts of streams that are kept.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from sglc.backends.openai.joint_request import JointReply, ask_jointly
from sglc.backends.openai.models import ApiModel, model_of
from sglc.backends.openai.openai_wire import (
    UNKNOWN_ID,
    Cut,
    Reply,
    RequestBody,
    bodies,
    chosen,
    form_of_request,
    gen_answer,
    sample_of,
    scored,
    usage_of,
)
from sglc.backends.remote.connection import Connection
from sglc.backends.remote.prompts import Prompt
from sglc.backends.remote.segment_runner import ApiAnswer, ApiRequest, Walker
from sglc.backends.remote.text_tokenizer import TextTokenizer
from sglc.backends.retry import Patience, Trouble, patiently, status_trouble
from sglc.errors import BackendError
from sglc.frontend.language.chat_templates import ChatTemplate, jinja_of
from sglc.ir.plan.events import Delta, Event, TokenLogprob, Usage
from sglc.ir.plan.segment import GenNode, Segment
from sglc.ir.target import Takes, Target

PATIENCE = Patience()
_OFFICIAL = "https://api.openai.com"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAIOptions:
    """Where a model is and how it is asked.

    `chat`: False for the completions protocol; None: as the model's name says, else chat. `chat_template`:
    how turns are written in completions, which otherwise have none. `takes`: what the model takes, and
    `images` whether pictures, where the table does not know it. `concurrency`: requests at once. `api_retries`:
    requests more than there are generations, where one asks for several. `client`: keywords of the SDK's
    `AsyncOpenAI` (`base_url`, `api_key`, ...); its environment variables count too.
    """

    model: str
    chat: bool | None = None
    chat_template: ChatTemplate | None = None
    takes: Takes | None = None
    images: bool | None = None
    concurrency: int = 16
    api_retries: int = 2
    patience: Patience = PATIENCE
    client: Mapping[str, Any] = field(default_factory=dict)


class OpenAIBackend:
    """Runs segments on one model of an API."""

    def __init__(self, options: OpenAIOptions) -> None:
        self.options = options
        self._connection: Connection | None = None
        self._walker = Walker(lambda request, emit: asyncio.ensure_future(self._ask(request, emit)))

    def __repr__(self) -> str:
        return f"<sglc back end {self.target.name}>"

    @cached_property
    def model(self) -> ApiModel:
        """What the model takes."""
        own_server = _OFFICIAL not in self.identity
        known = model_of(self.options.model, own_server=own_server, chat=self.options.chat)
        # Servers that speak the protocol leave the key unread, or refuse it.
        usual = replace(known.takes, cache_key=False) if own_server else known.takes
        takes, images = self.options.takes or usual, self.options.images
        takes = replace(takes, prompt_logprobs=False)  # the protocols have no way to ask for them
        return replace(known, takes=takes, images=known.images if images is None else images)

    @cached_property
    def identity(self) -> str:
        """Where the model is."""
        return str(self.options.client.get("base_url") or os.environ.get("OPENAI_BASE_URL") or _OFFICIAL)

    @cached_property
    def _tokenizer(self) -> TextTokenizer | None:
        template = self.options.chat_template
        if template is None or self.model.protocol != "text":
            return None
        return TextTokenizer(jinja_of(template), {}, template.stops, f"text of {template.name}")

    @cached_property
    def target(self) -> Target:
        """Capabilities, from the table of models; nothing is asked of the API."""
        model = self.model
        return Target(
            name=f"openai:{self.options.model}",
            tokenizer=self._tokenizer,
            scores_tokens=model.scores_tokens,
            continues_text=model.protocol == "text",
            images=model.images,
            concurrency=self.options.concurrency,
            protocol=model.protocol,
            takes=model.takes,
            guesses=True,
            whole_answers=True,
        )

    def start(self) -> None:
        """See that there is an SDK and a key.

        Raises:
            BackendError: SGLC540 no package `openai`, SGLC541 no key.
        """
        if self._connection is None:
            self._client()

    def close(self) -> None:
        """Close what is connected. Idempotent."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def submit(self, segment: Segment, *, streams: bool = True) -> AsyncIterator[Event]:
        """Run `segment`, without deltas if not `streams`; closing the iterator cancels what is left."""
        return self._walker.submit(segment, streams=streams)

    # -- one request ---------------------------------------------------------------------------------

    async def _ask(self, request: ApiRequest, emit: Callable[[Event], None]) -> ApiAnswer:
        if self._tokenizer is not None:
            request = _as_text(request, self._tokenizer, self.options.chat_template)
        if isinstance(request.node, GenNode) and request.node.ahead:
            template = self.options.chat_template if self._tokenizer is not None else None
            return await ask_jointly(
                request,
                emit,
                self._once,
                lambda single: self._ask_one(single, emit),
                whole_turn=self.model.protocol == "chat" and not self.model.takes.prefill,
                retries=self.options.api_retries,
                ends=template.stops if template is not None else (),
            )
        return await self._ask_one(request, emit)

    async def _once(self, request: ApiRequest, hear: Callable[[str], None] | None) -> JointReply:
        """One request of one sample, its text as it came."""
        (body,) = bodies(request, self.model, self.options.model)

        def say(event: Event) -> None:
            assert isinstance(event, Delta)
            assert hear is not None
            hear(event.text)

        ((reply,), usage) = await self._patiently(request, body, None if hear is None else say)
        return JointReply(reply.text, reply.finish, usage)

    async def _ask_one(self, request: ApiRequest, emit: Callable[[Event], None]) -> ApiAnswer:
        form = form_of_request(request, self.model)
        asked = bodies(request, self.model, self.options.model)
        spoken = request.streams and len(asked) == 1 and "n" not in asked[0].fields
        if not isinstance(request.node, GenNode):
            ((replies, usage),) = [await self._patiently(request, asked[0], None)]
            if form is not None:
                return chosen(request, replies[0], form, usage)
            return scored(request, replies, usage)
        say = None if not spoken or (form is not None and form.inside) else emit
        answers = await _together([self._patiently(request, body, say) for body in asked])
        sampling, name = request.node.sampling, request.node.site.name
        samples = [sample_of(reply, sampling, form, name) for replies, _ in answers for reply in replies]
        if len(samples) != sampling.n:
            raise BackendError(
                "SGLC544", f"the API gave {len(samples)} of {sampling.n} samples of `{name}`",
                hint="it does not know `n`: say so with `OpenAI(takes=Takes(samples=1, ...))`",
            )  # fmt: skip
        return gen_answer(request, samples, sum((usage for _, usage in answers), Usage()))

    async def _patiently(
        self, request: ApiRequest, body: RequestBody, say: Callable[[Event], None] | None
    ) -> tuple[list[Any], Usage]:
        """The samples of one body: `Reply`s, or the log-probabilities of echoed texts."""
        connection = self._connected()
        told = False

        def tell(text: str) -> None:
            nonlocal told
            if text:
                told = True
                assert say is not None
                say(Delta(request.index, text))

        async def attempt() -> tuple[list[Any], Any]:
            try:
                return await self._attempt(connection.client, request, body, None if say is None else tell)
            except Exception as error:
                raise _problem(error) from None

        node = request.node
        (replies, counts), tries = await patiently(
            attempt,
            self.options.patience,
            connection.places,
            seed=(getattr(node, "seed", None) or 0) + body.first,
            name=node.site.name,
            told=lambda: told,
        )
        return replies, usage_of(counts, tries)

    async def _attempt(
        self, client: Any, request: ApiRequest, body: RequestBody, tell: Callable[[str], None] | None
    ) -> tuple[list[Any], Any]:
        method = client.chat.completions if self.model.protocol == "chat" else client.completions
        if tell is None:
            made = await method.create(**body.fields)
            return self._replies(made, request), made.usage
        stream = await method.create(**body.fields, stream=True, stream_options={"include_usage": True})
        async with stream:
            return await self._spoken(stream, request, tell)

    def _replies(self, made: Any, request: ApiRequest) -> list[Any]:
        """The samples of a whole answer, in order."""
        choices = sorted(getattr(made, "choices", None) or [], key=lambda choice: choice.index)
        if not choices:
            raise Trouble("the answer is malformed: it has no choices")
        if not isinstance(request.node, GenNode) and self.model.scores_tokens:
            return [choice.logprobs for choice in choices]
        return [self._reply(choice, request.node.site.name) for choice in choices]

    def _reply(self, choice: Any, name: str) -> Reply:
        if self.model.protocol == "text":
            return Reply(choice.text or "", _finish(choice, name), *_of_text(choice.logprobs))
        message = choice.message
        if getattr(message, "refusal", None):
            raise _no_answer(name, f"the model refuses: {message.refusal}")
        return Reply(message.content or "", _finish(choice, name), *_of_chat([choice.logprobs]))

    async def _spoken(
        self, stream: Any, request: ApiRequest, tell: Callable[[str], None]
    ) -> tuple[list[Any], Any]:
        """A streamed answer of one sample."""
        assert isinstance(request.node, GenNode)
        cut, name = Cut(request.node.sampling), request.node.site.name
        chat = self.model.protocol == "chat"
        said: list[str] = []
        logprobs: list[Any] = []
        finish, usage, refusal = None, None, ""
        async for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                piece = (choice.delta.content if chat else choice.text) or ""
                refusal += getattr(choice.delta, "refusal", None) or "" if chat else ""
                logprobs.append(choice.logprobs)
                said.append(piece)
                if piece and not cut.ended:
                    tell(cut.push(piece))
                finish = _finish(choice, name) if choice.finish_reason else finish
        if refusal:
            raise _no_answer(name, f"the model refuses: {refusal}")
        if finish is None:
            raise Trouble("the answer ended before it was whole")
        tell(cut.finish())
        told = _of_chat(logprobs) if chat else _of_texts(logprobs)
        return [Reply("".join(said), finish, *told)], usage

    # -- the connection ------------------------------------------------------------------------------

    def _connected(self) -> Connection:
        connection = self._connection
        if connection is None or not connection.is_here():
            places, client = asyncio.Semaphore(self.options.concurrency), self._client()
            connection = Connection(asyncio.get_running_loop(), client, places, client.close)
            self._connection = connection
        return connection

    def _client(self) -> Any:
        try:
            import openai
        except ImportError as error:
            raise BackendError(
                "SGLC540", f"`{self.target.name}` needs the package `openai`: {error}",
                hint="pip install 'sglc[openai]'",
            ) from None  # fmt: skip
        given = {"timeout": self.options.patience.attempt_s, **self.options.client, "max_retries": 0}
        try:
            return openai.AsyncOpenAI(**given)
        except openai.OpenAIError as error:
            raise BackendError(
                "SGLC541", f"`{self.target.name}` cannot be reached: {_said(error).splitlines()[0]}",
                hint="set `OPENAI_API_KEY`, and `OPENAI_BASE_URL` for a server of your own",
            ) from None  # fmt: skip


def _as_text(request: ApiRequest, tokenizer: TextTokenizer, template: ChatTemplate | None) -> ApiRequest:
    """The request with its prompt checked, and the template's own stop strings."""
    prompt, node = Prompt(None, (tokenizer.text(request.prompt),)), request.node
    if isinstance(node, GenNode) and template is not None:
        node = _stopping(node, template.stops)
        behind = [replace(one, node=_stopping(one.node, template.stops)) for one in request.behind]
        request = replace(request, behind=tuple(behind))
    return replace(request, prompt=prompt, node=node)


def _stopping(node: GenNode, stops: tuple[str, ...]) -> GenNode:
    more = tuple(stop for stop in stops if stop not in node.sampling.stop)
    return replace(node, sampling=replace(node.sampling, stop=(*node.sampling.stop, *more)))


async def _together(asked: list[Any]) -> list[Any]:
    """All of them side by side; the first failure cancels the others."""
    if len(asked) == 1:
        return [await asked[0]]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in asked]
    except ExceptionGroup as several:
        raise several.exceptions[0] from None
    return [task.result() for task in tasks]


def _problem(error: Exception) -> Exception:
    """What an attempt's failure means; itself, if it is none of the network's."""
    import openai

    http = tuple(sys.modules[name].TransportError for name in ("httpx", "httpx2") if name in sys.modules)
    match error:
        case openai.APIStatusError():
            body = error.body if isinstance(error.body, Mapping) else {}
            final = body.get("code") == "insufficient_quota"
            said = str(body.get("message") or _said(error))
            return status_trouble(error.status_code, said, error.response.headers, final=final)
        case openai.APITimeoutError():
            return Trouble("no answer in time")
        case openai.APIConnectionError():
            return Trouble(f"the connection failed: {_said(error.__cause__ or error)}")
        case openai.APIError():  # told inside a stream, or an answer that the SDK cannot read
            return Trouble(_said(error))
        case json.JSONDecodeError():
            return Trouble(f"the answer is malformed: {_said(error)}")
        case _ if isinstance(error, http):
            return Trouble(f"the connection broke: {_said(error)}")
        case _:
            return error


def _said(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _finish(choice: Any, name: str) -> str:
    match choice.finish_reason:
        case "length":
            return "length"
        case "content_filter":
            raise _no_answer(name, "the provider's filter stopped it")
        case _:
            return "stop"


def _no_answer(name: str, why: str) -> BackendError:
    return BackendError("SGLC545", f"the API gives no answer for `{name}`: {why}")


_Logprobs = tuple[tuple[float, ...], tuple[str, ...], tuple[tuple[TokenLogprob, ...], ...]]


def _of_chat(parts: list[Any]) -> _Logprobs:
    tokens = [token for part in parts if part is not None for token in part.content or ()]
    tops = [tuple((top.logprob, UNKNOWN_ID, top.token) for top in token.top_logprobs or ()) for token in tokens]
    return (
        tuple(token.logprob for token in tokens),
        tuple(token.token for token in tokens),
        tuple(tops) if any(tops) else (),
    )


def _of_text(part: Any) -> _Logprobs:
    return _of_texts([part])


def _of_texts(parts: list[Any]) -> _Logprobs:
    logprobs: list[float] = []
    texts: list[str] = []
    tops: list[tuple[TokenLogprob, ...]] = []
    for part in parts:
        if part is None or not part.tokens:
            continue
        logprobs += part.token_logprobs
        texts += part.tokens
        for place in part.top_logprobs or ():
            best = sorted((place or {}).items(), key=lambda pair: -pair[1])
            tops.append(tuple((logprob, UNKNOWN_ID, token) for token, logprob in best))
    return tuple(logprobs), tuple(texts), tuple(tops) if any(tops) else ()
