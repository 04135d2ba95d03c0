"""Whole programs as a benchmark: the SGLang paper's list with generated data, passes on and off."""
