"""Model folders and GGUF files of a few kilobytes, with random weights and a byte-level tokenizer.

torch and transformers take seconds to import, so the functions that need them do.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CONTROL = ("<|end|>", "<|start|>")
_INNER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_OUTER = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def tiny_tokenizer(*added: AddedToken) -> Tokenizer:
    """Byte-level BPE: control tokens 0 and 1, the 256 bytes, a few merges, then `added`."""
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("Ġ", "Ġ")]
    tokens = [*CONTROL, *sorted(pre_tokenizers.ByteLevel.alphabet()), *(a + b for a, b in merges)]
    vocab = {token: id_ for id_, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(CONTROL))
    tokenizer.add_tokens(list(added))
    return tokenizer


def tiny_model(kind: str, **changes: Any) -> PreTrainedModel:
    """A model with random weights, biases and norms included, so that none of them can be lost."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    fields: dict[str, Any] = {
        "vocab_size": 262,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 256,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 0,
    }
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **(fields | changes))
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0.5, 0.2)
    return model.eval()


def save_tiny_model(folder: Path, kind: str = "llama", **changes: Any) -> PreTrainedModel:
    """`tiny_model` with its tokenizer as a model folder."""
    model = tiny_model(kind, **changes)
    model.save_pretrained(folder)
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    named = {"bos_token": CONTROL[1], "eos_token": CONTROL[0]}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    return model


def write_gguf(path: Path, model: PreTrainedModel, kind: str, **extra: Any) -> None:
    """`model` as a GGUF file in float32, with the tiny tokenizer.

    `extra`: metadata by full key, in place of what the model has; None: left out.
    """
    config = model.config
    architecture = "llama" if kind == "mistral" else kind
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim if hasattr(config, "head_dim") else 8)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    definition = json.loads(tiny_tokenizer().to_str())
    tokens = sorted(definition["model"]["vocab"], key=definition["model"]["vocab"].__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(extra.pop("pre", "gpt-2"))
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in CONTROL else 1 for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in definition["model"]["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
    factors = extra.pop("rope_factors", None)
    for key, value in extra.items():
        writer.kv_data[0].pop(key, None)
        match value:
            case list():
                writer.add_array(key, value)
            case bool():
                writer.add_bool(key, value)
            case str():
                writer.add_string(key, value)
            case int():
                writer.add_uint32(key, value)
            case float():
                writer.add_float32(key, value)
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", np.asarray(factors, np.float32))
    for name, parameter in model.named_parameters():
        values = parameter.detach().numpy()
        if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
            values = _halves_to_interleaved(values, 8)
        writer.add_tensor(_gguf_name(name), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _halves_to_interleaved(weight: np.ndarray, head_dim: int) -> np.ndarray:
    """Row i of the first half of a head goes to 2 i, row i of the second half to 2 i + 1."""
    rows = []
    for head in range(0, len(weight), head_dim):
        for i in range(head_dim // 2):
            rows += [weight[head + i], weight[head + head_dim // 2 + i]]
    return np.stack(rows)


def _gguf_name(name: str) -> str:
    stem, kind = name.rsplit(".", 1)
    if stem in _OUTER:
        return f"{_OUTER[stem]}.{kind}"
    _, _, layer, inner = stem.split(".", 3)
    return f"blk.{layer}.{_INNER[inner]}.{kind}"
