"""Questions of general knowledge with four answers each, made from tables of facts, always the same."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

SHOTS = 5
LETTERS = "ABCD"

_CAPITALS = {
    "France": "Paris", "Japan": "Tokyo", "Canada": "Ottawa", "Egypt": "Cairo", "Peru": "Lima",
    "Kenya": "Nairobi", "Norway": "Oslo", "Portugal": "Lisbon", "Thailand": "Bangkok", "Greece": "Athens",
    "Australia": "Canberra", "Argentina": "Buenos Aires", "New Zealand": "Wellington", "India": "New Delhi",
    "Mauritius": "Port Louis", "Papua New Guinea": "Port Moresby", "Vanuatu": "Port Vila",
    "Trinidad and Tobago": "Port of Spain", "Costa Rica": "San José", "El Salvador": "San Salvador",
    "Puerto Rico": "San Juan", "Chile": "Santiago", "Brazil": "Brasília", "Iceland": "Reykjavík",
}  # fmt: skip
_ELEMENTS = {
    "gold": "Au", "silver": "Ag", "iron": "Fe", "copper": "Cu", "lead": "Pb", "tin": "Sn", "sodium": "Na",
    "potassium": "K", "helium": "He", "neon": "Ne", "calcium": "Ca", "zinc": "Zn", "mercury": "Hg",
    "oxygen": "O", "carbon": "C", "silicon": "Si",
}  # fmt: skip
_ANIMALS = {
    "frog": "an amphibian", "eagle": "a bird", "salmon": "a fish", "crocodile": "a reptile", "bat": "a mammal",
    "ant": "an insect", "penguin": "a bird", "whale": "a mammal", "newt": "an amphibian", "cobra": "a reptile",
    "tuna": "a fish", "beetle": "an insect",
}  # fmt: skip
_AUTHORS = {
    "Romeo and Juliet": "William Shakespeare", "War and Peace": "Leo Tolstoy", "Emma": "Jane Austen",
    "Oliver Twist": "Charles Dickens", "The Odyssey": "Homer", "Don Quixote": "Miguel de Cervantes",
    "Faust": "Johann Wolfgang von Goethe", "Les Misérables": "Victor Hugo", "Moby-Dick": "Herman Melville",
    "Walden": "Henry David Thoreau", "The Trial": "Franz Kafka", "Ulysses": "James Joyce",
}  # fmt: skip
_GOODS = ("apples", "pencils", "stamps", "eggs", "books", "tickets", "marbles", "bottles")
_NAMES = ("Maria", "Ahmed", "Lena", "Kofi", "Yuki", "Tom", "Priya", "Olga")


@dataclass(frozen=True, slots=True)
class Question:
    """`answers` has four texts; `right` is the index of the true one."""

    text: str
    answers: tuple[str, ...]
    right: int


def questions() -> tuple[list[Question], list[Question]]:
    """The five that are shown with their answers, and those that are asked."""
    rng = random.Random(7)
    found = [_question(rng, text, right, others) for text, right, others in _facts(rng)]
    rng.shuffle(found)
    return found[:SHOTS], found[SHOTS:]


def _question(rng: random.Random, text: str, right: str, others: Sequence[str]) -> Question:
    wrong = rng.sample([other for other in dict.fromkeys(others) if other != right], 3)
    answers = [right, *wrong]
    rng.shuffle(answers)
    return Question(text, tuple(answers), answers.index(right))


def _facts(rng: random.Random) -> Iterator[tuple[str, str, Sequence[str]]]:
    for country, capital in _CAPITALS.items():
        yield f"Which of the following cities is the capital of {country}?", capital, list(_CAPITALS.values())
    for element, symbol in _ELEMENTS.items():
        text = f"In the periodic table, which symbol stands for the chemical element {element}?"
        yield text, symbol, list(_ELEMENTS.values())
    for animal, group in _ANIMALS.items():
        yield f"To which group of animals does the {animal} belong? It is", group, list(_ANIMALS.values())
    for work, author in _AUTHORS.items():
        yield f'Who is the author of the work known as "{work}"?', author, list(_AUTHORS.values())
    for name, goods in zip(_NAMES, _GOODS, strict=True):
        boxes, each, given = rng.randint(3, 9), rng.randint(4, 12), rng.randint(1, 9)
        left = boxes * each - given
        text = (
            f"{name} has {boxes} boxes with {each} {goods} in each of them, and gives {given} of the {goods} "
            f"to a friend. How many {goods} does {name} have left?"
        )
        yield text, str(left), [str(left + more) for more in (-10, -2, -1, 1, 2, 10)]


def letter_prompt(shown: Sequence[Question], asked: Question) -> str:
    """As in MMLU: four answers with letters, of which the letter is wanted."""

    def listed(question: Question) -> str:
        lines = [f"{letter}. {text}\n" for letter, text in zip(LETTERS, question.answers, strict=True)]
        return f"{question.text}\n{''.join(lines)}Answer:"

    head = "The following are multiple choice questions (with answers) about general knowledge.\n\n"
    solved = [f"{listed(question)} {LETTERS[question.right]}\n\n" for question in shown]
    return head + "".join(solved) + listed(asked)


def text_prompt(shown: Sequence[Question], asked: Question) -> str:
    """As in ARC: the answer's text is wanted."""
    solved = [f"Question: {each.text}\nAnswer: {each.answers[each.right]}\n\n" for each in shown]
    return "".join(solved) + f"Question: {asked.text}\nAnswer:"
