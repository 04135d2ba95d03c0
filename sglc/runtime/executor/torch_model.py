"""The forward pass of the Llama family: Llama, Mistral, Qwen2, Qwen3.

Works on a flat run of tokens; which row a token belongs to is known to the attention alone. Logits
are computed for the places that are asked for, and so is the last layer behind its attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from sglc.runtime.attention.split_plan import plan_attention
from sglc.runtime.attention.torch_attention import PagedAttention
from sglc.runtime.executor.linear import Gated, Linear, gated, linear
from sglc.runtime.executor.logits_output import I64
from sglc.runtime.model.config import ModelConfig
from sglc.runtime.model.rope import pair_rows, rope_table, rotate
from sglc.runtime.step import I32, Batch


@dataclass(frozen=True, slots=True)
class _Layer:
    input_norm: Tensor
    qkv: Linear
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Linear
    mlp_norm: Tensor
    gate_up: Gated
    down: Linear


class Llama:
    """A model's weights, ready to run on one device.

    Args:
        weights: tensors under Hugging Face's names (`model_config.tensor_shapes`), on the device and
            in the type to compute in. Merged and packed copies are made; the caller may drop the mapping.
    """

    def __init__(self, config: ModelConfig, weights: Mapping[str, Tensor]) -> None:
        self.config = config
        self._embedding = weights["model.embed_tokens.weight"]
        self._norm = weights["model.norm.weight"]
        self._layers = [_layer(config, weights, f"model.layers.{i}") for i in range(config.layers)]
        self._head = linear(self._embedding if config.tied else weights["lm_head.weight"])
        table = rope_table(config.head_dim, config.rope_theta, config.rope_scaling, config.max_len)
        self._rotations = table.to(self._embedding.device)

    def pool_shape(self, pages: int, page_size: int) -> tuple[int, ...]:
        """[layers, slots, 2 * kv_heads, head_dim]: what `forward` takes as `pool`."""
        c = self.config
        return c.layers, pages * page_size, 2 * c.kv_heads, c.head_dim

    def copy(self, pool: Tensor, page_size: int, copies: I32) -> None:
        """Copy KV within `pool`, as `Batch.copies` says."""
        counts = copies[:, 2].astype(np.int64)
        offsets = np.concatenate([np.arange(n) for n in counts])
        source, target = (
            self._put(np.repeat(copies[:, column].astype(np.int64) * page_size, counts) + offsets)
            for column in (0, 1)
        )
        pool.index_copy_(1, target, pool.index_select(1, source))

    def forward(self, batch: Batch, ids: Tensor, pool: Tensor, page_size: int, wanted: I64) -> Tensor:
        """Write the KV of all tokens of `batch` to `pool`; give the final hidden states of some.

        Args:
            ids: int64 [T], in the batch's order.
            wanted: int64 [W] places in 0 .. T - 1.

        Returns:
            [W, hidden], normed: what `logits` takes.
        """
        c = self.config
        plan = plan_attention(batch.starts, batch.positions, batch.pages, page_size, batch.trees)
        attention = PagedAttention(plan, c.heads, c.kv_heads, c.head_dim, page_size, self._norm)
        arrays = [batch.positions.astype(np.int64), batch.slots.astype(np.int64)]
        places = wanted
        if plan.order is not None:
            arrays = [values[plan.order] for values in arrays]
            ids = ids[self._put(plan.order)]
            place_of = np.empty_like(plan.order)
            place_of[plan.order] = np.arange(len(plan.order))
            places = place_of[wanted]
        positions, slots, given = (self._put(values) for values in (*arrays, places))
        rotations = self._rotations[positions][:, None]
        turned = c.heads + c.kv_heads  # queries and keys; values are not turned
        x = functional.embedding(ids, self._embedding)
        for index, layer in enumerate(self._layers):
            qkv = layer.qkv(self._normed(x, layer.input_norm))
            heads = qkv.view(len(qkv), c.heads + 2 * c.kv_heads, c.head_dim)
            if layer.q_norm is not None and layer.k_norm is not None:
                heads[:, : c.heads] = self._normed(heads[:, : c.heads], layer.q_norm)
                heads[:, c.heads : turned] = self._normed(heads[:, c.heads : turned], layer.k_norm)
            rotate(heads[:, :turned], rotations)
            pool[index].index_copy_(0, slots, heads[:, c.heads :])
            attended = attention.forward(heads, pool[index])
            if index == c.layers - 1:
                x, attended = x[given], attended[given]
            x = layer.out.add(attended, x)
            x = layer.down.add(layer.gate_up(self._normed(x, layer.mlp_norm)), x)
        return self._normed(x, self._norm)

    def logits(self, hidden: Tensor) -> Tensor:
        """[W, hidden] from `forward` -> [W, vocab]."""
        return self._head(hidden)

    def _put(self, values: NDArray[np.integer]) -> Tensor:
        return torch.from_numpy(values).to(self._norm.device, non_blocking=True)

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(x, weight.shape, weight, self.config.rms_eps)


def _layer(config: ModelConfig, weights: Mapping[str, Tensor], name: str) -> _Layer:
    """One layer, with q, k and v as one product and rotated features side by side."""
    attention, mlp = f"{name}.self_attn", f"{name}.mlp"

    def merged(kind: str) -> Tensor:
        q, k, v = (weights[f"{attention}.{part}_proj.{kind}"] for part in "qkv")
        return torch.cat((pair_rows(q, config.head_dim), pair_rows(k, config.head_dim), v))

    def head_norm(part: str) -> Tensor | None:
        return (
            pair_rows(weights[f"{attention}.{part}_norm.weight"], config.head_dim) if config.qk_norm else None
        )

    return _Layer(
        input_norm=weights[f"{name}.input_layernorm.weight"],
        qkv=linear(merged("weight"), merged("bias") if config.qkv_bias else None),
        q_norm=head_norm("q"),
        k_norm=head_norm("k"),
        out=linear(weights[f"{attention}.o_proj.weight"]),
        mlp_norm=weights[f"{name}.post_attention_layernorm.weight"],
        gate_up=gated(weights[f"{mlp}.gate_proj.weight"], weights[f"{mlp}.up_proj.weight"]),
        down=linear(weights[f"{mlp}.down_proj.weight"]),
    )
