"""SGLang's twelve features of back ends, and what each of ours does with them: a program for each.

The table of docs/backends.md is made of this: what the compiler says of the program, and what the back end is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import sglc as sgl
from sglc.backends.registry import connect
from sglc.ir.target import Target
from tests.api_programs import PICTURE
from tests.backend_matrix import TARGETS as LOOKED_AT
from tests.backend_matrix import traced, verdict

API = (
    "openai:gpt-4o", "azure:gpt-4o", "anthropic:claude-opus-5-5", "vertex:gemini-2.5-flash",
    "litellm:openai/gpt-4o",
)  # fmt: skip
COLUMNS = ("local", "http", *API)
_HEADS = ("`local`", "`http://`, `RuntimeEndpoint`", *(f"`{name}`" for name in API))


@dataclass(frozen=True, slots=True)
class Feature:
    """`program` uses it, and `holds` says whether a result shows that. Runs with `streams` are streamed."""

    name: str
    program: Callable[[Any], None] | sgl.Function
    holds: Callable[[Any], bool]
    streams: bool = False


def target_of(column: str) -> Target:
    """What a column can do, by the tables alone."""
    return LOOKED_AT["`local`, `http://`"] if column in ("local", "http") else connect(column).target


def _plain(s: Any) -> None:
    s += sgl.user("Hi") + sgl.assistant(sgl.gen("x", max_tokens=4))


def _chosen(s: Any) -> None:
    s += sgl.user("Hi") + sgl.assistant(sgl.select("x", choices=["yes", "no"]))


def _template(s: Any) -> None:
    s += sgl.system("Be brief.") + sgl.user("Hi") + sgl.assistant(sgl.gen("y", max_tokens=4))
    s += sgl.user("So?") + sgl.assistant(sgl.gen("x", max_tokens=4))


def _seen(s: Any) -> None:
    s += sgl.user(sgl.image(PICTURE) + "What?") + sgl.assistant(sgl.gen("x", max_tokens=4))


def _typed(dtype: type) -> Callable[[Any], None]:
    def body(s: Any) -> None:
        s += sgl.user("Hi") + sgl.assistant(sgl.gen("x", dtype=dtype, max_tokens=6))

    return body


@sgl.function(num_api_spec_tokens=32)
def _together(s: Any) -> None:
    s += sgl.user("Hi") + sgl.assistant(
        "A:" + sgl.gen("y", stop="\n", max_tokens=8) + "\nB:" + sgl.gen("x", stop="\n", max_tokens=8)
    )


def _forked(s: Any) -> None:
    s += sgl.user("Hi")
    forks = s.fork(2)
    for fork in forks:
        fork += sgl.assistant(sgl.gen("x", max_tokens=4))
    s.join(forks)


def _told(s: Any) -> None:
    s += sgl.user("Hi") + sgl.assistant(sgl.gen("x", max_tokens=4, return_logprob=True))


def _usage(result: Any) -> bool:
    usage = result.usage
    return bool(usage.prompt == usage.cached + usage.computed > 0 and usage.completion > 0 and usage.calls == 1)


FEATURES = (
    Feature("`generate`", _plain, lambda result: isinstance(result["x"], str)),
    Feature("`generate_stream`", _plain, lambda result: isinstance(result["x"], str), streams=True),
    Feature("`select`", _chosen, lambda result: result["x"] in ("yes", "no")),
    Feature("chat template", _template, lambda result: len(result.messages()) == 5),
    Feature("images", _seen, lambda result: isinstance(result["x"], str)),
    Feature("`dtype=int`", _typed(int), lambda result: int(result["x"]) is not None),
    Feature("`dtype=float`", _typed(float), lambda result: float(result["x"]) is not None),
    Feature("`dtype=bool`", _typed(bool), lambda result: result["x"] in ("True", "False")),
    Feature("`dtype=str`", _typed(str), lambda result: result["x"].startswith('"')),
    Feature("speculative execution", _together, lambda result: isinstance(result["x"], str)),
    Feature("branches share a prompt", _forked, lambda result: len(result["x"]) == 2),
    Feature("token usage", _plain, _usage),
    Feature("log-probabilities", _told, lambda result: result.get_meta_info("x")["output_token_logprobs"]),
    Feature("retries", _plain, lambda result: isinstance(result["x"], str)),
)
# What is said of a column beside what the compiler says.
_KEPT = {"local": "computed once", "http": "computed once"}


def said_of(feature: Feature, column: str) -> str:
    """`yes`, `emulated`, or the code of the refusal; of prompts that are shared, how."""
    found = verdict(traced(feature.program), target_of(column))
    if feature.name == "branches share a prompt" and found == "yes":
        key = target_of(column).takes.cache_key
        return _KEPT.get(column, "the vendor is told which begin alike" if key else "sent for each")
    return found


def feature_table() -> str:
    """The features in Markdown."""
    rows: list[list[str]] = [["", *_HEADS], ["---"] * (len(COLUMNS) + 1)]
    rows += [[feature.name, *(said_of(feature, column) for column in COLUMNS)] for feature in FEATURES]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
