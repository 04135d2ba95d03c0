"""Back ends by name, as `--backend` and `backend=` take them."""

from __future__ import annotations

import os

from sglc.errors import UsageError
from sglc.ir.plan.backend import Backend
from sglc.knobs import model

# Named in design and documents, and not in this release.
_LATER = ("azure", "anthropic", "gemini", "vertex", "litellm")
_HERE = "back ends here: local, local:MODEL, openai:MODEL, http://HOST:PORT, scripted:FILE"
_CONNECTED: dict[tuple[str, str, str], Backend] = {}


def connect(spec: str | None, *, device: str = "auto", dtype: str = "auto") -> Backend:
    """The back end that `spec` names, made once per process; nothing is loaded yet.

    Args:
        spec: `local` (the model of `SGLC_MODEL`, else the embedded default), or `local:MODEL` with a
            registry name, a directory, a GGUF file, a Hugging Face id or `dummy:CONFIG_DIR`;
            `scripted:FILE` answers from a file of rules; `openai:MODEL` is a model of OpenAI's API, or of the
            server at `OPENAI_BASE_URL` (`openai-completions:MODEL`: by its completions protocol);
            `http://HOST:PORT` is an sglc or SGLang server.
        device: `auto`, `cpu` or `cuda`.
        dtype: `auto`, `float32`, `bfloat16` or `float16`.

    Raises:
        UsageError: SGLC012 an unknown name, SGLC013 a back end of a later release.
    """
    from sglc.backends.local import LocalBackend, LocalOptions

    name, _, rest = (spec or "local").partition(":")
    if name in _LATER:
        raise UsageError(
            "SGLC013", f"the back end `{name}` is not in this release",
            note=_HERE, hint="run on `local`",
        )  # fmt: skip
    if name == "scripted" and rest:
        return _scripted(rest)
    if name in ("openai", "openai-completions") and rest:
        return _openai(rest, chat=None if name == "openai" else False)
    if name in ("http", "https") and rest.strip("/"):
        return _server(f"{name}:{rest}")
    if name != "local" or (spec or "").endswith(":"):
        raise UsageError(
            "SGLC012", f"no back end is called `{spec}`",
            note=_HERE,
            hint="for a model of your own: `local:MODEL`",
        )  # fmt: skip
    key = (rest or model(), device, dtype)
    if key not in _CONNECTED:
        _CONNECTED[key] = LocalBackend(LocalOptions(*key))
    return _CONNECTED[key]


def _scripted(path: str) -> Backend:
    from sglc.backends.scripted import read_script

    key = ("scripted", path, "")
    if key not in _CONNECTED:
        _CONNECTED[key] = read_script(path)
    return _CONNECTED[key]


def _openai(model: str, *, chat: bool | None) -> Backend:
    from sglc.backends.openai import OpenAIBackend, OpenAIOptions

    # Where the SDK goes by its environment is a part of what is named.
    key = ("openai", model, f"{chat} {os.environ.get('OPENAI_BASE_URL', '')}")
    if key not in _CONNECTED:
        _CONNECTED[key] = OpenAIBackend(OpenAIOptions(model=model, chat=chat))
    return _CONNECTED[key]


def _server(url: str) -> Backend:
    from sglc.backends.http import ServerBackend, ServerOptions

    key = ("http", url, "")
    if key not in _CONNECTED:
        _CONNECTED[key] = ServerBackend(ServerOptions(url=url))
    return _CONNECTED[key]


def disconnect() -> None:
    """Close every back end that `connect` made: what still runs on one fails."""
    while _CONNECTED:
        _CONNECTED.popitem()[1].close()
