"""Text encoded in pieces has the ids that it has as a whole."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from sglc.bench.programs.vocabulary import shape_folder
from sglc.ir.plan.events import PackedIds
from sglc.runtime.model.registry import prepare
from sglc.runtime.tokenizer.pretokenizer import cuts_into_words, first_cut, in_pieces, last_cut, long_pieces
from sglc.runtime.tokenizer.tokenizer import LocalTokenizer, by_words, load_tokenizer
from tests.depth import at_depth, some_of

# As in the tokenizers of Qwen and of Llama 3.
_QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
_LLAMA = _QWEN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
_PARTS = st.sampled_from(
    ["the", " fox", " jumps", "Over", ",", ". ", ": ", ";", "'s", "'ll", " 's", "  ", "\n", " \n ", "12",
     " 345", "é", "e\u0301", " \u0301", "你好", " a", "\t", "-", "(", "<|im_end|>", "\u00a0", " \u0416"],
)  # fmt: skip
_TEXT = st.lists(_PARTS, max_size=60).map("".join) | st.text(
    st.characters(exclude_categories=["Cs"]), max_size=40
)


def split_by(pattern: str, raw: Tokenizer) -> Tokenizer:
    """The same vocabulary and merges behind another way to cut into words."""
    other = Tokenizer.from_str(raw.to_str())
    other.normalizer = normalizers.NFC()
    other.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return other


def whole(raw: Tokenizer, text: str) -> list[int]:
    return raw.encode(text, add_special_tokens=False).ids


def packed(raw: Tokenizer, text: str) -> bytes:
    return PackedIds.of(whole(raw, text)).packed


@pytest.fixture(scope="session", params=some_of(["default model", "made up", "qwen", "llama"], 1, 4))
def raw(request: pytest.FixtureRequest, default_tokenizer: LocalTokenizer) -> Tokenizer:
    raw: Tokenizer = default_tokenizer._raw
    match request.param:
        case "made up":
            return load_tokenizer(prepare(f"dummy:{shape_folder('tiny')}"))._raw
        case "qwen":
            return split_by(_QWEN, raw)
        case "llama":
            return split_by(_LLAMA, raw)
    return raw


@settings(max_examples=at_depth(12, 40, 1000), deadline=None, derandomize=True)
@given(text=_TEXT, more=_TEXT)
def test_pieces_are_the_whole(raw: Tokenizer, text: str, more: str) -> None:
    assert cuts_into_words(raw)
    words = by_words(lambda piece: packed(raw, piece))
    assert words(text) == packed(raw, text)
    long = text + " and then some more words" * 400 + more
    assert in_pieces(words)(long) == packed(raw, long)


@settings(max_examples=at_depth(12, 40, 1000), deadline=None, derandomize=True)
@given(text=_TEXT, more=_TEXT)
def test_a_text_may_be_cut_whatever_follows(raw: Tokenizer, text: str, more: str) -> None:
    for begun in (text, text + " and some more words" + text):
        cut = last_cut(begun)
        assert whole(raw, begun[:cut]) + whole(raw, begun[cut:] + more) == whole(raw, begun + more)
    assert cut


@settings(max_examples=at_depth(12, 40, 1000), deadline=None, derandomize=True)
@given(before=_TEXT, text=_TEXT)
def test_a_text_may_be_cut_whatever_is_before_it(raw: Tokenizer, before: str, text: str) -> None:
    for goes_on in (text, text + " and some more words" + text):
        cut, together = first_cut(goes_on), whole(raw, before + goes_on)
        assert not cut or whole(raw, before + goes_on[:cut]) + whole(raw, goes_on[cut:]) == together
    assert cut


def test_a_cut_far_from_the_end_is_found() -> None:
    assert last_cut("two words" + "0" * 5_000) == 3
    assert last_cut("0" * 5_000) == first_cut("0" * 5_000) == 0


def test_what_texts_begin_with_is_encoded_once(raw: Tokenizer) -> None:
    asked: list[str] = []

    def encode(piece: str) -> bytes:
        asked.append(piece)
        return packed(raw, piece)

    encoded = in_pieces(by_words(encode))
    shared = "".join(f" number {chr(97 + i % 26)}{chr(97 + i // 26)}x" for i in range(400))
    encoded(shared + " first end")
    assert len(asked) == 400 + 3  # every word once, and the last ones
    encoded(shared + " second end")
    assert asked[403:] == [" second"]


def test_texts_that_begin_alike_are_cut_alike() -> None:
    shared = " some words" * 200
    first, second = (list(long_pieces(shared + end, 256)) for end in (" and one end" * 9, " or two"))
    assert len(first) >= len(second) == len(shared) // 260
    assert first[: len(second)] == second


CHANGES = ["no words", "prefix", "across", "rstrip", "unigram", "dropout"]


@pytest.mark.parametrize("change", some_of(CHANGES, 1, len(CHANGES)))
def test_other_tokenizers_are_left_alone(change: str, default_tokenizer: LocalTokenizer) -> None:
    raw = Tokenizer.from_str(default_tokenizer._raw.to_str())
    assert cuts_into_words(raw)
    match change:
        case "no words":
            raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        case "prefix":
            raw.normalizer = normalizers.Prepend("\u2581")
        case "across":
            raw.add_tokens(["of the"])
        case "rstrip":
            from tokenizers import AddedToken

            raw.add_tokens([AddedToken("<tool>", rstrip=True)])
        case "unigram":
            raw.model = models.Unigram([("a", -1.0)], 0, False)
        case "dropout":
            raw.model.dropout = 0.5
    assert not cuts_into_words(raw)


def test_the_tokenizer_encodes_in_pieces(default_tokenizer: LocalTokenizer) -> None:
    tokenizer = default_tokenizer
    for text in ("Words, and more words: a text that goes on. " * 50, "Few words."):
        assert tokenizer.encode(text) == whole(tokenizer._raw, text)
        assert tokenizer.packed(text) == packed(tokenizer._raw, text)
    assert tokenizer._words is not None
