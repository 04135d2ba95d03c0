"""What is said about a program without running it: where it waits, and what could be better.

May import: `errors`, `ir`, and every other frontend folder.
"""
