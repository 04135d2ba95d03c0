"""Runs of whole plans: checked and prepared once, each step executed as soon as what it reads is there.

May import: what `execution` may, and its files.
"""
