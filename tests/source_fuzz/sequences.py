"""Random calls of a program in any mode, with changes between them of what it reads.

A sequence is played twice: as it says, and with every call left to Python. Both show the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any
from unittest.mock import patch

from sglc.api import plan_tree
from sglc.errors import SglcError
from sglc.execution.result import Result
from tests.notebook import Notebook
from tests.source_fuzz.answers import HashBackend
from tests.source_fuzz.observe import (
    ASKED,
    OUTSIDE,
    RESULT,
    SEED,
    STREAMED,
    Outcome,
    differences,
    pieces,
    seen,
    told,
)
from tests.source_fuzz.readings import HEAD, READINGS, Reading
from tests.source_fuzz.runner import narrowed

_REFUSED = "SGLC058"
_OF_CALLS = ("meta data", "calls", "usage")  # aspects that tell what was made once
_NO_DEFAULT = "..."


@dataclass(frozen=True, slots=True)
class Call:
    """A call, the arguments of each of its rows as expressions; `way` is what the function is asked for."""

    way: str
    mode: str
    seed: int
    sampling: Mapping[str, Any]
    rows: tuple[Mapping[str, str], ...]


@dataclass(frozen=True, slots=True)
class Change:
    """A cell that is run."""

    cell: str


@dataclass(frozen=True, slots=True)
class Limits:
    """How many leaves, and paths that came once, are kept from here on."""

    leaves: int
    misses: int


@dataclass(frozen=True, slots=True)
class Look:
    """The function is compiled, or explained."""

    how: str


Step = Call | Change | Limits | Look


@dataclass(frozen=True, slots=True)
class Sequence:
    """`cells` make the module; the last one is the program."""

    name: str
    cells: tuple[str, ...]
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Unequal:
    """What differs in a step."""

    number: int
    aspect: str
    expected: Any
    found: Any


# -- making one ------------------------------------------------------------------------------------


def random_sequence(seed: int, number: int) -> Sequence:
    """The sequence of a number: the same one for one seed everywhere."""
    random = Random(f"sequence {seed}/{number}")
    taken = random.sample(list(READINGS), random.choice((1, 2, 2, 3, 3)))
    readings = [READINGS[name] for name in taken]
    parameters = {name: values for reading in readings for name, values in reading.arguments.items()}
    program = _program(random, readings, parameters)
    steps = tuple(_steps(random, readings, parameters, program))
    cells = (HEAD, *(reading.defines for reading in readings if reading.defines), program)
    return Sequence(f"sequence_{seed}_{number}", cells, steps)


def _program(random: Random, readings: list[Reading], parameters: Mapping[str, list[str]]) -> str:
    # What has no default stands before what has one.
    needed = [name for name, values in parameters.items() if values[0] == _NO_DEFAULT]
    rest = [f"{name}={values[0]}" for name, values in parameters.items() if name not in needed]
    body = ["out = []"]
    left = []
    for reading in readings:
        count = random.randint(1, len(reading.parts))
        left.append([reading.parts[part] for part in sorted(random.sample(range(len(reading.parts)), count))])
    while any(left):  # each in its own order
        body.append(random.choice([parts for parts in left if parts]).pop(0))
        if random.random() < 0.2:
            body.append(f's += " " + sgl.gen("own{len(body)}")')
    body.append("return out")
    lines = "\n".join(body).replace("\n", "\n    ")
    return f"@sgl.function\ndef program({', '.join(['s', *needed, *rest])}):\n    {lines}\n"


def _steps(
    random: Random, readings: list[Reading], parameters: Mapping[str, list[str]], program: str
) -> Iterator[Step]:
    changes = [change for reading in readings for change in reading.changes]

    def argument(name: str) -> str:
        values = parameters[name]
        return random.choice(values[values[0] == _NO_DEFAULT :])

    def row() -> dict[str, str]:
        return {name: argument(name) for name in parameters if random.random() < 0.8 or name in needed}

    needed = [name for name, values in parameters.items() if values[0] == _NO_DEFAULT]
    known = [row() for _ in range(2)]  # so that a path comes again
    for _ in range(random.randint(5, 10)):
        drawn = random.random()
        if drawn < 0.5 and changes:
            yield Change(random.choice(changes).replace("<n>", str(random.randrange(4))))
        elif drawn < 0.56:
            yield Limits(random.choice((1, 2, 64)), random.choice((1, 256)))
        elif drawn < 0.62:
            yield Look(random.choice(("compile", "explain")))
        elif drawn < 0.65:
            yield Change(program)  # the cell is run again
        elif parameters and drawn < 0.9:
            name = random.choice(list(parameters))
            known[random.randrange(2)][name] = argument(name)
        for _ in range(random.choice((1, 1, 2, 3))):
            way = random.choice(("run", "run", "run", "stream", "batch"))
            count = random.randint(1, 3) if way == "batch" else 1
            # Where a row of a batch has no plan, the call fails that is to run plans.
            mode = random.choice(("auto", "auto", "auto", "plan" if way != "batch" else "auto", "python"))
            sampling = random.choice(({}, {}, {}, {"temperature": 0.5}, {"max_new_tokens": 9}))
            rows = tuple(dict(random.choice(known)) for _ in range(count))
            yield Call(way, mode, SEED + random.randrange(3), sampling, rows)


# -- playing it ------------------------------------------------------------------------------------


def unequal(sequence: Sequence, found: list[Outcome]) -> Unequal | None:
    """The first difference between what a sequence has shown and what it shows with all left to Python."""
    expected = played(sequence, python=True)
    for number, (one, other) in enumerate(zip(expected, found, strict=True)):
        for aspect, (left, right) in _differing(one, other).items():
            return Unequal(number, aspect, left, right)
    return None


def played(sequence: Sequence, *, python: bool) -> list[Outcome]:
    """What each step shows."""
    book = Notebook(sequence.name, *sequence.cells)
    outcomes: list[Outcome] = []
    with patch.multiple(plan_tree, _MOST_LEAVES=64, _MOST_MISSES=256):
        for step in sequence.steps:
            outcome: Outcome = {}
            match step:
                case Call():
                    outcome = _called(book, step, "python" if python else step.mode)
                case Change(cell):
                    try:
                        book.cell(cell)
                    except Exception as error:  # what it changes is not there any more
                        outcome = {"error": told(error)}
                case Limits(leaves, misses):
                    plan_tree._MOST_LEAVES, plan_tree._MOST_MISSES = leaves, misses
                case Look(how):
                    with suppress(SglcError):
                        getattr(book.module.program, how)(HashBackend())
            outcomes.append(outcome)
    return outcomes


def _called(book: Notebook, call: Call, mode: str) -> Outcome:
    rows = [{name: book.value(value) for name, value in row.items()} for row in call.rows]
    program = book.module.program

    def run(backend: HashBackend) -> list[Any]:
        options: dict[str, Any] = {"backend": backend, "seed": call.seed, "mode": mode, **call.sampling}
        if call.way == "batch":
            return list(program.run_batch(rows, num_threads=1, **options))
        return [program.run(**rows[0], stream=call.way == "stream", **options)]

    def more(result: Result) -> Outcome:
        went_on = result.why_python.startswith("it goes on")
        ran = {"ran": "plan, then python" if went_on else result.mode}
        return {**ran, **pieces(result)} if call.way == "stream" else ran

    outcome = seen(run, book.module, rows, more)
    if mode == "plan" and outcome.get("error") and "not run" in outcome["error"]:
        did = outcome["sites"] or outcome["printed"]
        assert not did, "a refused call has done something"
        instead = _called(book, call, "auto")
        fails = any(row.get("error") for row in (instead, *instead.get("rows", ())))
        assert fails or _REFUSED in outcome["error"], "a call is refused as wrong, and is right as Python"
        return instead
    return outcome


def _differing(one: Outcome, other: Outcome) -> dict[str, tuple[Any, Any]]:
    found = differences(one, other, (*RESULT, *ASKED, *OUTSIDE, *STREAMED))
    rows = [*zip(one.get("rows", []), other.get("rows", []), strict=True)]
    for number, (left, right) in enumerate(rows):
        found |= {f"row {number}: {aspect}": both for aspect, both in differences(left, right, RESULT).items()}
    if any(row["error"] for row in (*one.get("rows", []), *other.get("rows", []))):
        for aspect in ASKED:  # a plan may have begun more
            found.pop(aspect, None)
    elif len(rows) > 1 and _asks_again(one, other):
        again = (*ASKED, *(f"row {number}: {aspect}" for number in range(len(rows)) for aspect in _OF_CALLS))
        return {aspect: both for aspect, both in found.items() if aspect not in again}
    return found


def _asks_again(one: Outcome, other: Outcome) -> bool:
    """Whether the calls of both are the same ones, of which the other makes some more than once.

    Where sampled texts of two rows turn out to be equal, Python knows that before it asks for a choice behind
    them; a plan has handed the choice over with what samples the text.
    """
    return len(one.get("sites", ())) < len(other.get("sites", ())) and all(
        {site: set(map(json.dumps, made)) for site, made in one[aspect].items()}
        == {site: set(map(json.dumps, made)) for site, made in other[aspect].items()}
        for aspect in ("prompts", "samples", "sampling")
    )


def shown(sequence: Sequence, found: Unequal) -> str:
    """A difference for people, with what led to it."""
    expected, other = narrowed(found.expected, found.found)
    return "\n".join(
        [
            *sequence.cells,
            *(
                f"{'->' if number == found.number else '  '} {step}"
                for number, step in enumerate(sequence.steps)
            ),
            f"{sequence.name}, step {found.number}: {found.aspect}",
            f"  expected {expected!r}",
            f"  found    {other!r}",
        ]
    )
