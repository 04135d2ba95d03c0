"""`sglang.lang.interpreter`: the state that a program gets, for annotations."""

from sglc.frontend.program.forks import Forks as ProgramStateGroup
from sglc.frontend.program.state import State as ProgramState

__all__ = ["ProgramState", "ProgramStateGroup"]
