"""What passes share that write chat turns: a template's markup, and what may continue what.

May import: errors and ir; never a pass.
"""
