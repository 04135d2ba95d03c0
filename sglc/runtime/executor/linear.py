"""Matrix products with a model's weights, in the form that is fastest on the device.

On the CPU, float32 weights are packed once for oneDNN, which is 2 to 5 times as fast as the plain
product from one row to thousands and takes the residual or the activation into the same pass.
Everything else (CUDA, other types) is the plain product of torch.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional


class Linear(Protocol):
    """y = x W^T + b over rows."""

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, in] -> [T, out]."""

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """residual [T, out] + y, a new tensor."""


class Gated(Protocol):
    """silu(x G^T) * (x U^T): the first half of a gated MLP."""

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, in] -> [T, out]."""


def linear(weight: Tensor, bias: Tensor | None = None) -> Linear:
    """A product with `weight` [out, in] and `bias` [out]; the caller may drop both afterwards."""
    return PackedLinear(weight, bias) if _packs(weight) else PlainLinear(weight, bias)


def gated(gate: Tensor, up: Tensor) -> Gated:
    """A gated product with `gate` and `up` [out, in]; the caller may drop both afterwards."""
    return PackedGated(gate, up) if _packs(gate) else PlainGated(gate, up)


def _packs(weight: Tensor) -> bool:
    onednn: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return weight.is_cpu and weight.dtype is torch.float32 and onednn


class PlainLinear:
    """Any device, any type."""

    __slots__ = ("_bias", "_weight")

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        return functional.linear(x, self._weight, self._bias)

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        return functional.linear(x, self._weight, self._bias) + residual


class PlainGated:
    """Any device, any type: one product with both weights."""

    __slots__ = ("_weight",)

    def __init__(self, gate: Tensor, up: Tensor) -> None:
        self._weight = torch.cat((gate, up))

    def __call__(self, x: Tensor) -> Tensor:
        gate, up = functional.linear(x, self._weight).chunk(2, dim=-1)
        return functional.silu(gate) * up


class PackedLinear:
    """float32 on the CPU, in oneDNN's blocked layout."""

    __slots__ = ("_bias", "_weight")

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        # Without a number of rows the packed form serves every number of rows equally well.
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return y

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, residual, self._weight, self._bias, "add")
        return y


class PackedGated:
    """float32 on the CPU. Two products: each applies its part of the gate while it writes."""

    __slots__ = ("_gate", "_up")

    def __init__(self, gate: Tensor, up: Tensor) -> None:
        self._gate = torch.ops.mkldnn._reorder_linear_weight(gate.contiguous())
        self._up = torch.ops.mkldnn._reorder_linear_weight(up.contiguous())

    def __call__(self, x: Tensor) -> Tensor:
        gate = torch.ops.mkldnn._linear_pointwise(x, self._gate, None, "swish", [], "")
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, gate, self._up, None, "mul")
        return y
