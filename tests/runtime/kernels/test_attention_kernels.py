"""The attention kernels against a dense reference."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from sglc.runtime.attention.tile_plan import LEVELS, WHOLE, TileShape, plan_tiles
from sglc.runtime.choice_trie import tries_of
from sglc.runtime.kernels.decode_attention import (
    DecodeConfig,
    Tiles,
    count_blocks,
    decode_attention,
    decode_scratch,
    merge,
)
from sglc.runtime.kernels.tile_attention import TileConfig, tile_attention
from sglc.runtime.step import TokenTree
from tests.depth import some_of

pytestmark = pytest.mark.kernel

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Triton's interpreter multiplies the bit patterns of bfloat16.
HALF = torch.bfloat16 if torch.cuda.is_available() else torch.float16
HEADS, KV_HEADS, D, PAGE = 6, 3, 64, 16
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 6e-3, torch.float16: 1e-3}


def reference(
    q: Tensor, pool: Tensor, table: Tensor, rows: Tensor, places: Tensor, until: Tensor | None = None
) -> Tensor:
    """float64 [T, heads, D]. `until` [rows, K]: the place from which a key is not seen any more."""
    out = torch.zeros(q.shape, dtype=torch.float64)
    kv_heads, page_size = pool.shape[2], pool.shape[3]
    for t, (row, place) in enumerate(zip(rows.tolist(), places.tolist(), strict=True)):
        at = torch.arange(place + 1)
        if until is not None:
            at = at[until[row, : place + 1] > place]
        pages = table[row].cpu()[at // page_size].long()
        kv = pool.to(torch.float32).cpu().double()[pages, :, :, at % page_size]  # [N, 2, kv_heads, D]
        kv = kv.repeat_interleave(q.shape[1] // kv_heads, dim=2)
        scores = torch.einsum("hd,nhd->hn", q[t].cpu().double(), kv[:, 0]) * q.shape[2] ** -0.5
        out[t] = torch.einsum("hn,nhd->hd", scores.softmax(-1), kv[:, 1])
    return out


def error(out: Tensor, wanted: Tensor) -> float:
    return float((out.cpu().double() - wanted).norm() / wanted.norm())


def setting(
    lengths: list[int],
    dtype: torch.dtype,
    heads: int = HEADS,
    kv_heads: int = KV_HEADS,
    d: int = D,
    page: int = PAGE,
) -> tuple[Tensor, Tensor]:
    """A pool, and a page table [rows, K] of shuffled pages."""
    generator = torch.Generator().manual_seed(sum(lengths))
    wide = -(-max(lengths) // page)
    pool = torch.randn(len(lengths) * wide + 1, 2, kv_heads, page, d, generator=generator)
    table = 1 + torch.randperm(len(lengths) * wide, generator=generator).view(len(lengths), wide)
    return pool.to(DEVICE, torch.float32).to(dtype), table.to(DEVICE, torch.int32)


def ints(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def table_of(lines: list[list[int]]) -> Tensor:
    return torch.tensor(lines, dtype=torch.int32, device=DEVICE)


def items_of(lines: list[list[int]]) -> Tensor:
    """Tiles of rows that do not branch."""
    return table_of([[*line, WHOLE, 0] for line in lines])


DECODED = some_of([[1], [300], [1, 15, 16, 17, 63, 64, 65, 200], [129] * 5 + [2]], 1, 2)


@pytest.mark.parametrize("dtype", [torch.float32, HALF, torch.float8_e4m3fn])
@pytest.mark.parametrize("lengths", DECODED)
@pytest.mark.parametrize("processors", some_of([1, 3, 40], 1, 1))
def test_decode(lengths: list[int], dtype: torch.dtype, processors: int) -> None:
    pool, table = setting(lengths, dtype)
    compute = HALF if dtype is torch.float8_e4m3fn else dtype
    tokens, padded = len(lengths), len(lengths) + 3
    rows = ints([*range(tokens), 0, 0, 0])
    positions = ints([*(length - 1 for length in lengths), 0, 0, 0])
    q = torch.randn(padded, 2 * HEADS, D, generator=torch.Generator().manual_seed(1)).to(DEVICE, compute)
    q = q[:, :HEADS]  # a view with a longer stride, as of the merged product
    config = DecodeConfig(block=32)
    scratch = decode_scratch(config, padded, HEADS, KV_HEADS, D, DEVICE, processors)
    shared, decoding = ints([0] * padded), ints([tokens])
    out = torch.full((padded, HEADS, D), float("nan"), dtype=compute, device=DEVICE)
    count_blocks(positions, shared, decoding, scratch, config)
    for _ in range(2):  # the scratch is left as it was found
        decode_attention(q, pool, table, rows, positions, shared, decoding, out, scratch, config)
    wanted = reference(q[:tokens], pool, table, rows[:tokens], positions[:tokens])
    assert error(out[:tokens], wanted) < TOLERANCE[compute]
    assert out[tokens:].isnan().all(), "padding is left alone"


@pytest.mark.parametrize(("heads", "kv_heads", "d"), [(4, 4, 64), (5, 1, 128), (9, 3, 64), (8, 1, 64)])
@pytest.mark.parametrize("page", [1, 4, 16])
def test_decode_of_other_shapes(heads: int, kv_heads: int, d: int, page: int) -> None:
    lengths = [70, 3, 33]
    pool, table = setting(lengths, torch.float32, heads, kv_heads, d, page)
    rows, positions = ints([0, 1, 2]), ints([69, 2, 32])
    q = torch.randn(3, heads, d, generator=torch.Generator().manual_seed(2)).to(DEVICE)
    config = DecodeConfig(block=16)
    scratch = decode_scratch(config, 3, heads, kv_heads, d, DEVICE, 2)
    shared, decoding, out = ints([0] * 3), ints([3]), torch.full_like(q, float("nan"))
    count_blocks(positions, shared, decoding, scratch, config)
    decode_attention(q, pool, table, rows, positions, shared, decoding, out, scratch, config)
    assert error(out, reference(q, pool, table, rows, positions)) < 2e-6


@pytest.mark.parametrize("dtype", [torch.float32, HALF])
def test_prompts_of_several_rows(dtype: torch.dtype) -> None:
    """Chunks that begin anywhere, the keys of one cut into splits."""
    pool, table = setting([40, 150, 96], dtype)
    chunks = [(0, 0, 40), (1, 130, 20), (2, 95, 1)]  # row, first position, tokens
    rows = ints([row for row, _, n in chunks for _ in range(n)])
    positions = ints([first + i for _, first, n in chunks for i in range(n)])
    tokens = len(rows)
    config = TileConfig(rows=32, block=32)
    per_tile = config.rows // (HEADS // KV_HEADS)
    q = torch.randn(tokens, HEADS, D, generator=torch.Generator().manual_seed(3)).to(DEVICE, dtype)
    items: list[list[int]] = []
    tiles = torch.zeros(tokens, LEVELS, dtype=torch.int32)
    tile_at = torch.zeros(tokens, LEVELS, dtype=torch.int32)
    parts, start = 0, 0
    for row, first, n in chunks:
        for at in range(0, n, per_tile):
            count = min(per_tile, n - at)
            end = first + at + count
            cuts = [0, end] if row == 0 else [0, 64, 96, max(end, 97)][: 4 if end > 96 else 3]
            if row == 0:
                items.append([start + at, count, row, 0, end, -1])
                continue
            for i, (a, b) in enumerate(pairwise(cuts)):
                items.append([start + at, count, row, a, b, parts + i])
            for i in range(count):
                tiles[start + at + i, 0] = len(cuts) - 1
                tile_at[start + at + i, 0] = parts * KV_HEADS * config.rows + i * (HEADS // KV_HEADS)
            parts += len(cuts) - 1
        start += n
    values = torch.full((parts * KV_HEADS * config.rows, D), float("nan"), device=DEVICE)
    sums = torch.full((parts * KV_HEADS * config.rows,), float("nan"), device=DEVICE)
    out = torch.full((tokens, HEADS, D), float("nan"), dtype=dtype, device=DEVICE)
    tile_attention(
        q, pool, table, positions, items_of(items), ints([len(items)]), ints(list(range(tokens))), out, values,
        sums, config, 5,
    )  # fmt: skip
    left = Tiles(tiles.to(DEVICE), tile_at.to(DEVICE), values, sums, config.rows)
    merge(out, ints([0]), left, KV_HEADS)
    assert error(out, reference(q, pool, table, rows, positions)) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", [torch.float32, HALF])
@pytest.mark.parametrize("seed", some_of(range(12), 2, 3))
def test_rows_that_branch(seed: int, dtype: torch.dtype) -> None:
    """Tries behind prompts, some begun in steps before, beside a row that does not branch."""
    draw = random.Random(seed)
    tries, lengths, chunks = [], [], []  # (row, first place, tokens)
    for row in range(4):
        prompt = draw.randint(1, 90)
        choices = [[draw.randint(0, 1) for _ in range(draw.randint(1, 12))] for _ in range(draw.randint(2, 9))]
        trie = tries_of(choices, 1000, branching=True).tries[0]
        ids = 0 if row == 3 else draw.randint(1, len(trie.ids)) if trie.ids else 0
        tries.append((prompt, trie, ids))
        lengths.append(prompt + ids)
        new = draw.randint(1, lengths[-1])
        chunks.append((row, lengths[-1] - new, new))
    pool, table = setting(lengths, dtype)
    trees = [
        TokenTree(row, prompt, trie.depths[:ids], trie.until[:ids])
        for row, (prompt, trie, ids) in enumerate(tries)
        if ids
    ]
    assert trees
    until = torch.full((4, max(lengths)), 1 << 30)
    for tree in trees:
        until[tree.row, tree.base : tree.base + len(tree.until)] = tree.base + torch.from_numpy(tree.until)
    rows = ints([row for row, _, count in chunks for _ in range(count)])
    places = ints([first + i for _, first, count in chunks for i in range(count)])
    config = TileConfig(rows=32, block=32)
    shape = TileShape(config.rows, HEADS // KV_HEADS, KV_HEADS, PAGE, 5)
    plan = plan_tiles([], [], chunks, shape, trees)
    q = torch.randn(len(rows), HEADS, D, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)
    values = torch.full((max(plan.parts, 1) * KV_HEADS * config.rows, D), float("nan"), device=DEVICE)
    sums = torch.full((len(values),), float("nan"), device=DEVICE)
    out = torch.full_like(q, float("nan"))
    tile_attention(
        q, pool, table, places, torch.from_numpy(plan.words).to(DEVICE), ints([len(plan.items)]),
        torch.from_numpy(plan.members).to(DEVICE), out, values, sums, config, shape.programs, trees=True,
    )  # fmt: skip
    splits, first = (torch.from_numpy(one).to(DEVICE) for one in (plan.splits, plan.first))
    left = Tiles(splits, first, values, sums, config.rows)
    merge(out, ints([0]), left, KV_HEADS)
    assert error(out, reference(q, pool, table, rows, places, until)) < TOLERANCE[dtype]


def test_cascade_of_nested_prefixes() -> None:
    """Four rows share 64 keys, two of them 96, one shares nothing; prefixes are tiles, the rest is decoded."""
    dtype = torch.float32
    lengths = [100, 70, 130, 97, 50]
    pool, table = setting(lengths, dtype)
    table[1:4, :4] = table[0, :4]
    table[2:4, :6] = table[2, :6]
    rows, positions = ints([0, 1, 2, 3, 4]), ints([length - 1 for length in lengths])
    shared = ints([64, 64, 96, 96, 0])
    config = TileConfig(rows=16, block=32)
    group = HEADS // KV_HEADS
    # The prefix of four is cut in two, that of two begins where it ends.
    items = [[0, 4, 0, 0, 32, 0], [0, 4, 0, 32, 64, 1], [2, 2, 2, 64, 96, 2]]
    size = KV_HEADS * config.rows
    tiles = ints([2, 0, 2, 0, 2, 1, 2, 1, 0, 0]).view(5, 2)
    at = [[0, 0], [group, 0], [2 * group, 2 * size], [3 * group, 2 * size + group], [0, 0]]
    values = torch.full((3 * size, D), float("nan"), device=DEVICE)
    sums = torch.full((3 * size,), float("nan"), device=DEVICE)
    q = torch.randn(5, HEADS, D, generator=torch.Generator().manual_seed(4)).to(DEVICE)
    out = torch.full_like(q, float("nan"))
    tile_attention(
        q, pool, table, positions, items_of(items), ints([3]), ints([0, 1, 2, 3, 4]), out, values, sums,
        config, 2,
    )  # fmt: skip
    decode = DecodeConfig(block=16)
    for processors in (1, 2, 9):
        scratch = decode_scratch(decode, 5, HEADS, KV_HEADS, D, DEVICE, processors)
        count_blocks(positions, shared, ints([5]), scratch, decode)
        left = Tiles(tiles, table_of(at), values, sums, config.rows)
        decode_attention(q, pool, table, rows, positions, shared, ints([5]), out, scratch, decode, tiles=left)
        assert error(out, reference(q, pool, table, rows, positions)) < 2e-6
