"""Everyday Python on what was read out of a text: numbers, JSON, patterns, dates, statistics."""

from __future__ import annotations

import ast
import collections
import datetime
import difflib
import json
import math
import re
import statistics

import sglc as sgl
from tests.corpus.case import Corpus

program = Corpus("idioms")

NUMBER = re.compile(r"-?\d+")
LIMIT = 100


@program(answers={"age": "21"})
@sgl.function
def doubles_a_number(s):
    s += "Age:" + sgl.gen("age", regex=r"\d+")
    return int(s["age"]) * 2


@program(price=4, answers={"share": "0.25"})
@sgl.function
def computes_with_floats(s, price):
    s += f"Share of {price}:" + sgl.gen("share", dtype=float)
    s += f"\nThat is {round(float(s['share']) * price, 1)}." + sgl.gen("x")


@program(answers={"score": "7"})
@sgl.function
def compares_a_number(s):
    s += "Score from 0 to 9:" + sgl.gen("score", regex=r"[0-9]")
    if int(s["score"]) >= 5:
        s += "\nPraise:" + sgl.gen("x")
    else:
        s += "\nAdvice:" + sgl.gen("x")


@program(answers={"age": " 12 years"})
@sgl.function
def tries_a_number(s):
    s += "Age:" + sgl.gen("age")
    try:
        age = int(s["age"])
    except ValueError:
        age = -1
    return age


@program(answers={"x": '{"name": "Rome", "size": 3}'})
@sgl.function
def reads_json(s):
    s += "A city as JSON:" + sgl.gen("x")
    s += "\nIts name is " + json.loads(s["x"])["name"] + sgl.gen("y")


@program(record={"name": "Rome", "tags": ["old", "big"]})
@sgl.function
def writes_json(s, record):
    s += "Record: " + json.dumps(record, indent=2) + "\nSummary:" + sgl.gen("x")


@program(answers={"x": "from 3 to 12, or 40"})
@sgl.function
def finds_all_numbers(s):
    s += "Numbers:" + sgl.gen("x")
    return [int(n) for n in NUMBER.findall(s["x"])]


@program(answers={"x": "I think #### 72"})
@sgl.function
def searches_an_answer(s):
    s += "How many?" + sgl.gen("x")
    found = re.search(r"#### (\d+)", s["x"])
    return found.group(1) if found else None


@program(answers={"x": "It   is\t\tso"})
@sgl.function
def normalises_spaces(s):
    s += "Say something:" + sgl.gen("x")
    s += "\nAgain: " + re.sub(r"\s+", " ", s["x"]) + sgl.gen("y")


@program(answers={"vote": ("a", "b", "a")})
@sgl.function
def counts_votes(s):
    s += "Vote:"
    forks = s.fork(3)
    forks += sgl.gen("vote")
    forks.join()
    return collections.Counter(s["vote"]).most_common(1)[0][0]


@program(answers={"n": ("3", "5", "10")})
@sgl.function
def averages_scores(s):
    forks = s.fork(3)
    for i, fork in enumerate(forks):
        fork += f"Judge {i}:" + sgl.gen("n", regex=r"\d+")
    scores = [int(fork["n"]) for fork in forks]
    return statistics.mean(scores), max(scores), sum(scores) / len(scores)


@program(count=10)
@sgl.function
def uses_math(s, count):
    s += f"Pages: {math.ceil(count / 3)}, {count // 3}, {count % 3}, {math.sqrt(16)}" + sgl.gen("x")


@program(answers={"day": "2024-02-29"})
@sgl.function
def reads_a_date(s):
    s += "A day:" + sgl.gen("day", regex=r"\d{4}-\d{2}-\d{2}")
    day = datetime.date.fromisoformat(s["day"])
    return day.year, day.strftime("%d.%m.")


@program(start=datetime.date(2024, 5, 1))
@sgl.function
def counts_days(s, start):
    end = start + datetime.timedelta(days=30)
    s += f"From {start.isoformat()} to {end:%Y-%m-%d}:" + sgl.gen("x")


@program(answers={"x": "['a', 'b']"})
@sgl.function
def reads_a_literal(s):
    s += "A Python list:" + sgl.gen("x")
    return ast.literal_eval(s["x"])


@program(expected="Paris", answers={"x": "paris "})
@sgl.function
def compares_with_the_truth(s, expected):
    s += "Capital of France:" + sgl.gen("x")
    return s["x"].strip().lower() == expected.lower()


@program(names=["Berlin", "Bern"], answers={"x": "Brlin"})
@sgl.function
def picks_the_closest(s, names):
    s += "A capital:" + sgl.gen("x")
    return difflib.get_close_matches(s["x"], names, n=1)


@program(answers={"x": "12", "y": "30"})
@sgl.function
def adds_two_numbers(s):
    s += "a =" + sgl.gen("x", regex=r"\d+") + " b =" + sgl.gen("y", regex=r"\d+")
    total = int(s["x"]) + int(s["y"])
    assert total < LIMIT
    s += f" sum = {total}"
