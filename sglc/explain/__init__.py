"""What a compiled program will do: estimated before it runs, compared afterwards, as text, data and a page.

`explanation` puts both sub-folders together. May import: everything up to execution.
"""
