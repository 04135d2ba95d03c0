"""Models behind LiteLLM, which says OpenAI's chat protocol in the words of each vendor."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Mapping
from copy import deepcopy
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

from sglc.backends.models.vendor_rules import CLAUDE, PICTURES, ApiModel, litellm_model
from sglc.backends.openai.openai_backend import OpenAIBackend, OpenAIOptions
from sglc.backends.remote.api_backend import Client, missing
from sglc.backends.remote.connection import unreachable
from sglc.backends.remote.sdk_errors import network_trouble, said
from sglc.backends.retry import Trouble, asked_wait_s, status_trouble
from sglc.errors import UsageError

# Nothing is tried twice, and nothing left out that the vendor does not take.
_AS_IT_IS = {"num_retries": 0, "max_retries": 0, "drop_params": False}
# How LiteLLM, and the SDKs that it uses, say that they have no key to ask with.
_NO_KEY = re.compile(
    r"[Mm]issing (?:[\w-]+ ){0,3}(?:credentials|API[ _][Kk]ey)|api_key client option must be set"
)
_RETRY_INFO = re.compile(r'"retryDelay": *"([0-9.]+)s"')
_SAYS_ITSELF = ("model", "messages", "n", "stream", "stream_options", *_AS_IT_IS)  # not for keywords
# Where LiteLLM's streams keep the vendor's word for why an answer ended; else they say one of their own.
_ENDED = ("received_finish_reason", "intermittent_finish_reason", "received_any_finish_reason")


class LiteLLMBackend(OpenAIBackend):
    """Runs segments on one model by LiteLLM's name. `client`: keywords of `litellm.acompletion`."""

    cannot: ClassVar[Mapping[str, Any]] = {**OpenAIBackend.cannot, "picture_roles": ("user",)}

    def __init__(self, options: OpenAIOptions) -> None:
        super().__init__(options)
        self.kind = "litellm"

    def usual_model(self) -> ApiModel:
        """By the table."""
        return litellm_model(f"litellm:{self.options.model}")

    @cached_property
    def model(self) -> ApiModel:
        """As of `ApiBackend`; Claude takes pictures of some types alone, whatever is claimed."""
        made = super().model
        if CLAUDE not in self.options.model:
            return made
        return replace(made, takes=replace(made.takes, pictures=PICTURES))

    @cached_property
    def identity(self) -> str:
        """Where the model is."""
        return str(self.options.client.get("base_url") or self.options.client.get("api_base") or "litellm")

    async def create(self, client: Any, fields: Mapping[str, Any]) -> Any:
        """As of `OpenAIBackend`."""
        more = fields.get("extra_body") or {}
        own = {key: value for key, value in fields.items() if key != "extra_body"}
        timeout = self.options.patience.attempt_s
        made = await client.acompletion(
            # A copy: it writes into what it is given.
            **deepcopy({"timeout": timeout, **self.options.client, **own, **more, **_AS_IT_IS})
        )
        return _chunks(made) if fields.get("stream") else made.model_dump(warnings=False)

    def trouble(self, error: Exception) -> Exception:
        """As of `ApiBackend`; what LiteLLM refuses by itself is refused for good, and so is a missing key."""
        import litellm

        if _NO_KEY.search(said(error)):
            lacks = litellm.validate_environment(self.options.model)["missing_keys"]
            hint = f"set {', '.join(f'`{name}`' for name in lacks)}" if lacks else "set the vendor's key"
            return unreachable(self.target.name, ValueError("there is no key"), hint)
        if isinstance(error, litellm.UnsupportedParamsError | litellm.BadRequestError):
            return Trouble(said(error), again=False)
        if isinstance(error, litellm.InternalServerError) and (broken := _network(error)) is not None:
            return broken
        if isinstance(error, litellm.APIError):  # of a status that has no class of its own
            return status_trouble(int(error.status_code), said(error), _headers(error))
        trouble = super().trouble(error)
        if isinstance(trouble, Trouble) and trouble.wait_s is None:
            trouble.wait_s = asked_wait_s(_waits(error))
        return trouble

    def connect(self) -> Client:
        """As of `ApiBackend`."""
        if own := next((name for name in self.options.client if name in _SAYS_ITSELF), None):
            note = "what is asked for, and how often, is not LiteLLM's to say"
            raise UsageError("SGLC027", f"`{self.target.name}` takes no `{own}`", note=note)
        for table in ("MODEL_COST_MAP", "ANTHROPIC_BETA_HEADERS"):  # which it else asks for over the network
            os.environ.setdefault(f"LITELLM_LOCAL_{table}", "True")
        try:
            import litellm
        except ImportError as error:
            raise missing(f"litellm:{self.options.model}", "litellm", "litellm", error) from None

        litellm.suppress_debug_info = True  # it would print it, where results go

        async def end() -> None:
            """Its clients are its own."""

        return litellm, end


def _network(error: BaseException | None) -> Exception | None:
    """What a failure of the network means that LiteLLM tells as one of the vendor's; None, if there is none."""
    while error is not None:
        if isinstance(error, Exception) and (found := network_trouble(error)) is not error:
            return found
        error = error.__cause__ or error.__context__
    return None


def _headers(error: Exception) -> Mapping[str, str]:
    """Those of the vendor's answer, which LiteLLM's own response of an error may lack."""
    return getattr(error, "litellm_response_headers", None) or {}


def _waits(error: Exception) -> Mapping[str, str]:
    """The headers, with the wait that Google says in the answer, of which the error's text is all there is."""
    delay = _RETRY_INFO.search(str(error))
    return {**({"retry-after": delay[1]} if delay else {}), **_headers(error)}


async def _chunks(stream: Any) -> AsyncIterator[Mapping[str, Any]]:
    """A stream as the data that the vendor has sent; not all have something that closes them.

    Raises:
        Trouble: an answer that had begun cannot be read, which LiteLLM calls a bad request.
    """
    import litellm

    begun = getattr(stream, "completion_stream", None) is not None  # else it is asked for with the first piece
    try:
        async for chunk in stream:
            begun = True
            yield _told(stream, chunk.model_dump(warnings=False))
    except litellm.BadRequestError as error:
        # Of those that have a class of their own a context may be too long, or a filter have stopped it.
        if begun and type(error) is litellm.BadRequestError:
            raise Trouble(f"the answer is malformed: {said(error)}") from None
        raise
    finally:
        if close := getattr(stream, "aclose", None) or getattr(stream, "close", None):
            await close()


def _told(stream: Any, chunk: dict[str, Any]) -> dict[str, Any]:
    """A chunk without what LiteLLM makes up: a reason for every end, and counts of tokens."""
    import litellm

    if not isinstance(stream, litellm.CustomStreamWrapper):
        return chunk
    if not any(getattr(stream, name, None) for name in _ENDED):
        chunk["choices"] = [{**choice, "finish_reason": None} for choice in chunk.get("choices") or ()]
    if not any(getattr(part, "usage", None) for part in stream.chunks):
        chunk["usage"] = None
    return chunk
