"""What samples cost that are held to a form or have options, beside free ones of the same run.

Each form goes on for as long as free rows do, so that counts of tokens are equal: schemas end with a text that
random weights do not end; with real ones some rows end before others, so `step_of_free` is what tells there.
Text that has to follow is sampled like any other.
`first_p99_s`: until the first token of a row, everything being compiled.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from sglc.bench import work
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
    token_bytes = load_tokenizer(folder).token_bytes()
    longest = size["prompt"] + size["out"]
    rig = make_rig(options, Needs(longest=longest, rows=max(size["rows"]), token_bytes=tuple(token_bytes)))
    forms = Constraints(token_bytes, rig.config.vocab_size)
    forms.prepare(ebnf=True)
    cases: list[Case] = []
    for rows in size["rows"]:
        todo = work.Offline(
            tuple(work.single(options.seed + at, size["prompt"], 1).prompts[0] for at in range(rows)),
            (size["out"],) * rows,
        )
        free = Sampling()
        kinds: dict[str, Sequence[Sampling]] = {"free": (free,)}
        kinds |= {name: (form,) for name, form in {**FORMS, **OPTIONS}.items()}
        if rows > 1:
            kinds["half free, half forms"] = tuple(each for form in FORMS.values() for each in (free, form))
            kinds["64 forms"] = tuple(map(_different, range(64)))
        base = calm_s = 0.0
        for name, samplings in kinds.items():
            one = partial(_rows, rig, forms, todo, samplings)
            one(None)  # what is compiled and captured once
            rounds, _ = repeat(options.rounds, False, one)
            seconds = [run.seconds for run in rounds]
            made, steps = (rounds[-1].counts()[count] for count in ("tokens_out", "steps"))
            case = seconds_case(f"{rows} rows, {name}", rounds, seconds, tokens=made)
            base = base or case.value
            calm_s = calm_s or case.median_s / steps
            first = percentile([each - run.began for run in rounds for each in run.first.values()], 99)
            figures = {
                "of_free": round(case.value / base, 3),
                "step_of_free": round(case.median_s / steps / calm_s, 3),
                "first_p99_s": round(first, 4),
            }
            cases.append(replace(case, figures={**case.figures, **figures}))
    return BenchResult(
        workload="constrained", what="rows held to forms, or with options, beside free ones", model=rig.model,
        work={key: list(value) if isinstance(value, tuple) else value for key, value in size.items()},
        cases=tuple(cases), setting=rig.setting,
    )  # fmt: skip


def _rows(
    rig: Rig, forms: Constraints, todo: work.Offline, samplings: Sequence[Sampling], profiler: Profiler | None
) -> BenchSession:
    """One round: the rows have `samplings` in turn."""
    session = BenchSession(rig, profiler)
    for at, (ids, out) in enumerate(zip(todo.prompts, todo.outs, strict=True)):
        sampling = replace(samplings[at % len(samplings)], canonical=False)
        session.gen(None, ids, out, sampling=sampling, constraint=forms.of(sampling), tracked=True)
    session.run()
    return session
