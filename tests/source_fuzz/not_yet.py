"""What is known to be unequal today: kinds of differences, to be taken off this list one by one."""

from __future__ import annotations

NOT_YET: tuple[str, ...] = (
    # Compiling executes parts of the body, and some programs that run do not compile.
    "no effects: state",
    "no effects: error",
    # A plan has no prompt of its own.
    "plan: text",
    "plan: messages",
    "plan: stream of text",
)
