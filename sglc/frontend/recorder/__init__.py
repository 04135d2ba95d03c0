"""Records one run as ops, launch by launch, and replays what an earlier run recorded.

May import: `errors`, `ir`, and of the frontend `locate`, `outputs`, `values`, `language`, `source`.
"""
