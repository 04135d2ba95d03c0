"""Everyday Python on lists, dicts and sets: comprehensions, sorting, grouping, unpacking."""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict

import sglc as sgl
from tests.corpus.case import Corpus

program = Corpus("idioms")

RUBRIC = {"clarity": 2, "depth": 3, "style": 1}


@program({"items": ["b", "a", "b"]}, {"items": ["x"]}, {"items": ["d", "c", "b", "a"]})
@sgl.function
def sorts_a_set(s, items):
    s += "Items: " + ", ".join(sorted(set(items))) + "\nMore:" + sgl.gen("x")


@program({"questions": ["one?", "two?"]}, {"questions": ["one?", "two?", "three?"]})
@sgl.function
def asks_each_question(s, questions):
    answers = []
    for i, question in enumerate(questions):
        s += f"Q: {question}\nA:" + sgl.gen(f"a{i}", stop="\n") + "\n"
        answers.append(s[f"a{i}"])
    return answers


@program({"pairs": [("1+1", "2"), ("2+2", "4")]}, {"pairs": [("3+3", "6")]})
@sgl.function
def shows_examples(s, pairs):
    for question, answer in pairs:
        s += f"{question} = {answer}\n"
    s += "9+9 =" + sgl.gen("x")


@program(names=["Ada", "Alan"], years=[1815, 1912])
@sgl.function
def zips_two_lists(s, names, years):
    s += "\n".join(f"{name}: {year}" for name, year in zip(names, years))
    s += "\nGrace:" + sgl.gen("x")


@program(scores={"tea": 3, "milk": 9, "rum": 5})
@sgl.function
def ranks_a_dict(s, scores):
    best = max(scores, key=scores.get)
    ranking = sorted(scores.items(), key=lambda pair: pair[1], reverse=True)
    s += " > ".join(name for name, _ in ranking) + f"\nWhy {best}?" + sgl.gen("x")


@program(answers={"note": ("bad", "good", "fair")})
@sgl.function
def takes_the_longest(s):
    forks = s.fork(3)
    for fork in forks:
        fork += "Note:" + sgl.gen("note")
    notes = [fork["note"] for fork in forks]
    s += "Best: " + max(notes, key=len) + sgl.gen("x")


@program(answers={"grade": ("3", "5", "4")})
@sgl.function
def grades_by_rubric(s):
    s += "Essay."
    forks = s.fork(len(RUBRIC))
    for fork, name in zip(forks, RUBRIC):
        fork += f"\n{name}:" + sgl.gen("grade", regex="[1-5]")
    grades = {name: int(fork["grade"]) for fork, name in zip(forks, RUBRIC)}
    return sum(RUBRIC[name] * grade for name, grade in grades.items())


@program(answers={"x": "fox, dog, fox"})
@sgl.function
def counts_in_a_dict(s):
    s += "Animals:" + sgl.gen("x")
    counts: dict[str, int] = {}
    for animal in s["x"].split(", "):
        counts[animal] = counts.get(animal, 0) + 1
    return counts


@program(rows=[("fruit", "apple"), ("tool", "saw"), ("fruit", "fig")])
@sgl.function
def groups_rows(s, rows):
    groups = defaultdict(list)
    for kind, name in rows:
        groups[kind].append(name)
    for kind, names in groups.items():
        s += f"{kind}: {', '.join(names)}\n"
    s += "Another tool:" + sgl.gen("x")


@program(matrix=[[1, 2], [3, 4]])
@sgl.function
def writes_a_table(s, matrix):
    s += "\n".join(" ".join(str(cell) for cell in row) for row in matrix)
    s += f"\nSum of the columns: {[sum(column) for column in zip(*matrix)]}" + sgl.gen("x")


@program(players=["Ann", "Bob", "Cid"])
@sgl.function
def pairs_players(s, players):
    for one, other in itertools.combinations(players, 2):
        s += f"{one} against {other}: " + sgl.select(f"{one}-{other}", choices=[one, other]) + "\n"


@program(numbers=[2, 3, 4])
@sgl.function
def reduces_a_list(s, numbers):
    product = functools.reduce(lambda a, b: a * b, numbers)
    s += f"Product {product}, all even: {all(n % 2 == 0 for n in numbers)}, " + sgl.gen("x")
    s += f" any even: {any(n % 2 == 0 for n in numbers)}"


@program(history=[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}])
@sgl.function
def replays_a_history(s, history):
    for message in history:
        if message["role"] == "user":
            s += sgl.user(message["content"])
        else:
            s += sgl.assistant(message["content"])
    s += sgl.user("And now?")
    s += sgl.assistant(sgl.gen("x"))
    return [*history, {"role": "assistant", "content": s["x"]}]


@program(parts=["intro", "middle", "end"])
@sgl.function
def unpacks_a_list(s, parts):
    first, *others = parts
    s += f"{first}:" + sgl.gen("x") + "".join(f"\n{part}" for part in others[::-1])
    return {**{"first": first}, "count": len(others)}
