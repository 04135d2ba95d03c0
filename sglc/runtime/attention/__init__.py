"""How the rows of a step share their reading of the KV cache, as plans, and attention in torch.

May import: `runtime.step`.
"""
