"""Steps and batches made by hand, for tests of executors and attention that need no engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sglc.runtime.step import SAMPLED, Batch, Opened, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of a step: `tokens` at positions `first` and up, KV in `pages`.

    With `begins` off, the executor knows length, pages and sampling from the row's steps before.
    """

    tokens: Sequence[int]
    pages: Sequence[int]
    first: int = 0
    row: int = 0
    sample: bool = True
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    seed: int = 0
    no_eos: bool = False
    begins: bool = True


def make_step(
    rows: Sequence[Row],
    page_size: int,
    *,
    index: int = 0,
    copies: Sequence[tuple[int, int, int]] = (),
    score: Sequence[tuple[int, int]] = (),
) -> Step:
    """`rows` as one step, those with one `SAMPLED` token first; `score` holds (token offset, id)."""
    decoding = sum(list(row.tokens) == [SAMPLED] for row in rows)
    assert all(list(row.tokens) == [SAMPLED] for row in rows[:decoding])
    begun = [row for row in rows if row.begins]
    entries = [(row.row, at, page) for row in begun for at, page in enumerate(row.pages)]
    ends = [row.first + len(row.tokens) for row in begun]
    return Step(
        index=index,
        rows=np.array([row.row for row in rows], np.int32),
        decoding=decoding,
        lengths=np.array([len(row.tokens) for row in rows[decoding:]], np.int32),
        ids=np.array([token for row in rows[decoding:] for token in row.tokens], np.int32),
        opened=Opened(
            rows=np.array([row.row for row in begun], np.int32),
            seq_len=np.array([row.first for row in begun], np.int32),
            temperature=np.array([row.temperature for row in begun], np.float32),
            top_p=np.array([row.top_p for row in begun], np.float32),
            top_k=np.array([row.top_k for row in begun], np.int32),
            min_p=np.array([row.min_p for row in begun], np.float32),
            seeds=np.array([row.seed for row in begun], np.uint64),
            eos_from=np.array([(end + 1) * row.no_eos for end, row in zip(ends, begun, strict=True)], np.int32),
        ),
        pages=np.array(entries, np.int32).reshape(-1, 3),
        copies=np.array(copies, np.int32).reshape(-1, 3),
        sample=np.array([row.sample for row in rows], np.bool_),
        score_at=np.array([offset for offset, _ in score], np.int32),
        score_ids=np.array([token for _, token in score], np.int32),
    )


def make_batch(
    rows: Sequence[Row],
    page_size: int,
    *,
    index: int = 0,
    copies: Sequence[tuple[int, int, int]] = (),
    score: Sequence[tuple[int, int]] = (),
) -> Batch:
    """The same written out, independently; `score` holds (token offset, id)."""
    columns = max(len(row.pages) for row in rows)
    pages = np.full((len(rows), columns), -1, np.int32)
    positions: list[int] = []
    slots: list[int] = []
    for line, row in zip(pages, rows, strict=True):
        line[: len(row.pages)] = row.pages
        here = range(row.first, row.first + len(row.tokens))
        positions += here
        slots += [row.pages[p // page_size] * page_size + p % page_size for p in here]
    return Batch(
        index=index,
        rows=np.array([row.row for row in rows], np.int32),
        starts=np.cumsum([0, *(len(row.tokens) for row in rows)]).astype(np.int32),
        tokens=np.array([token for row in rows for token in row.tokens], np.int32),
        positions=np.array(positions, np.int32),
        slots=np.array(slots, np.int32),
        pages=pages,
        copies=np.array(copies, np.int32).reshape(-1, 3),
        sample=np.array([row.sample for row in rows], np.bool_),
        temperature=np.array([row.temperature for row in rows], np.float32),
        top_p=np.array([row.top_p for row in rows], np.float32),
        min_p=np.array([row.min_p for row in rows], np.float32),
        top_k=np.array([row.top_k for row in rows], np.int32),
        seeds=np.array([row.seed for row in rows], np.uint64),
        no_eos=np.array([row.no_eos for row in rows], np.bool_),
        score_at=np.array([offset for offset, _ in score], np.int32),
        score_ids=np.array([token for _, token in score], np.int32),
    )
