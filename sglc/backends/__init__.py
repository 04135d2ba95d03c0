"""What runs a segment: the local runtime and remote APIs behind one protocol.

May import: errors, knobs, ir, frontend, passes and runtime; never execution.
"""
