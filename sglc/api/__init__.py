"""What users hold: functions, what they compile to, loaded plans, several programs run together.

May import: everything but `lang`, `bench`, `serve` and `cli`. `import sglc` loads `function`: what only a run
or a compilation needs is imported where one begins.
"""
