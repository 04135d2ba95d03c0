"""Programs that branch: tree of thought, skeleton of thought, branch-solve-merge, and fields of a document."""

from __future__ import annotations

import random
from collections.abc import Mapping

from sglc.api.function import function
from sglc.bench.programs.vocabulary import DrawnWords
from sglc.bench.programs.workload import WorkloadBatch
from sglc.bench.work import Tree
from sglc.frontend.language.expr import gen, select
from sglc.frontend.program.state import State

TEMPERATURE = 0.6


def tree_of_thought(
    words: DrawnWords, generator: random.Random, *, programs: int, prefix: int, branches: tuple[int, int],
    adds: tuple[int, int], outs: tuple[int, int],
) -> WorkloadBatch:  # fmt: skip
    """Thoughts on a problem, and thoughts on each of those; nothing but the texts, so that counts are exact."""
    ways = [words.text(generator, adds[0]) for _ in range(branches[0])]
    steps = [[words.text(generator, adds[1]) for _ in range(branches[1])] for _ in ways]
    problems = [words.text(generator, prefix) for _ in range(programs)]

    @function
    def think(s: State, problem: str) -> None:
        s += problem
        thoughts = s.fork(len(ways))
        for thought, way, below in zip(thoughts, ways, steps, strict=True):
            thought += way
            thought += gen("thought", max_tokens=outs[0], temperature=TEMPERATURE, ignore_eos=True)
            nexts = thought.fork(len(below))
            for following, step in zip(nexts, below, strict=True):
                following += step
                following += gen("step", max_tokens=outs[1], temperature=TEMPERATURE, ignore_eos=True)

    firsts = tuple(map(words.ids, ways))
    seconds = tuple(tuple(map(words.ids, below)) for below in steps)
    same = Tree(tuple(map(words.ids, problems)), (firsts,) * programs, (seconds,) * programs, outs)
    rows = tuple({"problem": problem} for problem in problems)
    return WorkloadBatch(function=think, rows=rows, same=same, sampled=True)


def skeleton_of_thought(
    words: DrawnWords, generator: random.Random, *, rows: int, shared: int, question: int, points: int,
    outs: tuple[int, int],
) -> WorkloadBatch:  # fmt: skip
    """A short skeleton of an answer, every point of it worked out by itself, and the points put together."""
    manner = words.text(generator, shared)

    @function
    def tips(s: State, question: str) -> None:
        s += f"{manner}\nQuestion:{question}\nSkeleton:"
        s += gen("skeleton", max_tokens=outs[0], temperature=0, ignore_eos=True)
        forks = s.fork(points)
        for number, fork in enumerate(forks, 1):
            fork += f"\nPoint {number} in detail:"
            fork += gen("detail", max_tokens=outs[1], temperature=0, ignore_eos=True)
        found = s.join(forks)
        for number, detail in enumerate(found["detail"], 1):
            s += f"\n{number}." + detail
        s += "\nIn short:" + gen("answer", max_tokens=outs[0], temperature=0, ignore_eos=True)

    return WorkloadBatch(
        function=tips, rows=tuple({"question": words.text(generator, question)} for _ in range(rows))
    )


def judge(
    words: DrawnWords, generator: random.Random, *, rows: int, essay: int, aspects: int, outs: tuple[int, int]
) -> WorkloadBatch:  # fmt: skip
    """Branch, solve, merge: an essay is judged in several aspects, then as a whole."""
    looked_at = [words.text(generator, 8) for _ in range(aspects)]

    @function
    def grade(s: State, essay: str) -> None:
        s += f"Read this essay:{essay}\n"
        forks = s.fork(aspects)
        for fork, aspect in zip(forks, looked_at, strict=True):
            fork += f"Judge its{aspect}:"
            fork += gen("judgement", max_tokens=outs[0], temperature=0, ignore_eos=True)
        found = s.join(forks)
        for aspect, judgement in zip(looked_at, found["judgement"], strict=True):
            s += f"As for{aspect}:" + judgement + "\n"
        s += "Summary:" + gen("summary", max_tokens=outs[1], temperature=0, ignore_eos=True)
        s += "\nVerdict:" + select("verdict", choices=[" weak", " fair", " strong"])

    return WorkloadBatch(
        function=grade, rows=tuple({"essay": words.text(generator, essay)} for _ in range(rows))
    )


_FIELDS: Mapping[str, str] = {
    "name": r'"[a-z]{4,16}"',
    "year": r"1[0-9]{3}",
    "kind": r'"(person|place|event|thing)"',
    "summary": r'"[a-z ]{24,48}"',
    "score": r"[0-9]\.[0-9]{2}",
}


def json_fields(words: DrawnWords, generator: random.Random, *, rows: int, document: int) -> WorkloadBatch:
    """Fields of a long document, each held to its form and asked for by itself, as one JSON object."""

    @function
    def fields(s: State, document: str) -> None:
        s += f"Document:{document}\nIts facts as JSON.\n"
        forks = s.fork(list(_FIELDS))
        for fork, (name, form) in zip(forks, _FIELDS.items(), strict=True):
            fork += f'"{name}": '
            fork += gen("value", regex=form, max_tokens=64, temperature=0)
        values = s.join(forks)["value"]
        s += "{" + ", ".join(f'"{name}": {value}' for name, value in zip(_FIELDS, values, strict=True)) + "}\n"
        s += "Checked:" + select("checked", choices=[" yes", " no"])

    return WorkloadBatch(
        function=fields, rows=tuple({"document": words.text(generator, document)} for _ in range(rows))
    )
