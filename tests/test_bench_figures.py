"""The figures of `sglc bench`: the work and its floors against known ones, results, tables, the profile."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sglc.bench import shapes, throughput, work
from sglc.bench.floor import (
    H200,
    cost,
    decode_s,
    decode_step_s,
    few_shot_s,
    known_device,
    offline_s,
    seen,
    tree_s,
)
from sglc.bench.profile import OTHER, PREFIXES, Span, kind_of, profile_of
from sglc.bench.report import read_results, tables, updated
from sglc.bench.result import BenchResult, Case, percentile, seconds_case, table, to_json
from sglc.bench.session import BenchSession
from sglc.bench.setting import ROOT
from sglc.cli import main
from sglc.cli.bench import WORKLOADS
from sglc.runtime.engine.engine import Engine, EngineConfig

PAGE = ROOT / "docs" / "performance.md"
RESULTS = ROOT / "benchmarks" / "results"


# -- work and floors


def test_offline_is_the_known_script() -> None:
    todo = work.offline()
    assert (len(todo.prompts), todo.tokens_in, todo.tokens_out) == (256, 142_827, 133_966)
    assert max(todo.outs) == 1024


def test_sizes_of_the_known_work() -> None:
    asked = work.few_shot()
    assert [len(questions) for questions in asked.questions] == [64] * 8
    assert {len(prefix) for prefix in asked.prefixes} == {1500}
    todo = work.tree_of_thought()
    assert len(todo.prefixes) == 32
    assert {len(branch) for firsts in todo.firsts for branch in firsts} == {50}
    assert sum(len(below) for seconds in todo.seconds for below in seconds) == 1024
    assert todo.outs == (200, 100)
    everything = [*asked.prefixes, *todo.prefixes, work.fork().prefix, *work.mixed().prompts]
    assert all(0 <= id_ <= work.IDS for ids in everything for id_ in ids)


def test_costs_of_qwen3() -> None:
    small, large = (cost(shapes.shape(name)) for name in ("qwen3-0.6b", "qwen3-14b"))
    assert small.weight_bytes == pytest.approx(1.192e9, rel=1e-3)
    assert (small.kv_bytes, small.attention_flops) == (114_688, 229_376)
    assert large.weight_bytes == pytest.approx(27.98e9, rel=1e-3)
    assert (large.kv_bytes, large.attention_flops) == (163_840, 819_200)


@pytest.mark.parametrize(
    ("model", "kv_size", "rate"),
    [("qwen3-0.6b", 2, 36_200), ("qwen3-0.6b", 1, 64_100), ("qwen3-14b", 2, 8_075), ("qwen3-14b", 1, 9_375)],
)
def test_floor_of_offline(model: str, kv_size: int, rate: int) -> None:
    todo = work.offline()
    parts = offline_s(cost(shapes.shape(model), 2, kv_size), list(map(len, todo.prompts)), todo.outs, H200)
    assert todo.tokens_out / sum(parts.values()) == pytest.approx(rate, rel=0.02)


def test_floors_of_the_other_workloads() -> None:
    price = cost(shapes.shape("qwen3-0.6b"))
    assert few_shot_s(price, **throughput.FEW_SHOT["cuda"], device=H200) == pytest.approx(0.09, rel=0.1)
    assert tree_s(price, **throughput.TREE["cuda"], device=H200) == pytest.approx(1.0, rel=0.05)
    assert 1 / decode_step_s(price, 1, 0, H200) == pytest.approx(3607, rel=0.02)
    # 64 rows behind 4,096 shared tokens with 256 of their own: the prefix read once, or 64 times.
    once, each = decode_s(price, 64, 4096, 256, 1, H200), decode_s(price, 64, 0, 4352, 1, H200)
    assert each / once == pytest.approx(9.3, rel=0.02)


def test_keys_that_tokens_see() -> None:
    assert seen(0, 3) == 1 + 2 + 3
    assert seen(10, 2) == 11 + 12


def test_ceilings_are_known_for_what_was_measured_only() -> None:
    assert known_device("NVIDIA H200") == H200
    assert known_device("NVIDIA H100 80GB HBM3") is None


# -- results


def test_percentiles() -> None:
    values = list(range(1, 101))
    assert [percentile(values, at) for at in (0, 50, 99, 100)] == [1, 50, 99, 100]
    assert percentile([3.0], 99) == 3.0


def _session() -> BenchSession:
    import torch

    from sglc.runtime.executor.torch_executor import TorchExecutor
    from sglc.runtime.model.weights import dummy_weights

    config = shapes.shape("tiny")
    executor = TorchExecutor(config, dummy_weights(config, torch.float32, "cpu"), pages=8)

    class Bare:
        def __init__(self) -> None:
            self.executor = executor

        def engine(self) -> Engine:
            return Engine(executor, EngineConfig(max_len=64))

    session = BenchSession(Bare())  # type: ignore[arg-type]
    session.gen(None, range(20), 3)
    session.run()
    return session


def test_a_case_of_a_rate_and_one_of_seconds() -> None:
    rounds = [_session()]
    rate = seconds_case("a", rounds, [2.0, 4.0, 3.0], tokens=300, floor_s=1.5)
    assert (rate.value, rate.unit, rate.floor, rate.share) == (100.0, "out tok/s", 200.0, 0.5)
    took = seconds_case("b", rounds, [2.0, 4.0, 3.0], floor_s=1.5)
    assert (took.value, took.unit, took.floor, took.share) == (3.0, "s", 1.5, 0.5)
    assert took.counts["tokens_out"] == 3
    assert took.counts["pages_used"] == 2


def _stored(**changes: Any) -> BenchResult:
    case = Case(name="all", unit="out tok/s", value=23456.0, seconds=(5.7, 5.8), median_s=5.75, floor=35627.0,
                share=0.6584, counts={"steps": 1033}, figures={"floor_keys_s": 3.278})  # fmt: skip
    setting = {
        "device": "NVIDIA H200",
        "cpu": "x",
        "commit": "abc",
        "dtype": "bfloat16",
        "kv_dtype": "bfloat16",
    }
    result = BenchResult(
        workload="offline", what="requests", model="qwen3-0.6b", work={}, cases=(case,), setting=setting
    )
    return replace(result, **changes)


def test_a_result_as_a_table() -> None:
    spans = [Span("_decode", 0, 30), Span("tiled", 30, 80), Span("_race", 90, 100)]
    shown = table(_stored(profile=profile_of(spans, 1)))
    assert "offline: qwen3-0.6b on NVIDIA H200" in shown
    assert re.search(r"^all +23,456 +out tok/s +35,627 +65\.8% +5\.750 +2$", shown, re.MULTILINE)
    assert re.search(r"^GEMM +50\.0 +1\.0$", shown, re.MULTILINE)
    assert "the device idle for 10.0%" in shown


def test_stored_results_become_tables_on_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "b.json").write_text(to_json(_stored()))
    fp8 = {"device": "NVIDIA H200", "cpu": "x", "commit": "", "dtype": "bfloat16", "kv_dtype": "float8_e4m3fn"}
    (tmp_path / "c.json").write_text(to_json(_stored(setting=fp8)))
    (tmp_path / "a.json").write_text('{"what": "something else"}')
    (tmp_path / "d.json").write_text("[]")
    results = read_results(tmp_path)
    assert [name for name, _ in results] == ["b.json", "c.json"]
    lines = tables(results)["offline"].splitlines()
    assert lines[2] == (
        "| qwen3-0.6b, NVIDIA H200 | all | 23,456 out tok/s | 35,627 | 65.8% | floor_keys_s 3.278 | 2 "
        "| abc | `b.json` |"
    )
    assert lines[3].startswith("| qwen3-0.6b, KV float8_e4m3fn, NVIDIA H200 |")
    page = tmp_path / "page.md"
    page.write_text(
        "a\n<!-- results: offline -->\nold\n<!-- end -->\nb\n<!-- results: tree -->\n<!-- end -->\n"
    )
    assert main(["bench", "report", str(tmp_path), "-o", str(page)]) == 0
    text = page.read_text()
    assert "old" not in text
    assert lines[2] in text
    assert "Nothing is stored yet." in text
    assert updated(text, results) == text
    assert updated(text, []) == text  # those of a workload that is not in the folder stay
    (tmp_path / "e.json").write_text(to_json(_stored(workload="chain")))
    capsys.readouterr()
    assert main(["bench", "report", str(tmp_path), "-o", str(page)]) == 0
    assert capsys.readouterr().err == (
        f"sglc: {page} has the stored results of: offline\nsglc: {page} has no place for those of: chain\n"
    )
    assert main(["bench", "report", str(tmp_path)]) == 0
    assert lines[2] in capsys.readouterr().out


def test_a_page_keeps_its_ends_of_lines(tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text(to_json(_stored()))
    page = tmp_path / "page.md"
    page.write_bytes(b"a\r\n<!-- results: offline -->\r\n<!-- end -->\r\nb\r\n")
    assert main(["bench", "report", str(tmp_path), "-o", str(page)]) == 0
    once = page.read_bytes()
    assert once.count(b"\r\n") == once.count(b"\n") > 4
    assert main(["bench", "report", str(tmp_path), "-o", str(page)]) == 0
    assert page.read_bytes() == once


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            b"a\n<!-- results: tree -->\nprose\n<!-- results: offline -->\n<!-- end -->\n",
            "error[SGLC008]: the results of `tree` have no end\n --> PAGE:2\n",
        ),
        (
            b"<!-- results: tree -->\n<!-- end -->\n\n<!-- results: offline -->\nprose\n",
            "error[SGLC008]: the results of `offline` have no end\n --> PAGE:4\n",
        ),
        (b"prose\n", "error[SGLC008]: `PAGE` has no place for results"),
        (b"caf\xe9\n<!-- results: offline -->\n<!-- end -->\n", "error[SGLC008]: `PAGE` is no UTF-8"),
    ],
)
def test_a_page_that_cannot_be_brought_up_to_date_stays(
    text: bytes, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "b.json").write_text(to_json(_stored()))
    page = tmp_path / "page.md"
    page.write_bytes(text)
    assert main(["bench", "report", str(tmp_path), "-o", str(page)]) == 2
    assert message.replace("PAGE", str(page)) in capsys.readouterr().err
    assert page.read_bytes() == text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"format": "sglc-bench 1"}', "is no whole result"),
        ('{"format": "sglc-bench 1", "workload": "programs", "cases": [{"name": "a"}]}', "is no whole result"),
        ('{"format": "sglc-bench 1", "workload": "offline", "cases": 3}', "is no whole result"),
        ('{"format": "sglc-bench 9"}', "is of format `sglc-bench 9`, and this sglc reads `sglc-bench 1`"),
    ],
)
def test_a_damaged_result_is_named(
    content: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "b.json").write_text(content)
    assert main(["bench", "report", str(tmp_path)]) == 2
    assert f"error[SGLC008]: `{tmp_path / 'b.json'}` {message}" in capsys.readouterr().err


def test_a_result_without_a_model_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    without = {"cpu": "some processor", "commit": ""}  # as `host` stores it
    (tmp_path / "host.json").write_text(to_json(_stored(workload="host", model="none", setting=without)))
    assert main(["bench", "report", str(tmp_path)]) == 0
    assert "| none, some processor | all |" in capsys.readouterr().out


@pytest.mark.parametrize("text", ['{"format": ', "[" * 100_000, "\xff"])
def test_a_file_that_may_have_been_a_result(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cut.json").write_bytes(text.encode("latin-1"))
    assert main(["bench", "report", str(tmp_path)]) == 2
    assert f"error[SGLC008]: `{tmp_path / 'cut.json'}` is no JSON: " in capsys.readouterr().err


def test_the_page_has_what_is_stored() -> None:
    page = PAGE.read_text()
    assert re.findall(r"<!-- results: ([\w-]+) -->", page) == list(WORKLOADS)
    hint = "run `sglc bench report benchmarks/results -o docs/performance.md`"
    assert updated(page, read_results(RESULTS)) == page, hint


# -- the profile


def test_times_by_kind() -> None:
    spans = [
        Span("_decode", 0, 40), Span("tiled", 30, 60), Span("Memcpy HtoD (Pinned -> Device)", 70, 72),
        Span("void at::native::vectorized_elementwise_kernel<4>", 72, 80), Span("new_kernel", 90, 100),
        Span("_decode", 100, 120),
    ]  # fmt: skip
    profile = profile_of(spans, 2)
    # The second one has the 20 us for itself in which the first one is over.
    assert profile.kinds_us == {"decode attention": 30, "GEMM": 10, OTHER: 5, "glue": 4, "copies": 1}
    assert profile.prompts == 0
    assert profile.launches == {"decode attention": 1, "GEMM": 0.5, OTHER: 0.5, "glue": 0.5, "copies": 0.5}
    assert profile.step_us == 60
    assert profile.idle == pytest.approx(20 / 120, abs=1e-4)  # 60 to 70 and 80 to 90
    assert next(iter(profile.names_us)) == "_decode"


def test_steps_with_prompts_have_their_share_of_the_time() -> None:
    steps = [("_prepare", "_decode"), ("_prepare", "_tile", "_merge", "tiled"), ("_prepare", "_decode")]
    names = [name for step in steps for name in step]
    spans = [Span(name, 10 * i, 10 * i + 8) for i, name in enumerate(names)]
    assert profile_of(spans, 3).prompts == pytest.approx(40 / 78, abs=1e-4)


def test_every_kernel_has_a_kind() -> None:
    folder = ROOT / "sglc" / "runtime" / "kernels"
    source = "\n".join(path.read_text() for path in sorted(folder.glob("*.py")))
    launched = set(re.findall(r"\b(\w+)\[\(.*\)\]\(", source)) | {"tiled", "vector"}
    assert len(launched) > 10
    assert {name for name in launched if kind_of(name) == OTHER} == set()
    defined = set(re.findall(r"@triton\.jit.*\ndef (\w+)\(", source))
    assert launched <= defined
    # What is in the list for a kernel of ours is the name of one.
    ours = {prefix for prefixes in PREFIXES.values() for prefix in prefixes if prefix.startswith("_")}
    assert ours <= defined
