"""Recordings: a recorder writes a tape as a run goes on, a player answers the same run from it, with no model.

May import: what `observe` may; of `observe` itself nothing else.
"""
