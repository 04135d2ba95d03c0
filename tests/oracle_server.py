"""A server before the oracle's process: `python -m tests.oracle_server MODEL ROWS [PORT [NAME [LOG]]]`.

`MODEL` is `oracle`, `quick` or `slow` (`tests.oracle_worker`). With `grpc` for `PORT` it speaks that, too.
`LOG` gets a byte for each generation that it is asked for.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from functools import cached_property
from pathlib import Path

from sglc.backends.local import LocalBackend, LocalOptions
from sglc.backends.local.process import RuntimeProcess
from sglc.ir.plan.events import Event
from sglc.ir.plan.segment import GenNode, Segment
from sglc.ir.target import Target
from sglc.serve.door import Access
from sglc.serve.server import ServerTimeouts, bound_socket, serve
from sglc.serve.service import Service
from tests.oracle_backend import Characters
from tests.oracle_worker import MAX_LEN


class OracleProcess(LocalBackend):
    """The local back end, whose process has no model."""

    log = ""

    @cached_property
    def target(self) -> Target:
        """As of every local model."""
        rows = self.options.max_rows or 1
        return Target(
            "local", Characters(), scores_tokens=True, continues_text=True, whole_answers=True, concurrency=rows
        )

    def submit(self, segment: Segment, *, streams: bool = True) -> AsyncIterator[Event]:
        """As of every local model, and written down."""
        if self.log:
            with open(self.log, "ab", buffering=0) as log:
                log.write(b"." * sum(isinstance(node, GenNode) for node in segment.nodes))
        return super().submit(segment, streams=streams)

    def _begin(self) -> RuntimeProcess:
        return RuntimeProcess(self.options, Path, worker="tests.oracle_worker")


def main(model: str, max_rows: int, more: str = "0", name: str = "oracle", log: str = "") -> None:
    """Serve until a signal."""
    beside = more == "grpc"
    backend = OracleProcess(LocalOptions(model, device="cpu", max_rows=max_rows, process=True))
    backend.log = log
    with bound_socket("127.0.0.1", 0 if beside else int(more)) as listening:
        try:
            backend.server_info()  # loaded
            service = Service(backend, Characters(), name, MAX_LEN)
            other = None
            if beside:
                from sglc.serve.grpc_server import GrpcServer

                other = GrpcServer(service, Access(), bound_socket("127.0.0.1", 0))
            serve(service, "127.0.0.1", listening, ServerTimeouts(), beside=other)
        finally:
            backend.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
