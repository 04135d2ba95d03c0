"""What a program says ahead of one request of it, for engines that ask: advice, which changes no answer.

On the wire it is the envelope that SGLang and vLLM have agreed on (`kv_hints`, version 0.1), whose actions have
types and versions of their own: `kv.retain`, what comes back and when, and `kv.deref`, what does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

HINTS_VERSION = 1
_PROTOCOL = "0.1"
_ACTION = f"sglc.{HINTS_VERSION}"
_LONGEST = 256  # characters of a name
_MOST = 4096  # streams that are over, of one request
_MOST_TOKENS = 1 << 31


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """What is known of a request and of what follows it.

    Fields:
        program: whose request it is; `parent`: the program that called that one, "" for none.
        order: programs of one client begin in this order.
        stream: what the prompt and its answer are called by those that go on from them; "": nobody does.
        after: the stream that the prompt begins with.
        over: streams that nobody goes on from any more.
        leaves: where the program waits before it goes on from the answer: a function's generation, or a tool.
        most: tokens of the answer, as far as its form or its limit tells.
        behind: tokens still to come behind the answer, on the longest chain of generations.
    """

    program: str
    parent: str = ""
    order: int = 0
    stream: str = ""
    after: str = ""
    over: tuple[str, ...] = ()
    leaves: tuple[str, str] = ("", "")
    most: int = 0
    behind: int = 0


def envelope(hints: Hints) -> dict[str, Any]:
    """Hints as `kv_hints` has them."""
    actions = [
        _action(
            hints.stream or hints.program,
            "kv.retain",
            {"program": hints.program, "parent": hints.parent, "stream": hints.stream, "after": hints.after,
             "leaves": list(hints.leaves), "behind": hints.behind},
        )
    ]  # fmt: skip
    if hints.over:
        actions.append(_action(hints.program, "kv.deref", {"streams": list(hints.over)}))
    return {"protocol_version": _PROTOCOL, "message_id": hints.program, "actions": actions}


def _action(name: str, kind: str, payload: Mapping[str, Any]) -> dict[str, Any]:
    return {"action_id": name, "action_type": kind, "action_version": _ACTION, "payload": payload}


def read_envelope(given: Any) -> Hints | None:
    """The hints of an envelope; None of one without any that are known. What is malformed is none."""
    known = {}
    for action in _list(given, "actions"):
        if _field(action, "action_version") == _ACTION:
            known[_text(action, "action_type")] = _field(action, "payload")
    kept, over = known.get("kv.retain"), known.get("kv.deref")
    streams = tuple([name for name in _list(over, "streams")[:_MOST] if _is_name(name)])
    if kept is None and not streams:
        return None
    leaves = _list(kept, "leaves")
    behind = _field(kept, "behind")
    return Hints(
        program=_text(kept, "program"),
        parent=_text(kept, "parent"),
        stream=_text(kept, "stream"),
        after=_text(kept, "after"),
        over=streams,
        leaves=(leaves[0], leaves[1]) if len(leaves) == 2 and all(map(_is_name, leaves)) else ("", ""),
        behind=behind if type(behind) is int and 0 <= behind < _MOST_TOKENS else 0,
    )


def _field(given: Any, name: str) -> Any:
    return given.get(name) if isinstance(given, Mapping) else None


def _list(given: Any, name: str) -> list[Any]:
    found = _field(given, name)
    return found if isinstance(found, list) else []


def _text(given: Any, name: str) -> str:
    found = _field(given, name)
    return found if _is_name(found) else ""


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _LONGEST and value.isprintable()
