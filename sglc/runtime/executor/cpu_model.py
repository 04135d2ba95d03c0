"""The Llama family on the CPU through compiled kernels: weights and steps as C structures.

float32 throughout, and equal to `torch_model.Llama` up to float rounding, for every cut of a batch into steps;
or, where matrices are of codes, with their inputs as integers of 16 bits, each row by itself.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from ctypes import POINTER, Structure, c_float, c_int32, c_long, c_void_p
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sglc.runtime.executor.logits_output import LogitsKernels, SamplerInput
from sglc.runtime.model.config import ModelConfig
from sglc.runtime.model.packed_weights import GROUP, LANES, Kind, PackedMatrix, pack_floats
from sglc.runtime.model.rope import rope_table
from sglc.runtime.step import I32, Batch, TokenTree

_QUERIES = 24  # heads of a key-value head at most: as many queries are kept at a time


def fits(config: ModelConfig, page_size: int) -> bool:
    """Whether the kernels take these sizes: of whole tiles, groups and blocks."""
    c = config
    if c.heads // c.kv_heads > _QUERIES:
        return False
    inputs = (c.hidden, c.intermediate, c.heads * c.head_dim)
    outputs = (c.head_dim, c.kv_heads * c.head_dim, page_size)
    return not any(size % GROUP for size in inputs) and not any(size % LANES for size in outputs)


class _Matrix(Structure):
    _fields_ = (
        ("kind", c_int32), ("rows", c_int32), ("columns", c_int32), ("integers", c_int32),
        ("data", c_void_p), ("bias", c_void_p),
    )  # fmt: skip


class _Layer(Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("input_norm", "q_norm", "k_norm", "mlp_norm")),
        *((name, _Matrix) for name in ("qkv", "out", "gate", "up", "down")),
    )


class _Model(Structure):
    _fields_ = (
        *((n, c_int32) for n in ("layers", "hidden", "heads", "kv_heads", "head_dim", "inner", "pad0", "pad1")),
        ("eps", c_float), ("pad2", c_float),
        *((name, c_void_p) for name in ("cosine", "sine", "norm")),
        ("layer", POINTER(_Layer)), ("embedding", _Matrix), ("head", _Matrix),
    )  # fmt: skip


class _Step(Structure):
    _fields_ = (
        *((name, c_int32) for name in ("tokens", "rows", "columns", "page_size", "wanted", "pad")),
        *((name, c_void_p) for name in ("ids", "positions", "slots")),
        *((name, c_void_p) for name in ("starts", "firsts", "pages", "bases", "until", "places")),
    )


_CHOICE = np.dtype([("temperature", "f4"), ("top_p", "f4"), ("min_p", "f4"), ("top_k", "i4"), ("key", "u8")])


class CpuModel:
    """A model's weights, ready to run on the CPU.

    Args:
        weights: tensors under Hugging Face's names, float32, bfloat16 or float16; matrices that `packed` has
            are not looked at. The caller may drop the mapping.
        packed: matrices of a quantized file by name, `self_attn.qkv_proj` for the three of a layer.
        threads: cores to use.
        integers: whether inputs of matrices of codes are made integers of 16 bits.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        config: ModelConfig,
        weights: Mapping[str, Tensor],
        packed: Mapping[str, PackedMatrix],
        threads: int,
        integers: bool = False,
    ) -> None:
        self._library, self._config, self._threads, self._integers = library, config, threads, integers
        self._kept: list[NDArray[np.generic]] = []  # what the structures point to
        self._weights: Mapping[str, Tensor] = weights
        self._packed: Mapping[str, PackedMatrix] = packed
        table = rope_table(config.head_dim, config.rope_theta, config.rope_scaling, config.max_len)
        embedding = self._matrix("model.embed_tokens")
        layers = (_Layer * config.layers)(*(self._layer(f"model.layers.{i}") for i in range(config.layers)))
        self._layers = layers
        c = config
        self._model = _Model(
            c.layers, c.hidden, c.heads, c.kv_heads, c.head_dim, c.intermediate, 0, 0, c.rms_eps, 0.0,
            self._floats(table.real), self._floats(table.imag), self._floats(weights["model.norm.weight"]),
            layers, embedding, embedding if c.tied else self._matrix("lm_head"),
        )  # fmt: skip
        self._weights, self._packed = {}, {}

    def pool_shape(self, pages: int, page_size: int) -> tuple[int, ...]:
        """[layers, pages, kv_heads * page_size * 2 * head_dim]: what `forward` takes as `pool`, float32."""
        c = self._config
        return c.layers, pages, c.kv_heads * page_size * 2 * c.head_dim

    def copy(self, pool: Tensor, page_size: int, copies: I32) -> None:
        """Copy KV within `pool`, as `Batch.copies` says, in whole pages: what lies behind the tokens that are
        asked for is written before it is read."""
        source, target = torch.from_numpy(copies[:, :2].T.astype(np.int64, order="C"))
        pool.index_copy_(1, target, pool.index_select(1, source))

    def forward(
        self, batch: Batch, ids: Tensor, pool: Tensor, page_size: int, wanted: NDArray[np.int64]
    ) -> Tensor:
        """Write the KV of all tokens of `batch` to `pool`; give the final hidden states of some.

        Args:
            ids: int64 [T], in the batch's order.
            wanted: int64 [W], ascending places in 0 .. T - 1.

        Returns:
            float32 [W, hidden], normed: what `logits` takes.
        """
        counts = np.diff(batch.starts)
        firsts = batch.positions[batch.starts[:-1]].astype(np.int32)
        bases = np.zeros(len(counts), np.int32)
        until = np.zeros(len(counts), np.uintp)
        kept: list[I32] = []
        for tree in batch.trees:
            firsts[tree.row] = tree.base + tree.depths.size - counts[tree.row]
            bases[tree.row] = tree.base
            kept.append(_until(tree))
            until[tree.row] = kept[-1].ctypes.data
        arrays: list[NDArray[np.generic]] = [
            ids.numpy(), batch.positions.astype(np.int64), batch.slots.astype(np.int64), batch.starts, firsts,
            np.ascontiguousarray(batch.pages), bases, until, wanted,
        ]  # fmt: skip
        step = _Step(
            len(batch.tokens), len(counts), batch.pages.shape[1], page_size, len(wanted), 0,
            *[array.ctypes.data for array in arrays],
        )  # fmt: skip
        hidden = torch.empty(len(wanted), self._config.hidden)
        self._library.sglc_forward(
            c_int32(self._threads), ctypes.byref(self._model), ctypes.byref(step),
            c_void_p(pool.data_ptr()), c_long(pool[0].numel()), c_void_p(hidden.data_ptr()),
        )  # fmt: skip
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """[W, hidden] from `forward` -> [W, vocab]."""
        hidden = hidden.contiguous()
        out = torch.empty(len(hidden), self._config.vocab_size)
        self._library.sglc_logits(
            c_int32(self._threads), ctypes.byref(self._model),
            c_void_p(hidden.data_ptr()), c_int32(len(hidden)), c_void_p(out.data_ptr()),
        )  # fmt: skip
        return out

    def _layer(self, name: str) -> _Layer:
        attention = f"{name}.self_attn"
        norms = (
            f"{name}.input_layernorm",
            f"{attention}.q_norm",
            f"{attention}.k_norm",
            f"{name}.post_attention_layernorm",
        )
        found = (self._weights.get(f"{norm}.weight") for norm in norms)
        qkv = self._matrix(f"{attention}.qkv_proj", [f"{attention}.{part}_proj" for part in "qkv"])
        rest = (f"{attention}.o_proj", *(f"{name}.mlp.{part}_proj" for part in ("gate", "up", "down")))
        return _Layer(
            *(None if tensor is None else self._floats(tensor) for tensor in found),
            qkv,
            *(self._matrix(part) for part in rest),
        )

    def _matrix(self, name: str, parts: Sequence[str] = ()) -> _Matrix:
        """The packed matrix `name`, or `parts` (itself) packed now, with its bias."""
        parts = parts or [name]
        matrix = self._packed.get(name)
        if matrix is None:
            matrix = pack_floats(_array(torch.cat([self._weights[f"{part}.weight"] for part in parts])))
        self._kept.append(matrix.data)
        biases = [self._weights[f"{part}.bias"] for part in parts if f"{part}.bias" in self._weights]
        bias = self._floats(torch.cat(biases)) if biases else None
        return _matrix(matrix, self._integers, bias)

    def _floats(self, tensor: Tensor) -> int:
        """The address of a copy that is kept."""
        copy = np.array(tensor.float().numpy(), order="C")
        self._kept.append(copy)
        return copy.ctypes.data


def head_product(
    library: ctypes.CDLL, threads: int, matrix: PackedMatrix, integers: bool, x: NDArray[np.float32]
) -> NDArray[np.float32]:
    """x [R, K] times `matrix` [N, K]: [R, N]."""
    model = _Model(head=_matrix(matrix, integers))
    out = np.empty((len(x), matrix.rows), np.float32)
    library.sglc_logits(
        c_int32(threads), ctypes.byref(model), c_void_p(x.ctypes.data), c_int32(len(x)),
        c_void_p(out.ctypes.data),
    )  # fmt: skip
    return out


def _matrix(matrix: PackedMatrix, integers: bool, bias: int | None = None) -> _Matrix:
    """`matrix` as the kernels see it: whoever holds it keeps its data."""
    coded = matrix.kind in (Kind.Q4, Kind.Q8)
    address = matrix.data.ctypes.data
    return _Matrix(matrix.kind, matrix.rows, matrix.columns, integers and coded, address, bias)


def logits_kernels(library: ctypes.CDLL, threads: int) -> LogitsKernels:
    """Those of `library`."""
    return LogitsKernels(
        partial(draw, library, threads),
        partial(log_probabilities, library, threads),
        partial(likeliest, library, threads),
    )


def log_probabilities(library: ctypes.CDLL, threads: int, logits: Tensor, ids: Tensor, rows: Tensor) -> Tensor:
    """As `sampler.log_probabilities`: float32 [N] of float32 [R, V], int64 [N] and int64 [N]."""
    logits = logits.contiguous()
    sums = torch.empty(len(logits))
    library.sglc_log_sums(
        c_int32(threads), c_void_p(logits.data_ptr()), c_int32(len(logits)), c_int32(logits.shape[1]),
        c_void_p(sums.data_ptr()),
    )  # fmt: skip
    return logits[rows, ids] - sums[rows]


def likeliest(library: ctypes.CDLL, threads: int, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """As `sampler.likeliest`, of equal ones the first ids: int64 and float32 [R, count] of float32 [R, V]."""
    rows, vocab = logits.shape
    logits = logits.contiguous()
    ids, logprobs = torch.empty(rows, count, dtype=torch.int64), torch.empty(rows, count)
    library.sglc_likeliest(
        c_int32(threads), c_void_p(logits.data_ptr()), c_int32(rows), c_int32(vocab), c_int32(count),
        c_void_p(ids.data_ptr()), c_void_p(logprobs.data_ptr()),
    )  # fmt: skip
    return ids, logprobs


def draw(
    library: ctypes.CDLL, threads: int, logits: Tensor, allowed: Tensor, choice: SamplerInput
) -> tuple[Tensor, Tensor]:
    """As `sampler.drawn`: int64 [R] and float32 [R] of float32 [R, V]."""
    rows, vocab = logits.shape
    choices = np.empty(rows, _CHOICE)
    for name in ("temperature", "top_p", "min_p", "top_k"):
        choices[name] = getattr(choice, name)
    choices["key"] = choice.keys
    logits, allowed = logits.contiguous(), allowed.contiguous()
    ids, logprobs = torch.empty(rows, dtype=torch.int64), torch.empty(rows)
    library.sglc_choose(
        c_int32(threads), c_void_p(logits.data_ptr()), c_void_p(allowed.data_ptr()), c_int32(rows),
        c_int32(vocab), c_void_p(choices.ctypes.data), c_void_p(ids.data_ptr()), c_void_p(logprobs.data_ptr()),
    )  # fmt: skip
    return ids, logprobs


def _array(weight: Tensor) -> NDArray[np.float32] | NDArray[np.uint16]:
    if weight.dtype is torch.bfloat16:
        bits: NDArray[np.uint16] = weight.view(torch.uint16).numpy()
        return bits
    floats: NDArray[np.float32] = weight.float().numpy()
    return floats


def _until(tree: TokenTree) -> I32:
    """By key from the tree's base on: the place from which it is not seen."""
    return np.ascontiguousarray(tree.base + tree.until, np.int32)
