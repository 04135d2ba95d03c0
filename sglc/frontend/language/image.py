"""Pictures for a prompt: whatever a program has, as a data URI or the address that it is.

Nothing is fetched and nothing decoded: a URL stays a URL, and the kind of a file is told from its first bytes.
"""

from __future__ import annotations

import base64
import io
import re
from os import PathLike
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from sglc.errors import Loc, TraceError, shown

_ADDRESSES = ("http://", "https://", "data:")
_KINDS = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"BM", "image/bmp"),
)


def data_of(source: Any, loc: Loc) -> str:
    """A data URI (RFC 2397), or the URL that was given.

    Args:
        source: a path, the bytes of a file, a PIL image, an http(s) URL or a data URI.

    Raises:
        TraceError: SGLC118, a file that cannot be read, or no picture.
    """
    match source:
        case str() if source.startswith(_ADDRESSES):
            return _data_uri(source, loc) if source.startswith("data:") else source
        case str() | PathLike():
            return _uri(_read(source, loc), f"`{source}`", loc)
        case bytes() | bytearray() | memoryview():
            return _uri(bytes(source), f"`{type(source).__name__}`", loc)
        case _ if type(source).__module__.partition(".")[0] == "PIL":
            return _uri(_encoded(source), "the PIL image", loc)
        case _:
            raise TraceError(
                "SGLC118", f"`image` takes no `{type(source).__name__}`", loc,
                hint="give it a path, bytes, a PIL image, a URL or a data URI",
            )  # fmt: skip


def _data_uri(uri: str, loc: Loc) -> str:
    """A data URI as APIs take it: of base64 alone, without line ends, percent signs or other letters.

    Raises:
        TraceError: SGLC118, it has no base64, or is no picture.
    """
    head, _, data = uri.partition(",")
    data = re.sub(r"\s", "", unquote(data)).rstrip("=").replace("-", "+").replace("_", "/")
    data += "=" * (-len(data) % 4)
    what = "" if head.startswith("data:image/") else f"`{shown(head)}` is no picture"
    try:
        is_base64 = head.lower().endswith(";base64") and base64.b64decode(data, validate=True) != b""
    except ValueError:  # also of what is no ASCII
        is_base64 = False
    if not is_base64:
        what = what or f"the data behind `{shown(head)}` is no base64"
    if what:
        raise TraceError("SGLC118", what, loc, hint="`data:image/png;base64,...`")
    return f"{head},{data}"


def _read(path: str | PathLike[str], loc: Loc) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise TraceError(
            "SGLC118", f"the picture `{path}` cannot be read: {error.strerror or error}", loc,
            hint="a relative path begins at the working directory",
        ) from None  # fmt: skip


def _encoded(picture: Any) -> bytes:
    """A PIL image as the bytes of a PNG file, which loses nothing."""
    out = io.BytesIO()
    picture.save(out, format="PNG")
    return out.getvalue()


def _uri(content: bytes, what: str, loc: Loc) -> str:
    kind = next((kind for magic, kind in _KINDS if content.startswith(magic)), None)
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        kind = "image/webp"
    if kind is None:
        raise TraceError(
            "SGLC118", f"{what} is no picture that is known", loc, note="known: PNG, JPEG, GIF, WebP, BMP"
        )
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"
