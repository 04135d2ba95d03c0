"""What is kept of computed sequences: pages, the radix tree over them, and handles on sequences. No tensors.

May import: `runtime.step` and `runtime.ids`.
"""
