"""Everyday control flow: branches on what the model chose, loops, early ends, turns, errors that are caught."""

from __future__ import annotations

import contextlib
import enum
from typing import Literal

import sglc as sgl
from tests.corpus.case import Corpus

program = Corpus("idioms")

MAX_ROUNDS = 3


class Mood(enum.Enum):
    GOOD = "good"
    BAD = "bad"


@program(text="I lost my key.", answers={"kind": "complaint"})
@sgl.function
def routes_a_request(s, text):
    s += f"{text}\nKind: " + sgl.select("kind", choices=["question", "complaint", "praise"])
    if s["kind"] == "question":
        s += "\nAnswer:" + sgl.gen("answer")
    elif s["kind"] == "complaint":
        s += "\nApology:" + sgl.gen("apology")
    else:
        s += "\nThanks:" + sgl.gen("thanks")


@program(
    {"text": "Rain again."}, {"text": "Sun!"}, answers={"mood": lambda a: "good" if "!" in a.prompt else "bad"}
)
@sgl.function
def matches_a_mood(s, text):
    s += text + " Mood: " + sgl.gen("mood", dtype=Mood)
    match s["mood"]:
        case Mood.GOOD:
            s += "\nCelebrate:"
        case Mood.BAD:
            s += "\nConsole:"
    s += sgl.gen("x")


@program(answers={"sure": "False"})
@sgl.function
def asks_until_sure(s):
    rounds = 0
    s += "Are you sure? " + sgl.gen("sure", dtype=bool)
    while s["sure"] == "False" and rounds < 3:
        rounds += 1
        s += f"\nStill unsure after {rounds}? " + sgl.gen("sure", dtype=bool)


@program(answers={"done": ("no", "no", "yes")})
@sgl.function
def works_until_done(s):
    step = 0
    while True:
        step += 1
        s += f"Step {step}:" + sgl.gen(f"step{step}") + " Done? " + sgl.select("done", choices=["yes", "no"])
        if s["done"] == "yes" or step == MAX_ROUNDS:
            break
    return step


@program(answers={"guess": ("5", "9", "7")})
@sgl.function
def guesses_a_number(s):
    for turn in range(4):
        s += "Guess: " + sgl.gen("guess", regex="[0-9]") + "\n"
        guess = int(s["guess"])
        if guess == 7:
            return turn
        s += "Too low.\n" if guess < 7 else "Too high.\n"
    return None


@program({"hint": None}, {"hint": "It barks."})
@sgl.function
def gives_a_hint(s, hint=None):
    s += "Which animal?"
    if hint is not None:
        s += f" ({hint})"
    s += sgl.gen("x")


@program({"question": "Why?"}, {"question": ""})
@sgl.function
def returns_early(s, question):
    if not question:
        return "no question"
    s += question + sgl.gen("x")
    return s["x"]


@program(answers={"ok": "yes"})
@sgl.function
def writes_a_conditional_expression(s):
    s += "Ready? " + sgl.gen("ok", regex="(yes|no)")
    word = "go" if s["ok"] == "yes" else "wait"
    s += f"\nThen {word}." + sgl.gen("x")
    return word


@program(topic="tea")
@sgl.function
def opens_turns(s, topic):
    with s.system():
        s += "Be brief."
    with s.user():
        s += f"Tell me about {topic}."
    with s.assistant(), contextlib.nullcontext():
        s += sgl.gen("x")


@program(answers={"tip": ("sleep", "walk", "eat")})
@sgl.function
def expands_tips(s):
    forks = s.fork(3)
    for i, fork in enumerate(forks):
        fork += f"Tip {i + 1}:" + sgl.gen("tip")
    for i, fork in enumerate(forks):
        s += f"{i + 1}. {fork['tip']}\n"
    s += "In short:" + sgl.gen("x")


@program(answers={"x": "", "y": "something"})
@sgl.function
def falls_back_to_a_default(s):
    s += "Title:" + sgl.gen("x")
    title = s["x"] or "Untitled"
    if (more := s["x"] + title) != "":
        s += f"\n{more}:" + sgl.gen("y")


@program(limit=3)
@sgl.function
def counts_down(s, limit):
    while limit > 0:
        s += f"{limit}:" + sgl.gen(f"n{limit}") + "\n"
        limit -= 1
    else:
        s += "0!"


@program({"level": 1}, {"level": 5}, {"level": 9})
@sgl.function
def picks_a_style(s, level):
    match level:
        case 1 | 2:
            style = "simple"
        case n if n < 8:
            style = "plain"
        case _:
            style = "dense"
    s += f"Write in a {style} style:" + sgl.gen("x")


def grade(word: Literal["low", "high"]) -> str:
    if word not in ("low", "high"):
        raise ValueError(word)
    return "1" if word == "low" else "5"


@program(answers={"word": "high"})
@sgl.function
def raises_on_nonsense(s):
    s += "Quality: " + sgl.gen("word", dtype=Literal["low", "high"])
    s += "\nGrade " + grade(s["word"]) + sgl.gen("x")
