"""A model's tokenizer and chat template from the files beside its weights, on tokenizers and jinja2.

Invariants: ordinary text never becomes a control token; the text of ids is the text of their bytes
put end to end, so it does not matter how ids are cut into pieces; neither torch nor transformers
is imported.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer as RawTokenizer

from sglc.errors import BackendError, RunError
from sglc.ir.target import ControlText, Objects
from sglc.runtime.model_files import Json, damaged_hint, eos_ids, is_lfs_pointer, read_json
from sglc.runtime.tokenizer.pretokenizer import (
    BETWEEN,
    SHORT,
    Encode,
    cuts_into_words,
    first_cut,
    in_pieces,
    last_cut,
)

if TYPE_CHECKING:
    from sglc.runtime.tokenizer.chat_template import ChatTemplate

_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_WORDS, _LETTERS = 65_536, 4 << 20  # that are remembered: so many, with so many letters
_AT_ONCE = 1024  # characters that no other thread goes on while they are encoded
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """What the files of a model say about its tokenizer.

    `named` are `bos_token`, `eos_token`, ... and how they are written. `vocab_size` is the model's,
    which may be padded beyond the tokenizer's (0 if unknown).
    """

    definition: str  # tokenizer.json
    template: str | None
    named: tuple[tuple[str, str], ...]
    eos_ids: tuple[int, ...]
    add_bos: bool
    vocab_size: int = 0


@dataclass(frozen=True, slots=True)
class _Control:
    """A control token; whether it swallows the white space to its left and right."""

    id: int
    lstrip: bool
    rstrip: bool


class LocalTokenizer:
    """`sglc.ir.target.Tokenizer` over a `tokenizer.json` and a jinja2 chat template.

    Sentencepiece vocabularies: text is encoded as it stands in the middle of a sequence, without
    the space that such a tokenizer puts before a sequence's first word, because a stream's text
    may begin anywhere; `decode` strips no space either. Older ones, and byte-level ones that are told to, put
    that space before every piece of text between control tokens; `encode` still does, so that chats have
    transformers' ids, and `encode_within` does not.

    Fields:
        template: the chat template, jinja2. named: `bos_token`, `eos_token`, ... as it may write them.
        bos_id: the id that the model expects before raw text, if it expects one.
        eos_ids: ids that end a turn.
        hash: sha256 (hex) of `tokenizer.json` as it is written, the template, bos and eos ids.

    Raises:
        BackendError: `tokenizer.json` is malformed or of a kind without byte-exact text (SGLC512).
    """

    def __init__(self, files: TokenizerFiles) -> None:
        self._raw = _raw_tokenizer(files.definition)
        self.template = files.template
        self.named: Mapping[str, str] = dict(files.named)
        self._vocab_size = files.vocab_size
        added = sorted(self._raw.get_added_tokens_decoder().items())
        self._words, self._long = self._by_pieces()
        self._added = {id_: token.content for id_, token in added}
        self._control = {
            token.content: _Control(id_, token.lstrip, token.rstrip) for id_, token in added if token.special
        }
        self._cut = _control_pattern(self._control)
        self.bos_id = self._find_bos(files.add_bos)
        self.eos_ids = files.eos_ids or self._ids_of_named("eos_token")
        identity = [files.definition, files.template, list(self.eos_ids), self.bos_id]
        self.hash = hashlib.sha256(json.dumps(identity).encode()).hexdigest()

    def with_template(self, template: str) -> LocalTokenizer:
        """The same tokenizer under another chat template."""
        other = copy(self)
        other.__dict__.pop("_chat", None)  # compiled from the own one
        other.template = template
        other.hash = hashlib.sha256(json.dumps([self.hash, template]).encode()).hexdigest()
        return other

    def with_variables(self, variables: Mapping[str, Any]) -> LocalTokenizer:
        """The same tokenizer whose template reads these, too."""
        other = copy(self)
        other.__dict__["_chat"] = self._chat.with_variables(variables)
        return other

    @property
    def has_template(self) -> bool:
        """Whether the model comes with a chat template."""
        return self.template is not None

    @cached_property
    def control(self) -> Mapping[int, str]:
        """How each control token is written."""
        return {token.id: text for text, token in self._control.items()}

    def encode(self, text: str) -> list[int]:
        """Ids of ordinary text; nothing is added, and `<|im_end|>` inside it is ten characters of text.

        Raises:
            RunError: the text holds half of a surrogate pair (SGLC430).
        """
        return memoryview(self.packed(text)).cast("i").tolist()

    def packed(self, text: str, *, within: bool = False) -> bytes:
        """`encode`, or `encode_within`, as int32.

        Raises:
            RunError: as of `encode`.
        """
        if within:
            return self._within.packed(text)
        try:
            if self._words is None:
                return self._pack(text)
            return self._words(text) if len(text) <= SHORT else self._long(text)
        except TypeError:
            position = next(i for i, c in enumerate(text) if "\ud800" <= c <= "\udfff")
            raise RunError(
                "SGLC430",
                f"text with the lone surrogate `\\u{ord(text[position]):04x}` cannot be encoded",
                note=f"it is character {position} of {len(text)}",
                hint="decode the input as UTF-8, or with `errors='replace'`",
            ) from None

    def encode_within(self, text: str) -> list[int]:
        """`encode` for text that goes on behind other text."""
        return self._within.encode(text)

    def cut(self, text: str) -> int:
        """The last place of `text` up to which its ids are the same whatever follows; 0 if none is known."""
        return 0 if self._words is None else last_cut(text)

    def first_cut(self, text: str) -> int:
        """The first place of `text` behind which its ids are the same whatever is before; 0 if none is."""
        return 0 if self._words is None else first_cut(text)

    def encode_whole(self, text: str) -> list[int]:
        """`encode` in one go: the same ids, however often parts of the text have come."""
        # A batch begins a thread for each processor, which a program of the user's should not have from here.
        if len(text) <= _AT_ONCE or os.environ.get("TOKENIZERS_PARALLELISM") != "false":
            return self._raw.encode(text, add_special_tokens=False).ids
        return self._raw.encode_batch_fast([text], add_special_tokens=False)[0].ids

    def _pack(self, text: str) -> bytes:
        return array("i", self.encode_whole(text)).tobytes()

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, control tokens left out, invalid UTF-8 as U+FFFD."""
        table = self._token_bytes
        return b"".join([table[i] for i in ids]).decode("utf-8", "replace")

    def token_bytes(self) -> Sequence[bytes]:
        """Bytes of every id of the model, index = id; b'' for control tokens and padding."""
        return self._token_bytes

    def split_control(self, markup: str) -> tuple[str | ControlText, ...]:
        """Template output cut into ordinary text and control tokens, one token each.

        The pieces' texts add up to `markup`. White space that a token swallows is part of its text.
        """
        parts: list[str | ControlText] = []
        done = 0
        for match in self._cut.finditer(markup):
            token = self._control[match.group()]
            before, behind = markup[done : match.start()], markup[match.end() :]
            start = done + len(before.rstrip()) if token.lstrip else match.start()
            end = len(markup) - len(behind.lstrip()) if token.rstrip else match.end()
            if start > done:
                parts.append(markup[done:start])
            parts.append(ControlText(markup[start:end], (token.id,)))
            done = end
        if done < len(markup):
            parts.append(markup[done:])
        return tuple(parts)

    def render(self, messages: Objects, *, generate: bool, tools: Objects | None = None) -> str:
        """The chat template applied to `messages` (keys `role`, `content`); `generate` opens the answer.

        Raises:
            BackendError: there is no template, or it refuses the conversation (SGLC513).
        """
        return self._chat.render(messages, generate=generate, tools=tools)

    @cached_property
    def _within(self) -> LocalTokenizer:
        """The same tokenizer, which puts no space before a text."""
        steps = {"normalizer": self._raw.normalizer, "pre_tokenizer": self._raw.pre_tokenizer}
        spaced = {key: json.loads(step.__getstate__()) for key, step in steps.items() if step is not None}
        spaceless = {key: _without_space(step, always=True) for key, step in spaced.items()}
        if spaceless == spaced:
            return self
        other = copy(self)
        other._raw = _raw_tokenizer(json.dumps({**json.loads(self._raw.to_str()), **spaceless}))
        other._words, other._long = other._by_pieces()
        return other

    def _by_pieces(self) -> tuple[Encode | None, Encode]:
        """What encodes by words, if that gives the same ids, and what encodes long texts."""
        words = by_words(self._pack) if cuts_into_words(self._raw) else None
        return words, in_pieces(words or self._pack)

    @cached_property
    def _chat(self) -> ChatTemplate:
        if self.template is None:
            raise BackendError(
                "SGLC513", "this model has no chat template", hint="leave the roles out, or use a chat model"
            )
        from sglc.runtime.tokenizer.chat_template import ChatTemplate  # jinja2 is for chats

        return ChatTemplate(self.template, self.named)

    @cached_property
    def _token_bytes(self) -> tuple[bytes, ...]:
        vocab = self._raw.get_vocab(with_added_tokens=True)
        size = max(self._vocab_size, max(vocab.values(), default=-1) + 1)
        spell = _speller(self._raw)
        table = [b""] * size
        for token, id_ in vocab.items():
            if id_ not in self._added:
                table[id_] = spell(token)
        for id_, content in self._added.items():
            if content not in self._control:
                table[id_] = content.encode()
        return tuple(table)

    def _find_bos(self, add_bos: bool) -> int | None:
        # A post-processor that adds ids is the surest sign: it shows in what a text is encoded to.
        plain = self._raw.encode("a", add_special_tokens=False).ids
        framed = self._raw.encode("a", add_special_tokens=True).ids
        if framed and framed[: len(plain)] != plain:
            return framed[0]
        return next(iter(self._ids_of_named("bos_token")), None) if add_bos else None

    def _ids_of_named(self, name: str) -> tuple[int, ...]:
        id_ = self._raw.token_to_id(self.named[name]) if name in self.named else None
        return () if id_ is None else (id_,)


def by_words(encode: Encode) -> Encode:
    """`encode` word by word, which are remembered: the same ids, where a tokenizer cuts into words first."""
    word = _Words(encode).__getitem__
    behind_space = _Words(lambda piece: encode(" " + piece)).__getitem__

    def encoded(text: str) -> bytes:
        first, *others = BETWEEN.split(text)
        begins = behind_space(first[1:]) if first.startswith(" ") else word(first)
        return begins + b"".join(map(behind_space, others))

    return encoded


class _Words(dict[str, bytes]):
    """The ids of words. A dictionary is asked faster than one that knows what was asked for last."""

    def __init__(self, encode: Encode) -> None:
        self._encode = encode
        self._letters = 0

    def __missing__(self, word: str) -> bytes:
        ids = self._encode(word)
        self._letters += len(word)
        if len(self) >= _WORDS or self._letters > _LETTERS:
            self.clear()
            self._letters = 0
        else:
            self[word] = ids
        return ids


def load_tokenizer(folder: Path) -> LocalTokenizer:
    """The tokenizer of a model folder: `tokenizer.json`, and what the other JSON files there add.

    Raises:
        BackendError: no `tokenizer.json` (SGLC511), or a malformed file (SGLC512).
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise BackendError(
            "SGLC511",
            f"`{folder}` holds no `tokenizer.json`",
            note="text cannot be turned into tokens without one",
            hint="save the model with its fast tokenizer, or copy `tokenizer.json` into the folder",
        )
    if is_lfs_pointer(path):
        raise BackendError("SGLC512", f"`{path}` cannot be read", hint=damaged_hint(path))
    settings = read_json(folder / "tokenizer_config.json")
    vocab_size = read_json(folder / "config.json").get("vocab_size")
    return _kept(
        TokenizerFiles(
            definition=path.read_text(encoding="utf-8"),
            template=_find_template(folder, settings),
            named=tuple(_named(settings, read_json(folder / "special_tokens_map.json")).items()),
            eos_ids=eos_ids(folder),
            add_bos=settings.get("add_bos_token") is True,
            vocab_size=vocab_size if isinstance(vocab_size, int) else 0,
        )
    )


# Back ends of one model share its tokenizer, which nobody changes: it takes a fifth of a second to make.
_kept = lru_cache(maxsize=2)(LocalTokenizer)


def _raw_tokenizer(definition: str) -> RawTokenizer:
    try:
        if '"Metaspace"' in definition:
            data = json.loads(definition)
            definition = json.dumps({**data, "pre_tokenizer": _without_space(data.get("pre_tokenizer"))})
        raw = RawTokenizer.from_str(definition)
    except Exception as error:  # the library raises bare Exceptions
        raise BackendError(
            "SGLC512", f"`tokenizer.json` cannot be read: {error}", hint="fetch the model again"
        ) from None
    raw.no_truncation()
    raw.no_padding()
    raw.encode_special_tokens = True
    return raw


def _without_space(step: Any, *, always: bool = False) -> Any:
    """A normalizer or pre-tokenizer without the space before a sequence; `always`: nor before any other text.

    Of several pre-tokenizers `always` is for the first: behind it the space is put before every word.
    """
    match step:
        case {"pretokenizers": [first, *others]}:
            return {
                **step,
                "pretokenizers": [_without_space(first, always=always), *map(_without_space, others)],
            }
        case {"normalizers": list(steps)}:
            return {**step, "normalizers": [_without_space(each, always=always) for each in steps]}
        case {"type": "Metaspace", "prepend_scheme": scheme} if scheme == "first" or always:
            return {**step, "prepend_scheme": "never"}
        case {"type": "ByteLevel"} if always:
            return {**step, "add_prefix_space": False}
        case {"type": "Prepend"} if always:
            return {"type": "Sequence", "normalizers": []}
        case _:
            return step


def _control_pattern(contents: Iterable[str]) -> re.Pattern[str]:
    """Matches any of `contents`; where one begins another, the longer one."""
    longest_first = sorted(contents, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")


def _speller(raw: RawTokenizer) -> Callable[[str], bytes]:
    """The function from a vocabulary entry to its bytes, chosen by the decoder."""
    kinds = _decoder_kinds(json.loads(raw.decoder.__getstate__())) if raw.decoder else []
    if "ByteLevel" in kinds:
        return _byte_level
    if "ByteFallback" in kinds or "Metaspace" in kinds:
        return _sentencepiece
    raise BackendError(
        "SGLC512",
        f"tokens of a `{'/'.join(kinds) or 'missing'}` decoder have no bytes of their own",
        note="supported: byte-level BPE, and sentencepiece with byte fallback",
        hint="use a Llama, Mistral, Qwen or SmolLM model",
    )


def _decoder_kinds(decoder: Json) -> list[str]:
    inner = decoder.get("decoders")
    if isinstance(inner, list):
        return [kind for child in inner for kind in _decoder_kinds(child)]
    return [str(decoder.get("type"))]


def _byte_alphabet() -> dict[int, int]:
    """Code point -> byte. Printable Latin-1 stands for itself, other bytes follow from U+0100 up."""
    itself = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in itself]
    return {byte: byte for byte in itself} | {0x100 + n: byte for n, byte in enumerate(others)}


_ALPHABET = defaultdict(lambda: 0x100, _byte_alphabet())  # other characters are no Latin-1


def _byte_level(token: str) -> bytes:
    try:
        return token.translate(_ALPHABET).encode("latin-1")
    except UnicodeEncodeError:  # an entry outside of the alphabet is text as it stands
        return token.encode()


def _sentencepiece(token: str) -> bytes:
    byte = _BYTE_TOKEN.match(token)
    return bytes.fromhex(byte[1]) if byte else token.replace("\u2581", " ").encode()


def _find_template(folder: Path, settings: Json) -> str | None:
    jinja = folder / "chat_template.jinja"
    if jinja.is_file():
        return jinja.read_text(encoding="utf-8")
    template = read_json(folder / "chat_template.json").get("chat_template", settings.get("chat_template"))
    match template:
        case str():
            return template
        case list():  # several templates, by name
            named = {entry["name"]: entry["template"] for entry in template}
            return named.get("default")
        case _:
            return None


def _named(settings: Json, older: Json) -> dict[str, str]:
    """How the tokens are written that templates call by name.

    `older` is special_tokens_map.json: it counts for more where the settings do not list the tokens themselves.
    """
    both = {**older, **settings} if "added_tokens_decoder" in settings else {**settings, **older}
    extra = both.get("extra_special_tokens")
    own = extra if isinstance(extra, dict) else {}
    given = {**both, **own}
    names = dict.fromkeys((*_NAMED, *own, *(key for key in given if key.endswith("_token"))))
    return {name: text for name in names if (text := _content(given.get(name)))}


def _content(token: object) -> str | None:
    match token:
        case str():
            return token
        case {"content": str(content)}:
            return content
        case _:
            return None
