"""The compiled kernels of the CPU against torch: products of every kind, and whole steps of every shape."""

from __future__ import annotations

import ctypes
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, ReaderTensor, dequantize, quantize
from numpy.typing import NDArray

from sglc import knobs
from sglc.backends.local import LocalBackend, LocalOptions
from sglc.errors import BackendError
from sglc.ir.sampling import Sampling
from sglc.runtime.engine.engine import Engine, EngineConfig
from sglc.runtime.engine.loading import cpu_executor
from sglc.runtime.executor import cpu_choice
from sglc.runtime.executor.cpu_executor import CpuExecutor, free_cores
from sglc.runtime.executor.cpu_model import CpuModel, draw, fits, head_product, logits_kernels
from sglc.runtime.executor.logits_output import LogitsOutput, SamplerInput, noise_keys
from sglc.runtime.executor.sampler import TORCH, drawn
from sglc.runtime.executor.torch_executor import TorchExecutor
from sglc.runtime.kernels import cpu_build
from sglc.runtime.model.packed_weights import (
    Kind,
    PackedMatrix,
    joined,
    pack_codes,
    pack_floats,
    pack_gguf,
    read_packed,
)
from sglc.runtime.model.weights import load_config, load_weights
from sglc.runtime.scheduler.requests import PromptScored, RequestFailed, SampleDone, ScoreDone
from sglc.runtime.step import Step
from tests.depth import at_depth, some_of
from tests.runtime.reference_models import KINDS, tiny_model
from tests.runtime.test_torch_executor import in_new_thread
from tests.runtime.tiny_model import save_tiny_model

pytestmark = pytest.mark.slow

SIZES: dict[str, object] = {
    "hidden_size": 96, "intermediate_size": 160, "head_dim": 32, "num_attention_heads": 6,
    "num_hidden_layers": 2,
}  # fmt: skip


def instruction_sets() -> list[str]:
    """Flags that leave sets out, of those that this machine has: each is another width of registers."""
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").is_file() else ""
    narrow = "-mno-avx512f" + " -mno-avxvnni" * ("avx_vnni" in flags)
    return [
        "",
        *["-mno-avx512vnni"] * ("avx512_vnni" in flags),
        *["-mno-avx512f"] * ("avx_vnni" in flags and "avx512f" in flags),
        *[narrow] * ("avx512f" in flags),
        *["-mno-avx"] * ("avx2" in flags),
    ]


@pytest.fixture(scope="module", params=some_of(instruction_sets(), 1, 2))
def kernels(request: pytest.FixtureRequest) -> ctypes.CDLL:
    return ctypes.CDLL(str(cpu_build.build(*request.param.split())))


@pytest.mark.parametrize("vocab", [17, 64, 5003])
def test_samples_are_torchs(kernels: ctypes.CDLL, vocab: int) -> None:
    """Every filter, beside each other, at every temperature; flat and steep rows, with ties, masked, and of
    nothing at all."""
    rng = np.random.default_rng(vocab)
    for trial in range(at_depth(40, 60, 2000)):
        rows = 5
        logits = torch.from_numpy(rng.normal(0, rng.choice([0.5, 2.5, 8]), (rows, vocab)).astype(np.float32))
        if trial % 3 == 0:
            logits = logits.bfloat16().float()
        allowed = logits.clone()
        if trial % 4 == 1:
            allowed[:, ::3] = -torch.inf
        if trial % 20 == 1:
            allowed[0] = -torch.inf
        choice = SamplerInput(
            rng.choice([0, 1e-6, 0.3, 1, 1.7, 30], rows).astype(np.float32),
            rng.choice([-1, 1, 5, 50, vocab, 3000], rows).astype(np.int32),
            rng.choice([1, 0.9, 0.5, 0.01, 0.999, 0.0], rows).astype(np.float32),
            rng.choice([0, 0.05, 0.5, 1], rows).astype(np.float32),
            np.zeros(rows, np.bool_),
            noise_keys(rng.integers(0, 2**63, rows).astype(np.uint64), np.arange(rows, dtype=np.int32)),
        )
        ids, logprobs = draw(kernels, 1 + trial % 2, logits, allowed, choice)
        wanted, wanted_logprobs = drawn(logits, allowed, choice)
        assert ids.tolist() == wanted.tolist(), (trial, choice)
        torch.testing.assert_close(logprobs, wanted_logprobs, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("vocab", [17, 64, 5003])
def test_likeliest_ids_and_log_probabilities_are_torchs(kernels: ctypes.CDLL, vocab: int) -> None:
    """Few of many and all there are, with ties, of which torch takes any, and with what cannot come."""
    rng = np.random.default_rng(vocab)
    for trial in range(at_depth(20, 40, 1000)):
        logits = torch.from_numpy(rng.normal(0, rng.choice([0.5, 8]), (5, vocab)).astype(np.float32))
        if trial % 3 == 0:
            logits = logits.bfloat16().float()
        if trial % 4 == 1:
            logits[:, ::3] = -torch.inf
        own, torchs = logits_kernels(kernels, 1 + trial % 2), TORCH
        count = int(rng.choice([1, 2, 20, vocab]).clip(max=vocab))
        ids, logprobs = own.likeliest(logits, count)
        torch.testing.assert_close(logprobs, torchs.likeliest(logits, count)[1], atol=2e-5, rtol=1e-5)
        assert all(len(set(row)) == count for row in ids.tolist())
        at = torch.arange(5)[:, None].expand_as(ids).flatten()
        found = own.log_probabilities(logits, ids.flatten(), at)
        assert torch.equal(found, logprobs.flatten())
        torch.testing.assert_close(
            found, torchs.log_probabilities(logits, ids.flatten(), at), atol=2e-5, rtol=1e-5
        )


def test_a_job_may_have_a_million_tasks(kernels: ctypes.CDLL) -> None:
    """As attention has for many rows of long texts."""
    logits, ids = torch.zeros(2**20 + 1, 1), torch.zeros(1, dtype=torch.int64)
    assert logits_kernels(kernels, 2).log_probabilities(logits, ids, ids).tolist() == [0]


def test_logits_that_are_no_numbers_are_the_least_likely(kernels: ctypes.CDLL) -> None:
    logits = torch.full((2, 300), torch.nan)
    logits[0, 7], logits[0, 70] = 1, 2
    ids, _ = logits_kernels(kernels, 1).likeliest(logits, 3)
    assert ids.tolist() == [[70, 7, 0], [0, 0, 0]]


@pytest.mark.parametrize("temperature", [1e-45, 2e-39, 1, 3e38])
@pytest.mark.parametrize("top_k", [-1, 2])
def test_a_token_that_is_alone_wins(kernels: ctypes.CDLL, temperature: float, top_k: int) -> None:
    """At temperatures that have no reciprocal, and with the largest of noise."""
    noisy = np.array([0x38B92A73A64F9B3B, 0x79013770E77A9484], np.uint64)  # at the id 1
    logits = torch.zeros(2, 100)
    allowed = torch.full_like(logits, -torch.inf)
    allowed[:, 1] = 0
    choice = SamplerInput(
        np.full(2, temperature, np.float32), np.full(2, top_k, np.int32), np.ones(2, np.float32),
        np.zeros(2, np.float32), np.zeros(2, np.bool_), noisy,
    )  # fmt: skip
    assert draw(kernels, 1, logits, allowed, choice)[0].tolist() == [1, 1]
    assert drawn(logits, allowed, choice)[0].tolist() == [1, 1]


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted there")
def test_counts_of_threads_in_turns_begin_no_more_of_them(kernels: ctypes.CDLL) -> None:
    choice = SamplerInput(
        np.ones(2, np.float32), np.full(2, -1, np.int32), np.ones(2, np.float32), np.zeros(2, np.float32),
        np.zeros(2, np.bool_), noise_keys(np.arange(2, dtype=np.uint64), np.zeros(2, np.int32)),
    )  # fmt: skip
    logits = torch.zeros(2, 100)
    for turn in range(30):
        draw(kernels, 1 + turn % 3, logits, logits, choice)
        if turn == 2:
            begun = len(os.listdir("/proc/self/task"))
    assert len(os.listdir("/proc/self/task")) < begun + 10  # 10 more of each would be 30


def executors(
    kernels: ctypes.CDLL, folder: Path, kind: str, **fields: object
) -> tuple[CpuExecutor, TorchExecutor]:
    model, config = tiny_model(folder, kind, **(SIZES | fields))
    assert fits(config, 16)
    weights = {name: weight.detach() for name, weight in model.state_dict().items()}
    return (
        CpuExecutor(kernels, config, weights, {}, pages=200, eos_ids=(2,)),
        TorchExecutor(config, weights, page_size=16, pages=200, eos_ids=(2,)),
    )


@pytest.mark.parametrize("pages", [1, 2, 200])
def test_steps_are_measured_in_any_pool(kernels: ctypes.CDLL, tmp_path: Path, pages: int) -> None:
    model, config = tiny_model(tmp_path, "llama", **SIZES)
    weights = {name: weight.detach() for name, weight in model.state_dict().items()}
    for executor in (
        CpuExecutor(kernels, config, weights, {}, pages=pages),
        TorchExecutor(config, weights, page_size=16, pages=pages),
    ):
        cost = in_new_thread(executor.measure)
        assert cost is not None
        assert cost.products_s[0][1] > 0
        assert min(cost.key_s, cost.pair_s) >= 0


@pytest.mark.parametrize("max_len", [8, 32, 200])
def test_steps_of_a_model_of_few_tokens_are_measured(
    kernels: ctypes.CDLL, tmp_path: Path, max_len: int
) -> None:
    model, config = tiny_model(tmp_path, "llama", **SIZES, max_position_embeddings=max_len)
    weights = {name: weight.detach() for name, weight in model.state_dict().items()}
    for executor in (
        CpuExecutor(kernels, config, weights, {}, pages=200),
        TorchExecutor(config, weights, page_size=16, pages=200),
    ):
        assert (in_new_thread(executor.measure) is None) == (max_len == 8)
    pages = TorchExecutor(config, weights, page_size=256, pages=2)  # a page is longer than a text
    assert (in_new_thread(pages.measure) is None) == (max_len == 8)


def test_a_stream_of_a_model_that_torch_runs_does_not_wait_for_a_whole_prompt(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, max_position_embeddings=2048)
    options = LocalOptions(str(tmp_path), device="cpu", process=False, kv_bytes=16 << 20)
    engine = LocalBackend(options)._load().engine
    assert type(engine.executor) is TorchExecutor
    tokens: list[int] = []
    launch = engine.executor.launch

    def launched(step: Step) -> LogitsOutput:
        tokens.append(len(step.ids) if step.decoding else 0)
        return launch(step)

    engine.executor.launch = launched  # type: ignore[method-assign]
    engine.gen(engine.extend(None, [5, 6, 7]), Sampling(max_tokens=50, ignore_eos=True), [1], eos_ids=())
    while not engine.rows.decoding().size:
        engine.step()
    engine.gen(engine.extend(None, [8] * 1500), Sampling(max_tokens=1), [1], eos_ids=())
    while engine.requests:
        engine.step()
    assert 0 < max(tokens) <= 256


@pytest.mark.parametrize("sizes", [SIZES, {}])
def test_positions_that_no_request_comes_to_take_no_memory(tmp_path: Path, sizes: dict[str, int]) -> None:
    """A table of rotations as long as the model says would have 2**31 rows."""
    model = save_tiny_model(tmp_path, max_position_embeddings=2**31, **sizes)
    token_bytes = (
        2 * 4 * model.config.num_hidden_layers * model.config.num_key_value_heads * model.config.head_dim
    )
    for max_len, length in ((100, 100), (None, 800)):
        options = LocalOptions(
            str(tmp_path), device="cpu", process=False, kv_bytes=800 * token_bytes, max_len=max_len
        )
        backend = LocalBackend(options)
        assert backend.server_info()["max_len"] == length
        engine = backend._load().engine
        engine.gen(
            engine.extend(None, [5] * (length - 9)), Sampling(max_tokens=9, ignore_eos=True), [1], eos_ids=()
        )
        while engine.requests:
            engine.step()
        backend.close()


def test_a_pool_without_a_page_is_refused(kernels: ctypes.CDLL, tmp_path: Path) -> None:
    model, config = tiny_model(tmp_path, "llama", **SIZES)
    weights = {name: weight.detach() for name, weight in model.state_dict().items()}
    with pytest.raises(BackendError, match="no room for a page"):
        CpuExecutor(kernels, config, weights, {}, pages=0)
    with pytest.raises(BackendError, match="no room for a page"):
        TorchExecutor(config, weights, page_size=16, pages=0)


def answers(executor: TorchExecutor, seed: int, stem_ids: int = 330) -> dict[tuple[int, str, int], Any]:
    """Random prompts, forks, scores of branching and straight choices; all at once, in small steps."""
    random = np.random.default_rng(seed)
    engine = Engine(
        executor, EngineConfig(token_budget=int(random.integers(20, 400)), max_rows=12, max_len=700)
    )
    stem = random.integers(3, 320, int(random.integers(1, stem_ids))).tolist()
    for index in range(int(random.integers(2, 9))):
        prompt = engine.extend(
            None, stem[: int(random.integers(1, len(stem) + 1))] + random.integers(3, 320, 5).tolist()
        )
        sampling = Sampling(
            max_tokens=int(random.integers(1, 20)),
            temperature=float(index % 2),
            n=1 + 2 * (index % 3 == 1),
            ignore_eos=True,
        )
        engine.gen(prompt, sampling, list(range(index, index + sampling.n)), eos_ids=())
        if index % 3 == 0:
            choices = [tuple(random.integers(3, 320, 3).tolist()) for _ in range(3)]
            engine.score(prompt, [*choices, choices[0][:2], (*choices[1][:1], 9)])
    made: dict[tuple[int, str, int], Any] = {}
    while not engine.idle:
        for event in engine.step():
            assert not isinstance(event, RequestFailed), event
            if isinstance(event, SampleDone):
                made[event.request, "sample", event.sample] = event
            elif isinstance(event, ScoreDone | PromptScored):
                made[event.request, type(event).__name__, 0] = event
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_those_of_torch(kernels: ctypes.CDLL, kind: str, tmp_path: Path) -> None:
    tied = kind == "llama"
    ours, theirs = executors(kernels, tmp_path, kind, tie_word_embeddings=tied)
    for seed in range(at_depth(2, 4, 100)):
        mine, reference = answers(ours, seed), answers(theirs, seed)
        assert mine.keys() == reference.keys()
        assert len(mine) > 1
        for key, event in mine.items():
            other = reference[key]
            if isinstance(event, SampleDone):
                assert (event.ids, event.finish) == (other.ids, other.finish), (seed, key)
                np.testing.assert_allclose(event.logprobs, other.logprobs, atol=2e-4)
            else:
                for one, two in zip(event.logprobs, other.logprobs, strict=True):
                    np.testing.assert_allclose(one, two, atol=2e-4)


def long_answers(executor: TorchExecutor, seed: int, forked: bool) -> list[SampleDone]:
    """Texts behind more keys than one pass takes: some behind the same ones, one behind others, one behind few.

    With `forked` several tokens a row are forced, too.
    """
    random = np.random.default_rng(seed)
    engine = Engine(executor, EngineConfig(token_budget=300, max_rows=12, max_len=2000))
    stem = engine.extend(None, random.integers(3, 320, int(random.integers(500, 1100))).tolist())
    prompts = [engine.extend(stem, random.integers(3, 320, int(n)).tolist()) for n in random.integers(1, 40, 9)]
    prompts += [engine.extend(None, random.integers(3, 320, n).tolist()) for n in (700, 30)]
    for index, prompt in enumerate(prompts):
        sampling = Sampling(max_tokens=12, temperature=float(index % 2), ignore_eos=True)
        engine.gen(prompt, sampling, [index], eos_ids=())
        if forked:
            engine.score(prompt, [tuple(random.integers(3, 320, 4).tolist()) for _ in range(3)])
    made: dict[tuple[int, int], SampleDone] = {}
    while not engine.idle:
        made |= {(e.request, e.sample): e for e in engine.step() if isinstance(e, SampleDone)}
    assert len(made) == len(prompts)
    return [made[key] for key in sorted(made)]


@pytest.mark.parametrize("page_size", [16, 48])
def test_keys_of_long_rows_are_read_in_spans(kernels: ctypes.CDLL, page_size: int, tmp_path: Path) -> None:
    model, config = tiny_model(tmp_path, "llama", **SIZES, max_position_embeddings=2048)
    weights = {name: weight.detach() for name, weight in model.state_dict().items()}
    ours = CpuExecutor(kernels, config, weights, {}, page_size=page_size, pages=400)
    theirs = TorchExecutor(config, weights, page_size=page_size, pages=400)
    for seed in range(at_depth(1, 2, 40)):
        for mine, other in zip(
            long_answers(ours, seed, seed % 2 == 1), long_answers(theirs, seed, seed % 2 == 1), strict=True
        ):
            assert mine.ids == other.ids
            np.testing.assert_allclose(mine.logprobs, other.logprobs, atol=2e-4)


@pytest.mark.parametrize(
    "sizes",
    some_of(
        [
            {"num_attention_heads": 4, "num_key_value_heads": 4},
            {"num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 16},
            {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 80},
            {"intermediate_size": 1056, "vocab_size": 331},
            {"hidden_size": 2080},
        ],
        2,
        5,
    ),
)
def test_sizes_that_do_not_fill_registers(
    kernels: ctypes.CDLL, sizes: dict[str, object], tmp_path: Path
) -> None:
    ours, theirs = executors(
        kernels, tmp_path, "qwen3", num_hidden_layers=1, **({"initializer_range": 0.05} | sizes)
    )
    mine, reference = answers(ours, 3), answers(theirs, 3)
    for key, event in mine.items():
        if isinstance(event, SampleDone):
            assert event.ids == reference[key].ids


def test_heads_of_one_key_value_head_have_a_limit(kernels: ctypes.CDLL, tmp_path: Path) -> None:
    many = {"hidden_size": 96, "num_hidden_layers": 1, "num_key_value_heads": 1, "head_dim": 16}
    ours, theirs = executors(kernels, tmp_path, "llama", **(many | {"num_attention_heads": 24}))
    mine, reference = answers(ours, 3), answers(theirs, 3)
    assert [getattr(mine[key], "ids", ()) for key in mine] == [
        getattr(reference[key], "ids", ()) for key in mine
    ]
    assert not fits(replace(ours.config, heads=26), 16)  # written behind the end of an array


def test_threads_do_not_change_an_answer(
    kernels: ctypes.CDLL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    for threads in (1, 2, 5):
        monkeypatch.setattr("sglc.runtime.executor.cpu_executor.free_cores", lambda threads=threads: threads)
        executor = executors(kernels, tmp_path, "llama")[0]
        made.append({key: getattr(event, "ids", event) for key, event in answers(executor, 1).items()})
    assert made[0] == made[1] == made[2]


def multiply(
    kernels: ctypes.CDLL, tmp_path: Path, matrix: PackedMatrix, x: NDArray[np.float32]
) -> NDArray[np.float32]:
    """x [rows, K] times `matrix`, by way of a model's head."""
    _, config = tiny_model(tmp_path, "llama", **SIZES)
    model, _ = tiny_model(tmp_path, "llama", **SIZES)
    config = replace(config, vocab_size=matrix.rows, tied=False)
    cpu = CpuModel(kernels, config, dict(model.state_dict()), {"lm_head": matrix}, 2)
    return cpu.logits(torch.from_numpy(x)).numpy()


@pytest.mark.parametrize("rows", some_of([1, 2, 3, 4, 5, 8, 9, 13, 24, 193, 400], 4, 11))
@pytest.mark.parametrize("kind", list(Kind))
def test_products_of_every_kind(kernels: ctypes.CDLL, tmp_path: Path, kind: Kind, rows: int) -> None:
    random = np.random.default_rng(rows)
    outputs, inputs = 91, 96
    if kind in (Kind.Q4, Kind.Q8):
        low, high = (0, 16) if kind is Kind.Q4 else (-128, 128)
        codes = random.integers(low, high, (outputs, inputs))
        scale, minimum = random.standard_normal((2, outputs, inputs // 32)).astype(np.float32)
        matrix = pack_codes(codes, scale, minimum, 4 if kind is Kind.Q4 else 8)
        weight = codes * scale.repeat(32, 1) + minimum.repeat(32, 1)
    else:
        weight = random.standard_normal((outputs, inputs)).astype(np.float32)
        if kind is Kind.BF16:
            halves = torch.from_numpy(weight).bfloat16()
            weight = halves.float().numpy()
            matrix = pack_floats(halves.view(torch.uint16).numpy())
        else:
            matrix = pack_floats(weight)
    assert matrix.kind is kind
    x = random.standard_normal((rows, inputs)).astype(np.float32)
    np.testing.assert_allclose(
        multiply(kernels, tmp_path, matrix, x),
        x @ weight.T,
        rtol=1e-4,
        atol=2e-6 * np.abs(weight).max() * inputs,
    )


def coded(bits: int, outputs: int, inputs: int, seed: int) -> tuple[PackedMatrix, NDArray[np.float64]]:
    """A random matrix of codes, and the numbers that it means."""
    random = np.random.default_rng(seed)
    low, high = (0, 16) if bits == 4 else (-128, 128)
    codes = random.integers(low, high, (outputs, inputs))
    scale, minimum = random.standard_normal((2, outputs, inputs // 32)).astype(np.float32)
    weight = codes * scale.repeat(32, 1).astype(np.float64) + minimum.repeat(32, 1)
    return pack_codes(codes, scale, minimum, bits), weight


ROWS = some_of([1, 2, 3, 4, 5, 8, 9, 13, 24, 193, 400], 4, 11)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("bits", [4, 8])
def test_inputs_of_16_bits_are_multiplied_exactly(kernels: ctypes.CDLL, bits: int, rows: int) -> None:
    """Integers without a rest give what float64 gives, but for the float32 of the sums of groups."""
    random = np.random.default_rng(rows)
    matrix, weight = coded(bits, 91, 1056, rows)
    whole = random.integers(-32767, 32768, (rows, 33, 32))
    whole[:, :, 7] = 32767 * random.choice([-1, 1], (rows, 33))
    x = (whole * 2.0 ** random.integers(-20, 4, (rows, 33, 1))).reshape(rows, -1).astype(np.float32)
    got = head_product(kernels, 2, matrix, True, x)
    size = np.abs(x).astype(np.float64) @ np.abs(weight).T
    assert (np.abs(got - x @ weight.T) <= 1e-6 * size).all()


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("bits", [4, 8])
def test_inputs_of_16_bits_have_a_bound(kernels: ctypes.CDLL, bits: int, rows: int) -> None:
    """Half a step of a group for each of its weights, with outliers in some groups."""
    random = np.random.default_rng(rows)
    matrix, weight = coded(bits, 91, 1056, rows)
    x = random.standard_normal((rows, 1056)) * np.where(random.random((rows, 1056)) < 0.01, 1000, 1)
    x = x.astype(np.float32)
    got = head_product(kernels, 2, matrix, True, x)
    groups = np.abs(weight).reshape(91, 33, 32)
    codes = np.abs(weight).max() * 2  # of a weight without its minimum, at most
    step = np.abs(x).reshape(rows, 33, 32).max(2) / 65534
    bound = step @ (groups.sum(2) + codes).T + 2e-6 * (np.abs(x) @ np.abs(weight).T)
    error = np.abs(got - x.astype(np.float64) @ weight.T)
    assert (error <= bound).all()
    assert error.max() > 1e-7 * np.abs(got).max()  # they are not float32's


@pytest.mark.parametrize("bits", [4, 8])
def test_a_row_of_integers_does_not_depend_on_others(kernels: ctypes.CDLL, bits: int) -> None:
    """To the last bit, beside rows that are not numbers, too, and whatever the number of threads."""
    random = np.random.default_rng(bits)
    matrix, _ = coded(bits, 91, 1056, bits)
    x = random.standard_normal((400, 1056)).astype(np.float32)
    x[5], x[17, 3], x[30, 900], x[50, 64:96], x[60] = 0, np.nan, np.inf, 0, x[60] * np.float32(1e-35)
    alone = np.concatenate([head_product(kernels, 1, matrix, True, x[i : i + 1]) for i in range(len(x))])
    for rows in range(1, at_depth(20, 30, 400)):
        begin = int(random.integers(0, len(x) - rows))
        some = np.ascontiguousarray(x[begin : begin + rows])
        np.testing.assert_array_equal(head_product(kernels, 3, matrix, True, some), alone[begin : begin + rows])
    np.testing.assert_array_equal(head_product(kernels, 2, matrix, True, x), alone)
    finite = np.isfinite(alone).all(1)
    assert np.flatnonzero(~finite).tolist() == [17, 30]
    assert np.isnan(alone[17]).all() and not np.isfinite(alone[30]).any()  # noqa: PT018
    assert (alone[5] == 0).all()
    assert np.abs(alone[60]).max() < 1e-28


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q4_K", "Q8_0", "Q5_0", "Q6_K"])
def test_codes_of_a_file_are_its_numbers(kernels: ctypes.CDLL, tmp_path: Path, name: str) -> None:
    """Times the unit matrix: the weights themselves, each to the last bit but two."""
    kind = GGMLQuantizationType[name]
    columns = 768
    random = np.random.default_rng(1)
    if name in ("Q4_K", "Q6_K"):  # gguf can read and not write them
        halves = {"Q4_K": slice(0, 4), "Q6_K": slice(208, 210)}[name]
        data = random.integers(0, 256, (40, columns // 256, 144 if name == "Q4_K" else 210), np.uint8)
        data[..., halves] = np.array([0.02, 0.03], np.float16).view(np.uint8)[: halves.stop - halves.start]
        data = data.reshape(40, -1)
    else:
        data = quantize(random.standard_normal((40, columns)).astype(np.float32), kind)
    tensor = ReaderTensor(
        "t", kind, np.array([columns, 40], np.uint64), 40 * columns, data.nbytes, 0, data, None
    )  # type: ignore[arg-type]
    order = random.permutation(40)
    matrix = pack_gguf(tensor, order)
    if name in ("Q5_0", "Q6_K"):
        assert matrix is None
        return
    assert matrix is not None
    wanted = dequantize(data, kind)[order]
    model, config = tiny_model(tmp_path, "llama", **(SIZES | {"hidden_size": columns}))
    config = replace(config, vocab_size=40, tied=False)
    cpu = CpuModel(kernels, config, dict(model.state_dict()), {"lm_head": matrix}, 1)
    for rows in (1, columns):
        got = np.concatenate([cpu.logits(part).numpy() for part in torch.eye(columns).split(rows)])
        np.testing.assert_allclose(got.T, wanted, rtol=3e-7, atol=1e-6)


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q4_K", "Q8_0"])
def test_formats_with_inputs_of_16_bits(kernels: ctypes.CDLL, name: str) -> None:
    random = np.random.default_rng(4)
    kind = GGMLQuantizationType[name]
    if name == "Q4_K":
        data = random.integers(0, 256, (40, 3, 144), np.uint8)
        data[..., :4] = np.array([0.02, 0.03], np.float16).view(np.uint8)
        data = data.reshape(40, -1)
    else:
        data = quantize(random.standard_normal((40, 768)).astype(np.float32), kind)
    shape = np.array([768, 40], np.uint64)
    matrix = pack_gguf(ReaderTensor("t", kind, shape, 40 * 768, data.nbytes, 0, data, None))  # type: ignore[arg-type]
    assert matrix is not None
    weight = dequantize(data, kind).astype(np.float64)
    for rows in (1, 9, 40):
        x = random.standard_normal((rows, 768)).astype(np.float32)
        got = head_product(kernels, 1, matrix, True, x)
        np.testing.assert_allclose(got, x @ weight.T, atol=1e-4 * np.abs(weight).max() * 768**0.5)


def test_matrices_of_one_kind_become_one() -> None:
    random = np.random.default_rng(0)
    a, b = (pack_floats(random.standard_normal((n, 64)).astype(np.float32)) for n in (32, 16))
    both = joined([a, b])
    assert both is not None
    assert (both.rows, both.data.size) == (48, a.data.size + b.data.size)
    half = pack_floats(np.zeros((16, 64), np.uint16))
    short = pack_floats(np.zeros((17, 64), np.float32))
    assert joined([a, half]) is joined([a, None]) is joined([a, short]) is None


def test_without_a_compiler_there_are_no_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SGLC_CACHE", str(tmp_path))
    monkeypatch.setenv("SGLC_DEBUG", "1")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    find = cpu_build.library.__wrapped__
    assert find() is None
    assert "there is no C++ compiler" in capfd.readouterr().err
    broken = tmp_path / "c++"
    broken.write_text("#!/bin/sh\necho 'no such option' >&2\nexit 1\n")
    broken.chmod(0o755)
    assert find() is None
    assert "no such option" in capfd.readouterr().err
    assert not list(knobs.cache_dir().glob("kernels/*.so"))
    monkeypatch.setenv("SGLC_CPU_KERNELS", "off")
    assert find() is None


def test_kernels_of_another_user_are_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SGLC_CACHE", str(tmp_path))
    monkeypatch.setenv("SGLC_DEBUG", "1")
    made = cpu_build.build("-O0")
    assert made.parent.stat().st_mode & 0o77 == 0
    monkeypatch.setattr(cpu_build, "_FLAGS", (*cpu_build._FLAGS, "-O0"))
    assert cpu_build.library.__wrapped__() is not None
    owner = made.stat().st_uid
    if owner == 0:
        os.chown(made, 12345, -1)
    else:
        monkeypatch.setattr("os.getuid", lambda: owner + 1)
    assert cpu_build.library.__wrapped__() is None
    assert "another user's" in capfd.readouterr().err


def test_cores_that_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(12)))
    for text, cores in (("max 100000", 12), ("250000 100000", 3), ("50000 100000", 1), ("9900000 100000", 12)):
        monkeypatch.setattr(Path, "read_text", lambda _, text=text: text)
        assert free_cores() == cores


# A prompt of the default model costs a hundred times one of the small models.
STEM_IDS = at_depth(40, 40, 330)


@pytest.fixture(scope="module")
def default_weights(smollm2: Path) -> dict[str, torch.Tensor]:
    return load_weights(smollm2, load_config(smollm2), torch.float32, "cpu")


@pytest.fixture(scope="module")
def default_answers(smollm2: Path, default_weights: dict[str, torch.Tensor]) -> dict[tuple[int, str, int], Any]:
    """Torch's, which are the same whatever instructions the kernels are compiled for."""
    return answers(TorchExecutor(load_config(smollm2), default_weights, pages=200, eos_ids=(2,)), 5, STEM_IDS)


@pytest.mark.model
def test_the_default_model_in_the_width_of_its_file(
    kernels: ctypes.CDLL,
    smollm2: Path,
    default_weights: dict[str, torch.Tensor],
    default_answers: dict[tuple[int, str, int], Any],
) -> None:
    """Codes of 4 and 8 bits give what the same numbers give as floats, to the last token."""
    config, packed = load_config(smollm2), read_packed(smollm2)
    assert {matrix.kind for matrix in packed.values()} == {Kind.Q4, Kind.Q8}
    assert len(packed) == 1 + 5 * config.layers
    ours = CpuExecutor(kernels, config, default_weights, packed, pages=200, eos_ids=(2,))
    mine = answers(ours, 5, STEM_IDS)
    assert mine.keys() == default_answers.keys()
    for key, event in mine.items():
        if isinstance(event, SampleDone):
            assert event.ids == default_answers[key].ids
            np.testing.assert_allclose(event.logprobs, default_answers[key].logprobs, atol=1e-3)


@pytest.mark.model
def test_the_default_model_with_inputs_of_16_bits(
    kernels: ctypes.CDLL, smollm2: Path, default_weights: dict[str, torch.Tensor]
) -> None:
    """Logits lie near those of float32, and are the same to the last bit however a prompt is cut into steps."""
    config, packed = load_config(smollm2), read_packed(smollm2)
    ids = np.random.default_rng(7).integers(1000, 40000, at_depth(60, 90, 300)).tolist()

    def logits(integers: bool, budget: int) -> list[float]:
        executor = CpuExecutor(kernels, config, default_weights, packed, pages=200, integers=integers)
        engine = Engine(executor, EngineConfig(token_budget=budget, max_rows=4, max_len=700))
        engine.score(engine.extend(None, ids[:-20]), [tuple(ids[-20:]), tuple(ids[-9:])])
        scored: list[float] = []
        while not engine.idle:
            for event in engine.step():
                if isinstance(event, ScoreDone):
                    scored = [logprob for row in event.logprobs for logprob in row]
        return scored

    exact, near = logits(False, 512), logits(True, 512)
    assert len(near) == 29
    np.testing.assert_allclose(near, exact, atol=0.02)
    assert near != exact
    assert logits(True, 24) == logits(True, 7 + len(ids) // 2) == near


@pytest.mark.model
@pytest.mark.parametrize(
    ("exact", "fast", "wanted"), [(False, True, True), (False, False, False), (True, True, False)]
)
def test_integers_where_they_are_faster_and_float32_is_not_asked_for(
    smollm2: Path, monkeypatch: pytest.MonkeyPatch, exact: bool, fast: bool, wanted: bool
) -> None:
    monkeypatch.setattr(cpu_choice, "integers", lambda *_: fast)
    executor = cpu_executor(smollm2, load_config(smollm2), torch.float32, 16, 8, (2,), exact)
    assert isinstance(executor, CpuExecutor)
    assert executor.integers is wanted


def test_pages_that_the_kernels_do_not_take_are_said(smollm2: Path, capfd: pytest.CaptureFixture[str]) -> None:
    executor = cpu_executor(smollm2, load_config(smollm2), torch.float32, 8, 8, (2,))
    assert not isinstance(executor, CpuExecutor)
    assert "pages of 16 tokens or a multiple, and not of 8" in capfd.readouterr().err


def test_what_is_faster_is_measured_once(
    kernels: ctypes.CDLL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SGLC_DEBUG", "1")
    library = ctypes.CDLL(kernels._name)
    library._name = str(tmp_path / "cpu-0.so")
    slow, fast = (
        {"floats": [1.0, 1, 1], "integers": [2.0, 1, 0.6]},
        {"floats": [1.0, 1, 1], "integers": [0.5, 1, 1]},
    )
    seconds = cpu_choice.measured(library, 1)
    assert min(*seconds["floats"], *seconds["integers"]) > 0
    made = iter([slow, *[fast] * 5])
    monkeypatch.setattr(cpu_choice, "measured", lambda *_: next(made))
    assert not cpu_choice.integers(library, 1)
    assert "0.50, 1.00, 1.67 times as fast" in capfd.readouterr().err
    assert not cpu_choice.integers(library, 1)  # kept
    kept = tmp_path / "cpu-0.1.json"
    assert cpu_choice.integers(library, 2)  # others are faster with other threads
    (tmp_path / "cpu-0.2.json").unlink()
    assert cpu_choice._kept(kept, fast) == slow  # measured at the same time: the first one's holds
    kept.unlink()
    assert cpu_choice.integers(library, 1)
    assert [file.name for file in tmp_path.iterdir()] == [kept.name]
    for broken in ("{", "{}", '{"floats": [1], "integers": 2}'):
        kept.write_text(broken)
        assert cpu_choice.integers(library, 1)
        assert not kept.exists()
