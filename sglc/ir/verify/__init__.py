"""What a program must be before a pass or the lowering sees it.

May import: errors, the top of ir, and `ir.text`, which shows what is wrong.
"""
