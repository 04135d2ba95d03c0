"""Pictures for a prompt: whatever a program has, as a data URI or the address that it is.

Nothing is fetched and nothing decoded: a URL stays a URL, and the kind of a file is told from its first bytes.
A file is read when the program runs, since it may be another one then: a plan calls `data_of` for its path.
"""

from __future__ import annotations

import base64
import io
import os
import re
import stat
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
# Of PIL's modes, those of colours that PNG lacks. Of numbers (`I`, `F`) only the program knows what is white.
_AS_PNG = dict.fromkeys(("CMYK", "YCbCr", "LAB", "HSV", "RGBX"), "RGB") | {"PA": "RGBA", "RGBa": "RGBA"}


def is_address(text: str) -> bool:
    """Whether a text says all of a picture, and is not the path of a file."""
    return text[:8].lower().startswith(_ADDRESSES)


def can_change(source: Any) -> bool:
    """Whether it is no text and no number, so that a later run may find another picture in it."""
    return isinstance(source, bytearray | memoryview | PathLike) or _is_pil(source)


def data_of(source: Any, loc: Loc | None = None) -> str:
    """A data URI (RFC 2397), or the URL that was given.

    Args:
        source: a path, the bytes of a file, a PIL image, an http(s) URL or a data URI.

    Raises:
        TraceError: SGLC118, a file that cannot be read, or no picture.
    """
    match source:
        case str() if is_address(source):
            return _data_uri(source, loc) if source[:5].lower() == "data:" else source
        case str() | PathLike():
            return _uri(_read(source, loc), f"`{shown(str(source))}`", loc)
        case bytes() | bytearray() | memoryview():
            return _uri(bytes(source), f"`{type(source).__name__}`", loc)
        case _ if _is_pil(source):
            return _uri(_encoded(source, loc), "the PIL image", loc)
        case _:
            raise TraceError(
                "SGLC118", f"`image` takes no `{type(source).__name__}`", loc,
                hint="give it a path, bytes, a PIL image, a URL or a data URI",
            )  # fmt: skip


def _is_pil(source: Any) -> bool:
    return type(source).__module__.partition(".")[0] == "PIL"


def _data_uri(uri: str, loc: Loc | None) -> str:
    """A data URI as APIs take it: of base64 alone, without line ends, percent signs or other letters.

    Raises:
        TraceError: SGLC118, it has no base64, or is no picture.
    """
    head, _, data = uri.partition(",")
    head = head.lower()
    data = re.sub(r"\s", "", unquote(data)).rstrip("=").replace("-", "+").replace("_", "/")
    data += "=" * (-len(data) % 4)
    what = "" if head.startswith("data:image/") else f"`{shown(head)}` is no picture"
    try:
        is_base64 = head.endswith(";base64") and base64.b64decode(data, validate=True) != b""
    except ValueError:  # also of what is no ASCII
        is_base64 = False
    if not is_base64:
        what = what or f"the data behind `{shown(head)}` is no base64"
    if what:
        raise TraceError("SGLC118", what, loc, hint="`data:image/png;base64,...`")
    return f"{head},{data}"


def _read(path: str | PathLike[str], loc: Loc | None) -> bytes:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # a device or a pipe may never end
            raise OSError("it is no file")
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:  # the latter of a path with a NUL
        why = getattr(error, "strerror", None) or error
        raise TraceError(
            "SGLC118", f"the picture `{shown(str(path))}` cannot be read: {why}", loc,
            hint="a relative path begins at the working directory; base64 begins with `data:image/png;base64,`",
        ) from None  # fmt: skip


def _encoded(picture: Any, loc: Loc | None) -> bytes:
    """A PIL image as the bytes of a PNG file, which loses nothing but a way to say colours that PNG lacks."""
    out = io.BytesIO()
    try:
        mode = _AS_PNG.get(picture.mode)
        (picture if mode is None else picture.convert(mode)).save(out, format="PNG")
    except Exception as error:  # its file is read only now, and may be broken or closed
        why = shown(str(error)) or type(error).__name__
        raise TraceError(
            "SGLC118", f"the PIL image cannot be written as a PNG file: {why}", loc,
            hint="`convert` it to the mode `RGB`, or give `image` the bytes of a file",
        ) from error  # fmt: skip
    return out.getvalue()


def _uri(content: bytes, what: str, loc: Loc | None) -> str:
    kind = next((kind for magic, kind in _KINDS if content.startswith(magic)), None)
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        kind = "image/webp"
    if kind is None:
        raise TraceError(
            "SGLC118", f"{what} is no picture that is known", loc, note="known: PNG, JPEG, GIF, WebP, BMP"
        )
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"
