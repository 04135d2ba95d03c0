"""What samples cost that are held to a form or have options, beside free ones of the same run.

Each form goes on for as long as free rows do, so that counts of tokens are equal: schemas end with a text that
random weights do not end; with real ones some rows end before others, so `step_of_free` is what tells there.
Text that has to follow is sampled like any other there, but for where no spelling leaves a choice.
`first_p99_s`: until the first token of a row, everything being compiled.

The character is as programs have it by default: text that has to follow comes in the tokenizer's spelling, and
passes through at once. It is SGLang's own example, and its texts come one after another. `forced`: tokens
that were not sampled.

Floors are of the steps that were made: each reads the weights, and the keys of its rows.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from sglc.bench import floor, work
from sglc.bench.options import Options
from sglc.bench.profile import Profiler
from sglc.bench.programs.vocabulary import shape_folder
from sglc.bench.result import BenchResult, Case, percentile, seconds_case
from sglc.bench.rig import Needs, Rig, make_rig, place
from sglc.bench.session import BenchSession, repeat
from sglc.bench.shapes import SHAPES
from sglc.ir.sampling import Sampling
from sglc.runtime.constraints.constraint import Constraints
from sglc.runtime.model.registry import prepare
from sglc.runtime.scheduler.requests import SampleDone
from sglc.runtime.tokenizer.tokenizer import load_tokenizer

SIZES: dict[str, dict[str, Any]] = {
    "cuda": {"rows": (1, 64, 256), "prompt": 64, "out": 256},
    "cpu": {"rows": (1, 4), "prompt": 16, "out": 24},
}
_NAME = {"type": "string", "maxLength": 24}
_AGE = {"type": "integer", "minimum": 0, "maximum": 150}
_TEXT = {"type": "string"}  # of random weights, it does not end


def _object(**properties: Any) -> dict[str, Any]:
    """An object that has them all."""
    return {"type": "object", "properties": properties, "required": [*properties]}


_FLAT = _object(
    id={"type": "integer"}, age=_AGE, active={"type": "boolean"},
    role={"enum": ["admin", "editor", "reader"]}, name=_NAME, city=_NAME, score={"type": "number"}, about=_TEXT,
)  # fmt: skip
_NESTED = _object(
    id=_NAME, tags={"type": "array", "items": _NAME, "minItems": 1, "maxItems": 4},
    price={"type": "number", "minimum": 0, "multipleOf": 0.01}, owner=_FLAT,
)  # fmt: skip
_NODE = _object(children={"type": "array", "items": {"$ref": "#/$defs/node"}}, name=_TEXT)
_TREE = {"$ref": "#/$defs/node", "$defs": {"node": _NODE}}
_SUMS = 'root ::= (sum "; ")+\nsum ::= item (" + " item)*\nitem ::= [0-9]+ | "(" sum ")"'

WORDS = r"[\w\d\s]{1,16}"
CHARACTER = (
    r'\{\n    "name": "' + WORDS + r'",\n    "house": "(Gryffindor|Slytherin|Ravenclaw|Hufflepuff)",\n'
    r'    "blood status": "(Pure-blood|Half-blood|Muggle-born)",\n'
    r'    "occupation": "(student|teacher|auror|ministry of magic|death eater|order of the phoenix)",\n'
    r'    "wand": \{\n        "wood": "' + WORDS + r'",\n        "core": "' + WORDS + r'",\n'
    r'        "length": [0-9]{1,2}\.[0-9]{0,2}\n    \},\n    "alive": "(Alive|Deceased)",\n'
    r'    "patronus": "' + WORDS + r'",\n    "bogart": "' + WORDS + r'"\n\}'
)  # SGLang's own example
_TEXTS, _MOST_TOKENS = 8, 400  # texts of it, one after another, and tokens that one may have


FORMS: dict[str, Sampling] = {
    "letters": Sampling(regex="[a-z ]{4000}"),
    "words": Sampling(regex="([a-z]{2,9} )+"),
    "choices": Sampling(regex="((yes|no|perhaps|never|always), )+"),
    "integers": Sampling(regex="(-?(0|[1-9][0-9]{0,8}), )+"),
    "dates": Sampling(regex="([0-9]{4}-(0[1-9]|1[0-2])-([0-2][0-9]|3[01]); )+"),
    "addresses": Sampling(regex=r"([a-z0-9._]{1,12}@[a-z0-9]{1,10}\.(com|org|net), )+"),
    "flat schema": Sampling(json_schema=json.dumps(_FLAT)),
    "nested schema": Sampling(json_schema=json.dumps(_NESTED)),
    "recursive schema": Sampling(json_schema=json.dumps(_TREE)),
    "grammar": Sampling(ebnf=_SUMS),
}


def _different(number: int) -> Sampling:
    """One of many forms, each another one: a pattern, a schema, one that contains itself, or a grammar."""
    match number % 4:
        case 0:
            return Sampling(regex=f"([a-z]{{2,{3 + number}}} )+")
        case 1:
            return Sampling(
                json_schema=json.dumps(_object(**{f"key{number}": _NAME, "age": _AGE, "about": _TEXT}))
            )
        case 2:
            node = _object(
                **{f"parts{number}": {"type": "array", "items": {"$ref": "#/$defs/node"}}, "name": _TEXT}
            )
            return Sampling(json_schema=json.dumps({**_TREE, "$defs": {"node": node}}))
    return Sampling(ebnf=_SUMS.replace(" + ", f" +{number} "))


OPTIONS: dict[str, Sampling] = {
    "top_p of most": Sampling(top_p=0.9),  # random weights tell hardly one token from another
    "top_p": Sampling(top_p=0.9, temperature=0.1), "top_k": Sampling(top_k=50), "min_p": Sampling(min_p=0.05),
    "logit_bias": Sampling(logit_bias=tuple((id_, 2.0) for id_ in range(300, 310))),
    "frequency_penalty": Sampling(frequency_penalty=0.5), "top_logprobs": Sampling(top_logprobs=5),
}  # fmt: skip


def constrained(options: Options) -> BenchResult:
    """Rows held to forms or with options; half of the rows free, half held to forms; and all to other forms."""
    size = SIZES[place(options)]
    model = options.model or Needs(longest=1).model
    folder = shape_folder(model) if model in SHAPES else prepare(model.removeprefix("local:"))
    tokenizer = load_tokenizer(folder)
    token_bytes = tokenizer.token_bytes()
    longest = size["prompt"] + max(size["out"], _MOST_TOKENS)
    rig = make_rig(options, Needs(longest=longest, rows=max(size["rows"]), token_bytes=tuple(token_bytes)))
    forms = Constraints(token_bytes, rig.config.vocab_size, tokenizer.encode)
    forms.prepare(ebnf=True)
    cases: list[Case] = []
    for rows in size["rows"]:
        todo = _side_by_side(options, size, rows)
        free = Sampling()
        kinds: dict[str, Sequence[Sampling]] = {"free": (free,)}
        kinds |= {name: (form,) for name, form in {**FORMS, **OPTIONS}.items()}
        if rows > 1:
            kinds["half free, half forms"] = tuple(each for form in FORMS.values() for each in (free, form))
            kinds["64 forms"] = tuple(map(_different, range(64)))
        first = len(cases)
        for name, samplings in kinds.items():
            held = [replace(sampling, canonical=False) for sampling in samplings]
            case = _measured(f"{rows} rows, {name}", options, rig, partial(_rows, rig, forms, todo, held), rows)
            cases.append(_beside(case, case if name == "free" else cases[first]))
        if rows == 1:
            one = partial(_one_by_one, rig, forms, _side_by_side(options, size, _TEXTS).prompts)
            case = _measured("1 rows, character, forced tokens", options, rig, one, rows)
            cases.append(_beside(case, cases[0]))
    return BenchResult(
        workload="constrained", what="rows held to forms, or with options, beside free ones", model=rig.model,
        work={key: list(value) if isinstance(value, tuple) else value for key, value in size.items()},
        cases=tuple(cases), setting=rig.setting,
    )  # fmt: skip


def _side_by_side(options: Options, size: Mapping[str, Any], rows: int) -> work.Offline:
    prompts = (work.single(options.seed + at, size["prompt"], 1).prompts[0] for at in range(rows))
    return work.Offline(tuple(prompts), (size["out"],) * rows)


def _measured(
    name: str, options: Options, rig: Rig, one: Callable[[Profiler | None], BenchSession], rows: int
) -> Case:
    """One case: its rate, the floor, and where a step's time goes if that is asked for."""
    for _ in range(2):  # what is compiled the first time that it comes, and captured the second time
        one(None)
    rounds, profile = repeat(options.rounds, options.profile, one)
    counts = rounds[-1].counts()
    seconds = [run.seconds for run in rounds]
    firsts = [each - run.began for run in rounds for each in run.first.values()]
    figures = {"first_p99_s": round(percentile(firsts, 99), 4)} if firsts else {}
    if forced := rounds[-1].engine.forced:
        figures["forced"] = forced
    if profile is not None:
        copies_us = profile.kinds_us.get("copies", 0.0)
        waits_us = profile.idle * profile.step_us
        figures |= {
            "step_us": profile.step_us, "device_us": round(profile.step_us - waits_us - copies_us, 1),
            "copies_us": round(copies_us, 1), "waits_for_host_us": round(waits_us, 1),
        }  # fmt: skip
    return seconds_case(
        name,
        rounds,
        seconds,
        tokens=counts["tokens_out"],
        floor_s=_floor_s(rig, rounds[-1], rows),
        figures=figures,
    )


def _floor_s(rig: Rig, run: BenchSession, rows: int) -> float | None:
    """Seconds for the prompts, and for the steps of `rows` rows side by side that came behind them.

    Of a text of n tokens no more than n - 1, the first one comes with the prompt; less where tokens are forced.
    """
    if rig.ceilings is None:
        return None
    counts = run.counts()
    texts = counts["requests"] // rows
    prompt, out = (counts[count] // counts["requests"] for count in ("tokens_in", "tokens_out"))
    steps = min(out, run.engine.steps // texts) - 1
    prompts_s = floor.prefill_s(rig.cost, [prompt] * rows, rig.ceilings)
    return texts * (prompts_s + floor.decode_s(rig.cost, rows, 0, prompt + 1, steps, rig.ceilings))


def _beside(case: Case, free: Case) -> Case:
    """A case with its rate, and the time of its steps, over those of the free rows."""
    step_s, calm_s = (each.median_s / each.counts["steps"] for each in (case, free))
    figures = {"of_free": round(case.value / free.value, 3), "step_of_free": round(step_s / calm_s, 3)}
    return replace(case, figures={**figures, **case.figures})


def _rows(
    rig: Rig, forms: Constraints, todo: work.Offline, samplings: Sequence[Sampling], profiler: Profiler | None
) -> BenchSession:
    """One round: the rows have `samplings` in turn."""
    session = BenchSession(rig, profiler)
    for at, (ids, out) in enumerate(zip(todo.prompts, todo.outs, strict=True)):
        sampling = samplings[at % len(samplings)]
        session.gen(None, ids, out, sampling=sampling, constraint=forms.of(sampling), tracked=True)
    return session.run()


def _one_by_one(
    rig: Rig, forms: Constraints, prompts: Sequence[tuple[int, ...]], profiler: Profiler | None
) -> BenchSession:
    """One round: each text of the character begins when the one before it is there."""
    session, sampling, left = BenchSession(rig, profiler), Sampling(regex=CHARACTER), deque(prompts)

    def begin(_: SampleDone | None = None) -> None:
        if left:
            held = forms.of(sampling)
            session.gen(None, left.popleft(), _MOST_TOKENS, sampling=sampling, constraint=held, then=begin)

    begin()
    return session.run()
