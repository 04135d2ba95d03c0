"""Everyday structure: helpers, closures, programs that call programs, tools, and arguments of all kinds."""

from __future__ import annotations

import logging
from collections import namedtuple
from dataclasses import dataclass, field
from enum import Enum

from pydantic import BaseModel

import sglc as sgl
from tests.corpus.case import Corpus

program = Corpus("idioms")
log = logging.getLogger(__name__)

STYLE = "Be brief."
Point = namedtuple("Point", "x y")


class Tone(str, Enum):
    WARM = "warm"
    COLD = "cold"


class Settings:
    language = "English"
    shots = 2


@dataclass
class Person:
    name: str
    born: int
    tags: list[str] = field(default_factory=list)

    def card(self, year: int) -> str:
        return f"{self.name} ({year - self.born}): {', '.join(self.tags)}"


class Order(BaseModel):
    item: str
    count: int = 1
    note: str | None = None


def ask(s, question, name="answer"):
    s += sgl.user(question)
    s += sgl.assistant(sgl.gen(name))
    return s[name]


def clean(text):
    return text.strip().rstrip(".").lower()


@program(topic="tea")
@sgl.function
def uses_a_helper_with_the_state(s, topic):
    s += sgl.system(STYLE)
    first = ask(s, f"What is {topic}?")
    ask(s, "Why?", name="why")
    return first


@program(answers={"x": " Paris. "})
@sgl.function
def cleans_with_a_helper(s):
    s += "Capital of France?" + sgl.gen("x")
    s += f"\nSo: {clean(s['x'])}" + sgl.gen("y")


@program(names=["Ada", "Bo"], greeting="Hello")
@sgl.function
def defines_a_closure(s, names, greeting):
    def greet(name, mark="!"):
        return f"{greeting} {name}{mark}"

    add = lambda text: text + "\n"
    for name in names:
        s += add(greet(name))
    s += greet("you", mark="?") + sgl.gen("x")


@program({"s1": Person("Ada", 1815, ["maths"])}, {"s1": Person("Bo", 1900, ["tea", "go"])})
@sgl.function
def describes_a_person(s, s1):
    s += f"{s1.name}, born {s1.born}\n{s1.card(1990)}\nBiography:" + sgl.gen("x")


@program({"order": Order(item="tea")}, {"order": Order(item="rum", count=3, note="dark")})
@sgl.function
def confirms_an_order(s, order):
    s += f"{order.count} x {order.item}" + (f" ({order.note})" if order.note else "")
    s += "\nConfirmation:" + sgl.gen("x")


@program(answers={"order": '{"item": "tea", "count": 2, "note": null}'})
@sgl.function
def fills_a_model(s):
    s += "An order as JSON:" + sgl.gen("order", dtype=Order)
    s += f"\nYou get {s['order'].count} {s['order'].item}." + sgl.gen("x")
    return s["order"]


@program(
    {"tone": Tone.WARM, "polite": True, "strength": 0.5}, {"tone": Tone.COLD, "polite": False, "strength": 1.0}
)
@sgl.function
def sets_a_tone(s, tone, polite, *, strength=0.1, retries: int = 2):
    s += f"Tone: {tone.value}, strength {strength}, retries {retries}. "
    s += "Please write:" if polite else "Write:"
    s += sgl.gen("x")
    return tone


@program(answers={"x": "3", "y": "4"})
@sgl.function
def returns_a_point(s):
    s += "x =" + sgl.gen("x", regex="[0-9]") + ", y =" + sgl.gen("y", regex="[0-9]")
    point = Point(int(s["x"]), int(s["y"]))
    return point, point.x


@program(answers={"name": "Ada", "born": "1815"})
@sgl.function
def builds_a_dataclass(s):
    s += "Name:" + sgl.gen("name") + " Born:" + sgl.gen("born", regex=r"\d{4}")
    person = Person(name=s["name"], born=int(s["born"]), tags=["generated"])
    s += "\n" + person.name + " is" + sgl.gen("x")
    return person


@sgl.function
def summary_of(s, text, words=5):
    s += f"{text}\nIn {words} words:" + sgl.gen("short")
    return s["short"]


@program({"texts": ["one", "two"]}, {"texts": ["three"]})
@sgl.function
def calls_another_program(s, texts):
    parts = [summary_of(text=text, words=3).ret_value for text in texts]
    s += "Together: " + " / ".join(parts) + sgl.gen("x")


@program(question="How high?", language="French", max_words=9)
@sgl.function
def reads_constants(s, question, **options):
    s += f"{STYLE} Language: {Settings.language}. {Settings.shots} shots.\n"
    s += "\n".join(f"{key}: {value}" for key, value in options.items())
    s += f"\n{question}" + sgl.gen("x")


@program(answers={"x": "hot"})
@sgl.function
def logs_what_it_does(s):
    s += "Weather:" + sgl.gen("x")
    print("weather", s["x"])
    log.debug("weather %s", s["x"])
    s += "\nSo wear" + sgl.gen("y")


@sgl.tool
def look_up(city: str) -> str:
    return {"Rome": "2.8 million"}.get(city.strip(), "unknown")


@sgl.pure
def shorten(text: str, length: int) -> str:
    return text[:length]


@program(city="Rome", answers={"x": "Rome is an old city."})
@sgl.function
def calls_declared_functions(s, city):
    s += f"{city} has {look_up(city)} people." + sgl.gen("x")
    s += "\nShort: " + shorten(s["x"], 7) + sgl.gen("y")


@program(sections={"intro": "why", "end": "what next"}, footer=None)
@sgl.function
def writes_sections(s, sections, footer):
    section = {}
    for title, content in sections.items():
        with s.var_scope(title):
            s += f"# {title}\n{content}:" + sgl.gen() + "\n"
        section[title] = s[title]
    s += footer or "The end."
    return section
