"""Everyday Python on texts: methods, slices and formats, of arguments and of what a model wrote."""

from __future__ import annotations

import html
import string
import textwrap

import sglc as sgl
from tests.corpus.case import Corpus

program = Corpus("idioms")

LABELS = "ABCD"


@program(topic="bees", answers={"x": "  they dance.  "})
@sgl.function
def shouts_a_topic(s, topic):
    s += topic.upper() + "!\n" + sgl.gen("x")
    return s["x"].strip().capitalize()


@program(question="What is 2 + 2?", answers={"x": " Four.\nNext question: what is 3 + 3?"})
@sgl.function
def keeps_the_first_line(s, question):
    s += f"Q: {question}\nA:" + sgl.gen("x")
    first = s["x"].split("\n")[0].strip()
    s += f"\nShort: {first}\nWhy:" + sgl.gen("why")
    return first


@program(answers={"x": "red, green,blue"})
@sgl.function
def splits_a_list(s):
    s += "Three colours, with commas:" + sgl.gen("x")
    return [item.strip() for item in s["x"].split(",")]


@program({"words": ["sun", "rain"]}, {"words": ["snow"]}, {"words": []})
@sgl.function
def joins_a_list(s, words):
    s += "Words: " + ", ".join(words) + "\nStory:" + sgl.gen("x")


@program(template="Dear {name},", name="Ada")
@sgl.function
def fills_placeholders(s, template, name):
    s += template.replace("{name}", name)
    s += sgl.gen("letter")


@program(city="Oslo", year=1905, answers={"x": "cold"})
@sgl.function
def uses_str_format(s, city, year):
    s += "{} in the year {:d}: ".format(city, year) + sgl.gen("x")
    s += "\n{0}, yes {0}, {why}".format(s["x"], why="as ever")


@program(name="Tom", age=3, answers={"x": "black"})
@sgl.function
def uses_percent(s, name, age):
    s += "%s is %d years old." % (name, age)
    s += " His fur is " + sgl.gen("x")
    s += ". The fur is %s." % s["x"]


@program(item="tea", price=2.5, count=7, answers={"x": "cheap"})
@sgl.function
def uses_format_specs(s, item, price, count):
    s += f"{item:>10} {price:.2f} {count:03d} {item!r}\n" + sgl.gen("x")
    s += f"\n[{s['x']:^12}]"


@program(answers={"x": "Once upon a time there was a very long story about a small fox."})
@sgl.function
def cuts_a_long_text(s):
    s += "Story:" + sgl.gen("x")
    s += "\nIt begins with: " + s["x"][:16] + "..." + sgl.gen("y")


@program({"document": "short"}, {"document": "a longer document that has to be cut somewhere"})
@sgl.function
def cuts_a_long_argument(s, document):
    if len(document) > 20:
        document = document[:20] + "..."
    s += f"Document: {document}\nSummary:" + sgl.gen("x")


@program(answers={"x": "Answer: Paris."})
@sgl.function
def removes_a_prefix(s):
    s += "Capital of France?" + sgl.gen("x")
    answer = s["x"].removeprefix("Answer:").strip().rstrip(".")
    s += f"\nSo {answer}." + sgl.gen("y")
    return answer


@program(answers={"x": "Yes, of course."})
@sgl.function
def looks_for_a_word(s):
    s += "Is it safe?" + sgl.gen("x")
    if "yes" in s["x"].lower():
        s += "\nWhy is it safe?" + sgl.gen("why")
        return True
    return False


@program(answers={"x": "title: The Fox"})
@sgl.function
def partitions_a_line(s):
    s += "One field:" + sgl.gen("x")
    key, _, value = s["x"].partition(":")
    return {key.strip(): value.strip()}


@program(name="Ada", thing="engine")
@sgl.function
def fills_a_template(s, name, thing):
    letter = string.Template("Dear $name, about the $thing:")
    s += letter.substitute(name=name, thing=thing) + sgl.gen("x")


@program(task="  Count.\n  Then stop.", answers={"x": "one two three four five six seven"})
@sgl.function
def wraps_text(s, task):
    s += textwrap.dedent(task) + "\n" + sgl.gen("x")
    return textwrap.fill(s["x"], width=12)


@program({"facts": ["a", "b", "c"]}, {"facts": ["d"]})
@sgl.function
def builds_a_prompt_first(s, facts):
    prompt = "Facts:\n"
    for fact in facts:
        prompt += f"- {fact}\n"
    s += prompt + "Conclusion:" + sgl.gen("x")


@program({"options": ["tea", "milk"]}, {"options": ["a", "b", "c"]})
@sgl.function
def letters_the_options(s, options):
    for i, option in enumerate(options):
        s += f"{chr(ord('A') + i)}. {option}\n"
    s += "Answer:" + sgl.select("x", choices=list(LABELS[: len(options)]))


@program(answers={"x": "one two three"})
@sgl.function
def counts_words(s):
    s += "A few words:" + sgl.gen("x")
    s += f"\nThat were {len(s['x'].split())} words."


@program(answers={"x": "b\na\n\nc"})
@sgl.function
def walks_over_lines(s):
    s += "Lines:" + sgl.gen("x")
    lines = [line for line in s["x"].splitlines() if line]
    s += "\nReversed: " + " ".join(reversed(lines)) + sgl.gen("y")


@program(title="News", note="a < b")
@sgl.function
def rules_off_a_title(s, title, note):
    s += title.center(12, "*") + "\n" + "-" * 12 + "\n" + html.escape(note)
    s += sgl.gen("x")
