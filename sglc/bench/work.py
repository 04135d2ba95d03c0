"""The work of the benchmarks, as data: prompts of token ids and numbers of tokens to generate.

`offline` is the script of nano-vllm and Mini-SGLang (256 sequences from `seed(0)`); the others have the
shapes of MMLU with five examples, of tree of thought, of forks, and of chains of short generations.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

IDS = 10_000  # prompts are of ids from 0 to here, both included


@dataclass(frozen=True, slots=True)
class Offline:
    """Independent requests: `prompts` and how many tokens each generates."""

    prompts: tuple[tuple[int, ...], ...]
    outs: tuple[int, ...]

    @property
    def tokens_in(self) -> int:
        """Prompt tokens."""
        return sum(map(len, self.prompts))

    @property
    def tokens_out(self) -> int:
        """Generated tokens."""
        return sum(self.outs)


def offline(seed: int = 0, count: int = 256, longest: int = 1024) -> Offline:
    """`count` prompts of 100 to `longest` ids, then as many lengths of outputs."""
    draw = random.Random(seed).randint
    prompts = tuple(tuple(draw(0, IDS) for _ in range(draw(100, longest))) for _ in range(count))
    return Offline(prompts, tuple(draw(100, longest) for _ in range(count)))


def few_shot(
    seed: int = 1, groups: int = 8, questions: int = 64, prefix: int = 1500, question: int = 100
) -> Offline:
    """Groups of questions behind a prefix each; one token out."""
    generator = random.Random(seed)
    prompts = []
    for _ in range(groups):
        shared = _ids(generator, prefix)
        prompts += [shared + _ids(generator, question) for _ in range(questions)]
    return Offline(tuple(prompts), (1,) * len(prompts))


@dataclass(frozen=True, slots=True)
class Tree:
    """Programs: a prefix, branches of it with `outs[0]` tokens each, branches of those with `outs[1]`."""

    prefixes: tuple[tuple[int, ...], ...]
    firsts: tuple[tuple[tuple[int, ...], ...], ...]  # [program][branch]
    seconds: tuple[tuple[tuple[tuple[int, ...], ...], ...], ...]  # [program][branch][branch]
    outs: tuple[int, int]


def tree_of_thought(
    seed: int = 2, programs: int = 32, prefix: int = 600, branches: tuple[int, int] = (8, 4),
    adds: tuple[int, int] = (50, 20), outs: tuple[int, int] = (200, 100),
) -> Tree:  # fmt: skip
    """Two levels of branches, each with literal tokens of its own in front."""
    generator = random.Random(seed)
    prefixes, firsts = [], []
    for _ in range(programs):
        prefixes.append(_ids(generator, prefix))
        firsts.append(tuple(_ids(generator, adds[0]) for _ in range(branches[0])))
    generator = random.Random(seed + 1)
    seconds = tuple(
        tuple(tuple(_ids(generator, adds[1]) for _ in range(branches[1])) for _ in range(branches[0]))
        for _ in range(programs)
    )
    return Tree(tuple(prefixes), tuple(firsts), seconds, outs)


@dataclass(frozen=True, slots=True)
class Chain:
    """A program: literals, each followed by a generation of `out` tokens."""

    literals: tuple[tuple[int, ...], ...]
    out: int


def chains(
    programs: int, seed: int = 4, links: int = 20, literal: int = 50, out: int = 20
) -> tuple[Chain, ...]:
    """Chains of generations with `literal` ids before each."""
    generator = random.Random(seed)
    return tuple(Chain(tuple(_ids(generator, literal) for _ in range(links)), out) for _ in range(programs))


def _ids(generator: random.Random, count: int) -> tuple[int, ...]:
    return tuple(generator.randint(0, IDS) for _ in range(count))
