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
    found = {pid}
    while more := {child for child, parent in _parents().items() if parent in found} - found:
        found |= more
    return {one for one in found - {pid} if alive(one) and module.encode() in _command(one)}


def compilers(pid: int) -> set[int]:
    """Those that compile constraints for a process: one that is forked, and its forks."""
    return descendants(pid, "sglc.runtime.engine.compile_server")


def _parents() -> dict[int, int]:
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    return parents


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
