"""How much of the server one request may ask for, and all of them together."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from sglc.serve.keys import is_admin
from sglc.serve.problems import Refusal, bad

_TEXTS = "sglc.texts"  # of a request's scope: those that it was let in with


@dataclass(frozen=True, slots=True)
class Limits:
    """What is refused when there is more of it, but `priority`, which counts up to there.

    Fields:
        body: bytes of a request.
        prompts: of a request.
        samples: of a prompt.
        characters: of a prompt, whatever its tokens; what is longer need not be tokenized.
        connections: that are open at once; those beyond are told to come again.
        queue: texts that are being made or wait to be, of all requests.
        priority: of a request, unless it comes with an admin key.
        hint_tokens: of the streams that hints of one key may have kept, unless it is an admin's; 0: none.
        form: characters of a regex, schema, grammar or structural tag.
        chat_tokens: of an answer in a chat that names no limit.
        plan: bytes of the plan of a program.
        row_tokens: that a row of a program generates.
        rows_blocks: turns of loops, items of maps, calls and generations of all rows of a program.
        rows_size: characters of all rows of a program, as `Meter` counts them.
        request_s: seconds from a request's head to the last byte of its answer.
        body_s: seconds from there to the end of its body.
    """

    body: int = 16 << 20
    prompts: int = 256
    samples: int = 128
    characters: int = 64 << 20
    connections: int = 4096
    queue: int = 1024
    priority: int = 0
    hint_tokens: int = 0
    form: int = 1 << 20
    chat_tokens: int = 4096
    plan: int = 1 << 20
    row_tokens: int = 1 << 20
    rows_blocks: int = 100_000
    rows_size: int = 64 << 20
    request_s: float = 600.0
    body_s: float = 60.0


class Queue:
    """The texts of all requests that have not been answered."""

    def __init__(self) -> None:
        self._texts = 0

    def let_in(self, scope: MutableMapping[str, Any], texts: int, limit: int) -> None:
        """Have a request counted with so many texts until `let_out`; all together have at most `limit`.

        Raises:
            Refusal: 400, there is never room for as many; 429, there is none now.
        """
        if texts > limit:
            raise Refusal(400, f"{texts} texts are more than the {limit} of `--max-queue`", code="too_many")
        more = texts - scope.get(_TEXTS, 0)
        if self._texts + more > limit:
            message = f"{self._texts} texts are being made or wait, and there is room for {limit}"
            raise Refusal(429, message, code="queue_full")
        scope[_TEXTS] = texts
        self._texts += more

    def let_out(self, scope: MutableMapping[str, Any]) -> None:
        """The request has been answered."""
        self._texts -= scope.pop(_TEXTS, 0)


def allowed_priority(limits: Limits, scope: Mapping[str, Any], claimed: int) -> int:
    """The priority that a request has: what it claims, but no more than the operator lets count.

    An admin's may be any. It is a hint, and never fails a request.
    """
    return claimed if is_admin(scope) else min(claimed, limits.priority)


def plan_bytes(limits: Limits, plan: Mapping[str, Any]) -> bytes:
    """A plan as JSON.

    Raises:
        Refusal: 400, it is too large.
    """
    data = msgspec.json.encode(plan)
    if len(data) > limits.plan:
        message = f"has {len(data)} bytes, more than the {limits.plan} of `--max-plan`"
        raise bad("plan", message, "plan_bounds")
    return data


def check_counts(limits: Limits, prompts: Sequence[Any], field: str, samples: int) -> None:
    """Raises Refusal: more prompts or samples than are taken."""
    if len(prompts) > limits.prompts:
        raise bad(
            field, f"has {len(prompts)} prompts, more than the {limits.prompts} of `--max-prompts`", "too_many"
        )
    if samples > limits.samples:
        raise bad("n", f"is {samples}, more than the {limits.samples} of `--max-samples`", "too_many")


def check_sizes(prompts: Sequence[str | Sequence[int]], field: str, max_len: int, characters: int) -> None:
    """Refuse what cannot fit into `max_len` tokens, because it has more than so many `characters`, or ids.

    Raises:
        Refusal: a prompt is that long.
    """
    for prompt in prompts:
        if len(prompt) > (characters if isinstance(prompt, str) else max_len):
            unit = "characters" if isinstance(prompt, str) else "tokens"
            message = f"a prompt of {len(prompt)} {unit} is longer than the model's {max_len} tokens"
            raise Refusal(400, message, param=field, code="context_length_exceeded")


def check_lists(limits: Limits, given: Any, max_len: int) -> None:
    """Refuse a request, as it was decoded, with more prompts than are taken, or whose lists are longer than the
    model's `max_len` tokens.

    To look at what is in them would keep everybody waiting. A message, a part of one, and a tool are a token
    at least.

    Raises:
        Refusal: there is such a list.
    """
    if not isinstance(given, dict):
        return
    for field in ("prompt", "input_ids", "tokens"):
        value = given.get(field)
        if isinstance(value, list):
            if value and isinstance(value[0], int):
                check_sizes([value], field, max_len, 0)
            else:
                check_counts(limits, value, field, 1)
                check_sizes([each for each in value if isinstance(each, list)], field, max_len, 0)
    messages = given.get("messages")
    if isinstance(messages, list):
        turns = [each for each in messages[:max_len] if isinstance(each, dict)]
        parts = [each.get(field) for each in turns for field in ("content", "tool_calls")]
        most = max(map(len, [messages, *(each for each in parts if isinstance(each, list))]))
        if most > max_len:
            message = f"{most} messages, or parts of one, are more than the model's {max_len} tokens"
            raise Refusal(400, message, param="messages", code="context_length_exceeded")
    tools = given.get("tools")
    if isinstance(tools, list) and len(tools) > max_len:
        message = f"{len(tools)} tools are more than the model's {max_len} tokens"
        raise Refusal(400, message, param="tools", code="context_length_exceeded")
