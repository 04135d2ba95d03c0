"""What generations are given and what they answer: prompts by segment, known answers, shared calls.

May import: errors, ir, and the prompts of `backends.remote`.
"""
