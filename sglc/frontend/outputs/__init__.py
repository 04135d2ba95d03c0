"""What the text of a generation must be (`dtype`, `regex`, `json_schema`), and how its value is read from it.

May import: `errors`, `ir`, and of the frontend `locate`.
"""
