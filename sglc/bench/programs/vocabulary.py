"""Texts whose number of tokens is known, and a tokenizer for shapes that come without one.

A made-up tokenizer is byte-level BPE as real ones are: every one of its words, with the space before it, is
put together by merges, so encoding costs what it costs with a real one.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, product
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as RawTokenizer
from tokenizers import decoders, models, pre_tokenizers

from sglc import knobs
from sglc.bench.shapes import SHAPES
from sglc.ir.target import Tokenizer

_WORD = re.compile(rb" [a-z]{2,}")
_MOST_WORDS = 4096
_SPACE = "\u0120"  # how byte-level vocabularies write it
# From a consonant to a vowel, so inside a word no merge fits but that of its syllables.
_SYLLABLES = tuple(map("".join, product("bcdfghjklmnpqrstvwxyz", "aeiou")))
_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


class DrawnWords:
    """Words of a tokenizer that are one token each, wherever they stand behind another word."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        spelled = (text.decode() for text in tokenizer.token_bytes() if _WORD.fullmatch(text))
        self._words = tuple(islice((word for word in spelled if len(tokenizer.encode(word)) == 1), _MOST_WORDS))

    def text(self, generator: random.Random, tokens: int) -> str:
        """Random words, each with a space before it, that are `tokens` tokens."""
        return "".join(generator.choices(self._words, k=tokens))

    def ids(self, text: str) -> tuple[int, ...]:
        """The tokens of a text."""
        return tuple(self._tokenizer.encode(text))


def shape_folder(name: str) -> Path:
    """The folder of a shape of `SHAPES`, with a made-up tokenizer, for `dummy:FOLDER`. Made once."""
    folder = knobs.cache_dir() / "shapes" / name
    config = SHAPES[name]
    text = json.dumps(config)
    made = folder / "config.json"
    if made.is_file() and made.read_text(encoding="utf-8") == text:
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=folder.parent))
    special = {config["bos_token_id"]: "<|endoftext|>", config["eos_token_id"]: "<|im_end|>"}
    settings = {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>", "chat_template": _TEMPLATE}
    (staging / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    _tokenizer(int(str(config["vocab_size"])), special).save(str(staging / "tokenizer.json"))
    (staging / "config.json").write_text(text, encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)  # of another version
    staging.rename(folder)
    return folder


def _tokenizer(size: int, special: Mapping[Any, str]) -> RawTokenizer:
    """Byte-level BPE with `size` ids: the bytes, then words as `_merges` makes them."""
    taken = {**special, size - 1 if size - 1 not in special else size - 3: "<|im_start|>"}
    vocabulary: dict[str, int] = {text: id_ for id_, text in taken.items()}
    free = (id_ for id_ in range(size) if id_ not in taken)
    vocabulary |= {text: next(free) for text in sorted(pre_tokenizers.ByteLevel.alphabet())}
    merges: list[tuple[str, str]] = []
    for (left, right), id_ in zip(_merges(), free, strict=False):
        vocabulary[left + right] = id_
        merges.append((left, right))
    tokenizer = RawTokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(taken.values()))
    return tokenizer


def _merges() -> Iterator[tuple[str, str]]:
    """Syllables, then words of one, of two and of three of them."""
    yield from ((syllable[0], syllable[1]) for syllable in _SYLLABLES)
    words: Sequence[str] = [_SPACE]
    for _ in range(3):
        yield from product(words, _SYLLABLES)
        words = [word + syllable for word, syllable in product(words, _SYLLABLES)]
