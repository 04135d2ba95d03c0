"""Tiny random models of transformers, and the same weights for the runtime."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from sglc.runtime.model.config import ModelConfig, load_config

KINDS = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}


def tiny_model(folder: Path, kind: str = "llama", **fields: object) -> tuple[PreTrainedModel, ModelConfig]:
    """A float32 model whose weights are large enough that its distributions are far from flat."""
    config_class, model_class = KINDS[kind]
    values: dict[str, object] = {
        "vocab_size": 320,
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 1024,
        "initializer_range": 0.2,
        "tie_word_embeddings": False,
        "eos_token_id": 2,
        "bos_token_id": 1,
        "pad_token_id": 0,
    }
    if kind == "mistral":
        values["sliding_window"] = None
    torch.manual_seed(0)
    model = model_class(config_class(**(values | fields))).float().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("norm.weight", "bias")):
                weight.add_(torch.randn_like(weight) * 0.3)
    model.config.architectures = [model_class.__name__]
    model.config.save_pretrained(folder)
    return model, load_config(folder)
