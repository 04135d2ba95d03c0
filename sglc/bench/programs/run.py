"""`sglc bench programs`: each program with passes on and off, and two of them through the KV API as well."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from sglc import knobs
from sglc.backends.local import LocalBackend, LocalOptions
from sglc.bench.options import Options
from sglc.bench.programs.measure import Round, case, compare, equal_share
from sglc.bench.programs.vocabulary import Words, shape_folder
from sglc.bench.programs.workload import Batch, Workload
from sglc.bench.programs.workloads import BY_NAME, WORKLOADS
from sglc.bench.result import Case, Result
from sglc.bench.rig import Needs, make_rig, place
from sglc.bench.session import WARM_UP_SEED, repeat
from sglc.bench.setting import model_setting
from sglc.bench.shapes import SHAPES
from sglc.bench.throughput import same_work
from sglc.errors import UsageError
from sglc.runtime.loading import limits, placed

_ON_CUDA = "qwen3-0.6b"


def programs(options: Options, names: Sequence[str]) -> Result:
    """Every program of `names` (none: all) on a runtime of its own, as users have it.

    Raises:
        UsageError: SGLC070, no such program.
        SglcError: the model does not load, or a program fails.
    """
    device = place(options)
    chosen = [_known(name) for name in names] or list(WORKLOADS)
    model = options.model or (_ON_CUDA if device == "cuda" else knobs.model())
    cases: list[Case] = []
    for workload in chosen:
        cases += _cases(workload, replace(options, model=model), device)
    dtype = placed(_local(options, None, model))[1]
    setting = {
        **model_setting(device),
        "dtype": dtype,
        "kv_dtype": dtype if options.kv_dtype == "auto" else options.kv_dtype,
        "seed": options.seed,
        "rows": {w.name: _rows(w, options, device) for w in chosen},
        "token_budget": limits(_local(options, None, model), device)[1],
    }
    return Result(
        workload="programs",
        what="whole programs, passes on and off",
        model=model,
        work={workload.name: dict(workload.sizes[device]) for workload in chosen},
        cases=tuple(cases),
        setting=setting,
    )


def _known(name: str) -> Workload:
    if name not in BY_NAME:
        known = ", ".join(f"`{name}`" for name in BY_NAME)
        raise UsageError("SGLC070", f"there is no program `{name}`", note=f"there are: {known}")
    return BY_NAME[name]


def _cases(workload: Workload, options: Options, device: str) -> list[Case]:
    assert options.model is not None
    backend = LocalBackend(_local(options, _rows(workload, options, device), options.model))
    try:
        tokenizer = backend.target.tokenizer
        assert tokenizer is not None
        words = Words(tokenizer)
        batch = workload.batch(words, options.seed, device)
        warm_up = workload.batch(words, WARM_UP_SEED + options.seed, device)
        on, off = compare(workload.name, batch, warm_up, backend, options.rounds)
    finally:
        backend.close()  # its memory is the next one's
    figures = {"times_off": _times(off, on)}
    if not batch.sampled:
        figures["equal_to_off"] = round(equal_share(on[-1], off[-1]), 4)
    found: list[Case] = []
    if batch.same is not None:
        found, ratio = _through_kv_api(workload, batch, warm_up, on, options, device)
        figures["times_kv_api_s"] = ratio
    return [
        case(f"{workload.name}, passes on", on, **figures),
        case(f"{workload.name}, passes off", off),
        *found,
    ]


def _through_kv_api(
    workload: Workload, batch: Batch, warm_up: Batch, on: Sequence[Round], options: Options, device: str
) -> tuple[list[Case], float]:
    """The same ids through `Engine.extend` and `gen`, here; how many times its time programs take."""
    same, before = batch.same, warm_up.same
    assert same is not None
    assert before is not None
    rig = make_rig(options, Needs(longest=same.longest, rows=_rows(workload, options, device)))
    same_work(rig, before)
    print(f"sglc: {workload.name} through the KV API", file=sys.stderr, flush=True)
    sessions, _ = repeat(options.rounds, False, lambda _: same_work(rig, same))
    middle = median(session.seconds for session in sessions)
    counts = sessions[-1].counts()
    found = Case(
        name=f"{workload.name}, KV API",
        unit="programs/s",
        value=float(f"{len(batch.rows) / middle:.5g}"),
        seconds=tuple(round(session.seconds, 4) for session in sessions),
        median_s=round(middle, 4),
        counts=counts,
    )
    return [found], round(median(one.seconds for one in on) / middle, 4)


def _times(slow: Sequence[Round], fast: Sequence[Round]) -> float:
    """How many times as fast as the one the other is, in pairs of rounds that ran next to each other."""
    return round(median(s.seconds / f.seconds for s, f in zip(slow, fast, strict=True)), 4)


def _rows(workload: Workload, options: Options, device: str) -> int | None:
    return options.rows or (workload.in_flight if device == "cuda" else None)


def _local(options: Options, rows: int | None, model: str) -> LocalOptions:
    named = f"dummy:{shape_folder(model)}" if model in SHAPES else model.removeprefix("local:")
    return LocalOptions(
        named, device=options.device, dtype=options.dtype, kv_dtype=options.kv_dtype, max_rows=rows,
        token_budget=options.token_budget,
    )  # fmt: skip
