"""Tokens that vendors count for a picture, by the formulas that they publish.

- OpenAI ("Images and vision", calculating costs): squares of 512 pixels behind a base, of a picture that fits
  into 2048 x 2048 and has a shorter side of 768; small models count patches of 32 pixels, at most 1,536, times
  a factor. Of models that are not listed there nothing is known.
- Anthropic ("Images and vision"): squares of 28 pixels, of a picture with a longer side of at most 1,568 pixels
  and at most 1,568 of them; models from 4.7 on take 2,576 and 4,784. It was width x height / 750 before.
- Google ("Understand and count tokens"; "Media resolution"): up to Gemini 2.5, 258 for each tile, and for a
  picture of at most 384 x 384; from Gemini 3 on at most 1,120 as long as nothing else is asked for.
"""

from __future__ import annotations

import base64
import math
import re
import struct
from dataclasses import dataclass

from sglc.backends.models.table import facts_of

Size = tuple[int, int]  # pixels: width, height

# Base and each square of 512 pixels; the first that the model's name begins with.
_TILES = (
    ("gpt-4o-mini", 2833, 5667), ("gpt-4o", 85, 170), ("gpt-4-turbo", 85, 170), ("o1", 75, 150),
    ("o3", 75, 150), ("computer-use-preview", 65, 129),
)  # fmt: skip
_WHOLE_TILES = {"gpt-4.1": (85, 170), "gpt-5": (70, 140), "gpt-5-chat-latest": (70, 140)}
_PATCHES = (
    ("gpt-4.1-mini", 1.62), ("gpt-4.1-nano", 2.46), ("o4-mini", 1.72), ("gpt-5-mini", 1.62),
    ("gpt-5-nano", 2.46),
)  # fmt: skip
_MOST_PATCHES = 1536
_DATE = re.compile(r"-\d{4}-\d{2}-\d{2}$")
_USUAL: Size = (1024, 1024)  # of a picture that is not known


@dataclass(frozen=True, slots=True)
class PictureTokens:
    """At least, at most, and what is expected."""

    low: int
    high: int
    likely: int


def picture_tokens(target: str, data: str) -> PictureTokens | None:
    """Of a picture on a model, by the name of its back end; None where the vendor does not say.

    Args:
        data: a data URI, or what is not known of one.
    """
    facts = facts_of(target)
    vendor, _, model = (facts.name if facts is not None else "").rpartition("/")
    model, size = _DATE.sub("", model), picture_size(data)
    if model.startswith("claude-"):
        return _claude(model, size)
    if vendor.startswith(("gemini", "vertex_ai")) and model.startswith("gemini-"):
        return _gemini(model, size)
    return _openai(model, size) if vendor.startswith(("openai", "azure")) else None


def _openai(model: str, size: Size | None) -> PictureTokens | None:
    factor = next((factor for name, factor in _PATCHES if model.startswith(name)), None)
    if factor is not None:
        tokens = math.ceil(_patches(size or _USUAL) * factor)
        return _exactly(tokens) if size else PictureTokens(1, math.ceil(_MOST_PATCHES * factor), tokens)
    tiles = next(
        ((base, tile) for name, base, tile in _TILES if model.startswith(name)), _WHOLE_TILES.get(model)
    )
    if tiles is None:
        return None
    base, tile = tiles
    if size is not None:
        return _exactly(base + tile * _squares(size))
    return PictureTokens(base + tile, base + 8 * tile, base + tile * _squares(_USUAL))  # 768 x 2048 at most


def _squares(size: Size) -> int:
    width, height = _fitting(size, 2048)
    scale = min(1.0, 768 / min(width, height))
    return math.ceil(width * scale / 512) * math.ceil(height * scale / 512)


def _patches(size: Size) -> int:
    """Of 32 pixels; a picture of more than 1,536 is scaled down to whole ones that are no more."""
    width, height = size[0] / 32, size[1] / 32
    if math.ceil(width) * math.ceil(height) <= _MOST_PATCHES:
        return math.ceil(width) * math.ceil(height)
    scale = math.sqrt(_MOST_PATCHES / (width * height))
    whole = min(math.floor(side * scale) / (side * scale) for side in (width, height))
    return math.prod(math.ceil(side * scale * whole - 1e-9) for side in (width, height))


def _claude(model: str, size: Size | None) -> PictureTokens:
    version = re.search(r"-(\d)(?:-(\d)\b)?", model)
    older = version is None or (int(version[1]), int(version[2] or 0)) < (4, 7)
    edge, most = (1568, 1568) if older else (2576, 4784)
    width, height = _fitting(size or _USUAL, edge)
    squares = min(math.ceil(width / 28) * math.ceil(height / 28), most)
    if size is None:
        return PictureTokens(1, most, squares)
    return PictureTokens(min(math.floor(width * height / 750), squares), squares, squares)


def _gemini(model: str, size: Size | None) -> PictureTokens | None:
    if not model.startswith(("gemini-1", "gemini-2")):
        return PictureTokens(1, 1120, 1120)
    if size is None:
        return None  # as many tiles as it is long
    if max(size) <= 384:
        return _exactly(258)
    unit = max(math.floor(min(size) / 1.5), 1)
    tiles = math.ceil(size[0] / unit) * math.ceil(size[1] / unit)
    return PictureTokens(258, 258 * tiles, 258 * tiles)


def _exactly(tokens: int) -> PictureTokens:
    return PictureTokens(tokens, tokens, tokens)


def _fitting(size: Size, edge: int) -> tuple[float, float]:
    """The size with a longer side of at most `edge`."""
    scale = min(1.0, edge / max(size))
    return size[0] * scale, size[1] * scale


def picture_size(uri: str) -> Size | None:
    """Pixels of a PNG, GIF or JPEG in a data URI, by its head; None of others, and of what is broken."""
    head, _, text = uri.partition(";base64,")
    if not head.startswith("data:image/"):
        return None
    try:
        data = base64.b64decode(text)
        if data.startswith(b"\x89PNG"):
            width, height = struct.unpack(">II", data[16:24])
        elif data.startswith(b"GIF8"):
            width, height = struct.unpack("<HH", data[6:10])
        else:
            width, height = _jpeg_size(data)
    except (ValueError, struct.error):
        return None
    return (width, height) if width and height else None


def _jpeg_size(data: bytes) -> Size:
    """By its first frame: segments up to there say how long they are. Raises ValueError if it is no JPEG."""
    at = 2
    while data.startswith(b"\xff\xd8") and data[at : at + 1] == b"\xff":
        kind, length = struct.unpack(">BH", data[at + 1 : at + 4])
        if 0xC0 <= kind <= 0xCF and kind not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">HH", data[at + 5 : at + 9])
            return width, height
        at += 2 + length
    raise ValueError("it is no JPEG")
