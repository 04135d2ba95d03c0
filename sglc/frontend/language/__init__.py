"""What users write: expressions and their arguments, functions, images, reasoning, chat templates.

May import: `errors`, `ir`, and of the frontend `locate`, `outputs`, `values`.
"""
