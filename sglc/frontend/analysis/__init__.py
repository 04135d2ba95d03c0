"""What is said about a program without running it: where it does more work than it needs, or has no end.

May import: `errors`, `ir`, and every other frontend folder.
"""
