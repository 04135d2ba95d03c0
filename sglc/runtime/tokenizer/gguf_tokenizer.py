"""The `tokenizer.json` that a GGUF file's metadata stands for.

Invariants: token ids equal those of the model's original Hugging Face tokenizer. A GGUF file
names its pre-tokenizer instead of holding it; an unknown name is an error, never a guess.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sglc.errors import BackendError
from sglc.runtime.model_files import Json

# GGUF token types
_CONTROL, _USER_DEFINED = 3, 4

BYTE_LEVEL = "gpt2"  # the one kind of tokenizer that is known: byte-level BPE

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerSpec:
    """The metadata under `tokenizer.*`. `pre` names the pre-tokenizer; `types` are GGUF token types."""

    model: str
    pre: str
    tokens: Sequence[str]
    types: Sequence[int]
    merges: Sequence[tuple[str, str]]
    add_bos: bool
    bos_id: int | None
    eos_ids: tuple[int, ...]
    unk_id: int | None
    pad_id: int | None
    template: str | None


@dataclass(frozen=True, slots=True)
class _Split:
    """How a family cuts text into words before merging, and how it treats whole words."""

    normalizer: Json | None
    pre_tokenizer: Json
    ignore_merges: bool = False  # a word that is in the vocabulary is one token, whatever the merges


def unsupported(what: str, note: str) -> BackendError:
    """The error for a GGUF file that cannot be converted."""
    return BackendError(
        "SGLC516", f"{what} is not supported", note=note, hint="use the model's safetensors instead"
    )


def tokenizer_definition(spec: TokenizerSpec) -> Json:
    """The content of `tokenizer.json`.

    Raises:
        BackendError: not a byte-level BPE, or one whose pre-tokenizer is not known (SGLC516).
    """
    if spec.model != BYTE_LEVEL:
        raise unsupported(
            f"a GGUF tokenizer of kind `{spec.model}`", f"supported: `{BYTE_LEVEL}`, which is byte-level BPE"
        )
    split = _split(spec.pre)
    bos = spec.tokens[spec.bos_id] if spec.bos_id is not None else ""
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            _added_token(id_, token, special=kind == _CONTROL)
            for id_, (token, kind) in enumerate(zip(spec.tokens, spec.types, strict=True))
            if kind in (_CONTROL, _USER_DEFINED)
        ],
        "normalizer": split.normalizer,
        "pre_tokenizer": split.pre_tokenizer,
        "post_processor": _begin_with(bos, spec.bos_id) if spec.add_bos else _byte_level(),
        "decoder": _byte_level(),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": split.ignore_merges,
            "vocab": {token: id_ for id_, token in enumerate(spec.tokens)},
            "merges": [list(merge) for merge in spec.merges],
        },
    }


def tokenizer_settings(spec: TokenizerSpec) -> Json:
    """The content of `tokenizer_config.json`: named tokens and the chat template."""
    ids = {
        "bos_token": spec.bos_id,
        "eos_token": spec.eos_ids[0] if spec.eos_ids else None,
        "unk_token": spec.unk_id,
        "pad_token": spec.pad_id,
    }
    settings: Json = {name: spec.tokens[id_] for name, id_ in ids.items() if id_ is not None}
    settings |= {
        "add_bos_token": spec.add_bos,
        "clean_up_tokenization_spaces": False,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    if spec.template is not None:
        settings["chat_template"] = spec.template
    return settings


def _split(pre: str) -> _Split:
    match pre:
        case "smollm" | "starcoder" | "refact" | "command-r":
            digits: Json = {"type": "Digits", "individual_digits": True}
            return _Split(None, _sequence(digits, _byte_level(use_regex=True)))
        case "gpt-2":
            return _Split(None, _byte_level(use_regex=True))
        case "llama-bpe" | "llama3" | "llama-v3":
            return _Split(None, _sequence(_regex(_LLAMA3), _byte_level()), ignore_merges=True)
        case "qwen2" | "deepseek-r1-qwen":
            return _Split({"type": "NFC"}, _sequence(_regex(_QWEN2), _byte_level()))
        case _:
            raise unsupported(
                f"the GGUF pre-tokenizer `{pre}`",
                "supported: `smollm`, `starcoder`, `refact`, `command-r`, `gpt-2`, `llama-bpe`, `qwen2`, "
                "`deepseek-r1-qwen`",
            )


def _sequence(*steps: Json) -> Json:
    return {"type": "Sequence", "pretokenizers": list(steps)}


def _regex(pattern: str) -> Json:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _byte_level(*, use_regex: bool = False) -> Json:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def _begin_with(token: str, id_: int | None) -> Json:
    first = {"SpecialToken": {"id": token, "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [first, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [first, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {token: {"id": token, "ids": [id_], "tokens": [token]}},
    }


def _added_token(id_: int, content: str, *, special: bool) -> Json:
    return {
        "id": id_,
        "content": content,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": special,
    }
