"""The intermediate representation: values, ops, programs, and the plans that they become. Knows no back end.

At the top: core, ops, values, sampling, target, remark, depth, choice_scoring; below it text, verify, grammar
and plan. May import: errors.
"""
