"""`sglc bench programs`: every program runs, its counts are right, and passes never make it compute more."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sglc.backends.local import LocalBackend, LocalOptions
from sglc.backends.with_passes import WithPasses
from sglc.bench.options import Options
from sglc.bench.programs import run
from sglc.bench.programs.measure import OFF, ON, Round, case, compare, equal_share, run_round
from sglc.bench.programs.prefixes import fewest_computed
from sglc.bench.programs.vocabulary import DrawnWords, shape_folder
from sglc.bench.programs.workload import Workload, WorkloadBatch
from sglc.bench.programs.workloads import BY_NAME, WORKLOADS
from sglc.bench.report import tables
from sglc.bench.result import to_json
from sglc.bench.work import Shared
from sglc.cli import main
from sglc.errors import SglcError
from sglc.ir.core import walk
from sglc.passes.pipelines import MINIMAL, pipeline_for
from sglc.runtime.model.registry import prepare
from sglc.runtime.tokenizer.tokenizer import load_tokenizer
from tests.bench_oracle import PAGE_SIZE, OnOracle
from tests.depth import some_of
from tests.test_bench import cuda_like as cuda_like
from tests.test_bench import few_threads as few_threads

PAGES = 4_000


@pytest.fixture(scope="module")
def oracle() -> Iterator[OnOracle]:
    backend = OnOracle(PAGES)
    yield backend
    backend.close()


@pytest.fixture(scope="module")
def words() -> DrawnWords:
    return DrawnWords(load_tokenizer(prepare(f"dummy:{shape_folder('tiny')}")))


# What the smallest sizes come to: programs, calls, prompt tokens, and those that cannot be had for less.
COUNTS = {
    "mmlu": (6, 6, 2 * 3 * (33 + 5), 2 * (33 + 3 * 5)),
    "tot": (2, 2 * (3 + 6), 2 * (3 * 25 + 6 * 32), 2 * (20 + 3 * 5 + 6 * 3 + 3)),
}
CALLS = {
    "mmlu": 1, "few-shot": 1, "hellaswag": 1, "react": 5, "tot": 9, "skeleton": 5, "judge": 5, "json": 6,
    "chat-short": 2, "chat-long": 2, "rag": 3,
}  # fmt: skip
HAND_OVERS = {"react": 3, "skeleton": 1, "judge": 1, "rag": 2}  # of a program; 1 where nothing is here


@pytest.mark.parametrize("workload", some_of(WORKLOADS, 1, 3), ids=lambda workload: workload.name)
def test_passes_change_no_text_and_cost_no_token(
    workload: Workload, oracle: OnOracle, words: DrawnWords
) -> None:
    batch, warm_up = (workload.batch(words, seed, "smallest") for seed in (0, 1))
    assert batch.rows != warm_up.rows
    began = time.perf_counter()
    (on,), (off,), (python,) = compare(workload.name, batch, warm_up, oracle, 1).values()
    took_us = 1e6 * (time.perf_counter() - began)
    assert equal_share(on, off) == equal_share(on, python) == 1.0
    for side in (on, off, python):
        counts = side.counts
        assert counts["programs"] == len(batch.rows) == len(side.latencies)
        assert counts["calls"] == CALLS[workload.name] * counts["programs"]
        assert counts["cached_tokens"] + counts["computed_tokens"] == counts["prompt_tokens"]
        assert 0 < side.fewest <= counts["computed_tokens"] < counts["prompt_tokens"]
        assert counts["rested_us"] >= 0
        assert counts["steps"] > 1
    assert on.counts["rested_us"] + off.counts["rested_us"] <= took_us
    assert on.counts["computed_tokens"] < python.counts["computed_tokens"] + PAGE_SIZE
    assert on.counts["computed_tokens"] < off.counts["computed_tokens"] + PAGE_SIZE
    assert on.counts["submits"] <= off.counts["submits"]
    assert on.counts["computed_tokens"] < on.fewest + PAGE_SIZE  # there is room for everything
    if workload.name in COUNTS:
        names = ("programs", "calls", "prompt_tokens")
        assert (*(on.counts[name] for name in names), on.fewest) == COUNTS[workload.name]


@pytest.mark.parametrize("workload", some_of(WORKLOADS, 1, 3), ids=lambda workload: workload.name)
def test_a_plan_costs_no_more_of_anything(workload: Workload, oracle: OnOracle, words: DrawnWords) -> None:
    batch = workload.batch(words, 0, "smallest")
    found = []
    for mode in ("plan", "python"):
        oracle.flush_cache()
        before = oracle.server_info()
        result = batch.function.run(**batch.rows[0], backend=oracle, seed=1, mode=mode).sync()
        after = oracle.server_info()
        usage = result.usage
        costs = [after[name] - before[name] for name in ("submits", "steps")]
        costs += [usage.calls, usage.prompt, usage.computed, usage.completion, usage.scored]
        found.append((costs, [(str(call.site), call.samples) for call in result.calls], result.text()))
    (plan, made, text), (python, other, other_text) = found
    assert (sorted(made), text) == (sorted(other), other_text)
    assert all(cost <= most for cost, most in zip(plan, python, strict=True)), (plan, python)


def test_a_second_round_finds_nothing_of_the_first(oracle: OnOracle, words: DrawnWords) -> None:
    batch = BY_NAME["few-shot"].batch(words, 0, "smallest")
    first, second = (run_round(batch, oracle, ON) for _ in range(2))
    assert all(0 <= one.counts["computed_tokens"] - first.fewest < PAGE_SIZE for one in (first, second))
    assert first.texts == second.texts


def test_a_pool_without_room_shows(words: DrawnWords) -> None:
    """The count of what had to be computed does not follow from what was computed."""
    backend = OnOracle(pages=24)
    try:
        batch = BY_NAME["few-shot"].batch(words, 0, "cpu")
        done = run_round(batch, backend, OFF)
    finally:
        backend.close()
    assert done.counts["computed_tokens"] > done.fewest


def test_without_passes_nothing_is_folded(oracle: OnOracle, words: DrawnWords) -> None:
    assert pipeline_for(WithPasses(oracle, MINIMAL).target) == MINIMAL
    assert set(MINIMAL) < set(pipeline_for(oracle.target))
    program = BY_NAME["judge"].batch(words, 0, "smallest").function
    off, on = (
        len(list(walk(program.compile(side).lowered.ops))) for side in (WithPasses(oracle, MINIMAL), oracle)
    )
    assert off > on


def test_a_row_that_fails_fails_the_round(oracle: OnOracle, words: DrawnWords) -> None:
    batch = BY_NAME["hellaswag"].batch(words, 0, "smallest")
    rows = ({**batch.rows[0], "endings": ["", " b"]}, *batch.rows[1:])
    with pytest.raises(SglcError, match="SGLC104"):
        run_round(replace(batch, rows=rows), oracle, ON)


@pytest.mark.usefixtures("few_threads")
@pytest.mark.slow
def test_in_a_process_of_its_own(words: DrawnWords) -> None:
    """As on CUDA: the figures come over the wire."""
    backend = LocalBackend(LocalOptions(f"dummy:{shape_folder('tiny')}", device="cpu", process=True))
    try:
        batch = BY_NAME["tot"].batch(words, 0, "smallest")
        done = run_round(batch, backend, ON)
    finally:
        backend.close()
    assert done.counts["computed_tokens"] == done.fewest == COUNTS["tot"][3]
    assert done.counts["submits"] == 2
    assert done.counts["steps"] > 4


# -- words and shapes


def test_words_are_one_token_each(words: DrawnWords, smollm2: Path) -> None:
    for some in (words, DrawnWords(load_tokenizer(smollm2))):
        generator = random.Random(0)
        first, second = some.text(generator, 700), some.text(generator, 9)
        assert len(some.ids(first)) == 700
        assert some.ids(first + second) == some.ids(first) + some.ids(second)
        assert len(set(some.ids(first))) > 300


def test_a_shape_has_every_id_and_a_template() -> None:
    tokenizer = load_tokenizer(prepare(f"dummy:{shape_folder('tiny')}"))
    spelled = tokenizer.token_bytes()
    assert len(spelled) == len(set(spelled)) + 2 == 10_240  # three control tokens have no bytes
    assert tokenizer.eos_ids == (10_239,)
    markup = tokenizer.render([{"role": "user", "content": "hi"}], generate=True)
    control = [part.ids[0] for part in tokenizer.split_control(markup) if not isinstance(part, str)]
    assert control == [10_237, 10_239, 10_237]


def test_sizes_of_the_known_work(words: DrawnWords) -> None:
    assert BY_NAME["mmlu"].sizes["cuda"] == {"groups": 8, "questions": 64, "prefix": 1500, "question": 100}
    assert BY_NAME["tot"].sizes["cuda"] == {
        "programs": 32, "prefix": 600, "branches": (8, 4), "adds": (50, 20), "outs": (200, 100),
    }  # fmt: skip
    batch = BY_NAME["tot"].batch(words, 0, "cuda")
    assert batch.same is not None
    assert batch.same.longest == 600 + 50 + 200 + 20 + 100
    assert [len(prefix) for prefix in batch.same.prefixes] == [600] * 32


# -- what is the least


@pytest.mark.parametrize(
    ("calls", "least"),
    [
        ([((1, 2, 3), [])], 3),
        ([((1, 2, 3), []), ((1, 2, 4), [])], 4),
        ([((1, 2, 3), []), ((1, 2, 3), [])], 4),  # the last token of each prompt
        ([((1, 2), []), ((1, 2, 3), [])], 3),  # the shorter one first
        ([((1, 2), [(5, 6, 7)]), ((1, 2, 5, 6, 8), [])], 3),  # what was generated is there
        ([((1, 2), [(5, 6)]), ((1, 2, 5, 6, 8), [])], 4),  # but for the last token
        ([((1, 2), [(5, 6)]), ((1, 2, 5), [])], 3),  # there, but the last token of a prompt
        ([((1, 2), [(5, 6), (7, 8)]), ((1, 2, 7, 9), [])], 3),  # of any sample
    ],
)
def test_fewest_computed(calls: list[Any], least: int) -> None:
    assert fewest_computed(calls) == least
    assert fewest_computed(reversed(calls)) == least


# -- the command


@pytest.mark.usefixtures("few_threads")
@pytest.mark.slow
def test_the_command_measures_the_programs_that_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("mmlu", "rag"):
        monkeypatch.setitem(BY_NAME[name].sizes, "cpu", BY_NAME[name].sizes["smallest"])
    path = tmp_path / "result.json"
    command = f"bench programs mmlu rag --model tiny --device cpu --rounds 2 -o {path}"
    assert main(command.split()) == 0
    assert "mmlu, passes on" in capsys.readouterr().out
    result = json.loads(path.read_text())
    assert [one["name"] for one in result["cases"]] == [
        "mmlu, passes on", "mmlu, passes off", "mmlu, as Python", "mmlu, KV API",
        "rag, passes on", "rag, passes off", "rag, as Python",
    ]  # fmt: skip
    on, off, _, through_kv_api = result["cases"][:4]
    assert on["counts"]["computed_tokens"] == through_kv_api["counts"]["tokens_computed"] == COUNTS["mmlu"][3]
    assert on["counts"]["prompt_tokens"] == through_kv_api["counts"]["tokens_in"] == COUNTS["mmlu"][2]
    assert len(on["seconds"]) == len(off["seconds"]) == len(through_kv_api["seconds"]) == 2
    assert {"times_off", "times_python", "equal_to_off", "equal_to_python", "times_kv_api_s"} <= on[
        "figures"
    ].keys()
    assert result["setting"].keys() >= {"cpu", "commit", "dtype", "rows", "token_budget"}
    table = tables([("result.json", result)])["programs"].splitlines()
    assert table[0].count("|") == table[1].count("|") == table[2].count("|")
    assert "| mmlu, passes on |" in table[2]
    assert f"| {COUNTS['mmlu'][2]} | {COUNTS['mmlu'][3]} | {COUNTS['mmlu'][3]} |" in table[2]
    assert f"| {COUNTS['mmlu'][2]} | {COUNTS['mmlu'][3]} |  |  |" in table[5]  # nothing is known of the least


@pytest.mark.usefixtures("cuda_like")
def test_sizes_and_rows_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "place", lambda options: "cuda")
    monkeypatch.setattr(run, "model_setting", lambda device: {"device": device, "cpu": "", "commit": ""})
    monkeypatch.setitem(BY_NAME["tot"].sizes, "cuda", BY_NAME["tot"].sizes["smallest"])
    result = run.programs(Options(model="tiny", rounds=1), ["tot"])
    assert result.setting["rows"] == {"tot": 1024}
    assert [one.name for one in result.cases] == [
        "tot, passes on",
        "tot, passes off",
        "tot, as Python",
        "tot, KV API",
    ]
    assert "equal_to_off" not in result.cases[0].figures  # its samples are drawn
    assert to_json(result)


def test_figures_of_rounds() -> None:
    counts = {"programs": 4, "prompt_tokens": 100, "computed_tokens": 30}
    on = [Round(s, (s / 2, s), counts, 25, ((("a", (1,)), ("b", (2,))),)) for s in (1.0, 3.0, 2.0)]
    made = case("x", on, times_off=1.5)
    assert (made.value, made.unit, made.median_s) == (2.0, "programs/s", 2.0)
    assert made.counts["fewest_computed_tokens"] == 25
    assert made.figures == {
        "hit_rate": 0.7, "best_hit_rate": 0.75, "p50_s": 1.0, "p95_s": 3.0, "times_off": 1.5,
    }  # fmt: skip
    assert equal_share(on[0], replace(on[0], texts=((("a", (1,)), ("b", (3,))),))) == 0.5


def test_a_batch_says_when_it_samples(words: DrawnWords) -> None:
    made: dict[str, WorkloadBatch] = {one.name: one.batch(words, 0, "smallest") for one in WORKLOADS}
    assert [name for name, batch in made.items() if batch.sampled] == ["tot"]
    assert [name for name, batch in made.items() if batch.same is not None] == ["mmlu", "few-shot", "tot"]


def test_through_the_kv_api_few_shot_has_the_ids_of_its_texts(words: DrawnWords) -> None:
    made = BY_NAME["few-shot"].batch(words, 0, "smallest")
    assert isinstance(made.same, Shared)
    texts = [
        f"The following are multiple choice questions about{row['subject']}.\n\n{row['examples']}"
        f"Question:{row['question']}\nAnswer:"
        for row in made.rows
    ]
    groups = zip(made.same.prefixes, made.same.questions, strict=True)
    assert {(*prefix, *own) for prefix, asked in groups for own in asked} == set(map(words.ids, texts))
