"""SGLang's classes of back ends that are reached over the network.

`RuntimeEndpoint` and `OpenAI` are connected. The others can be named and not reached in this release:
they are objects like any other back end, and the first compile or run on one is an error with the
program's place.
"""

from __future__ import annotations

from typing import Any, NoReturn

from sglc.backends.http import ServerBackend, ServerOptions
from sglc.backends.openai import OpenAIBackend, OpenAIOptions
from sglc.backends.retry import Patience
from sglc.errors import Loc, UsageError
from sglc.frontend.language.chat_templates import ChatTemplate, get_chat_template
from sglc.frontend.locate import here
from sglc.ir.core import NOWHERE
from sglc.ir.target import Takes


class RuntimeEndpoint(ServerBackend):
    """An sglc or SGLang server at `base_url`. It is asked what it has with the first use.

    Args:
        api_key: sent as bearer token.
        verify: of HTTPS: False, or a file of certificates.
        chat_template_name: a template that `register_chat_template` knows; the model's own without it.
        concurrency: requests at once; as many as the server says it runs without it.
        patience: how often and how long a request is tried.
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
    ) -> None:
        options = ServerOptions(
            url=base_url,
            api_key=api_key,
            verify=True if verify is None else verify,
            chat_template=chat_template_name,
            concurrency=concurrency,
            patience=patience or Patience(),
        )
        super().__init__(options)
        self.base_url = base_url
        self.api_key = api_key
        self.verify = verify
        self.chat_template_name = chat_template_name


class OpenAI(OpenAIBackend):
    """A model of OpenAI's API, or of a server that speaks its protocol (`base_url=...`).

    Args:
        is_chat_model: False for the completions protocol; without it as the model's name says, else chat.
        chat_template: how turns are written where the protocol is completions, or the name of a registered one.
        takes, images: what the model takes, and whether pictures, where that is not known by its name.
        concurrency: requests at once.
        api_retries: requests more than there are generations, where `num_api_spec_tokens` has one request
            ask for several.
        patience: how often and how long a request is tried.
        options: of the SDK's `AsyncOpenAI` (`api_key`, `base_url`, `organization`, `timeout`, ...).

    Raises:
        UsageError: SGLC013, `is_azure`, which is not in this release; SGLC029, no such template.
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
        **options: Any,
    ) -> None:
        if is_azure:
            raise UsageError("SGLC013", "`OpenAI(is_azure=True)` is not in this release", here())
        if isinstance(chat_template, str):
            chat_template = get_chat_template(chat_template)
        tries = 1 + int(options.pop("max_retries", 4))
        super().__init__(
            OpenAIOptions(
                model=model_name,
                chat=is_chat_model,
                chat_template=chat_template,
                takes=takes,
                images=images,
                concurrency=concurrency,
                api_retries=api_retries,
                patience=patience or Patience(attempts=tries),
                client=options,
            )
        )
        self.model_name = model_name


class RemoteBackend:
    """What all of them are. `describe` is how errors call one."""

    def __init__(self, describe: str) -> None:
        self._describe = describe

    def __repr__(self) -> str:
        return f"<sglc {self._describe}>"

    def refusal(self, loc: Loc | None) -> UsageError:
        """Why nothing runs on it, for the program at `loc`."""
        return UsageError(
            "SGLC013", f"the back end `{self._describe}` is not in this release", loc,
            note="back ends here: local, local:MODEL, openai:MODEL, http://HOST:PORT",
            hint="run on one of these",
        )  # fmt: skip

    def _refuse(self) -> NoReturn:
        place = here()
        raise self.refusal(None if place == NOWHERE else place)

    @property
    def target(self) -> NoReturn:
        """Not known.

        Raises:
            UsageError: SGLC013, always.
        """
        self._refuse()

    def start(self) -> NoReturn:
        """Not possible: see `target`."""
        self._refuse()

    def submit(self, segment: object) -> NoReturn:
        """Not possible: see `target`."""
        self._refuse()

    def close(self) -> None:
        """Nothing to give back."""


class _Vendor(RemoteBackend):
    def __init__(self, model_name: str, *args: Any, **options: Any) -> None:
        super().__init__(f"{type(self).__name__}({model_name!r})")
        self.model_name = model_name
        self.args = args
        self.options = options


class Anthropic(_Vendor):
    """A model of Anthropic's API."""


class VertexAI(_Vendor):
    """A model on Google's Vertex AI."""


class LiteLLM(_Vendor):
    """A model by LiteLLM's name for it."""


class Crusoe(_Vendor):
    """A model of Crusoe's API."""
