"""What is remembered of texts has a bound in bytes, whatever strangers send."""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

import sglc as sgl
from sglc.ir.grammar.json_schema import enforced
from sglc.ir.grammar.regex import compile_regex
from sglc.ir.plan.segment import ExtendNode, NodeResult, OpenNode, Segment
from sglc.ir.remembered import remembered
from sglc.runtime.engine import wire
from sglc.runtime.tokenizer import tokenizer as tokenizers
from sglc.runtime.tokenizer.tokenizer import LocalTokenizer, by_words
from tests.oracle_backend import OracleBackend

TEXTS, CHARACTERS = 16, 100_000
MOST_BYTES = 1 << 19  # a third of all texts


def kept_bytes(work: Callable[[int], object]) -> int:
    """Bytes that are kept behind `work` with each of `TEXTS` numbers, but for those of the first one."""
    work(-1)
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(TEXTS):
            work(number)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def text_of(number: int) -> str:
    return f"{number:06}" + "x" * (CHARACTERS - 6)


def test_of_long_texts_only_a_few_are_remembered() -> None:
    called: list[str] = []
    function = remembered(3, 10, longer=2)(lambda text, *more: called.append(text))
    for text in ("a", "b", "long" * 3, "long" * 4, "a", "long" * 3):
        function(text)
    assert called == ["a", "b", "long" * 3, "long" * 4]
    for number in range(9):
        function(f"{number}")
        function(f"{number}" * 11)
    assert (function.kept, function.misses) == (3 + 2, 4 + 18)
    function.cache_clear()
    assert function.kept == 0


def test_what_an_engine_encodes() -> None:
    backend = OracleBackend()

    @sgl.function
    def behind(s: Any, topic: str) -> None:
        s += "About " + sgl.gen("first", max_tokens=1)
        s += topic + sgl.gen("second", max_tokens=1)

    def ask(number: int) -> None:
        result = behind.run(text_of(number), backend=backend)
        assert result.error().code == "SGLC440"  # the model has less room

    try:
        # Ids as a tuple and as bytes. Each thread on their way may hold those of its last row until another
        # comes, and the program is answered before they are let go: a quarter of all is what none may reach.
        assert kept_bytes(ask) < TEXTS // 4 * 12 * CHARACTERS
    finally:
        backend.close()


@pytest.mark.parametrize("where", ["words", "pieces"])
def test_what_a_tokenizer_encodes(
    default_tokenizer: LocalTokenizer, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizers, "_LETTERS", 5 * CHARACTERS)

    def encode(number: int) -> None:
        text = text_of(number)
        default_tokenizer.packed(text if where == "words" else f"{text}. And so on, {text}")

    assert kept_bytes(encode) < 5 * 5 * CHARACTERS + MOST_BYTES  # an id has four bytes


def test_as_many_letters_of_words_as_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def encode(word: str) -> bytes:
        asked.append(word)
        return b""

    monkeypatch.setattr(tokenizers, "_LETTERS", 1_000)
    words = by_words(encode)
    for _ in range(2):
        for number in range(9):
            words(f"{number:0100}")
    assert len(asked) == 9
    words("x" * 500)  # no room for it, and then all is forgotten
    words("x" * 500)
    words(f"{0:0100}")
    assert len(asked) == 9 + 3


def test_schemas() -> None:
    def enforce(number: int) -> None:
        enforced(json.dumps({"type": "string", "description": text_of(number)}))

    assert kept_bytes(enforce) < MOST_BYTES


def test_patterns() -> None:
    compile_regex.cache_clear()
    for number in range(4):
        compile_regex(f"{number}" + "(?:)" * 4_100)
    assert compile_regex.kept == 2


def test_what_segments_read() -> None:
    def decode(number: int) -> None:
        parts = (*[NodeResult(0)] * 10_000, f"{number}")
        segment = Segment((OpenNode(), ExtendNode(0, (*parts, *[NodeResult(0)] * number))))
        command = wire.decode_command(wire.encode_submit(1, segment))
        assert isinstance(command, wire.Submit)
        wire.decode_segment(command)

    assert kept_bytes(decode) < MOST_BYTES
