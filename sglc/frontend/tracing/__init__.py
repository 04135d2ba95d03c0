"""Traces a program ahead of time: its body on every path, blocks, calls, tools, and up to each graph break.

May import: `errors`, `ir`, and every frontend folder but `analysis`.
"""
