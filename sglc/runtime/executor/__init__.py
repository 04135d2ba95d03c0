"""Runs steps on a device: the models, their KV cache, sampling, and the device's copy of the batch's state.

May import: errors, `runtime.step`, model, attention and kernels.
"""
