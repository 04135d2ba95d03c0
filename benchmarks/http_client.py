"""A client that asks the same again and again on connections that stay, and parses no more than it must.

python -m benchmarks.http_client PORT CONNECTIONS REQUESTS BODY   # prints requests, events and times as JSON
"""

from __future__ import annotations

import itertools
import json
import re
import select
import socket
import sys
import time
from dataclasses import dataclass, field

_TOKENS = re.compile(rb'"completion_tokens":(\d+)')
_DONE = b"data: [DONE]\n\n"
_END = b"0\r\n\r\n"  # of an answer in chunks


@dataclass(slots=True)
class _Connection:
    socket: socket.socket
    received: list[bytes] = field(default_factory=list)
    length: int = 0
    expected: int = 0  # bytes of a whole answer, once they are known


def request_of(body: str) -> bytes:
    """What is sent for a body."""
    return (
        b"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: */*\r\n"
        b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body.encode())
    )


def main(port: int, connections: int, requests: int, bodies: list[str]) -> None:
    """Ask, `connections` at a time; every answer must be whole and of status 200."""
    to_send = itertools.cycle([request_of(body) for body in bodies])
    streams = bool(json.loads(bodies[0]).get("stream"))
    epoll, open_ = select.epoll(), {}
    for _ in range(connections):
        made = socket.create_connection(("127.0.0.1", port))
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        open_[made.fileno()] = _Connection(made)
        epoll.register(made.fileno(), select.EPOLLIN)
    begin_s, cpu_s = time.perf_counter(), time.process_time()
    asked = answered = events = tokens = 0
    for connection in open_.values():
        connection.socket.sendall(next(to_send))
        asked += 1
    while answered < requests:
        for number, _ in epoll.poll():
            connection = open_[number]
            data = connection.socket.recv(1 << 18)
            assert data, "the server has closed a connection"
            connection.received.append(data)
            if streams:
                if not data.endswith(_END):
                    continue
                whole = b"".join(connection.received)
                assert whole.startswith(b"HTTP/1.1 200"), whole[:500]
                assert _DONE in whole[-40:], whole[-200:]
                events += whole.count(b"data: ") - 1
            else:
                connection.length += len(data)
                if not connection.expected:
                    connection.expected = _length(connection.received[0])
                if connection.length < connection.expected:
                    continue
                if counted := _TOKENS.search(b"".join(connection.received)):
                    tokens += int(counted[1])
            connection.received.clear()
            connection.length = connection.expected = 0
            answered += 1
            if asked < requests:
                connection.socket.sendall(next(to_send))
                asked += 1
    took_s, cpu_s = time.perf_counter() - begin_s, time.process_time() - cpu_s
    counts = {"requests": answered, "events": events, "tokens": tokens}
    print(json.dumps({**counts, "seconds": took_s, "client_cpu_s": cpu_s}))


def _length(head: bytes) -> int:
    """Bytes of the answer that begins so."""
    assert head.startswith(b"HTTP/1.1 200"), head[:500]
    fields, _, _ = head.partition(b"\r\n\r\n")
    at = fields.index(b"content-length: ") + len(b"content-length: ")
    return len(fields) + 4 + int(fields[at:].partition(b"\r\n")[0])


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.stdin.read().splitlines())
