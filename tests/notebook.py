"""A module as a notebook makes it: cell by cell, and each has its source where Python looks for it."""

from __future__ import annotations

import linecache
import sys
from types import ModuleType
from typing import Any


class Notebook:
    """`module` is loaded under its name. One made anew under the same name takes its place."""

    def __init__(self, name: str, *cells: str) -> None:
        self.module = ModuleType(name)
        exec("import sglc as sgl", self.module.__dict__)
        self._cells = 0
        sys.modules[name] = self.module
        for source in cells:
            self.cell(source)

    def cell(self, source: str) -> None:
        """Run a cell. What it defines comes from a file of its own, as in IPython."""
        self._cells += 1
        name = f"<ipython-input-{self._cells}-{self.module.__name__}>"
        linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name
        exec(compile(source, name, "exec"), self.module.__dict__)

    def value(self, expression: str) -> Any:
        """What an expression is, with the names of the module."""
        return eval(expression, self.module.__dict__)
