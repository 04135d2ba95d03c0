"""A smaller program that shows the same: statements are dropped as long as it still does."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator

_MOST_TRIES = 120


def minimised(source: str, still: Callable[[str], bool]) -> str:
    """The smallest source that was found. `still` says whether a source shows what is looked for."""
    tree = ast.parse(source)
    if not _holds(ast.unparse(tree), still):
        return source  # it is about something that is lost by writing it anew
    tries, changed = 0, True
    while changed and tries < _MOST_TRIES:
        changed = False
        for smaller in _smaller(tree):
            tries += 1
            if _holds(ast.unparse(smaller), still):
                tree, changed = smaller, True
                break
            if tries >= _MOST_TRIES:
                break
    return ast.unparse(tree) + "\n"


def _holds(source: str, still: Callable[[str], bool]) -> bool:
    try:
        compile(source, "<smaller>", "exec")
        return still(source)
    except Exception:  # what is left fails to be imported, or is no program any more
        return False


def _smaller(tree: ast.Module) -> Iterator[ast.Module]:
    """The module without one statement, the last ones first, or with the inside of a block in its place."""
    for path in reversed(list(_places(tree, ()))):
        without = copy.deepcopy(tree)
        block, index = _at(without, path)
        removed = block.pop(index)
        if block or not isinstance(removed, ast.Pass):
            if not block:
                block.append(ast.Pass())
            yield without
        if isinstance(removed, ast.If | ast.With | ast.Try | ast.For | ast.While):
            flat = copy.deepcopy(tree)
            block, index = _at(flat, path)
            inside = block[index]
            block[index : index + 1] = inside.body  # type: ignore[attr-defined]
            yield flat


_Path = tuple[tuple[str, int], ...]


def _places(node: ast.AST, path: _Path) -> Iterator[_Path]:
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        inner = getattr(node, name, None)
        if not isinstance(inner, list):  # the body of a `lambda`
            continue
        for index, statement in enumerate(inner):
            here = (*path, (name, index))
            if isinstance(statement, ast.stmt):
                yield here
            yield from _places(statement, here)


def _at(tree: ast.AST, path: _Path) -> tuple[list[ast.stmt], int]:
    node = tree
    for name, index in path[:-1]:
        node = getattr(node, name)[index]
    name, index = path[-1]
    return getattr(node, name), index
