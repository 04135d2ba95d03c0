"""`sglc bench`: every workload for real on a tiny shape, its counts, and what is refused."""

from __future__ import annotations

import gc
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sglc.backends.local import LocalBackend, LocalOptions
from sglc.bench import chain, constrained, fork, host, mixed, rig, shapes, throughput, work
from sglc.bench.floor import (
    H200,
)
from sglc.bench.options import Options
from sglc.bench.profile import Profile
from sglc.bench.programs.vocabulary import shape_folder
from sglc.bench.session import repeat
from sglc.cli import main
from sglc.errors import UsageError
from tests.depth import some_of


@pytest.fixture
def few_threads() -> Iterator[None]:
    """Products as tiny as these are faster on one thread."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    gc.freeze()  # who measures thaws the heap


def measured(workload: str, *more: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The JSON of one round of `workload` with the tiny shape, which is printed and written alike."""
    path = tmp_path / "result.json"
    code = main(["bench", workload, "--rounds", "1", "--json", "-o", str(path), *more])
    assert code == 0
    out = capsys.readouterr().out
    assert path.read_text() == out
    result: dict[str, Any] = json.loads(out)
    return result


# -- workloads


OFFLINE = work.offline(0, **throughput.OFFLINE["cpu"])
# Of each case, in order: what is counted, to the token.
COUNTS: dict[str, list[dict[str, int]]] = {
    "offline": [
        {
            "requests": 8, "tokens_in": OFFLINE.tokens_in, "tokens_cached": 0, "tokens_out": OFFLINE.tokens_out,
            "steps": max(OFFLINE.outs),
        },
    ],
    # The two prefixes once, each question once.
    "few-shot": [{"requests": 16, "tokens_out": 16, "tokens_computed": 2 * 128 + 16 * 16, "pages_used": 32}],
    # Each branch of the second level once, and of each parent its last token, whose KV its sample had not yet.
    "tree": [
        {
            "requests": 6 + 12, "tokens_out": 6 * 12 + 12 * 8,
            "tokens_computed": 2 * 64 + 6 * 8 + 6 + 12 * 4,
        },
    ],
    "bs1": [{"requests": 1, "tokens_in": 128, "tokens_out": 32, "steps": 32, "pages_used": 10}] * 2,
    "fork": [{"requests": 8, "tokens_out": 128, "tokens_computed": 256 + 7}],
    "chain": [
        {"requests": 4, "tokens_out": 24, "steps": 24, "tokens_computed": 4 * 10 + 3},
        {"requests": 32, "tokens_out": 192, "steps": 24, "tokens_computed": 8 * (4 * 10 + 3)},
    ],
    "mixed": [{"requests": 4 + 3, "tokens_in": 3 * 512, "tokens_out": 3}],
}  # fmt: skip


@pytest.mark.usefixtures("few_threads")
@pytest.mark.parametrize("workload", some_of(list(COUNTS), 1, 4))
def test_a_workload_runs_and_counts(
    workload: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the ceilings of this processor were known, so floors are computed too."""
    monkeypatch.setattr(rig, "known_device", lambda name: H200)
    result = measured(
        workload, "--model", "tiny", "--dtype", "bfloat16", tmp_path=tmp_path, capsys=capsys
    )  # fmt: skip
    assert result["workload"] == workload
    assert result["model"] == "tiny"
    assert result["profile"] is None
    setting = result["setting"]
    assert setting["device"] == "cpu"
    assert setting["dtype"] == setting["kv_dtype"] == "bfloat16"
    assert setting.keys() >= {"python", "cpu", "cores", "commit", "torch", "rows", "token_budget", "pages"}
    assert [{key: case["counts"][key] for key in counts} for case, counts in zip(
        result["cases"], COUNTS[workload], strict=True
    )] == COUNTS[workload]  # fmt: skip
    for case in result["cases"]:
        assert case["value"] > 0
        assert len(case["seconds"]) == 1
        if workload in ("chain", "mixed"):
            assert case["floor"] is None
            continue
        assert 0 < case["share"] < 1
        rate = case["unit"] == "out tok/s"
        assert (case["floor"] > case["value"]) == rate
        expected = case["value"] / case["floor"] if rate else case["floor"] / case["value"]
        assert case["share"] == pytest.approx(expected, rel=0.01, abs=1e-4)


@pytest.mark.usefixtures("few_threads")
def test_no_floor_where_ceilings_are_not_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = measured("bs1", "--model", "tiny", tmp_path=tmp_path, capsys=capsys)
    assert [(case["floor"], case["share"]) for case in result["cases"]] == [(None, None)] * 2
    assert result["setting"]["dtype"] == "float32"


@pytest.mark.usefixtures("few_threads")
def test_ceilings_are_for_16_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rig, "known_device", lambda name: H200)
    made = {
        dtype: rig.make_rig(Options(model="tiny", device="cpu", dtype=dtype), rig.Needs(longest=64))
        for dtype in ("float32", "bfloat16")
    }
    assert {dtype: rig.ceilings for dtype, rig in made.items()} == {"float32": None, "bfloat16": H200}


def test_the_executor_is_the_one_that_users_have() -> None:
    made = rig.make_rig(Options(model="tiny", device="cpu"), rig.Needs(longest=64))
    backend = LocalBackend(LocalOptions(f"dummy:{shape_folder('tiny')}", device="cpu"))
    try:
        assert made.setting["executor"] == backend.server_info()["executor"]
    finally:
        backend.close()


@pytest.mark.slow
@pytest.mark.usefixtures("few_threads")
def test_constrained_rows_are_beside_free_ones_and_the_floor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And where a step's time goes, if that is asked for."""
    split = Profile(9, 100.0, 0.25, 0.0, {"GEMM": 70.0, "copies": 5.0}, {}, {})
    monkeypatch.setattr(rig, "known_device", lambda name: H200)
    monkeypatch.setattr(
        constrained, "repeat", lambda rounds, profiled, one: (repeat(rounds, False, one)[0], split)
    )
    monkeypatch.setattr(constrained, "FORMS", {"letters": constrained.FORMS["letters"]})
    monkeypatch.setattr(constrained, "OPTIONS", {})
    monkeypatch.setattr(constrained, "_TEXTS", 2)
    result = measured(
        "constrained", "--model", "tiny", "--dtype", "bfloat16", tmp_path=tmp_path, capsys=capsys
    )  # fmt: skip
    cases = {case["name"]: case for case in result["cases"]}
    assert list(cases) == [
        "1 rows, free", "1 rows, letters", "1 rows, character, forced tokens",
        "4 rows, free", "4 rows, letters", "4 rows, half free, half forms", "4 rows, 64 forms",
    ]  # fmt: skip
    for name, case in cases.items():
        free, figures = cases[f"{name.partition(',')[0]}, free"], case["figures"]
        assert figures["of_free"] == pytest.approx(case["value"] / free["value"], abs=1e-3)
        assert 0 < case["share"] < 1
        assert case["floor"] > case["value"]
        times = {key: figures[key] for key in ("step_us", "device_us", "copies_us", "waits_for_host_us")}
        assert times == {"step_us": 100, "device_us": 70, "copies_us": 5, "waits_for_host_us": 25}
    character = cases["1 rows, character, forced tokens"]
    assert character["counts"]["requests"] == 2
    assert character["figures"]["forced"] > character["counts"]["tokens_out"] / 2
    assert character["counts"]["steps"] < character["counts"]["tokens_out"] / 2
    # The weights are read once a step, so the floor is of fewer steps than there are tokens.
    assert character["floor"] > 2 * cases["1 rows, free"]["floor"]


@pytest.mark.usefixtures("few_threads")
def test_fork_takes_the_pages_of_one_prefix_and_of_the_tails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (case,) = measured("fork", "--model", "tiny", tmp_path=tmp_path, capsys=capsys)["cases"]
    figures, used = case["figures"], case["counts"]["pages_used"]
    assert figures["pages_of_prefix_and_tails"] == 16 + 8 * 1
    assert figures["pages_without_sharing"] == 8 * 17
    # Every row but the first has its own copy of the prefix's last page: it computes the last id again.
    assert used == 16 + 8 * 1 + 7


@pytest.mark.slow
@pytest.mark.usefixtures("few_threads")
def test_tree_and_few_shot_compute_what_is_shared_once_whatever_the_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (
        measured("few-shot", "--model", "tiny", "--seed", seed, tmp_path=tmp_path, capsys=capsys)
        for seed in "01"
    )
    assert first["cases"][0]["counts"] == second["cases"][0]["counts"]
    assert work.few_shot(1) != work.few_shot(2)


@pytest.fixture
def cuda_like(monkeypatch: pytest.MonkeyPatch, few_threads: None) -> list[dict[str, Any]]:
    """The CUDA side of the rig, with the torch executor in the place of the device's.

    Gives the arguments of every executor that is made.
    """
    from sglc.runtime.executor import cuda_executor
    from sglc.runtime.executor.torch_executor import TorchExecutor
    from sglc.runtime.model.weights import dummy_weights

    made: list[dict[str, Any]] = []
    signature = inspect.signature(cuda_executor.CudaExecutor)

    class CudaLike(TorchExecutor):
        """Takes what `CudaExecutor` takes."""

        def __init__(self, config: Any, weights: Any, **arguments: Any) -> None:
            signature.bind(config, weights, **arguments)
            made.append(arguments)
            super().__init__(config, weights, pages=arguments["pages"] or 512, page_size=arguments["page_size"])

        def warm_up(self, rows: int) -> None:
            assert rows == made[-1]["max_rows"]

    monkeypatch.setattr(cuda_executor, "CudaExecutor", CudaLike)
    monkeypatch.setattr(rig, "placed", lambda options: ("cuda", "float32"))
    monkeypatch.setattr(rig, "model_setting", lambda device: {"device": "NVIDIA H200", "cpu": "", "commit": ""})
    monkeypatch.setattr(
        rig, "_weights", lambda model, config, dtype, device: dummy_weights(config, dtype, "cpu")
    )
    return made


@pytest.mark.slow
def test_fork_on_cuda_runs_with_and_without_the_cascade(
    monkeypatch: pytest.MonkeyPatch, cuda_like: list[dict[str, Any]]
) -> None:
    monkeypatch.setitem(fork.SIZES, "cuda", fork.SIZES["cpu"])
    result = fork.fork(Options(model="tiny", rounds=1))
    assert [made["cascade"] for made in cuda_like] == [True, False]
    on, off = result.cases
    assert (on.name, off.name) == ("cascade", "no cascade")
    assert on.figures["times_no_cascade"] == pytest.approx(on.value / off.value, abs=1e-3)
    alone = fork.fork(Options(model="tiny", rounds=1, cascade=False))
    assert [case.name for case in alone.cases] == ["no cascade"]
    assert alone.setting["cascade"] is False


@pytest.mark.slow
def test_limits_on_cuda(monkeypatch: pytest.MonkeyPatch, cuda_like: list[dict[str, Any]]) -> None:
    for sizes in (throughput.OFFLINE, throughput.OFFLINE_WARM_UP, throughput.TREE, throughput.FEW_SHOT):
        monkeypatch.setitem(sizes, "cuda", sizes["cpu"])
    for run in (throughput.offline, throughput.tree, throughput.few_shot):
        run(Options(model="tiny", rounds=1))
    throughput.tree(Options(model="tiny", rounds=1, rows=32, token_budget=64))
    assert [(made["max_rows"], made["max_tokens"]) for made in cuda_like] == [
        (256, 16_384), (1024, 8192), (512, 8192), (32, 64),
    ]  # fmt: skip


def test_host_measures_in_a_process_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "CASES", host.CASES[:1])
    result = measured("host", tmp_path=tmp_path, capsys=capsys)
    (case,) = result["cases"]
    assert case["name"] == "1 row"
    assert case["counts"] == {"rows": 1, "steps": host.STEPS}
    assert 0 < case["value"] <= case["figures"]["wall_p99_us"]


@pytest.mark.parametrize("case", host.CASES, ids=lambda case: case.name)
def test_a_step_of_every_host_case(case: host.HostCase) -> None:
    times = host.measure(case, 5)
    assert len(times.wall) == len(times.cpu) == 5


# -- options


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("bench", "the following arguments are required: WORKLOAD"),
        ("bench nothing", "invalid choice: 'nothing'"),
        ("bench offline --rounds 0", "`0` is no number from 1"),
        ("bench offline --seed -1", "error[SGLC010]"),
        ("bench offline --device cpu --profile", "`--profile` is for CUDA devices"),
        ("bench fork --device cpu --no-cascade", "`--no-cascade` is for CUDA devices"),
        ("bench offline --device cpu --kv-dtype fp8", "keys and values of 8 bits need a CUDA device"),
        ("bench offline --device cpu --model no-such-model", "there is no model `no-such-model`"),
        ("bench host --model tiny", "`--model` means nothing to `host`"),
        ("bench host --no-cascade", "`--no-cascade` means nothing to `host`"),
        ("bench mixed --device cpu --model tiny --rows 2", "the work does not run with 2 rows"),
        ("bench mixed --device cpu --model tiny --rows 2", "note: it has 4 rows side by side\n"),
        ("bench offline --device cpu --model tiny --token-budget 8", "64 rows and 8 tokens a step"),
        ("bench offline --device cpu --model tiny --rows 5000", "note: each row takes a token of a step\n"),
        (
            "bench chain --device cpu --model tiny --rows 999999999999 --token-budget 999999999999",
            "give `--rows` of at most 65536",
        ),
        ("bench programs --model tiny --rows 65537 --token-budget 70000", "note: each row holds memory"),
        ("bench offline -o no/such/result.json", "there is no folder `no/such`"),
        ("bench offline --model=", "argument --model: nothing is named"),
        (
            "bench programs --device cpu --model tiny --rows 999999999999",
            "with 999999999999 rows",
        ),
        ("bench report no-such-folder", "there is no folder `no-such-folder`"),
        ("bench report .", "`.` holds no results"),
    ],
)
def test_what_is_refused(
    command: str, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    code = main(command.split())
    out, err = capsys.readouterr()
    assert code in (1, 2)
    assert out == ""
    assert message in err
    assert "Traceback" not in err


def test_a_model_that_the_work_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = shapes.SHAPES["tiny"]
    for changed, message in (
        ({"vocab_size": 262, "eos_token_id": 0, "bos_token_id": 0}, "262 ids"),
        ({"max_position_embeddings": 64}, "takes 64 tokens"),
    ):
        monkeypatch.setitem(shapes.SHAPES, "other", tiny | changed)
        with pytest.raises(UsageError, match=message):
            throughput.bs1(Options(model="other", device="cpu", rounds=1))


def test_every_workload_has_small_sizes() -> None:
    sizes = (
        throughput.OFFLINE, throughput.OFFLINE_WARM_UP, throughput.BS1, throughput.FEW_SHOT, throughput.TREE,
        fork.SIZES, chain.SIZES, chain.PROGRAMS, mixed.SIZES, constrained.SIZES,
    )  # fmt: skip
    assert all(each.keys() == {"cpu", "cuda"} for each in sizes)
