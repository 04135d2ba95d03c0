"""What back ends share that send prompts over a network: segments as requests, prompts, connections.

May import: errors, ir and `runtime.tokenizer`; never a back end.
"""
