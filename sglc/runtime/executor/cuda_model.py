"""The forward pass of the Llama family on a CUDA device: our kernels on buffers of fixed addresses.

As `model.Llama`, but nothing here waits for the device, allocates, or depends on anything but the number
of tokens and rows, so a forward pass can be captured in a CUDA graph. The number of tokens is padded to a
bucket; what padding computes lands in the dummy row and page.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from sglc.runtime.kernels import gemm
from sglc.runtime.kernels.decode_attention import (
    Tiles,
    count_blocks,
    decode_attention,
    decode_config,
    decode_scratch,
    merge,
)
from sglc.runtime.kernels.pointwise import embed, empty_squares, rms_norm
from sglc.runtime.kernels.rope_store import rotation_table
from sglc.runtime.kernels.tile_attention import tile_attention, tile_config
from sglc.runtime.model.config import ModelConfig
from sglc.runtime.model.rope import pair_rows

_LONG_LAYER = 256 << 20  # bytes


@dataclass(frozen=True, slots=True)
class _Layer:
    qkv: Tensor
    qkv_bias: Tensor | None
    head_norms: tuple[Tensor, float] | None
    out: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of a step on the device, int32. `decoding` [1]: how many, the first ones, decode.

    `places`: how many tokens are before each in its row. In rows that branch positions are others.
    """

    ids: Tensor
    positions: Tensor
    slots: Tensor
    places: Tensor
    rows: Tensor
    decoding: Tensor


@dataclass(frozen=True, slots=True)
class TileArguments:
    """A `tile_plan.TilePlan` on the device, at fixed addresses. items_count: int32 [1]."""

    shared: Tensor
    items: Tensor
    items_count: Tensor
    members: Tensor
    left: Tiles


@dataclass(frozen=True, slots=True)
class PassKind:
    """What a forward pass contains. `decode`: tokens of rows that decode, the first ones; `cascade`: some of
    these may share prefixes; `prompts`: other tokens, whose keys may be cut. `narrow`: its tiles are. `trees`:
    some of the prompts' rows branch."""

    decode: bool
    cascade: bool
    prompts: bool
    narrow: bool = False
    trees: bool = False

    @property
    def short(self) -> bool:
        """Whether most rows have few keys of their own, which those that share prefixes do."""
        return self.cascade and not self.prompts


class CudaModel:
    """A model's weights on one device, with buffers for steps of up to `max_tokens` tokens.

    Args:
        weights: tensors under Hugging Face's names, on the device and in the type to compute in.
        processors: multiprocessors of the device.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, Tensor],
        max_tokens: int,
        max_decoding: int,
        processors: int,
        kv_dtype: torch.dtype,
    ) -> None:
        self.config = config
        self._embedding = weights["model.embed_tokens.weight"]
        self._norm = weights["model.norm.weight"].float()
        self._head = self._embedding if config.tied else weights["lm_head.weight"]
        self._layers = [_layer(config, weights, f"model.layers.{i}") for i in range(config.layers)]
        device, dtype = self._embedding.device, self._embedding.dtype
        # Where a layer reads for long, a kernel that starts early gains nothing and is in the way.
        layer = config.hidden * (config.heads * config.head_dim * 2 + 3 * config.intermediate)
        self.overlaps = layer * dtype.itemsize < _LONG_LAYER
        self._rotations = rotation_table(
            config.head_dim, config.rope_theta, config.rope_scaling, config.max_len
        ).to(device)
        gemm.prepare(device)
        c = config
        self._x = torch.zeros(max_tokens, c.hidden, dtype=dtype, device=device)
        self._qkv = torch.zeros(max_tokens, (c.heads + 2 * c.kv_heads) * c.head_dim, dtype=dtype, device=device)
        self._attended = torch.zeros(max_tokens, c.heads, c.head_dim, dtype=dtype, device=device)
        self._gated = torch.zeros(max_tokens, c.intermediate, dtype=dtype, device=device)
        self._squares = empty_squares(max_tokens, c.hidden, device)  # of the residual stream
        self._few_x = torch.zeros_like(self._x)
        self._few_attended = torch.zeros_like(self._attended)
        self._decode = {short: decode_config(kv_dtype, short=short) for short in (True, False)}
        self._scratch = {
            short: decode_scratch(config, max_decoding, c.heads, c.kv_heads, c.head_dim, device, processors)
            for short, config in self._decode.items()
        }
        self.tiles = {narrow: tile_config(dtype, narrow=narrow) for narrow in (True, False)}
        self._processors = processors

    def tile_programs(self, *, narrow: bool) -> int:
        """Programs that share the tiles of a step."""
        return self.tiles[narrow].per_sm * self._processors

    def attend(
        self, tokens: Tokens, pool: Tensor, table: Tensor, tiles: TileArguments, kind: PassKind, *, pdl: bool
    ) -> None:  # fmt: skip
        """All of a forward pass up to the last layer's attention; `finish` does the rest.

        Args:
            tokens: T tokens, their rows' page tables in `table`; their KV is written to `pool`.
            pool: [layers, pages, 2, kv_heads, page_size, D].
        """
        c = self.config
        count = len(tokens.ids)
        if kind.decode:
            count_blocks(
                tokens.places, tiles.shared[:count], tokens.decoding, self._scratch[kind.short],
                self._decode[kind.short],
            )  # fmt: skip
        x, attended = self._x[:count], self._attended[:count]
        embed(tokens.ids, self._embedding, x, squares=self._squares)
        for index, layer in enumerate(self._layers):
            if index:
                self._behind_attention(self._layers[index - 1], x, attended, pdl=pdl)
            store = gemm.HeadStore(
                c.heads, tokens.positions, tokens.slots, self._rotations, pool[index], layer.head_norms
            )
            queries = gemm.qkv(
                x, layer.qkv, store, scale=(self._squares, c.rms_eps), bias=layer.qkv_bias,
                out=self._qkv[:count], pdl=pdl,
            )  # fmt: skip
            self._attend(queries, pool[index], table, tokens, tiles, kind, attended, pdl)

    def finish(self, tokens: int, wanted: Tensor | None = None, *, pdl: bool) -> Tensor:
        """The last hidden states, before their norm, of the `tokens` tokens that `attend` was given.

        Args:
            wanted: int32 or int64 [W] those that are wanted; None: all.

        Returns:
            [W, hidden], a buffer that the next forward pass overwrites: what `logits` takes.
        """
        x, attended = self._x[:tokens], self._attended[:tokens]
        if wanted is not None:
            x = torch.index_select(x, 0, wanted, out=self._few_x[: len(wanted)])
            attended = torch.index_select(attended, 0, wanted, out=self._few_attended[: len(wanted)])
        self._behind_attention(self._layers[-1], x, attended, pdl=pdl and wanted is None)
        return x

    def _behind_attention(self, layer: _Layer, x: Tensor, attended: Tensor, *, pdl: bool) -> None:
        """What follows attention in a layer: `x` becomes its output."""
        gemm.linear(attended.flatten(1), layer.out, residual=x, squares=self._squares, out=x, pdl=pdl)
        scale = self._squares, self.config.rms_eps
        gated = gemm.gated(x, layer.gate_up, scale=scale, out=self._gated[: len(x)], pdl=pdl)
        gemm.linear(gated, layer.down, residual=x, squares=self._squares, out=x, pdl=pdl)

    def _attend(
        self, queries: Tensor, pool: Tensor, table: Tensor, tokens: Tokens, tiles: TileArguments,
        kind: PassKind, out: Tensor, pdl: bool,
    ) -> None:  # fmt: skip
        count = len(out)
        if kind.cascade or kind.prompts:
            tile_attention(
                queries, pool, table, tokens.places, tiles.items, tiles.items_count, tiles.members, out,
                tiles.left.values, tiles.left.sums, self.tiles[kind.narrow],
                self.tile_programs(narrow=kind.narrow), trees=kind.trees, pdl=pdl,
            )  # fmt: skip
        if kind.decode:
            decode_attention(
                queries, pool, table, tokens.rows, tokens.places, tiles.shared[:count], tokens.decoding, out,
                self._scratch[kind.short], self._decode[kind.short],
                tiles=tiles.left if kind.cascade else None, pdl=pdl,
            )  # fmt: skip
        if kind.prompts:
            merge(out, tokens.decoding, tiles.left, self.config.kv_heads, pdl=pdl)

    def logits(self, hidden: Tensor, out: Tensor | None = None, *, pdl: bool = False) -> Tensor:
        """[W, hidden] from `finish` -> [W, vocab]."""
        normed = rms_norm(hidden, self._norm, self.config.rms_eps, pdl=pdl)
        return gemm.linear(normed, self._head, out=out, pdl=pdl)


def _layer(config: ModelConfig, weights: Mapping[str, Tensor], name: str) -> _Layer:
    """One layer, with q, k and v as one product, rotated features side by side, and norms folded in."""
    attention, mlp = f"{name}.self_attn", f"{name}.mlp"

    def merged(kind: str) -> Tensor:
        q, k, v = (weights[f"{attention}.{part}_proj.{kind}"] for part in "qkv")
        return torch.cat((pair_rows(q, config.head_dim), pair_rows(k, config.head_dim), v))

    head_norms = None
    if config.qk_norm:
        both = [pair_rows(weights[f"{attention}.{part}_norm.weight"], config.head_dim) for part in "qk"]
        head_norms = (torch.stack(both), config.rms_eps)
    gate_up = gemm.pack_gate_up(weights[f"{mlp}.gate_proj.weight"], weights[f"{mlp}.up_proj.weight"])
    return _Layer(
        qkv=gemm.fold_norm(merged("weight"), weights[f"{name}.input_layernorm.weight"]),
        qkv_bias=merged("bias") if config.qkv_bias else None,
        head_norms=head_norms,
        out=weights[f"{attention}.o_proj.weight"],
        gate_up=gemm.fold_norm(gate_up, weights[f"{name}.post_attention_layernorm.weight"]),
        down=weights[f"{mlp}.down_proj.weight"],
    )
