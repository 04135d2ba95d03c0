"""Several texts of one turn as one JSON object: what an API is asked for, and how each text is read back.

A property is a text that is generated, under its own name; the properties stand in the order of the turn. A
literal that stands before a text is a property too, of that value alone, unless it says no more than the name
of what follows (`Age: ` before `age`). What may be asked for in this way has an automaton, so that
`unambiguous` can tell whether the turn's text could be cut in another way.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sglc.errors import LegalizeError
from sglc.ir.grammar.answer_form import KEY, AnswerForm, form_of, form_of_choices, object_of
from sglc.ir.grammar.dfa import ByteDfa, tree_of
from sglc.ir.grammar.fsm_summary import automaton_of_choices
from sglc.ir.grammar.regex import compile_regex
from sglc.ir.grammar.schema_regex import schema_regex
from sglc.ir.grammar.schema_subsets import SUBSETS
from sglc.ir.grammar.unambiguous import can_hold, cut_in_one_way, ended_by
from sglc.ir.sampling import Sampling

_CHARACTERS_A_TOKEN = 4  # about: how long a free text may become
_WORDS = re.compile(r"[^\W_]+")
_NAMES = re.compile(r"[^A-Za-z0-9_-]+")  # what vendors take no property's name with
_LONGEST_NAME = 40
_LONGEST_LITERAL = 1_000  # characters between two; the proof takes 20 ms of that, where it holds others up


@dataclass(frozen=True, slots=True)
class Captured:
    """A text that is generated, or (with `choices`) chosen: what it is held to, and the literal before it."""

    before: str
    name: str
    sampling: Sampling | None = None
    choices: tuple[str, ...] = ()

    def form(self, subset: str) -> AnswerForm:
        """What its value is held to.

        Raises:
            LegalizeError: SGLC312, SGLC313, SGLC314, the model cannot be held to it, or not in an object.
        """
        if self.sampling is None:
            return form_of_choices(self.choices)
        subset = "strict" if subset == "full" else subset
        form = form_of(self.sampling, subset) or _free(self.sampling, subset)
        if "$defs" in json.loads(form.schema):
            raise LegalizeError("SGLC313", "its `json_schema` has definitions")
        return form

    def automaton(self) -> ByteDfa:
        """What its text may be, or more than that.

        Raises:
            LegalizeError: SGLC317, that is no regular language; SGLC452, its automaton is too large.
        """
        if self.sampling is None:
            choices = automaton_of_choices(self.choices)
            if choices is None:
                raise LegalizeError("SGLC452", "it is too large")
            return choices
        pattern = self.sampling.regex
        if self.sampling.json_schema is not None:
            pattern = schema_regex(self.sampling.json_schema)
            if pattern is None:
                raise LegalizeError("SGLC317", "it is no regular language")
        one_byte = [stop for stop in self.sampling.stop if len(stop) == 1 and stop.isascii()]
        dfa = ended_by(compile_regex(r"[\s\S]*" if pattern is None else pattern), "".join(one_byte))
        for stop in self.sampling.stop:
            if self.sampling.constrained and can_hold(dfa, stop):
                raise LegalizeError("SGLC317", f"it may be cut at its stop string {stop!r}")
        return dfa


@dataclass(frozen=True, slots=True)
class CaptureForm:
    """`schema` is what an API is asked for (JSON), `keys` are the properties of the texts, in their order."""

    schema: str
    keys: tuple[str, ...]
    forms: tuple[AnswerForm, ...]
    literals: tuple[tuple[str, str], ...]  # properties that are literals

    def split(self, answer: str) -> tuple[str, ...]:
        """Of each text the answer that its own form reads.

        Raises:
            ValueError: `answer` is not what was asked for.
        """
        found = dict(_properties(answer))
        if found.keys() != {*self.keys, *(key for key, _ in self.literals)}:
            raise ValueError(f"it has the properties {', '.join(map(repr, found))}")
        for key, literal in self.literals:
            if json.loads(found[key]) != literal:
                raise ValueError(f"{literal!r} was to come, and there is {found[key]}")
        texts = json.loads(self.schema)["properties"]
        for key in self.keys:
            if found[key] == "null" and texts[key].get("type") == "string":
                raise ValueError(f"`{key}` was to be a text, and there is null")
        pairs = zip(self.keys, self.forms, strict=True)
        return tuple(f'{{"{KEY}": {found[key]}}}' if form.inside else found[key] for key, form in pairs)


@lru_cache(maxsize=256)
def capture_form(captured: tuple[Captured, ...], subset: str) -> CaptureForm:
    """One object for all of them. `subset`: the part of JSON Schema that the model takes.

    Raises:
        LegalizeError: SGLC312, SGLC313, SGLC314, the model cannot be held to one of them.
    """
    properties: dict[str, Any] = {}
    keys, forms, literals = [], [], []
    for one in captured:
        form = one.form(subset)
        schema = json.loads(form.schema)
        key = _new_name(one.name, properties)
        if not _says_no_more(one.before, key):
            literal = _new_name("text", {*properties, key})
            properties[literal] = {"type": "string", "enum": [one.before]}
            literals.append((literal, one.before))
        properties[key] = schema["properties"][KEY] if form.inside else schema
        keys.append(key)
        forms.append(form)
    whole = json.dumps(object_of(properties), ensure_ascii=False)
    return CaptureForm(whole, tuple(keys), tuple(forms), tuple(literals))


@lru_cache(maxsize=256)
def why_ambiguous(captured: tuple[Captured, ...]) -> str:
    """Why the text of all of them does not say where each one ends; "" if it surely does."""
    automata = []
    for number, one in enumerate(captured):
        if number and len(one.before) > _LONGEST_LITERAL:
            return f"the text before `{one.name}` is too long for a proof of where others end"
        try:
            automata.append(one.automaton())
        except LegalizeError as error:
            return f"where `{one.name}` ends cannot be proved: {error.message}"
    for number, one in enumerate(captured[:-1]):
        behind = [part for at in range(number + 1, len(captured))
                  for part in (tree_of([captured[at].before]), automata[at])]  # fmt: skip
        match cut_in_one_way(automata[number], behind):
            case None:
                return f"where `{one.name}` ends cannot be proved: the automata are too large"
            case False:
                return f"where `{one.name}` ends, the text behind it does not say"
    return ""


def most_characters(sampling: Sampling) -> int:
    """The most characters of a free text in an object, where a `pattern` can say so."""
    return _CHARACTERS_A_TOKEN * sampling.max_tokens


def _free(sampling: Sampling, subset: str) -> AnswerForm:
    """The form of a text that is held to none: an end has to come before the object's own limit."""
    schema = {"type": "string"}
    if "pattern" in SUBSETS[subset].kept["string"]:
        stops = re.escape("".join(stop for stop in sampling.stop if len(stop) == 1))
        others = f"[^{stops}]" if stops else r"[\s\S]"
        schema["pattern"] = f"^{others}{{0,{most_characters(sampling)}}}$"
    return AnswerForm(json.dumps({"type": "object", "properties": {KEY: schema}}), True)


def _says_no_more(literal: str, name: str) -> bool:
    """Whether a literal has no word but those of the name behind it."""
    return {word.casefold() for word in _WORDS.findall(literal)} <= {
        word.casefold() for word in _WORDS.findall(name)
    }


def _new_name(name: str, taken: Any) -> str:
    plain = _NAMES.sub("_", name).strip("_")[:_LONGEST_NAME] or "value"
    found, number = plain, 1
    while found in taken:
        number += 1
        found = f"{plain}_{number}"
    return found


def _properties(answer: str) -> Iterator[tuple[str, str]]:
    """The properties of a JSON object, their values as they are spelled.

    Raises:
        ValueError: it is none, or has one of them twice.
    """
    read, blank = json.JSONDecoder().raw_decode, re.compile(r"[ \t\r\n]*")

    def on(at: int, mark: str) -> int:
        at = blank.match(answer, at).end()  # type: ignore[union-attr]
        if answer[at : at + len(mark)] != mark:
            raise ValueError(f"{mark!r} is missing at {answer[at : at + 20]!r}")
        return blank.match(answer, at + len(mark)).end()  # type: ignore[union-attr]

    at, seen, mark = 0, set(), "{"
    while mark:
        key, after = read(answer, on(at, mark))
        if not isinstance(key, str) or key in seen:
            raise ValueError(f"the property {key!r} is there twice, or none")
        seen.add(key)
        begin = on(after, ":")
        _, at = read(answer, begin)
        yield key, answer[begin:at]
        mark = "," if answer[blank.match(answer, at).end() :][:1] == "," else ""  # type: ignore[union-attr]
    if on(at, "}") != len(answer):
        raise ValueError("more stands behind the object")
