"""`sglc.compile`: the documented address of `compile_program`, which lives with the passes.

May import `passes.compile` alone.
"""

from sglc.passes.compile import Compiled as Compiled
from sglc.passes.compile import cached as cached
from sglc.passes.compile import compile_program as compile_program
