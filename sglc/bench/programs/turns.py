"""Programs that go on turn by turn: an agent with replayed tools, chats, answers from found passages."""

from __future__ import annotations

import random

from sglc.api.function import function
from sglc.bench.programs.vocabulary import DrawnWords
from sglc.bench.programs.workload import WorkloadBatch
from sglc.frontend.language.expr import assistant, gen, system, user
from sglc.frontend.program.state import State
from sglc.frontend.tracing.tools import tool


@tool
def replay(recorded: str, asked: str) -> str:
    """What a tool said when it was recorded; it waits for what it is asked all the same."""
    assert isinstance(asked, str)
    return recorded


def react(
    words: DrawnWords, generator: random.Random, *, rows: int, examples: int, question: int, rounds: int,
    outs: tuple[int, int], observation: int,
) -> WorkloadBatch:  # fmt: skip
    """Think, act, observe: what the tool says was recorded before, and waits for the action all the same."""
    shots = words.text(generator, examples)

    @function
    def agent(s: State, question: str, replies: list[str]) -> None:
        s += f"{shots}\nQuestion:{question}\n"
        for number, said in enumerate(replies):
            s += f"Thought {number}:"
            s += gen(f"thought_{number}", max_tokens=outs[0], temperature=0, ignore_eos=True)
            s += f"\nAction {number}:"
            s += gen(f"action_{number}", max_tokens=outs[1], temperature=0, ignore_eos=True)
            s += f"\nObservation {number}:" + replay(said, s[f"action_{number}"]) + "\n"
        s += "Answer:" + gen("answer", max_tokens=outs[1], temperature=0, ignore_eos=True)

    made = []
    for _ in range(rows):
        asked = words.text(generator, question)
        replies = [words.text(generator, observation) for _ in range(rounds)]
        made.append({"question": asked, "replies": replies})
    return WorkloadBatch(function=agent, rows=tuple(made))


def chat(
    words: DrawnWords, generator: random.Random, *, rows: int, shared: int, turns: int, said: tuple[int, int],
    answers: tuple[int, int],
) -> WorkloadBatch:  # fmt: skip
    """A conversation whose user's side is known: every turn waits for the answer before it."""
    manner = words.text(generator, shared)

    @function
    def talk(s: State, said: list[str], lengths: list[int]) -> None:
        s += system(manner)
        for number, (text, length) in enumerate(zip(said, lengths, strict=True)):
            s += user(text)
            s += assistant(gen(f"answer_{number}", max_tokens=length, temperature=0, ignore_eos=True))

    made = tuple(
        {
            "said": [words.text(generator, generator.randint(*said)) for _ in range(turns)],
            "lengths": [generator.randint(*answers) for _ in range(turns)],
        }
        for _ in range(rows)
    )
    return WorkloadBatch(function=talk, rows=made)


def rag(
    words: DrawnWords, generator: random.Random, *,
    rows: int, examples: int, library: int, passage: int, found: int,
    question: int, outs: tuple[int, int, int],
) -> WorkloadBatch:  # fmt: skip
    """A query, the passages that it finds (recorded before), reasoning, and an answer."""
    passages = [words.text(generator, passage) for _ in range(library)]
    shots = words.text(generator, examples)

    @function
    def answer(s: State, question: str, hits: str) -> None:
        with_query = s.fork(1)[0]
        with_query += f"Write a query.\n{shots}\nQuestion:{question}\nQuery:"
        with_query += gen("query", max_tokens=outs[0], temperature=0, ignore_eos=True)
        s += f"Answer from the passages.\n{shots}\n" + replay(hits, with_query["query"])
        s += f"Question:{question}\nReasoning:"
        s += gen("reasoning", max_tokens=outs[1], temperature=0, ignore_eos=True)
        s += "\nAnswer:" + gen("answer", max_tokens=outs[2], temperature=0, ignore_eos=True)

    made = []
    for _ in range(rows):
        asked = words.text(generator, question)
        hits = enumerate(generator.sample(range(library), found), 1)
        shown = "".join(f"[{place}]{passages[hit]}\n" for place, hit in hits)
        made.append({"question": asked, "hits": shown})
    return WorkloadBatch(function=answer, rows=tuple(made))
