"""SGLang's benchmark programs that branch, decide, look things up or fill in forms; written anew."""

from __future__ import annotations

import json
import re
from collections import Counter
from random import Random

import sglc as sgl
from sglc.backends.scripted import Asked
from tests.corpus.case import Corpus
from tests.corpus.drawn import names, rows, sentence, words

program = Corpus("benchmarks")

REGEX_INT = r"[-+]?[0-9]+"
REGEX_STRING = r"\"[\w\d\s]*\""
CITY = (
    r'\{"country": "[\w ]+", "latitude": -?[0-9]{1,2}\.[0-9], '
    r'"population": [0-9]+, "famous": \[("[\w ]+"(, )?){1,3}\]\}'
)
TRIPLES = {"number": 3}
FACTS = {
    "river": "A river flows into the sea.",
    "island": "An island has water on all sides.",
    "bridge": "A bridge crosses a river.",
    "market": "A market is held in a village.",
}


def a_number(asked: Asked) -> str:
    """A number from the prompt's length."""
    return str(len(asked.prompt) % 100)


# -- trees -------------------------------------------------------------------------------------------


@program(
    *rows(21, lambda r, n: {"question": sentence(r, 5, 25), "num_branches": 1 + n % 3}),
    answers={"answer": lambda asked: f"So the answer is {len(asked.prompt) % 3}."},
)
@sgl.function
def tree_of_thought_v0(s, question, num_branches):
    s += sgl.user(question + " Think of a plan, then follow it.")
    plans = s.fork(num_branches)
    plans += sgl.assistant("Plan: " + sgl.gen("plan", max_tokens=256))
    answers: list[str] = []
    for plan in plans:
        plan += sgl.user("Follow the plan.")
        solutions = plan.fork(num_branches)
        solutions += sgl.assistant(sgl.gen("answer", max_tokens=256))
        answers.extend(solution["answer"] for solution in solutions)
    numbers = [re.search(r"\d+", answer).group() for answer in answers]
    return max(set(numbers), key=numbers.count)


def propose_plan(s, question, num_branches):
    s += sgl.user(f"{question}\nGive a high-level plan.")
    forks = s.fork(num_branches)
    forks += sgl.assistant(sgl.gen("plan", max_tokens=256, temperature=0.3))
    return forks


def execute_plan(s, num_branches):
    s += sgl.user("Now carry it out, with all numbers.")
    forks = s.fork(num_branches)
    forks += sgl.assistant(sgl.gen("solution", max_tokens=256, temperature=0.3))
    return forks


def reflect(s, num_branches):
    s += sgl.user("Is it right? Give a score from 0 to 9.")
    forks = s.fork(num_branches)
    forks += sgl.assistant(sgl.gen("score", regex="[0-9]", temperature=0.3))
    return forks


@program(
    *rows(22, lambda r, n: {"question": sentence(r, 5, 25), "num_branches": 1 + n % 2}),
    answers={"score": lambda asked: str(len(asked.prompt) % 10)},
)
@sgl.function
def tree_of_thought_deep(s, question, num_branches):
    plan_forks = propose_plan(s, question, num_branches)
    solution_states = []
    for plan in plan_forks:
        forks = execute_plan(plan, num_branches)
        solution_states.extend(forks)
    scored = []
    for solution in solution_states:
        for judged in reflect(solution, num_branches):
            scored.append((int(judged["score"]), solution["solution"]))
    scored.sort(key=lambda pair: pair[0], reverse=True)
    return [text for _, text in scored[:2]]


@program(
    *rows(23, lambda r, n: {"question": sentence(r, 5, 25), "num_chains": 2 + n % 4}),
    answers={"answer": lambda asked: f"After some thought it is {len(asked.prompt) % 5}.\nQuestion"},
)
@sgl.function
def multi_chain_reasoning(s, question, num_chains=5):
    s += "Question: " + question + "\n"
    forks = s.fork(num_chains)
    for i, fork in enumerate(forks):
        fork += f"Reasoning {i + 1}:" + sgl.gen("answer", max_tokens=128, stop="Question", temperature=0.3)
    s += "Here are answers:\n"
    for i in range(num_chains):
        s += f"Answer {i + 1}: " + forks[i]["answer"].strip() + "\n"
    s += "The best one is" + sgl.gen("final", max_tokens=64)
    votes = Counter(re.findall(r"\d+", fork["answer"])[-1] for fork in forks)
    return votes.most_common(1)[0]


@program(*rows(24, lambda r, n: {"topic": words(r, 1 + n % 7), "number": 2 + n % 4}))
@sgl.function
def suggest_tips(s, topic, number):
    s += "Act as a helpful assistant.\n"
    s += "USER: Give some tips for " + topic + ".\n"
    s += "ASSISTANT: Okay. Here are " + str(number) + " concise tips, each under 8 words:\n"
    paragraphs = []
    for i in range(1, 1 + number):
        s += f"{i}." + sgl.gen(f"tip_{i}", max_tokens=24, stop=[".", "\n"]) + ".\n"
    for i in range(1, 1 + number):
        with s.copy() as branch:
            branch += f"Tip {i} in detail:" + sgl.gen("paragraph", max_tokens=128)
            paragraphs.append(branch["paragraph"])
    s += "In detail:\n" + "\n".join(paragraphs) + "\nIn summary," + sgl.gen("summary", max_tokens=64)


# -- agents ------------------------------------------------------------------------------------------


@program(
    *rows(
        25,
        lambda r, n: {
            "question": sentence(r),
            "steps": [(w, FACTS.get(w, "Nothing.")) for w in names(r, 1 + n % 5)],
        },
    )
)
@sgl.function
def webthink(s, question, steps):
    s += "Solve a question with thoughts, actions and observations.\nQuestion: " + question
    for i, (topic, observation) in enumerate(steps, 1):
        s += f"\nThought {i}:" + sgl.gen(f"thought_{i}", stop=["\n", "Action"])
        s += f"\nAction {i}: Search[" + sgl.gen(f"argument_{i}", stop="]") + f"] of {topic}"
        s += f"\nObservation {i}: {observation}"
    s += f"\nThought {len(steps) + 1}:" + sgl.gen("last", stop="\n") + "\nAction: Finish["
    s += sgl.gen("answer", stop="]")
    return s["answer"]


def agent_row(r: Random, number: int):
    sectors = {name: names(r, 1 + (number + i) % 3) for i, name in enumerate(names(r, 2 + number % 3))}
    persona = {"name": words(r, 1).title(), "traits": names(r, number % 4)}
    return {"persona": persona, "event": sentence(r, 3, 20), "sectors": sectors}


@program(*rows(26, agent_row), answers={"poignancy": a_number, "triple": "(river, is, cold) and more"})
@sgl.function
def generative_agents(s, persona, event, sectors):
    s += f"Here is {persona['name']}, who is {', '.join(persona['traits']) or 'plain'}.\nEvent: {event}\n"
    forks = s.fork(3)
    forks[0] += "How poignant is it, from 0 to 99? " + sgl.gen("poignancy", regex=r"\d{1,2}")
    forks[1] += "As a triple: (" + sgl.gen("triple", stop="\n")
    forks[2] += "Go to: " + sgl.select("sector", choices=list(sectors))
    place = forks[2]["sector"]
    if len(sectors[place]) > 1:
        forks[2] += ", there to: " + sgl.select("arena", choices=sectors[place])
        place = f"{place}:{forks[2]['arena']}"
    subject, _, rest = forks[1]["triple"].strip("() ").partition(",")
    return {
        "poignancy": int(forks[0]["poignancy"]),
        "subject": subject.strip(),
        "rest": rest.strip(),
        "place": place,
    }


@sgl.pure
def search(question: str, k: int) -> list[str]:
    found = [fact for word, fact in FACTS.items() if word in question.lower()]
    return found[:k] or ["Nothing is known."]


@program(
    *rows(
        27,
        lambda r, n: {
            "question": f"What about a {' or a '.join(r.sample(sorted(FACTS), n % 4))}?",
            "k": 1 + n % 3,
        },
    ),
    answers={"reasoning": " It is simple.\nMore.", "answer": " water \n---"},
)
@sgl.function
def dspy_rag(s, question, k=3):
    passages = search(question, k)
    s += "Answer questions with short factoid answers.\n\n---\n\nContext:\n"
    for i, passage in enumerate(passages):
        s += f"[{i + 1}] «{passage}»\n"
    s += f"\nQuestion: {question}\nReasoning: Let's think step by step." + sgl.gen("reasoning", stop="\n\n")
    s += "\nAnswer:" + sgl.gen("answer", stop="---")
    return s["answer"].strip()


# -- forms -------------------------------------------------------------------------------------------


@program(
    *rows(28, lambda r, n: {"name": words(r, 1 + n % 3).title()}),
    answers={"house": '"Blue House"', "year": a_number, "wand": '"oak"', "patronus": '"fox"'},
)
@sgl.function
def json_decode_regex(s, name):
    s += f"{name} is a character of a story. Facts as JSON:\n"
    with s.var_scope("json_output"):
        s += "{\n"
        s += '  "name": "' + name + '",\n'
        for key, regex in (("house", REGEX_STRING), ("year", REGEX_INT), ("wand", REGEX_STRING)):
            s += f'  "{key}": ' + sgl.gen(key, regex=regex) + ",\n"
        s += '  "patronus": ' + sgl.gen("patronus", regex=REGEX_STRING) + "\n}"
    return json.loads(s["json_output"])


@program(
    *rows(29, lambda r, n: {"document": " ".join(sentence(r) for _ in range(1 + n % 6))}),
    answers={
        "json_output": '{"country": "Far Land", "latitude": -3.5, "population": 12, "famous": ["tea", "salt"]}'
    },
)
@sgl.function
def json_jump_forward(s, document):
    s += "Please extract the information of a city from the following page.\n"
    s += "Page begin.\n" + document + "\nPage end.\n"
    s += "Here is the name, country, and so on as JSON.\n" + sgl.gen("json_output", max_tokens=128, regex=CITY)
    city = json.loads(s["json_output"])
    return city["country"], city["population"] > 10, len(city["famous"])


def long_row(r: Random, number: int):
    return {"document": "\n".join(sentence(r) for _ in range(3 + number)), "fields": names(r, 1 + number % 5)}


@program(*rows(30, long_row), answers={"start": a_number, "name": 'The thing", and more'})
@sgl.function
def long_json_decode(s, document, fields):
    lines = document.split("\n")
    s += "Document with line numbers:\n"
    s += "\n".join(f"{i:3d} {line}" for i, line in enumerate(lines))
    s += f"\nGive {TRIPLES['number']} facts, with name, line and {', '.join(fields)}, as JSON.\n["
    for i in range(TRIPLES["number"]):
        s += '{"name": "' + sgl.gen("name", stop='"') + '", "line": ' + sgl.gen("start", regex=r"\d+")
        for field in fields:
            s += f', "{field}": "' + sgl.gen(f"{field}_{i}", max_tokens=24, stop='"') + '"'
        s += "}," if i + 1 < TRIPLES["number"] else "}]"
    return {f"{field}_{i}": s[f"{field}_{i}"] for field in fields for i in range(TRIPLES["number"])}
