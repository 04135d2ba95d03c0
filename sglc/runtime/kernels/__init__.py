"""Device code in Triton; each kernel has a reference in torch in its tests.

May import: `runtime.step`, `runtime.model` and `runtime.attention`.
"""
