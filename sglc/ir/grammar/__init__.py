"""What a generated text can be held to: regular expressions, JSON Schema, GBNF, stops, and their automata.

May import: errors, `ir.sampling` and `ir.target`. The runtime and the passes read a constraint here alike.
"""
