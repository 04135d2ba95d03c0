"""What is known to be unequal today: kinds of differences, to be taken off this list one by one."""

from __future__ import annotations

NOT_YET: tuple[str, ...] = ()
