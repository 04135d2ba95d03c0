"""Rotary position embedding: the table of rotations, and turning heads by it.

Rotations are complex numbers, so a head is stored with the two halves of each pair side by side:
feature j of the file comes to 2j, feature j + D/2 to 2j + 1. Dot products do not see the order, so
permuting the rows of the query and key weights once (`pair_rows`) is all it takes.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sglc.runtime.model.config import RopeScaling


def rope_table(head_dim: int, theta: float, scaling: RopeScaling | None, length: int) -> Tensor:
    """Rotation of every position, on the CPU: complex64 [length, head_dim / 2]."""
    frequencies, magnitude = rope_frequencies(head_dim, theta, scaling)
    angles = torch.arange(length, dtype=torch.float32)[:, None] * frequencies
    return torch.complex(angles.cos() * magnitude, angles.sin() * magnitude)


def rope_frequencies(head_dim: int, theta: float, scaling: RopeScaling | None) -> tuple[Tensor, float]:
    """Radians per position, float32 [head_dim / 2], and what cosine and sine are multiplied by.

    Raises:
        ValueError: a kind of scaling that `load_config` does not let through.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    base = 1.0 / theta**exponents
    if scaling is None:
        return base, 1.0
    match scaling.kind:
        case "linear":
            return base / scaling.factor, 1.0
        case "llama3":
            return _llama3(base, scaling), 1.0
        case "yarn":
            return _yarn(base, head_dim, theta, scaling), _yarn_magnitude(scaling)
        case _:
            raise ValueError(scaling.kind)


def pair_rows(weight: Tensor, head_dim: int) -> Tensor:
    """`weight` [heads * head_dim, ...] with every head's features in paired order."""
    heads = weight.reshape(-1, 2, head_dim // 2, *weight.shape[1:])
    return heads.transpose(1, 2).reshape(weight.shape)


def rotate(heads: Tensor, rotations: Tensor) -> None:
    """Turn `heads` [T, H, D] (paired order) in place by `rotations` complex64 [T, 1, D / 2]."""
    if heads.dtype is torch.float32:
        torch.view_as_complex(heads.view(*heads.shape[:-1], -1, 2)).mul_(rotations)
        return
    turned = torch.view_as_complex(heads.float().view(*heads.shape[:-1], -1, 2)) * rotations
    heads.copy_(torch.view_as_real(turned).flatten(-2))


def _llama3(base: Tensor, scaling: RopeScaling) -> Tensor:
    """Long waves are stretched by `factor`, short ones kept, those between interpolated."""
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    # How often a wave fits into the length that the model was trained on first.
    turns = scaling.original_max_len * base / (2 * math.pi)
    keep = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return keep * base + (1 - keep) * base / scaling.factor


def _yarn(base: Tensor, head_dim: int, theta: float, scaling: RopeScaling) -> Tensor:
    """As llama3, with a ramp that is linear in the feature's index."""

    def index_of(turns: float) -> float:
        """The feature whose wave fits `turns` times into the trained length."""
        return head_dim * math.log(scaling.original_max_len / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = index_of(scaling.beta_fast), index_of(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    stretch = ((torch.arange(head_dim // 2).float() - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - stretch) * base + stretch * base / scaling.factor


def _yarn_magnitude(scaling: RopeScaling) -> float:
    """What makes attention over stretched positions as sharp as it was."""
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    return 0.1 * math.log(scaling.factor) + 1.0 if scaling.factor > 1 else 1.0
