"""Runs of whole plans: checked and prepared once, executed step by step, each as soon as what it reads is there.

May import: what `execution` may, and its files, but not `start`.
"""
