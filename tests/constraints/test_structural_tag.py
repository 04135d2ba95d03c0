"""Structural tags: what is let through is what they say, whatever the tokens; and what is no tag is refused."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sglc.errors import LegalizeError
from sglc.ir.grammar import structural_tag
from sglc.ir.grammar.structural_tag import begins_free, check_structural_tag, schemas_of
from sglc.ir.sampling import Sampling
from sglc.runtime.constraints.constraint import Constraints
from sglc.runtime.constraints.protocol import Constraint
from tests.constraints import random_tags
from tests.constraints.random_tags import BYTES, accepts, holds, problems
from tests.depth import at_depth, few

CALL = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 5}}, "required": ["city"]}
ROME = '{"city": "Rome"}'


def tag(begin: str, schema: Any = CALL, end: Any = "</f>") -> dict[str, Any]:
    content = schema if isinstance(schema, dict) and schema.get("type") in ("regex", "any_text") else None
    content = content or {"type": "json_schema", "json_schema": schema}
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def triggered(*triggers: str, tags: list[Any], **more: Any) -> dict[str, Any]:
    return {"type": "triggered_tags", "triggers": [*triggers], "tags": tags, **more}


def of(form: Any) -> Constraint:
    given = {"type": "structural_tag", "format": form}
    constraint = Constraints(BYTES, len(BYTES)).of(Sampling(structural_tag=json.dumps(given), canonical=False))
    assert constraint is not None
    return constraint


@pytest.mark.slow
def test_what_is_let_through_is_of_the_format() -> None:
    found: Counter[str] = Counter()
    cases = at_depth(60, 60, 1500)
    assert list(problems(7, cases, found)) == []
    assert found["tags"] == cases
    assert found["refused SGLC464"] + found["refused SGLC465"] < 0.3 * cases
    assert found["texts of some length"] > cases
    # Those that were changed are told apart both ways, and few that are valid are not accepted.
    accepted = found["changed texts, valid, accepted"]
    assert min(accepted, found["changed texts, invalid"]) > cases
    assert found["changed texts, valid"] < 0.02 * accepted
    assert found["changed texts, invalid, accepted"] == 0


FAULTS: dict[str, Callable[[str], str]] = {
    "free text goes on behind a marker": lambda rule: rule.partition(" & ~")[0],
    "an end may be missing": lambda rule: rule.replace(r" /\x{3c}\x{2f}f\x{3e}/", r" (/\x{3c}\x{2f}f\x{3e}/)?"),
    "bounds have no effect": lambda rule: rule.replace('"maximum": 20', '"maximum": 21'),
    "names are not required": lambda rule: rule.replace('"required": ["a"]', '"required": []'),
    "what is excluded is not": lambda rule: rule.replace("ab", "abab"),
}


@pytest.mark.parametrize("name", few(FAULTS, 1))
def test_a_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = structural_tag._written

    def faulty(text: str, body: Callable[[str], str]) -> str:
        return "\n".join(map(FAULTS[name], whole(text, body).split("\n")))

    monkeypatch.setattr(structural_tag, "_written", faulty)
    monkeypatch.setattr(random_tags, "CONSTRAINTS", Constraints(BYTES, len(BYTES)))
    structural_tag.tag_grammar.cache_clear()
    try:
        assert next(problems(7, 1000, Counter()), None) is not None
    finally:
        structural_tag.tag_grammar.cache_clear()


def test_markers_that_begin_one_another() -> None:
    """The shortest one decides, as it ends first; all tags that begin with it may follow."""
    form = triggered(
        "<f", "<fu", "<function=", tags=[tag("<f>"), tag("<fu>"), tag("<function=go>", end=["</f>", ";"])]
    )
    constraint = of(form)
    for text in ("", "<", "f <", f"<f>{ROME}</f>", f"a<fu>{ROME}</f>b", f"<function=go>{ROME};<f>{ROME}</f><"):
        assert accepts(constraint, text), text
        assert holds(form, text), text
    for text in (
        "<f",
        "<fu",
        "<fx",
        "<function",
        f"<function=go>{ROME}",
        f"<fu>{ROME}; ",
        "<f>{}</f>",
        f"<f >{ROME}</f>",
    ):
        assert not accepts(constraint, text), text
        assert not holds(form, text), text


def test_a_marker_is_split_over_tokens() -> None:
    """`<f`, `unc` and `>{"` are tokens that no marker ends with."""
    constraint = of(triggered("<func", tags=[tag("<func>")]))
    ids = {data: number for number, data in enumerate(BYTES)}
    state = constraint.start
    for piece in (b"a<", b"f", b"unc", b'>{"'):
        assert constraint.mask(state)[ids[piece]], piece
        state = constraint.advance(state, ids[piece])
    allowed = {BYTES[token] for token in np.flatnonzero(constraint.mask(state))}
    assert allowed == {b"c"}  # of `city`
    state = constraint.advance(constraint.start, ids[b"<f"])
    state = constraint.advance(state, ids[b"unc"])
    assert {BYTES[token] for token in np.flatnonzero(constraint.mask(state))} == {b">", b'>{"'}
    assert not constraint.accepting(state)


def test_both_notations_mean_the_same() -> None:
    older = {
        "type": "structural_tag",
        "triggers": ["<f"],
        "structures": [{"begin": "<f>", "schema": CALL, "end": "</f>"}],
    }
    newer = {"type": "structural_tag", "format": triggered("<f", tags=[tag("<f>")])}
    assert structural_tag.tag_grammar(json.dumps(older)) == structural_tag.tag_grammar(json.dumps(newer))
    assert list(map(json.loads, schemas_of(json.dumps(older)))) == [CALL]


def test_xgrammars_own_objects_are_taken() -> None:
    from xgrammar import structural_tag as xgrammar

    content = xgrammar.JSONSchemaFormat(json_schema=CALL)
    made = xgrammar.TriggeredTagsFormat(
        triggers=["<f"], tags=[xgrammar.TagFormat(begin="<f>", content=content, end="</f>")], at_least_one=True
    )
    constraint = of(made.model_dump(mode="json"))
    assert accepts(constraint, f"<f>{ROME}</f> so")
    assert not accepts(constraint, f"so <f>{ROME}</f>")


@pytest.mark.parametrize(
    ("form", "code", "note"),
    [
        ({"type": "grammar", "grammar": "root ::= \"a\""}, "SGLC465", "at `#/format/type`"),
        ({"type": "any_text", "max_tokens": 5}, "SGLC465", "at `#/format/max_tokens`"),
        ({"type": "json_schema", "json_schema": {}, "style": "qwen_xml"}, "SGLC465", "at `#/format/style`"),
        (triggered("<f", tags=[tag("<g>")]), "SGLC464", "at `#/format/tags/0/begin`: no trigger begins it"),
        (triggered("<f", "g", tags=[tag("<g<f>")]), "SGLC464",
         "at `#/format/tags/0/begin`: `g` ends before it has begun"),
        (triggered("<f", tags=[]), "SGLC464", "at `#/format/tags`: it is a list that is not empty"),
        (triggered("<f", tags=[tag("<f", {"type": "integer"}, "")]), "SGLC465",
         "at `#/format/tags/0/content/json_schema`"),
        (triggered("<f", tags=[tag("<f", {"type": "any_text"}, "")]), "SGLC465",
         "at `#/format/tags/0/content`"),
        (tag("<o>", {"type": "any_text", "excludes": ["/"]}, "</o>"), "SGLC464",
         "at `#/format/content`: `</o>` cannot be told from `/`, which it contains"),
        (tag("<o>", {"type": "object", "required": 1}), "SGLC455",
         "of the schema at `#/format/content/json_schema`: at `#/required`: `required` is a list of names"),
        (tag("<o>", {"type": "array", "uniqueItems": True, "items": {"type": "string"}}), "SGLC456",
         "of the schema at `#/format/content/json_schema`: at `#/uniqueItems`"),
        (tag("<o>", {"type": "regex", "pattern": "(a)\\1"}), "SGLC451", None),
        ({"type": "sequence", "elements": [{"type": "any_text"}, {"type": "const_string", "value": "a"}]},
         "SGLC465", "at `#/format/elements/0`"),
        ({"type": "repeat", "min": 2, "max": 1, "content": tag("<f>")}, "SGLC464",
         "at `#/format`: `min` is at most `max`, which is at least 1, or -1 for no bound"),
        ({"type": "tga"}, "SGLC464", None),
        ({"type": "any_text", "exclude": []}, "SGLC464",
         "at `#/format/exclude`: a format `any_text` has no such field"),
        ({"type": "tag", "begin": {"type": "token", "token": 5}, "content": {}, "end": "a"}, "SGLC465",
         "at `#/format`"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_at_its_place(form: Any, code: str, note: str | None) -> None:
    with pytest.raises(LegalizeError) as refused:
        check_structural_tag(json.dumps({"type": "structural_tag", "format": form}))
    assert refused.value.code == code
    assert note is None or refused.value.note == note


@pytest.mark.parametrize(
    "text", ["{", "[]", "{}", '{"type": "x", "format": {}}', '{"format": 1}', "[" * 100_000]
)
def test_what_is_no_tag_is_refused(text: str) -> None:
    with pytest.raises(LegalizeError) as refused:
        check_structural_tag(text)
    assert refused.value.code == "SGLC464"


def test_without_llguidance_the_same_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structural_tag, "find_spec", lambda name: None)
    check_structural_tag(json.dumps({"format": tag("<f>")}))
    with pytest.raises(LegalizeError):
        check_structural_tag(json.dumps({"format": tag("<f>", {"type": 1})}))


def test_what_stands_before_a_trigger_is_free() -> None:
    tags = [tag("<f>")]
    older = {"structures": [{"begin": "<f>", "schema": CALL, "end": "</f>"}], "triggers": ["<f>"]}
    free = triggered("<f>", tags=tags)
    assert begins_free(json.dumps(older))
    assert begins_free(json.dumps({"format": free}))
    held: list[Any] = [
        {**free, "at_least_one": True},
        {"type": "or", "elements": [free]},
        tags[0],
        [],
        None,
        {},
    ]
    for form in held:
        assert not begins_free(json.dumps({"format": form}))
    assert not any(map(begins_free, ("", "{", "[]", "1", "[" * 100_000)))
