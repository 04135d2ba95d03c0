"""Questions behind examples: one token out, and a choice between endings."""

from __future__ import annotations

import random

from sglc.api.function import function
from sglc.bench.programs.vocabulary import DrawnWords
from sglc.bench.programs.workload import WorkloadBatch
from sglc.bench.work import Shared
from sglc.frontend.language.expr import gen, select
from sglc.frontend.program.state import State


def mmlu(
    words: DrawnWords, generator: random.Random, *, groups: int, questions: int, prefix: int, question: int
) -> WorkloadBatch:
    """Groups of questions behind examples of their own: nothing but the texts, so that counts are exact."""
    examples = [words.text(generator, prefix) for _ in range(groups)]
    asked = [[words.text(generator, question) for _ in range(questions)] for _ in examples]

    @function
    def answer(s: State, examples: str, question: str) -> None:
        s += examples
        s += question
        s += gen("answer", max_tokens=1, temperature=0, ignore_eos=True)

    pairs = zip(examples, asked, strict=True)
    rows = tuple({"examples": shared, "question": text} for shared, texts in pairs for text in texts)
    ids = tuple(tuple(words.ids(text) for text in texts) for texts in asked)
    return WorkloadBatch(function=answer, rows=rows, same=Shared(tuple(map(words.ids, examples)), ids))


def few_shot(
    words: DrawnWords, generator: random.Random, *, subjects: int, questions: int, example: int,
    question: tuple[int, int],
) -> WorkloadBatch:  # fmt: skip
    """Five examples of a subject and a question, as a benchmark of subjects asks them; rows are shuffled."""

    @function
    def answer(s: State, subject: str, examples: str, question: str) -> None:
        s += f"The following are multiple choice questions about{subject}.\n\n"
        s += examples
        s += f"Question:{question}\nAnswer:"
        s += gen("answer", max_tokens=1, temperature=0, ignore_eos=True)

    rows, prefixes, asked = [], [], []
    for _ in range(subjects):
        subject = words.text(generator, 2)
        shots = "".join(f"Question:{words.text(generator, example)}\nAnswer: A\n\n" for _ in range(5))
        texts = [words.text(generator, generator.randint(*question)) for _ in range(questions)]
        rows += [{"subject": subject, "examples": shots, "question": text} for text in texts]
        prefixes.append(words.ids(f"The following are multiple choice questions about{subject}.\n\n{shots}"))
        asked.append(tuple(words.ids(f"Question:{text}\nAnswer:") for text in texts))
    generator.shuffle(rows)
    return WorkloadBatch(function=answer, rows=tuple(rows), same=Shared(tuple(prefixes), tuple(asked)))


def hellaswag(
    words: DrawnWords, generator: random.Random, *,
    rows: int, example: int, context: tuple[int, int], ending: int,
) -> WorkloadBatch:  # fmt: skip
    """Twenty examples that all rows share, a beginning, and which of four endings is the likeliest."""
    shots = "".join(f"Story:{words.text(generator, example)}\n" for _ in range(20))

    @function
    def finish(s: State, beginning: str, endings: list[str]) -> None:
        s += shots
        s += f"Story:{beginning}"
        s += select("ending", choices=endings)

    made = tuple(
        {
            "beginning": words.text(generator, generator.randint(*context)),
            "endings": [words.text(generator, ending) for _ in range(4)],
        }
        for _ in range(rows)
    )
    return WorkloadBatch(function=finish, rows=made)
