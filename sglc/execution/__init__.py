"""Runs: `lifecycle` is what all share; sessions with a back end, limits, results.

May import: `errors`, `knobs`, `ir`, `frontend`, `passes`, `runtime`, `backends`. Who observes a run is handed
in (`observer`).
"""
