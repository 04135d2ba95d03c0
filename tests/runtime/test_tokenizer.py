"""The tokenizer against transformers on the default model, and its own laws on small ones."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from sglc.errors import BackendError, RunError
from sglc.ir.sampling import Sampling
from sglc.ir.target import ControlText
from sglc.runtime.engine.kept_constraints import kept_constraints
from sglc.runtime.tokenizer.tokenizer import LocalTokenizer, load_tokenizer
from tests.runtime.tiny_model import CONTROL, tiny_tokenizer

_TEXTS = [
    "Hello, world!",
    "It's 12345 of 6789; 1 + 1 = 2, isn't it?",
    "a  5\n\n7 \t 8   \n  x",
    "  leading and trailing  ",
    "Grüße, 你好, こんにちは, 안녕, مرحبا, שלום, ½ ² ١٢٣",
    "👩‍👩‍👧‍👦 e\u0301 \u00e9 \u200b \ufeff \x00 \x7f",
    "def f(x):\n    return {'a': [x ** 2]}  # comment\r\n",
    "",
]
_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@pytest.fixture(scope="session")
def tokenizer(default_tokenizer: LocalTokenizer) -> LocalTokenizer:
    return default_tokenizer


@pytest.fixture(scope="session")
def reference(smollm2: Path):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(smollm2)


def _ids(tokenizer: LocalTokenizer, markup: str) -> list[int]:
    ids: list[int] = []
    for part in tokenizer.split_control(markup):
        ids += part.ids if isinstance(part, ControlText) else tokenizer.encode(part)
    return ids


def _folder(path: Path, raw: Tokenizer, **settings: object) -> Path:
    path.mkdir(exist_ok=True)
    raw.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return path


# -- the default model ---------------------------------------------------------------------------


@pytest.mark.parametrize("generate", [False, True])
@pytest.mark.parametrize("system", [None, "You are terse.", "Ünïcode 系统 42\n"])
def test_chats_equal_apply_chat_template(tokenizer, reference, system, generate) -> None:
    for count, shift in itertools.product([1, 2, 3, 5], range(len(_TEXTS))):
        roles = itertools.cycle(["user", "assistant"])
        contents = [_TEXTS[(shift + 3 * turn) % len(_TEXTS)] for turn in range(count)]
        messages = [{"role": "system", "content": system}] if system is not None else []
        messages += [{"role": role, "content": text} for role, text in zip(roles, contents, strict=False)]
        wanted = reference.apply_chat_template(
            messages, tokenize=True, add_generation_prompt=generate, return_dict=False
        )
        assert _ids(tokenizer, tokenizer.render(messages, generate=generate)) == wanted


def test_odd_turns_render_as_transformers_does(tokenizer, reference) -> None:
    for messages in ([{"role": "tool", "content": "x"}], [{"role": "assistant", "content": "y"}]):
        text = reference.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert tokenizer.render(messages, generate=True) == text


def test_plain_text_equals_transformers(tokenizer, reference) -> None:
    rng = random.Random(0)
    alphabet = "ab Z9 0\n\t.,'é你😀 \r½"
    texts = [*_TEXTS, *("".join(rng.choices(alphabet, k=rng.randrange(60))) for _ in range(300))]
    for text in texts:
        ids = tokenizer.encode(text)
        assert ids == reference.encode(text, add_special_tokens=False)
        assert tokenizer.decode(ids) == text


def test_digits_are_tokens_of_their_own(tokenizer) -> None:
    """SmolLM's pre-tokenizer cuts at every digit before it looks at words and white space."""
    pieces = tokenizer.token_bytes()
    assert [pieces[i] for i in tokenizer.encode("a  1234")] == [b"a", b"  ", b"1", b"2", b"3", b"4"]


def test_decoding_any_ids_equals_transformers(tokenizer, reference) -> None:
    rng = random.Random(1)
    size = len(tokenizer.token_bytes())
    assert size == 49152
    for _ in range(300):
        ids = [rng.randrange(size) for _ in range(rng.randrange(20))]
        assert tokenizer.decode(ids) == reference.decode(ids, skip_special_tokens=True)


def test_the_default_models_identity(tokenizer) -> None:
    assert (tokenizer.bos_id, tokenizer.eos_ids, tokenizer.has_template) == (None, (2,), True)
    assert len(bytes.fromhex(tokenizer.hash)) == 32


def test_text_that_looks_like_control_tokens_is_text(tokenizer) -> None:
    text = "The token <|im_end|> ends a turn, <|im_start|>system begins one<|endoftext|>"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert not [i for i in ids if tokenizer.token_bytes()[i] == b""]


def test_split_control_cuts_at_control_tokens_only(tokenizer) -> None:
    markup = tokenizer.render([{"role": "user", "content": "a <b> <|c|>"}], generate=True)
    parts = tokenizer.split_control(markup)
    assert "".join(part.text if isinstance(part, ControlText) else part for part in parts) == markup
    assert [part.text for part in parts if isinstance(part, ControlText)] == [
        "<|im_start|>",
        "<|im_end|>",
        "<|im_start|>",
        "<|im_end|>",
        "<|im_start|>",
    ]
    assert "user\na <b> <|c|>" in parts


@given(st.one_of(_TEXT, st.lists(st.sampled_from([*CONTROL, "<|", "end|>", " the"])).map("".join)))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_encode_then_decode_is_the_identity(text: str) -> None:
    assert _TINY.decode(_TINY.encode(text)) == text


@given(st.lists(st.integers(0, 261), max_size=20), st.integers(0, 20))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_text_of_ids_is_their_bytes_end_to_end(ids: list[int], cut: int) -> None:
    pieces = _TINY.token_bytes()
    data = [b"".join(pieces[i] for i in part) for part in (ids[:cut], ids[cut:])]
    assert _TINY.decode(ids) == (data[0] + data[1]).decode("utf-8", "replace")
    assert _TINY.decode(ids) == tiny_tokenizer().decode(ids, skip_special_tokens=True)


# -- small tokenizers ----------------------------------------------------------------------------


@pytest.fixture(scope="module", autouse=True)
def _tiny(tmp_path_factory: pytest.TempPathFactory) -> None:
    global _TINY
    _TINY = load_tokenizer(_folder(tmp_path_factory.mktemp("tiny"), tiny_tokenizer()))


_TINY: LocalTokenizer


def test_the_bytes_of_a_byte_level_vocabulary(tmp_path: Path) -> None:
    raw = tiny_tokenizer(AddedToken("<think> ü", special=False))
    tokenizer = load_tokenizer(_folder(tmp_path, raw))
    pieces = tokenizer.token_bytes()
    assert sorted(piece for piece in pieces if len(piece) == 1) == [bytes([byte]) for byte in range(256)]
    assert (pieces[0], pieces[1], pieces[-1]) == (b"", b"", "<think> ü".encode())
    # Not a control token: text may hold it, and it is one id there, as in transformers.
    assert tokenizer.encode("a<think> üb") == [*tokenizer.encode("a"), len(pieces) - 1, *tokenizer.encode("b")]
    assert tokenizer.split_control("<think> ü") == ("<think> ü",)


def test_a_padded_model_vocabulary_has_ids_without_text(tmp_path: Path) -> None:
    folder = _folder(tmp_path, tiny_tokenizer())
    (folder / "config.json").write_text('{"vocab_size": 300}')
    tokenizer = load_tokenizer(folder)
    assert len(tokenizer.token_bytes()) == 300
    assert tokenizer.decode([299, *tokenizer.encode("x"), 280]) == "x"


def test_control_tokens_that_swallow_white_space(tmp_path: Path) -> None:
    raw = tiny_tokenizer()
    raw.add_special_tokens([AddedToken("<l>", lstrip=True), AddedToken("<r>", rstrip=True), AddedToken("<lr>")])
    raw.add_special_tokens([AddedToken("<|end|>x", rstrip=True)])  # begins with another one
    tokenizer = load_tokenizer(_folder(tmp_path, raw))
    for markup in ["a <l> b", "a <r> \n b", "<r> <l>", "<l>  <r>  <lr> x", "<|end|>x  <|end|>y", "  <l>  "]:
        parts = tokenizer.split_control(markup)
        assert "".join(part.text if isinstance(part, ControlText) else part for part in parts) == markup
        assert _ids(tokenizer, markup) == raw.encode(markup, add_special_tokens=False).ids


def _sentencepiece(prepend_scheme: str) -> Tokenizer:
    vocab = {token: id_ for id_, token in enumerate(["<unk>", "<s>", "</s>"])}
    for byte in range(256):
        vocab[f"<0x{byte:02X}>"] = len(vocab)
    for token in ["▁", "a", "b", "▁a", "▁▁"]:
        vocab[token] = len(vocab)
    merges = [("▁", "a"), ("▁", "▁")]
    raw = Tokenizer(
        models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    raw.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend_scheme, split=False)
    raw.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    raw.add_special_tokens(["<unk>", "<s>", "</s>"])
    raw.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return raw


def test_a_sentencepiece_vocabulary(tmp_path: Path) -> None:
    raw = _sentencepiece("first")
    tokenizer = load_tokenizer(_folder(tmp_path, raw, bos_token="<s>", eos_token={"content": "</s>"}))
    pieces = tokenizer.token_bytes()
    vocab = raw.get_vocab()
    assert [pieces[vocab[token]] for token in ["<0x0A>", "▁a", "▁▁", "</s>"]] == [b"\n", b" a", b"  ", b""]
    assert (tokenizer.bos_id, tokenizer.eos_ids) == (1, (2,))
    for text in ["a", " a b\n", "a\u00e9😀", "   a", "</s>"]:
        assert tokenizer.decode(tokenizer.encode(text)) == text
    # In the middle of a sequence transformers puts no space before a piece of text, either.
    assert _ids(tokenizer, "<s>a</s>b") == raw.encode("<s>a</s>b", add_special_tokens=False).ids


def _spaced(kind: str) -> Tokenizer:
    """Puts a space before every piece of text between control tokens."""
    if kind == "ByteLevel":
        raw = tiny_tokenizer(AddedToken("<added>"))
        raw.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.ByteLevel(add_prefix_space=True)])
        return raw
    raw = _sentencepiece("always")
    if kind == "Prepend":
        raw.pre_tokenizer = None
        raw.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return raw


@pytest.mark.parametrize("kind", ["Prepend", "Metaspace", "ByteLevel"])
def test_a_space_is_put_before_what_begins_alone(tmp_path: Path, kind: str) -> None:
    raw = _spaced(kind)
    tokenizer = load_tokenizer(_folder(tmp_path, raw))
    spelled = tokenizer.token_bytes()
    for text in ["the", "a", " a b\n", "a\u00e9😀", "   a", "\na, b c"]:
        begun, within = tokenizer.encode(text), tokenizer.encode_within(text)
        assert begun == raw.encode(text, add_special_tokens=False).ids
        assert b"".join(spelled[id_] for id_ in within) == text.encode()
        assert begun != within or text.startswith(" ")
    assert tokenizer.encode_within("") == []
    constraint = kept_constraints(tokenizer, len(spelled)).of(Sampling(regex="a a"))
    assert constraint is not None
    assert constraint.only(constraint.start) == tokenizer.encode_within("a a")[0]


@pytest.mark.parametrize(
    ("settings", "bos_id"),
    [
        ({}, None),
        ({"bos_token": CONTROL[1]}, None),
        ({"bos_token": CONTROL[1], "add_bos_token": True}, 1),
        ({"bos_token": {"content": CONTROL[1]}, "add_bos_token": True}, 1),
        ({"bos_token": None, "add_bos_token": True}, None),
    ],
)
def test_bos_is_expected_where_the_settings_say_so(tmp_path: Path, settings, bos_id) -> None:
    assert load_tokenizer(_folder(tmp_path, tiny_tokenizer(), **settings)).bos_id == bos_id


def test_ends_of_a_turn_come_from_both_configs(tmp_path: Path) -> None:
    folder = _folder(tmp_path, tiny_tokenizer(), eos_token=CONTROL[0])
    assert load_tokenizer(folder).eos_ids == (0,)
    (folder / "config.json").write_text('{"eos_token_id": 7}')
    assert load_tokenizer(folder).eos_ids == (7,)
    (folder / "generation_config.json").write_text('{"eos_token_id": [9, 7]}')
    assert load_tokenizer(folder).eos_ids == (9, 7)
    (folder / "config.json").write_text('{"eos_token_id": [7, -1], "vocab_size": 9}')
    assert load_tokenizer(folder).eos_ids == (7,)  # the model never says what it lacks


def test_the_hash_is_that_of_vocabulary_and_template(tmp_path: Path) -> None:
    plain = load_tokenizer(_folder(tmp_path / "a", tiny_tokenizer())).hash
    assert load_tokenizer(_folder(tmp_path / "b", tiny_tokenizer(), model_max_length=7)).hash == plain
    assert load_tokenizer(_folder(tmp_path / "c", tiny_tokenizer(), chat_template="x")).hash != plain
    assert load_tokenizer(_folder(tmp_path / "d", tiny_tokenizer(AddedToken("x")))).hash != plain


# -- templates -----------------------------------------------------------------------------------

_CHAT = [{"role": "user", "content": "a<b>&'é"}, {"role": "assistant", "content": "c"}]


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m['content'] | trim }}{% endfor %}",
         "<|start|>[user]a<b>&'é[assistant]c"),
        ("{% for m in messages %}\n  {% if loop.last %}{% break %}{% endif %}\n{{ m.content }}\n{% endfor %}",
         "a<b>&'é\n"),
        ("{{ messages | tojson }}",
         '[{"role": "user", "content": "a<b>&\'é"}, {"role": "assistant", "content": "c"}]'),
        ("{{ messages[1] | tojson(indent=1) }}", '{\n "role": "assistant",\n "content": "c"\n}'),
        ("{% for m in messages %}{% generation %}{{ m.role }}{% endgeneration %};{% endfor %}",
         "user;assistant;"),
        ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
         "2"),
        ("{{ strftime_now('%Y') | length }}{{ tools is none }}{{ unknown is defined }}", "4TrueFalse"),
        ("{% if add_generation_prompt %}go{% endif %}", "go"),
    ],
)  # fmt: skip
def test_templates_find_what_they_expect(tmp_path: Path, template: str, text: str) -> None:
    from transformers import AutoTokenizer

    folder = _folder(
        tmp_path, tiny_tokenizer(), chat_template=template, bos_token=CONTROL[1], eos_token=CONTROL[0]
    )
    assert load_tokenizer(folder).render(_CHAT, generate=True) == text
    reference = AutoTokenizer.from_pretrained(folder)
    assert reference.apply_chat_template(_CHAT, tokenize=False, add_generation_prompt=True) == text


@pytest.mark.parametrize(
    ("settings", "older", "text"),
    [
        ({"bos_token": None}, {"bos_token": CONTROL[1]}, CONTROL[1] + "||"),
        ({"bos_token": CONTROL[0]}, {"bos_token": {"content": CONTROL[1]}}, CONTROL[1] + "||"),
        ({"bos_token": CONTROL[1], "added_tokens_decoder": {}}, {"bos_token": CONTROL[0]}, CONTROL[1] + "||"),
        ({"extra_special_tokens": {"image_token": CONTROL[0], "own": CONTROL[1]}}, {}, "|" + "|".join(CONTROL)),
        ({"image_token": CONTROL[0], "extra_special_tokens": ["x"]}, {}, f"|{CONTROL[0]}|"),
    ],
)
def test_where_names_of_tokens_are_found(tmp_path: Path, settings, older, text: str) -> None:
    from transformers import AutoTokenizer

    template = "{{ bos_token }}|{{ image_token }}|{{ own }}"
    folder = _folder(tmp_path, tiny_tokenizer(), chat_template=template, **settings)
    (folder / "special_tokens_map.json").write_text(json.dumps(older))
    assert load_tokenizer(folder).render(_CHAT, generate=True) == text
    assert AutoTokenizer.from_pretrained(folder).apply_chat_template(_CHAT, tokenize=False) == text


def test_where_a_template_is_found(tmp_path: Path) -> None:
    several = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    folder = _folder(tmp_path, tiny_tokenizer(), chat_template=several)
    assert load_tokenizer(folder).render(_CHAT, generate=False) == "D"
    (folder / "chat_template.json").write_text('{"chat_template": "J"}')
    assert load_tokenizer(folder).render(_CHAT, generate=False) == "J"
    (folder / "chat_template.jinja").write_text("F")
    assert load_tokenizer(folder).render(_CHAT, generate=False) == "F"


@pytest.mark.parametrize(
    ("template", "note"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{% for %}", "Expected an expression"),
        ("{{ messages[0].content + 1 }}", "str"),
    ],
)
def test_a_template_that_fails_is_an_error_of_the_back_end(tmp_path: Path, template: str, note: str) -> None:
    tokenizer = load_tokenizer(_folder(tmp_path, tiny_tokenizer(), chat_template=template))
    with pytest.raises(BackendError, match=note) as caught:
        tokenizer.render(_CHAT, generate=True)
    assert caught.value.code == "SGLC513"


def test_no_template(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(_folder(tmp_path, tiny_tokenizer()))
    assert not tokenizer.has_template
    with pytest.raises(BackendError, match="no chat template") as caught:
        tokenizer.render(_CHAT, generate=True)
    assert caught.value.code == "SGLC513"


# -- errors --------------------------------------------------------------------------------------


def test_half_a_surrogate_pair_cannot_be_encoded(tokenizer) -> None:
    with pytest.raises(RunError, match=r"ud83d.*\n.*character 2 of 4") as caught:
        tokenizer.encode("ab\ud83dc")
    assert caught.value.code == "SGLC430"


def test_missing_and_malformed_files(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match=r"holds no `tokenizer.json`") as caught:
        load_tokenizer(tmp_path)
    assert caught.value.code == "SGLC511"
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(BackendError, match="cannot be read") as caught:
        load_tokenizer(tmp_path)
    assert caught.value.code == "SGLC512"
    tiny_tokenizer().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text("[]")
    with pytest.raises(BackendError, match="not a JSON object") as caught:
        load_tokenizer(tmp_path)
    assert caught.value.code == "SGLC512"


def test_an_entry_outside_of_the_byte_alphabet_is_text_as_it_stands(tmp_path: Path) -> None:
    definition = json.loads(tiny_tokenizer().to_str())
    entries = ["你好", "Ġ好", "Ġ a", "é"]
    first = len(definition["model"]["vocab"])
    definition["model"]["vocab"] |= {text: id_ for id_, text in enumerate(entries, first) if text != "é"}
    raw = Tokenizer.from_str(json.dumps(definition))
    tokenizer = load_tokenizer(_folder(tmp_path, raw))
    ids = [raw.get_vocab()[text] for text in entries]
    assert [tokenizer.decode([id_]) for id_ in ids] == [raw.decode([id_]) for id_ in ids]
    assert tokenizer.decode(ids[:3]) == "你好Ġ好Ġ a"


def test_a_vocabulary_without_bytes_is_refused(tmp_path: Path) -> None:
    raw = Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    raw.decoder = decoders.WordPiece()
    tokenizer = load_tokenizer(_folder(tmp_path, raw))
    with pytest.raises(BackendError, match="WordPiece") as caught:
        tokenizer.token_bytes()
    assert caught.value.code == "SGLC512"


def test_neither_torch_nor_transformers_is_imported() -> None:
    code = (
        "import sys\n"
        "from sglc.runtime.model import gguf_model, registry\n"
        "from sglc.runtime.tokenizer import tokenizer\n"
        "print(sorted({'torch', 'transformers'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("text", ["x" * 50_000, "你好" * 20_000, "1 2 " * 10_000, "a\n" * 20_000])
def test_others_go_on_while_a_long_text_is_encoded(
    tokenizer: LocalTokenizer, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it is: it may have no place to be cut at. Here a thread goes on only when another lets it."""
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")  # as in the runtime's process and the server's
    turns, over = 0, False

    def go_on() -> None:
        nonlocal turns
        while not over:
            turns += 1
            time.sleep(0)

    other = threading.Thread(target=go_on)
    before = sys.getswitchinterval()
    sys.setswitchinterval(60.0)
    try:
        other.start()
        begun = turns
        ids = tokenizer.encode(text)
        gone_on = turns - begun
    finally:
        over = True
        sys.setswitchinterval(before)
        other.join()
    assert gone_on > 10
    assert ids == tokenizer._raw.encode(text, add_special_tokens=False).ids
