"""The engine's loop, segments on it, and the process that it may run in.

May import: every other part of the runtime.
"""
