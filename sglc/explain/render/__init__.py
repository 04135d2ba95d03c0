"""Estimates as text, JSON, graphs and an HTML page.

May import: `explain.estimate`, and what of a program and its source it shows.
"""
