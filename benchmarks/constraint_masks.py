"""What a mask costs: ten forms, each with a text that it allows, on the CPU, beside xgrammar and llguidance.

Every engine walks the same tokens: at each it gives the mask, and reads the token. `cold`: the first walk
behind the compilation; `warm`: the second, of a request that comes later. Microseconds a token, medians of
`ROUNDS` compilations for every token, and of these the mean and the largest. The small vocabulary is the
default model's, the large one has pairs of its tokens besides (`pairs_vocabulary`), for want of a
tokenizer of that size. Writes benchmarks/results/constraint-masks-<cpu>.json.

    python -m benchmarks.constraint_masks
"""

from __future__ import annotations

import gc
import json
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.constraint_forms import ENGINES, PATTERNS, Engine, Guidance, Own, OwnWalk, Walk, XGrammar
from benchmarks.machine import dated_setting, result_path, store
from benchmarks.pairs_vocabulary import pairs as with_pairs
from sglc.ir.sampling import Sampling
from sglc.runtime.constraints.constraint import Constraints
from sglc.runtime.model.registry import prepare
from sglc.runtime.model.weights import load_config
from sglc.runtime.tokenizer.tokenizer import load_tokenizer

ROUNDS = 5
LARGE = 151_936
MOST_TIMES, MOST_US = 2.0, 20.0  # none above so many times the better library's and so many microseconds

RECORD = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "email": {"type": "string"},
        "active": {"type": "boolean"},
        "role": {"enum": ["admin", "editor", "reader"]},
    },
    "required": ["name", "age", "email", "active", "role"],
    "additionalProperties": False,
}
ORDER = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "items": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "sku": {"type": "string"},
                    "count": {"type": "integer"},
                    "price": {"type": "number"},
                },
                "required": ["sku", "count", "price"],
                "additionalProperties": False,
            },
        },
        "note": {"type": ["string", "null"]},
    },
    "required": ["id", "items", "note"],
    "additionalProperties": False,
}
SUMS = 'root ::= term (" + " term)*\nterm ::= [0-9]+ | "(" root ")"\n'

# Field of `Sampling`, the form, and a text of it.
FORMS: dict[str, tuple[str, str, str]] = {
    "choice": ("regex", PATTERNS["choice"], "Ravenclaw"),
    "date and time": ("regex", PATTERNS["date and time"], "2026-03-14T15:09:26.535Z"),
    "email": ("regex", PATTERNS["email"], "ada.lovelace+engine@analytical-society.example.org"),
    "IPv6": ("regex", PATTERNS["IPv6"], "2001:db8:85a3::8a2e:370:7334"),
    "sentence": (
        "regex", PATTERNS["sentence"],
        "Bees are worth keeping, because they ask for little and a garden without them is a quiet place.",
    ),
    "character": (
        "regex", PATTERNS["character"],
        '{\n    "name": "Harry Potter",\n    "house": "Gryffindor",\n    "blood status": "Half-blood",\n'
        '    "occupation": "student",\n    "wand": {\n        "wood": "Holly",\n'
        '        "core": "Phoenix feather",\n        "length": 11.0\n    },\n    "alive": "Alive",\n'
        '    "patronus": "Stag",\n    "bogart": "Dementor"\n}',
    ),
    "city": (
        "regex", PATTERNS["city"],
        '{\n  "name": "Paris",\n  "country": "France",\n  "latitude": 48.85,\n  "population": 2102650,\n'
        '  "top 3 landmarks": ["Eiffel Tower", "Louvre", "Notre Dame"]\n}',
    ),
    "record": (
        "json_schema", json.dumps(RECORD),
        '{"name": "Ada Lovelace", "age": 36, "email": "ada@example.org", "active": true, "role": "editor"}',
    ),
    "order": (
        "json_schema", json.dumps(ORDER),
        '{"id": "A-1024", "items": [{"sku": "tea", "count": 2, "price": 4.5}, {"sku": "cup and saucer", '
        '"count": 1, "price": 12.25}], "note": "leave it at the door"}',
    ),
    "sums": ("ebnf", SUMS, "12 + (3 + 45 + (6 + 7)) + 890"),
}  # fmt: skip


def beginner(
    engine: Engine, kind: str, form: str, constraints: Callable[[], Constraints]
) -> Callable[[], Walk]:
    """Compile a form; what comes makes walks."""
    match engine:
        case _ if kind == "regex":
            return engine.walk(form)
        case Own():
            held = constraints()
            return lambda: OwnWalk(held.of(Sampling(**{kind: form}, canonical=False)))  # type: ignore[arg-type]
        case XGrammar():
            from xgrammar import Grammar

            ebnf = kind == "ebnf"
            grammar = Grammar.from_ebnf(form) if ebnf else Grammar.from_json_schema(form, any_whitespace=False)
            return engine.begin(engine.compiler.compile_grammar(grammar))
        case Guidance():
            from llguidance import LLMatcher
            from llguidance.gbnf_to_lark import any_to_lark

            if kind == "ebnf":
                return engine.begin(LLMatcher.grammar_from_lark(any_to_lark(form)))
            layout = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
            return engine.begin(LLMatcher.grammar_from_json_schema(form, defaults=layout))
        case _:
            raise AssertionError(engine)


def walked_us(walk: Walk, ids: Sequence[int]) -> list[float]:
    """Microseconds of every token of a text."""
    times = []
    for token in ids:
        begin = time.perf_counter()
        walk.mask()
        walk.take(token)
        times.append(1e6 * (time.perf_counter() - begin))
    return times


def measured(
    engines: Sequence[Engine], kind: str, form: str, ids: Sequence[int], constraints: Callable[[], Constraints]
) -> dict[str, dict[str, dict[str, float]]]:
    """By state and engine the mean and the largest of the tokens' medians."""
    times: dict[tuple[str, str], list[list[float]]] = {}
    for turn in range(ROUNDS):
        for engine in engines if turn % 2 else engines[::-1]:
            gc.collect()
            gc.disable()
            begun = beginner(engine, kind, form, constraints)
            for state in ("cold", "warm"):
                times.setdefault((state, engine.name), []).append(walked_us(begun(), ids))
            gc.enable()
    found: dict[str, dict[str, dict[str, float]]] = {"cold": {}, "warm": {}}
    for (state, name), rounds in times.items():
        each = [statistics.median(values) for values in zip(*rounds, strict=True)]
        found[state][name] = {"mean": round(statistics.mean(each), 1), "largest": round(max(each), 1)}
    return found


def summed(forms: dict[str, Any], state: str) -> dict[str, Any]:
    """Sums of the means over the forms, and what is above the bound for one."""
    names = list(next(iter(forms.values()))[state])
    sums = {name: round(sum(form[state][name]["mean"] for form in forms.values()), 1) for name in names}
    better = min((name for name in names if name != Own.name), key=lambda name: sums[name])
    above = [
        name
        for name, form in forms.items()
        if form[state][Own.name]["mean"]
        > MOST_TIMES * min(form[state][other]["mean"] for other in names if other != Own.name) + MOST_US
    ]
    return {"sums": sums, "reached": sums[Own.name] <= sums[better] and not above, "above": above}


def main() -> int:
    folder = prepare("smollm2")
    tokenizer, size = load_tokenizer(folder), load_config(folder).vocab_size
    small = tokenizer.token_bytes()
    result: dict[str, Any] = {
        "what": "microseconds a token, the mask and reading the token, of ten forms",
        **dated_setting(),
        "rounds": ROUNDS,
    }
    for width, token_bytes in ((size, small), (LARGE, with_pairs(small, LARGE))):
        engines = [make(token_bytes, width) for make in ENGINES]
        for engine in engines:  # what is loaded once
            engine.walk("warm")().mask()
        forms: dict[str, Any] = {}
        held = Constraints(token_bytes, width)
        held.prepare(ebnf=True)

        def constraints(held: Constraints = held) -> Constraints:
            held._grammars._kept.clear()  # nothing is kept from one compilation to the next
            return held

        for name, (kind, form, text) in FORMS.items():
            ids = tokenizer.encode(text)
            forms[name] = {"tokens": len(ids), **measured(engines, kind, form, ids, constraints)}
            print(f"{width} {name}: {json.dumps(forms[name])}", flush=True)
        together = {state: summed(forms, state) for state in ("cold", "warm")}
        print(f"{width}: {json.dumps(together)}", flush=True)
        result[f"vocabulary of {width:,}"] = {"forms": forms, "together": together}
    store(result_path("constraint-masks"), result)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
