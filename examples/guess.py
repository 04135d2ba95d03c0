"""Ordinary Python in a program: a number that only Python knows, and a model that guesses it.

A random number cannot be traced, so the function runs as Python: what it appends is launched where it reads a
guess. `sglc explain examples/guess.py` names the line.

    sglc run examples/guess.py --args '{"lucky": 7}'
"""

import random

import sglc as sgl

TURNS = 3


@sgl.function
def guess(s, lucky=0):
    number = random.Random(lucky).randint(1, 20)
    s += "A number from 1 to 20 is to be guessed.\n"
    for turn in range(1, TURNS + 1):
        s += f"Guess {turn}: " + sgl.gen("guess", regex="1?[1-9]|10|20", max_tokens=4) + "\n"
        guessed = int(s["guess"])
        if guessed == number:
            return turn
        s += f"The number is {'higher' if guessed < number else 'lower'} than {guessed}.\n"
    return None
