"""What a program holds while it is recorded or traced: symbolic values, streams, graph breaks.

May import: `errors`, `ir`, and of the frontend `locate`, `outputs`.
"""
