"""`sglc bench programs`: each program with passes on and off and as Python, three through the KV API too."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import median

from sglc import knobs
from sglc.backends.local import LocalBackend, LocalOptions
from sglc.bench.options import Options
from sglc.bench.programs.measure import OFF, ON, PYTHON, Round, Side, case, compare, equal_share
from sglc.bench.programs.vocabulary import DrawnWords, shape_folder
from sglc.bench.programs.workload import Workload, WorkloadBatch
from sglc.bench.programs.workloads import BY_NAME, WORKLOADS
from sglc.bench.result import BenchResult, Case, short, timed_case
from sglc.bench.rig import PAGE_SIZE, Needs, checked_limits, make_rig, place
from sglc.bench.session import WARM_UP_SEED, repeat
from sglc.bench.setting import commit, model_setting
from sglc.bench.shapes import SHAPES
from sglc.bench.throughput import same_work
from sglc.errors import UsageError
from sglc.runtime.engine.loading import limits, placed

_ON_CUDA = "qwen3-0.6b"


def programs(options: Options, names: Sequence[str]) -> BenchResult:
    """Every program of `names` (none: all) on a runtime of its own, as users have it.

    Raises:
        UsageError: SGLC070, no such program; SGLC037, more rows than a step has tokens.
        SglcError: the model does not load, or a program fails.
    """
    device = place(options)
    chosen = [_known(name) for name in names] or list(WORKLOADS)
    for workload in chosen:
        checked_limits(options, Needs(longest=1, rows=_rows(_in_flight(workload), options, device)), device)
    model = options.model or (_ON_CUDA if device == "cuda" else knobs.model())
    measured_at = commit()  # whatever is checked out when it is over
    asked = replace(options, model=model)
    # One runtime for all programs with as many rows; each is gone before the next one takes the memory.
    sides: dict[str, _Sides] = {}
    for rows, group in groupby(sorted(chosen, key=_in_flight), _in_flight):
        backend = LocalBackend(_local(asked, _rows(rows, options, device), model))
        try:
            sides |= {workload.name: _measured(workload, backend, asked, device) for workload in group}
        finally:
            backend.close()
    cases: list[Case] = []
    for workload in chosen:
        cases += _cases(workload, sides.pop(workload.name), asked, device)
    dtype = placed(_local(options, None, model))[1]
    setting = {
        **model_setting(device),
        "commit": measured_at,
        "dtype": dtype,
        "kv_dtype": dtype if options.kv_dtype == "auto" else options.kv_dtype,
        "seed": options.seed,
        "rows": {w.name: _rows(_in_flight(w), options, device) for w in chosen},
        "token_budget": limits(_local(options, None, model), device)[1],
    }
    return BenchResult(
        workload="programs",
        what="whole programs, passes on and off, and as Python",
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


@dataclass(frozen=True, slots=True)
class _Sides:
    batch: WorkloadBatch
    warm_up: WorkloadBatch
    rounds: Mapping[Side, Sequence[Round]]


def _measured(workload: Workload, backend: LocalBackend, options: Options, device: str) -> _Sides:
    tokenizer = backend.target.tokenizer
    assert tokenizer is not None
    words = DrawnWords(tokenizer)
    batch = workload.batch(words, options.seed, device)
    warm_up = workload.batch(words, WARM_UP_SEED + options.seed, device)
    return _Sides(batch, warm_up, compare(workload.name, batch, warm_up, backend, options.rounds))


def _cases(workload: Workload, sides: _Sides, options: Options, device: str) -> list[Case]:
    on, off, python = sides.rounds[ON], sides.rounds[OFF], sides.rounds[PYTHON]
    figures = {"times_off": _times(off, on), "times_python": _times(python, on)}
    if not sides.batch.sampled:
        figures["equal_to_off"] = round(equal_share(on[-1], off[-1]), 4)
        figures["equal_to_python"] = round(equal_share(on[-1], python[-1]), 4)
    found: list[Case] = []
    if sides.batch.same is not None:
        found = [_through_kv_api(workload, sides, options, device)]
        figures["times_kv_api_s"] = round(median(one.seconds for one in on) / found[0].median_s, 4)
    return [
        case(f"{workload.name}, passes on", on, **figures),
        case(f"{workload.name}, passes off", off),
        case(f"{workload.name}, as Python", python),
        *found,
    ]


def _through_kv_api(workload: Workload, sides: _Sides, options: Options, device: str) -> Case:
    """The same ids through `Engine.extend` and `gen`, in this process."""
    same, before = sides.batch.same, sides.warm_up.same
    assert same is not None
    assert before is not None
    rows = _rows(_in_flight(workload), options, device)
    # Another rig may follow, so this one does not take what memory there is. Rows take pages in advance.
    pool = 2 * same.most_tokens + 8 * PAGE_SIZE * (rows or 0) if device == "cuda" else None
    needs = Needs(longest=same.longest, rows=rows, pool=pool)
    print(f"sglc: {workload.name} through the KV API", file=sys.stderr, flush=True)
    rig = make_rig(options, needs)
    same_work(rig, before)
    sessions, _ = repeat(options.rounds, False, lambda _: same_work(rig, same))
    seconds = [session.seconds for session in sessions]
    rate = short(len(sides.batch.rows) / median(seconds))
    return timed_case(f"{workload.name}, KV API", "programs/s", rate, seconds, counts=sessions[-1].counts())


def _times(slow: Sequence[Round], fast: Sequence[Round]) -> float:
    """How many times as fast as the one the other is, in pairs of rounds that ran next to each other."""
    return round(median(s.seconds / f.seconds for s, f in zip(slow, fast, strict=True)), 4)


def _in_flight(workload: Workload) -> int:
    return workload.in_flight or 0


def _rows(in_flight: int, options: Options, device: str) -> int | None:
    """Rows of the runtime; None: as users have it."""
    return options.rows or (in_flight if in_flight and device == "cuda" else None)


def _local(options: Options, rows: int | None, model: str) -> LocalOptions:
    named = f"dummy:{shape_folder(model)}" if model in SHAPES else model.removeprefix("local:")
    return LocalOptions(
        named, device=options.device, dtype=options.dtype, kv_dtype=options.kv_dtype, max_rows=rows,
        token_budget=options.token_budget,
    )  # fmt: skip
