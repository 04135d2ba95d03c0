"""Programs after SGLang's tutorials and usage examples, written anew."""

from __future__ import annotations

import re

import sglc as sgl
from tests.corpus.case import Corpus

program = Corpus("tutorials")

IP_ADDRESS = r"((25[0-5]|2[0-4]\d|[01]?\d\d?)\.){3}(25[0-5]|2[0-4]\d|[01]?\d\d?)"
CHARACTER = (
    r'\{"name": "[\w ]{1,16}", "house": "(Gryffindor|Slytherin|Ravenclaw|Hufflepuff)", '
    r'"wand": \{"wood": "[\w ]{1,16}", "length": [0-9]{1,2}\.[0-9]\}\}'
)


@program({"question": "List three countries."}, {"question": "Name a river."})
@sgl.function
def basic_qa(s, question):
    """SGLang, "SGLang Frontend Language": Basic Usage."""
    s += sgl.system("You are a helpful assistant.")
    s += sgl.user(question)
    s += sgl.assistant(sgl.gen("answer", max_tokens=512))


@program(topics=["countries", "capitals", "rivers"])
@sgl.function
def multi_turn_qa(s, topics):
    """SGLang, "SGLang Frontend Language": Multi-turn Dialog."""
    s += sgl.system("You are a helpful assistant.")
    answers = {}
    for i, topic in enumerate(topics):
        s += sgl.user(f"Give me a list of three {topic}." if i == 0 else f"And their {topic}?")
        s += sgl.assistant(sgl.gen(f"{topic}_answer", max_tokens=64))
        answers[topic] = s[f"{topic}_answer"]
    return answers


@program(
    {"question": "What is 2 * 2?"},
    {"question": "Who wrote Faust?"},
    answers={
        "tool": lambda a: "calculator" if "*" in a.prompt else "search engine",
        "expression": "2 * 2",
        "query": " Faust author ",
    },
)
@sgl.function
def tool_use(s, question):
    """SGLang, "SGLang Frontend Language": Control Flow."""
    s += sgl.assistant(
        f"To answer this question: {question}. I need to use a "
        + sgl.select("tool", choices=["calculator", "search engine"])
        + ". "
    )
    if s["tool"] == "calculator":
        s += sgl.assistant("The math expression is: " + sgl.gen("expression"))
        left, right = s["expression"].split("*")
        s += sgl.user(f"The calculator says {int(left) * int(right)}.")
    elif s["tool"] == "search engine":
        s += sgl.assistant("The key word to search is: " + sgl.gen("query"))
        s += sgl.user(f"Results for '{s['query'].strip()}': none.")
    s += sgl.assistant(sgl.gen("answer"))
    return s["tool"]


@program({"topic": "staying healthy", "count": 2}, {"topic": "writing", "count": 4})
@sgl.function
def tip_suggestion(s, topic, count):
    """SGLang, "SGLang Frontend Language": Parallelism."""
    s += sgl.system("You are a helpful assistant.")
    s += sgl.user(f"Give me {count} concise tips for {topic}.")
    s += sgl.assistant("Here they are: " + " ".join(f"{i + 1}. tip {i + 1}." for i in range(count)))
    forks = s.fork(count)
    for i, f in enumerate(forks):
        f += sgl.user(f"Now, expand tip {i + 1} into a paragraph.")
        f += sgl.assistant(sgl.gen("detailed_tip", max_tokens=256, stop="\n\n"))
    s += sgl.assistant("\n".join(f"Tip {i + 1}: {f['detailed_tip']}" for i, f in enumerate(forks)))
    s += sgl.user("Please summarize these tips.")
    s += sgl.assistant("In summary, " + sgl.gen("summary", max_tokens=512))


@program(answers={"answer": "8.8.4.4"})
@sgl.function
def regular_expression_gen(s):
    """SGLang, "SGLang Frontend Language": Constrained Decoding."""
    s += sgl.user("What is the IP address of the Google DNS servers?")
    s += sgl.assistant(sgl.gen("answer", temperature=0, regex=IP_ADDRESS))
    match = re.match(r"(\d+)\.", s["answer"])
    return match.group(1) if match else "none"


@program(
    {"name": "Harry Potter"},
    {"name": "Luna Lovegood"},
    answers={"json_output": '{"name": "N", "house": "Ravenclaw", "wand": {"wood": "oak", "length": 10.5}}'},
)
@sgl.function
def character_gen(s, name):
    """SGLang, usage example "json_decode": a character card by one regular expression."""
    s += f"{name} is a character in a book. Please fill in the facts about this character.\n"
    s += "The constrained regex is:\n" + CHARACTER + "\n"
    s += "The JSON output is:\n" + sgl.gen("json_output", max_tokens=256, regex=CHARACTER)


@program(statement="The capital of France is Pairs.", answers={"greedy": "False", "unconditional": "Unknown"})
@sgl.function
def true_or_false(s, statement):
    """SGLang, "Choices Methods in SGLang": the same choice, decided in three ways."""
    s += "Is the statement True, False, or Unknown?\nStatement: " + statement + "\nAnswer: "
    choices = ["True", "False", "Unknown"]
    methods = {
        "default": sgl.token_length_normalized,
        "greedy": sgl.greedy_token_selection,
        "unconditional": sgl.unconditional_likelihood_normalized,
    }
    forks = s.fork(list(methods))
    for fork, (name, method) in zip(forks, methods.items()):
        fork += sgl.select(name, choices=choices, choices_method=method)
    return [fork[name] for fork, name in zip(forks, methods)]


@program({"number": 2}, {"number": 3})
@sgl.function
def multi_stage_fork(s, number):
    """SGLang, usage example "multi_stage_fork": branches of branches, joined in two steps."""
    s += "A skeleton of an answer has points.\n"
    outer = s.fork(number)
    for i, branch in enumerate(outer):
        branch += f"Point {i + 1}:" + sgl.gen("point", stop="\n")
        inner = branch.fork(2)
        inner += lambda j: f"\nArgument {j}:" + sgl.gen("argument", stop="\n")
        inner.join()
        branch += "\n".join(branch["argument"])
    for branch in outer:
        s += branch["point"] + ": " + "; ".join(branch["argument"]) + "\n"
    s += "Conclusion:" + sgl.gen("conclusion")
