"""Programs as text: printed, parsed, and drawn as a graph.

May import: errors, the top of ir, and `ir.grammar`.
"""
