"""Times decode attention and tiles on a CUDA device, each next to the bytes or FLOPs that it has to move or do.

Rows of half to one and a half times the mean length, random pages of 16 tokens, replayed from a CUDA graph;
every case is checked against float32 first. Writes one JSON file (argument 1).
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict

import torch
import triton
from torch import Tensor

from benchmarks.gpu_gemm import graph_us
from sglc.runtime.attention.tile_plan import PrefixGroup, TileShape, plan_tiles
from sglc.runtime.kernels.decode_attention import count_blocks, decode_attention, decode_config, decode_scratch
from sglc.runtime.kernels.tile_attention import tile_attention, tile_config

PAGE, D, KV_HEADS = 16, 128, 8
PROCESSORS = 132
REPEATS = 20
DECODE = ((256, 560, 16), (256, 1000, 16), (64, 1000, 16), (1, 300, 16), (256, 800, 40))  # rows, keys, heads
TOLERANCE = 5e-3  # relative norm of the error


def ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device="cuda")


def paged(rows: int, longest: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A pool, and page tables of `rows` rows."""
    wide = -(-longest // PAGE)
    pool = torch.empty(rows * wide + 1, 2, KV_HEADS, PAGE, D, device="cuda", dtype=torch.bfloat16)
    table = (1 + torch.randperm(rows * wide, device="cuda")).view(rows, wide).int()
    return pool.normal_().to(dtype), table


def reference(query: Tensor, pool: Tensor, table: Tensor, position: int) -> Tensor:
    """Attention of one token, float32 [heads, D]."""
    at = torch.arange(position + 1, device="cuda")
    kv = pool[table[at // PAGE].long(), :, :, at % PAGE].float()
    kv = kv.repeat_interleave(len(query) // KV_HEADS, dim=2)
    scores = torch.einsum("hd,nhd->hn", query.float(), kv[:, 0]) * D**-0.5
    return torch.einsum("hn,nhd->hd", scores.softmax(-1), kv[:, 1])


def microseconds(run: Callable[[], None]) -> float:
    return graph_us(lambda: [run() for _ in range(REPEATS)], REPEATS)


def decode(rows: int, keys: int, heads: int, dtype: torch.dtype) -> dict[str, object]:
    torch.manual_seed(0)
    lengths = torch.randint(keys // 2, keys * 3 // 2, (rows,)) if rows > 1 else torch.tensor([keys])
    pool, table = paged(rows, int(lengths.max()), dtype)
    positions = (lengths - 1).int().cuda()
    queries = torch.randn(rows, heads, D, device="cuda", dtype=torch.bfloat16)
    out = torch.full_like(queries, float("nan"))
    config = decode_config(dtype)
    scratch = decode_scratch(config, rows, heads, KV_HEADS, D, "cuda", PROCESSORS)
    shared, decoding = torch.zeros_like(positions), ints(rows)
    row_numbers = torch.arange(rows, device="cuda", dtype=torch.int32)
    count_blocks(positions, shared, decoding, scratch, config)

    def run() -> None:
        decode_attention(queries, pool, table, row_numbers, positions, shared, decoding, out, scratch, config)

    run()
    wanted = torch.stack(
        [reference(queries[i], pool, table[i], int(positions[i])) for i in range(min(rows, 8))]
    )
    error = float((out[: len(wanted)].float() - wanted).norm() / wanted.norm())
    assert error < TOLERANCE, error
    size = int(lengths.sum()) * 2 * KV_HEADS * D * dtype.itemsize
    taken = microseconds(run)
    return {
        "kind": "decode", "rows": rows, "mean_keys": keys, "heads": heads, "kv_dtype": str(dtype)[6:],
        "us": round(taken, 1), "bytes_per_s": round(size / taken * 1e6), "error": error,
        "config": asdict(config),
    }  # fmt: skip


def tiles(name: str, decoding: int, prefix: int, chunk: tuple[int, int, int]) -> dict[str, object]:
    """`decoding` rows on a prefix of so many keys, and `chunk`: rows, keys before, new tokens of each."""
    torch.manual_seed(0)
    heads, config = 16, tile_config(torch.bfloat16, narrow=False)
    rows, before, new = chunk
    pool, table = paged(max(rows, 1), max(prefix, before + new), torch.bfloat16)
    shape = TileShape(config.rows, heads // KV_HEADS, KV_HEADS, PAGE, config.per_sm * PROCESSORS)
    prefixes = [PrefixGroup(tuple(range(decoding)), 0, prefix // PAGE)] if decoding else []
    plan = plan_tiles([0] * decoding, prefixes, [(row, before, new) for row in range(rows)], shape)
    positions = ints(*[prefix] * decoding, *[before + i for _ in range(rows) for i in range(new)])
    queries = torch.randn(len(positions), heads, D, device="cuda", dtype=torch.bfloat16)
    out = torch.full_like(queries, float("nan"))
    items, members = torch.tensor(plan.items, device="cuda"), torch.tensor(plan.members, device="cuda")
    values = torch.zeros(max(plan.parts, 1) * KV_HEADS * config.rows, D, device="cuda")
    sums, count = torch.zeros(len(values), device="cuda"), ints(len(plan.items))

    def run() -> None:
        tile_attention(
            queries, pool, table, positions, items, count, members, out, values, sums, config, shape.programs
        )

    run()
    if not plan.parts:
        last = len(positions) - 1
        wanted = reference(queries[last], pool, table[rows - 1], int(positions[last]))
        assert float((out[last].float() - wanted).norm() / wanted.norm()) < TOLERANCE
    pairs = decoding * prefix + rows * sum(before + i + 1 for i in range(new))
    taken = microseconds(run)
    return {
        "kind": "tiles", "work": name, "us": round(taken, 1),
        "flops": round(4 * heads * D * pairs / taken * 1e6), "config": asdict(config),
    }  # fmt: skip


def main(path: str) -> None:
    results = [decode(*case, dtype) for dtype in (torch.bfloat16, torch.float8_e4m3fn) for case in DECODE]
    results += [
        tiles("8 prompts of 1,024 tokens", 0, 0, (8, 0, 1024)),
        tiles("64 rows on a prefix of 4,096 keys", 64, 4096, (0, 0, 0)),
        tiles("51 tokens behind 1,000", 0, 0, (1, 1000, 51)),
    ]
    for result in results:
        print(result)
    report = {
        "what": "decode attention and tiles, bytes and FLOPs that the work needs over the time",
        "device": torch.cuda.get_device_name(), "python": platform.python_version(),
        "torch": torch.__version__, "triton": triton.__version__, "results": results,
    }  # fmt: skip
    with open(path, "w", encoding="utf-8") as file:
        file.write(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
