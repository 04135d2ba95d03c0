"""An answer that an SDK reads as it comes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from sglc.backends.remote.sdk_errors import told_trouble
from sglc.backends.retry import Trouble

_NO_STREAM = "run it without `stream=True`"


@asynccontextmanager
async def reading(stream: Any, whole: str) -> AsyncIterator[None]:
    """While it is read; closed at the end, whether it was read to its own or not.

    A stream of the SDKs and the generator that it reads with hold each other, and closing the stream closes
    its connection only. What is left to a collection of garbage is closed on whatever thread that runs.

    Args:
        stream: what the SDK gave, or a client in the SDK's place.
        whole: the field that a whole answer has.

    Raises:
        Trouble: an error came in the stream's place, or all of the answer.
    """
    try:
        await _see_stream(stream, whole)
        yield
    finally:
        if (generator := getattr(stream, "_iterator", None)) is not None:
            await generator.aclose()
        await (getattr(stream, "aclose", None) or stream.close)()


async def _see_stream(stream: Any, whole: str) -> None:
    """See that what an SDK reads as a stream is one: an error, or all of the answer, may come instead.

    Args:
        whole: the field that a whole answer has.

    Raises:
        Trouble: it is none. Who answers all at once would do so again.
    """
    response = getattr(stream, "response", None)
    if response is None or not response.headers.get("content-type", "").startswith("application/json"):
        return
    try:
        made = json.loads(await response.aread())
    except (ValueError, RecursionError):
        return  # it may be a stream by a wrong name
    made = made if isinstance(made, dict) else {}
    if made.get(whole):
        raise Trouble(
            "the server answers all at once where a stream is asked for", again=False, hint=_NO_STREAM
        )
    if made.get("error"):
        raise told_trouble(made["error"])
