"""From a program to its plan: units, segments, steps, blocks, and an estimate of what they cost.

May import: errors and ir; never a pass.
"""
