"""Programs after DSPy's tutorials, written anew: what their modules do as prompts of this language."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel

import sglc as sgl
from tests.corpus.case import Corpus

program = Corpus("tutorials")

PASSAGES = {
    "rome": "Rome | Rome is the capital of Italy.",
    "italy": "Italy | Italy has sixty million people.",
    "bee": "Bee | A bee is an insect that makes honey.",
}


@dataclass
class Prediction:
    reasoning: str
    answer: str


class Topic(enum.Enum):
    BILLING = "billing"
    DELIVERY = "delivery"
    OTHER = "other"


class Email(BaseModel):
    sender: str
    urgent: bool
    items: list[str]


@sgl.tool
def retrieve(query: str, k: int) -> list[str]:
    words = re.findall(r"\w+", query.lower())
    return [PASSAGES[word] for word in words if word in PASSAGES][:k]


@sgl.pure
def run_code(code: str) -> str:
    """Sums only: the program that was written is an addition."""
    return str(sum(int(part) for part in re.findall(r"\d+", code)))


def signature(s, instructions, **inputs):
    s += instructions + "\n"
    for field, value in inputs.items():
        s += f"{field.capitalize()}: {value}\n"


@program(
    {"question": "What is 3 + 4?"},
    {"question": "What is half of ten?"},
    answers={"reasoning": " Step 1.\nStep 2."},
)
@sgl.function
def chain_of_thought(s, question):
    """DSPy, "Tutorial: Math Reasoning": ChainOfThought."""
    signature(s, "Answer the question.", question=question)
    s += "Reasoning: Let us think step by step." + sgl.gen("reasoning", max_tokens=200)
    s += "\nAnswer:" + sgl.gen("answer", stop="\n")
    return Prediction(s["reasoning"].strip(), s["answer"].strip())


@program(
    {"text": "Where is my parcel?"}, {"text": "I paid twice."}, answers={"topic": "delivery", "sure": "0.75"}
)
@sgl.function
def classify(s, text):
    """DSPy, "Tutorial: Classification": a label of a fixed set, and how sure the model is."""
    labels = ", ".join(topic.value for topic in Topic)
    signature(s, f"Classify the text. Labels: {labels}.", text=text)
    s += "Label: " + sgl.gen("topic", dtype=Topic)
    s += "\nConfidence: " + sgl.gen("sure", dtype=float)
    if s["topic"] is Topic.OTHER:
        s += "\nSuggest a new label:" + sgl.gen("label", stop="\n")
    return s["topic"], float(s["sure"])


@program(
    {"question": "How many people live in the country whose capital is Rome?", "hops": 2},
    {"question": "What does a bee make?", "hops": 1},
    answers={"query": (" rome", " italy people")},
)
@sgl.function
def multi_hop(s, question, hops):
    """DSPy, "Tutorial: Multi-Hop Retrieval": a query, passages, notes, and again."""
    context: list[str] = []
    for hop in range(hops):
        s += f"Question: {question}\nNotes: {' '.join(context)}\nQuery {hop}:" + sgl.gen("query", stop="\n")
        passages = retrieve(s["query"], 2)
        context = list(dict.fromkeys(context + passages))
        s += "\n"
    s += "Context:\n" + "\n".join(f"[{i}] {text}" for i, text in enumerate(context, 1))
    s += f"\nQuestion: {question}\nAnswer:" + sgl.gen("answer", stop="\n")
    return {"context": context, "answer": s["answer"]}


@program(
    {"question": "Which city is the capital of Italy?"},
    answers={"tool": ("search", "finish"), "argument": " rome", "final": " Rome"},
)
@sgl.function
def react_agent(s, question):
    """DSPy, "Tutorial: Agents": ReAct with a search tool."""
    trajectory = {}
    s += f"Question: {question}\n"
    for i in range(4):
        s += f"Thought {i}:" + sgl.gen(f"thought_{i}", stop="\n") + f"\nTool {i}: "
        s += sgl.select("tool", choices=["search", "finish"])
        if s["tool"] == "finish":
            break
        s += f"\nArgument {i}:" + sgl.gen("argument", stop="\n")
        found = retrieve(s["argument"], 3)
        trajectory[f"observation_{i}"] = found
        s += f"\nObservation {i}: " + ("; ".join(found) if found else "nothing") + "\n"
    s += "\nAnswer:" + sgl.gen("final", stop="\n")
    return s["final"].strip(), trajectory


@program(
    {"question": "Add 12 and 30."},
    answers={"code": ("no code here", "```python\n12 + 30\n```")},
)
@sgl.function
def program_of_thought(s, question, max_iters=3):
    """DSPy, "Tutorial: Program of Thought": code that is written, run, and mended."""
    output = "no result"
    s += f"Write Python for: {question}\n"
    for attempt in range(max_iters):
        s += f"Code {attempt}:" + sgl.gen("code")
        block = re.search(r"```python\n(.*?)```", s["code"], re.DOTALL)
        if block:
            output = run_code(block.group(1))
            break
        s += "\nThat was no code block. Try again.\n"
    s += f"\nOutput: {output}\nAnswer:" + sgl.gen("answer", stop="\n")
    return s["answer"]


@program(
    {"email": "Ann: please send 2 saws today!", "limit": 12},
    answers={
        "facts": '{"sender": "Ann", "urgent": true, "items": ["saw", "saw"]}',
        "summary": ("Ann asks for saws, and she wants them today, please.", "Ann wants saws today.", "Saws."),
        "verdict": ("too long", "good"),
    },
)
@sgl.function
def summary_with_critique(s, email, limit):
    """DSPy, "BestOfN and Refine", on an email: its facts, and a summary that is criticised until it is good."""
    s += f"Email: {email}\nFacts as JSON: " + sgl.gen("facts", dtype=Email)
    urgency: Literal["urgent", "normal"] = "urgent" if s["facts"].urgent else "normal"
    s += f"\nThis is {urgency}: {', '.join(sorted(set(s['facts'].items)))}."
    best = None
    for _ in range(3):
        s += "\nSummary:" + sgl.gen("summary", stop="\n") + "\nVerdict: "
        s += sgl.select("verdict", choices=["good", "too long", "wrong"])
        if best is None or len(s["summary"]) < len(best):
            best = s["summary"]
        if s["verdict"] == "good" and len(s["summary"].split()) <= limit:
            break
        s += f"\nFeedback: say it in {limit} words."
    return best
