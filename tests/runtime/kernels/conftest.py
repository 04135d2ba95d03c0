"""Kernels run natively where there is a CUDA device, else in Triton's interpreter on the CPU."""

from __future__ import annotations

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined, so before any kernel is imported
