"""Runs: sessions with a back end, budgets, deadlines, results. `start` begins them, `lifecycle` is what all share.

May import: `errors`, `knobs`, `ir`, `frontend`, `passes`, `backends`. Who observes a run is handed in (`observer`).
"""
