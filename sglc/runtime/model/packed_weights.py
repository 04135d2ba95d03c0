"""Weights in the layout of the CPU's kernels: a quantized file's codes and scales, or floats. No torch.

Invariant: what is packed are the very numbers of the file.

A matrix [N, K] becomes bytes [tiles, groups, ...]: tiles of 16 outputs (the last one filled up with zeros) by
groups of 32 inputs. A quantized weight is `code * scale + minimum`; `kernels/cpu_model.cpp` has the layout of
each kind. Formats of GGUF are those of ggml's `ggml-common.h`, whose blocks of 32 weights are the groups here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

LANES, GROUP = 16, 32  # outputs of a tile, inputs of a group
_DATA, _INDEX = "packed.bin", "packed.json"

Bytes = NDArray[np.uint8]
F32 = NDArray[np.float32]


class Kind(IntEnum):
    """How weights are kept; the numbers are the kernels'."""

    F32 = 0
    BF16 = 1
    Q8 = 2
    Q4 = 3


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """`data`: uint8, of `rows` [N] by `columns` [K] weights."""

    kind: Kind
    rows: int
    columns: int
    data: Bytes


def pack_floats(weight: F32 | NDArray[np.uint16]) -> PackedMatrix:
    """float32 [N, K], or bfloat16 as its 16 bits."""
    kind = Kind.F32 if weight.dtype == np.float32 else Kind.BF16
    tiles = _tiles(weight)  # [tiles, 16, groups, 32]
    data = np.ascontiguousarray(tiles.transpose(0, 2, 3, 1)).view(np.uint8).reshape(-1)
    return PackedMatrix(kind, weight.shape[0], weight.shape[1], data)


def pack_codes(codes: NDArray[np.integer], scale: F32, minimum: F32, bits: int) -> PackedMatrix:
    """Weights `codes * scale + minimum`.

    Args:
        codes: [N, K], 0 .. 15 of 4 bits, -128 .. 127 of 8.
        scale, minimum: float32 [N, K / 32].
    """
    per_word = 32 // bits
    tiles = _tiles(codes).transpose(0, 2, 3, 1)  # [tiles, groups, 32, 16]
    words = tiles.reshape(*tiles.shape[:2], GROUP // per_word, per_word, LANES)
    shifted = np.zeros((*words.shape[:3], LANES), np.uint32)
    for place in range(per_word):
        shifted |= (words[:, :, :, place].astype(np.uint32) & ((1 << bits) - 1)) << np.uint32(place * bits)
    both = [_tiles(part[:, :, None])[..., 0].transpose(0, 2, 1) for part in (scale, minimum)]
    parts = [shifted.reshape(*tiles.shape[:2], -1), *(part.astype(np.float32).view(np.uint32) for part in both)]
    data = np.concatenate(parts, axis=2).view(np.uint8).reshape(-1)
    return PackedMatrix(Kind.Q4 if bits == 4 else Kind.Q8, codes.shape[0], codes.shape[1], data)


def pack_gguf(tensor: gguf.ReaderTensor, order: NDArray[np.int64] | None = None) -> PackedMatrix | None:
    """A matrix of a GGUF file, its rows in `order`; None where its format has another layout of scales."""
    columns, rows = (int(n) for n in tensor.shape)
    raw: Bytes = np.asarray(tensor.data).view(np.uint8).reshape(rows, -1)
    raw = raw if order is None else raw[order]
    match tensor.tensor_type:
        case gguf.GGMLQuantizationType.Q4_0:
            blocks = raw.reshape(rows, columns // GROUP, -1)
            scale = _half(blocks[..., :2])
            return pack_codes(_nibbles(blocks[..., 2:]), scale, -8 * scale, 4)
        case gguf.GGMLQuantizationType.Q4_1:
            blocks = raw.reshape(rows, columns // GROUP, -1)
            return pack_codes(_nibbles(blocks[..., 4:]), _half(blocks[..., :2]), _half(blocks[..., 2:4]), 4)
        case gguf.GGMLQuantizationType.Q4_K:
            large = raw.reshape(rows * columns // 256, -1)
            scales, minima = gguf.quants.Q4_K.get_scale_min(large[:, 4:16])
            scale = _half(large[:, :2])[:, None] * scales.astype(np.float32)
            least = _half(large[:, 2:4])[:, None] * -minima.astype(np.float32)
            codes = _nibbles(large[:, 16:].reshape(-1, 4, GROUP)).reshape(rows, columns)
            return pack_codes(codes, scale.reshape(rows, -1), least.reshape(rows, -1), 4)
        case gguf.GGMLQuantizationType.Q8_0:
            blocks = raw.reshape(rows, columns // GROUP, -1)
            scale = _half(blocks[..., :2])
            signed = np.ascontiguousarray(blocks[..., 2:]).view(np.int8).reshape(rows, columns)
            return pack_codes(signed, scale, np.zeros_like(scale), 8)
        case _:
            return None


def joined(parts: Sequence[PackedMatrix | None]) -> PackedMatrix | None:
    """The matrices one below the other; None if they are not of one kind, or one does not end with a tile."""
    first = parts[0]
    if first is None or any(p is None or p.kind is not first.kind or p.rows % LANES for p in parts):
        return None
    whole = [p for p in parts if p is not None]
    data = np.concatenate([p.data for p in whole])
    return PackedMatrix(first.kind, sum(p.rows for p in whole), first.columns, data)


def write_packed(folder: Path, matrices: Iterable[tuple[str, PackedMatrix]]) -> None:
    """`packed.bin`, every matrix from a multiple of 64 bytes on, and what lies where in `packed.json`."""
    index: dict[str, list[int]] = {}
    with (folder / _DATA).open("wb") as file:
        for name, matrix in matrices:
            file.write(bytes(-file.tell() % 64))
            index[name] = [matrix.kind, matrix.rows, matrix.columns, file.tell(), matrix.data.size]
            file.write(matrix.data.data)
    (folder / _INDEX).write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")


def read_packed(folder: Path) -> dict[str, PackedMatrix]:
    """What `write_packed` wrote, mapped and not read; empty if it wrote nothing."""
    if not (folder / _INDEX).is_file():
        return {}
    index = json.loads((folder / _INDEX).read_text(encoding="utf-8"))
    if not index:
        return {}  # none could be packed, and an empty file cannot be mapped
    data = np.memmap(folder / _DATA, np.uint8, "r")
    return {
        name: PackedMatrix(Kind(kind), rows, columns, data[begin : begin + size])
        for name, (kind, rows, columns, begin, size) in index.items()
    }


def _half(raw: Bytes) -> F32:
    return np.ascontiguousarray(raw).view(np.float16)[..., 0].astype(np.float32)


def _nibbles(raw: Bytes) -> NDArray[np.uint8]:
    """[N, blocks, bytes] -> [N, K]: the low halves of a block are the first half of its codes."""
    return np.concatenate((raw & 15, raw >> 4), axis=2).reshape(len(raw), -1)


def _tiles(values: NDArray[Any]) -> NDArray[Any]:
    """[N, groups * width] or [N, groups, 1] -> [tiles, 16, groups, width], rows filled up with zeros."""
    rows = len(values)
    full = np.zeros((-(-rows // LANES) * LANES, *values.shape[1:]), values.dtype)
    full[:rows] = values
    groups = values.shape[1] // GROUP if values.ndim == 2 else values.shape[1]
    return full.reshape(len(full) // LANES, LANES, groups, -1)
