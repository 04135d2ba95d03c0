"""Batches: a window of rows at once, in an order in which prompts that begin alike follow each other.

May import: what `execution` may, and its files.
"""
