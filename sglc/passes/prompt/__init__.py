"""What prompts consist of, as data of the program: the text and the turns that a result shows.

May import: what `passes` may; no file of it but its own.
"""
