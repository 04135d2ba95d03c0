"""The sampling kernels choose what torch chooses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np
import pytest
import torch
from torch import Tensor

from sglc.runtime.executor.logits_output import SamplerInput, noise_keys
from sglc.runtime.executor.sampler import exponentials, filtered
from sglc.runtime.kernels.automata import Automata
from sglc.runtime.kernels.rows import LAST, BatchLists, RowState, batch_lists, pack, row_state, stage
from sglc.runtime.kernels.sample import (
    RaceShape,
    SampleScratch,
    adjustments,
    race_parts,
    race_shape,
    sample,
    sample_scratch,
)
from sglc.runtime.kernels.sample_filter import filter_rows
from sglc.runtime.kernels.winners import check_winners
from sglc.runtime.step import Filters, Opened, Step, pack_masks
from tests.depth import DEPTH, at_depth, some_of
from tests.runtime.test_sampler import choose

pytestmark = pytest.mark.kernel

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Triton's interpreter rounds to bfloat16 by cutting digits off; logits are only read here.
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
VOCAB = 5003  # three blocks, the last one cut; no multiple of anything
EOS = (7, 2048, 5002)


@pytest.fixture(autouse=True)
def numpy_overflows_silently() -> Iterator[None]:
    """The interpreter computes with numpy, which warns where a weight is meant to become 0 or infinite."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        yield


@dataclass(frozen=True)
class Case:
    """Rows that sample, as the device and as `choose` see them."""

    choice: SamplerInput
    state: RowState
    lists: BatchLists


def case(*rows: dict[str, float], seeds: int = 0, samples: list[bool] | None = None, bucket: int = 0) -> Case:
    """One row of the batch per mapping; "at" is the position sampled for, from "eos_from" on eos may end it."""
    count = len(rows)
    rng = np.random.default_rng(seeds)

    def column(key: str, default: float, dtype: type) -> np.ndarray:
        return np.array([row.get(key, default) for row in rows], dtype)

    at, eos_from = column("at", 9, np.int32), column("eos_from", 0, np.int32)
    numbers = rng.permutation(40)[:count].astype(np.int32)
    opened = Opened(
        rows=numbers,
        seq_len=at - 2,
        temperature=column("temperature", 1.0, np.float32),
        top_p=column("top_p", 1.0, np.float32),
        top_k=column("top_k", -1, np.int32),
        min_p=column("min_p", 0.0, np.float32),
        seeds=rng.integers(0, 2**64 - 1, count, np.uint64, endpoint=True),
        eos_from=eos_from,
    )
    step = Step(
        index=0,
        rows=numbers,
        decoding=0,
        sample=np.array(samples or [True] * count),
        lengths=np.full(count, 2, np.int32),
        ids=np.zeros(2 * count, np.int32),
        opened=opened,
    )
    state = row_state(40, 1, 0, DEVICE)
    lists = batch_lists(128, 64, state.dummy, DEVICE)
    packed = pack(step, (2 * count, max(count, bucket)), state.dummy, np.zeros(4096, np.int32))
    none = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    stage(torch.from_numpy(packed.words.copy()).to(DEVICE), packed, state, lists, none)
    choice = SamplerInput(
        opened.temperature,
        opened.top_k,
        opened.top_p,
        opened.min_p,
        at < eos_from,
        noise_keys(opened.seeds, at),
    )
    return Case(choice, state, lists)


def random_logits(
    count: int, dtype: torch.dtype = torch.float32, vocab: int = VOCAB, spread: float = 2.5
) -> Tensor:
    generator = torch.Generator().manual_seed(count + vocab)
    return (torch.randn(count, vocab, generator=generator) * spread).to(DEVICE, dtype)


def lowest_of(logits: Tensor, case: Case, scratch: SampleScratch) -> Tensor:
    """The lowest logit of each row that filters keep, of rows without -inf: [R, 1]. Whoever won is not kept."""
    count, vocab = logits.shape
    scratch.values[2, :count] = logits.float().amax(1)
    scratch.values[3] = 0.5
    scratch.ids[:count] = logits.argmin(1)
    eos = torch.tensor(EOS, dtype=torch.int32, device=DEVICE)
    masks = Automata((), vocab, eos, 8, words=8, masks=0).tables.masks
    added = adjustments(41, vocab, DEVICE).added
    read = (logits, case.lists.rows, case.state.fields, eos, masks, added)
    less, lowest = scratch.known, torch.full((count,), float("-inf"), device=DEVICE)
    less.listed[:4] = 0
    check_winners(*read, scratch.values, scratch.ids, 1, 128, 8192, less, Filters.ALL)
    filter_rows(*read, less, scratch.filters, Filters.ALL)
    for kind, found in enumerate(less.listed[:3].tolist()):
        listed = less.listed[4 + kind * len(less.lowest) :][:found]
        lowest[listed] = less.lowest[listed]
    return lowest[:, None]


def run(
    logits: Tensor,
    case: Case,
    masks: np.ndarray | None = None,
    scratch: SampleScratch | None = None,
    filters: Filters = Filters.ALL,
) -> tuple[Tensor, Tensor]:
    """`masks` bool [M, V] are there for the rows' state to name."""
    count = len(logits)
    ids = torch.full((count,), -77, dtype=torch.int32, device=DEVICE)
    logprobs = torch.full((count,), float("nan"), device=DEVICE)
    scratch = scratch or sample_scratch(64, DEVICE)
    for part in (scratch.known, scratch.filters):
        for each in fields(part):
            poisoned = getattr(part, each.name)
            poisoned.fill_(float("nan") if poisoned.is_floating_point() else 10**9)
    scratch.values.fill_(float("nan"))
    scratch.ids.fill_(10**9)
    eos = torch.tensor(EOS, dtype=torch.int32, device=DEVICE)
    automata = Automata((), logits.shape[1], eos, 8, words=8, masks=0).tables
    if masks is not None:
        bits = pack_masks(masks)
        automata.masks[: len(bits), : bits.shape[1]] = torch.from_numpy(bits).to(DEVICE)
    follows = torch.full((count,), -77, dtype=torch.int32, device=DEVICE)
    sample(
        logits, case.lists, case.state, eos, scratch, automata, adjustments(41, logits.shape[1], DEVICE),
        ids, logprobs, follows, filters=filters,
    )  # fmt: skip
    assert follows.tolist() == [2] * count
    return ids.cpu(), logprobs.cpu()


def check(
    logits: Tensor, case: Case, scratch: SampleScratch | None = None, filters: Filters = Filters.ALL
) -> Tensor:
    ids, logprobs = run(logits, case, scratch=scratch, filters=filters)
    count = len(case.choice.temperature)
    wanted, wanted_logprobs = choose(logits[:count], case.choice, torch.tensor(EOS, device=DEVICE))
    assert ids[:count].tolist() == wanted.tolist()
    torch.testing.assert_close(logprobs[:count], wanted_logprobs.cpu(), atol=2e-5, rtol=1e-5)
    return ids


def race_by(monkeypatch: pytest.MonkeyPatch, programs: int) -> None:
    """However few or many rows there are."""
    shape = RaceShape(programs=programs, block=2048, warps=4, registers=80)
    monkeypatch.setattr("sglc.runtime.kernels.sample.race_shape", lambda rows: shape)


@pytest.mark.parametrize(
    ("dtype", "programs"), some_of([(DTYPES[0], 792), (DTYPES[1], 1), (DTYPES[2], 24)], 1, 2)
)
def test_chooses_as_the_sampler(dtype: torch.dtype, programs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With each block its own part, with all in one, and with two of three together."""
    race_by(monkeypatch, programs)
    rows = [{"temperature": t, "at": at} for t in (0.0, 1e-6, 0.3, 1.0, 1.7, 30.0) for at in (2, 1000)]
    assert race_parts(len(rows), VOCAB)[0] == {792: 3, 24: 2, 1: 1}[programs]
    logits = random_logits(len(rows), dtype)
    # The best ones so far rise from block to block, also for what may be sampled.
    logits += torch.arange(VOCAB, device=DEVICE) // 2048 * 3
    ids = check(logits, case(*rows))
    assert len(set(ids.tolist())) > 8
    falling = logits.flip(1).contiguous()
    check(falling, case(*rows, seeds=1))


@pytest.mark.parametrize("vocab", [1, 31, 2047, 2048, 2049, 4096])
def test_vocabularies_around_blocks(vocab: int) -> None:
    check(random_logits(4, vocab=vocab), case({}, {"temperature": 0.0}, {"temperature": 4.0}, {"min_p": 0.5}))


def test_one_row_and_many_are_cut_differently_and_choose_the_same() -> None:
    count = at_depth(8, 8, 40)
    logits = random_logits(count)
    rows = [{"temperature": 0.5 + 2 * row / count} for row in range(count)]
    together = check(logits, case(*rows))
    assert race_parts(1, 151_936)[0] > race_parts(256, 151_936)[0] > 1
    everything = case(*rows)
    for row in (0, count // 2, count - 1):
        alone = BatchLists(
            everything.lists.tokens,
            everything.lists.rows[:, row:].contiguous(),
            everything.lists.decoding,
            everything.lists.token_rows,
            everything.lists.ends,
        )
        ids, _ = run(logits[row : row + 1], Case(everything.choice, everything.state, alone))
        assert ids.tolist() == together[row : row + 1].tolist()


@pytest.mark.parametrize(
    ("rows", "vocab"), [(1, 151_936), (256, 151_936), (512, 128_256), (2000, 50_257), (3, 5)]
)
def test_parts_cover_the_vocabulary(rows: int, vocab: int) -> None:
    parts, chunk = race_parts(rows, vocab)
    assert (parts - 1) * chunk < vocab <= parts * chunk
    assert parts * rows <= max(race_shape(rows).programs, rows)


def test_ends_only_from_its_position_on() -> None:
    logits = random_logits(8)
    logits[:, list(EOS)] = 40.0
    rows = [
        {"temperature": t, "at": at, "eos_from": 10, "top_k": k}
        for t in (0.0, 1.0)
        for at in (9, 10)
        for k in (-1, 2)
    ]
    ids = check(logits, case(*rows))
    assert [token in EOS for token in ids.tolist()] == [row["at"] >= 10 for row in rows]


FILTERS = [
    {"top_k": 1},
    {"top_k": 50},
    {"top_k": VOCAB - 1},
    {"top_k": VOCAB},
    {"top_k": 0, "top_p": 0.9},
    {"top_p": 0.01},
    {"top_p": 0.0},
    {"top_p": 0.999},
    {"top_k": 20, "top_p": 0.8},
    {"min_p": 0.1},
    {"min_p": 1.0},
    {"top_k": 100, "top_p": 0.9, "min_p": 0.05},
]


@pytest.mark.parametrize(("dtype", "temperature"), list(zip(DTYPES, (2.0, 0.4, 1.0), strict=True)))
def test_filters_keep_what_the_sampler_keeps(dtype: torch.dtype, temperature: float) -> None:
    """And so does the race among them."""
    here = slice(None) if DEPTH == "nightly" else slice(DTYPES.index(dtype), None, len(DTYPES))
    rows = [{**row, "temperature": temperature, "at": 5} for row in FILTERS[here]]  # type: ignore[dict-item]
    logits = random_logits(len(FILTERS), dtype)[here].contiguous()
    this = case(*rows)
    kept = filtered(logits.float(), this.choice, np.arange(len(rows))) > 0
    scratch = sample_scratch(64, DEVICE)
    ids, _ = run(logits, this, scratch=scratch)
    found = lowest_of(logits, this, scratch)
    assert torch.equal(logits.float() >= found, kept)
    wanted, _ = choose(logits, this.choice, torch.tensor(EOS, device=DEVICE))
    assert ids.tolist() == wanted.tolist()


@pytest.mark.parametrize(
    ("kind", "row"),
    [
        (Filters.NONE, {}),
        (Filters.TOP_P, {"top_p": 0.5, "min_p": 0.01}),
        (Filters.TOP_K, {"top_k": 9, "top_p": 0.7}),
        (Filters.MIN_P, {"min_p": 0.2}),
    ],
)
def test_what_one_kind_of_filter_needs_is_enough_for_it(kind: Filters, row: dict[str, float]) -> None:
    """Beside rows without filters, and with nothing known of a step before."""
    count = at_depth(6, 6, 20)  # of the 40 rows that there are
    check(random_logits(2 * count), case(*[row, {}] * count), filters=kind)


@pytest.mark.parametrize("row", [{"top_p": 0.6}, {"top_p": 0.5, "min_p": 0.02}])
def test_who_is_kept_of_the_best_wins_mostly_without_a_bound(row: dict[str, float]) -> None:
    """The winner of another part, or of that of the first one among what may be kept."""
    count = at_depth(20, 20, 40)
    scratch = sample_scratch(64, DEVICE)
    check(random_logits(count, spread=1.0), case(*[row] * count), scratch)
    by_bound, by_k, by_min, again = scratch.known.listed[:4].tolist()
    assert again > count // 10
    assert by_bound < again
    assert by_k == by_min == 0


@pytest.mark.parametrize("dtype", some_of(DTYPES[::-1], 1, 1))
def test_top_p_that_keeps_much_of_a_row(dtype: torch.dtype) -> None:
    """Which is found among the logits around the bound, and not among all."""
    of_top_p = [(spread, top_p) for spread in (0.3, 2.5) for top_p in (0.5, 0.99)]
    logits = torch.cat([random_logits(1, dtype, spread=spread) for spread, _ in of_top_p])
    this = case(*[{"top_p": top_p, "temperature": 1.3} for _, top_p in of_top_p])
    kept = filtered(logits.float(), this.choice, np.arange(len(of_top_p))) > 0
    assert (kept.sum(1) > 1000).sum() == 3
    scratch = sample_scratch(64, DEVICE)
    assert torch.equal(logits.float() >= lowest_of(logits, this, scratch), kept)
    assert (scratch.filters.likely[: len(of_top_p)] > float("-inf")).any((1, 2)).all()
    assert not scratch.filters.missed[: len(of_top_p)].any()  # else all are looked through


@pytest.mark.parametrize("dtype", some_of(DTYPES, 1, 1))
def test_filters_keep_ties_and_see_one_zero(dtype: torch.dtype) -> None:
    logits = torch.full((4, VOCAB), -3.0, dtype=dtype, device=DEVICE)
    logits[:, 100:140] = 0.0
    logits[:, 120:140] = -0.0
    logits[:, 4000] = 2.0
    rows = [{"top_k": 2}, {"top_k": 41}, {"top_k": 42}, {"top_k": 30, "top_p": 0.5}]
    this = case(*rows)
    kept = filtered(logits.float(), this.choice, np.arange(4)) > 0
    assert kept.sum(1).tolist() == [41, 41, VOCAB, 41]
    scratch = sample_scratch(64, DEVICE)
    assert torch.equal(logits.float() >= lowest_of(logits, this, scratch), kept)


def test_masks() -> None:
    rng = np.random.default_rng(4)
    masks = rng.random((3, VOCAB)) < 0.01
    masks[1] = False
    masks[1, VOCAB - 1] = True
    mask_of = np.array([2, -1, 1, 0, 2, 0], np.int32)
    rows: list[dict[str, float]] = [
        {},
        {},
        {},
        {"temperature": 0.0},
        {"top_k": 3},
        {"top_p": 0.5, "eos_from": 50},
    ]
    this = case(*rows)
    logits = random_logits(len(rows), torch.float16)
    numbers = this.lists.rows[0, : len(rows)].long()
    this.state.mask[numbers] = torch.from_numpy(mask_of).to(DEVICE)
    ids, logprobs = run(logits, this, masks)
    choice = this.choice
    masked = np.flatnonzero(mask_of >= 0)
    choice = SamplerInput(
        choice.temperature, choice.top_k, choice.top_p, choice.min_p, choice.no_eos, choice.keys,
        masked, masks[mask_of[masked]],
    )  # fmt: skip
    wanted, wanted_logprobs = choose(logits, choice, torch.tensor(EOS, device=DEVICE))
    assert ids.tolist() == wanted.tolist()
    assert ids[2] == VOCAB - 1
    torch.testing.assert_close(logprobs, wanted_logprobs.cpu(), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("vocab", [1, 8, 31, 32, 33, 64, 100])
def test_pack_masks(vocab: int) -> None:
    masks = np.random.default_rng(vocab).random((3, vocab)) < 0.5
    words = pack_masks(masks)
    assert words.shape == (3, -(-vocab // 32))
    assert words.dtype == np.int32
    at = np.arange(vocab)
    assert ((words[:, at // 32] >> (at % 32) & 1) == masks).all()


def test_strided_logits_rows_that_do_not_sample_and_padding() -> None:
    rows = [{"temperature": 0.7}, {}, {"top_k": 5}]
    this = case(*rows, samples=[True, False, True], bucket=6)
    wide = random_logits(6, torch.bfloat16, VOCAB + 13)
    logits = wide[:, 2 : VOCAB + 2]
    before = this.state.fields.clone()
    ids, logprobs = run(logits, this)
    wanted, _ = choose(logits[:3], this.choice, torch.tensor(EOS, device=DEVICE))
    assert ids.tolist() == [wanted[0].item(), -1, wanted[2].item(), -1, -1, -1]
    assert logprobs[[1, 3, 4, 5]].tolist() == [0.0] * 4
    # The step has ended: three rows have two tokens more, two of them a last token; nothing else changed.
    numbers = this.lists.rows[0, :3].long()
    after = this.state.fields.clone()
    assert this.state.last[numbers].tolist() == [wanted[0].item(), 0, wanted[2].item()]
    after[LAST.value, numbers] = 0
    after[0, numbers] -= 2
    assert torch.equal(after, before)


@pytest.mark.filterwarnings("ignore:All-NaN slice")
def test_banned_everything_and_nan_give_a_token_that_exists() -> None:
    logits = random_logits(3)
    logits[0] = float("-inf")
    logits[1] = float("nan")
    logits[2, :] = float("-inf")
    logits[2, 4321] = 1.0
    ids, logprobs = run(logits, case({}, {}, {}))
    assert all(0 <= token < VOCAB for token in ids.tolist())
    assert ids[2] == 4321
    assert logprobs[2] == 0.0


def test_noise_is_the_samplers() -> None:
    """With equal logits the race is decided by the noise alone."""
    count = at_depth(8, 8, 24)
    this = case(*[{"at": at} for at in range(2, 2 + count)], seeds=3)
    ids, _ = run(torch.zeros(count, VOCAB, device=DEVICE), this)
    assert ids.tolist() == exponentials(this.choice.keys, VOCAB, torch.device(DEVICE)).argmin(-1).tolist()


def test_two_equal_tokens_in_different_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their noise is not small, where its lower bound says little."""
    race_by(monkeypatch, 1)
    count = at_depth(8, 8, 24)
    logits = torch.zeros(count, VOCAB, device=DEVICE)
    logits[:, [11, 3000]] = 60.0
    ids = check(logits, case(*[{"at": at} for at in range(2, 2 + count)]))
    assert set(ids.tolist()) == {11, 3000}


def test_no_rows() -> None:
    ids, _ = run(torch.empty(0, VOCAB, device=DEVICE), case({}))
    assert ids.tolist() == []
