"""Tiny random models of transformers, which takes seconds to import, and the same weights for the runtime."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from sglc.runtime.model.config import ModelConfig, load_config

if TYPE_CHECKING:
    from transformers import PreTrainedModel

KINDS = ("llama", "mistral", "qwen2", "qwen3")


def tiny_model(folder: Path, kind: str = "llama", **fields: object) -> tuple[PreTrainedModel, ModelConfig]:
    """A float32 model whose weights are large enough that its distributions are far from flat."""
    from transformers import AutoConfig, AutoModelForCausalLM

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
    config = AutoConfig.for_model(kind, **(values | fields))
    model = AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("norm.weight", "bias")):
                weight.add_(torch.randn_like(weight) * 0.3)
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    return model, load_config(folder)
