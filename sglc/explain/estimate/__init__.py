"""The estimate: an abstract interpreter of plans over intervals of tokens, and runs held against it.

May import: errors, ir and execution.
"""
