"""Structural tags: free text in which a marker begins a piece of a form, as a grammar of llguidance.

The notation is xgrammar's, and the older one of SGLang and vLLM with `structures` and `triggers`. Free text
goes up to the first place where a marker ends, be that a trigger or what closes the text; so where it ends is
known with its last byte. Each schema is enforced as `json_schema` enforces it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec

from sglc.errors import LegalizeError, shown
from sglc.ir.grammar.json_schema import enforced
from sglc.ir.grammar.rust_regex import literal, rust_regex
from sglc.ir.grammar.schema_grammar import HEADER, exact_schema, problem_of
from sglc.ir.grammar.tag_fields import (
    MOST_PARTS,
    Json,
    Tag,
    by_trigger,
    check_markers,
    checked,
    excludes_of,
    fields_of,
    flag,
    list_of,
    malformed,
    refused,
    tag_at,
    tag_of,
    tags_of,
    text_of,
    texts_of,
)
from sglc.ir.remembered import remembered

_ANY = "(?s:.*)"
_FREE = ("",)  # closers: free text may follow
_ENDS_ITSELF = ("object", "array", "string", "boolean", "null")  # kinds of values that nothing makes longer


@remembered(128)
def tag_grammar(text: str) -> str:
    """The structural tag `text` as a grammar of llguidance. The newest are kept.

    Raises:
        LegalizeError: SGLC464 it is none; SGLC465 it has a part that cannot be enforced; as `json_grammar` a
            schema in it, and as `compile_regex` a pattern.
    """
    grammar = _written(text, exact_schema)
    if problem := problem_of(grammar):
        raise refused("#", f"what no text satisfies, or no automaton can do ({problem}),")
    return grammar


def check_structural_tag(text: str) -> None:
    """Refuse a structural tag that cannot be enforced, as far as can be told with what is installed.

    Raises:
        LegalizeError: as `tag_grammar`.
    """
    if find_spec("llguidance") is None:
        _written(text, lambda schema: json.dumps(enforced(schema).form))
    else:
        tag_grammar(text)


@remembered(128)
def schemas_of(text: str) -> tuple[str, ...]:
    """The schemas in a structural tag, each once. Raises as `check_structural_tag`."""
    found: dict[str, None] = {}
    _written(text, lambda schema: found.setdefault(schema) or "{}")
    return tuple(found)


@remembered(128)
def begins_free(text: str) -> bool:
    """Whether any text may stand before what the triggers of the structural tag `text` begin."""
    try:
        tag = json.loads(text)
        form = tag.get("format", {"type": "triggered_tags"})  # else it is an older one
        return form["type"] in ("triggered_tags", "dispatch") and not form.get("at_least_one")
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError):
        return False  # it is refused elsewhere


def _written(text: str, schema_body: Callable[[str], str]) -> str:
    try:
        tag = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise malformed("#", f"it is no JSON: {error}") from None
    writer = _Writer(schema_body)
    try:
        start = writer.whole(tag)
    except RecursionError:
        raise refused("#", "formats that are nested too deep,") from None
    return "\n".join([HEADER, f"start: {start}", *(f"{name}: {rule}" for name, rule in writer.rules.items())])


@dataclass(slots=True)
class _Writer:
    """Writes formats as rules.

    What closes a format (`closers`) is written with it, because free text ends with what closes it: texts, one
    of which follows; () at the end of all. Where something else follows (None, `_FREE`) free text cannot stand.
    """

    schema_body: Callable[[str], str]
    rules: dict[str, str] = field(default_factory=dict)
    schemas: dict[str, str] = field(default_factory=dict)  # the rule of each schema

    def whole(self, tag: Json) -> str:
        """The rule of a structural tag."""
        tag = fields_of(tag, "#")
        if tag.get("type", "structural_tag") != "structural_tag":
            raise malformed("#/type", "its `type` is `structural_tag`")
        if {*tag} - {"type"} == {"format"}:
            return self._format(tag["format"], "#/format", ())
        if {*tag} - {"type"} == {"structures", "triggers"}:
            tags = [
                self._older(structure, f"#/structures/{i}")
                for i, structure in enumerate(list_of(tag["structures"], "#/structures"))
            ]
            triggers = texts_of(tag["triggers"], "#/triggers")
            return self._free("#/triggers", by_trigger(tags, triggers), triggers, (), (), loop=True)
        raise malformed("#", "it has a `format`, or `structures` and `triggers`")

    def _older(self, structure: Json, path: str) -> Tag:
        structure = fields_of(structure, path)
        if {*structure} - {"end"} != {"begin", "schema"}:
            raise malformed(path, "a structure has `begin`, `schema` and `end`")
        content = {"type": "json_schema", "json_schema": structure["schema"]}
        return tag_of(structure["begin"], content, structure.get("end", ""), path)

    def _format(self, form: Json, path: str, closers: tuple[str, ...] | None) -> str:
        """A format, and what closes it."""
        form = checked(form, path)
        match form["type"]:
            case "const_string":
                return f"/{literal(text_of(form.get('value'), f'{path}/value'))}/{_closed(closers)}"
            case "json_schema":
                return self._schema(form, path, closers)
            case "any_text":
                return self._free(path, {}, (), excludes_of(form, path), closers, loop=False)
            case "regex":
                return self._regex(form, path, closers)
            case "sequence":
                *first, last = list_of(form.get("elements"), f"{path}/elements")
                made = [self._format(part, f"{path}/elements/{i}", None) for i, part in enumerate(first)]
                return " ".join([*made, self._format(last, f"{path}/elements/{len(first)}", closers)])
            case "or":
                parts = enumerate(list_of(form.get("elements"), f"{path}/elements"))
                return _either(self._format(part, f"{path}/elements/{i}", closers) for i, part in parts)
            case "tag":
                return self._tag(tag_at(form, path), closers)
            case "triggered_tags":
                return self._triggered(form, path, closers)
            case "tags_with_separator":
                return self._separated(form, path) + _closed(closers)
            case "dispatch":
                return self._dispatch(form, path, closers)
            case _:
                return self._repeated(form, path) + _closed(closers)

    def _schema(self, form: Mapping[str, Json], path: str, closers: tuple[str, ...] | None) -> str:
        path += "/json_schema"
        given = form.get("json_schema")
        schema = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
        try:
            if schema not in self.schemas:
                body = self.schema_body(schema)
                name = self.schemas[schema] = f"schema{len(self.schemas)}"
                self.rules[name] = f"%json {body}"
            if closers == _FREE and enforced(schema).form.get("type") not in _ENDS_ITSELF:
                raise refused(path, "a value that what follows could make longer", "give its tag an `end`")
        except LegalizeError as error:
            if error.code in ("SGLC455", "SGLC456", "SGLC450", "SGLC451"):
                inside = (
                    f"of the schema at `{shown(path)}`: {error.note}" if error.note else f"at `{shown(path)}`"
                )
                raise LegalizeError(error.code, error.message, note=inside, hint=error.hint) from None
            raise
        return self.schemas[schema] + _closed(closers)

    def _regex(self, form: Mapping[str, Json], path: str, closers: tuple[str, ...] | None) -> str:
        if closers is None or closers == _FREE:
            raise _open(path, "a `regex`")
        pattern = rust_regex(text_of(form.get("pattern"), f"{path}/pattern"))
        if not closers:
            return self._rule("TEXT", f"/{pattern}/")
        check_markers(closers, closers, path)
        ends = _one_of(closers)
        return self._rule("TEXT", f"/(?:{pattern})(?:{ends})/ & ~/{_ANY}(?:{ends})(?s:.+)/")

    def _tag(self, tag: Tag, closers: tuple[str, ...] | None, *, behind: str = "") -> str:
        """A tag and what closes it, without `behind`, with which it begins."""
        rest = tag.begin[len(behind) :]
        content = self._format(tag.content, f"{tag.path}/content", tag.ends or closers)
        made = content + _closed(closers) if tag.ends else content
        return f"/{literal(rest)}/ {made}" if rest else made

    def _triggered(self, form: Mapping[str, Json], path: str, closers: tuple[str, ...] | None) -> str:
        tags, triggers = tags_of(form, path), texts_of(form.get("triggers"), f"{path}/triggers")
        parts = by_trigger(tags, triggers)
        loop = not flag(form, "stop_after_first", path)
        excludes = excludes_of(form, path)
        if not flag(form, "at_least_one", path):
            return self._free(path, parts, triggers, excludes, closers, loop=loop)
        # Right away, as in xgrammar.
        first = _either(self._tag(tag, _FREE if loop else closers) for tag in tags)
        if not loop:
            return first
        return f"{first} {self._free(path, parts, triggers, excludes, closers, loop=True)}"

    def _separated(self, form: Mapping[str, Json], path: str) -> str:
        separator = form.get("separator")
        if not isinstance(separator, str):
            raise malformed(f"{path}/separator", "it is a text")
        behind = None if separator else _FREE
        one = self._rule("tags", _either(self._tag(tag, behind) for tag in tags_of(form, path)))
        between = f"/{literal(separator)}/ " if separator else ""
        made = one if flag(form, "stop_after_first", path) else f"{one} ({between}{one})*"
        return f"({made})" if flag(form, "at_least_one", path) else f"({made})?"

    def _dispatch(self, form: Mapping[str, Json], path: str, closers: tuple[str, ...] | None) -> str:
        parts: dict[str, list[Tag]] = {}
        for i, rule in enumerate(list_of(form.get("rules"), f"{path}/rules")):
            at = f"{path}/rules/{i}"
            if not isinstance(rule, list) or len(rule) != 2:
                raise malformed(at, "a rule is a list of a text and a format")
            begin = text_of(rule[0], f"{at}/0")
            parts.setdefault(begin, []).append(Tag(begin, rule[1], (), at))
        loop = flag(form, "loop", path, usual=True)
        return self._free(path, parts, [*parts], excludes_of(form, path), closers, loop=loop)

    def _repeated(self, form: Mapping[str, Json], path: str) -> str:
        content = self._format(form.get("content"), f"{path}/content", _FREE)
        signs = {"optional": "?", "plus": "+", "star": "*"}
        if form["type"] in signs:
            return f"({content}){signs[form['type']]}"
        least, most = form.get("min"), form.get("max")
        for value in (least, most):
            if not isinstance(value, int) or isinstance(value, bool):
                raise malformed(path, "`min` and `max` are counts")
        assert isinstance(least, int)
        assert isinstance(most, int)
        if least < 0 or (most != -1 and most < max(least, 1)):
            raise malformed(path, "`min` is at most `max`, which is at least 1, or -1 for no bound")
        if max(least, most) > MOST_PARTS:
            raise refused(path, f"more than {MOST_PARTS} repeats")
        return f"({content}){{{least},{most if most >= 0 else ''}}}"

    def _free(
        self,
        path: str,
        parts: Mapping[str, Sequence[Tag]],
        triggers: Sequence[str],
        excludes: Sequence[str],
        closers: tuple[str, ...] | None,
        *,
        loop: bool,
    ) -> str:
        """Free text in which each of `triggers` begins one of its `parts`."""
        if closers is None or closers == _FREE:
            raise _open(path, "free text")
        live = [*parts, *closers]
        check_markers(live, [*live, *excludes], path)
        markers = _one_of([*live, *triggers, *excludes])
        alone = f" & ~/{_ANY}(?:{markers})(?s:.+)/" if markers else ""
        after = _FREE if loop else closers
        begun = [
            self._rule("UPTO", f"/{_ANY}{literal(trigger)}/{alone}")
            + f" {_either(self._tag(tag, after, behind=trigger) for tag in tags)}"
            for trigger, tags in parts.items()
        ]
        if closers:
            last = self._rule("UPTO", f"/{_ANY}(?:{_one_of(closers)})/{alone}")
        else:
            last = self._rule("TEXT", f"/{_ANY}/" + (f" & ~/{_ANY}(?:{markers}){_ANY}/" if markers else ""))
        if not begun:
            return last
        if loop:
            return self._rule("text", f"({' | '.join(begun)})* {last}")
        return self._rule("text", f"{last} | {_either(begun)}")

    def _rule(self, name: str, written: str) -> str:
        made = f"{name}{len(self.rules)}"
        self.rules[made] = written
        return made


def _closed(closers: tuple[str, ...] | None) -> str:
    return f" /{_one_of(closers)}/" if closers and closers != _FREE else ""


def _one_of(texts: Iterable[str]) -> str:
    return "|".join(map(literal, dict.fromkeys(texts)))


def _either(parts: Iterable[str]) -> str:
    return f"({' | '.join(parts)})"


def _open(path: str, what: str) -> LegalizeError:
    return refused(path, f"{what} which something else than a tag's `end` follows,", "put it into a tag")
