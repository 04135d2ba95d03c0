"""How deep programs may nest, and room on Python's stack for walks over the deepest one.

Walks over blocks are recursive functions. Python stops recursion at a number of frames that is not
ours to choose, so every entry into such walks makes room first, and checks the depth there.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from sglc.errors import VerifyError
from sglc.ir.core import Op, Program, regions
from sglc.ir.remark import place

MAX_DEPTH = 200  # blocks and called programs in each other
MAX_BRACKETS = 50  # tuples and mappings in each other
_FRAMES = 20  # of Python, that any walk needs for one level
_LOCK = threading.Lock()
_RUNNING: list[int] = []  # the limits that entries found, oldest first

_P = ParamSpec("_P")
_T = TypeVar("_T")


def check_depth(program: Program) -> None:
    """Refuse programs whose blocks, or brackets in plain data, stand in too many others. Does not recurse.

    Raises:
        VerifyError: SGLC217 blocks and called programs, SGLC216 brackets; with the place.
    """
    level: list[Op] = [*program.params, *program.ops]
    trees: list[tuple[object, Op | None]] = [(program.returns, None)]
    depth = 0
    while level:
        inner: list[Op] = []
        for op in level:
            if op.tree_fields:
                trees += [(tree, op) for name in op.tree_fields if (tree := getattr(op, name))]
            if op.region_fields:
                blocks = [region.ops for region in regions(op)]
            elif isinstance(called := getattr(op, "program", None), Program):
                blocks = [(*called.params, *called.ops)]
                trees.append((called.returns, op))
            else:
                continue
            if depth == MAX_DEPTH:
                raise VerifyError(
                    "SGLC217", f"`{op.mnemonic}` stands in more than {MAX_DEPTH} blocks", place(op.loc),
                    note=f"blocks and called programs stand in at most {MAX_DEPTH} others",
                )  # fmt: skip
            for ops in blocks:
                inner += ops
        level, depth = inner, depth + 1
    _check_brackets(trees)


def _check_brackets(trees: list[tuple[object, Op | None]]) -> None:
    for depth in range(MAX_BRACKETS + 2):
        inner: list[tuple[object, Op | None]] = []
        for tree, op in trees:
            parts = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, tuple) else ()
            inner += [(part, op) for part in parts if isinstance(part, tuple | dict)]
        if inner and depth == MAX_BRACKETS:
            op = inner[0][1]
            raise VerifyError(
                "SGLC216", f"brackets stand in more than {MAX_BRACKETS} others",
                None if op is None else place(op.loc),
            )  # fmt: skip
        if not inner:
            return
        trees = inner


def with_room(walk: Callable[_P, _T]) -> Callable[_P, _T]:
    """`walk` with room for blocks that are `MAX_DEPTH` deep, on top of what the caller has.

    The limit belongs to the whole process: the last to leave puts it back.
    """

    @functools.wraps(walk)
    def entered(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        with _LOCK:
            found = sys.getrecursionlimit()
            if not _RUNNING:
                sys.setrecursionlimit(found + MAX_DEPTH * _FRAMES)
            _RUNNING.append(found)
        try:
            return walk(*args, **kwargs)
        finally:
            with _LOCK:
                first = _RUNNING[0]
                _RUNNING.pop()
                if not _RUNNING:
                    sys.setrecursionlimit(first)

    return entered
