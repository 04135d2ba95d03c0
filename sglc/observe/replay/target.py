"""A back end's capabilities as a recording keeps them, and the back end of a replay, which has no model."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from hashlib import sha256
from typing import Any

from sglc.errors import UsageError
from sglc.ir.target import EVERYTHING, ControlText, Objects, Takes, Target
from sglc.runtime.tokenizer.chat_template import ChatTemplate


class RecordedTokenizer:
    """What compiling needs of a tokenizer: its template and its control tokens.

    Its vocabulary was not recorded: `encode` gives bytes, so estimates of lengths are those of bytes.
    """

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.hash: str = data["hash"]
        self.bos_id: int | None = data["bos_id"]
        self.eos_ids: tuple[int, ...] = tuple(data["eos_ids"])
        self.template: str | None = data["template"]
        self.named: Mapping[str, str] = data["named"]
        self.has_template = self.template is not None
        self._control: Mapping[str, int] | None = data["control"]
        self._cut = re.compile("|".join(map(re.escape, sorted(self._control or (), key=len, reverse=True))))
        self._chat = None if self.template is None else ChatTemplate(self.template, self.named)

    @property
    def control(self) -> Mapping[int, str] | None:
        """How each control token is written; None: all markup is control text."""
        return None if self._control is None else {id_: text for text, id_ in self._control.items()}

    def encode(self, text: str) -> list[int]:
        return list(text.encode("utf-8", "surrogatepass"))

    encode_within = encode

    def cut(self, text: str) -> int:
        return len(text)

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(ids).decode("utf-8", "replace")

    def token_bytes(self) -> Sequence[bytes]:
        return [bytes([value]) for value in range(256)]

    def split_control(self, markup: str) -> tuple[str | ControlText, ...]:
        if self._control is None:
            return (ControlText(markup, (0,)),) if markup else ()
        parts: list[str | ControlText] = []
        done = 0
        for match in self._cut.finditer(markup) if self._control else ():
            parts += [markup[done : match.start()], ControlText(match[0], (self._control[match[0]],))]
            done = match.end()
        parts.append(markup[done:])
        return tuple(part for part in parts if part)

    def render(self, messages: Objects, *, generate: bool, tools: Objects | None = None) -> str:
        assert self._chat is not None
        return self._chat.render(messages, generate=generate, tools=tools)


def described(target: Target) -> tuple[str, dict[str, Any]]:
    """A target as plain data, and the short name of that.

    Raises:
        UsageError: SGLC054, its tokenizer does not say what its template is.
    """
    # What targets are compared by; the tokenizer says below what it is.
    told = [one.name for one in fields(target) if one.compare and one.name != "tokenizer"]
    data = {name: getattr(target, name) for name in told}
    data["name"] = re.sub(r"//[^/@]*@", "//", target.name)  # no password of a server
    hottest = target.takes.temperature
    data["takes"] = {**asdict(target.takes), "temperature": "inf" if hottest == math.inf else hottest}
    tokenizer: Any = target.tokenizer
    if tokenizer is not None:
        template = getattr(tokenizer, "template", None)
        if tokenizer.has_template and template is None:
            raise UsageError(
                "SGLC054",
                f"runs on `{target.name}` cannot be recorded: its tokenizer does not show its template",
            )
        control: Mapping[int, str] | None = getattr(tokenizer, "control", {})
        data["tokenizer"] = {
            "hash": tokenizer.hash, "bos_id": tokenizer.bos_id, "eos_ids": list(tokenizer.eos_ids),
            "template": template, "named": dict(getattr(tokenizer, "named", {})),
            "control": None if control is None else {text: id_ for id_, text in control.items()},
        }  # fmt: skip
    text = json.dumps(data, sort_keys=True)
    return sha256(text.encode()).hexdigest()[:12], json.loads(text)


def target_of(data: Mapping[str, Any]) -> Target:
    """The target that `described` wrote, under the same name."""
    given = {name: data[name] for name in data if name not in ("takes", "tokenizer")}
    said = data["takes"]
    lists = {name: tuple(value) for name, value in said.items() if isinstance(value, list)}
    hottest = None if said["temperature"] is None else float(said["temperature"])
    takes = Takes(**{**said, "temperature": hottest, **lists})
    tokenizer = RecordedTokenizer(data["tokenizer"]) if "tokenizer" in data else None
    if given.get("passes") is not None:
        given["passes"] = tuple(given["passes"])
    # What takes everything is known by that very object.
    return Target(tokenizer=tokenizer, takes=EVERYTHING if takes == EVERYTHING else takes, **given)
