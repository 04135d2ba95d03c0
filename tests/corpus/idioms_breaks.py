"""Everyday Python that no tracer may pass: what it does, or depends on, is outside of the program."""

from __future__ import annotations

import datetime
import functools
import hashlib
import itertools
import os
import pathlib
import random
import threading
import time
import unicodedata
import uuid
from typing import Any

import sglc as sgl
from tests.corpus.case import Corpus

program = Corpus("idioms")

counter = 0
seen: list[str] = []
numbers = itertools.count(1)
lock = threading.Lock()


class Wallet:
    """A user's class whose fields are made when they are asked for."""

    def __getattr__(self, name: str) -> Any:
        if name == "currency":
            return "EUR"
        raise AttributeError(name)


class Account:
    """A user's class: what looks like a field is computed."""

    def __init__(self, balance: int) -> None:
        self.balance = balance

    @property
    def status(self) -> str:
        return "rich" if self.balance > 100 else "poor"

    def __add__(self, amount: int) -> int:
        return self.balance + amount


@functools.lru_cache
def cached(text: str) -> str:
    return text[::-1]


@program(question="When?", answers={"x": "now"})
@sgl.function
def reads_the_clock(s, question):
    s += question + sgl.gen("x")
    start = time.time()  # breaks
    s += "\nDone." + sgl.gen("y")
    return time.time() - start < 3600


@program(answers={"x": "dice"})
@sgl.function
def draws_at_random(s):
    s += "Game:" + sgl.gen("x")
    s += f"\nRoll: {random.randint(1, 6)}"  # breaks


@program(answers={"x": "fine"})
@sgl.function
def writes_today(s):
    s += f"Today is {datetime.date.today()}."  # breaks
    s += sgl.gen("x")


@program(answers={"x": "fine"})
@sgl.function
def reads_the_environment(s):
    home = os.environ.get("HOME", "/")  # breaks
    s += f"Home: {home}" + sgl.gen("x")


@program(name="readme", answers={"x": "fine"})
@sgl.function
def reads_a_file(s, name):
    s += "File " + name + ":" + sgl.gen("x")
    text = pathlib.Path(__file__).read_text(encoding="utf-8")  # breaks
    s += text[:16] + sgl.gen("y")


@program(account=Account(120))
@sgl.function
def reads_a_property(s, account):
    s += f"Balance {account.balance}:" + sgl.gen("x")
    s += f"\nStatus: {account.status}" + sgl.gen("y")  # breaks


@program(wallet=Wallet())
@sgl.function
def reads_through_getattr(s, wallet):
    s += "Currency?" + sgl.gen("x")
    s += wallet.currency + sgl.gen("y")  # breaks


@program(account=Account(7))
@sgl.function
def uses_an_operator_of_a_class(s, account):
    s += "After the deposit:" + sgl.gen("x")
    s += str(account + 5) + sgl.gen("y")  # breaks


@program(text="a")
@sgl.function
def counts_its_calls(s, text):
    global counter
    s += text + sgl.gen("x")
    counter += 1  # breaks
    s += sgl.gen("y")


@program(text="a")
@sgl.function
def remembers_in_a_global(s, text):
    s += text + sgl.gen("x")
    seen.append(s["x"])  # breaks
    s += sgl.gen("y")


@program(account=Account(7), answers={"x": "12"})
@sgl.function
def stores_in_an_argument(s, account):
    s += "New balance:" + sgl.gen("x")
    account.balance = int(s["x"])  # breaks
    s += "\nSaved." + sgl.gen("y")


@program(row={"question": "Why?"})
@sgl.function
def fills_in_a_row(s, row):
    s += row["question"] + sgl.gen("x")
    row["answer"] = s["x"]  # breaks
    s += "\nSure?" + sgl.gen("sure")


@program(text="résumé")
@sgl.function
def calls_an_unknown_library(s, text):
    s += text + sgl.gen("x")
    s += unicodedata.normalize("NFKD", s["x"]) + sgl.gen("y")  # breaks


@program(answers={"x": "key"})
@sgl.function
def hashes_a_text(s):
    s += "Key:" + sgl.gen("x")
    digest = hashlib.sha256(s["x"].encode()).hexdigest()  # breaks
    s += f"\nHash: {digest[:8]}" + sgl.gen("y")


@program(answers={"x": "fine", "y": "fine"})
@sgl.function
def makes_an_id(s):
    s += "Ticket:" + sgl.gen("x")
    s += f"\nId {uuid.uuid4()}" + sgl.gen("y")  # breaks


@program(answers={"x": "1 + 1"})
@sgl.function
def evaluates_a_text(s):
    s += "An expression:" + sgl.gen("x", regex=r"[0-9] \+ [0-9]")
    s += f" = {eval(s['x'])}" + sgl.gen("y")  # breaks


@program(answers={"x": "fine", "y": "fine"})
@sgl.function
def takes_the_next_number(s):
    s += "Number:" + sgl.gen("x")
    s += f"\n{next(numbers)}" + sgl.gen("y")  # breaks


@program(text="abc")
@sgl.function
def calls_a_cached_function(s, text):
    s += text + sgl.gen("x")
    s += cached(s["x"]) + sgl.gen("y")  # breaks


@program(text="abc")
@sgl.function
def holds_a_lock(s, text):
    s += text + sgl.gen("x")
    with lock:  # breaks
        s += "Locked:" + sgl.gen("y")


@program(amount=3)
@sgl.function
def makes_an_object(s, amount):
    s += f"Amount {amount}:" + sgl.gen("x")
    account = Account(amount)  # breaks
    s += account.status + sgl.gen("y")
