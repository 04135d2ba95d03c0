"""The language: expressions, prompt states, and the two ways in which a function becomes IR."""
