"""Models behind OpenAI's chat and completions protocols, through the official SDK (versions 2 and 3)."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from inspect import isawaitable
from typing import Any, ClassVar

from sglc.backends.models.vendor_rules import ApiModel, dialect_model, openai_model
from sglc.backends.openai.dialects import DIALECTS, OPENAI, in_dialect
from sglc.backends.openai.echoed_choices import EchoedText, echo, echoed, scored
from sglc.backends.openai.openai_wire import Steering, bodies, piece_of, reply_of, steered, usage_of
from sglc.backends.remote.answers import (
    PROMPT_BLOCKED,
    Answer,
    Piece,
    Reading,
    RequestBody,
    Unanswered,
    or_why_not,
    piece_or_why_not,
)
from sglc.backends.remote.api_backend import ApiBackend, ApiOptions, Client, missing
from sglc.backends.remote.connection import see_keys, see_options, timeouts, unreachable
from sglc.backends.remote.prompts import Prompt
from sglc.backends.remote.sdk_errors import sdk_trouble, told_trouble
from sglc.backends.remote.sdk_streams import reading
from sglc.backends.remote.segment_runner import ApiAnswer, ApiRequest
from sglc.backends.remote.text_tokenizer import TextTokenizer
from sglc.backends.retry import Trouble
from sglc.frontend.language.chat_templates import ChatTemplate, jinja_of
from sglc.ir.plan.events import Event, Usage
from sglc.ir.plan.segment import GenNode, SelectNode, stopped_by
from sglc.ir.target import Encoding

_OFFICIAL = "https://api.openai.com"
_AZURE_KEY, _AZURE_ENDPOINT = "AZURE_OPENAI_API_KEY", "AZURE_OPENAI_ENDPOINT"
_AZURE_TOKEN = "AZURE_OPENAI_AD_TOKEN"
_AZURE_GIVEN = ("api_key", "azure_ad_token", "azure_ad_token_provider")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAIOptions(ApiOptions):
    """As of `ApiOptions`; the SDK's client is `AsyncOpenAI`.

    `chat`: False for the completions protocol; None: as the model's name says, else chat. `chat_template`:
    how turns are written in completions, which otherwise have none. `azure`: the model is a deployment of
    Azure's; with an `api_version` (or `OPENAI_API_VERSION`) it is asked as one of that version, else by
    the API that has none. `dialect`: the service is another one, by its name in `DIALECTS`.
    """

    chat: bool | None = None
    chat_template: ChatTemplate | None = None
    azure: bool = False
    dialect: str = ""


class OpenAIBackend(ApiBackend):
    """Runs segments on one model of an API that speaks OpenAI's protocols."""

    options: OpenAIOptions
    cannot: ClassVar[Mapping[str, Any]] = {"prompt_logprobs": False, "cache_turns": False}

    def __init__(self, options: OpenAIOptions) -> None:
        super().__init__(options)
        self.kind = options.dialect or ("azure" if options.azure else "openai")
        self._dialect = DIALECTS.get(options.dialect, OPENAI)

    def usual_model(self) -> ApiModel:
        """By the table; a server of one's own may have models of OpenAI's names."""
        if self.options.dialect:
            return dialect_model(f"{self.kind}:{self.options.model}")
        own_server = not self.options.azure and _OFFICIAL not in self.identity
        known = openai_model(f"{self.kind}:{self.options.model}", own_server=own_server, chat=self.options.chat)
        # Servers that speak the protocol leave the key unread, or refuse it.
        return replace(known, takes=replace(known.takes, cache_key=False)) if own_server else known

    @cached_property
    def identity(self) -> str:
        """Where the model is."""
        given = self.options.client
        if self.options.azure:
            return str(given.get("azure_endpoint") or given.get("base_url") or os.environ.get(_AZURE_ENDPOINT))
        url = self._dialect.url or os.environ.get("OPENAI_BASE_URL") or _OFFICIAL
        return str(given.get("base_url") or url)

    @cached_property
    def tokenizer(self) -> TextTokenizer | None:
        """What writes turns where the protocol is completions."""
        template = self.options.chat_template
        if template is None or self.model.protocol != "text":
            return None
        return TextTokenizer(jinja_of(template), {}, template.stops, f"text of {template.name}")

    @cached_property
    def _steering(self) -> Steering:
        return steered(self.model)

    def encoding(self) -> Encoding | None:
        """As of `ApiBackend`; that of OpenAI's own models, if `tiktoken` is installed."""
        own = self.options.azure or _OFFICIAL in self.identity
        return self.options.encoding or (_encoding_of(self.options.model) if own else None)

    # -- requests ------------------------------------------------------------------------------------

    def ask(self, request: ApiRequest, emit: Callable[[Event], None]) -> Awaitable[ApiAnswer]:
        """As of `ApiBackend`; in completions, turns are written by the template and end with its stops."""
        if self.tokenizer is None:
            return super().ask(request, emit)
        return self._ask_text(request, emit, self.tokenizer)

    async def _ask_text(
        self, request: ApiRequest, emit: Callable[[Event], None], tokenizer: TextTokenizer
    ) -> ApiAnswer:
        template = self.options.chat_template
        assert template is not None
        request = _as_text(request, tokenizer, template)
        if isinstance(request.node, GenNode) and request.node.ahead and not request.node.fused:
            return await self.ask_jointly(request, emit, template.stops)
        return await super().ask(request, emit)

    def ask_one(self, request: ApiRequest, emit: Callable[[Event], None]) -> Coroutine[Any, Any, ApiAnswer]:
        """As of `ApiBackend`; where given text can be scored, choices are."""
        if isinstance(request.node, SelectNode) and self.model.scores_tokens:
            return self._scored(request)
        return super().ask_one(request, emit)

    async def _scored(self, request: ApiRequest) -> ApiAnswer:
        body = echo(request, self.options.model)

        async def attempt(client: Any) -> tuple[list[EchoedText], Usage]:
            made = await self.create(client, body.fields)
            with Reading():
                made = _whole(made)
                replies = [echoed(choice.get("logprobs")) for choice in _choices(made)]
                usage = usage_of(made.get("usage"))
            if len(replies) != len(body.fields["prompt"]):
                raise Trouble(f"the answer is malformed: it has {len(replies)} choices")
            return replies, usage

        (replies, usage), tries = await self.tried(request, body, attempt)
        return scored(request, replies, replace(usage, calls=tries))

    def bodies(self, request: ApiRequest) -> tuple[RequestBody, ...]:
        """As of `ApiBackend`."""
        return bodies(request, self.model, self.options.model, self._steering)

    def create(self, client: Any, fields: Mapping[str, Any]) -> Awaitable[Any]:
        """The answer as the JSON it is, or a stream of such.

        The SDK's `create` looks through what is asked by its types, and makes objects of its own of the answer,
        which takes as long as everything else that it does.
        """
        body = dict(in_dialect(fields, self._dialect))
        options = {"extra_json": body.pop("extra_body", None), "security": {"bearer_auth": True}}
        path = "/chat/completions" if self.model.protocol == "chat" else "/completions"
        streaming: dict[str, Any] = {}
        if body.get("stream"):
            import openai

            streaming = {"stream": True, "stream_cls": openai.AsyncStream[object]}
        made: Awaitable[Any] = client.post(path, body=body, options=options, cast_to=object, **streaming)
        return made

    async def whole(self, client: Any, body: RequestBody) -> Answer:
        """As of `ApiBackend`."""
        made = await self.create(client, body.fields)
        with Reading():
            made = _whole(made)
            read = partial(reply_of, protocol=self.model.protocol)
            replies = [or_why_not(read, choice) for choice in _choices(made)]
            return Answer(tuple(replies), usage_of(made.get("usage")))

    async def pieces(self, client: Any, body: RequestBody) -> AsyncIterator[Piece]:
        """As of `ApiBackend`."""
        chat, refusal = self.model.protocol == "chat", ""
        read = partial(piece_of, protocol=self.model.protocol)
        asked = {**body.fields, "stream": True, "stream_options": {"include_usage": True}}
        chunks = await self.create(client, asked)
        async with reading(chunks, "choices"):
            async for chunk in chunks:
                with Reading():
                    choices = chunk.get("choices") or ()
                    pieces = [piece_or_why_not(read, choice) for choice in choices]
                    if usage := chunk.get("usage"):
                        pieces.append(Piece(usage=usage_of(usage)))
                    for choice in choices if chat else ():
                        refusal += (choice.get("delta") or {}).get("refusal") or ""
                for piece in pieces:
                    yield piece
        if refusal:
            yield Piece(why=Unanswered(f"the model refuses: {refusal}"))

    def trouble(self, error: Exception) -> Exception:
        """As of `ApiBackend`."""
        import openai

        if isinstance(error, openai.BadRequestError) and error.code == "content_filter":  # Azure's of prompts
            return Unanswered(PROMPT_BLOCKED)
        return sdk_trouble(openai, error)

    # -- the connection ------------------------------------------------------------------------------

    def connect(self) -> Client:
        """As of `ApiBackend`."""
        name = f"{self.kind}:{self.options.model}"
        try:
            import openai
        except ImportError as error:
            raise missing(name, "openai", "openai", error) from None
        given = {"timeout": timeouts(openai, self.options.patience), **self.options.client, "max_retries": 0}
        for each in ("api_key", "azure_ad_token_provider"):
            if callable(given.get(each)):
                given[each] = _awaited(name, each, given[each])
        hint = "set `OPENAI_API_KEY`, and `OPENAI_BASE_URL` for a server of your own"
        if self.options.azure:
            hint = f"set `{_AZURE_ENDPOINT}` and `{_AZURE_KEY}`"
        if self.options.dialect:
            hint = f"set `{self._dialect.key}`"
            # An empty one is refused as a missing one, and OpenAI's own is not for others.
            key = os.environ.get(self._dialect.key, "")
            given = {"base_url": self._dialect.url, "api_key": key, **given}
            if not given["api_key"]:
                raise unreachable(name, ValueError("there is no key"), hint)
        see_options(name, openai.AsyncAzureOpenAI if self.options.azure else openai.AsyncOpenAI, given)
        try:
            client: Any = self._azure_client(name, given) if self.options.azure else openai.AsyncOpenAI(**given)
        except (openai.OpenAIError, ImportError, ValueError) as error:  # the latter of proxies
            raise unreachable(name, error, hint) from None
        see_keys(name, client.api_key)
        return client, client.close

    def _azure_client(self, name: str, given: dict[str, Any]) -> Any:
        import openai

        if given.get("api_version") or os.environ.get("OPENAI_API_VERSION"):
            return openai.AsyncAzureOpenAI(**given)
        given.pop("api_version", None)
        endpoint = str(given.pop("azure_endpoint", None) or os.environ.get(_AZURE_ENDPOINT) or "")
        if not (endpoint or given.get("base_url")):
            raise openai.OpenAIError("there is no endpoint")
        root = endpoint.rstrip("/").removesuffix("/v1").removesuffix("/openai")
        given.setdefault("base_url", f"{root}/openai/v1/")
        # Here a token of Entra's is sent as a key is. What is given goes before the environment, and there the
        # token goes before the key, as with a version.
        keys = [key for each in _AZURE_GIVEN if (key := given.pop(each, None))]
        if len(keys) > 1:
            raise openai.OpenAIError(
                f"only one of {', '.join(f'`{each}`' for each in _AZURE_GIVEN)} can be given"
            )
        keys += [key for each in (_AZURE_TOKEN, _AZURE_KEY) if (key := os.environ.get(each))]
        if not keys:  # the SDK would take OpenAI's own
            raise openai.OpenAIError("there is no key")
        given["api_key"] = keys[0]
        see_options(name, openai.AsyncOpenAI, given)  # what is left of Azure's needs a version
        return openai.AsyncOpenAI(**given)


def _awaited(name: str, given: str, provider: Callable[[], Any]) -> Callable[[], Awaitable[str]]:
    """What gives a key, or a token, in the form that the SDK awaits; SGLC541, it gives none."""
    hint = f"see that the function of `{given}` gives a text"

    async def key() -> str:
        try:
            made = provider()
            made = await made if isawaitable(made) else made
        except Exception as error:
            failed = ValueError(f"`{given}` failed: `{type(error).__name__}`: {error}")
            raise unreachable(name, failed, hint) from error
        if not isinstance(made, str) or not made:
            raise unreachable(name, ValueError(f"`{given}` gave no key"), hint)
        see_keys(name, made)
        return made

    return key


def _encoding_of(model: str) -> Encoding | None:
    """A model's tokenizer, which is fetched once; None if it cannot be had."""
    try:
        import tiktoken

        found: Encoding = tiktoken.encoding_for_model(model)
    except (ImportError, KeyError, OSError):
        return None
    return found


def _whole(made: Any) -> dict[str, Any]:
    """A whole answer's fields, also if the server does not call them JSON; none if it is something else."""
    if isinstance(made, str):
        with suppress(ValueError):
            made = json.loads(made)
    return made if isinstance(made, dict) else {}


def _choices(made: dict[str, Any]) -> list[Any]:
    """The choices of a whole answer, in order.

    Raises:
        Trouble: there are none.
    """
    choices = made.get("choices")
    if not choices and made.get("error"):
        raise told_trouble(made["error"])
    if not isinstance(choices, list) or not choices:
        raise Trouble("the answer is malformed: it has no choices")
    if len(choices) == 1:  # of which some servers do not say that it is the first
        return choices
    return sorted(choices, key=lambda choice: int(choice["index"]))


def _as_text(request: ApiRequest, tokenizer: TextTokenizer, template: ChatTemplate) -> ApiRequest:
    """The request with its prompt checked, and the template's own stop strings."""
    prompt, stops = Prompt(None, (tokenizer.text(request.prompt),)), template.stops
    behind = tuple([replace(one, node=stopped_by(one.node, stops)) for one in request.behind])
    return replace(request, prompt=prompt, node=stopped_by(request.node, stops), behind=behind)
