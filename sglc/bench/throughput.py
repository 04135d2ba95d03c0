"""Workloads that count how much comes out: offline, bs1, few-shot, tree.

Each has its full size on CUDA and a small one on the CPU. A function gives the result of a workload; before
the first round it runs something alike, so that nothing is compiled or captured while the clock runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from sglc.bench import floor, work
from sglc.bench.options import Options
from sglc.bench.profile import Profiler
from sglc.bench.result import BenchResult, seconds_case
from sglc.bench.rig import Needs, Rig, make_rig, place
from sglc.bench.session import WARM_UP_SEED, BenchSession, repeat
from sglc.runtime.scheduler.requests import SampleDone

_OFFLINE_WARM_UP_OUT = 32

OFFLINE: dict[str, dict[str, Any]] = {"cuda": {}, "cpu": {"count": 8, "shortest": 16, "longest": 48}}
OFFLINE_WARM_UP: dict[str, dict[str, Any]] = {"cuda": {"count": 32}, "cpu": {"count": 2, "longest": 100}}
BS1: dict[str, dict[str, Any]] = {"cuda": {"prompt": 128, "out": 512}, "cpu": {"prompt": 128, "out": 32}}
FEW_SHOT: dict[str, dict[str, Any]] = {
    "cuda": {"groups": 8, "questions": 64, "prefix": 1500, "question": 100},
    "cpu": {"groups": 2, "questions": 8, "prefix": 128, "question": 16},
}
TREE: dict[str, dict[str, Any]] = {
    "cuda": {"programs": 32, "prefix": 600, "branches": (8, 4), "adds": (50, 20), "outs": (200, 100)},
    "cpu": {"programs": 2, "prefix": 64, "branches": (3, 2), "adds": (8, 4), "outs": (12, 8)},
}


def offline(options: Options) -> BenchResult:
    """Independent requests, all there at the start; nobody reads tokens as they come."""
    device = place(options)
    todo = work.offline(options.seed, **OFFLINE[device])
    longest = max(len(p) + n for p, n in zip(todo.prompts, todo.outs, strict=True))
    # The warm-up's prompts, drawn with its own lengths, must fit too.
    warm = work.offline(WARM_UP_SEED, **OFFLINE_WARM_UP[device])
    longest = max(longest, max(map(len, warm.prompts)) + _OFFLINE_WARM_UP_OUT)
    budget = 16_384 if device == "cuda" else None
    rig = make_rig(options, Needs(longest=longest, token_budget=budget, patient=True))
    _requests(rig, work.Offline(warm.prompts, (_OFFLINE_WARM_UP_OUT,) * len(warm.prompts)), None)
    rounds, profile = repeat(options.rounds, options.profile, partial(_requests, rig, todo))
    prompts = [len(prompt) for prompt in todo.prompts]
    least = None
    figures: dict[str, float] = {}
    if rig.ceilings is not None:
        parts = floor.offline_s(rig.cost, prompts, todo.outs, rig.ceilings)
        least = sum(parts.values())
        figures = {f"floor_{name}_s": round(seconds, 3) for name, seconds in parts.items()}
    case = seconds_case(
        "all", rounds, [run.seconds for run in rounds],
        tokens=todo.tokens_out, floor_s=least, figures=figures,
    )  # fmt: skip
    size = {"sequences": len(prompts), "tokens_in": todo.tokens_in, "tokens_out": todo.tokens_out}
    return BenchResult(
        workload="offline", what="independent requests, all there at the start", model=rig.model, work=size,
        cases=(case,), setting=rig.setting, profile=profile,
    )  # fmt: skip


def bs1(options: Options) -> BenchResult:
    """One request alone: from its first token to its last, and from its prompt on."""
    size = BS1[place(options)]
    todo = work.single(9 + options.seed, **size)
    rig = make_rig(options, Needs(longest=size["prompt"] + size["out"]))
    _requests(rig, todo, None)
    rounds, profile = repeat(options.rounds, options.profile, partial(_requests, rig, todo, tracked=True))
    decode_s = [run.ended - min(run.first.values()) for run in rounds]
    prompt, out = size["prompt"], size["out"]
    least = whole = None
    if rig.ceilings is not None:
        least = floor.decode_s(rig.cost, 1, 0, prompt + 1, out - 1, rig.ceilings)
        # One prompt alone has too few tokens to be bound by FLOPs: the weights have to be read.
        first = max(
            floor.prefill_s(rig.cost, [prompt], rig.ceilings), rig.cost.weight_bytes / rig.ceilings.bandwidth
        )
        whole = least + first
    return BenchResult(
        workload="bs1", what="one request alone", model=rig.model, work=size,
        cases=(
            seconds_case("decode", rounds, decode_s, tokens=out - 1, floor_s=least),
            seconds_case(
                "with prefill", rounds, [run.seconds for run in rounds], tokens=out, floor_s=whole
            ),
        ),
        setting=rig.setting, profile=profile,
    )  # fmt: skip


def few_shot(options: Options) -> BenchResult:
    """Questions behind a few long prefixes, one token each: all of it is prompts."""
    what, size = "questions behind shared prefixes, one token out", FEW_SHOT[place(options)]
    return _side_by_side("few-shot", what, options, size, work.few_shot, 1, 512, floor.few_shot_s)


def tree(options: Options) -> BenchResult:
    """Tree of thought: each branch goes on as soon as its own parent is done."""
    what, size = "two levels of branches with samples, behind shared prefixes", TREE[place(options)]
    return _side_by_side("tree", what, options, size, work.tree_of_thought, 2, 1024, floor.tree_s)


def _side_by_side(
    name: str, what: str, options: Options, size: dict[str, Any], make: Callable[..., work.Tree | work.Shared],
    seed: int, rows: int, floor_s: Callable[..., float],
) -> BenchResult:  # fmt: skip
    """The workload `name` of ids that `make` draws, with so many rows on CUDA and the runtime's on the CPU."""
    todo = make(seed + options.seed, **size)
    rig = make_rig(options, Needs(longest=todo.longest, rows=rows if place(options) == "cuda" else None))
    same_work(rig, make(WARM_UP_SEED, **size))
    rounds, profile = repeat(options.rounds, options.profile, partial(same_work, rig, todo))
    least = None if rig.ceilings is None else floor_s(rig.cost, **size, device=rig.ceilings)
    case = seconds_case("all", rounds, [run.seconds for run in rounds], floor_s=least)
    return BenchResult(
        workload=name, what=what, model=rig.model, work=size, cases=(case,), setting=rig.setting,
        profile=profile,
    )  # fmt: skip


def same_work(rig: Rig, todo: work.Tree | work.Shared, profiler: Profiler | None = None) -> BenchSession:
    """One round of `tree` or `few_shot` with these ids."""
    return _tree(rig, todo, profiler) if isinstance(todo, work.Tree) else _few_shot(rig, todo, profiler)


def _requests(
    rig: Rig, todo: work.Offline, profiler: Profiler | None, *, tracked: bool = False
) -> BenchSession:
    session = BenchSession(rig, profiler)
    for prompt, out in zip(todo.prompts, todo.outs, strict=True):
        session.gen(None, prompt, out, tracked=tracked)
    return session.run()


def _few_shot(rig: Rig, todo: work.Shared, profiler: Profiler | None) -> BenchSession:
    session = BenchSession(rig, profiler)
    for prefix, questions in zip(todo.prefixes, todo.questions, strict=True):
        base = session.engine.extend(None, prefix)
        for question in questions:
            session.gen(base, question, 1, temperature=0.0)
    return session.run()


def _tree(rig: Rig, todo: work.Tree, profiler: Profiler | None) -> BenchSession:
    session = BenchSession(rig, profiler)
    engine = session.engine

    def branch(base: int, add: Sequence[int], seconds: Sequence[Sequence[int]]) -> None:
        parent = engine.extend(base, add)

        def go_on(done: SampleDone) -> None:
            grown = engine.extend(parent, done.ids)
            for ids in seconds:
                session.gen(grown, ids, todo.outs[1])
            engine.release(parent)
            engine.release(grown)

        session.gen(parent, (), todo.outs[0], then=go_on)

    for prefix, firsts, seconds in zip(todo.prefixes, todo.firsts, todo.seconds, strict=True):
        base = engine.extend(None, prefix)
        for add, below in zip(firsts, seconds, strict=True):
            branch(base, add, below)
    return session.run()
