"""Advice that comes with a request: what of it counts. None of it ever fails a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglc.ir.plan.hints import Hints, read_envelope
from sglc.serve.keys import is_admin
from sglc.serve.limits import Limits

_ANY = 1 << 40  # tokens of the streams of an admin


def allowed_hints(limits: Limits, scope: Mapping[str, Any], given: Any) -> tuple[Hints | None, int]:
    """The hints of `kv_hints`, and how many tokens they may have kept; none, where they do not count."""
    room = _ANY if is_admin(scope) else limits.hint_tokens
    return (read_envelope(given) if room else None), room


def hinted_priority(nvext: Any) -> int:
    """The priority of Dynamo's `nvext.agent_hints`; 0 without one."""
    found = nvext.get("agent_hints") if isinstance(nvext, Mapping) else None
    claimed = found.get("priority") if isinstance(found, Mapping) else None
    return claimed if type(claimed) is int and -(2**31) <= claimed < 2**31 else 0
