"""Random structural tags, and a reading of texts by what they say, which knows nothing of grammars.

`python -m tests.constraints.random_tags --cases 1500` walks along so many, and prints its counts.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from random import Random
from typing import Any

import numpy as np

from sglc.errors import SglcError
from sglc.ir.sampling import Sampling
from sglc.runtime.constraints.constraint import Constraints
from sglc.runtime.constraints.protocol import Constraint
from tests.constraints.random_schemas import Reference, parsed
from tests.constraints.sampled import run

# All bytes, and pieces that begin or end inside markers, with what stands before or behind them.
BYTES = [
    *(bytes([byte]) for byte in range(256)),
    b"<f", b"<fu", b"unc", b'>{"', b'"}</', b"</", b"}</f>", b"a<", b"<f><", b"b>", b"f>x", b'{"a": ', b"<<f",
    b"xx", b">", b"1</f>", b"]</", b"x</f>y", "é<".encode(), b"\xa9<",
]  # fmt: skip
CONSTRAINTS = Constraints(BYTES, len(BYTES))
_MARKERS = ("<f", "<f>", "<fu", "<func", "<g>", "x<", "ab", "é", "\n```", "<<")
_ENDS = ("</f>", "</", "\n```", ">", "é", "</f></f>", "b")
_PATTERNS = ("[a-c]{1,3}", "x(y|z)*", r"[0-9]+\.[0-9]", ".*")
Json = Any


def schema(random: Random) -> Json:
    """A small schema."""
    leaf: Json = random.choice(
        ({"type": "integer", "maximum": 20, "minimum": -3}, {"type": "string", "maxLength": 4},
         {"enum": ["<f>", "a", 1]}, {"type": "string", "pattern": "^<"}, {"type": "null"})
    )  # fmt: skip
    match random.randrange(4):
        case 0:
            return leaf
        case 1:
            return {"type": "array", "items": leaf, "maxItems": 2}
        case _:
            return {"type": "object", "properties": {"a": leaf, "b": {"type": "boolean"}}, "required": ["a"]}


def content(random: Random, depth: int) -> Json:
    """What stands inside a tag."""
    match random.randrange(8 if depth else 6):
        case 0:
            return {"type": "any_text", "excludes": random.sample(_MARKERS, random.randint(0, 1))}
        case 1:
            return {"type": "regex", "pattern": random.choice(_PATTERNS)}
        case 6 | 7:
            return form(random, depth - 1)
        case _:
            return {"type": "json_schema", "json_schema": schema(random)}


def tag(random: Random, depth: int, begin: str = "") -> Json:
    """A tag whose marker begins with `begin`."""
    marker = begin + random.choice(("", "u", "unc", ">", "x", "<")) if begin else random.choice(_MARKERS)
    end = random.choice((*_ENDS, "", list(random.sample(_ENDS, 2))))
    return {"type": "tag", "begin": marker, "content": content(random, depth), "end": end}


def form(random: Random, depth: int = 2) -> Json:
    """A format; it may be one that is refused."""
    match random.randrange(9 if depth else 4):
        case 0 | 1 | 2 | 3 | 4:
            triggers = random.sample(_MARKERS, random.choice((1, 1, 2, 3)))
            tags = [tag(random, depth, random.choice(triggers)) for _ in range(random.randint(1, 3))]
            more: dict[str, Any] = {
                key: True for key in ("at_least_one", "stop_after_first") if random.random() < 0.2
            }
            if random.random() < 0.2:
                more["excludes"] = random.sample(_MARKERS, 1)
            return {"type": "triggered_tags", "triggers": triggers, "tags": tags, **more}
        case 5:
            return tag(random, depth)
        case 6:
            parts = [tag(random, depth - 1), {"type": "const_string", "value": random.choice(_MARKERS)}]
            return {"type": "sequence", "elements": [*parts[: random.randint(1, 2)], form(random, depth - 1)]}
        case 7:
            return {"type": "or", "elements": [form(random, depth - 1) for _ in range(2)]}
        case _:
            return {
                "type": "tags_with_separator", "tags": [tag(random, depth - 1)],
                "separator": random.choice((", ", "", "<")), "at_least_one": random.random() < 0.5,
            }  # fmt: skip


class _Reader:
    """Reads one text; every way to read it is gone, so that no choice of the grammar's matters."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._found: dict[tuple[int, int], frozenset[int]] = {}

    def ends(self, form: Json, begin: int) -> frozenset[int]:
        """Where a piece from `begin` on may end that a format holds of."""
        key = (id(form), begin)
        if key not in self._found:
            self._found[key] = frozenset(self._ends(form, begin))
        return self._found[key]

    def _ends(self, form: Json, begin: int) -> Iterator[int]:
        text = self.text
        match form["type"]:
            case "const_string":
                if text.startswith(form["value"], begin):
                    yield begin + len(form["value"])
            case "json_schema":
                reference = _reference(json.dumps(form["json_schema"]))
                for end in range(begin + 1, len(text) + 1):
                    piece = text[begin:end]
                    if piece.strip() == piece and not reference.problem(_document(piece)):
                        yield end
            case "regex":
                pattern = re.compile(form["pattern"], re.ASCII)
                yield from (end for end in range(begin, len(text) + 1) if pattern.fullmatch(text, begin, end))
            case "any_text":
                yield from self._free(begin, form.get("excludes", ()))
            case "tag":
                yield from self._tag(form, begin)
            case "sequence":
                reached = frozenset((begin,))
                for part in form["elements"]:
                    reached = frozenset(end for at in reached for end in self.ends(part, at))
                yield from reached
            case "or":
                yield from (end for part in form["elements"] for end in self.ends(part, begin))
            case "tags_with_separator":
                yield from self._separated(form, begin)
            case "triggered_tags":
                yield from self._triggered(form, begin)

    def _free(self, begin: int, markers: Any) -> Iterator[int]:
        for end in range(begin, len(self.text) + 1):
            if any(self.text.endswith(marker, begin, end) for marker in markers):
                return
            yield end

    def _tag(self, form: Mapping[str, Json], begin: int) -> Iterator[int]:
        if not self.text.startswith(form["begin"], begin):
            return
        several = form["end"] if isinstance(form["end"], list) else [form["end"]]
        for inner in self.ends(form["content"], begin + len(form["begin"])):
            yield from (inner + len(end) for end in several if self.text.startswith(end, inner))

    def _separated(self, form: Mapping[str, Json], begin: int) -> Iterator[int]:
        if not form["at_least_one"]:
            yield begin
        waiting, seen = [begin], set()
        while waiting:
            at = waiting.pop()
            for end in (end for part in form["tags"] for end in self.ends(part, at)):
                if end not in seen:
                    seen.add(end)
                    if not form.get("stop_after_first") and self.text.startswith(form["separator"], end):
                        waiting.append(end + len(form["separator"]))
        yield from seen

    def _triggered(self, form: Mapping[str, Json], begin: int) -> Iterator[int]:
        waiting, seen = [begin], set[int]()
        if form.get("at_least_one"):
            waiting = [end for part in form["tags"] for end in self.ends(part, begin)]
            if form.get("stop_after_first"):
                yield from waiting
                return
        while waiting:
            at = waiting.pop()
            if at in seen:
                continue
            seen.add(at)
            free = [*self._free(at, (*form["triggers"], *form.get("excludes", ())))]
            yield from free
            end = free[-1] + 1
            for trigger in form["triggers"]:  # of those that end here
                if self.text.endswith(trigger, at, end):
                    tags = [each for each in form["tags"] if each["begin"].startswith(trigger)]
                    found = [last for each in tags for last in self.ends(each, end - len(trigger))]
                    if form.get("stop_after_first"):
                        yield from found
                    else:
                        waiting += found


@cache
def _reference(schema: str) -> Reference:
    return Reference(json.loads(schema))


def _document(piece: str) -> Json:
    try:
        return parsed(piece)
    except ValueError:
        return object()


def walk(constraint: Constraint, random: Random, most: int) -> str | None:
    """A text that is let through, made at random token by token; None if it does not end within `most`."""
    state, made = constraint.start, b""
    for _ in range(most):
        allowed = np.flatnonzero(constraint.mask(state)).tolist()
        if constraint.accepting(state) and (not allowed or random.random() < 0.2):
            return made.decode()
        if not allowed:
            raise AssertionError(f"nothing may follow {made!r}, and it may not end")
        telling = [token for token in allowed if token > 255 or chr(token) in '<>fugnc/{"}:1ab ]\n`']
        token = random.choice(telling if telling and random.random() < 0.9 else allowed)
        state, made = constraint.advance(state, token), made + BYTES[token]
    return None


def wrong(form: Json, random: Random, found: Counter[str]) -> Iterator[str]:
    """Texts that are let through for a format, and are none of it."""
    found["tags"] += 1
    try:
        given = {"type": "structural_tag", "format": form}
        constraint = CONSTRAINTS.of(Sampling(structural_tag=json.dumps(given), canonical=False))
    except SglcError as error:
        found[f"refused {error.code}"] += 1
        return
    assert constraint is not None
    for _ in range(6):
        text = walk(constraint, random, 60)
        if text is None:
            found["endless texts"] += 1
            continue
        found["texts"] += 1
        found["texts of some length"] += len(text) > 8
        if not holds(form, text):
            yield text
        yield from _mutated(form, text, constraint, random, found)


def holds(form: Json, text: str) -> bool:
    """Whether a whole text is of a format."""
    return len(text) in _Reader(text).ends(form, 0)


def accepts(constraint: Constraint, text: str) -> bool:
    """Whether a whole text is let through, byte by byte."""
    state = constraint.start
    for byte in text.encode():
        if not constraint.mask(state)[byte]:
            return False
        state = constraint.advance(state, byte)
    return constraint.accepting(state)


def _mutated(
    form: Json, text: str, constraint: Constraint, random: Random, found: Counter[str]
) -> Iterator[str]:
    """The same of texts that are a little different."""
    for _ in range(3):
        at = random.randint(0, len(text))
        piece = random.choice(("", *_MARKERS, *_ENDS, "1", "{}", '"', text[at : at + 4], text))
        other = text[:at] + piece + text[at + random.randint(0, 2) :]
        valid, taken = holds(form, other), accepts(constraint, other)
        found[f"changed texts, {'valid' if valid else 'invalid'}{', accepted' * taken}"] += 1
        if taken and not valid:
            yield other


def problems(seed: int, cases: int, found: Counter[str]) -> Iterator[tuple[Json, str]]:
    """What is let through and wrong, of so many random formats."""
    for number in range(cases):
        random = Random(f"{seed} {number}")
        given = form(random)
        for text in wrong(given, random, found):
            yield given, text


if __name__ == "__main__":
    run(__doc__ or "", problems)
