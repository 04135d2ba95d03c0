"""SGLang's benchmark programs that ask one thing behind a long prompt, and those that chat; written anew."""

from __future__ import annotations

import re
from random import Random

import sglc as sgl
from sglc.backends.scripted import Asked
from tests.corpus.case import Corpus
from tests.corpus.drawn import names, rows, sentence, words

program = Corpus("benchmarks")

LETTERS = ["A", "B", "C", "D"]
CEVAL_SHOTS = [
    ("数学", "1+1=?", ["1", "2", "3", "4"], "B"),
    ("历史", "哪一年?", ["618", "907", "960", "1127"], "A"),
]
SHOTS = "".join(
    f"Question: {a} boats carry {b} men each. How many men?\nAnswer: {a} * {b} = {a * b}\n#### {a * b}\n\n"
    for a, b in ((2, 3), (4, 5), (6, 2), (3, 7), (5, 5))
)
BOOLQ_SHOTS = [("A bee is an insect.", "is a bee an insect", True), ("Tea is hot.", "is tea cold", False)]


def picked(choices: list[str]):
    """One of some answers, decided by the length of the prompt."""
    return lambda asked: choices[len(asked.prompt) % len(choices)]


def sum_of(asked: Asked) -> str:
    """The numbers of the last question, added."""
    found = [int(n) for n in re.findall(r"\d+", asked.prompt.split("Question:")[-1])]
    return f" {' + '.join(map(str, found))} = {sum(found)}\n#### {sum(found)}\n\nQuestion: and"


@program(
    *rows(1, lambda r, _: {"question": f"{sentence(r)} Add {r.randint(1, 99)} and {r.randint(1, 99)}."}),
    answers={"answer": sum_of},
)
@sgl.function
def few_shot_gsm8k(s, question):
    s += SHOTS + "Question: " + question + "\nAnswer:"
    s += sgl.gen("answer", max_tokens=512, stop=["Question", "Assistant:"])
    numbers = re.findall(r"\d+", s["answer"].replace(",", ""))
    return int(numbers[-1]) if numbers else None


def mmlu_row(r: Random, number: int):
    examples = [(sentence(r), names(r, 4), r.choice(LETTERS)) for _ in range(number % 6)]
    return {"subject": words(r, 2), "examples": examples, "question": sentence(r), "options": names(r, 4)}


def with_options(question, options):
    return question + "".join(f"\n{letter}. {option}" for letter, option in zip(LETTERS, options)) + "\nAnswer:"


@program(*rows(2, mmlu_row), answers={"answer": picked([" A", " C"])})
@sgl.function
def few_shot_mmlu(s, subject, examples, question, options):
    s += f"The following are multiple choice questions about {subject}.\n\n"
    for example, its_options, letter in examples:
        s += with_options(example, its_options) + f" {letter}\n\n"
    s += with_options(question, options) + sgl.gen("answer", max_tokens=1)
    return s["answer"].strip()[:1]


@program(
    *rows(3, lambda r, n: {"context": sentence(r, 3, 30), "endings": [sentence(r) for _ in range(2 + n % 4)]}),
)
@sgl.function
def few_shot_hellaswag(s, context, endings):
    s += "Which ending is the likeliest?\n\nHe opened the window. The room grew cold.\n\n"
    s += context + " " + sgl.select("answer", choices=endings)
    return endings.index(s["answer"])


@program(
    *rows(4, lambda r, n: {"passage": sentence(r, 5, 60), "question": words(r, 2 + n % 7)}),
    answers={"answer": picked(["True", "False"])},
)
@sgl.function
def boolq(s, passage, question):
    for text, asked, truth in BOOLQ_SHOTS:
        s += f"Passage: {text}\nQuestion: {asked}?\nAnswer: {truth}\n\n"
    s += f"Passage: {passage}\nQuestion: {question}?\nAnswer: " + sgl.gen("answer", max_tokens=5, stop=["\n"])
    return s["answer"] == "True"


@program(
    *rows(5, lambda r, n: {"question": words(r, 3 + n), "options": names(r, 4), "shots": n % 3}),
    answers={"answer": picked(["A", "B", "我选 C"])},
)
@sgl.function
def few_shot_ceval(s, question, options, shots=2):
    s += "以下是单项选择题。\n"
    for subject, asked, its_options, letter in CEVAL_SHOTS[:shots]:
        s += (
            f"[{subject}] {asked}\n"
            + "\n".join(f"{a}. {b}" for a, b in zip("ABCD", its_options))
            + f"\n{letter}\n"
        )
    s += question + "\n" + "\n".join(f"{a}. {b}" for a, b in zip("ABCD", options)) + "\n答案:"
    s += sgl.gen("answer", max_tokens=16)
    found = re.search(r"[ABCD]", s["answer"])
    return found.group() if found else "?"


def line_row(r: Random, number: int):
    lines = {name: r.randint(1000, 9999) for name in names(r, 3 + number)}
    return {"lines": lines, "wanted": r.choice(list(lines))}


@program(*rows(6, line_row), answers={"answer": lambda asked: str(len(asked.prompt))})
@sgl.function
def line_retrieval(s, lines, wanted):
    s += "Remember the number of each line.\n"
    s += "\n".join(f"line {name}: the number is <{number}>" for name, number in lines.items())
    s += f"\nThe number of line {wanted} is <" + sgl.gen("answer", regex=r"\d{1,5}")
    return int(s["answer"]) == lines[wanted]


@program(*rows(7, lambda r, _: {"question_1": sentence(r, 4, 30), "question_2": sentence(r, 4, 30)}))
@sgl.function
def answer_mt_bench(s, question_1, question_2):
    s += sgl.system("A chat between a curious user and a helpful assistant.")
    s += sgl.user(question_1)
    s += sgl.assistant(sgl.gen("answer_1"))
    s += sgl.user(question_2)
    s += sgl.assistant(sgl.gen("answer_2"))


@program(
    *rows(
        8,
        lambda r, n: {
            "qas": [{"prompt": sentence(r), "new_tokens": r.randint(4, 32)} for _ in range(1 + n % 5)]
        },
    )
)
@sgl.function
def multi_turns(s, qas):
    for qa in qas:
        s += qa["prompt"]
        s += sgl.gen(max_tokens=qa["new_tokens"], ignore_eos=True)


@program(
    *rows(9, lambda r, n: {"article": sentence(r, 8, 80), "dimensions": names(r, 1 + n % 4)}),
    answers={"score": picked(["3", "4", "9"]), "overall": picked(["5", "8"])},
)
@sgl.function
def multi_dimensional_judge(s, article, dimensions):
    s += sgl.system("Evaluate an essay.")
    s += sgl.user("Essay: " + article)
    forks = s.fork(len(dimensions))
    for fork, dimension in zip(forks, dimensions):
        fork += sgl.user(f"Judge its {dimension} in one sentence, then give a score from 1 to 9.")
        fork += sgl.assistant(
            "Judgement: " + sgl.gen("judgement", stop="\n") + "\nScore: " + sgl.gen("score", regex="[1-9]")
        )
    scores = [int(fork["score"]) for fork in forks]
    s += sgl.user("\n".join(f"{d}: {f['judgement']} ({n})" for d, f, n in zip(dimensions, forks, scores)))
    s += sgl.assistant("In summary, " + sgl.gen("summary") + " Overall: " + sgl.gen("overall", regex="[1-9]"))
    return {"mean": round(sum(scores) / len(scores), 2), "overall": int(s["overall"])}


@program(
    *rows(
        10, lambda r, n: {"documents": [sentence(r, 5, 40) for _ in range(1 + n % 6)], "question": words(r, 5)}
    )
)
@sgl.function
def multi_document_qa(s, documents, question):
    s += sgl.user_begin()
    s += "Answer a question from these documents.\n"
    forks = s.fork(len(documents))
    forks += lambda i: f"<document {i + 1}>{documents[i]}</document>\n"
    forks.join("concate_and_append")
    s += f"Question: {question}?"
    s += sgl.user_end()
    s += sgl.assistant(sgl.gen("answer", max_tokens=64))
