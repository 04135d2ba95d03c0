"""Programs after Guidance's tutorials, written anew."""

from __future__ import annotations

import ast
import operator
import re

import sglc as sgl
from tests.corpus.case import Corpus

program = Corpus("tutorials")

OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul}


@program(answers={"kind": "poem", "subject": " the sea", "text": "Waves."})
@sgl.function
def joke_or_poem(s):
    """Guidance, "Introduction to `guidance`": selecting, and interleaving text with generation."""
    s += "Do you want a joke or a poem? A "
    s += sgl.select("kind", choices=["joke", "poem"])
    s += " about" + sgl.gen("subject", stop=["\n", "."])
    s += f".\nHere is a {s['kind']} about{s['subject']}:\n"
    s += sgl.gen("text", max_tokens=64)


@program({"word": "BEE"}, {"word": "sea"}, {"word": "Honey"})
@sgl.function
def acrostic(s, word):
    """Guidance, "Introduction to `guidance`": a Python loop around generation, as an acrostic."""
    s += f"An acrostic on the word {word}:\n"
    lines = []
    for i, letter in enumerate(word.upper()):
        s += letter + sgl.gen(f"line_{i}", stop="\n", max_tokens=12) + "\n"
        lines.append(letter + s[f"line_{i}"])
    return "\n".join(lines)


@program({"questions": ["Hi!", "What is a bee?"]}, {"questions": ["Hi!"]})
@sgl.function
def chat_dialog(s, questions):
    """Guidance, "Chat dialog": roles as contexts and methods, and a helper for a turn."""

    def turn(question, name):
        s.user(question)
        s.assistant(sgl.gen(name, max_tokens=100))
        return s[name]

    with s.system():
        s += "You are an expert on insects."
    return [turn(question, f"answer_{number}") for number, question in enumerate(questions)]


@program(
    {"problem": "3 apples and 4 pears"},
    answers={
        "step": (" I add. calculate(", " Then I double. calculate(", " That is all."),
        "call": ("3 + 4", "7 * 2"),
    },
)
@sgl.function
def calculator_calls(s, problem):
    """Guidance, "Tool calling": text up to a call, the call's arguments, its result, and on."""
    s += f"Solve with calculate(a op b).\nProblem: {problem}\n"
    for _ in range(5):
        s += sgl.gen("step", max_tokens=30)
        if not s["step"].endswith("calculate("):
            break
        s += sgl.gen("call", regex=r"\d+ [+*-] \d+")
        left, sign, right = s["call"].split()
        result = OPERATORS[sign](int(left), int(right))
        s += f") = {result}\n"
    return s["step"]


@program(
    {"hero": {"name": "Ayla", "health": 3}, "enemies": ["wolf", "troll", "dragon"]},
    {"hero": {"name": "Bran", "health": 1}, "enemies": ["rat"]},
    answers={"move": ("attack", "rest", "flee"), "luck": ("6", "2", "4")},
)
@sgl.function
def dungeon(s, hero, enemies):
    """Guidance, the game of its README's character maker: state in Python, moves from the model."""
    health, beaten = hero["health"], []
    s += f"{hero['name']} enters the dungeon.\n"
    for enemy in enemies:
        s += f"A {enemy}! Health {health}. Move: " + sgl.select("move", choices=["attack", "rest", "flee"])
        if s["move"] == "flee":
            s += "\nHome again.\n"
            break
        if s["move"] == "attack":
            s += ". Dice: " + sgl.gen("luck", regex="[1-6]")
            if int(s["luck"]) > 3:
                beaten.append(enemy)
            else:
                health -= 1
        else:
            health += 1
        s += "\n"
    s += f"Beaten: {', '.join(beaten) or 'none'}.\nEpilogue:" + sgl.gen("epilogue", stop="\n")
    return {"health": health, "beaten": beaten}


@program(
    {"base": "http:"},
    {"base": "https://www."},
    answers={"url": "//example.org/a.html and more", "list": "['a', 'b']"},
)
@sgl.function
def prompt_boundaries(s, base):
    """Guidance, "The Art of Prompt Design: Prompt Boundaries and Token Healing": prompts cut in mid-word."""
    forks = s.fork(2)
    forks[0] += f'The link is <a href="{base}' + sgl.gen("url", max_tokens=10)
    forks[1] += "letters = " + sgl.gen("list", max_tokens=10)
    url = base + re.split(r"\s", forks[0]["url"])[0]
    letters = ast.literal_eval(forks[1]["list"])
    s += f"{url} {len(letters)}"
    return url.rsplit("/", 1)[-1]
