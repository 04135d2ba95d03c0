"""What goes wrong with requests to a server, as the trouble that it is for who asked."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from sglc.backends.remote.sdk_errors import unencodable
from sglc.backends.retry import Trouble, status_trouble
from sglc.errors import BackendError

FINAL = ("aborted", "timed_out")  # codes of errors with which a request is not to be asked again
_LINE_END = re.compile(rb"[\r\n]")
KEY_HINT = "set `SGLC_API_KEY` to a key of the server, or give it as `api_key=`"


def missing(error: ImportError, extra: str) -> BackendError:
    """The package is not here that a server is reached through."""
    return BackendError(
        "SGLC540", f"a server is reached through a package that is not here: {error}",
        hint=f"pip install 'sglc[{extra}]'",
    )  # fmt: skip


def address_of(url: str) -> str:
    """A server's URL for people: without the name and password that may stand in it."""
    return re.sub(r"//[^/]*@", "//", url.rstrip("/"))


async def events_of(response: Any) -> AsyncGenerator[str, None]:
    """The data of each event of a stream; the last one of those that are whole is `[DONE]`.

    Only CR and LF end a line here: in a text there may be others of Unicode's.
    """
    begun: list[bytes] = []  # the pieces of a line, which may be long
    async with aclosing(response.aiter_bytes()) as chunks:
        async for chunk in chunks:
            *ends, rest = _LINE_END.split(chunk)
            for end in ends:
                line = b"".join((*begun, end))
                begun.clear()
                if line.startswith(b"data:"):
                    yield _data(line)
            begun.append(rest)
    line = b"".join(begun)
    if line.startswith(b"data:"):
        yield _data(line)


def _data(line: bytes) -> str:
    return line.removeprefix(b"data:").decode("utf-8", "replace").strip()


def refused(response: Any) -> Trouble:
    """What an answer that is no success means."""
    try:
        data = response.json()
    except ValueError:
        data = {}
    error = data.get("error") if isinstance(data, Mapping) else None
    said = error.get("message") if isinstance(error, Mapping) else error
    trouble = status_trouble(response.status_code, str(said or response.text[:200]), response.headers)
    if response.status_code == 401:
        trouble.hint = KEY_HINT
    return trouble


def problem_of(error: Exception) -> Exception:
    """What an attempt's failure means; itself, if it is none of the network's."""
    import httpx2

    match error:
        case httpx2.TimeoutException():
            return Trouble("no answer in time")
        case httpx2.TransportError():
            return Trouble(f"the connection failed: {str(error) or type(error).__name__}")
        case json.JSONDecodeError() | httpx2.DecodingError():
            return Trouble("the answer is malformed")
        case _:
            return unencodable(error)
