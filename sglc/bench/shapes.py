"""Shapes to be measured with random weights: known models', as their `config.json` says, and a tiny one."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from sglc.runtime.model.config import ModelConfig, load_config

_QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu", "head_dim": 128,
    "vocab_size": 151936, "rope_theta": 1000000.0, "rms_norm_eps": 1e-06, "max_position_embeddings": 40960,
    "eos_token_id": 151645, "bos_token_id": 151643, "num_key_value_heads": 8,
}  # fmt: skip

SHAPES: dict[str, dict[str, object]] = {
    "tiny": {
        **_QWEN3, "vocab_size": 10240, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "tie_word_embeddings": True,
        "eos_token_id": 10239, "bos_token_id": 10238,
    },
    "qwen3-0.6b": {
        **_QWEN3, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
        "num_attention_heads": 16, "tie_word_embeddings": True,
    },
    "qwen3-14b": {
        **_QWEN3, "hidden_size": 5120, "intermediate_size": 17408, "num_hidden_layers": 40,
        "num_attention_heads": 40, "tie_word_embeddings": False,
    },
    "llama-3.2-1b": {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 2048,
        "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256, "tie_word_embeddings": True,
        "rope_theta": 500000.0, "rms_norm_eps": 1e-05, "max_position_embeddings": 131072,
        "eos_token_id": 128001, "bos_token_id": 128000,
        "rope_scaling": {
            "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    },
}  # fmt: skip


def shape(name: str) -> ModelConfig:
    """The config of a known model.

    Raises:
        KeyError: it is not in `SHAPES`.
    """
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(SHAPES[name]))
        return load_config(Path(folder))
