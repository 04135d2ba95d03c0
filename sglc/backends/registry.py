"""Back ends by name, as `--backend` and `backend=` take them."""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import Lock

from sglc.errors import Loc, UsageError
from sglc.ir.plan.backend import Backend
from sglc.knobs import model

_HERE = (
    "back ends here: local, local:MODEL, openai:MODEL, openai-completions:MODEL, azure:DEPLOYMENT, "
    "anthropic:MODEL, gemini:MODEL, vertex:MODEL, mistral:MODEL, openrouter:MODEL, litellm:MODEL, "
    "http[s]://HOST:PORT, grpc[s]://HOST:PORT, scripted:FILE"
)
# Where the SDKs go by their environments, and as whom, is a part of what is named.
_VARIABLES: dict[str, tuple[str, ...]] = {
    "openai": ("OPENAI_",), "openai-completions": ("OPENAI_",), "azure": ("AZURE_OPENAI_", "OPENAI_"),
    "anthropic": ("ANTHROPIC_",), "gemini": ("GEMINI_", "GOOGLE_"),
    "vertex": ("GOOGLE_", "GCLOUD_", "CLOUD_ML_", "ANTHROPIC_"),
    "mistral": ("MISTRAL_", "OPENAI_"), "openrouter": ("OPENROUTER_", "OPENAI_"),
}  # fmt: skip
_VARIABLES["litellm"] = tuple({prefix for several in _VARIABLES.values() for prefix in several})  # all vendors
_ENVIRONMENTS = 4  # of one model that stay connected: a run may still go on with what was replaced
_CONNECTED: dict[tuple[str, str, str], Backend] = {}
_TURN = Lock()


def connect(spec: str | None, *, device: str = "auto", dtype: str = "auto") -> Backend:
    """The back end that `spec` names, made once per process; nothing is loaded yet.

    Args:
        spec: `local` (the model of `SGLC_MODEL`, else the embedded default), or `local:MODEL` with a
            registry name, a directory, a GGUF file, a Hugging Face id or `dummy:CONFIG_DIR`;
            `scripted:FILE` answers from a file of rules; `openai:MODEL` is a model of OpenAI's API, or of the
            server at `OPENAI_BASE_URL` (`openai-completions:MODEL`: by its completions protocol);
            `azure:DEPLOYMENT`, `anthropic:MODEL`, `gemini:MODEL`, `vertex:MODEL` (Gemini, or Claude),
            `mistral:MODEL`, `openrouter:VENDOR/MODEL` and `litellm:MODEL` are models of these APIs;
            `http://HOST:PORT` is a server of sglc, SGLang, vLLM or llama.cpp, `grpc://HOST:PORT` one of sglc
            by its scheduler service (`grpcs:` with TLS).
        device: `auto`, `cpu` or `cuda`.
        dtype: `auto`, `float32`, `bfloat16` or `float16`.

    Raises:
        UsageError: SGLC012, an unknown name.
    """
    name, _, rest = (spec or "local").partition(":")
    if name == "scripted" and rest:
        from sglc.backends.scripted import read_script

        return _kept(("scripted", rest, ""), lambda: read_script(rest))
    if name in _VARIABLES and rest:
        said = sorted((key, text) for key, text in os.environ.items() if key.startswith(_VARIABLES[name]))
        key = (name, rest, repr(said))
        with _TURN:
            backend = _CONNECTED.pop(key, None) or _api(name, rest)
            _CONNECTED[key] = backend  # the newest use is the last
            old = [each for each in _CONNECTED if each[:2] == key[:2]][:-_ENVIRONMENTS]
            replaced = [_CONNECTED.pop(each) for each in old]
        for each in replaced:
            each.close()
        return backend
    if name in ("http", "https", "grpc", "grpcs") and rest.strip("/"):
        return _kept(("http", f"{name}:{rest}", ""), lambda: _server(f"{name}:{rest}"))
    if name != "local" or (spec or "").endswith(":"):
        raise UsageError(
            "SGLC012", f"no back end is called `{spec}`",
            note=_HERE,
            hint="for a model of your own: `local:MODEL`",
        )  # fmt: skip
    from sglc.backends.local import LocalBackend, LocalOptions

    key = (rest or model(), device, dtype)
    return _kept(key, lambda: LocalBackend(LocalOptions(*key)))


def connect_for(spec: str | None, loc: Loc | None) -> Backend:
    """`connect` for a program or a generation at `loc`, where its errors are."""
    try:
        return connect(spec)
    except UsageError as error:
        raise UsageError(error.code, error.message, loc, note=error.note, hint=error.hint) from None


def _kept(key: tuple[str, str, str], make: Callable[[], Backend]) -> Backend:
    """The back end of this key, made if there is none."""
    if key not in _CONNECTED:
        _CONNECTED[key] = make()
    return _CONNECTED[key]


def _api(kind: str, model: str) -> Backend:
    """A model of a vendor's API; Claude speaks Anthropic's protocol on Vertex AI too."""
    from sglc.backends.models.vendor_rules import CLAUDE

    if kind == "anthropic" or (kind == "vertex" and model.startswith(CLAUDE)):
        from sglc.backends.anthropic import AnthropicBackend, AnthropicOptions

        return AnthropicBackend(AnthropicOptions(model=model, vertex=kind == "vertex"))
    if kind in ("gemini", "vertex"):
        from sglc.backends.gemini import GeminiBackend, GeminiOptions

        return GeminiBackend(GeminiOptions(model=model, vertex=kind == "vertex"))
    from sglc.backends.litellm import LiteLLMBackend
    from sglc.backends.openai import OpenAIBackend, OpenAIOptions
    from sglc.backends.openai.dialects import DIALECTS

    if kind == "litellm":
        return LiteLLMBackend(OpenAIOptions(model=model))
    if kind in DIALECTS:
        return OpenAIBackend(OpenAIOptions(model=model, dialect=kind))
    chat = False if kind == "openai-completions" else None
    return OpenAIBackend(OpenAIOptions(model=model, chat=chat, azure=kind == "azure"))


def _server(url: str) -> Backend:
    from sglc.backends.http import ServerBackend, ServerOptions

    if url.startswith("grpc"):
        from sglc.backends.grpc import GrpcBackend

        return GrpcBackend(ServerOptions(url=url))
    return ServerBackend(ServerOptions(url=url))


def disconnect() -> None:
    """Close every back end that `connect` made: what still runs on one fails."""
    while _CONNECTED:
        _CONNECTED.popitem()[1].close()
