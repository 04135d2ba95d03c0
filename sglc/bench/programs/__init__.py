"""Whole programs as a benchmark, the only such suite: the SGLang paper's list with generated data.

Each runs with passes on and off; three of them through the KV API as well. May import what `bench` may.
"""
