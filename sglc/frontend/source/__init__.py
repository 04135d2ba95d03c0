"""Analysis and rewriting of the user's source: names, the flow of texts, and which reads may be lazy.

May import: `errors`, `ir`, and of the frontend `locate`, `outputs`, `values`, `language`.
"""
