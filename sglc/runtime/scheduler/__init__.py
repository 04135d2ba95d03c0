"""Which rows a step has: requests, their queue, admission, and the pages that they may take. No tensors.

May import: errors, ir, and of the runtime ids, step, choice_trie, constraints and cache.
"""
