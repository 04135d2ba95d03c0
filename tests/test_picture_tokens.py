"""Tokens of pictures: the vendors' own examples, heads of files, and models of which nothing is published."""

from __future__ import annotations

import base64
import struct

import pytest

from sglc.backends.models.picture_tokens import picture_size, picture_tokens


def uri(data: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def png(width: int, height: int) -> str:
    return uri(b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", width, height))


@pytest.mark.parametrize(
    ("target", "size", "tokens"),
    [
        ("openai:gpt-4o", (1024, 1024), 765), ("openai:gpt-4o-2024-08-06", (2048, 4096), 1105),
        ("azure:gpt-4o", (1024, 1024), 765), ("openai:gpt-4o-mini", (100, 100), 8500),
        ("openai:gpt-5", (512, 512), 210), ("openai:gpt-5-mini", (1024, 1024), 1659),
        ("openai:gpt-4.1-mini", (1800, 2400), 2353), ("anthropic:claude-opus-4-5", (200, 200), 64),
        ("anthropic:claude-opus-4-5", (1000, 1000), 1296), ("anthropic:claude-opus-4-5", (4000, 4000), 1568),
        ("vertex:claude-opus-4-8", (4000, 3000), 4784), ("gemini:gemini-2.5-flash", (300, 200), 258),
        ("gemini:gemini-2.5-flash", (960, 540), 6 * 258), ("vertex:gemini-3.6-flash", (960, 540), 1120),
    ],
)  # fmt: skip
def test_the_vendors_examples(target: str, size: tuple[int, int], tokens: int) -> None:
    known, unknown = picture_tokens(target, png(*size)), picture_tokens(target, "")
    assert known is not None
    assert known.low <= known.likely == tokens <= known.high
    if unknown is not None:  # a picture of any size lies within
        assert unknown.low <= known.likely <= unknown.high


@pytest.mark.parametrize("target", ["openai:gpt-5.2", "mistral:pixtral-large-latest", "openai:nobody", "local"])
def test_what_no_vendor_publishes_is_not_known(target: str) -> None:
    assert picture_tokens(target, png(8, 8)) is None


def test_sizes_stand_in_the_heads_of_files() -> None:
    frame = b"\xff\xe0" + struct.pack(">H", 4) + b"xx" + b"\xff\xc2" + struct.pack(">HBHH", 11, 8, 30, 40)
    assert picture_size(png(40, 30)) == (40, 30)
    assert picture_size(uri(b"\xff\xd8" + frame, "jpeg")) == (40, 30)
    assert picture_size(uri(b"GIF89a" + struct.pack("<HH", 40, 30), "gif")) == (40, 30)
    broken = [
        uri(b"\x89PNG"),
        uri(b"\xff\xd8\xff\xe0", "jpeg"),
        uri(b""),
        "data:image/png;base64,?",
        "https://x/y.png",
    ]
    assert [picture_size(one) for one in (*broken, png(0, 5))] == [None] * 6
