"""Which kernel, with which tile, computes a product with few rows: measured where it was, else by rule.

`gemm_table.json` beside this file is what `benchmarks/gpu_gemm.py` measured on one H200. A config never
changes what is computed, up to the order of float32 sums.
"""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

Kind = Literal["vector", "tiled", "swapped", "library"]
# A product alone, added to a residual, the gated half of an MLP, or that of queries, keys and values.
Op = Literal["plain", "residual", "gated", "qkv"]

M_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 192, 256)  # rows; more are not few
PROCESSORS = 132  # multiprocessors of an H200
SHARED_BYTES = 227 * 1024  # of a multiprocessor, for one program
_TABLE = Path(__file__).with_name("gemm_table.json")


@dataclass(frozen=True, slots=True)
class GemmConfig:
    """A kernel and its tile.

    kind: `vector` and `tiled` are kernels of `gemm_kernels`, `swapped` is `tiled` with its operands
        exchanged, `library` is torch's product with separate kernels for what is fused otherwise.
    block_m, block_n, block_k: rows and columns of the output, and elements of K, at a time. Gated, a
        program reads twice `block_n` rows of the weight.
    split_k: programs that share the K of a tile. num_stages: tiles of K in flight in shared memory.
    early: the next kernel may begin before this one waits for the one in front of it.
    """

    kind: Kind
    block_m: int = 0
    block_n: int = 0
    block_k: int = 0
    split_k: int = 1
    num_warps: int = 4
    num_stages: int = 1
    early: bool = False


LIBRARY = GemmConfig("library")


def m_bucket(m: int) -> int | None:
    """The smallest bucket that holds `m` rows; None: too many for these kernels."""
    return next((bucket for bucket in M_BUCKETS if m <= bucket), None)


def table_key(op: Op, m: int, n: int, k: int, dtype: str) -> str:
    """How the table names a product; `m` is a bucket, `n` the output's columns, `dtype` as `bfloat16`."""
    return f"{op} {dtype} {m}x{n}x{k}"


@lru_cache(maxsize=1)
def _table() -> dict[str, GemmConfig]:
    return read_table(_TABLE)


def read_table(path: Path) -> dict[str, GemmConfig]:
    """What `table_text` wrote; nothing where there is no file."""
    if not path.exists():
        return {}
    return {key: GemmConfig(*row) for key, row in json.loads(path.read_text(encoding="utf-8")).items()}


def table_text(configs: dict[str, GemmConfig]) -> str:
    """The table's file for `configs`, one product a line."""
    rows = ",\n".join(f"{json.dumps(key)}: {json.dumps(astuple(row))}" for key, row in configs.items())
    return f"{{\n{rows}\n}}\n"


@lru_cache(maxsize=4096)
def best_config(op: Op, m: int, n: int, k: int, dtype: str) -> GemmConfig:
    """The config for [m, k] times [n, k] (gated: [2 * n, k]) transposed.

    Args:
        dtype: of all operands, without `torch.`: `bfloat16`, `float16` or `float32`.
    """
    bucket = m_bucket(m)
    if bucket is None or n * k * 2 >= 2**31:  # the kernels' offsets are int32
        return LIBRARY
    return _table().get(table_key(op, bucket, n, k, dtype)) or rule_of_thumb(op, bucket, n, k, dtype)


def rule_of_thumb(op: Op, m: int, n: int, k: int, dtype: str) -> GemmConfig:
    """A sound config for a product that was not measured: every multiprocessor reads a part of the weight."""
    halves = 2 if op == "gated" else 1
    if m <= 2:
        weight_rows = _fitting_rows(n * halves, (16, 8, 4))
        elements = 1 if dtype == "float32" else 2  # of one register; a thread holds 32 registers of weights
        block_k = min(_power_of_2(k), 32 * 128 * elements // weight_rows)
        return GemmConfig("vector", m, weight_rows // halves, block_k)
    if dtype == "float32" or m > 64:
        return LIBRARY
    block_m = max(m, 16)
    weight_rows = _fitting_rows(n * halves, (64, 32, 16))
    block_k = min(_power_of_2(k), 256 if block_m <= 32 else 128)
    stages = max(2, min(4, SHARED_BYTES // 2 // (2 * block_k * (weight_rows + block_m))))
    few = 2 * _tiles(n * halves, weight_rows) <= PROCESSORS and k // block_k >= 4
    return GemmConfig("tiled", block_m, weight_rows // halves, block_k, 2 if few else 1, 4, stages)


def _fitting_rows(weight_rows: int, heights: tuple[int, ...]) -> int:
    """The highest tile of those that still gives almost every multiprocessor one, else the lowest."""
    return next((rows for rows in heights if _tiles(weight_rows, rows) * 8 >= PROCESSORS * 7), heights[-1])


def _tiles(weight_rows: int, height: int) -> int:
    return -(-weight_rows // height)


def _power_of_2(value: int) -> int:
    """The smallest power of two that is at least `value`."""
    return 1 << (value - 1).bit_length()
