"""The parts of a structural tag as they are given: which there are, and which markers can be told apart."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sglc.errors import LegalizeError, shown
from sglc.ir.grammar.whole_characters import has_half_pair

Json = Any
MOST_PARTS = 1000  # of a list, and repeats
_LONGEST = 128  # characters of a marker
_MOST_LOOKED_FOR = 100_000  # characters of markers in one free text, times the markers
# The fields of each format; with the value, where another one cannot be enforced.
_FIELDS: Mapping[str, Mapping[str, Json]] = {
    "const_string": {"value": ...},
    "json_schema": {
        "json_schema": ..., "style": "json", "any_order": False, "max_whitespace_cnt": ..., "excludes": [],
    },
    "any_text": {"excludes": ..., "max_tokens": None, "max_chars": None},
    "regex": {"pattern": ...},
    "sequence": {"elements": ...},
    "or": {"elements": ...},
    "tag": {"begin": ..., "content": ..., "end": ...},
    "triggered_tags": dict.fromkeys(("triggers", "tags", "at_least_one", "stop_after_first", "excludes"), ...),
    "tags_with_separator": dict.fromkeys(("tags", "separator", "at_least_one", "stop_after_first"), ...),
    "optional": {"content": ...},
    "plus": {"content": ...},
    "star": {"content": ...},
    "repeat": {"min": ..., "max": ..., "content": ...},
    "dispatch": {"rules": ..., "loop": ..., "excludes": ...},
}  # fmt: skip
_REFUSED = frozenset(
    {
        "any_tokens", "exclude_token", "grammar", "qwen_xml_parameter", "token", "token_dispatch",
        "token_triggered_tags",
    }
)  # fmt: skip


@dataclass(slots=True)
class Tag:
    """A marker, what follows it, and the texts that may end it; with where they stand."""

    begin: str
    content: Json
    ends: tuple[str, ...]
    path: str


def by_trigger(tags: Sequence[Tag], triggers: Sequence[str]) -> dict[str, list[Tag]]:
    """The tags that each trigger begins: the one of a tag ends before all others as its marker is read."""
    found: dict[str, list[Tag]] = {}
    for tag in tags:
        ends = [
            (tag.begin.find(trigger) + len(trigger), trigger) for trigger in triggers if trigger in tag.begin
        ]
        first = min(ends, default=(0, ""))[1]
        if not first or not tag.begin.startswith(first):
            what = f"`{first}` ends before it has begun" if first else "no trigger begins it"
            raise malformed(f"{tag.path}/begin", what)
        found.setdefault(first, []).append(tag)
    return found


def check_markers(live: Sequence[str], others: Iterable[str], path: str) -> None:
    """Refuse a marker that can never come, because another one ends inside it, or with it."""
    others = dict.fromkeys(others)
    if sum(map(len, others)) * len(others) > _MOST_LOOKED_FOR or any(len(each) > _LONGEST for each in others):
        raise refused(
            path, f"markers that are too many or too long to be looked for ({len(others)})",
            "a `trigger` with which several begin does for all of them",
        )  # fmt: skip
    for marker in others:
        for one in dict.fromkeys(live):
            if marker in one and marker != one:
                raise malformed(path, f"`{one}` cannot be told from `{marker}`, which it contains")
    if len({*live}) < len(live):
        raise malformed(path, "a text both begins something and ends it")


def tag_of(begin: Json, content: Json, end: Json, path: str) -> Tag:
    ends = end if isinstance(end, list) else [end]
    if isinstance(begin, dict) or any(isinstance(text, dict) for text in ends):
        raise refused(path, "a token by its number or name", "write the marker as a text")
    if not ends or not all(isinstance(text, str) for text in ends) or ("" in ends and len(ends) > 1):
        raise malformed(f"{path}/end", "it is a text, or a list of texts that are not empty")
    return Tag(text_of(begin, f"{path}/begin"), content, tuple(dict.fromkeys(filter(None, ends))), path)


def tag_at(form: Json, path: str) -> Tag:
    form = checked({"type": "tag", **form} if isinstance(form, dict) else form, path)
    if form["type"] != "tag" or "content" not in form or "end" not in form:
        raise malformed(path, "a tag has `begin`, `content` and `end`")
    return tag_of(form.get("begin"), form["content"], form["end"], path)


def tags_of(form: Mapping[str, Json], path: str) -> list[Tag]:
    return [tag_at(tag, f"{path}/tags/{i}") for i, tag in enumerate(list_of(form.get("tags"), f"{path}/tags"))]


def checked(form: Json, path: str) -> dict[str, Json]:
    """A format whose fields are known."""
    given = fields_of(form, path)
    kind = given.get("type")
    if not isinstance(kind, str) or kind not in (*_FIELDS, *_REFUSED):
        raise malformed(f"{path}/type", f"it is one of {', '.join(_FIELDS)}")
    if kind in _REFUSED:
        raise refused(f"{path}/type", f"a format `{kind}`")
    for key, value in given.items():
        if key != "type" and key not in _FIELDS[kind]:
            raise malformed(f"{path}/{key}", f"a format `{kind}` has no such field")
        if key != "type" and _FIELDS[kind][key] not in (..., value):
            raise refused(f"{path}/{key}", f"`{key}` of `{json.dumps(value)[:40]}`")
    return given


def fields_of(form: Json, path: str) -> dict[str, Json]:
    """The fields of an object that say something: what is null is not there."""
    if not isinstance(form, dict):
        raise malformed(path, "it is an object")
    return {str(key): value for key, value in form.items() if value is not None}


def list_of(value: Json, path: str) -> list[Json]:
    if not isinstance(value, list) or not value:
        raise malformed(path, "it is a list that is not empty")
    if len(value) > MOST_PARTS:
        raise refused(path, f"more than {MOST_PARTS} parts")
    return value


def texts_of(value: Json, path: str) -> list[str]:
    return list(dict.fromkeys(text_of(text, f"{path}/{i}") for i, text in enumerate(list_of(value, path))))


def text_of(value: Json, path: str) -> str:
    if not isinstance(value, str) or not value:
        raise malformed(path, "it is a text that is not empty")
    if has_half_pair(value):
        raise malformed(path, "it has half of a surrogate pair, which is no text")
    return value


def excludes_of(form: Mapping[str, Json], path: str) -> list[str]:
    return texts_of(form["excludes"], f"{path}/excludes") if form.get("excludes") else []


def flag(form: Mapping[str, Json], key: str, path: str, *, usual: bool = False) -> bool:
    value = form.get(key, usual)
    if not isinstance(value, bool):
        raise malformed(f"{path}/{key}", "it is true or false")
    return value


def malformed(path: str, what: str) -> LegalizeError:
    return LegalizeError(
        "SGLC464", "`structural_tag` is no structural tag", note=f"at `{shown(path)}`: {shown(what)}",
        hint='{"type": "structural_tag", "format": {...}}, as xgrammar has it',
    )  # fmt: skip


def refused(path: str, what: str, hint: str = "leave it out") -> LegalizeError:
    comma = "" if what.endswith(",") else ","
    return LegalizeError(
        "SGLC465", f"`structural_tag` has {shown(what)}{comma} which cannot be enforced",
        note=f"at `{shown(path)}`", hint=hint,
    )  # fmt: skip
