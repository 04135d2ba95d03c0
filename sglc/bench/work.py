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


def offline(seed: int = 0, count: int = 256, shortest: int = 100, longest: int = 1024) -> Offline:
    """`count` prompts of `shortest` to `longest` ids, then as many lengths of outputs."""
    draw = random.Random(seed).randint
    prompts = tuple(tuple(draw(0, IDS) for _ in range(draw(shortest, longest))) for _ in range(count))
    return Offline(prompts, tuple(draw(shortest, longest) for _ in range(count)))


def single(seed: int = 9, prompt: int = 128, out: int = 512) -> Offline:
    """One request."""
    return Offline((_ids(random.Random(seed), prompt),), (out,))


@dataclass(frozen=True, slots=True)
class Shared:
    """Groups of prompts: one of `prefixes`, and behind it each of the group's `questions`."""

    prefixes: tuple[tuple[int, ...], ...]
    questions: tuple[tuple[tuple[int, ...], ...], ...]  # [group][question]

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence, with one token out."""
        longest = max(len(question) for group in self.questions for question in group)
        return max(map(len, self.prefixes)) + longest + 1

    @property
    def most_tokens(self) -> int:
        """Tokens of all sequences, each prefix once."""
        asked = sum(len(question) + 1 for group in self.questions for question in group)
        return sum(map(len, self.prefixes)) + asked


def few_shot(
    seed: int = 1, groups: int = 8, questions: int = 64, prefix: int = 1500, question: int = 100
) -> Shared:
    """Groups of questions behind a prefix each."""
    generator = random.Random(seed)
    prefixes, asked = [], []
    for _ in range(groups):
        prefixes.append(_ids(generator, prefix))
        asked.append(tuple(_ids(generator, question) for _ in range(questions)))
    return Shared(tuple(prefixes), tuple(asked))


@dataclass(frozen=True, slots=True)
class Tree:
    """Programs: a prefix, branches of it with `outs[0]` tokens each, branches of those with `outs[1]`."""

    prefixes: tuple[tuple[int, ...], ...]
    firsts: tuple[tuple[tuple[int, ...], ...], ...]  # [program][branch]
    seconds: tuple[tuple[tuple[tuple[int, ...], ...], ...], ...]  # [program][branch][branch]
    outs: tuple[int, int]

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        first = max(len(add) for branches in self.firsts for add in branches)
        second = max(len(add) for branches in self.seconds for below in branches for add in below)
        return max(map(len, self.prefixes)) + first + second + sum(self.outs)

    @property
    def most_tokens(self) -> int:
        """Tokens of all sequences, each prefix and each branch once."""
        first = sum(len(add) + self.outs[0] for adds in self.firsts for add in adds)
        below = (add for branches in self.seconds for adds in branches for add in adds)
        return sum(map(len, self.prefixes)) + first + sum(len(add) + self.outs[1] for add in below)


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


@dataclass(frozen=True, slots=True)
class ForkWork:
    """`rows` continuations of one prefix, `out` tokens each."""

    prefix: tuple[int, ...]
    rows: int
    out: int


def fork(seed: int = 5, prefix: int = 4096, rows: int = 64, out: int = 256) -> ForkWork:
    """One prefix, and how many rows go on behind it."""
    return ForkWork(_ids(random.Random(seed), prefix), rows, out)


@dataclass(frozen=True, slots=True)
class Mixed:
    """Rows that decode, `out` tokens at most, and prompts that come while they do, one every `every_s`.

    Before the first one comes, `calm` steps are decode alone.
    """

    decoding: tuple[tuple[int, ...], ...]
    out: int
    calm: int
    prompts: tuple[tuple[int, ...], ...]
    every_s: float


def mixed(
    seed: int = 6, rows: int = 32, short: int = 512, out: int = 8192, calm: int = 64,
    prompts: int = 8, long: int = 8000, every_s: float = 0.5,
) -> Mixed:  # fmt: skip
    """`rows` prompts of `short` ids that decode, then `prompts` of `long` ids."""
    generator = random.Random(seed)
    decoding = tuple(_ids(generator, short) for _ in range(rows))
    return Mixed(decoding, out, calm, tuple(_ids(generator, long) for _ in range(prompts)), every_s)


def _ids(generator: random.Random, count: int) -> tuple[int, ...]:
    return tuple(generator.randint(0, IDS) for _ in range(count))
