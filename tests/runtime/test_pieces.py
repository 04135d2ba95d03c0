"""Text encoded in pieces has the ids of the whole; what begins alike is encoded once."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from sglc.runtime.pieces import piecewise
from sglc.runtime.tokenizer import LocalTokenizer, load_tokenizer

# As the models' own files have them: GPT-2's is that of `ByteLevel`, the others split first.
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPLITS = {"gpt2": None, "llama3": _LLAMA3, "qwen": _QWEN, "o200k": _O200K}
_WORDS = (
    "the", "quick", "brown", "fox's", "isn't", "I'LL", "Don'T", "42", "3.14", "x2", "e\u0301t", "\u00e9", "A",
    "\n", "\n\n", "  ", "\t", "\r\n", "...", "(a", "b)", "\u4f60\u597d", "\U0001f469\u200d\U0001f467", "-", "",
)  # fmt: skip


def bpe(split: str | None, texts: list[str]) -> Tokenizer:
    raw = Tokenizer(models.BPE())
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None)
    cuts = [] if split is None else [pre_tokenizers.Split(Regex(split), "isolated")]
    raw.pre_tokenizer = pre_tokenizers.Sequence([*cuts, level])
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    raw.train_from_iterator(texts, trainer)
    return raw


def load(folder: Path, raw: Tokenizer) -> LocalTokenizer:
    folder.mkdir(exist_ok=True)
    raw.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({}))
    return load_tokenizer(folder)


def some_text(generator: random.Random, words: int) -> str:
    return "".join(
        generator.choice(_WORDS) + generator.choice((" ", " ", " ", "", "  ", "\n")) for _ in range(words)
    )


class Counted:
    """A tokenizer's `encode` that counts the characters it is given."""

    def __init__(self, tokenizer: LocalTokenizer) -> None:
        self.tokenizer = tokenizer
        self.characters = 0

    def __call__(self, text: str) -> list[int]:
        self.characters += len(text)
        return self.tokenizer.encode(text)


@pytest.fixture(scope="module", params=_SPLITS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LocalTokenizer:
    texts = [some_text(random.Random(seed), 200) for seed in range(20)]
    return load(tmp_path_factory.mktemp("bpe"), bpe(_SPLITS[request.param], texts))


def test_pieces_have_the_ids_of_the_whole(made: LocalTokenizer) -> None:
    encode = piecewise(made.encode, made.token_bytes())
    for seed in range(60):
        text = some_text(random.Random(seed), 400)
        assert list(encode(text)) == made.encode(text), repr(text)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=12), min_size=40, max_size=80))
def test_any_text_of_the_default_model(smollm2: Path, words: list[str]) -> None:
    tokenizer = load_tokenizer(smollm2)
    text = "".join(word + " and" for word in words)
    assert list(piecewise(tokenizer.encode, tokenizer.token_bytes())(text)) == tokenizer.encode(text)


def test_what_texts_begin_with_is_encoded_once(smollm2: Path) -> None:
    tokenizer = load_tokenizer(smollm2)
    counted = Counted(tokenizer)
    encode = piecewise(counted, tokenizer.token_bytes())
    prefix = "There is a long story that every question is about. " * 200
    counted.characters = 0  # without the probes
    for number in range(64):
        text = f"{prefix}Question {number}: who tells it?"
        assert list(encode(text)) == tokenizer.encode(text)
    assert counted.characters < len(prefix) + 64 * 330  # a rest of one piece at most, and the question


def test_a_tokenizer_with_tokens_of_several_words_takes_texts_whole(tmp_path: Path) -> None:
    raw = bpe(None, ["some words to be merged"] * 3)
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    raw.train_from_iterator(["some words to be merged" * 20] * 3, trainer)
    tokenizer = load(tmp_path, raw)
    counted = Counted(tokenizer)
    encode = piecewise(counted, tokenizer.token_bytes())
    text = "some words to be merged" * 40
    assert list(encode(text)) == tokenizer.encode(text)
    assert counted.characters == len(text)


def test_a_tokenizer_that_adds_a_space_takes_texts_whole() -> None:
    raw = bpe(None, ["some words to be merged"])
    raw.normalizer = normalizers.Prepend(" ")

    def encode_alone(text: str) -> list[int]:
        return raw.encode(text).ids

    text = "some words to be merged " * 40
    assert list(piecewise(encode_alone, [b""])(text)) == encode_alone(text)
