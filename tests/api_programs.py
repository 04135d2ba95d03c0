"""Ten programs for models behind APIs, and a server's answers to whatever they ask."""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import sglc as sgl

# The head of one: 1,024 x 1,536 pixels.
PICTURE = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", 1024, 1536)
FACTS = {"Linux": "Linus Torvalds made it.", "Torvalds": "He was born in Helsinki."}


@dataclasses.dataclass
class City:
    name: str
    people: int
    kind: str


@sgl.tool
def search(query: str) -> str:
    """The fact that the query names."""
    return FACTS.get(query.strip(), "nothing found")


@sgl.function
def question(s: Any, q: str = "Where is Rome?") -> None:
    s += sgl.user(q) + sgl.assistant(sgl.gen("answer", max_tokens=48))


@sgl.function
def judge(s: Any, essay: str = "Rain is good.") -> None:
    s += sgl.system("You grade essays.")
    s += sgl.user(f"An essay: {essay}") + sgl.assistant("I have read it.")
    aspects = ["clarity", "style", "proof"]
    forks = s.fork(aspects)
    for branch, aspect in zip(forks, aspects, strict=True):
        branch += sgl.user(f"Rate its {aspect} from 1 to 5.")
        branch += sgl.assistant(sgl.gen("score", stop=["\n", "."], max_tokens=4))
    scores = s.join(forks)["score"]
    s += sgl.user(f"The scores: {', '.join(scores)}. So?")
    s += sgl.assistant(sgl.select("verdict", choices=["weak", "fair", "strong"]))


@sgl.function
def fields(s: Any, text: str = "Rome has three million people.") -> None:
    s += sgl.user(text + " Which city?") + sgl.assistant(sgl.gen("city", dtype=City))
    s += sgl.user("How old is it?") + sgl.assistant(sgl.gen("age", dtype=int))


@sgl.function
def conversation(s: Any, topic: str = "tea") -> None:
    s += sgl.system("Be brief.")
    for number in range(3):
        s += sgl.user(f"{topic} {number}?") + sgl.assistant(
            sgl.gen(f"turn_{number}", max_tokens=16, stop="END")
        )


@sgl.function
def nested(s: Any, goal: str = "swim") -> None:
    s += sgl.user(f"How do I learn to {goal}?") + sgl.assistant(sgl.gen("plan"))
    forks = s.fork(2)
    for branch, side in zip(forks, ("good", "bad"), strict=True):
        branch += sgl.user(f"What is {side} about it?") + sgl.assistant(sgl.gen("side"))
        again = branch.fork(2)
        for leaf, word in zip(again, ("short", "long"), strict=True):
            leaf += sgl.user(f"Say it {word}.") + sgl.assistant(sgl.gen("said"))
        branch.join(again)
    s.join(forks)


@sgl.function
def few_shot(s: Any, review: str = "Fine.") -> None:
    for shown, label in (("A warm welcome.", "good"), ("We left hungry.", "bad")):
        s += sgl.user(f"Review: {shown}") + sgl.assistant(label)
    s += sgl.user(f"Review: {review}") + sgl.assistant(sgl.select("label", choices=["good", "bad"]))


@sgl.function
def picture(s: Any) -> None:
    s += sgl.user(sgl.image(PICTURE) + "What is this?") + sgl.assistant(sgl.gen("answer"))


@sgl.function
def react(s: Any, q: str = "Who made Linux?") -> None:
    s += sgl.user(q)
    for number in range(3):
        s += sgl.assistant(sgl.gen(f"thought_{number}", max_tokens=24, stop="\n"))
        s += sgl.user("Search or finish?")
        s += sgl.assistant(sgl.select(f"action_{number}", choices=["finish", "search"]))
        if s[f"action_{number}"] == "finish":
            break
        s += sgl.user("For what?") + sgl.assistant(sgl.gen(f"query_{number}", max_tokens=12))
        s += sgl.user(f"Found: {search(s[f'query_{number}'])}")
    s += sgl.user("So?") + sgl.assistant(sgl.gen("answer", max_tokens=24))


@sgl.function
def stops(s: Any) -> None:
    s += sgl.user("An idea") + sgl.assistant(
        sgl.gen("idea", n=3, stop=["\n", "1", "2", "3", "4", "5", "END"], stop_regex="[Xx]{3}")
    )


@sgl.function
def sampled(s: Any) -> None:
    s += sgl.user("A word") + sgl.assistant(sgl.gen("word", temperature=0.5, max_tokens=4))


@dataclass(frozen=True, slots=True)
class Asked:
    """A program, and how many requests it makes where one gives any number of samples."""

    program: Any
    requests: int


PROGRAMS: Mapping[str, Asked] = {
    "question": Asked(question, 1), "judge": Asked(judge, 4), "fields": Asked(fields, 2),
    "conversation": Asked(conversation, 3), "nested": Asked(nested, 7), "few_shot": Asked(few_shot, 1),
    "picture": Asked(picture, 1), "react": Asked(react, 10), "stops": Asked(stops, 1),
    "sampled": Asked(sampled, 1),
}  # fmt: skip


def brief(name: str) -> dict[str, Any]:
    """Options of a run whose answers end soon; those of `fields` end when their values do."""
    return {} if name == "fields" else {"max_new_tokens": 24}


def speaking(text: str = "one two END three") -> Callable[[dict[str, Any]], Any]:
    """Answers `text`, as often as it is asked for, or what a schema asks for."""

    def answer(body: dict[str, Any]) -> Any:
        schema = schema_of(body)
        said = text if schema is None else json.dumps(instance(schema))
        count = body.get("n") or body.get("generationConfig", {}).get("candidateCount") or 1
        return [said] * count if count > 1 else said

    return answer


def schema_of(body: Mapping[str, Any]) -> Any:
    """The schema that a body holds its answer to, in any vendor's words."""
    if "response_format" in body:
        return body["response_format"]["json_schema"]["schema"]
    if "output_config" in body:
        return body["output_config"]["format"]["schema"]
    config = body.get("generationConfig", {})
    # LiteLLM has older spellings.
    if "output_format" in body:
        return body["output_format"]["schema"]
    return config.get("responseJsonSchema") or config.get("response_json_schema")


def instance(schema: Mapping[str, Any]) -> Any:
    """A value of a schema: of several the last."""
    match schema:
        case {"pattern": _}:  # that of `dtype=str`
            return '"Linux"'
        case {"enum": values}:
            return values[-1]
        case {"anyOf": parts}:
            return instance(parts[-1])
        case {"type": "object", "properties": properties}:
            return {name: instance(part) for name, part in properties.items()}
        case {"type": "array", "items": items}:
            return [instance(items)]
        case {"type": kind}:
            return {"string": "Linux", "integer": 7, "number": 1.5, "boolean": True, "null": None}[kind]
    raise AssertionError(schema)
