"""Texts that constraints let through, against the reference validator.

`python -m tests.constraints.sampled --cases 1500` tries so many schemas and patterns, and prints its counts.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from tests.constraints.random_schemas import (
    Reference,
    of_older_draft,
    parsed,
    pattern,
    value,
    walk,
    with_definitions,
)
from tests.constraints.verdicts import Start, accepts, ours

_WALKS, _MUTATIONS = 6, 4  # for each schema, and for each text
_LONGEST = 160  # bytes of a text


def wrong(schema: Any, random: Random, found: Counter[str]) -> Iterator[str]:
    """Texts that are accepted for `schema` and are not valid, each with the reason."""
    start = ours(schema)
    found["schemas"] += 1
    if start is None:
        found["refused"] += 1
        return
    reference = Reference(schema)
    for _ in range(_WALKS):
        made = walk(start(), random, _LONGEST)
        if made is None:
            found["endless texts"] += 1
            continue
        found["texts"] += 1
        text = made.decode()
        if problem := reference.problem(parsed(text)):
            yield f"{text}: {problem}"
        yield from _mutated(text, start, reference, random, found)


def _mutated(
    text: str, start: Start, reference: Reference, random: Random, found: Counter[str]
) -> Iterator[str]:
    """The same of documents that are a little different."""
    for _ in range(_MUTATIONS):
        other = json.dumps(_changed(json.loads(text), random), ensure_ascii=False)
        if "Infinity" in other:  # a number was too large for Python
            continue
        problem = reference.problem(parsed(other))
        found["changed texts, valid" if not problem else "changed texts, invalid"] += 1
        if accepts(start, other):
            found["changed texts, accepted"] += 1
            if problem:
                yield f"{other}: {problem}"


def _changed(document: Any, random: Random) -> Any:
    """A document with one part changed, left out or added."""
    if isinstance(document, list) and document and random.random() < 0.7:
        at = random.randrange(len(document))
        changed = [_changed(document[at], random)] * random.choice((0, 1, 1, 2))
        return [*document[:at], *changed, *document[at + 1 :]]
    if isinstance(document, dict) and document and random.random() < 0.7:
        name = random.choice(list(document))
        if random.random() < 0.3:
            return {key: part for key, part in document.items() if key != name}
        return {key: _changed(part, random) if key == name else part for key, part in document.items()}
    if isinstance(document, int) and not isinstance(document, bool) and random.random() < 0.7:
        return document + random.choice((-1, 1, 0.5))
    if isinstance(document, str) and random.random() < 0.7:
        at = random.randint(0, len(document))
        return (
            document[:at]
            + random.choice(("a", "b", "1", "\n", "é", '"', ""))
            + document[at + random.randint(0, 1) :]
        )
    return value(random, 1)


def pattern_schema(random: Random) -> Any:
    """A schema of a text with patterns, a length or a format."""
    made: dict[str, Any] = {"type": "string", "pattern": pattern(random)}
    if random.random() < 0.3:
        made["maxLength"] = random.randint(0, 8)
    if random.random() < 0.2:
        made["minLength"] = random.randint(0, 5)
    if random.random() < 0.15:
        made["allOf"] = [{"pattern": pattern(random)}]
    return made


def problems(seed: int, cases: int, found: Counter[str]) -> Iterator[tuple[Any, str]]:
    """What is accepted and not valid, of so many random schemas and patterns."""
    for number in range(cases):
        for make in (with_definitions, pattern_schema, of_older_draft):
            random = Random(f"{seed} {number} {make.__name__}")
            schema = make(random)
            for problem in wrong(schema, random, found):
                yield schema, problem


def run(what: str, problems: Callable[[int, int, Counter[str]], Iterator[tuple[Any, str]]]) -> None:
    """The command line of a search for what is accepted and wrong; the exit status is 1 if there is any."""
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--cases", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    found: Counter[str] = Counter()
    for form, problem in problems(arguments.seed, arguments.cases, found):
        found["wrong"] += 1
        print(json.dumps(form, ensure_ascii=False), "accepts", problem, flush=True)
    print(dict(sorted(found.items())))
    raise SystemExit(found["wrong"] > 0)


if __name__ == "__main__":
    run(__doc__ or "", problems)
