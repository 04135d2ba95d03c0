"""Prompt states as a program sees them: variables, forks, chat history, and what is still pending.

May import: `errors`, `ir`, and every frontend folder but `tracing` and `analysis`.
"""
