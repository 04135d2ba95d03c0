"""An interpreter of the body's source: every statement and operation has a rule, or tracing stops before it.

May import: `errors`, `ir`, and every frontend folder but `analysis`.
"""
