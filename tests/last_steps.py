"""How many steps the engine still makes for an answer that nobody wants any more: counted, never timed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

from tests.serving import Server
from tests.waiting import until

SHOWN = {"SGLC_DEBUG": "3"}  # of the server's environment: it writes each step down
OPTIONS = ("--access-log",)  # of the server: it writes down each answer that has ended
_ANSWERS = ('/Generate"', '"/v1/completions"')


def steps_behind(server: Server, stop: Callable[[], object], *, noticed: bool = True) -> int:
    """Steps between the end of the one answer that is being made, which `stop` brings about, and the last one.

    The runtime stands still until the server has noticed. One step may have been in the making then, and one
    begin before the runtime hears of it. Without `noticed` it goes on before: one more may begin until somebody
    between has a message that its client no longer reads.
    """
    runtime = server.runtime()
    assert runtime is not None
    ended = _ended(server)
    os.kill(runtime, signal.SIGSTOP)
    try:
        until(lambda: all(_stands(task) for task in Path(f"/proc/{runtime}/task").iterdir()))
        before = _steps(server)
        stop()
        until(lambda: not noticed or _ended(server) > ended, "the server does not notice")
        assert _steps(server) == before
    finally:
        os.kill(runtime, signal.SIGCONT)
    until(server.idle)
    return _steps(server) - before


def _stands(task: Path) -> bool:
    return (task / "stat").read_text().rpartition(")")[2].split()[0] == "T"


def _steps(server: Server) -> int:
    return server.log.read_text().count("sglc: step ")


def _ended(server: Server) -> int:
    lines = server.log.read_text().splitlines()
    return sum(line.startswith("{") and any(path in line for path in _ANSWERS) for line in lines)
