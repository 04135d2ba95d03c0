"""From the user's Python to the IR: the language, what records a run, and what traces a program ahead of time.

May import: `errors`, `knobs` and `ir`. Each folder may import those before it: `locate`, `outputs`, `values`,
`language`, `source`, `recorder`, `program`, `tracing`, `analysis`.
"""
