"""The back ends of vendors' APIs, each at a server of the test's own, with the vendors' own clients."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import sglc as sgl
from sglc.backends.openai import OpenAIBackend, OpenAIOptions
from sglc.backends.remote.api_backend import ApiBackend
from sglc.backends.retry import Patience
from tests.openai_server import Api

QUICK = Patience(attempts=4, first_wait_s=0.01, longest_wait_s=0.02, attempt_s=60, total_s=300)


def _openai(api: Api, model: str, **options: Any) -> ApiBackend:
    # A path of `/v1` at another address is a server of one's own; `takes` then says it is OpenAI's model.
    made = sgl.OpenAI(model, base_url=api.url, api_key="k", **options)
    if "takes" not in options:
        made.__dict__["identity"] = "https://api.openai.com/v1"
    return made


def _azure(api: Api, model: str, **options: Any) -> ApiBackend:
    return sgl.OpenAI(model, is_azure=True, azure_endpoint=_root(api), api_key="k", **options)


def _anthropic(api: Api, model: str, **options: Any) -> ApiBackend:
    return sgl.Anthropic(model, base_url=_root(api), api_key="k", **options)


def _gemini(api: Api, model: str, **options: Any) -> ApiBackend:
    from sglc.backends.gemini import GeminiBackend, GeminiOptions

    return GeminiBackend(GeminiOptions(model=model, base_url=_root(api), client={"api_key": "k"}, **options))


def _vertex(api: Api, model: str, **options: Any) -> ApiBackend:
    return sgl.VertexAI(model, base_url=_root(api), api_key="k", **options)


def _dialect(name: str) -> Callable[..., ApiBackend]:
    def made(api: Api, model: str, **options: Any) -> ApiBackend:
        client = {"base_url": f"{_root(api)}/{name}/v1", "api_key": "k"}
        return OpenAIBackend(OpenAIOptions(model=model, dialect=name, client=client, **options))

    return made


def _litellm(api: Api, model: str, **options: Any) -> ApiBackend:
    base = api.url if model.startswith("openai/") else _root(api)  # what LiteLLM puts behind it differs
    return sgl.LiteLLM(model, base_url=base, api_key="k", **options)


def _root(api: Api) -> str:
    return api.url.removesuffix("/v1")


MAKE: Mapping[str, Callable[..., ApiBackend]] = {
    "openai": _openai, "azure": _azure, "anthropic": _anthropic, "gemini": _gemini, "vertex": _vertex,
    "litellm": _litellm, "mistral": _dialect("mistral"), "openrouter": _dialect("openrouter"),
}  # fmt: skip
# LiteLLM wants older versions of other SDKs, so most environments have none.
HERE = tuple(
    kind for kind in MAKE if kind != "litellm" or importlib.util.find_spec("litellm")
)  # fmt: skip


@contextmanager
def at(api: Api, name: str, **options: Any) -> Iterator[ApiBackend]:
    """The back end `name` (`anthropic:MODEL`) at a server; it ends with the block."""
    kind, _, model = name.partition(":")
    backend = MAKE[kind](api, model, **{"patience": QUICK, **options})
    try:
        yield backend
    finally:
        backend.close()
