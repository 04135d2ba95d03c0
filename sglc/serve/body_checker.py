"""Large bodies are looked at in a process beside the server's, which answers others meanwhile.

To read some megabytes of JSON takes tens of milliseconds, in which no other thread of a process goes on. Most
that are so large are refused. One that is not comes back with its token ids as bytes and its schemas as texts,
which is read in no time; one without such is read here again.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from sglc.runtime.engine.own_process import python_path
from sglc.serve import bodies
from sglc.serve.bodies import RequestBody
from sglc.serve.limits import Limits
from sglc.serve.problems import Refusal
from sglc.serve.reading import packed, unpacked

_NICE = 10  # it makes way for whoever makes texts


class _Refused(msgspec.Struct, array_like=True, frozen=True):
    """A `Refusal` on its way."""

    status: int
    message: str
    param: str | None
    code: str


class BodyChecker:
    """The process, begun with the first large body, and again if it was ended. It ends with the server's.

    Args:
        limits, max_len: as of `reading.packed`.
    """

    def __init__(self, limits: Limits, max_len: int) -> None:
        self._limits = limits
        self._max_len = max_len
        self._turns = ThreadPoolExecutor(1, "sglc-bodies")  # whose thread asks; one body after the other
        self._process: subprocess.Popen[bytes] | None = None

    async def given(self, kind: type[RequestBody], content: bytes) -> dict[str, Any] | None:
        """What a body says, if it was packed; None as well if the process has ended.

        Raises:
            Refusal: it is not taken.
        """
        return await asyncio.get_running_loop().run_in_executor(self._turns, self._ask, kind, content)

    def _ask(self, kind: type[RequestBody], content: bytes) -> dict[str, Any] | None:
        process = self._process or self._begin()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(b"%b %d\n" % (kind.__name__.encode(), len(content)))
            process.stdin.write(content)
            process.stdin.flush()
            told = process.stdout.readline()
            found, size = msgspec.json.decode(told, type=tuple[_Refused | None, int]) if told else (None, 0)
            made = process.stdout.read(size)
        except OSError:
            told = b""
        if not told or len(made) < size:
            self._end()
            return None
        if found is not None:
            raise Refusal(found.status, found.message, param=found.param, code=found.code)
        try:
            return unpacked(made) if made else None
        except RecursionError:  # this thread has less room for what is deep
            return None

    def _begin(self) -> subprocess.Popen[bytes]:
        given = msgspec.json.encode((self._limits, self._max_len)).decode()
        self._process = process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, given],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": python_path()},
            process_group=0,  # Ctrl-C is the server's, which says when it ends
        )
        atexit.register(self._end)
        return process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()
        atexit.unregister(self._end)


def main(given: str) -> int:
    """Answer bodies, as `BodyChecker` asks, until nobody does any more."""
    limits, max_len = msgspec.json.decode(given, type=tuple[Limits, int])
    os.nice(_NICE)
    while head := sys.stdin.buffer.readline():
        kind, size = head.split()
        content = sys.stdin.buffer.read(int(size))
        told, made = None, b""
        try:
            made = packed(getattr(bodies, kind.decode()), content, limits, max_len)
        except Refusal as refusal:
            told = _Refused(refusal.status, refusal.message, refusal.param, refusal.code)
        sys.stdout.buffer.write(msgspec.json.encode((told, len(made))) + b"\n")
        sys.stdout.buffer.write(made)
        sys.stdout.buffer.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
