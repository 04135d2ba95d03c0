"""The least time that work can take: bytes over bandwidth, or FLOPs over the rate of the matrix units.

Each weight is read once in a step, each key and value once for every token that sees it (once for all
rows of a shared prefix); a prompt is bound by its FLOPs. Nothing else is counted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sglc.runtime.model.config import ModelConfig, tensor_shapes


@dataclass(frozen=True, slots=True)
class Device:
    """What a device can do at most: bytes/s (of a copy, both ways counted), FLOP/s of bfloat16 products."""

    name: str
    bandwidth: float
    flops: float


# Measured on one such device with torch 2.11: a copy of 8 GB, a square product on random data.
H200 = Device("NVIDIA H200", 4.226e12, 790e12)


def known_device(name: str) -> Device | None:
    """The device that calls itself `name`; None: nobody has measured what it can do."""
    return H200 if name == H200.name else None


@dataclass(frozen=True, slots=True)
class Cost:
    """What a model's steps are made of."""

    weight_bytes: int  # read by every step
    weight_flops: int  # of a token: all products, the head included
    body_flops: int  # of a token, without the head
    kv_bytes: int  # of a token
    attention_flops: int  # of a (query, key) pair


def cost(config: ModelConfig, weight_size: int = 2, kv_size: int = 2) -> Cost:
    """The costs of `config`, numbers of `weight_size` and `kv_size` bytes."""
    counts = {name: math.prod(shape) for name, shape in tensor_shapes(config).items()}
    embedding = counts["model.embed_tokens.weight"]
    body = sum(counts.values()) - embedding - counts.get("lm_head.weight", 0)
    head = config.vocab_size * config.hidden
    return Cost(
        weight_bytes=(body + head) * weight_size,
        weight_flops=2 * (body + head),
        body_flops=2 * body,
        kv_bytes=2 * config.layers * config.kv_heads * config.head_dim * kv_size,
        attention_flops=4 * config.layers * config.heads * config.head_dim,
    )


def prefill_s(cost: Cost, prompts: Sequence[int], device: Device) -> float:
    """Seconds for prompts of so many tokens, nothing shared."""
    return prompts_s(cost, sum(prompts), sum(seen(0, n) for n in prompts), device)


def decode_step_s(cost: Cost, rows: int, keys: int, device: Device) -> float:
    """Seconds of a step of `rows` tokens that see `keys` keys in all."""
    products = max(cost.weight_bytes / device.bandwidth, rows * cost.weight_flops / device.flops)
    return products + keys * cost.kv_bytes / device.bandwidth


def prompts_s(cost: Cost, tokens: int, pairs: int, device: Device) -> float:
    """Seconds to pass `tokens` of prompts through, that see `pairs` keys in all: bound by FLOPs."""
    return (tokens * cost.body_flops + pairs * cost.attention_flops) / device.flops


def seen(before: int, tokens: int) -> int:
    """Keys that `tokens` tokens behind `before` others see in all, themselves included."""
    return tokens * before + tokens * (tokens + 1) // 2


def offline_s(cost: Cost, prompts: Sequence[int], outs: Sequence[int], device: Device) -> dict[str, float]:
    """Seconds of `prefill`, `products` and `keys` when all requests start together."""
    products = keys = 0.0
    for step in range(1, max(outs, default=0)):
        lengths = [prompt + step for prompt, out in zip(prompts, outs, strict=True) if out > step]
        keys += sum(lengths) * cost.kv_bytes / device.bandwidth
        products += max(cost.weight_bytes / device.bandwidth, len(lengths) * cost.weight_flops / device.flops)
    return {"prefill": prefill_s(cost, prompts, device), "products": products, "keys": keys}


def decode_s(cost: Cost, rows: int, shared: int, first: int, steps: int, device: Device) -> float:
    """Seconds of `steps` decode steps of `rows` rows.

    All of them read `shared` keys once, together, and each its own: `first` in the first step, then one more
    in each.
    """
    keys = (shared + rows * (first + step) for step in range(steps))
    return sum(decode_step_s(cost, rows, count, device) for count in keys)


def few_shot_s(cost: Cost, groups: int, questions: int, prefix: int, question: int, device: Device) -> float:
    """Seconds until each of `groups` * `questions` questions has a token, each prefix passed through once."""
    rows = groups * questions
    pairs = groups * seen(0, prefix) + rows * seen(prefix, question)
    # Only the last token of a prompt goes through the head.
    head = rows * (cost.weight_flops - cost.body_flops) / device.flops
    return prompts_s(cost, groups * prefix + rows * question, pairs, device) + head


def tree_s(
    cost: Cost, programs: int, prefix: int, branches: tuple[int, int], adds: tuple[int, int],
    outs: tuple[int, int], device: Device,
) -> float:  # fmt: skip
    """Seconds of `work.tree_of_thought`: all first samples side by side, then all second ones."""
    first, second = programs * branches[0], programs * branches[0] * branches[1]
    parent = adds[0] + outs[0]  # tokens that the second branches of one parent share besides the prefix
    tokens = programs * prefix + first * adds[0] + second * adds[1]
    pairs = programs * seen(0, prefix) + first * seen(prefix, adds[0]) + second * seen(prefix + parent, adds[1])
    return (
        prompts_s(cost, tokens, pairs, device)
        + decode_s(cost, first, programs * prefix, adds[0] + 1, outs[0] - 1, device)
        + decode_s(cost, second, programs * prefix + first * parent, adds[1] + 1, outs[1] - 1, device)
    )
