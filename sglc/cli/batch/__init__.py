"""`sglc run --batch`: rows from files, results into files, each when it ends, and how a batch goes on later.

May import: what `cli` may, and `options` and `program_file` of it.
"""
