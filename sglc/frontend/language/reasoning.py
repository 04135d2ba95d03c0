"""Reasoning and answer apart: what models with thinking tags write, cut at the tags.

The tags themselves belong to neither. The text is read piece by piece, so a stream and the whole text give
the same two parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sglc.errors import Loc, TraceError
from sglc.ir.grammar.call_parser import held_back


@dataclass(frozen=True, slots=True)
class Tags:
    """How a family of models marks its reasoning; with `inside` the text begins in it, without a tag."""

    begin: str
    end: str
    inside: bool = False


_THINK = Tags("<think>", "</think>")
_THINKING = Tags("<think>", "</think>", inside=True)

# By the names that SGLang's `model_type` has.
MODELS = {
    **dict.fromkeys(("deepseek-r1", "minimax", "qwen3-thinking", "step3", "step3p5"), _THINKING),
    **dict.fromkeys(("deepseek-v3", "glm45", "interns1", "kimi_k2", "mimo", "nemotron_3", "qwen3"), _THINK),
    "kimi": Tags("◁think▷", "◁/think▷"),
    "mistral": Tags("[THINK]", "[/THINK]"),
}


def tags_of(model_type: object, loc: Loc) -> Tags:
    """The tags of a family of models.

    Raises:
        TraceError: SGLC117, a name that is unknown, or of models that mark reasoning in another way.
    """
    known = MODELS.get(model_type.lower()) if isinstance(model_type, str) else None
    if known is None:
        raise TraceError(
            "SGLC117", f"`separate_reasoning` knows no tags of `{model_type}`", loc,
            note=f"known: {', '.join(sorted(MODELS))}",
            hint="models that write reasoning between tags go by the name of one that uses the same tags",
        )  # fmt: skip
    return known


class Splitter:
    """The two parts of a text that comes in pieces. What may be the beginning of a tag is held back."""

    def __init__(self, tags: Tags) -> None:
        self._tags = tags
        self._rest = ""
        # "start": a begin tag may yet come; "inside": up to the end tag; "answer": all the rest.
        self._place = "start"

    def feed(self, piece: str) -> tuple[str, str]:
        """More text; gives what is now known to be (reasoning, answer)."""
        self._rest += piece
        reasoning, answer = "", ""
        if self._place == "start":
            self._begin()
        if self._place == "inside":
            reasoning = self._take_inside()
        if self._place == "answer":
            answer, self._rest = self._rest, ""
        return reasoning, answer

    def end(self) -> tuple[str, str]:
        """No more text comes: what was held back."""
        rest, self._rest = self._rest, ""
        inside = self._place == "inside" or (self._place == "start" and self._tags.inside)
        return (rest, "") if inside else ("", rest)

    def _begin(self) -> None:
        # A begin tag counts only at the beginning, white space before it aside: a text may speak of tags.
        tag = self._tags.begin
        text = self._rest.lstrip()
        if text.startswith(tag):
            self._rest, self._place = text[len(tag) :], "inside"
        elif not tag.startswith(text):
            self._place = "inside" if self._tags.inside else "answer"

    def _take_inside(self) -> str:
        text, tag = self._rest, self._tags.end
        at = text.find(tag)
        if at >= 0:
            self._rest, self._place = text[at + len(tag) :], "answer"
            return text[:at]
        held = held_back(text, tag)
        self._rest = text[len(text) - held :]
        return text[: len(text) - held]


def split(tags: Tags, pieces: Iterable[str]) -> tuple[str, str]:
    """(reasoning, answer) of a whole text."""
    splitter = Splitter(tags)
    parts = [*map(splitter.feed, pieces), splitter.end()]
    return "".join(reasoning for reasoning, _ in parts), "".join(answer for _, answer in parts)


@dataclass(frozen=True, slots=True)
class Share:
    """One of the two parts of a text: what a variable gets of a generation."""

    tags: Tags
    reasoning: bool

    def __call__(self, text: str) -> str:
        return split(self.tags, (text,))[0 if self.reasoning else 1]


class ShareReader:
    """The pieces of one part, as the text's own come."""

    def __init__(self, share: Share) -> None:
        self._splitter = Splitter(share.tags)
        self._part = 0 if share.reasoning else 1

    def pieces(self, come: Sequence[str], *, ended: bool) -> list[str]:
        """What is new of the part, without empty pieces."""
        new = [self._splitter.feed(piece)[self._part] for piece in come]
        if ended:
            new.append(self._splitter.end()[self._part])
        return [piece for piece in new if piece]
