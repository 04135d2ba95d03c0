"""Recordings: the recorder writes a tape as a run goes on, the player answers the same run from it, without a model.

May import: as `observe`; of it nothing else.
"""
