"""Records what a body does as ops: while it is traced, or as it runs, up to each place where Python reads.

May import: `errors`, `ir`, and of the frontend `locate`, `outputs`, `values`, `language`.
"""
