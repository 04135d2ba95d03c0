"""SGLang's classes of back ends that are reached over the network. Each connects with its first use."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from sglc.backends.anthropic import AnthropicBackend, AnthropicOptions
from sglc.backends.gemini import GeminiBackend, GeminiOptions
from sglc.backends.http import DIALECTS, ServerBackend, ServerOptions
from sglc.backends.litellm import LiteLLMBackend
from sglc.backends.models.vendor_rules import CLAUDE
from sglc.backends.openai import OpenAIBackend, OpenAIOptions
from sglc.backends.retry import Patience
from sglc.errors import UsageError
from sglc.frontend.language.chat_templates import ChatTemplate, get_chat_template
from sglc.frontend.locate import here
from sglc.ir.target import Encoding, Takes


class RuntimeEndpoint(ServerBackend):
    """An sglc or SGLang server at `base_url`. It is asked what it has with the first use.

    Args:
        api_key: sent as bearer token; that of `SGLC_API_KEY` without it.
        verify: of HTTPS: False, or a file of certificates.
        chat_template_name: a template that `register_chat_template` knows; the model's own without it.
        concurrency: requests at once; as many as the server says it runs without it.
        patience: how often and how long a request is tried.
        hints: how the server is told what follows a request: `sglc`, `sglang`, `vllm` or `dynamo`, "" for not
            at all; without it, as the server says that it takes them.

    Raises:
        UsageError: SGLC027, `hints` is none of these.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        verify: str | bool | None = None,
        chat_template_name: str | None = None,
        *,
        concurrency: int | None = None,
        patience: Patience | None = None,
        hints: str | None = None,
    ) -> None:
        if hints and hints not in DIALECTS:
            known = ", ".join(f"`{name}`" for name in DIALECTS)
            raise UsageError("SGLC027", f"`hints` cannot be `{hints!r}`", here(), note=f"it can be: {known}")
        options = ServerOptions(
            url=base_url,
            api_key=api_key,
            verify=True if verify is None else verify,
            chat_template=chat_template_name,
            concurrency=concurrency,
            patience=patience or Patience(),
            hints=hints,
        )
        super().__init__(options)
        self.base_url = base_url
        self.api_key = api_key
        self.verify = verify
        self.chat_template_name = chat_template_name


class OpenAI(OpenAIBackend):
    """A model of OpenAI's API, or of a server that speaks its protocol (`base_url=...`).

    Args:
        is_azure: the model is a deployment of Azure's (`azure_endpoint=...`).
        is_chat_model: False for the completions protocol; without it as the model's name says, else chat.
        chat_template: how turns are written where the protocol is completions, or the name of a registered one.
        takes, images: what the model takes, and whether pictures, where that is not known by its name.
        concurrency: requests at once.
        api_retries: requests more than there are generations, where `num_api_spec_tokens` has one request
            ask for several.
        patience: how often and how long a request is tried.
        encoding: the model's tokenizer, by which estimates count; of OpenAI's own models that of `tiktoken`.
        options: of the SDK's `AsyncOpenAI` (`api_key`, `base_url`, `organization`, `timeout`, ...).

    Raises:
        UsageError: SGLC029, no such template.
    """

    def __init__(
        self,
        model_name: str,
        is_chat_model: bool | None = None,
        chat_template: ChatTemplate | str | None = None,
        is_azure: bool = False,
        *,
        takes: Takes | None = None,
        images: bool | None = None,
        concurrency: int = 16,
        api_retries: int = 2,
        patience: Patience | None = None,
        encoding: Encoding | None = None,
        **options: Any,
    ) -> None:
        if isinstance(chat_template, str):
            chat_template = get_chat_template(chat_template)
        super().__init__(
            OpenAIOptions(
                model=model_name,
                chat=is_chat_model,
                chat_template=chat_template,
                takes=takes,
                images=images,
                concurrency=concurrency,
                api_retries=api_retries,
                patience=_patience(patience, options),
                encoding=encoding,
                client=options,
                azure=is_azure,
            )
        )
        self.model_name = model_name


class Crusoe(OpenAI):
    """A model of Crusoe's API, which speaks OpenAI's protocol; its key is `CRUSOE_API_KEY`."""

    def __init__(
        self, model_name: str, api_key: str | None = None, base_url: str | None = None,
        chat_template: ChatTemplate | str | None = None, **options: Any,
    ) -> None:  # fmt: skip
        key = api_key or os.environ.get("CRUSOE_API_KEY")
        super().__init__(
            model_name, chat_template=chat_template, api_key=key, base_url=base_url or _CRUSOE, **options
        )


_CRUSOE = "https://api.inference.crusoecloud.com/v1"


class Anthropic(AnthropicBackend):
    """A model of Anthropic's API.

    Args:
        takes, images: what the model takes, and whether pictures, where that is not known by its name.
        concurrency: requests at once.
        api_retries: as of `OpenAI`.
        patience: how often and how long a request is tried.
        options: of the SDK's `AsyncAnthropic` (`api_key`, `base_url`, `timeout`, ...).
    """

    def __init__(
        self, model_name: str, *, takes: Takes | None = None, images: bool | None = None, concurrency: int = 16,
        api_retries: int = 2, patience: Patience | None = None, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(
            AnthropicOptions(
                model=model_name,
                takes=takes,
                images=images,
                concurrency=concurrency,
                api_retries=api_retries,
                patience=_patience(patience, options),
                client=options,
            )
        )
        self.model_name = model_name


class VertexAI(GeminiBackend):
    """A model on Vertex AI: Google's, or by its name Claude, which is an `AnthropicBackend`.

    Without `project` it is that of the environment.

    Args:
        safety_settings: sent as they are.
        base_url: where the service is, if it is elsewhere.
        takes, images, concurrency, api_retries, patience: as of `Anthropic`.
        options: of the SDK's `Client` (`project`, `location`, `credentials`, `api_key`, ...); of Claude's
            `AsyncAnthropicVertex`.
    """

    def __new__(cls, model_name: str, *given: Any, **options: Any) -> Any:
        """Whichever speaks the model's protocol."""
        return _claude(model_name, *given, **options) if model_name.startswith(CLAUDE) else super().__new__(cls)

    def __init__(
        self, model_name: str, safety_settings: Sequence[Mapping[str, Any]] | None = None, *,
        base_url: str | None = None, takes: Takes | None = None, images: bool | None = None,
        concurrency: int = 16, api_retries: int = 2, patience: Patience | None = None, **options: Any,
    ) -> None:  # fmt: skip
        if "api_key" not in options:
            options = {**_place(), **options}
        super().__init__(
            GeminiOptions(
                model=model_name,
                vertex=True,
                safety_settings=safety_settings,
                base_url=base_url,
                takes=takes,
                images=images,
                concurrency=concurrency,
                api_retries=api_retries,
                patience=_patience(patience, options),
                client=options,
            )
        )
        self.model_name = model_name


def _place() -> dict[str, str]:
    """SGLang's names for the place; the SDK has its own."""
    named = {"project": os.environ.get("GCP_PROJECT_ID"), "location": os.environ.get("GCP_LOCATION")}
    return {name: value for name, value in named.items() if value}


def _claude(
    model_name: str, safety_settings: Sequence[Mapping[str, Any]] | None = None, *,
    base_url: str | None = None, takes: Takes | None = None, images: bool | None = None,
    concurrency: int = 16, api_retries: int = 2, patience: Patience | None = None, **options: Any,
) -> AnthropicBackend:  # fmt: skip
    """Claude on Vertex AI, by the arguments of `VertexAI`.

    Raises:
        UsageError: SGLC027, `safety_settings`, which are for Google's models.
    """
    if safety_settings is not None:
        raise UsageError("SGLC027", f"`{model_name}` takes no `safety_settings`", here())
    theirs = {"project": "project_id", "location": "region"}
    client = {theirs.get(name, name): value for name, value in {**_place(), **options}.items()}
    return AnthropicBackend(
        AnthropicOptions(
            model=model_name,
            vertex=True,
            takes=takes,
            images=images,
            concurrency=concurrency,
            api_retries=api_retries,
            patience=_patience(patience, client),
            client=client if base_url is None else {**client, "base_url": base_url},
        )
    )


class LiteLLM(LiteLLMBackend):
    """A model by LiteLLM's name for it.

    Args:
        chat_template: taken for SGLang's sake: LiteLLM writes turns by itself.
        timeout: seconds of one attempt.
        max_retries: attempts beyond the first.
        default_headers: sent with every request.
        takes, images, concurrency, api_retries, patience: as of `Anthropic`.
        options: of `litellm.acompletion` (`api_base`, `api_version`, `vertex_project`, ...).
    """

    def __init__(
        self, model_name: str, chat_template: ChatTemplate | str | None = None, api_key: str | None = None,
        organization: str | None = None, base_url: str | None = None, timeout: float = 600,
        max_retries: int = 4, default_headers: Mapping[str, str] | None = None, *, takes: Takes | None = None,
        images: bool | None = None, concurrency: int = 16, api_retries: int = 2,
        patience: Patience | None = None, **options: Any,
    ) -> None:  # fmt: skip
        given = {
            "api_key": api_key, "organization": organization, "base_url": base_url,
            "extra_headers": default_headers,
        }  # fmt: skip
        super().__init__(
            OpenAIOptions(
                model=model_name,
                takes=takes,
                images=images,
                concurrency=concurrency,
                api_retries=api_retries,
                patience=patience or Patience(attempts=1 + max_retries, attempt_s=timeout),
                client={**options, **{name: value for name, value in given.items() if value is not None}},
            )
        )
        self.model_name = model_name


def _patience(given: Patience | None, options: dict[str, Any]) -> Patience:
    """How often a request is tried; the SDK's own option says it too, and the SDK itself tries once."""
    retries = int(options.pop("max_retries", 4))
    return given or Patience(attempts=1 + retries)
