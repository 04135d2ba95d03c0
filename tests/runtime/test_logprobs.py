"""Log-probabilities from the engine to SGLang's meta data: of prompts, samples, likeliest ids, choices."""

from __future__ import annotations

import math
from typing import Any

import pytest

from sglc.execution.call_record import call_of, meta_info, meta_rest, meta_so_far
from sglc.ir.core import Site
from sglc.ir.plan.events import Delta, GenDone, SelectDone
from sglc.ir.plan.segment import ExtendNode, OpenNode, SelectNode
from tests.depth import few
from tests.runtime.test_segments import LOC, Bench, Letters, gen, ids

PROMPT = ids("cdefgh")
LISTS = ("input_token_logprobs", "output_token_logprobs", "input_top_logprobs", "output_top_logprobs")


def spelled(token: int) -> str:
    return Letters().token_bytes()[token].decode()


def run(bench: Bench, **sampling: Any) -> GenDone:
    done = bench.run(
        OpenNode(), ExtendNode(0, ("cdefgh",)), gen(1, **sampling), name=f"run {len(bench.ended)}"
    )[2]
    assert isinstance(done, GenDone)
    return done


@pytest.mark.parametrize("begin", few([None, 0, 1, 4, 5, 6, 40], 4))
@pytest.mark.parametrize("top", [0, 2])
@pytest.mark.parametrize("text", [False, True])
def test_what_is_asked_for_is_in_the_event(begin: int | None, top: int, text: bool) -> None:
    bench = Bench(depth=2)
    asked = {"logprobs_from": begin, "top_logprobs": top, "logprob_text": text, "n": 2}
    for _ in range(2):  # the second time the prompt is cached
        done = run(bench, **asked)
        oracle = bench.oracle
        first = 6 if begin is None else min(begin, 6)
        scores = [None, *oracle.scores(PROMPT[:1], PROMPT[1:])]
        assert [p for p, _, _ in done.prompt_logprobs] == scores[first:]
        assert [i for _, i, _ in done.prompt_logprobs] == list(PROMPT[first:])
        assert [t for _, _, t in done.prompt_logprobs] == [spelled(i) if text else None for i in PROMPT[first:]]
        likeliest = [oracle.likeliest(PROMPT[:i], top) for i in range(max(first, 1), 6)] if top else []
        found = [[(i, p) for p, i, _ in place] for place in done.prompt_top_logprobs if place is not None]
        assert found == likeliest
        assert (None in done.prompt_top_logprobs) == (first == 0 and top > 0)
        for sample in done.samples:
            assert len(sample.logprobs) == len(sample.ids) == 5
            assert sample.texts == tuple(spelled(i) for i in sample.ids if text)
            found = [[(i, p) for p, i, _ in place] for place in sample.top_logprobs]
            places = [(*PROMPT, *sample.ids[:i]) for i in range(5)] if top else []
            assert found == [oracle.likeliest(place, top) for place in places]
            assert all(
                t == (spelled(i) if text else None) for place in sample.top_logprobs for _, i, t in place
            )


def test_a_stop_cuts_the_lists_too() -> None:
    for seed in range(20):
        bench = Bench(depth=2)
        done = run(bench, max_tokens=20, top_logprobs=2, stop=("g",), stop_regex=("f ?h",), seed=seed)
        (sample,) = done.samples
        assert len(sample.ids) == len(sample.logprobs) == len(sample.top_logprobs)
        assert sample.finish != "stop" or len(sample.ids) < 20


@pytest.mark.parametrize("seed", range(6))
def test_the_lists_of_all_deltas_add_up_to_the_whole(seed: int) -> None:
    bench = Bench(depth=3)
    done = run(
        bench, max_tokens=30, seed=seed, logprobs_from=2, top_logprobs=2, logprob_text=True,
        stop=("gab", " c"), stop_regex=("[ef]h{2}",),
    )  # fmt: skip
    deltas = [event for _, event in bench.events if isinstance(event, Delta)]
    assert "".join(delta.text for delta in deltas) == done.samples[0].text
    call = call_of(gen(1), done, 0.0, 0.0, 0.0)
    whole, rest = meta_info(call), meta_rest(call, deltas)
    for key in LISTS:
        assert [entry for delta in deltas for entry in meta_so_far(delta)[key]] + rest[key] == whole[key]
    assert {key: value for key, value in rest.items() if key not in LISTS} == {
        key: value for key, value in whole.items() if key not in LISTS
    }
    assert meta_rest(call, []) == whole
    # A delta has no token whose text has not come, and no delta is without its prompt at first.
    text = ""
    told: list[Any] = []
    for delta in deltas:
        text += delta.text
        told += delta.tokens
        assert text.startswith("".join(t for _, _, t in told))
    assert len(told) > len(done.samples[0].ids) / 2
    assert [bool(delta.prompt_logprobs) for delta in deltas] == [True] + [False] * (len(deltas) - 1)


def test_meta_data_has_sglang_s_shape() -> None:
    bench = Bench()
    done = run(bench, logprobs_from=0, top_logprobs=2, logprob_text=True, max_tokens=3)
    meta = meta_info(call_of(gen(1), done, 0.0, 0.0, 0.0))
    sample = done.samples[0]
    assert meta["input_token_logprobs"][0] == (None, PROMPT[0], "c")
    assert meta["output_token_logprobs"] == list(zip(sample.logprobs, sample.ids, sample.texts, strict=True))
    assert meta["input_top_logprobs"][0] is None
    assert all(len(place) == 2 and len(place[0]) == 3 for place in meta["input_top_logprobs"][1:])
    assert [len(place) for place in meta["output_top_logprobs"]] == [2, 2, 2]
    plain = meta_info(call_of(gen(1), run(bench), 0.0, 0.0, 0.0))
    assert (plain["input_token_logprobs"], plain["input_top_logprobs"], plain["output_top_logprobs"]) == (
        [],
        [],
        [],
    )
    assert all(text is None for _, _, text in plain["output_token_logprobs"])


def choose(method: str) -> tuple[SelectDone, dict[str, Any]]:
    node = SelectNode(1, Site("f", (), "c"), ("efg", "h", "ef"), method, LOC)
    done = Bench(depth=2).run(OpenNode(), ExtendNode(0, ("cd",)), node)[2]
    assert isinstance(done, SelectDone)
    return done, meta_info(call_of(node, done, 0.0, 0.0, 0.0))


def test_meta_data_of_choices() -> None:
    done, meta = choose("token_length_normalized")
    means = [sum(values) / len(values) for values in done.logprobs]
    assert meta["normalized_prompt_logprobs"] == pytest.approx(means)
    assert [[p for p, _, _ in each] for each in meta["input_token_logprobs"]] == [
        list(v) for v in done.logprobs
    ]
    assert meta["output_token_logprobs"] == [[], [], []]
    assert meta["decided"] == "continuation"
    weights = [math.exp(sum(values)) for values in done.logprobs]
    assert meta["probabilities"] == pytest.approx([weight / sum(weights) for weight in weights])
    for key in ("greedy_logprob_matrix", "unconditional_token_logprobs"):
        assert key not in meta

    done, meta = choose("greedy_token_selection")
    (a, b, c), mean = done.logprobs[0], meta["normalized_prompt_logprobs"]
    assert meta["greedy_logprob_matrix"] == [[a, b, c], [done.logprobs[1][0]] + [mean[1]] * 2, [a, b, mean[2]]]

    done, meta = choose("unconditional_likelihood_normalized")
    assert meta["normalized_prompt_logprobs"] == pytest.approx(means)
    alone = meta["unconditional_token_logprobs"]
    assert [[i for _, i, _ in each] for each in alone] == [list(ids(text)) for text in ("efg", "h", "ef")]
    oracle = Bench().oracle
    assert [p for p, _, _ in alone[0]] == [None, *oracle.scores(ids("e"), ids("fg"))]
    assert [p for p, _, _ in alone[1]] == [None]
    expected = [
        sum(values) / len(values) - sum(p or 0.0 for p, _, _ in other) / len(other)
        for values, other in zip(done.logprobs, alone, strict=True)
    ]
    assert meta["normalized_unconditional_prompt_logprobs"] == pytest.approx(expected)
    assert done.choice == max(range(3), key=lambda i: expected[i])
