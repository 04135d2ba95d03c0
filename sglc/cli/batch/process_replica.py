"""Replicas in processes of this machine: as actors are, without Ray. Each has a core for what its rows do."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection

from sglc.cli.batch.replica import WAIT_S, LocalReplica, Lost, Made, Opened, Work
from sglc.cli.batch.sorted_rows import NumberedRow
from sglc.observe.replay.tape import Tape
from sglc.runtime.engine.own_process import end_with_parent, python_path

_END_S = 2.0  # for a process to end


class ProcessReplica:
    """A `LocalReplica` in a process, which ends with this one. What it has to hand over comes as it is made."""

    def __init__(self, work: Work, backend: str) -> None:
        self.name = backend
        self._work = work
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    def open(self) -> Opened:
        """As of `Replica`."""
        self.close()
        ours, theirs = socket.socketpair()
        self._connection = Connection(ours.detach())
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),), process_group=0,  # Ctrl-C is not for it
                env={**os.environ, "PYTHONPATH": python_path()},
            )  # fmt: skip
        try:
            self._connection.send((self._work, self.name))
            opened = self._connection.recv()
        except (EOFError, OSError):
            raise _lost() from None
        if isinstance(opened, BaseException):
            raise opened
        assert isinstance(opened, Opened)
        return opened

    def step(self, rows: Sequence[NumberedRow], known: Tape) -> Made:
        """As of `Replica`."""
        assert self._connection is not None
        try:
            if rows:
                self._connection.send((rows, known))
            made = self._connection.recv() if self._connection.poll(WAIT_S) else Made((), ())
        except (EOFError, OSError):
            raise _lost() from None
        if isinstance(made, BaseException):
            raise made
        assert isinstance(made, Made)
        return made

    def close(self) -> None:
        """As of `Replica`."""
        process, self._process = self._process, None
        if process is None or self._connection is None:
            return
        with suppress(OSError):
            self._connection.send(None)
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _lost() -> Lost:
    return Lost("its process has ended")


def main() -> None:
    """Run what comes through the socket of this number, until nobody is there any more."""
    end_with_parent()
    connection = Connection(int(sys.argv[1]))
    try:
        replica = LocalReplica(*connection.recv())
        connection.send(replica.open())
        threading.Thread(target=_take, args=(connection, replica), name="sglc-take", daemon=True).start()
        while True:
            made = replica.made()
            if made.ended or made.lines:
                connection.send(made)
    except (EOFError, ConnectionError):
        _end()
    except BaseException as problem:
        with suppress(ConnectionError):
            connection.send(problem)
        _end()


def _take(connection: Connection, replica: LocalReplica) -> None:
    with suppress(EOFError, OSError):
        while (given := connection.recv()) is not None:
            replica.take(*given)
    _end()


def _end() -> None:
    """At once: what rows still do is nobody's."""
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
