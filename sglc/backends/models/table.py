"""The table of models: what LiteLLM knows of each, read from one file (`refresh` makes it)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

TABLE = Path(__file__).parent / "models.json"
# A letter of a row, and what it says in LiteLLM's words.
FLAGS: Mapping[str, tuple[str, Any]] = {
    "s": ("supports_response_schema", True),
    "i": ("supports_vision", True),
    "c": ("supports_prompt_caching", True),
    "r": ("supports_reasoning", True),
    "e": ("default_reasoning_effort", "none"),
    "p": ("supports_assistant_prefill", True),
    "f": ("supports_sampling_params", False),
    "m": ("supports_mid_conversation_system", True),
    "n": ("supports_system_messages", False),
    "t": ("mode", "completion"),
    "u": ("supports_function_calling", True),
}
# The names of back ends, and the vendors in LiteLLM's names.
VENDORS = {
    "openai": "openai", "openai-completions": "openai", "azure": "azure", "anthropic": "anthropic",
    "gemini": "gemini", "vertex": "vertex_ai", "mistral": "mistral",
}  # fmt: skip
# Of Vertex AI's models those whose protocol is spoken here.
_ON_VERTEX = ("vertex_ai/gemini", "vertex_ai/gemma", "vertex_ai/claude-")
_DATED = re.compile(r"[-@]\d{4}-?\d{2}-?\d{2}$")


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What is known of a model. Prices are US dollars of a million tokens, None where they are not known.

    The truth values stand in the order of `FLAGS`.
    """

    name: str  # in LiteLLM's words, the vendor before it
    schema: bool = False  # structured outputs
    images: bool = False
    caches: bool = False
    reasons: bool = False
    effort_none: bool = False  # reasons only when it is asked to
    prefill: bool = False
    fixed_sampling: bool = False  # takes no temperature, `top_p` or `top_k`
    late_system: bool = False  # takes system turns behind others
    no_system: bool = False  # takes no system turns
    completes: bool = False  # a model of the completions protocol
    tools: bool = False
    longest_prompt: int | None = None
    longest_answer: int | None = None
    least_kept: int | None = None  # tokens of the shortest prompt that is kept
    prices: tuple[float, float | None, float] | None = None  # of prompts, kept prompts, answers


def facts_of(target: str) -> ModelFacts | None:
    """What is known of a model by the name of its back end (`openai:gpt-4o`); None if nothing is.

    A dated version that is not listed is the model without its date.
    """
    kind, _, model = target.partition(":")
    if kind == "litellm":
        names = [model, f"openai/{model}", f"anthropic/{model}"]
    elif kind in VENDORS:
        names = [f"{VENDORS[kind]}/{model}"]
    else:
        return None
    rows = _table()["models"]
    if kind == "vertex" and not names[0].startswith(_ON_VERTEX):
        return None
    for name in [*names, *(_DATED.sub("", name) for name in names)]:
        if name in rows:
            return _facts(name, rows[name])
    return None


def known_models(kind: str) -> tuple[str, ...]:
    """The models of a back end that are listed, by their names there."""
    begin = f"{VENDORS[kind]}/"
    names = (name for name in _table()["models"] if name.startswith(begin))
    return tuple(name.removeprefix(begin) for name in names if kind != "vertex" or name.startswith(_ON_VERTEX))


def source() -> str:
    """Where the table comes from."""
    return f"{_table()['source']}, {_table()['date']}"


def _facts(name: str, row: list[Any]) -> ModelFacts:
    flags, prompt, answer, kept, *prices = row
    said: list[Any] = [letter in flags for letter in FLAGS]
    return ModelFacts(name, *[*said, prompt, answer, kept, tuple(prices) or None])


@cache
def _table() -> Any:
    return json.loads(TABLE.read_text(encoding="utf-8"))
