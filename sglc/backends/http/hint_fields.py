"""Hints as engines take them: fields of a request, by dialect and version. Pure; none changes an answer.

What an engine does not know it may refuse, so a dialect is spoken where the server says that it takes it, or
where the user names it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sglc.ir.plan.hints import Hints, envelope

_TIERS = 1 << 10  # within a program: by the steps of its longest chain that are still to come
_TOKENS = 8  # of such a step
_MOST_PROGRAMS = 1 << 20  # then their order begins anew: 31 bits hold it


def urgency(hints: Hints) -> int:
    """A number for a queue in which lower ones go first: programs in their order, then long chains."""
    left = min((hints.most + hints.behind) // _TOKENS, _TIERS - 1)
    return hints.order % _MOST_PROGRAMS * _TIERS - left


def sglc(hints: Hints) -> dict[str, Any]:
    """Our own server, version 1: the envelope. Its queue knows programs by their streams."""
    return {"kv_hints": envelope(hints)}


def sglang(hints: Hints) -> dict[str, Any]:
    """SGLang from 0.5.23: the envelope; `--enable-priority-scheduling`, in which higher ones go first."""
    return {"kv_hints": envelope(hints), "priority": -urgency(hints)}


def vllm(hints: Hints) -> dict[str, Any]:
    """vLLM from 0.32: `--scheduling-policy priority`, its sessions, and arguments for plug-ins."""
    told = {"sglc_behind": hints.behind, "sglc_most": hints.most, "sglc_stream": hints.stream}
    parent = {"sglc_parent": hints.parent} if hints.parent else {}
    return {"priority": urgency(hints), "session_id": hints.program, "vllm_xargs": {**told, **parent}}


def dynamo(hints: Hints) -> dict[str, Any]:
    """Dynamo from 1.2: `nvext.agent_hints`, in which higher priorities go first, and `nvext.agent_context`."""
    context = {"session_id": hints.program}
    if hints.parent:
        context["parent_session_id"] = hints.parent
    told = {"priority": -urgency(hints), "osl": hints.most}
    return {"nvext": {"agent_hints": told, "agent_context": context}}


DIALECTS: Mapping[str, Callable[[Hints], dict[str, Any]]] = {
    "sglc": sglc, "sglang": sglang, "vllm": vllm, "dynamo": dynamo,
}  # fmt: skip


def spoken(asked: str | None, info: Mapping[str, Any]) -> str:
    """The dialect of a server, by what the user has asked for, else by what the server says of itself; or "".

    Args:
        asked: the name of a dialect, "" for none; None: by the server.
        info: what `/get_model_info` tells.
    """
    if asked is not None:
        return asked
    return "sglc" if info.get("hints_version") else ""
