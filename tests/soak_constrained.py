"""Constrained generations of the default model: every text matches, one that is cut begins as a match does.

python -m tests.soak_constrained --prompts 17 --seed 0
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jsonschema

from sglc.backends.local import LocalBackend, LocalOptions
from sglc.bench.constrained import CHARACTER
from sglc.errors import Loc
from sglc.ir.core import Site
from sglc.ir.grammar.dfa import DEAD, run
from sglc.ir.grammar.regex import compile_regex
from sglc.ir.plan.events import Event, GenDone, NodeFailed, Sample
from sglc.ir.plan.segment import ExtendNode, GenNode, OpenNode, Segment
from sglc.ir.sampling import Sampling
from sglc.runtime.constraints.constraint import Constraints
from tests.constraints.random_tags import holds

CITY = (
    r'\{"city": "[A-Za-z ]{1,20}", "country": "[A-Za-z ]{1,20}", "population": [0-9]{1,9}, '
    r'"capital": (true|false)\}'
)
REGEXES = (
    CHARACTER,
    CITY,
    "yes|no|maybe",
    "(Gryffindor|Slytherin|Ravenclaw|Hufflepuff)",
    r"[0-9]{4}",
    r"-?[0-9]{1,9}",
    r"[0-9]{1,4}\.[0-9]{2}",
    r"(19|20)[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])",
    r"([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9])?",
    r"((25[0-5]|2[0-4]\d|[01]?\d?\d)\.){3}(25[0-5]|2[0-4]\d|[01]?\d?\d)",
    r"[a-z]{1,12}@[a-z]{1,12}\.(com|org|net)",
    r"https?://[a-z]{2,12}\.(com|org|io)(/[a-z0-9]{1,8}){0,3}",
    r"\+[0-9]{1,3}( [0-9]{2,4}){2,4}",
    r"#[0-9A-Fa-f]{6}",
    r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    r"[A-Z][a-z]{1,10}( [A-Z][a-z]{1,10}){0,2}",
    r"(Mr|Ms|Dr)\. [A-Z][a-z]{2,12}",
    r"[A-Z]{3}-[0-9]{3}",
    r"\$[0-9]{1,3}(,[0-9]{3}){0,2}\.[0-9]{2}",
    r"[0-9]{1,3}%",
    r"v[0-9]{1,2}(\.[0-9]{1,2}){2}(-(alpha|beta|rc[0-9]))?",
    r"(true|false|null)",
    r"\[[0-9]{1,3}(, [0-9]{1,3}){0,5}\]",
    r"\((-?[0-9]{1,2}), (-?[0-9]{1,2})\)",
    r"(red|green|blue)( and (red|green|blue)){0,2}",
    r"Answer: (yes|no), because [a-z ,]{5,60}\.",
    r"The capital of [A-Z][a-z]{2,12} is [A-Z][a-z]{2,12}\.",
    r"<(b|i|em)>[a-z ]{1,20}</(b|i|em)>",
    r"SELECT (\*|[a-z]{1,8}) FROM [a-z]{1,10}( WHERE [a-z]{1,8} = [0-9]{1,4})?;",
    r"def [a-z_]{1,12}\(([a-z]{1,6}(, [a-z]{1,6}){0,2})?\):",
    r"[가-힣]{2,6}[.!]",
    r"[ぁ-ん]{1,8}。",
    r"(é|è|ê|ü|ß){1,6}",
    r"[😀-😏]{1,3}",
    r"[^\x00-\x7f]{1,4}",
    r".{1,20}",
    r"[^a-z]{1,12}",
    r"(?i:hello|good bye)[!?]{0,3}",
    r"(?s:.{3,10})",
    r"\w{1,8}\s\W{1,3}\S{1,4}",
)
TEXT = {"type": "string", "maxLength": 16}


def record(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


SCHEMAS: tuple[dict[str, Any], ...] = (
    record(name=TEXT, country=TEXT, population={"type": "integer", "minimum": 0, "maximum": 99999999}),
    record(house={"enum": ["Gryffindor", "Slytherin"]}, alive={"type": "boolean"}),
    record(mood={"enum": ["good", "bad", "so so"]}, score={"type": "integer", "minimum": 1, "maximum": 10}),
    record(a={"const": 1}, b={"type": "null"}, c={"type": "boolean"}),
    record(tags={"type": "array", "items": {"enum": ["x", "yy", "zzz"]}, "minItems": 1, "maxItems": 4}),
    record(point={"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 2}),
    record(when={"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"}),
    record(size={"type": "integer", "multipleOf": 5}, unit={"enum": ["cm", "inch"]}),
    record(id={"type": "string", "format": "uuid"}),
    record(pair={"type": "array", "prefixItems": [{"const": "x"}, {"type": "boolean"}], "minItems": 2}),
    record(plate={"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"}),
    record(inner=record(deep=record(value={"type": "integer", "minimum": -5, "maximum": 5}))),
    record(either={"anyOf": [{"type": "boolean"}, {"enum": ["unknown"]}]}),
    {"type": "array", "items": record(k={"enum": ["a", "b"]}), "minItems": 1, "maxItems": 3},
    {"type": "integer", "minimum": 0, "maximum": 255},
    {"type": "string", "minLength": 2, "maxLength": 12},
    {"enum": ["한국", "日本", "España", None, 7]},
    {"type": "object", "properties": {"x": {"type": "boolean"}, "y": {"type": "boolean"}}, "required": ["y"],
     "additionalProperties": False},
    {"oneOf": [record(kind={"const": "circle"}, r={"enum": [1, 2]}), record(kind={"const": "dot"})]},
    record(title=TEXT, year={"type": "integer", "minimum": 1900, "maximum": 2030}, seen={"type": "boolean"}),
)  # fmt: skip


def is_balanced(text: str) -> bool:
    """Whether the brackets of a text are those of a tree."""
    before = ""
    while text != before:
        before, text = text, text.replace("()", "").replace("[]", "")
    return not text


# Grammars, and what tells their texts in another way.
GRAMMARS: dict[str, Callable[[str], bool]] = {
    'root ::= "(" root* ")" | "[" root? "]"': is_balanced,
    'root ::= sum\nsum ::= part (("+" | "-") part)*\npart ::= [0-9]{1,3} | "(" sum ")"': lambda text: bool(
        re.fullmatch(r"[-+0-9()]+", text) and is_balanced(re.sub(r"[-+0-9]", "", text))
        and re.fullmatch(r"[0-9]{1,3}([-+][0-9]{1,3})*", re.sub(r"[()]", "", text))
    ),
    'root ::= "[" ([a-z]+ ("," [a-z]+)*)? "]"': lambda text: bool(
        re.fullmatch(r"\[([a-z]+(,[a-z]+)*)?\]", text)
    ),
    'root ::= [^a-z\\n]{2,5} "한" "é"?': lambda text: bool(re.fullmatch("[^a-z\n]{2,5}한é?", text)),
}  # fmt: skip
# Structural tags: most end with a piece of a form, one goes on with free text.
CITY_TAG = {
    "type": "tag",
    "begin": "<city>",
    "end": "</city>",
    "content": {"type": "json_schema", "json_schema": record(name=TEXT, capital={"type": "boolean"})},
}
YEAR_TAG = {
    "type": "tag",
    "begin": "<year>",
    "end": ["</year>", ";"],
    "content": {"type": "regex", "pattern": "[0-9]{4}"},
}
TAGS: tuple[dict[str, Any], ...] = (
    {"type": "triggered_tags", "triggers": ["<city>", "<year"], "tags": [CITY_TAG, YEAR_TAG],
     "at_least_one": True, "stop_after_first": True},
    {"type": "tags_with_separator", "tags": [CITY_TAG, YEAR_TAG], "separator": "\n", "at_least_one": True,
     "stop_after_first": True},
    {"type": "sequence", "elements": [{"type": "tag", "begin": "(", "end": [")", "."], "content": {
        "type": "triggered_tags", "triggers": [" "], "tags": [{**YEAR_TAG, "begin": " <year>"}]}}, CITY_TAG]},
    {"type": "triggered_tags", "triggers": ["e"],
     "tags": [{**CITY_TAG, "begin": "e"}, {**CITY_TAG, "begin": "e<"}]},
)  # fmt: skip
PROMPTS = (
    "Here is one: ", "Question: what do you have in mind?\nAnswer: ", "The capital of France is Paris. ",
    "Once upon a time there was ", "As JSON:\n", "My favourite is ", "x = ", "1, 2, 3, ", "서울은 ", "Name: ",
    "Date and place: ", "import json\nprint(", "- item\n- ", "Dear Sir or Madam,\n", "He said: \"", "\n", "The",
)  # fmt: skip
MAX_TOKENS = 160
TEMPERATURES = (0.0, 1.5)


@dataclass(frozen=True, slots=True)
class Case:
    """One generation; `regex`, `schema`, `ebnf` or the format of a `tag` is what it is held to."""

    prompt: str
    temperature: float
    regex: str | None
    schema: dict[str, Any] | None
    ebnf: str | None = None
    tag: dict[str, Any] | None = None

    @property
    def kind(self) -> str:
        """Of form, for counts."""
        forms = {"schemas": self.schema, "regexes": self.regex, "grammars": self.ebnf, "tags": self.tag}
        return next(kind for kind, form in forms.items() if form is not None)

    def node(self, seed: int) -> GenNode:
        schema = None if self.schema is None else json.dumps(self.schema)
        tag = None if self.tag is None else json.dumps({"type": "structural_tag", "format": self.tag})
        sampling = Sampling(
            max_tokens=MAX_TOKENS, temperature=self.temperature, regex=self.regex, json_schema=schema,
            ebnf=self.ebnf, structural_tag=tag, seed=seed,
        )  # fmt: skip
        return GenNode(1, Site("soak", (), "x"), sampling, Loc("soak.py", 1))


def cases(prompts: int) -> list[Case]:
    """Every form with every temperature behind `prompts` prompts."""
    forms = [
        *(Case("", 0.0, regex, None) for regex in REGEXES),
        *(Case("", 0.0, None, schema) for schema in SCHEMAS),
        *(Case("", 0.0, None, None, ebnf) for ebnf in GRAMMARS),
        *(Case("", 0.0, None, None, None, tag) for tag in TAGS),
    ]
    return [
        replace(form, prompt=prompt, temperature=temperature)
        for prompt in PROMPTS[:prompts]
        for temperature in TEMPERATURES
        for form in forms
    ]


def check(case: Case, sample: Sample, constraints: Constraints, token_bytes: Sequence[bytes]) -> None:
    """A finished text matches, and a cut one goes on to a match."""
    data = b"".join(token_bytes[token] for token in sample.ids)
    if sample.finish == "stop":
        assert data.decode() == sample.text
        if case.regex is not None:
            assert re.fullmatch(case.regex, sample.text, re.ASCII), (case, sample.text)
        elif case.ebnf is not None:
            assert GRAMMARS[case.ebnf](sample.text), (case, sample.text)
        elif case.tag is not None:
            assert holds(case.tag, sample.text), (case, sample.text)
        else:
            jsonschema.validate(json.loads(sample.text), case.schema, format_checker=jsonschema.FormatChecker())
        return
    assert sample.finish == "length"
    assert len(sample.ids) == MAX_TOKENS
    check_prefix(case, sample, constraints, token_bytes)


def check_prefix(case: Case, sample: Sample, constraints: Constraints, token_bytes: Sequence[bytes]) -> None:
    """A text goes on to a match."""
    data = b"".join(token_bytes[token] for token in sample.ids)
    if case.regex is not None:
        assert run(compile_regex(case.regex), data) != DEAD, (case, data)
        return
    constraint = constraints.of(case.node(0).sampling)
    assert constraint is not None
    state = constraint.start
    for byte in data:  # byte by byte: whatever tokens it came in
        token = token_bytes.index(bytes([byte]))
        assert constraint.mask(state)[token], (case, data)
        state = constraint.advance(state, token)


async def made(backend: LocalBackend, batch: Sequence[Case], seed: int) -> list[Sample]:
    """The text of each case, all of them at once."""

    async def one(case: Case, number: int) -> Sample:
        segment = Segment((OpenNode(), ExtendNode(0, (case.prompt,)), case.node(seed + number)))
        events: list[Event] = [event async for event in backend.submit(segment, streams=False)]
        (done,) = [event for event in events if isinstance(event, GenDone | NodeFailed)]
        assert isinstance(done, GenDone), done
        return done.samples[0]

    return await asyncio.gather(*(one(case, number) for number, case in enumerate(batch)))


def soak(
    backend: LocalBackend, prompts: int, seed: int, together: int = 48, part: int = 1
) -> Iterator[Counter[str]]:
    """Generate and check one in `part` of the cases; yields what each batch of them was."""
    every = cases(prompts)[::part]
    token_bytes = backend.target.tokenizer.token_bytes() if backend.target.tokenizer else ()
    constraints = Constraints(token_bytes, len(token_bytes))
    for first in range(0, len(every), together):
        batch = every[first : first + together]
        samples = asyncio.run(made(backend, batch, seed + first))
        found: Counter[str] = Counter()
        for case, sample in zip(batch, samples, strict=True):
            check(case, sample, constraints, token_bytes)
            found["generations"] += 1
            found["tokens"] += len(sample.ids)
            found["cut"] += sample.finish == "length"
            found[case.kind] += 1
        yield found


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=len(PROMPTS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/soak-constrained.json"))
    arguments = parser.parse_args()
    start, total = time.monotonic(), Counter[str]()
    backend = LocalBackend(LocalOptions("smollm2"))
    for found in soak(backend, arguments.prompts, arguments.seed):
        total.update(found)
        print(f"{total['generations']} generations, {total['tokens']} tokens, {total['cut']} cut", flush=True)
    machine = backend.machine
    assert machine is not None
    seconds = time.monotonic() - start
    report = {
        "what": "constrained generations of the default model, each checked with re or jsonschema",
        "forms": len(REGEXES) + len(SCHEMAS) + len(GRAMMARS) + len(TAGS),
        "temperatures": TEMPERATURES,
        "seed": arguments.seed,
        "counts": dict(sorted(total.items())),
        "tokens without a step of their own": machine.engine.forced,
        "violations": 0,  # the first one ends the run with its assertion
        "seconds": round(seconds, 1),
        "python": platform.python_version(),
    }
    backend.close()
    assert total["cut"] <= 0.05 * total["generations"], "too many texts are cut"
    arguments.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
