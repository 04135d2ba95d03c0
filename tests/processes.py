"""Processes that a test began, and no others: tests run side by side, and so may servers."""

from __future__ import annotations

from pathlib import Path


def alive(pid: int) -> bool:
    """Whether a process has not ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def descendants(pid: int, module: str) -> set[int]:
    """Of a process, those it began, and so on, that run `module`."""
    found, more = set[int](), _children(pid)
    while more:
        found |= more
        more = {child for one in more for child in _children(one)} - found
    return {one for one in found if alive(one) and module.encode() in _command(one)}


def compilers(pid: int) -> set[int]:
    """Those that compile constraints for a process: one that is forked, and its forks."""
    return descendants(pid, "sglc.runtime.engine.compile_server")


def _children(pid: int) -> set[int]:
    """Those that any of its threads began: looked at often, while all processes of a machine are many."""
    found: set[int] = set()
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found.update(map(int, thread.read_text().split()))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
