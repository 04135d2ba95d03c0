"""The recorded answer of a generation, given only if it is asked what it was asked then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglc.errors import RecordingError
from sglc.execution.answers.prompts import Inputs
from sglc.ir.plan.events import GenDone, SelectDone
from sglc.ir.plan.segment import GenNode, SelectNode
from sglc.observe.replay.calls import AGAIN
from sglc.observe.replay.tape import Answered, Json, answer_of, error_of

_SHOWN = 40  # characters before and behind the first difference


def given_to(
    answered: Answered, node: GenNode | SelectNode, index: int, inputs: Inputs
) -> GenDone | SelectDone:
    """What a generation was answered.

    Raises:
        RecordingError: SGLC420, it was asked something else.
        SglcError: it failed.
    """
    answered.used = True
    line = answered.line
    if line.get("hash", inputs.hash) != inputs.hash:
        raise _other_inputs(node, line, inputs)
    if "error" in line:
        raise error_of(line["error"])
    return answer_of(line["answer"], index)


def _other_inputs(node: GenNode | SelectNode, line: Json, inputs: Inputs) -> RecordingError:
    name = node.site.name
    if "prompt" not in line:
        what, difference = "another prompt, or with other options,", "of which a journal keeps only a digest"
    elif line["prompt"] != inputs.prompt:
        what, difference = "another prompt", _difference(line["prompt"], inputs.prompt)
    elif line["options"] != inputs.options:
        what, difference = "other options", _changed(line["options"], inputs.options)
    else:
        what, difference = "another prompt", "both read the same: markup in one is ordinary text in the other"
    return RecordingError(
        "SGLC420", f"`{name}` is asked with {what} than in the recording", node.loc,
        note=f"site `{node.site}`, {difference}", hint=AGAIN,
    )  # fmt: skip


def _difference(old: str, new: str) -> str:
    """Where two texts begin to differ, and what stands there."""
    at = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    line = old.count("\n", 0, at) + 1
    before = max(0, at - _SHOWN)

    def shown(text: str) -> str:
        end = at + _SHOWN
        return ("..." if before else "") + repr(text[before:end]) + ("..." if end < len(text) else "")

    return f"from character {at} (line {line}) on\n  recorded: {shown(old)}\n  now:      {shown(new)}"


def _changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    keys = [key for key in dict.fromkeys((*old, *new)) if old.get(key) != new.get(key)]
    return "; ".join(f"`{key}` was {old.get(key)!r} and is {new.get(key)!r}" for key in keys)
