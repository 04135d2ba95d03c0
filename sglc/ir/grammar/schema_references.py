"""What references of a JSON schema mean: pointers, anchors and identifiers, as far as they stay inside it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import unquote, urldefrag, urljoin

from sglc.ir.grammar.schema_drafts import Ignore, draft_of, identifier_in, in_draft, stands_alone
from sglc.ir.grammar.schema_leaves import Json, escaped, malformed, refused


@dataclass(slots=True)
class References:
    """Of the schema `root`. A place is a JSON pointer: `#/items`; `ignore` hears what has no effect there."""

    root: Json
    ignore: Ignore
    _draft: int = field(init=False)
    _parts: dict[str, Json] = field(default_factory=dict)  # of a place, in the draft
    _identifiers: dict[str, str] = field(default_factory=dict)  # of a place, with what stands before it
    _anchors: dict[str, str] = field(default_factory=dict)  # of a place

    def __post_init__(self) -> None:
        self._draft = draft_of(self.root)
        self._identifiers["#"] = ""
        key = identifier_in(self._draft)
        stack: list[tuple[Json, str, str]] = [(self.root, "#", "")]
        while stack:
            part, path, base = stack.pop()
            if isinstance(part, list):
                stack += ((each, f"{path}/{i}", base) for i, each in enumerate(part))
            elif isinstance(part, dict):
                name = None if stands_alone(part, self._draft) else part.get(key)
                if isinstance(name, str) and not name.startswith("#"):
                    base = self._identifiers[path] = _joined(base, name, f"{path}/{key}")[0]
                elif isinstance(name, str):
                    self._anchors[path] = name[1:]
                for anchor in ("$anchor", "$dynamicAnchor"):
                    if isinstance(name := part.get(anchor), str):
                        self._anchors[path] = name
                stack += (
                    (each, f"{path}/{escaped(name)}", base)
                    for name, each in part.items()
                    if name not in ("enum", "const", "default", "examples")
                )

    @property
    def embedded(self) -> bool:
        """Whether a part has an identifier of its own: what a reference means depends on where it stands."""
        return len(self._identifiers) > 1

    def resolved(self, target: Json, at: str) -> tuple[Json, str]:
        """The part of the schema that a reference at `at` means, and its place.

        Raises:
            LegalizeError: SGLC455 there is none; SGLC456 it is not inside the schema.
        """
        if not isinstance(target, str):
            raise malformed(at, "`$ref` is a text")
        start = self._around(at)
        uri, fragment = _joined(self._identifiers[start], target, at)
        if not target.startswith("#"):
            found = [place for place, name in self._identifiers.items() if name == uri]
            if not found:
                raise refused(at, f"`$ref` to `{target}`, which is not inside the schema,")
            start = found[0]
        if fragment and not fragment.startswith("/"):
            anchors = [
                place
                for place, name in self._anchors.items()
                if name == fragment and self._around(place) == start
            ]
            if not anchors:
                raise malformed(at, f"`{target}` is not there")
            fragment, start = "", anchors[0]
        part, path = self.root, "#"
        for step in [*start.split("/")[1:], *unquote(fragment).split("/")[1:]]:
            name = step.replace("~1", "/").replace("~0", "~")
            try:
                part = part[_number(name)] if isinstance(part, list) else part[name]
            except (KeyError, IndexError, TypeError):
                raise malformed(at, f"`{target}` is not there") from None
            path = f"{path}/{step}"
        if path not in self._parts:
            self._parts[path] = in_draft(part, self._draft, path, self.ignore)
        return self._parts[path], path

    def followed(self, schema: Json, path: str) -> tuple[Json, str]:
        """What a schema that is nothing but a reference leads to; the schema itself if it is none.

        Raises:
            LegalizeError: as `resolved`; SGLC455 it leads to itself.
        """
        seen = {path}
        while isinstance(schema, dict) and {*schema} == {"$ref"}:
            at = f"{path}/$ref"
            schema, path = self.resolved(schema["$ref"], at)
            if path in seen:
                raise malformed(at, "a reference that leads to itself")
            seen.add(path)
        return schema, path

    def _around(self, path: str) -> str:
        """The place of the innermost part with an identifier that `path` is in."""
        return max((place for place in self._identifiers if f"{path}/".startswith(f"{place}/")), key=len)


def _number(step: str) -> int:
    """A step into a list; one that leads nowhere if it is no number as pointers write them."""
    return int(step) if re.fullmatch("0|[1-9][0-9]{0,8}", step) else 10**9


def _joined(base: str, name: str, at: str) -> tuple[str, str]:
    try:
        uri, fragment = urldefrag(urljoin(base, name))
    except ValueError:
        raise malformed(at, f"`{name}` is no URI") from None
    return uri, fragment
