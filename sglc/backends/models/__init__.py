"""What models of APIs take and cost: a table made of LiteLLM's, and the vendors' rules that it lacks.

May import: errors and `ir.target`; never a back end.
"""
