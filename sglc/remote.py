"""Back ends that a program can name and this release cannot reach: a server, and the vendors' APIs.

They are objects like any other back end: made without a connection, given to `run`, to `gen` or to
`set_default_backend`. The first compile or run on one is an error with the program's place.
"""

from __future__ import annotations

from typing import Any, NoReturn

from sglc.errors import Loc, UsageError
from sglc.frontend.locate import here
from sglc.ir.core import NOWHERE


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
            note="back ends here: local, local:MODEL", hint="run on `local`, or on `sglc.Runtime(...)`",
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


class RuntimeEndpoint(RemoteBackend):
    """An sglc or SGLang server at `base_url`."""

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        verify: str | bool | None = None,
        chat_template_name: str | None = None,
    ) -> None:
        super().__init__(f"RuntimeEndpoint({base_url!r})")
        self.base_url = base_url
        self.api_key = api_key
        self.verify = verify
        self.chat_template_name = chat_template_name


class _Vendor(RemoteBackend):
    def __init__(self, model_name: str, *args: Any, **options: Any) -> None:
        super().__init__(f"{type(self).__name__}({model_name!r})")
        self.model_name = model_name
        self.args = args
        self.options = options


class OpenAI(_Vendor):
    """A model of OpenAI's API, or of one that speaks it (`base_url=...`)."""


class Anthropic(_Vendor):
    """A model of Anthropic's API."""


class VertexAI(_Vendor):
    """A model on Google's Vertex AI."""


class LiteLLM(_Vendor):
    """A model by LiteLLM's name for it."""


class Crusoe(_Vendor):
    """A model of Crusoe's API."""
