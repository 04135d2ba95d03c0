"""Configs and weights against what transformers saves."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from sglc.errors import BackendError
from sglc.runtime.model.config import RopeScaling, load_config, tensor_shapes
from sglc.runtime.model.registry import prepare
from sglc.runtime.model.rope import rope_frequencies
from sglc.runtime.model.weights import dummy_weights, load_weights
from sglc.runtime.tokenizer.tokenizer import load_tokenizer
from tests.runtime.tiny_model import save_tiny_model, tiny_model

_KINDS = ["llama", "mistral", "qwen2", "qwen3"]


def _edit(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    fields = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in fields.items() if value is not ...}))


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("shard", ["1GB", "10KB"])
def test_weights_equal_the_models_own(tmp_path: Path, kind: str, tied: bool, shard: str) -> None:
    model = tiny_model(kind, tie_word_embeddings=tied)
    model.save_pretrained(tmp_path, max_shard_size=shard)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == (shard == "10KB")
    config = load_config(tmp_path)
    weights = load_weights(tmp_path, config, torch.float32, "cpu")
    wanted = dict(model.named_parameters())
    assert weights.keys() == wanted.keys() == tensor_shapes(config).keys()
    for name, parameter in wanted.items():
        assert torch.equal(weights[name], parameter), name
    half = load_weights(tmp_path, config, torch.bfloat16, "cpu")
    assert all(torch.equal(half[name], wanted[name].to(torch.bfloat16)) for name in wanted)


@pytest.mark.parametrize("kind", _KINDS)
def test_config_fields(tmp_path: Path, kind: str) -> None:
    model = save_tiny_model(tmp_path, kind, rms_norm_eps=1e-5, rope_theta=5e5)
    config = load_config(tmp_path)
    assert config.architecture == type(model).__name__
    assert (config.vocab_size, config.hidden, config.intermediate, config.layers) == (262, 32, 48, 2)
    assert (config.heads, config.kv_heads, config.head_dim, config.max_len) == (4, 2, 8, 256)
    assert (config.rope_theta, config.rope_scaling, config.rms_eps) == (
        model.config.rope_parameters["rope_theta"],
        None,
        1e-5,
    )
    assert (config.tied, config.eos_ids) == (False, (0,))
    assert (config.qkv_bias, config.qk_norm) == (kind == "qwen2", kind == "qwen3")


@pytest.mark.model
def test_the_default_model(smollm2: Path) -> None:
    config = load_config(smollm2)
    assert (config.layers, config.hidden, config.heads, config.kv_heads, config.head_dim) == (30, 576, 9, 3, 64)
    assert (config.vocab_size, config.max_len, config.tied, config.eos_ids) == (49152, 8192, True, (2,))
    assert (config.rope_theta, config.rms_eps) == (100000.0, 1e-5)
    weights = load_weights(smollm2, config, torch.float32, "cpu")
    assert sum(tensor.numel() for tensor in weights.values()) == 134_515_008


_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    ("fields", "scaling"),
    [
        ({"rope_scaling": None, "rope_parameters": None}, None),
        ({"rope_parameters": None, "rope_scaling": _LLAMA3 | {"rope_theta": 7.0}},
         RopeScaling(kind="llama3", factor=32.0, original_max_len=128)),
        ({"rope_parameters": _YARN}, RopeScaling(kind="yarn", factor=4.0, original_max_len=64)),
        ({"rope_parameters": _YARN
          | {"factor": None, "attention_factor": 1.5, "truncate": False, "beta_fast": 16}},
         RopeScaling(kind="yarn", factor=4.0, original_max_len=64, attention_factor=1.5, truncate=False,
                     beta_fast=16.0)),
        ({"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 2}},
         RopeScaling(kind="linear", factor=2.0, original_max_len=256)),
    ],
)  # fmt: skip
def test_rope_scaling(tmp_path: Path, fields: dict[str, object], scaling: RopeScaling | None) -> None:
    save_tiny_model(tmp_path)
    _edit(tmp_path, **fields)
    assert load_config(tmp_path).rope_scaling == scaling


_OF_HAND = {"rope_type": "yarn", "factor": 4.0}


@pytest.mark.parametrize(
    ("kind", "fields", "original"),
    [
        ("qwen3", {"rope_parameters": {"rope_type": "default"}, "rope_scaling": _YARN}, 64),
        ("mistral", {"rope_parameters": _OF_HAND, "sliding_window": 128}, 256),
        ("qwen2", {"rope_parameters": _OF_HAND, "sliding_window": 128, "use_sliding_window": True}, 256),
        ("llama", {"rope_parameters": _OF_HAND, "original_max_position_embeddings": 32}, 32),
        ("llama", {"rope_parameters": _YARN, "original_max_position_embeddings": 32}, 32),
        ("llama", {"rope_parameters": _YARN | {"beta_fast": 0, "beta_slow": 0}}, 64),
    ],
)
def test_rope_is_read_as_transformers_reads_it(tmp_path: Path, kind: str, fields, original: int) -> None:
    from transformers import AutoConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    save_tiny_model(tmp_path, kind)
    _edit(tmp_path, **fields)
    config = load_config(tmp_path)
    assert config.rope_scaling == RopeScaling(kind="yarn", factor=4.0, original_max_len=original)
    wanted, magnitude = ROPE_INIT_FUNCTIONS["yarn"](AutoConfig.from_pretrained(tmp_path), "cpu")
    frequencies, scale = rope_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
    torch.testing.assert_close(frequencies, wanted)
    assert scale == pytest.approx(magnitude)


def test_yarns_two_scales_give_one_attention_factor(tmp_path: Path) -> None:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = _YARN | {"mscale": 1.0, "mscale_all_dim": 0.707, "rope_theta": 10000.0}
    model = save_tiny_model(tmp_path, rope_parameters=rope)
    _, attention_factor = ROPE_INIT_FUNCTIONS["yarn"](model.config, "cpu")
    scaling = load_config(tmp_path).rope_scaling
    assert scaling is not None
    assert scaling.attention_factor == pytest.approx(attention_factor)


@pytest.mark.parametrize(
    ("kind", "fields", "max_len"),
    [
        ("mistral", {"sliding_window": 100}, 100),
        ("mistral", {"sliding_window": None}, 256),
        ("mistral", {"sliding_window": 4096}, 256),
        ("mistral", {"max_position_embeddings": 8192, "sliding_window": ...}, 4096),
        ("qwen3", {"max_position_embeddings": 8192, "sliding_window": ..., "use_sliding_window": True}, 4096),
        ("qwen2", {"sliding_window": 100, "use_sliding_window": False}, 256),
        ("qwen2", {"sliding_window": 100, "use_sliding_window": True}, 100),
    ],
)
def test_a_sliding_window_limits_the_length(tmp_path: Path, kind: str, fields, max_len: int) -> None:
    save_tiny_model(tmp_path, kind)
    _edit(tmp_path, **fields)
    assert load_config(tmp_path).max_len == max_len


@pytest.mark.parametrize(("kind", "head_dim"), [("llama", 8), ("mistral", 8), ("qwen2", 8), ("qwen3", 128)])
def test_a_head_size_that_is_not_given_is_that_of_transformers(
    tmp_path: Path, kind: str, head_dim: int
) -> None:
    from transformers import AutoConfig

    save_tiny_model(tmp_path, kind)
    _edit(tmp_path, head_dim=...)
    assert load_config(tmp_path).head_dim == head_dim
    assert getattr(AutoConfig.from_pretrained(tmp_path), "head_dim", 8) == head_dim


@pytest.mark.parametrize("kind", _KINDS)
def test_a_config_without_architectures_goes_by_its_type(tmp_path: Path, kind: str) -> None:
    from transformers import AutoConfig

    AutoConfig.for_model(kind).save_pretrained(tmp_path)
    assert load_config(tmp_path).architecture == f"{kind.capitalize()}ForCausalLM"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"architectures": ["GemmaForCausalLM"]}, "`GemmaForCausalLM`\nnote: it runs `LlamaForCausalLM`"),
        ({"architectures": None, "model_type": "bert"}, "`bert`"),
        ({"model_type": "qwen2"}, "`LlamaForCausalLM` and the `model_type` `qwen2`"),
        ({"hidden_act": "gelu"}, "`hidden_act` `gelu`"),
        ({"mlp_bias": True}, "`mlp_bias` `True`"),
        ({"attention_bias": True}, "`attention_bias` `True`"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "type `dynamic`"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5}}, "`0.5`"),
        ({"rope_parameters": {"full_attention": _YARN}}, "rope's `full_attention`"),
        ({"rope_parameters": {"rope_theta": 7.0}, "rope_scaling": _YARN}, "another `rope_theta`"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantized"),
        ({"hidden_size": None}, "`hidden_size`"),
        ({"model_type": "mistral", "architectures": None, "sliding_window": 32.0}, "`sliding_window`"),
        ({"rms_norm_eps": "1e-2"}, "no number under `rms_norm_eps`\nnote: it says `1e-2`"),
        ({"rope_theta": "1e6", "rope_parameters": None}, "no number under `rope_theta`"),
        ({"rope_parameters": _YARN | {"attention_factor": "1"}}, "no number under `attention_factor`"),
        ({"rope_parameters": {"rope_type": "linear"}}, "no number under `factor`"),
        ({"rope_parameters": _LLAMA3 | {"low_freq_factor": None}}, "no number under `low_freq_factor`"),
        ({"num_hidden_layers": "two"}, "`num_hidden_layers`\nnote: it says `two`"),
        ({"num_hidden_layers": True}, "no whole number from 1 under `num_hidden_layers`"),
        ({"num_attention_heads": 0}, "no whole number from 1 under `num_attention_heads`"),
        ({"num_key_value_heads": 0}, "no whole number from 1 under `num_key_value_heads`"),
        ({"num_key_value_heads": 3}, "4 heads, which are no multiple of its 3 key-value heads"),
        ({"head_dim": 7}, "heads of 7 features, an odd number"),
        ({"max_position_embeddings": -5}, "no whole number from 1 under `max_position_embeddings`"),
        (
            {"rope_parameters": {"rope_type": "default", "rope_theta": 0}},
            "no number above 0 under `rope_theta`",
        ),
        ({"rope_parameters": {"rope_type": "linear", "factor": -1}}, "no number above 0 under `factor`"),
        ({"rms_norm_eps": float("nan")}, "no number under `rms_norm_eps`"),
    ],
)
def test_what_cannot_be_computed_is_refused(tmp_path: Path, fields: dict[str, object], message: str) -> None:
    save_tiny_model(tmp_path)
    _edit(tmp_path, **fields)
    with pytest.raises(BackendError, match=message) as caught:
        load_config(tmp_path)
    assert caught.value.code == "SGLC517"


@pytest.mark.parametrize("ids", [["a"], "2", [2, 1.5], True])
@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_ends_of_turns_that_are_no_ids(tmp_path: Path, name: str, ids: object) -> None:
    save_tiny_model(tmp_path)
    path = tmp_path / name
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": ids}))
    with pytest.raises(BackendError, match=f"{name}` has no token ids under `eos_token_id`") as caught:
        load_config(tmp_path)
    assert caught.value.code == "SGLC512"


def test_no_config(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match=r"holds no `config.json`") as caught:
        load_config(tmp_path)
    assert caught.value.code == "SGLC510"


def test_weights_that_do_not_fit_the_config(tmp_path: Path) -> None:
    save_tiny_model(tmp_path)
    config = load_config(tmp_path)
    wider = replace(config, intermediate=50)
    with pytest.raises(BackendError, match=r"gate_proj.weight` of shape \(48, 32\), not \(50, 32\)") as caught:
        load_weights(tmp_path, wider, torch.float32, "cpu")
    assert caught.value.code == "SGLC518"
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(BackendError, match=r"has no tensor `model.norm.weight`"):
        load_weights(tmp_path, config, torch.float32, "cpu")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(BackendError, match=r"holds no `model.safetensors`"):
        load_weights(tmp_path, config, torch.float32, "cpu")


_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 134\n"


@pytest.mark.parametrize(
    ("content", "hint"),
    [(b"", "fetch the model again"), (b"garbage" * 99, "fetch the model again"), (_POINTER, "Git LFS pointer")],
)
@pytest.mark.parametrize("shard", ["1GB", "10KB"])
def test_files_that_are_no_safetensors(tmp_path: Path, content: bytes, hint: str, shard: str) -> None:
    tiny_model("llama").save_pretrained(tmp_path, max_shard_size=shard)
    file = sorted(tmp_path.glob("*.safetensors"))[-1]
    file.write_bytes(content)
    with pytest.raises(BackendError, match=f"{file.name}` cannot be read as safetensors") as caught:
        load_weights(tmp_path, load_config(tmp_path), torch.float32, "cpu")
    assert caught.value.code == "SGLC518"
    assert hint in str(caught.value)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_pointers_of_git_lfs_are_named(tmp_path: Path, name: str) -> None:
    save_tiny_model(tmp_path)
    (tmp_path / name).write_bytes(_POINTER)
    with pytest.raises(BackendError, match=f"(?s)SGLC512.*{name}.*Git LFS pointer"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_codes_without_a_scale_are_refused(tmp_path: Path, dtype: torch.dtype) -> None:
    save_tiny_model(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.norm.weight"] = torch.ones(32).to(dtype)
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(BackendError, match=r"(?s)quantized.*`model.norm.weight` in") as caught:
        load_weights(tmp_path, load_config(tmp_path), torch.float32, "cpu")
    assert caught.value.code == "SGLC517"


@pytest.mark.parametrize("shard", ["1GB", "10KB"])
def test_tensors_that_nothing_reads_are_refused(tmp_path: Path, shard: str) -> None:
    tiny_model("llama").save_pretrained(tmp_path, max_shard_size=shard)
    _edit(tmp_path, num_hidden_layers=1)
    with pytest.raises(BackendError, match=r"the tensor `model.layers.1.input_layernorm.weight`") as caught:
        load_weights(tmp_path, load_config(tmp_path), torch.float32, "cpu")
    assert caught.value.code == "SGLC518"


def test_the_rotations_of_older_files_are_not_read(tmp_path: Path) -> None:
    save_tiny_model(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    save_file(weights, tmp_path / "model.safetensors")
    config = load_config(tmp_path)
    assert load_weights(tmp_path, config, torch.float32, "cpu").keys() == tensor_shapes(config).keys()


def test_shards_that_are_missing(tmp_path: Path) -> None:
    tiny_model("llama").save_pretrained(tmp_path, max_shard_size="10KB")
    config = load_config(tmp_path)
    shard = sorted(tmp_path.glob("*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(BackendError, match=f"lacks `{shard.name}`"):
        load_weights(tmp_path, config, torch.float32, "cpu")
    index = tmp_path / "model.safetensors.index.json"
    data = json.loads(index.read_text())
    del data["weight_map"]["lm_head.weight"]
    index.write_text(json.dumps(data))
    with pytest.raises(BackendError, match=r"has no tensor `lm_head.weight`"):
        load_weights(tmp_path, config, torch.float32, "cpu")


def test_one_file_is_read_before_shards(tmp_path: Path) -> None:
    other = tiny_model("llama")
    torch.nn.init.zeros_(other.model.norm.weight)
    other.save_pretrained(tmp_path, max_shard_size="10KB")
    model = tiny_model("llama")
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    weights = load_weights(tmp_path, load_config(tmp_path), torch.float32, "cpu")
    assert torch.equal(weights["model.norm.weight"], model.model.norm.weight)


@pytest.mark.parametrize("shard", ["1GB", "10KB"])
def test_a_head_of_its_own_is_not_tied(tmp_path: Path, shard: str) -> None:
    model = tiny_model("llama")
    model.save_pretrained(tmp_path, max_shard_size=shard)
    _edit(tmp_path, tie_word_embeddings=True)
    with pytest.raises(BackendError, match=r"`lm_head.weight` that is not its embedding") as caught:
        load_weights(tmp_path, load_config(tmp_path), torch.float32, "cpu")
    assert caught.value.code == "SGLC518"
    model.lm_head.weight.data.copy_(model.model.embed_tokens.weight)
    model.save_pretrained(tmp_path, max_shard_size=shard)
    _edit(tmp_path, tie_word_embeddings=True)
    assert "lm_head.weight" not in load_weights(tmp_path, load_config(tmp_path), torch.bfloat16, "cpu")


def test_random_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLC_CACHE", str(tmp_path / "cache"))
    save_tiny_model(tmp_path / "model", "qwen2", hidden_size=256)
    (tmp_path / "model" / "model.safetensors").unlink()
    folder = prepare(f"dummy:{tmp_path / 'model'}")
    config = load_config(folder)
    weights = load_weights(folder, config, torch.float32, "cpu")
    assert {name: tuple(tensor.shape) for name, tensor in weights.items()} == tensor_shapes(config)
    matrices = torch.cat([tensor.flatten() for tensor in weights.values() if tensor.dim() == 2])
    assert matrices.std() == pytest.approx(0.02, rel=0.02)
    assert abs(matrices.mean()) < 1e-4
    assert torch.equal(weights["model.norm.weight"], torch.ones(256))
    again = dummy_weights(config, torch.float32, "cpu")
    assert all(torch.equal(weights[name], again[name]) for name in weights)
    other = dummy_weights(config, torch.float32, "cpu", seed=1)
    assert not torch.equal(other["lm_head.weight"], weights["lm_head.weight"])
